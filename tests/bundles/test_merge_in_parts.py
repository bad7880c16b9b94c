"""A merge in many transactions: whatever dies or happens between two of them, nothing counts before the last one, and
importing again goes on to the same end."""

from __future__ import annotations

import functools
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from queue_runner.bundles import batches, merge, reading
from queue_runner.bundles.rows import BadBundle
from queue_runner.control import garbage
from queue_runner.control.retention import Keep
from queue_runner.paths import Layout
from queue_runner.store import backup, engine, merges, schema
from tests import forked_programs
from tests.bundles.bundles_support import ALPHA, SYSTEM, content, exported, merged, receiver, sender
from tests.cli_support import Cli
from tests.forked_programs import Command
from tests.patience import until
from tests.process_support import needs_linux, state_of
from tests.reports.report_fixture import Store

pytestmark = pytest.mark.process

POINTS = ["merge.before_commit", "merge.batch", "merge.measured", "merge.before_last_commit"]


class Place:
    """A bundle of 6 runs, and a queue that imports it in processes."""

    def __init__(self, folder: Path) -> None:
        self.store: Store = sender(folder / "theirs")
        self.bundle = folder / "g1.mpsq"
        self.export()
        self.layout: Layout = receiver(folder / "ours")
        self.stops = folder / "stops"
        self.stops.mkdir()
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self.children: list[Command] = []

    def export(self) -> None:
        self.bundle.write_bytes(exported(self.store))

    def importing(self, stop_at: str = "", most_rows: int = 60) -> Command:
        """Start an import whose transactions have at most so many rows."""
        variables = {"MPSQ_HOME": str(self.layout.home), "TMPDIR": str(self.temporary)}
        variables |= {"MPSQ_STOP_DIR": str(self.stops), "MPSQ_STOP_AT": stop_at, "MPSQ_TEST_ROWS": str(most_rows)}
        child = forked_programs.command("import", str(self.bundle), module="tests.bundles.small_batches", **variables)
        self.children.append(child)
        return child

    def stopped(self, stop_at: str, most_rows: int = 60) -> Command | None:
        """An import that has stopped at a point; None when it ended before."""
        child = self.importing(stop_at, most_rows)
        marker = self.stops / f"{stop_at}.{child.pid}"
        until(lambda: child.poll() is not None or (marker.exists() and state_of(child.pid) == "T"), "the stop")
        return None if child.poll() is not None else child

    def killed(self, stop_at: str) -> bool:
        """Kill an import at a point; return whether it came to it."""
        child = self.stopped(stop_at)
        if child is not None:
            child.kill()
            child.wait()
        return child is not None

    def query(self, sql: str) -> list[Any]:
        with closing(sqlite3.connect(self.layout.db)) as connection:
            return connection.execute(sql).fetchall()

    def counts(self) -> int:
        """How many runs count: their results are seen, or none are."""
        self.sound()
        ((n_runs,),) = self.query("SELECT count(*) FROM v_run")
        assert self.query("SELECT count(*) FROM v_iteration") == [(n_runs * 20,)]
        return int(n_runs)

    def sound(self) -> None:
        assert backup.problems(self.layout.db) == []

    def is_whole(self) -> None:
        """Check that the queue is as after an import that nothing disturbed."""
        assert self.counts() == 6
        assert self.query("SELECT count(*) FROM merges") == [(0,)]
        ours, theirs = content(self.layout.db), undisturbed(self.bundle.read_bytes())
        for table in (name for name in merges.OF_RUN if name != "conditions"):
            assert sorted(str(row[1:]) for row in ours[table]) == sorted(str(row[1:]) for row in theirs[table]), table
        assert self.query("PRAGMA foreign_key_check") == []


@functools.cache
def undisturbed(data: bytes) -> dict[str, list[Any]]:
    """Return the content of a queue after an import that nothing disturbed."""
    with tempfile.TemporaryDirectory() as folder:
        elsewhere = receiver(Path(folder) / "elsewhere")
        merged(elsewhere, data)
        return content(elsewhere.db)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setenv("MPSQ_HOME", str(tmp_path / "ours"))
    made = Place(tmp_path)
    yield made
    for child in made.children:
        child.kill()
        child.communicate()


def test_the_tables_of_runs_are_those_of_the_schema() -> None:
    of_run = {
        table.name: ", ".join(column.name for column in table.primary_key)
        for table in schema.metadata.sorted_tables
        if "run_id" in table.c and table.name not in ("job_events", "merged_runs")
    }
    assert of_run == merges.OF_RUN


@pytest.mark.parametrize("point", POINTS)
def test_a_merge_dies_and_is_repeated(place: Place, point: str) -> None:
    assert place.killed(point)
    assert place.counts() == 0
    assert [*place.temporary.iterdir()] == []
    found = garbage.find(place.layout, Keep(), keep_backups=2, now=time.time() + 7200)
    assert {item.kind for item in found} == {"leftover"}, "mpsq gc removes the folders of bundles"
    assert place.importing().wait() == 0
    place.is_whole()


def test_a_merge_that_dies_after_each_transaction_goes_on(place: Place) -> None:
    stored = []
    while place.killed("merge.batch"):
        assert place.counts() == 0
        stored += [n for (n,) in place.query("SELECT n_stored FROM merges")]
        assert len(stored) < 20
    assert stored == sorted(stored) and len({*stored}) > 2
    place.is_whole()


def test_the_last_commit_is_the_end(place: Place) -> None:
    assert place.importing().wait() == 0
    before = content(place.layout.db)
    assert place.importing().wait() == 0
    assert content(place.layout.db) == before


def test_two_merges_at_once_store_one(place: Place) -> None:
    children = [place.importing() for _ in range(3)]
    assert [child.wait() for child in children] == [0, 0, 0]
    place.is_whole()


def test_a_larger_bundle_comes_between(place: Place) -> None:
    """Of an interrupted merge nothing is left once another bundle has brought its runs."""
    assert place.killed("merge.measured")
    small = place.bundle.read_bytes()
    run = place.store.run("cpu", params={"lr": 0.1}, machine=ALPHA, software=SYSTEM, tags=["a"])
    place.store.iterations(run, [0.25] * 20)
    place.export()
    assert place.importing().wait() == 0
    assert place.counts() == 7
    place.bundle.write_bytes(small)
    assert place.importing().wait() == 0
    assert place.counts() == 7
    assert place.query("PRAGMA foreign_key_check") == [] and place.query("SELECT * FROM merges") == []


def test_known_runs_are_deleted_meanwhile(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    assert place.importing().wait() == 0
    run = place.store.run("cpu", params={"lr": 0.1}, machine=ALPHA, software=SYSTEM, tags=["a"])
    place.store.iterations(run, [0.25] * 20)
    place.export()
    child = place.stopped("merge.measured")
    assert child is not None
    Cli(capsys).ok("delete", "1", "2", "--results", "--yes")
    while child.poll() is None:  # it comes to that point a second time
        child.send_signal(signal.SIGCONT)
        time.sleep(0.05)
    assert child.returncode == 0
    assert place.counts() == 7
    assert place.query("SELECT * FROM merges") == []


def test_gc_removes_an_abandoned_merge_and_no_other(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    assert place.killed("merge.measured")
    mpsq = Cli(capsys)
    mpsq.ok("gc", "--yes")
    assert place.query("SELECT n_stored FROM merges") == [(6,)]
    with closing(sqlite3.connect(place.layout.db, isolation_level=None)) as connection:
        connection.execute("UPDATE merges SET at = at - 100000")
    assert "interrupted" in mpsq.ok("gc", "--dry-run").out
    mpsq.ok("gc", "--yes")
    assert place.query("SELECT * FROM merges") == [] and place.query("SELECT * FROM iterations") == []
    assert place.importing().wait() == 0
    place.is_whole()


def test_a_backup_of_a_half_merged_queue_is_sound_and_goes_on(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    child = place.stopped("merge.batch")
    assert child is not None
    mpsq = Cli(capsys)
    mpsq.ok("db", "backup")
    child.kill()
    child.wait()
    (copy,) = backup.stored(place.layout.backups)
    assert backup.problems(copy) == []
    assert place.importing().wait() == 0
    mpsq.ok("db", "restore", str(copy))
    assert place.counts() == 0
    assert place.importing().wait() == 0
    place.is_whole()


def test_the_database_is_replaced_between_two_transactions(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    mpsq = Cli(capsys)
    mpsq.ok("submit", "--hold", "--", "true")
    mpsq.ok("db", "backup")
    child = place.stopped("merge.batch")
    assert child is not None
    mpsq.ok("db", "restore")
    child.send_signal(signal.SIGCONT)
    _, errors = child.communicate()
    assert child.returncode == 1 and "database was replaced" in errors
    assert place.query("SELECT count(*) FROM iterations") == [(0,)]
    assert place.importing().wait() == 0
    assert place.query("SELECT count(*) FROM v_iteration") == [(120,)]


def test_a_submission_goes_on_beside_a_merge_that_stands_still(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    assert place.stopped("merge.batch") is not None
    assert Cli(capsys).ok("submit", "--hold", "--", "true").code == 0


def test_no_transaction_is_large(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even where one run has more rows than a transaction may have."""
    n_rows: list[int] = []
    change_all = engine.Connection.change_all

    def noted(self: engine.Connection, sql: str, values: Any) -> None:
        values = [*values]
        if sql.startswith("INSERT OR REPLACE"):
            n_rows.append(len(values))
        change_all(self, sql, values)

    monkeypatch.setattr(engine.Connection, "change_all", noted)
    for name, value in {"_PIECE_ROWS": 10, "_WAITING_ROWS": 10, "BATCH_S": 0.0}.items():
        monkeypatch.setattr(batches, name, value)
    merge.merge(place.layout, [("g1", place.bundle)])
    assert sum(n_rows) > 120 and max(n_rows) <= 10
    place.is_whole()


def test_a_file_that_changes_while_it_is_merged_is_refused(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = reading.checked

    def then_changed(*arguments: Any) -> reading.Content:
        sound = whole(*arguments)
        place.store.db.execute("UPDATE iterations SET dur_s = 0.9 WHERE run_id = 4")
        place.export()
        return sound

    monkeypatch.setattr(reading, "checked", then_changed)
    with pytest.raises(BadBundle, match="it was changed while it was read"):
        merge.merge(place.layout, [("g1", place.bundle)])
    assert place.counts() == 0
    assert place.query("SELECT * FROM merges") == [] and place.query("SELECT * FROM iterations") == []


@needs_linux
def test_a_full_disk_stores_nothing_that_counts(place: Place, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=60m", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("only root may mount a small file system, and not in every container")
    try:
        place.store.db.execute(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 40000)"
            " INSERT INTO iterations SELECT 1, 1000000 + i, i, 0.1, NULL, 3, 1, NULL, NULL FROM n"
        )
        place.export()
        place.layout = receiver(disk / "ours")
        child = place.stopped("merge.before_commit", 10_000)
        assert child is not None
        (disk / "ballast").write_bytes(bytes(shutil.disk_usage(disk).free - (1 << 19)))
        while child.poll() is None:  # it comes to that point again
            child.send_signal(signal.SIGCONT)
            time.sleep(0.05)
        _, errors = child.communicate()
        assert child.returncode == 1 and "disk is full" in errors
        assert place.query("SELECT count(*) FROM v_run") == [(0,)]
        (disk / "ballast").unlink()
        place.sound()
        assert place.importing().wait() == 0
        assert place.query("SELECT count(*) FROM v_iteration") == [(40_120,)]
        place.sound()
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
