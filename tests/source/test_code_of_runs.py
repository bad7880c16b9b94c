"""What was queued is what runs: real repositories, a real worker, and code that changes in between."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from pathlib import Path
from typing import Any

import pytest

from queue_runner.control import new_attempts, resubmission
from queue_runner.errors import MpsqError, UsageError
from queue_runner.model import Selector, parse_selector
from queue_runner.submit import plan
from tests.queue_support import Queue, until
from tests.submit_support import requested

pytestmark = [
    pytest.mark.process,
    pytest.mark.needs_program("git"),
]


class Repository:
    """A work tree with one program, say.sh, that prints its version."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir()
        self.git("init", "-q", "-b", "main")
        self.git("config", "user.email", "a@example.com")
        self.git("config", "user.name", "A")
        (root / ".gitignore").write_text("data/\n")
        self.version("v1")
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "first")

    def git(self, *arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(self.root), *arguments], check=True, capture_output=True, text=True
        ).stdout.strip()

    def version(self, text: str) -> None:
        (self.root / "say.sh").write_text(f"echo {text}\n")


@pytest.fixture
def code(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "code")


def queue_it(queue: Queue, folder: Path, command: str = ". ./say.sh", **options: Any) -> int:
    planned = plan.plan(requested(argv=("/bin/sh", "-c", command), cwd=str(folder), **options))
    return plan.store(queue.layout, planned).jobs[0]


def said(queue: Queue, run: str) -> str:
    return (queue.layout.run_dir(run) / "stdout.log").read_text().strip()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def again(queue: Queue, job: int, **wanted: Any) -> resubmission.Rerun:
    selector: Selector = parse_selector(str(job))
    return resubmission.rerun(queue.layout, [selector], resubmission.RerunOptions(**wanted), "mpsq rerun")


def test_each_job_runs_the_code_that_it_was_queued_with(queue: Queue, code: Repository) -> None:
    (code.root / "data").mkdir()
    (code.root / "data" / "in").write_text("data")
    queue_it(queue, code.root, copy=True)
    code.version("v2")
    command = ". ./say.sh; cat $MPSQ_CWD/data/in {cwd}/data/in; echo result > out.txt; echo spoilt > say.sh; pwd"
    queue_it(queue, code.root, command, copy=True, repeats=2)
    code.version("v3")
    queue.worker()
    rows = queue.done(3)
    assert {row["outcome"] for row in rows} == {"SUCCEEDED"}
    assert said(queue, "1.1") == "v1"
    for run in ("2.1", "2.2"):  # what the first run did to its copy, the second does not see
        copy = queue.layout.run_dir(run) / "tree"
        assert said(queue, run) == f"v2\ndatadata{copy}"
        until(lambda copy=copy: names(copy) == ["out.txt", "say.sh"], "what it wrote, and no more, to be left")
    until(lambda: not (queue.layout.run_dir("1.1") / "tree").exists(), "nothing to be left where nothing was written")
    assert (code.root / "say.sh").read_text() == "echo v3\n"


def test_changed_code_is_not_run_and_a_rerun_brings_the_old_back(queue: Queue, code: Repository) -> None:
    code.version("v2")
    (code.root / "lib.sh").write_text("echo lib\n")
    command = ". ./say.sh; . ./lib.sh"
    queue_it(queue, code.root, command)  # 1: runs before anything changes
    worker = queue.worker("", "--until-idle")
    worker.wait()
    queue_it(queue, code.root, command)  # 2
    queue_it(queue, code.root, command, allow_changed=True)  # 3
    code.version("v3")
    (code.root / "lib.sh").unlink()
    queue_it(queue, code.root)  # 4
    queue.worker("", "--until-idle").wait()
    outcomes = {row["job_id"]: (row["outcome"], row["reason"]) for row in queue.rows()}
    assert said(queue, "1.1") == "v2\nlib"
    assert outcomes[2] == ("CODE_CHANGED", "say.sh changed, lib.sh was removed")
    assert not queue.layout.run_dir("2.1").exists()
    assert outcomes[3][0] == "FAILED" and said(queue, "3.1") == "v3"
    assert outcomes[4][0] == "SUCCEEDED"
    first, second = again(queue, 1, repeats=2), again(queue, 4)
    assert first.runs == ("5.1", "5.2") and "say.sh changed: it runs in a copy" in first.notes[0]
    assert second.notes == ()  # unchanged: where it is
    queue.worker("", "--until-idle").wait()
    assert said(queue, "5.1") == said(queue, "5.2") == "v2\nlib" and said(queue, "6.1") == "v3"
    rows = {row["job_id"]: row for row in queue.rows()}
    assert rows[5]["rerun_of"] == 1 and rows[5]["spec_hash"] == rows[1]["spec_hash"]


def test_a_retry_whose_code_changed_is_refused_at_once_and_names_rerun(queue: Queue, code: Repository) -> None:
    queue_it(queue, code.root, ". ./say.sh; exit 3", repeats=2)
    queue.worker("", "--until-idle").wait()
    code.version("v2")
    with pytest.raises(UsageError, match=r"job 1 would not run: say\.sh changed") as error:
        new_attempts.retry(queue.layout, [parse_selector("1")])
    assert "mpsq rerun 1" in str(error.value.hint)
    assert len(queue.rows()) == 2
    queue.submit("exit 4")
    queue.worker("", "--until-idle").wait()
    notes: list[str] = []
    done = new_attempts.retry(queue.layout, [parse_selector("1"), parse_selector("2")], note=notes.append)
    assert [one.new for one in done] == ["1.3", "1.4", "2.2"]
    (note,) = notes
    assert note == "job 1 will not run unless its code is restored: say.sh changed; mpsq rerun 1 runs it as it was"
    code.version("v1")
    queue.worker("", "--until-idle").wait()
    assert {row["outcome"] for row in queue.rows()} == {"FAILED"}


def test_what_jobs_write_and_what_git_does_is_no_change_of_the_code(queue: Queue, code: Repository) -> None:
    code.version("v2")
    job = ". ./say.sh; echo x >> train.log; echo x > out.json; mkdir -p data; echo x > data/o"
    queue_it(queue, code.root, job, repeats=3)
    code.git("commit", "-q", "-a", "-m", "the same content, committed")
    (code.root / "say.sh").touch()
    queue.worker("", "--until-idle").wait()
    assert {row["outcome"] for row in queue.rows()} == {"SUCCEEDED"}


def test_code_that_is_gone_ends_the_job_and_not_the_queue(queue: Queue, code: Repository) -> None:
    queue_it(queue, code.root, copy=True)
    queue_it(queue, code.root, copy=True, retries=2)  # no retry brings the code back
    for path in queue.layout.snapshots.glob("*/tree.tar"):
        path.write_bytes(path.read_bytes()[:700])
    queue.submit("echo other")
    queue.worker("", "--until-idle").wait()
    rows = queue.rows()
    assert [row["outcome"] for row in rows] == ["CODE_CHANGED", "CODE_CHANGED", "SUCCEEDED"]
    assert "its stored code is gone" in rows[0]["reason"]
    assert not (queue.layout.run_dir("1.1") / "tree").exists()
    shutil.rmtree(next(queue.layout.snapshots.glob("*")))
    with pytest.raises(MpsqError, match=r"job 1 cannot be rerun: .* was deleted"):
        again(queue, 1)


def test_a_worker_killed_before_it_refuses_refuses_next_time(queue: Queue, code: Repository) -> None:
    queue_it(queue, code.root)
    code.version("v2")
    worker = queue.worker("worker.claimed")
    queue.stopped("worker.claimed")
    worker.kill()
    worker.wait()
    queue.worker()
    row = queue.done()[0]
    assert row["outcome"] == "CODE_CHANGED" and row["started_at"] is None
    assert queue.verbs(1) == ["submit", "claim", "unclaim", "claim", "finish"]


def test_no_secret_is_ever_stored(queue: Queue, code: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "hunter2hunter2"
    monkeypatch.setenv("HF_TOKEN", secret)
    (code.root / "keys").mkdir()
    for name in (".env", ".env.local", "server.pem", "id_rsa", ".netrc", "keys/id_ed25519"):
        (code.root / name).write_text(secret)
    code.git("add", "-f", ".env", "keys/id_ed25519")
    code.git("commit", "-q", "-m", "a mistake")
    (code.root / ".env").write_text(secret + "changed")
    (code.root / "id_rsa").chmod(0)
    queue_it(queue, code.root, "test ${#HF_TOKEN} = 14", copy=True)
    queue_it(queue, code.root)
    (code.root / ".env").write_text("changed again")  # nobody knows
    queue.worker("", "--until-idle").wait()
    assert {row["outcome"] for row in queue.rows()} == {"SUCCEEDED"}
    with sqlite3.connect(queue.layout.db) as connection:
        assert secret not in "\n".join(connection.iterdump())
        left_out = connection.execute("SELECT DISTINCT left_out_json FROM snapshots").fetchone()[0]
    assert "keys/id_ed25519" in left_out and "server.pem" in left_out
    for place, _, names in os.walk(queue.layout.home):
        for name in names:
            path = Path(place) / name
            if path.is_file() and not path.is_relative_to(queue.layout.environments):
                assert secret.encode() not in path.read_bytes(), path
