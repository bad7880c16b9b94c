"""Backups: checked, rotated, made while nothing is measured; restore; what is said of a damaged database."""

from __future__ import annotations

import dataclasses
import os
import signal
import sqlite3
import stat
import time
from contextlib import closing
from pathlib import Path

import pytest

from queue_runner.config_file import Config
from queue_runner.errors import AlreadyRunning, DamageError, MpsqError
from queue_runner.host import locks
from queue_runner.model import RunId
from queue_runner.paths import Layout
from queue_runner.store import backup
from queue_runner.store.read import HEAD, schema_revision
from queue_runner.store.restore import restore
from queue_runner.worker.backups import LOOK_AGAIN_S, TRY_AGAIN_S, Backups
from queue_runner.worker.decide import BackUp, decide
from queue_runner.worker.now import Candidate, Clocks, Now
from tests import forked_programs
from tests.cli_support import Cli, full_queue
from tests.process_support import state_of
from tests.queue_support import until

pytestmark = pytest.mark.process

DAY_S = 86400.0


@pytest.fixture
def queue(home: Path) -> Layout:
    return full_queue(home)


@pytest.fixture
def mpsq(capsys: pytest.CaptureFixture[str], queue: Layout) -> Cli:
    return Cli(capsys)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def damage(db: Path) -> None:
    """Every page but the first."""
    data = bytearray(db.read_bytes())
    for at in range(4096, len(data), 4096):
        data[at : at + 2000] = b"\xff" * min(2000, len(data) - at)
    db.write_bytes(data)


def test_a_backup_is_whole_private_and_one_file(queue: Layout) -> None:
    connection = sqlite3.connect(queue.db)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("UPDATE jobs SET note = 'in the log only'")
    connection.commit()  # and open: nothing has been written back
    path = backup.make(queue)
    connection.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and names(queue.backups) == [path.name]
    copy = sqlite3.connect(path)
    assert copy.execute("SELECT DISTINCT note FROM jobs").fetchall() == [("in the log only",)]
    copy.close()
    assert backup.make(queue) != path and len(backup.stored(queue.backups)) == 2


def test_a_damaged_database_is_not_backed_up(queue: Layout) -> None:
    damage(queue.db)
    with pytest.raises(DamageError) as raised:
        backup.make(queue)
    assert "damaged" in raised.value.message and "check" in raised.value.hint
    assert names(queue.backups) == []


def test_commands_on_a_damaged_database(mpsq: Cli, queue: Layout) -> None:
    saved = mpsq.ok("db", "backup").out.strip()
    damage(queue.db)
    ran = mpsq("db", "check")
    assert ran.code == 1 and "1 problem" in ran.out and "db check" not in ran.err and "db restore" in ran.err
    assert mpsq("db", "check", "--json").json()["problems"]
    assert mpsq("db", "backup").code == 1
    assert f"restored {saved}" in mpsq.ok("db", "restore").out
    assert "sound" in mpsq.ok("db", "check").out


def test_rotation_keeps_what_others_made(queue: Layout) -> None:
    made = [f"mpsq-20260101-00000{n}-{label}.db" for n, label in enumerate(["auto", "by-hand", "before-0002"])]
    made += [f"mpsq-20260102-00000{n}-auto.db" for n in range(4)]
    for name in (*made, "mine.db", "mpsq-x.db"):
        (queue.backups / name).touch()
    backup.rotate(queue.backups, 2)
    assert names(queue.backups) == sorted([*made[1:3], *made[-2:], "mine.db", "mpsq-x.db"])


def test_the_newest_copy_comes_last_after_the_clock_was_set_back(queue: Layout) -> None:
    """Else it is the first that a rotation removes, and a restore takes one from before."""
    (queue.backups / "mpsq-20990101-000000-auto.db").touch()
    (queue.backups / "mpsq-20990101-000000-xx.db").touch()
    (queue.backups / "mpsq-no-time.db").touch()
    made = backup.make(queue, backup.AUTO)
    assert backup.stored(queue.backups)[-1] == made
    backup.rotate(queue.backups, 1)
    assert [path for path in queue.backups.iterdir() if path.name.endswith("-auto.db")] == [made]


class Clock:
    """Both clocks, and a worker's backups on them."""

    def __init__(self, layout: Layout, **settings: float) -> None:
        self.now = layout.db.stat().st_mtime + 3600.0  # later than whatever this test writes
        self.said: list[str] = []
        self.layout = layout
        self.config = dataclasses.replace(Config(), **settings)  # type: ignore[arg-type]
        self.backups = Backups(layout, self.config, self.said.append, Clocks(lambda: self.now, lambda: self.now))

    def is_due(self, waits: bool = False) -> bool:
        self.now += LOOK_AGAIN_S
        waiting = (Candidate(1, RunId(1, 1), 1, ""),) if waits else ()
        overdue_s = self.backups.overdue_s()
        return BackUp(beside_runs=False) in decide(
            Now(0.0, self.config, candidates=waiting, backup_overdue_s=overdue_s)
        )

    def make(self) -> None:
        self.backups.make()
        for path in self.layout.backups.iterdir():
            os.utime(path, (self.now, self.now))

    def change(self) -> None:
        os.utime(self.layout.db, (self.now, self.now))


def test_when_a_backup_is_made(queue: Layout) -> None:
    clock = Clock(queue)
    assert clock.is_due() and not clock.is_due(waits=True)  # the first: as soon as nothing waits
    clock.make()
    assert not clock.is_due() and "backup mpsq-" in clock.said[0]
    clock.now += 2 * DAY_S
    assert not clock.is_due()  # nothing has changed
    clock.change()
    assert clock.is_due() and clock.is_due(waits=True)  # overdue by a day: between two runs
    clock.make()
    clock.now += 1.5 * DAY_S
    clock.change()
    assert clock.is_due() and not clock.is_due(waits=True)


def test_the_clock_was_set_back(queue: Layout) -> None:
    clock = Clock(queue)
    clock.make()
    clock.now -= 400 * DAY_S
    clock.change()
    assert clock.is_due()


def test_never(queue: Layout) -> None:
    assert not Clock(queue, backup_every_s=0.0).is_due()


def test_a_backup_that_fails_is_said_once_and_tried_again(queue: Layout) -> None:
    clock = Clock(queue)
    damage(queue.db)
    for _ in range(5):
        assert clock.is_due()
        clock.make()
        assert not clock.is_due()
        clock.now += TRY_AGAIN_S
    assert len(clock.said) == 1 and "database is damaged" in clock.said[0]


def test_what_cannot_be_restored(queue: Layout, tmp_path: Path) -> None:
    with pytest.raises(MpsqError, match="there is no backup"):
        restore(queue)
    with pytest.raises(MpsqError, match="no file"):
        restore(queue, tmp_path / "none")
    (tmp_path / "text").write_text("hello" * 1000)
    with pytest.raises(MpsqError, match="is damaged"):
        restore(queue, tmp_path / "text")
    sqlite3.connect(tmp_path / "empty.db").close()
    with pytest.raises(MpsqError, match="does not contain a queue"):
        restore(queue, tmp_path / "empty.db")
    saved = backup.make(queue)
    held = locks.try_lock(locks.worker_lock_path(queue.home))
    assert held is not None
    with held, pytest.raises(AlreadyRunning):
        restore(queue)
    (queue.run_dir("4.1") / "warden.lock").touch()
    warden = locks.try_lock(queue.run_dir("4.1") / "warden.lock")
    assert warden is not None
    with warden, pytest.raises(MpsqError, match=r"run 4\.1 is active"):
        restore(queue)
    lane = locks.try_lock(locks.lane_lock_path("machine"))
    assert lane is not None
    lane.write_holder({"home": str(queue.home), "run": "5.1"})  # its warden has not begun, or only a child is left
    with lane, pytest.raises(MpsqError, match=r"run 5\.1 is active"):
        restore(queue)
    damage(saved)
    before = queue.db.read_bytes()
    with pytest.raises(MpsqError, match="damaged"):
        restore(queue)
    assert queue.db.read_bytes() == before and not list(queue.home.glob(".partial-*"))


def test_an_earlier_mpsq_goes_back_to_the_backup_from_before_the_upgrade(mpsq: Cli, queue: Layout) -> None:
    saved = backup.make(queue, label="before-9999")
    with closing(sqlite3.connect(queue.db)) as newer, newer:
        newer.execute("UPDATE alembic_version SET version_num = '9999'")
    backup.make(queue, label=backup.AUTO)
    ran = mpsq("status")
    assert ran.code == 4 and "newer than schema" in ran.err and "mpsq db restore" in ran.err
    assert saved.name in mpsq.ok("db", "restore").out
    assert schema_revision(queue.db) == HEAD
    (old,) = queue.backups.glob("replaced-*.db")
    assert schema_revision(old) == "9999"


def test_restores_within_one_second_keep_each_old_database(queue: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    backup.make(queue)
    monkeypatch.setattr(time, "time", lambda: 1.79e9)
    for note in ("first", "second"):
        with closing(sqlite3.connect(queue.db)) as connection, connection:
            connection.execute("UPDATE jobs SET note = ?", [note])
        restore(queue)
    notes = []
    for old in sorted(queue.backups.glob("replaced-*.db")):
        with closing(sqlite3.connect(old)) as connection:
            notes += [note for (note,) in connection.execute("SELECT DISTINCT note FROM jobs")]
    assert notes == ["first", "second"]


def test_restore_pauses_keeps_and_sets_aside(queue: Layout) -> None:
    saved = backup.make(queue)
    connection = sqlite3.connect(queue.db)
    connection.execute("UPDATE jobs SET note = 'later'")
    connection.commit()
    connection.close()
    (queue.runs / "7.1").mkdir()
    done = restore(queue)
    assert done.source == saved and done.paused
    assert done.set_aside is not None and [name.partition("-")[0] for name in names(done.set_aside)] == ["7.1"]
    assert not (queue.runs / "7.1").exists() and queue.run_dir("1.1").exists()
    assert done.old is not None and backup.problems(done.old) == [] and backup.stored(queue.backups) == [saved]
    connection = sqlite3.connect(queue.db)
    assert connection.execute("SELECT count(*) FROM jobs WHERE note IS NOT NULL").fetchone() == (0,)
    paused_at, reason = connection.execute("SELECT paused_at, paused_reason FROM lanes").fetchone()
    connection.close()
    assert paused_at and "restored" in reason


def start(*words: str, stop_at: str, stops: Path) -> forked_programs.Command:
    return forked_programs.command(*words, cwd=stops, MPSQ_STOP_AT=stop_at, MPSQ_STOP_DIR=str(stops))


def titles(db: Path) -> list[str]:
    connection = sqlite3.connect(db)
    try:
        return [name for (name,) in connection.execute("SELECT name FROM jobs WHERE name LIKE 'late%'")]
    finally:
        connection.close()


def test_a_restore_waits_for_a_submission_and_the_next_waits_for_it(queue: Layout, tmp_path: Path) -> None:
    """What was stored before is in the file that is kept, what comes after in the restored one."""
    backup.make(queue)
    begun = [start("submit", "--name", "late-1", "--", "/usr/bin/true", stop_at="submit.before_commit", stops=tmp_path)]
    try:
        until(lambda: state_of(begun[0].pid) == "T", "the submission")
        begun.append(start("db", "restore", stop_at="restore.before_rename", stops=tmp_path))
        until(lambda: locks.is_held(locks.worker_lock_path(queue.home)), "the restore")
        assert not list(tmp_path.glob("restore.*"))
        begun[0].send_signal(signal.SIGCONT)
        until(lambda: state_of(begun[1].pid) == "T", "the restore")
        begun.append(
            start("submit", "--name", "late-2", "--", "/usr/bin/true", stop_at="submit.before_commit", stops=tmp_path)
        )
        begun[1].send_signal(signal.SIGCONT)
        until(lambda: state_of(begun[2].pid) == "T", "the second submission")
        begun[2].send_signal(signal.SIGCONT)
        assert [one.wait() for one in begun] == [0, 0, 0]
    finally:
        for one in begun:
            one.kill()
            one.wait()
    (kept,) = queue.backups.glob("replaced-*.db")
    assert (titles(kept), titles(queue.db)) == (["late-1"], ["late-2"])
    assert backup.problems(queue.db) == [] and backup.problems(kept) == []


def read_now(db: Path) -> sqlite3.Connection:
    """Begin to read the database as it is now, as a report that takes long does."""
    reader = sqlite3.connect(db, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM jobs").fetchall()
    return reader


def test_a_restore_is_refused_while_a_reader_keeps_the_log(mpsq: Cli, queue: Layout) -> None:
    """Without the log, the database would lack the jobs submitted since that reader began."""
    saved = backup.make(queue)
    reader = read_now(queue.db)
    try:
        mpsq.ok("submit", "--name", "late", "--", "/usr/bin/true")
        ran = mpsq("db", "restore")
    finally:
        reader.close()
    assert ran.code == 1 and "reads the database" in ran.err
    assert titles(queue.db) == ["late"] and names(queue.backups) == [saved.name]
    mpsq.ok("db", "restore")
    (old,) = queue.backups.glob("replaced-*.db")
    assert titles(old) == ["late"] and titles(queue.db) == []


@pytest.mark.parametrize("point", ["restore.before_copy", "restore.copied", "restore.before_rename"])
def test_a_restore_killed_beside_a_reader_loses_no_job(mpsq: Cli, queue: Layout, tmp_path: Path, point: str) -> None:
    saved = backup.make(queue)
    for number in range(3):
        mpsq.ok("submit", "--name", f"late-{number}", "--", "/usr/bin/true")
    late = [f"late-{number}" for number in range(3)]
    reader = read_now(queue.db)
    process = start("db", "restore", stop_at=point, stops=tmp_path)
    try:
        until(lambda: list(tmp_path.glob(f"{point}.*")), "the restore")
        process.kill()
        process.wait()
        assert titles(queue.db) == late
    finally:
        process.kill()
        process.wait()
        reader.close()
    assert titles(queue.db) == late and backup.problems(queue.db) == []
    assert backup.stored(queue.backups) == [saved]


def test_the_kept_database_is_a_file_of_its_own(queue: Layout) -> None:
    """A program that has the old database open writes to no copy of it."""
    backup.make(queue)
    writer = sqlite3.connect(queue.db, isolation_level=None)
    old = restore(queue).old
    assert old is not None
    before = old.read_bytes()
    writer.execute("UPDATE jobs SET name = 'late'")
    writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    writer.close()
    assert old.read_bytes() == before and titles(queue.db) == []
