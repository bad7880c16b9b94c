"""A database that is gone, empty or damaged beside the results of its queue: nothing is begun over them."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from queue_runner.client import Client
from queue_runner.errors import DamageError
from queue_runner.host import locks
from queue_runner.paths import Layout
from queue_runner.store import backup
from tests.cli_support import Cli
from tests.process_support import needs_linux
from tests.queue_support import Queue, until

pytestmark = pytest.mark.process

KEPT = "echo precious > $MPSQ_OUT/checkpoint"


@pytest.fixture
def queue(layout: Layout, tmp_path: Path) -> Iterator[Queue]:
    made = Queue(layout, tmp_path)
    yield made
    if layout.db.exists() and layout.db.stat().st_size:
        made.close()


@pytest.fixture
def other_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16m,mode=700", "tmpfs", str(disk)], capture_output=True
    ).returncode:
        pytest.skip("only root may mount a file system, and not in every container")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def train(queue: Queue, times: int = 1) -> None:
    for _ in range(times):
        queue.submit("mkdir -p $MPSQ_OUT; " + KEPT)
    queue.worker("", "--until-idle").wait()


def lose(layout: Layout, how: str) -> None:
    for path in layout.home.glob("mpsq.db*"):
        path.unlink()
    if how == "empty":
        layout.db.touch()
    elif how == "without tables":
        with sqlite3.connect(layout.db) as connection:
            connection.execute("VACUUM")
        connection.close()


@pytest.mark.parametrize("how", ["gone", "empty", "without tables"])
def test_nothing_is_begun_where_a_queue_was(queue: Queue, mpsq: Cli, how: str) -> None:
    train(queue)
    log = queue.folder / "train.log"
    log.write_text("iter 0: loss 3.0000, time 10.00ms, mfu 1.00%\niter 1: loss 2.0000, time 10.00ms, mfu 1.00%\n")
    saved = backup.make(queue.layout)
    lose(queue.layout, how)
    for command in (
        "submit -- true", "run -- true", "status", "list", "show 1", "why 1", "logs 1", "report", "cancel 1", "retry 1",
        "rerun 1", "wait 1", "edit 1 --note x", "edit 1 --top", "pause", "pause 1 --now", "pause --when-done",
        "resume", "resume 1", "delete 1", "gc", "service install", "schedule list", "db upgrade", "db backup",
        "db check", "schedule add @daily -- -- true", f"import {log}", "workloads", "workloads new mine", "env list",
        "submit --dry-run -- true", "web", "service start", "service restart",
    ):  # fmt: skip
        ran = mpsq(*command.split())
        assert ran.code == DamageError.exit_code and str(queue.layout.db) in ran.err, (command, ran)
        assert "1 run" in ran.err and "db restore" in ran.err and saved.name in ran.err, command
    for command in ("help", "submit --help", "config list", "db path", "completion bash"):
        assert mpsq(*command.split()).code == 0, command
    with pytest.raises(DamageError):
        Client().submit(command=["true"])
    worker = subprocess.run([sys.executable, "-m", "queue_runner.worker"], capture_output=True, text=True)
    assert worker.returncode == DamageError.exit_code and "mpsq db restore" in worker.stderr
    assert "fail  store" in mpsq("doctor", "--python", f"{sys.base_prefix}/bin/python3").out  # without frameworks
    assert (queue.layout.run_dir("1.1") / "out" / "checkpoint").read_text() == "precious\n"
    assert "restored" in mpsq.ok("db", "restore").out and "1.1" in mpsq.ok("show", "1.1").out


def test_a_new_queue_continues_above_the_old_one(queue: Queue, mpsq: Cli) -> None:
    train(queue, 3)
    lose(queue.layout, "gone")
    assert "db restore --new" in mpsq("list").err
    assert mpsq("db", "restore", "--new", "x.db").code == 2
    ran = mpsq.ok("db", "restore", "--new")
    assert "new and empty" in ran.out and "runs were moved" in ran.err
    assert mpsq.ok("submit", "--", "true").out.startswith("g4: 1 job, 1 run queued (4.1)")
    kept = sorted(queue.layout.set_aside.glob("*/out/checkpoint"))
    assert len(kept) == 3 and {path.read_text() for path in kept} == {"precious\n"}
    lose(queue.layout, "gone")
    (queue.layout.runs / "9.1").mkdir()
    mpsq.ok("db", "restore", "--new")
    assert mpsq.ok("submit", "--", "true").out.startswith("g10: ")


def test_a_new_queue_continues_above_its_backups(queue: Queue, mpsq: Cli) -> None:
    for _ in range(3):
        queue.submit("true")
    backup.make(queue.layout)
    lose(queue.layout, "gone")
    mpsq.ok("db", "restore", "--new")
    assert mpsq.ok("submit", "--", "true").out.startswith("g4: ")


def test_a_folder_in_which_another_run_was_is_moved_aside(queue: Queue) -> None:
    """However the queue has come to use a name again."""
    for left in ("warden/started", "warden/exit.json", "stdout.log", "events.jsonl", "out/checkpoint"):
        job = queue.submit("true")
        path = queue.layout.run_dir(f"{job}.1") / left
        path.parent.mkdir(parents=True)
        path.write_text("precious")
        queue.worker("", "--until-idle").wait()
        (kept,) = queue.layout.set_aside.glob(f"{job}.1-*")
        assert (kept / left).read_text() == "precious"
    assert {row["outcome"] for row in queue.rows()} == {"SUCCEEDED"}
    assert "is moved to" in queue.log()


def test_a_worker_refuses_a_damaged_database(queue: Queue) -> None:
    queue.submit("echo ran >> $J", repeats=400)
    with sqlite3.connect(queue.layout.db) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        page = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'job_events'").fetchone()[0]
        page_size = connection.execute("PRAGMA page_size").fetchone()[0]
    connection.close()
    with queue.layout.db.open("r+b") as file:
        file.seek((page - 1) * page_size)
        file.write(os.urandom(page_size))
    worker = queue.worker("", "--until-idle")
    assert worker.wait() == DamageError.exit_code
    assert "database is damaged" in queue.log() and not queue.written()
    queue.layout.db.unlink()


@pytest.mark.parametrize("how", ["all", "the database", "replaced"])
def test_what_a_worker_has_stored_outlives_its_database(queue: Queue, mpsq: Cli, how: str) -> None:
    queue.submit("touch began; until test -e go; do sleep 0.05; done")
    queue.submit("echo ran >> $J")
    worker = queue.worker()
    until((queue.folder / "began").exists, "the first run")
    if how == "replaced":
        other = queue.folder / "other.db"
        other.write_bytes(queue.layout.db.read_bytes())
        other.replace(queue.layout.db)
    else:
        for path in queue.layout.home.glob("mpsq.db*" if how == "all" else "mpsq.db"):
            path.unlink()
    assert worker.wait() == DamageError.exit_code, queue.log()
    (saved,) = backup.stored(queue.layout.backups)
    assert f"saved as {saved}" in queue.log() and not queue.written()
    assert queue.layout.db.exists() == (how == "replaced")
    (queue.folder / "go").touch()
    until(lambda: not locks.is_held(queue.layout.run_dir("1.1") / "warden.lock"), "the end of the first run")
    assert "restored" in mpsq.ok("db", "restore").out
    mpsq.ok("resume")
    queue.worker("", "--until-idle").wait()
    assert [(row["outcome"], row["number"]) for row in queue.rows()] == [("SUCCEEDED", 1)] * 2
    assert queue.written() == ["ran"]


def test_an_empty_database_is_not_saved(queue: Queue) -> None:
    """A service that started before the disk of its home was mounted starts again, and no backup hides the real one."""
    worker = queue.worker("", "--service")
    until(queue.layout.fifo.exists, "the worker to have the database open")
    (other := queue.folder / "other.db").write_bytes(queue.layout.db.read_bytes())
    other.replace(queue.layout.db)
    assert worker.wait() == 1
    assert not [path for path in backup.stored(queue.layout.backups) if backup.RESCUED in path.name], queue.log()


def test_what_a_worker_has_stored_outlives_its_home(
    queue: Queue, mpsq: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    queue.submit("touch began")
    queue.submit("echo ran >> $J", hold=True)
    worker = queue.worker()
    queue.done(1)
    until(lambda: shutil.rmtree(queue.layout.home, ignore_errors=True) or not queue.layout.home.exists(), "its removal")
    assert worker.wait() == DamageError.exit_code
    (saved,) = backup.stored(Layout(tmp_path / "data" / "mpsq").backups)
    assert not queue.layout.home.exists()
    assert "restored" in mpsq.ok("db", "restore", str(saved)).out
    assert [row["state"] for row in queue.rows()] == ["DONE", "HELD"]


def test_a_worker_that_stops_begins_no_database(queue: Queue) -> None:
    train(queue)
    queue.submit("true")
    worker = queue.worker()
    queue.done(2)
    lose(queue.layout, "gone")
    worker.terminate()
    worker.wait()
    assert not queue.layout.db.exists()


def test_only_runs_and_backups_tell_of_a_lost_queue(layout: Layout, mpsq: Cli) -> None:
    """A Mac's Finder leaves .DS_Store in every folder it has shown, a killed backup a partial copy."""
    lose(layout, "gone")
    assert "no queue here" in mpsq("db", "backup").err
    assert not list(layout.backups.glob("*"))
    for path in (layout.runs / ".DS_Store", layout.backups / ".DS_Store", layout.backups / ".partial-x"):
        path.touch()
    assert mpsq.ok("submit", "--", "true").out.startswith("g1: ")
    lose(layout, "gone")
    aside = layout.set_aside / "7.1-1789"
    aside.mkdir(parents=True)
    assert "1 run" in mpsq("submit", "--", "true").err
    mpsq.ok("db", "restore", "--new")
    assert mpsq.ok("submit", "--", "true").out.startswith("g8: ") and aside.is_dir()


def test_a_healthy_queue_is_not_begun_anew(queue: Queue, mpsq: Cli) -> None:
    queue.submit("true")
    ran = mpsq("db", "restore", "--new")
    assert ran.code == 1 and "healthy" in ran.err and f"move {queue.layout.db} away first" in ran.err
    assert len(queue.rows()) == 1


@needs_linux
def test_runs_on_another_disk_are_moved_aside_there(queue: Queue, mpsq: Cli, other_disk: Path) -> None:
    queue.layout.runs.rmdir()
    queue.layout.runs.symlink_to(other_disk)
    (queue.layout.run_dir("1.1")).mkdir()
    (queue.layout.run_dir("1.1") / "stdout.log").write_text("precious")
    train(queue)
    assert queue.rows()[0]["outcome"] == "SUCCEEDED"
    lose(queue.layout, "gone")
    assert str(queue.layout.set_aside) in mpsq.ok("db", "restore", "--new").err
    assert len(list(other_disk.glob("set-aside/1.1-*"))) == 2
