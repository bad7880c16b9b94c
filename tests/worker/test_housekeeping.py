"""Keeping house beside a real queue: backups, a damaged database, a full disk, delete and gc that are killed."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

from queue_runner.config_file import Config
from queue_runner.host import services, wakeup
from queue_runner.paths import DEFAULT_LABEL, launchd_log
from tests import forked_programs
from tests.forked_programs import CODE, run
from tests.queue_support import Queue, until

pytestmark = pytest.mark.process


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_service_of_version_0_1_still_starts_the_worker(queue: Queue) -> None:
    """Its launchd or systemd unit says `-m queue_runner.daemon`, until mpsq service rewrites it."""
    queue.submit("echo ran >> $J")
    subprocess.run([sys.executable, "-m", "queue_runner.daemon", "--until-idle"], check=True)
    assert (queue.rows()[0]["outcome"], queue.written()) == ("SUCCEEDED", ["ran"])


def test_a_service_starts_mpsq_worker(queue: Queue) -> None:
    program = services.program_for(queue.layout, Config(), sys.executable, os.environ)
    assert program.argv[-2:] == ["worker", "--service"]
    queue.submit("echo ran >> $J")
    command = [sys.executable, "-m", "queue_runner.cli", *program.argv[-2:]]  # the code of this checkout
    subprocess.run([*command, "--until-idle"], check=True)
    assert (queue.rows()[0]["outcome"], queue.written()) == ("SUCCEEDED", ["ran"])


def test_a_worker_that_idles_through_an_upgrade_starts_the_warden_that_it_knows(queue: Queue) -> None:
    """It read the warden's files at its first start of a run: perhaps those of another version by then."""
    queue.submit("echo ran >> $J")
    code = (
        "from queue_runner.worker import main_loop, warden_starter\n"
        "def begins(fifo):\n"
        "    warden_starter.find_spec = None\n"
        "    return listen(fifo)\n"
        "listen, main_loop.wakeup.listen = main_loop.wakeup.listen, begins\n"
        "main_loop.main(['--until-idle'])\n"
    )
    queue.worker("", code, module=CODE)
    queue.done()
    assert queue.written() == ["ran"]


def test_a_service_starts_anew_after_an_upgrade_and_its_run_continues(queue: Queue) -> None:
    queue.submit("while [ ! -e go ]; do sleep 0.02; done; echo ran >> $J")
    (installed := queue.folder / "__init__.py").touch()
    code = (
        f"import queue_runner, sys; queue_runner.__file__ = {str(installed)!r}\n"
        "from queue_runner.worker import main_loop; sys.exit(main_loop.main(['--service']))"
    )
    with (queue.folder / "worker.log").open("ab") as log:
        worker = subprocess.Popen([sys.executable, "-c", code], stderr=log)
    try:
        until(lambda: queue.rows()[0]["state"] == "RUNNING", "the run")
        installed.unlink()  # in the middle of an upgrade
        (queue.folder / "new").touch()
        (queue.folder / "new").rename(installed)
        until(lambda: worker.poll() is not None, "the end of the worker")
    finally:
        worker.kill()
    assert worker.wait() == 1 and "mpsq was upgraded" in queue.log()
    (queue.folder / "go").touch()
    assert queue.worker("", "--until-idle").wait() == 0
    assert (queue.rows()[0]["outcome"], queue.written()) == ("SUCCEEDED", ["ran"])


@pytest.mark.parametrize("by_launchd", [True, False])
def test_the_log_that_launchd_has_opened_is_cut_or_that_of_the_queue(
    by_launchd: bool, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(queue.folder))
    log = launchd_log(DEFAULT_LABEL, queue.folder) if by_launchd else queue.layout.worker_log
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("a line\n" * 100_000)
    with queue.layout.config.open("a") as settings:
        settings.write("keep_worker_log_bytes = 65536\n")
    queue.submit("sleep 0.5")
    code = "from queue_runner.worker import main_loop\nmain_loop.UPKEEP_EVERY_S = 0.1\n"
    if not by_launchd:  # the user's home is not looked at: it may be on a network drive that is gone
        code += "def home():\n    raise AssertionError\nmain_loop.Path.home = home\n"
    with log.open("ab") as output:
        worker = forked_programs.worker((f"{code}main_loop.main(['--until-idle'])",), os.environ, output, CODE)
    queue.done()
    worker.wait()
    assert log.stat().st_size < 65536 and "run 1.1: SUCCEEDED" in log.read_text()


def test_a_long_log_of_sqlite_is_written_back_soon(queue: Queue) -> None:
    """Ten jobs a second wrote 50 MB until the next upkeep."""
    queue.submit("true")
    worker = queue.worker()
    queue.done()
    log = Path(f"{queue.layout.db}-wal")
    with closing(sqlite3.connect(queue.layout.db)) as connection, connection:
        connection.execute("PRAGMA wal_autocheckpoint=0")
        connection.execute("CREATE TABLE large AS SELECT zeroblob(20000000)")
    until(lambda: log.stat().st_size < 1 << 20, "the log written back")
    worker.terminate()
    worker.wait()


def test_a_worker_makes_a_backup_while_nothing_runs(queue: Queue) -> None:
    queue.submit("true")
    worker = queue.worker()
    until(lambda: list(queue.layout.backups.glob("*-auto.db")), "a backup")
    worker.terminate()
    worker.wait()
    (path,) = queue.layout.backups.iterdir()
    with sqlite3.connect(path) as copy:
        assert copy.execute("SELECT outcome FROM runs").fetchall() == [("SUCCEEDED",)]
    copy.close()


def test_a_full_disk_is_no_reason_to_stop(queue: Queue) -> None:
    """Files may not grow beyond what the database has: its backup, a new file, may, a larger one could not be made."""
    queue.layout.backups.rmdir()
    script = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536)); "
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "from queue_runner.cli.main import main; sys.exit(main(['db', 'backup']))"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ran.returncode == 1 and ran.stderr.startswith("error: the backup"), ran
    assert "hint: free" in ran.stderr and "Traceback" not in ran.stderr
    assert list(queue.layout.backups.iterdir()) == []


@pytest.mark.parametrize("results", [False, True])
def test_a_delete_that_is_killed_between_database_and_files(queue: Queue, results: bool) -> None:
    queue.submit("true")
    assert queue.worker("", "--until-idle").wait() == 0
    deleting = queue.command("delete", "1", *(["--results"] if results else []), "--yes", stop_at="delete.committed")
    os.kill(queue.stopped("delete.committed"), signal.SIGKILL)
    deleting.wait()
    folder = queue.layout.run_dir("1.1")
    assert folder.exists() and bool(queue.rows()) is not results
    os.utime(folder, (1, 1))
    assert run("gc", "--yes").returncode == 0
    assert not folder.exists()


def test_a_gc_that_is_killed_with_the_trash_in_hand(queue: Queue) -> None:
    queue.submit("echo hello")
    assert queue.worker("", "--until-idle").wait() == 0
    collecting = queue.command("gc", "--keep", "last:0", "--yes", stop_at="gc.aside")
    os.kill(queue.stopped("gc.aside"), signal.SIGKILL)
    collecting.wait()
    assert names(queue.layout.run_dir("1.1")) == ["spec.json", "warden", "warden.lock"]
    assert list(queue.layout.runs.glob(".trash-*")) and "gc" in queue.verbs(1)
    assert "interrupted removal" in run("gc", "--yes").stdout
    assert names(queue.layout.runs) == ["1.1"]


def test_a_snapshot_that_a_submitter_counts_on_stays(queue: Queue) -> None:
    """It is there already, old, and no job refers to it, when a submitter finds that it need not be copied."""
    submit = ["submit", "nanogpt", "--config", "tiny"]
    assert run(*submit).returncode == 0 and run("cancel", "1").returncode == 0
    assert run("delete", "1", "--results", "--yes").returncode == 0
    (snapshot,) = queue.layout.snapshots.iterdir()
    os.utime(snapshot, (1, 1))
    assert f"snapshot  {snapshot.name[:12]}" in run("gc", "--dry-run").stdout
    submitter = queue.command(*submit, stop_at="submit.planned")
    pid = queue.stopped("submit.planned")
    ran = run("gc", "--yes")
    assert ran.returncode == 1 and "mpsq submit" in ran.stderr
    os.kill(pid, signal.SIGCONT)
    assert submitter.wait() == 0 and snapshot.is_dir()
    os.utime(snapshot, (1, 1))
    assert run("gc", "--yes").stdout == "0 B freed\n" and snapshot.is_dir()


def test_a_worker_says_once_that_the_database_is_damaged(queue: Queue) -> None:
    queue.submit("true")
    worker = queue.worker()
    queue.done(1)
    until(lambda: "backup mpsq-" in queue.log(), "a backup")
    (saved,) = queue.layout.backups.iterdir()
    db, home = queue.layout.db, queue.layout.home

    def complains_of_damage() -> bool:
        """Damage the files under its hands, again after each transaction that was under way and wrote over it."""
        for path in (db, home / "mpsq.db-wal", home / "mpsq.db-shm"):
            with path.open("r+b") as file:  # in place: a file made shorter kills whoever has it mapped
                file.write(b"\xff" * 100)
        wakeup.ring(queue.layout.fifo)
        assert worker.poll() is None, queue.log()
        return "ERROR" in queue.log()

    until(complains_of_damage, "a complaint")
    before = queue.log().count("ERROR")
    for _ in range(20):
        wakeup.ring(queue.layout.fifo)
        threading.Event().wait(0.02)
    assert worker.poll() is None and queue.log().count("ERROR") <= before + 2, queue.log()
    worker.kill()
    worker.wait()
    shutil.copyfile(saved, queue.layout.db)  # for those who look at it after the test
    for path in queue.layout.home.glob("mpsq.db-*"):
        path.unlink()
