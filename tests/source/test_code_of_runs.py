"""What was queued is what runs: real repositories, a real worker, and code that changes in between."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import venv
from pathlib import Path
from typing import Any

import pytest

from queue_runner.control import new_attempts, resubmission
from queue_runner.errors import MpsqError, UsageError
from queue_runner.model import Selector, parse_selector
from queue_runner.monitor import run_view
from queue_runner.source import rules
from queue_runner.store import read
from queue_runner.submit import plan
from tests import forked_programs
from tests.process_support import needs_linux
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


def notes(queue: Queue, run: str) -> dict[str, str]:
    with read.reading(queue.layout.db) as connection:
        sql = "SELECT n.kind, n.text FROM notes AS n JOIN v_run AS r ON r.run_id = n.run_id WHERE r.run = ?"
        return dict(read.tuples(connection, sql, [run]))


def mpsq(queue: Queue, *arguments: str) -> str:
    done = forked_programs.run(*arguments, COLUMNS="400")
    assert done.returncode == 0, done.stderr
    return done.stdout


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def again(queue: Queue, job: int, **wanted: Any) -> plan.Submitted:
    selector: Selector = parse_selector(str(job))
    return resubmission.rerun(queue.layout, [selector], resubmission.RerunOptions(**wanted), "mpsq rerun")


def test_each_job_runs_the_code_that_it_was_queued_with(queue: Queue, code: Repository) -> None:
    (code.root / "data").mkdir()
    (code.root / "data" / "in").write_text("data")
    queue_it(queue, code.root, snapshot="copy")
    code.version("v2")
    command = ". ./say.sh; cat $MPSQ_CWD/data/in {cwd}/data/in; echo result > out.txt; echo spoilt > say.sh; pwd"
    queue_it(queue, code.root, command, snapshot="copy", repeats=2)
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


def test_an_edit_never_stops_the_queue(queue: Queue, code: Repository) -> None:
    code.version("v2")
    (code.root / "lib.sh").write_text("echo lib\n")
    command = ". ./say.sh; . ./lib.sh; ls; echo result > out.txt"
    queue_it(queue, code.root, command)  # 1
    queue_it(queue, code.root, snapshot="off")  # 2
    queue_it(queue, code.root, command, after=("1",))  # 3
    code.version("v3")
    (code.root / "lib.sh").unlink()
    (code.root / "scratch.py").touch()
    queue_it(queue, code.root, "pwd")  # 4: as it is now
    queue.worker("", "--until-idle").wait()
    assert {row["outcome"] for row in queue.rows()} == {"SUCCEEDED"}
    for run in ("1.1", "3.1"):
        assert said(queue, run) == "v2\nlib\nlib.sh\nsay.sh"
        assert names(queue.layout.run_dir(run) / "tree") == ["out.txt"]
        text = notes(queue, run)["in_copy"]
        changes = [(words[0], words[-1]) for words in map(str.split, text.split(", "))]
        assert changes == [("say.sh", "changed"), ("lib.sh", "removed"), ("scratch.py", "added")]
        why = queue.why(run)
        assert "in a copy of" in why and why.endswith(f" {text}")
    assert said(queue, "2.1") == "v3" and said(queue, "4.1") == str(code.root)
    assert notes(queue, "2.1") == notes(queue, "4.1") == {}
    assert not (code.root / "out.txt").exists()


@needs_linux
def test_a_file_name_that_is_not_utf8_stops_nothing(queue: Queue, code: Repository) -> None:
    library = code.root / os.fsdecode(b"l\xff.sh")
    library.write_text("echo lib\n")
    for _ in range(2):
        queue_it(queue, code.root, ". ./say.sh; . ./l*.sh")
    library.write_text("echo other\n")
    queue.worker("", "--until-idle").wait()
    assert {row["outcome"] for row in queue.rows()} == {"SUCCEEDED"}
    assert said(queue, "2.1") == "v1\nlib" and notes(queue, "2.1")["in_copy"] == "l?.sh changed"


def test_documents_and_notebooks_do_not_count(queue: Queue, code: Repository) -> None:
    (code.root / "README.md").write_text("1")
    code.git("add", "README.md")
    queue_it(queue, code.root, "pwd")
    queue_it(queue, code.root, "pwd")
    (code.root / "README.md").write_text("2")
    (code.root / "look.ipynb").write_text("{}")
    queue.worker("", "--until-idle").wait()
    assert said(queue, "1.1") == said(queue, "2.1") == str(code.root)
    queue.layout.config.write_text(queue.layout.config.read_text() + 'not_code = "*.sh"\n')
    queue_it(queue, code.root, "pwd")
    queue_it(queue, code.root, "pwd")
    code.version("v2")
    queue.worker("", "--until-idle").wait()
    assert said(queue, "3.1") == str(code.root)
    (code.root / "README.md").write_text("3")
    queue_it(queue, code.root, "pwd")
    (code.root / "README.md").write_text("4")
    queue.worker("", "--until-idle").wait()
    assert said(queue, "5.1") == str(queue.layout.run_dir("5.1") / "tree")


def test_the_stored_tree_suffices(queue: Queue, code: Repository) -> None:
    queue_it(queue, code.root)
    code.version("v2")
    code.git("commit", "-q", "-a", "--amend", "-m", "amended")
    code.git("reflog", "expire", "--expire=now", "--all")
    code.git("gc", "-q", "--prune=now")
    queue_it(queue, code.root)
    shutil.rmtree(code.root)
    queue.worker("", "--until-idle").wait()
    assert (said(queue, "1.1"), said(queue, "2.1")) == ("v1", "v2")


EDITS_ITSELF = """. ./say.sh; pwd
case $MPSQ_RUN in
*.1) echo echo v2 > $MPSQ_CWD/say.sh ;;
*.2) echo echo v1 > $MPSQ_CWD/say.sh ;;
esac"""


def test_once_a_run_needs_the_copy_all_later_ones_use_it(queue: Queue, code: Repository) -> None:
    queue_it(queue, code.root, EDITS_ITSELF, repeats=3)
    queue_it(queue, code.root)
    queue.worker("", "--until-idle").wait()
    places = [said(queue, f"1.{number}") for number in (1, 2, 3)]
    assert places[0] == f"v1\n{code.root}"
    assert places[1:] == [f"v1\n{queue.layout.run_dir(f'1.{number}') / 'tree'}" for number in (2, 3)]
    assert notes(queue, "1.2")["in_copy"] == "say.sh changed"
    assert "earlier run" in notes(queue, "1.3")["in_copy"]
    assert notes(queue, "2.1") == {}  # another submission
    report = mpsq(queue, "report", "--explain")
    assert all(x in report for x in ("two places", "1 in the job", "2 in a copy", "(say.sh changed)"))
    assert "runs in      a copy" in mpsq(queue, "show", "1.2")


def test_a_retry_and_a_rerun_use_the_code_of_then(queue: Queue, code: Repository) -> None:
    queue_it(queue, code.root, ". ./say.sh; exit 3")
    queue.worker("", "--until-idle").wait()
    code.version("v2")
    notes: list[str] = []
    new_attempts.retry(queue.layout, [parse_selector("1")], note=notes.append)
    assert len(notes) == 1
    assert all(x in notes[0] for x in ("job 1 will", "a copy of", "say.sh changed", "rerun 1 --snapshot off"))
    assert "a copy of the code first submitted, because say.sh changed" in "".join(again(queue, 1).notes)
    assert again(queue, 1, snapshot="off").notes == ()
    queue.worker("", "--until-idle").wait()
    assert [said(queue, run) for run in ("1.1", "1.2", "2.1", "3.1")] == ["v1", "v1", "v1", "v2"]
    for content in queue.layout.snapshots.glob("*/content-*"):
        content.unlink()
    with pytest.raises(UsageError, match=r"job 1 would not run: say\.sh changed; its stored code is gone") as error:
        new_attempts.retry(queue.layout, [parse_selector("1")])
    assert "rerun 1 --snapshot off" in str(error.value.hint)
    code.version("v1")
    new_attempts.retry(queue.layout, [parse_selector("1")])


def test_a_rerun_of_the_current_code_is_compared_as_such(queue: Queue, code: Repository) -> None:
    """It carried the hash and the commit of the old code: reports took both for one."""
    queue_it(queue, code.root)
    code.version("v2")
    again(queue, 1, snapshot="off")
    queue_it(queue, code.root)
    with read.reading(queue.layout.db) as connection:
        then, now, same = (run.spec for run in run_view.select(connection, [parse_selector(x) for x in "123"]))
    assert now.code == same.code != then.code and now.tree == ""
    with pytest.raises(MpsqError, match="job 2 cannot be rerun with --snapshot copy: its code was not stored"):
        again(queue, 2, snapshot="copy")


def test_a_clone_with_the_content_of_a_plain_folder_keeps_its_data(
    queue: Queue, code: Repository, tmp_path: Path
) -> None:
    """Both have one stored tree, which does not say whether git lists the files: the copy had no data."""
    plain = tmp_path / "plain"
    shutil.copytree(code.root, plain, ignore=shutil.ignore_patterns(".git"))
    queue_it(queue, plain)
    (code.root / "data").mkdir()
    (code.root / "data" / "in").write_text("data")
    queue_it(queue, code.root, ". ./say.sh; cat data/in; echo 1 > data/out; echo 2 > data.log")
    code.version("v2")
    queue.worker("", "--until-idle").wait()
    assert said(queue, "2.1") == "v1\ndata" and (code.root / "data" / "out").exists()


def test_without_git(queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "plain"
    folder.mkdir()
    (folder / "say.sh").write_text("echo v1\n")
    queue_it(queue, folder)
    (folder / "say.sh").write_text("echo v2\n")
    monkeypatch.setattr(rules, "MAX_UNTRACKED_BYTES", 3)
    planned = plan.plan(requested(argv=("/bin/sh", "-c", ". ./say.sh"), cwd=str(folder)))
    (note,) = plan.store(queue.layout, planned).notes
    assert "of untracked files" in note and note.endswith("unchecked")
    (folder / "say.sh").write_text("echo v3\n")
    queue.worker("", "--until-idle").wait()
    assert (said(queue, "1.1"), said(queue, "2.1")) == ("v1", "v3")


def test_ignored_data_is_shared_and_results_stay(queue: Queue, code: Repository) -> None:
    (code.root / "data").mkdir()
    (code.root / "data" / "in").write_text("data")
    queue_it(queue, code.root, "cat data/in; echo step > data/checkpoint; echo 1 > result.json")
    queue_it(queue, code.root, "cat data/checkpoint; ls", after=("1",))
    code.version("v2")
    queue.worker("", "--until-idle").wait()
    assert said(queue, "1.1") == "data" and said(queue, "2.1") == "step\ndata\nsay.sh"
    assert (code.root / "data" / "checkpoint").exists() and not (code.root / "result.json").exists()
    copy = queue.layout.run_dir("1.1") / "tree"
    assert names(copy) == ["result.json"] and str(copy) in mpsq(queue, "show", "1.1")


def test_ignored_results_return_to_the_folder(queue: Queue, code: Repository) -> None:
    """What a run writes below an ignored name that is not there yet, a dependant finds, also in a new folder."""
    script = "mkdir -p data deep/data; echo 1 > data/ckpt; echo 2 > deep/result; echo 3 > deep/data/3"
    queue_it(queue, code.root, script)
    queue_it(queue, code.root, "cat data/ckpt; ls . deep/data", after=("1",))
    code.version("v2")
    queue.worker("", "--until-idle").wait()
    assert said(queue, "2.1") == "1\n.:\ndata\ndeep\nsay.sh\n\ndeep/data:\n3"
    assert (code.root / "data" / "ckpt").exists() and not (code.root / "deep" / "result").exists()
    copy = queue.layout.run_dir("1.1") / "tree"
    assert sorted(str(path.relative_to(copy)) for path in copy.rglob("*")) == ["deep", "deep/result"]


def test_results_of_runs_in_requested_copies_stay_apart(queue: Queue, code: Repository) -> None:
    """The first run's went to the folder, where the second overwrote them."""
    queue_it(queue, code.root, "mkdir -p data; echo $MPSQ_RUN > data/out", snapshot="copy", repeats=2)
    queue.worker("", "--until-idle").wait()
    assert not (code.root / "data").exists()
    for run in ("1.1", "1.2"):
        assert (queue.layout.run_dir(run) / "tree" / "data" / "out").read_text() == f"{run}\n"


def test_lines_of_a_file_and_a_schedule_take_the_code_of_their_submission(queue: Queue, code: Repository) -> None:
    lines = [{"command": ["/bin/sh", "-c", f". ./say.sh; echo {n}"], "cwd": str(code.root)} for n in (1, 2)]
    (queue.folder / "jobs.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    mpsq(queue, "submit", "--from", str(queue.folder / "jobs.jsonl"))
    code.version("v2")
    words = ["--cwd", str(code.root), "--", "/bin/sh", "-c", ". ./say.sh"]
    mpsq(queue, "schedule", "add", "--name", "often", "* * * * *", "--", *words)
    with sqlite3.connect(queue.layout.db) as connection:
        connection.execute("UPDATE schedules SET next_at = next_at - 3600")
    code.version("v3")
    queue.worker()
    queue.done(3)
    assert [said(queue, run) for run in ("1.1", "2.1", "3.1")] == ["v1\n1", "v1\n2", "v3"]


def test_a_worker_killed_between_copy_and_start(queue: Queue, code: Repository) -> None:
    queue_it(queue, code.root, ". ./say.sh; ls")
    code.version("v2")
    worker = queue.worker("worker.prepared")
    queue.stopped("worker.prepared")
    half = queue.layout.run_dir("1.1") / "tree" / "half"  # as of a checkpoint that its job has protected
    half.mkdir()
    (half / "file").touch()
    half.chmod(0o500)
    worker.kill()
    worker.wait()
    queue.worker("", "--until-idle").wait()
    assert said(queue, "1.1") == "v1\nsay.sh" and "in_copy" in notes(queue, "1.1")
    assert queue.verbs(1) == ["submit", "claim", "unclaim", "claim", "finish"]


PACKAGE = "from pkg import version; print(version)"
FINDER = """import sys
from importlib.util import spec_from_file_location
MAPPING = {"pkg": %r}
class Finder:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name in MAPPING:
            return spec_from_file_location(name, MAPPING[name] + "/__init__.py")
sys.meta_path.%s
"""


@pytest.mark.parametrize("how", ["path", "mapping", "loader"])
def test_an_editable_install_of_the_tree(how: str, queue: Queue, code: Repository, tmp_path: Path) -> None:
    """A .pth file with a path, as of most builders; setuptools' finder; and one that imports before any path."""
    package = code.root / "src" / "pkg"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("version = 'v1'")
    (code.root / "train.py").write_text(PACKAGE)
    venv.create(tmp_path / "venv", symlinks=True)
    site = next((tmp_path / "venv").glob("lib/python*/site-packages"))
    if how == "path":
        (site / "pkg.pth").write_text(f"{code.root}/src\n")
    else:
        place = "append(Finder)" if how == "mapping" else "insert(0, Finder)"
        text = FINDER % (str(package), place)
        name = "__editable___pkg_finder" if how == "mapping" else "_pkg_editable_loader"
        (site / f"{name}.py").write_text(text if how == "mapping" else text.replace("MAPPING", "KNOWN"))
        (site / "pkg.pth").write_text(f"import {name}\n")
    argv = (str(tmp_path / "venv" / "bin" / "python"), "train.py")
    plan.store(queue.layout, plan.plan(requested(argv=argv, cwd=str(code.root), repeats=2)))
    (package / "__init__.py").write_text("version = 'v2'")
    queue.worker("", "--until-idle").wait()
    if how == "loader":
        assert said(queue, "1.1") == "v2"
        expected = f"an editable install imports from {code.root}, not from the copy: _pkg_editable_loader"
        assert notes(queue, "1.1")["editable_install"] == expected
        assert "editable_install" in mpsq(queue, "show", "1.1")
    else:
        assert said(queue, "1.1") == said(queue, "1.2") == "v1" and "editable_install" not in notes(queue, "1.1")


def test_what_jobs_write_and_what_git_does_is_no_change_of_the_code(queue: Queue, code: Repository) -> None:
    code.version("v2")
    job = ". ./say.sh; echo x >> train.log; echo x > out.json; mkdir -p data; echo x > data/o"
    queue_it(queue, code.root, job, repeats=3)
    code.git("commit", "-q", "-a", "-m", "the same content, committed")
    (code.root / "say.sh").touch()
    queue.worker("", "--until-idle").wait()
    assert {row["outcome"] for row in queue.rows()} == {"SUCCEEDED"}


def test_code_that_is_gone_ends_the_job_and_not_the_queue(queue: Queue, code: Repository) -> None:
    queue_it(queue, code.root, snapshot="copy")
    queue_it(queue, code.root, snapshot="copy", retries=2)  # no retry brings the code back
    queue_it(queue, code.root)  # its folder has it
    for path in queue.layout.snapshots.glob("*/content-*"):
        path.write_bytes(path.read_bytes()[:3])
    queue.submit("echo other")
    queue.worker("", "--until-idle").wait()
    rows = queue.rows()
    assert [row["outcome"] for row in rows] == ["CODE_CHANGED", "CODE_CHANGED", "SUCCEEDED", "SUCCEEDED"]
    assert "code is gone" in rows[0]["reason"]
    assert not (queue.layout.run_dir("1.1") / "tree").exists()
    for path in queue.layout.snapshots.glob("*/content-*"):
        path.unlink()
    with pytest.raises(MpsqError, match=r"job 1 cannot be rerun: .* was deleted"):
        again(queue, 1)


def test_a_worker_killed_before_it_refuses_refuses_next_time(queue: Queue, code: Repository) -> None:
    queue_it(queue, code.root)
    code.version("v2")
    for path in queue.layout.snapshots.glob("*/content-*"):
        path.unlink()
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
    queue_it(queue, code.root, "test ${#HF_TOKEN} = 14", snapshot="copy")
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
