"""A job's secrets reach the run and nothing else: not the database, not a backup, not what mpsq prints."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from queue_runner.cli.main import main
from queue_runner.control import delete, rerun, retry
from queue_runner.errors import MpsqError
from queue_runner.host import job_secrets
from queue_runner.model import parse_selector
from queue_runner.paths import Layout
from queue_runner.store import backup
from queue_runner.submit import plan
from queue_runner.submit.request import Request
from tests.cli_support import Cli
from tests.queue_support import Queue

pytestmark = pytest.mark.process

SECRETS = ("word-0", "word-1", "word-2", "word-3", "word-4")
SCRIPT = 'echo "$DBPASS $HF_TOKEN $@" > "$MPSQ_CWD/got"; exit 3'
WORDS = ("-p", "word-1", "postgres://u:word-2@h/db", "Authorization: Bearer word-3")
JOB = ("/bin/sh", "-c", SCRIPT, "sh", *WORDS)


def test_secrets_reach_the_run_and_nothing_else(queue: Queue, mpsq: Cli) -> None:
    layout = queue.layout
    layout.secrets.mkdir(mode=0o700)
    layout.secrets.joinpath("HF_TOKEN").write_text("word-4\n")
    layout.secrets.joinpath("HF_TOKEN").chmod(0o600)
    given = ("--env", "DBPASS=word-0", "--secret", "HF_TOKEN", "--cwd", queue.folder)
    submitted = mpsq.ok("submit", *given, "--", *JOB)
    mpsq.ok("schedule", "add", "0 2 * * *", "--", *given, "--", *JOB)
    queue.worker()
    queue.done()
    assert queue.folder.joinpath("got").read_text() == f"word-0 word-4 {' '.join(WORDS)}\n"
    printed = [mpsq.ok(*words) for words in (("show", "1"), ("show", "1", "--json"), ("list", "--json"), ("why", "1"))]
    printed += [mpsq.ok("report", "time", "--json"), mpsq.ok("schedule", "list"), submitted]
    assert not [word for word in SECRETS for ran in printed if word in ran.out + ran.err]
    assert "[hidden]" in printed[0].out and {"DBPASS", "HF_TOKEN"} <= set(printed[1].json()["runs"][0]["env"])
    backup.make(layout)
    private = {layout.secrets / "HF_TOKEN", *layout.words.iterdir()}
    for path in (path for path in layout.home.rglob("*") if path.is_file() and path not in private):
        assert not [word for word in SECRETS if word.encode() in path.read_bytes()], path
    assert not [path for path in private if path.stat().st_mode & 0o077]


def test_secrets_go_with_the_last_job_that_has_them(queue: Queue) -> None:
    layout, one = queue.layout, [parse_selector("1")]
    queue.submit("exit 3 # --token word-1")
    queue.worker()
    queue.done()
    again = rerun.rerun(layout, one, rerun.RerunOptions(allow_changed=True), "again")
    queue.done(2)
    delete.delete(layout, one, results=False)
    assert len(list(layout.words.iterdir())) == 2  # the word, and the key
    delete.delete(layout, [parse_selector(f"g{again.group}")], results=True)
    assert [path.name for path in layout.words.iterdir()] == [".key"]


def test_gc_removes_what_a_killed_delete_left(queue: Queue, mpsq: Cli) -> None:
    queue.submit("exit 3 # --token word-1")
    (word,) = (path for path in queue.layout.words.iterdir() if path.name != ".key")
    left = word.with_name("[mpsq-secret-0123456789abcdef01234567]")
    left.write_text("x")
    mpsq.ok("gc")
    assert word.exists() and not left.exists()


def test_what_is_gone_is_said_before_and_at_the_start(queue: Queue) -> None:
    layout, one = queue.layout, [parse_selector("1")]
    queue.submit("exit 3", env=("DBPASS=word-0",))
    queue.worker()
    queue.done()
    (word,) = (path for path in layout.words.iterdir() if path.name != ".key")
    retry.retry(layout, one)
    queue.done(2)
    word.rename(word.with_suffix(".aside"))
    with pytest.raises(MpsqError, match="job 1 cannot be retried: the value of --env DBPASS was a secret") as caught:
        retry.retry(layout, one)
    assert "submit it again, with the secret" in caught.value.hint
    with pytest.raises(MpsqError, match="job 1 cannot be rerun: the value of --env DBPASS was a secret"):
        rerun.rerun(layout, one, rerun.RerunOptions(allow_changed=True), "again")
    word.with_suffix(".aside").rename(word)
    main(["pause"])
    retry.retry(layout, one)
    word.unlink()
    main(["resume"])
    row = queue.done(3)[-1]
    assert row["outcome"] == "SPAWN_FAILED" and "--env DBPASS was a secret, and its file is gone" in row["reason"]


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
    assert row["outcome"] == "SPAWN_FAILED" and "others may read the secret" in row["reason"]


def test_the_note_names_what_is_withheld_and_the_remedy(home: Path, mpsq: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("MYSQL_PWD", "word-0"), ("GITHUB_PAT", "word-1"), ("DATABASE_URL", "postgres://u:word-2@h")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    said = mpsq.ok("submit", "--env", "GITHUB_PAT=word-1", "--", "/usr/bin/true").err
    said = " ".join(said.split())
    assert "look like secrets: DATABASE_URL, MYSQL_PWD." in said
    assert "--secret NAME" in said and "--env NAME=..." in said and "word" not in said
    names = mpsq.ok("show", "1", "--json").json()["runs"][0]["env"]
    assert {"GITHUB_PAT", "TOKENIZERS_PARALLELISM"} <= set(names) and "MYSQL_PWD" not in names
    kept = plan.plan(Request(argv=("/usr/bin/true",), environment={"PATH": "/bin"}))
    assert not any("secret" in text for text in kept.warnings)
    refused = mpsq("submit", "--env", "HF_TOKEN=x", "--secret", "HF_TOKEN", "--", "/usr/bin/true")
    assert refused.code == 2 and "HF_TOKEN has both --env and --secret" in refused.err
    refused = mpsq("submit", "--secret", "HF_TOKEN", "--", "/usr/bin/true")
    assert refused.code == 2 and f"cat > {home}/secrets/HF_TOKEN" in refused.err


KEYRING = """
import sys, time
get, service, name = sys.argv[1:]
assert (get, service) == ("get", "mpsq")
if name == "LOCKED":
    time.sleep(60)
if name == "NONE":
    sys.exit("keyring.errors.NoKeyringError: No recommended backend was available.")
print("word-0") if name == "HF_TOKEN" else sys.exit(1)
"""


def test_a_keyring_answers_where_there_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for the package keyring, with the exit codes of its command `get`."""
    folder = tmp_path / "site" / "keyring"
    folder.mkdir(parents=True)
    folder.joinpath("__init__.py").touch()
    folder.joinpath("__main__.py").write_text(KEYRING)
    monkeypatch.setenv("PYTHONPATH", str(folder.parent))
    monkeypatch.syspath_prepend(folder.parent)
    layout = Layout(tmp_path)
    assert job_secrets.named(layout, ["HF_TOKEN"]) == {"HF_TOKEN": "word-0"}
    with pytest.raises(job_secrets.Missing, match="nor in the keyring") as caught:
        job_secrets.named(layout, ["OTHER"])
    assert "keyring set mpsq OTHER" in caught.value.hint
    with pytest.raises(job_secrets.Missing, match=r"the keyring refuses: .*No recommended backend"):
        job_secrets.named(layout, ["NONE"])
    monkeypatch.setattr(job_secrets, "KEYRING_S", 0.2)
    with pytest.raises(job_secrets.Missing, match="does not answer: it may be locked"):
        job_secrets.named(layout, ["LOCKED"])
