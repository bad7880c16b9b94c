"""Delete, gc, compaction: what goes and what must stay."""

from __future__ import annotations

import os
import re
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from queue_runner.control import garbage
from queue_runner.control.retention import Keep, parse
from queue_runner.host import locks, trash
from queue_runner.host.run_dir import RunDir
from queue_runner.model import DEFAULT_LANE, Ending, Outcome
from queue_runner.paths import Layout
from queue_runner.source import archive, scan
from queue_runner.store import jobs, removal, retries
from queue_runner.store.engine import open_engine, writing
from tests.cli_support import Cli, end_running_run, full_queue
from tests.store_support import statements_of

pytestmark = pytest.mark.process

NOW = time.time()


@pytest.fixture
def queue(home: Path) -> Layout:
    return full_queue(home)


@pytest.fixture
def mpsq(capsys: pytest.CaptureFixture[str], queue: Layout) -> Cli:
    return Cli(capsys)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def query(layout: Layout, sql: str, *values: Any) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(layout.db)
    try:
        found = connection.execute(sql, values).fetchall()
        connection.commit()
        return found
    finally:
        connection.close()


def found(layout: Layout, *rules: str, now: float = NOW + 7200.0) -> list[tuple[str, str]]:
    items = garbage.find(layout, parse(rules), keep_backups=2, now=now)
    return [(item.kind, item.name) for item in items]


def sweep(layout: Layout, *rules: str, now: float = NOW + 7200.0) -> list[str]:
    stuck: list[str] = []
    garbage.collect(layout, garbage.find(layout, parse(rules), keep_backups=2, now=now), stuck.append)
    return stuck


# -- delete ---------------------------------------------------------------------------------------------------------


def test_delete_hides_a_job_and_keeps_its_numbers(mpsq: Cli, queue: Layout) -> None:
    ran = mpsq.ok("delete", "1")
    assert ran.out.startswith("job 1 deleted") and "results stay" in ran.out
    assert not queue.run_dir("1.1").exists() and not queue.run_dir("1.2").exists()
    assert [job["job"] for job in mpsq.ok("list", "--json").json()["jobs"]] == [2, 3, 4, 5, 6]
    assert [job["job"] for job in mpsq.ok("list", "--deleted", "--json").json()["jobs"]] == [1]
    assert [job["job"] for job in mpsq.ok("list", "1", "--json").json()["jobs"]] == [1]
    assert "1.1" not in mpsq.ok("status").out.split()
    assert query(queue, "SELECT count(*) FROM iterations t JOIN runs r ON r.id = t.run_id WHERE r.job_id = 1") == [
        (40,)
    ]
    assert "deleted" in mpsq.ok("show", "1").out and "files were deleted" in mpsq.ok("why", "1").out
    assert mpsq.ok("wait", "1").code == 0
    assert "with its job" in mpsq("logs", "1").err
    assert "job 1 was deleted before" in mpsq.ok("delete", "1").out  # again: no harm


def test_delete_with_results_leaves_no_row(mpsq: Cli, queue: Layout) -> None:
    query(queue, "INSERT INTO dependencies VALUES (3, 2, 'any')")  # of a job that has ended
    mpsq.ok("delete", "1", "2", "--results", "--yes")
    tables = {name for (name,) in query(queue, "SELECT name FROM sqlite_master WHERE type = 'table'")}
    alive = {id for (id,) in query(queue, "SELECT id FROM runs")}
    assert len(alive) == 4
    for table in tables:
        columns = {row[1] for row in query(queue, f"PRAGMA table_info({table})")}
        if "run_id" in columns:
            assert {id for (id,) in query(queue, f"SELECT run_id FROM {table}")} <= alive | {None}, table
        if "job_id" in columns:
            assert not {id for (id,) in query(queue, f"SELECT job_id FROM {table}")} & {1, 2}, table
    assert query(queue, "PRAGMA foreign_key_check") == []
    assert "job 1" in mpsq("delete", "1").err and mpsq("show", "1").code == 2


@pytest.mark.parametrize(
    ("arguments", "said", "hint"),
    [
        (("4",), "run 4.1 is running: nothing was deleted", "mpsq cancel 4"),
        (("5",), "run 5.1 waits: nothing was deleted", "mpsq cancel 5"),
        (("1", "5"), "run 5.1 waits", "mpsq cancel 5"),
        (("g1",), "run 4.1 is running", "mpsq cancel 4"),
        (("1.1",), "1.1 is a run of job 1", "delete the whole job: mpsq delete 1"),
        (("77",), "there is no job 77", "mpsq list"),
        (("x",), 'no job is named "x"', "@last"),
        (("@x",), '"@x" does not name a job', "@last"),
        (("2", "--results", "--yes"), "job 5 still needs the result of job 2", "mpsq cancel 5"),
        (("3",), "run 6.1 resumes from the checkpoint of run 3.1", "mpsq cancel 6"),
    ],
)
def test_what_is_not_deleted(mpsq: Cli, queue: Layout, arguments: tuple[str, ...], said: str, hint: str) -> None:
    query(queue, "INSERT INTO dependencies VALUES (5, 2, 'fail')")
    query(queue, "UPDATE runs SET resumed_from = (SELECT id FROM runs WHERE job_id = 3) WHERE job_id = 6")
    ran = mpsq("delete", *arguments)
    assert ran.code in (1, 2) and said in ran.err and hint in ran.err
    assert query(queue, "SELECT count(*) FROM jobs WHERE deleted_at IS NULL") == [(6,)]
    assert queue.run_dir("1.1").exists()


def test_a_needed_job_may_be_deleted_without_its_results(mpsq: Cli, queue: Layout) -> None:
    query(queue, "INSERT INTO dependencies VALUES (5, 2, 'fail')")
    mpsq.ok("delete", "2")
    assert query(queue, "SELECT verdict FROM v_dependency") == [("met",)]


def test_a_name_means_deleted_jobs_where_no_other_has_it(mpsq: Cli, queue: Layout) -> None:
    """Its results were kept, and reports had them, but every command with the name was refused."""
    mpsq.ok("delete", "2")
    for command in ("show", "why", "report", "list"):
        assert "failed" in mpsq.ok(command, "failed").out
    mpsq.ok("submit", "--hold", "--snapshot", "off", "--name", "failed", "--", "true")
    assert [job["job"] for job in mpsq.ok("list", "failed", "--json").json()["jobs"]] == [7]
    assert mpsq.ok("why", "failed", "--json").json()["runs"][0]["run"] == "7.1"


def test_a_retry_brings_a_job_back(mpsq: Cli, queue: Layout) -> None:
    mpsq.ok("delete", "2")
    engine = open_engine(queue.db)
    with writing(engine) as connection:
        retries.again(connection, query(queue, "SELECT id FROM runs WHERE job_id = 2")[0][0], actor="user")
    engine.dispose()
    assert "2" in [str(job["job"]) for job in mpsq.ok("list", "--json").json()["jobs"]]
    assert "waits" in mpsq("delete", "2").err


def test_what_a_job_has_closed_to_everybody_is_removed(mpsq: Cli, queue: Layout, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    folder = queue.run_dir("1.1")
    (folder / "out" / "deep").mkdir(parents=True)
    (folder / "out" / "link").symlink_to(outside)
    (folder / "out" / "deep").chmod(0)
    (folder / "out").chmod(0)
    mpsq.ok("delete", "1")
    assert not folder.exists() and (outside / "precious").exists()


# -- gc -------------------------------------------------------------------------------------------------------------


def test_without_rules_no_ended_run_loses_a_file(queue: Layout) -> None:
    assert found(queue) == []


def test_rules_are_for_ended_jobs_only(queue: Layout) -> None:
    assert found(queue, "last:0") == [("run", "1.1"), ("run", "1.2"), ("run", "2.1"), ("run", "3.1")]
    assert found(queue, "last:1") == [("run", "1.1"), ("run", "1.2"), ("run", "2.1")]
    assert sweep(queue, "last:1") == []
    assert names(queue.run_dir("1.1")) == ["warden"]
    assert RunDir(queue.run_dir("3.1")).stdout.exists() and RunDir(queue.run_dir("4.1")).stdout.exists()
    assert found(queue, "last:1") == [] and not list(queue.runs.glob(".trash*"))
    said = query(queue, "SELECT reason FROM job_events WHERE verb = 'gc' AND job_id = 1")
    assert len(said) == 2 and "the last 1" in said[0][0]


def test_a_job_that_waits_for_its_second_repeat_keeps_everything(queue: Layout) -> None:
    query(queue, "UPDATE runs SET job_id = 1, number = 3 WHERE job_id = 5")
    assert ("run", "1.1") not in found(queue, "last:0")


def test_a_checkpoint_that_is_needed_stays(queue: Layout) -> None:
    query(queue, "UPDATE runs SET resumed_from = (SELECT id FROM runs WHERE job_id = 3) WHERE job_id = 6")
    assert ("run", "3.1") not in found(queue, "last:0")


def test_a_run_that_is_resumed_between_the_look_and_the_removal_keeps_its_files(queue: Layout) -> None:
    items = garbage.find(queue, Keep(last=0), keep_backups=2, now=NOW)
    query(queue, "UPDATE runs SET resumed_from = (SELECT id FROM runs WHERE job_id = 3) WHERE job_id = 6")
    gone = garbage.collect(queue, items, pytest.fail)
    assert "3.1" not in [item.name for item in gone] and RunDir(queue.run_dir("3.1")).stdout.exists()


def test_what_a_crash_of_delete_left_is_finished(mpsq: Cli, queue: Layout) -> None:
    query(queue, "UPDATE jobs SET deleted_at = 1 WHERE id = 1")  # committed, and then killed
    (queue.runs / ".trash-x" / "big").mkdir(parents=True)
    assert found(queue) == [("leftover", "runs/.trash-x"), ("deleted", "1.1"), ("deleted", "1.2")]
    assert sweep(queue) == [] and not queue.run_dir("1.1").exists() and found(queue) == []


def test_orphans_go_when_they_are_old(queue: Layout) -> None:
    orphan = queue.runs / "99.1"
    orphan.mkdir()
    (queue.runs / "notes.txt").write_text("mine")
    assert found(queue, now=time.time()) == [] and found(queue) == [("orphan", "99.1")]
    sweep(queue)
    assert not orphan.exists() and (queue.runs / "notes.txt").exists()


def test_snapshots_and_caches(queue: Layout) -> None:
    used, unused, half = "a" * 64, "b" * 64, ".partial-x"
    prefix = query(queue, "SELECT substr(spec_hash, 1, 16) FROM jobs WHERE id = 1")[0][0]
    query(queue, "INSERT INTO snapshots (hash, kind, created_at) VALUES (?, 'tree', 1), (?, 'tree', 1)", used, unused)
    query(queue, "UPDATE jobs SET snapshot_hash = ? WHERE id = 1", used)
    for name in (used, unused, half):
        (queue.snapshots / name).mkdir()
    for name in (prefix, "0" * 16):
        (queue.cache / "compile" / name).mkdir(parents=True)
    assert found(queue, now=time.time()) == [("cache", "0" * 16)]
    assert found(queue) == [("leftover", "snapshots/.partial-x"), ("snapshot", "b" * 12), ("cache", "0" * 16)]
    assert sweep(queue) == []
    assert [path.name for path in queue.snapshots.iterdir()] == [used]
    assert query(queue, "SELECT hash FROM snapshots") == [(used,)]
    assert [path.name for path in (queue.cache / "compile").iterdir()] == [prefix]


def test_the_tree_of_a_command_stays_while_a_job_refers_to_it(queue: Layout) -> None:
    row, tree, own, free = ("a" * 64, "c" * 64, "d" * 64, "e" * 64)
    query(queue, "INSERT INTO snapshots (hash, kind, created_at, tree_hash) VALUES (?, 'tree', 1, ?)", row, tree)
    query(queue, "INSERT INTO snapshots (hash, kind, created_at, tree_hash) VALUES (?, 'tree', 1, ?)", "f" * 64, free)
    query(queue, "UPDATE jobs SET snapshot_hash = ? WHERE id = 5", row)
    query(queue, "UPDATE jobs SET spec_json = json_set(spec_json, '$.tree', ?) WHERE id = 6", own)
    for name in (tree, own, free):
        (queue.snapshots / name).mkdir()
    assert found(queue) == [("snapshot", "e" * 12)]
    everything = [garbage.Item("snapshot", n, "", 0, n, (queue.snapshots / n,)) for n in (tree, own, free)]
    assert [item.name for item in garbage.collect(queue, everything, pytest.fail)] == [free]
    assert query(queue, "SELECT tree_hash FROM snapshots") == [(tree,)]


def test_all_snapshots_are_looked_for_at_once(queue: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look reads the specification of every job, and others wait for the lock meanwhile."""
    statements = statements_of(monkeypatch)
    with writing(open_engine(queue.db)) as connection:
        assert removal.forget_snapshots(connection, ["a" * 64, "b" * 64]) == ["a" * 64, "b" * 64]
    assert len([statement for statement in statements if "json_extract" in statement]) == 1


def test_a_cache_of_a_question_that_waits_stays(queue: Layout) -> None:
    """Job 1 and a waiting job ask the same: the files of job 1 may go, the cache may not."""
    (digest,) = query(queue, "SELECT spec_hash FROM jobs WHERE id = 1")[0]
    query(queue, "UPDATE jobs SET spec_hash = ? WHERE id = 5", digest)
    (queue.cache / "compile" / digest[:16]).mkdir(parents=True)
    assert "cache" not in [kind for kind, _ in found(queue, "last:0")]
    items = [garbage.Item("cache", "c", "", 0, digest[:16], (queue.cache / "compile" / digest[:16],))]
    assert garbage.collect(queue, items, pytest.fail) == []


def test_the_cache_of_a_preflight_stays_until_it_has_ended(queue: Layout) -> None:
    """It compiles there now: without it the cell would be skipped for a compiler's error."""
    (job, state) = query(queue, "SELECT job_id, state FROM runs WHERE state = 'QUEUED' LIMIT 1")[0]
    query(
        queue,
        "INSERT INTO runs (job_id, number, repeat, attempt, lane, position, state, created_at)"
        " VALUES (?, 0, 1, 0, 'machine', 0, ?, 1)",
        *(job, state),
    )
    folder = queue.cache / "compile" / f"preflight-{job}.0"
    folder.mkdir(parents=True)
    ended = queue.cache / "compile" / "preflight-1.0"
    ended.mkdir()
    assert [name for kind, name in found(queue) if kind == "cache"] == ["preflight-1.0"]
    items = [garbage.Item("cache", "c", "", 0, path.name, (path,)) for path in (folder, ended)]
    assert [item.key for item in garbage.collect(queue, items, pytest.fail)] == ["preflight-1.0"]
    assert folder.exists() and not ended.exists()


def test_a_tree_with_content_of_a_needed_one_stays(queue: Layout, tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    trees = []
    for number in (1, 2):
        (code / f"{number}.py").write_text(str(number))
        trees.append(scan.of_folder(code))
        archive.store(queue.snapshots, trees[-1], lambda: True, with_large=False)
    first, second = (tree.hash for tree in trees)
    query(queue, "UPDATE jobs SET spec_json = json_set(spec_json, '$.tree', ?) WHERE id = 6", second)
    assert found(queue) == []
    everything = [garbage.Item("snapshot", n, "", 0, n, (queue.snapshots / n,)) for n in (first, second)]
    assert garbage.collect(queue, everything, pytest.fail) == []
    query(queue, "UPDATE jobs SET spec_json = json_set(spec_json, '$.tree', '') WHERE id = 6")
    assert sorted(name for _, name in found(queue)) == sorted(tree[:12] for tree in (first, second))
    assert len(garbage.collect(queue, everything, pytest.fail)) == 2


def test_a_submit_that_stores_a_snapshot_is_waited_for(queue: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queue_runner.control.garbage.LOCK_WAIT_S", 0.0)
    monkeypatch.setattr(locks, "_QUESTIONS_LAST_S", 0.0)
    (queue.snapshots / ("b" * 64)).mkdir()
    with locks.share(queue.snapshots_lock), locks.share(queue.snapshots_lock):  # two submit at once
        assert ["submit is running" in stuck for stuck in sweep(queue)] == [True]
    assert sweep(queue) == [] and not list(queue.snapshots.iterdir())


def test_one_gc_at_a_time(mpsq: Cli, queue: Layout) -> None:
    lock = locks.try_lock(queue.home / "gc.lock")
    assert lock is not None
    with lock:
        assert "another mpsq gc" in mpsq("gc", "--yes").err
    mpsq.ok("gc", "--yes")


def test_dry_run_touches_nothing(mpsq: Cli, queue: Layout) -> None:
    before = sorted(str(path) for path in queue.home.rglob("*"))
    ran = mpsq.ok("gc", "--keep", "last:0", "--dry-run")
    assert "would be freed" in ran.out and max(map(len, ran.out.splitlines())) <= 80
    assert sorted(str(path) for path in queue.home.rglob("*") if path.suffix not in (".db-wal", ".db-shm")) == before
    assert "freed" in mpsq.ok("gc", "--yes", "--keep", "last:0").out
    assert "0 B freed" in mpsq.ok("gc", "--yes", "--keep", "last:0").out
    assert "was removed" in mpsq("logs", "2").err


def test_used_bytes_counts_a_file_once(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 100_000)
    once = trash.used_bytes(tmp_path)
    os.link(tmp_path / "a", tmp_path / "b")
    (tmp_path / "c").symlink_to("/")
    assert 100_000 <= once <= trash.used_bytes(tmp_path) < once + 50_000


# -- logs -----------------------------------------------------------------------------------------------------------


def test_a_big_log_keeps_head_and_tail(tmp_path: Path) -> None:
    folder = RunDir(tmp_path / "run")
    folder.path.mkdir()
    folder.stdout.write_bytes(b"".join(b"line %05d\n" % n for n in range(10_000)))
    folder.stderr.write_bytes(b"short\n")
    folder.shorten_logs(2200)
    kept = folder.stdout.read_bytes()
    assert kept.startswith(b"line 00000\n") and kept.endswith(b"line 09999\n") and len(kept) < 2400
    cut = re.search(rb"\n\[mpsq: (\d+) bytes in the middle of this log were not kept\]\nline ", kept)
    assert cut and int(cut[1]) + len(kept) - len(cut[0]) + len(b"\nline ") == 110_000
    assert folder.stderr.read_bytes() == b"short\n" and len(names(folder.path)) == 2
    folder.shorten_logs(len(kept))
    assert folder.stdout.read_bytes() == kept


def test_what_a_job_put_in_a_logs_place_is_left_alone(tmp_path: Path) -> None:
    folder = RunDir(tmp_path)
    precious = tmp_path / "precious"
    precious.write_bytes(b"x" * 5000)
    folder.stdout.symlink_to(precious)
    folder.stderr.write_bytes(b"y" * 5000)
    folder.shorten_logs(1000)
    assert precious.read_bytes() == b"x" * 5000 and len(folder.stderr.read_bytes()) < 1200


def test_ending_of_the_running_job_makes_it_deletable(mpsq: Cli, queue: Layout) -> None:
    end_running_run(queue, Ending(Outcome.SUCCEEDED, 0))
    mpsq.ok("delete", "g1", "--results", "--yes")
    assert query(queue, "SELECT id FROM groups") == [(2,)]
    engine = open_engine(queue.db)
    with writing(engine) as connection:
        assert jobs.running(connection, DEFAULT_LANE) is None
    engine.dispose()
