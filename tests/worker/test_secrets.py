"""A job's environment and secrets reach the run and nothing else: not the database, a backup, or output of mpsq."""

from __future__ import annotations

import os
import signal
import sqlite3
from pathlib import Path

import pytest

from queue_runner.cli.main import main
from queue_runner.control import deletion, new_attempts, resubmission
from queue_runner.errors import MpsqError
from queue_runner.host import job_environments
from queue_runner.model import parse_selector
from queue_runner.store import backup
from tests.cli_support import Cli
from tests.process_support import until
from tests.queue_support import Queue

pytestmark = pytest.mark.process

SECRETS = ("word-0", "word-1", "word-2")
JOB = ("/bin/sh", "-c", 'echo "$MINE $HF_TOKEN $SHELLS" > "$MPSQ_CWD/got"; exit 3')


def test_secrets_reach_the_run_and_nothing_else(queue: Queue, mpsq: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = queue.layout
    layout.secrets.mkdir(mode=0o700)
    layout.secrets.joinpath("HF_TOKEN").write_text("word-1\n")
    layout.secrets.joinpath("HF_TOKEN").chmod(0o600)
    monkeypatch.setenv("SHELLS", "word-2")
    given = ("--env", "MINE=word-0", "--secret", "HF_TOKEN", "--cwd", queue.folder)
    submitted = mpsq.ok("submit", *given, "--", *JOB)
    mpsq.ok("schedule", "add", "0 2 * * *", "--", *given, "--", *JOB)
    monkeypatch.delenv("SHELLS")
    queue.worker()
    queue.done()
    assert queue.folder.joinpath("got").read_text() == f"{' '.join(SECRETS)}\n"
    printed = [mpsq.ok(*words) for words in (("show", "1"), ("show", "1", "--json"), ("list", "--json"), ("why", "1"))]
    printed += [mpsq.ok("report", "time", "--json"), mpsq.ok("schedule", "list"), submitted]
    assert not [word for word in SECRETS for ran in printed if word in ran.out + ran.err]
    assert {"MINE", "HF_TOKEN", "SHELLS"} <= set(printed[1].json()["runs"][0]["env"])
    backup.make(layout)
    private = {layout.secrets / "HF_TOKEN", *layout.environments.iterdir()}
    for path in (path for path in layout.home.rglob("*") if path.is_file() and path not in private):
        assert not [word for word in SECRETS if word.encode() in path.read_bytes()], path
    assert not [path for path in private if path.stat().st_mode & 0o077]


def test_an_environment_goes_with_the_last_run_that_may_need_it(queue: Queue, mpsq: Cli) -> None:
    layout = queue.layout
    queue.submit("exit 3", env=("MINE=1",))
    queue.submit("exit 0", env=("MINE=2",))
    queue.submit("exit 0", env=("MINE=3",), hold=True)
    assert len(job_environments.files(layout)) == 3
    (layout.environments / ".partial-x").touch()
    queue.worker()
    until(lambda: [row["state"] for row in queue.rows()] == ["DONE", "DONE", "HELD"], "two ends")
    mpsq.ok("gc", "--yes")
    assert len(job_environments.files(layout)) == 2  # the failed job may be retried, the held one may start
    deletion.delete(layout, [parse_selector("1")], results=False)
    main(["cancel", "3"])
    mpsq.ok("delete", "3")
    assert not job_environments.files(layout)


def test_a_rerun_takes_todays_environment(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    layout, first = queue.layout, [parse_selector("1")]
    options = resubmission.RerunOptions()
    with layout.config.open("a") as settings:
        settings.write("backup_every_s = 0\n")  # a backup removes environments that no run needs
    monkeypatch.setenv("SHELLS", "then")
    queue.submit('echo "$MINE $SHELLS" >> "$MPSQ_CWD/got"', env=("MINE=word-0",))
    queue.worker()
    queue.done()
    monkeypatch.setenv("SHELLS", "today")
    resubmission.rerun(layout, first, options, "again")
    queue.done(2)
    assert queue.folder.joinpath("got").read_text() == "word-0 then\nword-0 today\n"
    with sqlite3.connect(layout.db) as connection:
        ((count,),) = connection.execute("SELECT count(DISTINCT spec_hash) FROM jobs")
    assert count == 1
    for path in job_environments.files(layout):
        path.unlink()
    with pytest.raises(MpsqError, match="the value of --env MINE is no longer stored"):
        resubmission.rerun(layout, first, options, "again")
    monkeypatch.setenv("MINE", "word-0")
    resubmission.rerun(layout, first, options, "again")
    queue.done(3)


def test_a_missing_environment_has_a_remedy_before_and_at_the_start(queue: Queue) -> None:
    layout, first = queue.layout, [parse_selector("1")]
    queue.submit("exit 3")
    queue.worker()
    queue.done()
    (file,) = job_environments.files(layout)
    file.rename(layout.home / "aside")
    with pytest.raises(MpsqError, match="job 1 cannot be retried") as caught:
        new_attempts.retry(layout, first)
    assert "mpsq rerun" in caught.value.hint
    (layout.home / "aside").rename(file)
    main(["pause"])
    new_attempts.retry(layout, first)
    file.unlink()
    main(["resume"])
    row = queue.done(2)[-1]
    assert row["outcome"] == "SPAWN_FAILED" and "mpsq rerun" in row["reason"]


def test_a_start_that_was_killed_leaves_no_secrets_and_the_next_has_them(queue: Queue) -> None:
    queue.submit('echo "$DBPASS" > "$MPSQ_CWD/got"', env=("DBPASS=word-0",))
    worker = queue.worker("warden.locked")
    warden = queue.stopped("warden.locked")
    secrets = queue.layout.run_dir("1.1") / "secrets.json"
    assert "word-0" in secrets.read_text() and not secrets.stat().st_mode & 0o077
    for pid in (worker.pid, warden):
        os.kill(pid, signal.SIGKILL)
    worker.wait()
    queue.worker()
    assert queue.done()[0]["outcome"] == "SUCCEEDED"
    assert queue.folder.joinpath("got").read_text() == "word-0\n" and not secrets.exists()


def test_a_run_that_is_cancelled_before_its_start_leaves_no_secrets(queue: Queue) -> None:
    queue.submit("exit 3", env=("DBPASS=word-0",))
    worker = queue.worker("worker.prepared")
    pid = queue.stopped("worker.prepared")
    main(["cancel", "1", "--no-wait"])
    os.kill(pid, signal.SIGKILL)
    worker.wait()
    queue.worker()
    assert queue.done()[0]["outcome"] == "CANCELLED"
    assert not (queue.layout.run_dir("1.1") / "secrets.json").exists()


def test_a_named_secret_that_others_may_read_starts_nothing(queue: Queue) -> None:
    path = queue.layout.secrets / "HF_TOKEN"
    path.parent.mkdir(mode=0o700)
    path.write_text("word-0")
    path.chmod(0o600)
    queue.submit("exit 3", secrets=("HF_TOKEN",))
    path.chmod(0o644)
    queue.worker()
    (row,) = queue.done()
    assert row["outcome"] == "SPAWN_FAILED" and "other users can" in row["reason"]


def test_a_secret_that_does_not_exist_is_refused(home: Path, mpsq: Cli) -> None:
    refused = mpsq("submit", "--env", "HF_TOKEN=x", "--secret", "HF_TOKEN", "--", "/usr/bin/true")
    assert refused.code == 2 and all(x in refused.err for x in ("HF_TOKEN", "both --env"))
    refused = mpsq("submit", "--secret", "HF_TOKEN", "--", "/usr/bin/true")
    assert refused.code == 2 and f"cat > {home}/secrets/HF_TOKEN" in refused.err
