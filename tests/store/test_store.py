"""The store keeps its promises by itself: one running run per lane, no impossible row, no rewritten history."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest

from queue_runner.errors import MpsqError
from queue_runner.model import Ending, Outcome, Verb
from queue_runner.paths import Layout
from queue_runner.spec import JobSpec, NewJob, Terms
from queue_runner.store import jobs, read, results
from queue_runner.store.engine import Connection, Engine, looking, open_engine, writing
from queue_runner.store.jobs import StateConflict
from tests import named_rows
from tests.store_support import claim_next

SPEC = JobSpec(kind="command", name="true", argv=("/usr/bin/true",), cwd="/", env={"A": "b"})


@pytest.fixture
def engine(layout: Layout) -> Iterator[Engine]:
    engine = open_engine(layout.db, keep_open=True)
    yield engine
    engine.dispose()


def submit(connection: Connection, *priorities: int, repeats: int = 1) -> list[int]:
    new = [NewJob(SPEC, repeats, Terms(priority=priority)) for priority in priorities]
    order = [(index, repeat) for repeat in range(1, repeats + 1) for index in range(len(new))]
    return jobs.submit(connection, "test", 1, new, order)[1]


def claim(engine: Engine) -> jobs.Claimed | None:
    with writing(engine) as connection:
        return claim_next(connection)


def finish(engine: Engine, run: jobs.Claimed, ending: Ending) -> None:
    with writing(engine) as connection:
        jobs.move(connection, run.run_id, Verb.FINISH, actor="test", ending=ending)


def test_what_is_claimed_comes_back_whole(engine: Engine) -> None:
    with writing(engine) as connection:
        submit(connection, 0)
    run = claim(engine)
    assert run is not None and run.spec == SPEC and str(run.id) == "1.1"
    with looking(engine) as connection:
        assert jobs.running(connection, "machine") == run


def test_higher_priority_first_then_the_older(engine: Engine) -> None:
    with writing(engine) as connection:
        submit(connection, 0, 5, 0, 5)
    order = []
    while run := claim(engine):
        order.append(run.id.job)
        finish(engine, run, Ending(Outcome.SUCCEEDED, 0))
    assert order == [2, 4, 1, 3]


def test_a_lane_runs_one_at_a_time_whatever_the_code_does(engine: Engine, layout: Layout) -> None:
    with writing(engine) as connection:
        submit(connection, 0, 0)
    assert claim(engine) and claim(engine) is None
    with sqlite3.connect(layout.db) as raw, pytest.raises(sqlite3.IntegrityError, match="UNIQUE"):
        raw.execute("UPDATE runs SET state = 'RUNNING', claimed_at = 1, token = 'x', boot_id = 'b'")


@pytest.mark.parametrize(
    "change",
    [
        "state = 'DONE'",
        "outcome = 'SUCCEEDED'",
        "state = 'DONE', outcome = 'KILLED'",
        "state = 'DONE', outcome = 'FAILED'",
        "state = 'DONE', outcome = 'FAILED', exit_code = 0",
        "state = 'DONE', outcome = 'SUCCEEDED', exit_code = 1",
        "state = 'DONE', outcome = 'WELL'",
        "state = 'ASLEEP'",
        "state = 'RUNNING'",
    ],
)
def test_impossible_rows_are_impossible(engine: Engine, layout: Layout, change: str) -> None:
    with writing(engine) as connection:
        submit(connection, 0)
    with sqlite3.connect(layout.db) as raw, pytest.raises(sqlite3.IntegrityError):
        raw.execute(f"UPDATE runs SET {change}")


def test_done_is_final_and_history_is_append_only(engine: Engine, layout: Layout) -> None:
    with writing(engine) as connection:
        submit(connection, 0)
    run = claim(engine)
    assert run
    finish(engine, run, Ending(Outcome.FAILED, 3, reason="no data"))
    with pytest.raises(StateConflict):
        finish(engine, run, Ending(Outcome.SUCCEEDED, 0))
    for statement in ("UPDATE runs SET outcome = 'SUCCEEDED', exit_code = 0", "UPDATE job_events SET reason = 'other'"):
        with sqlite3.connect(layout.db) as raw, pytest.raises(sqlite3.IntegrityError):
            raw.execute(statement)
    with read.reading(layout.db) as connection:
        verbs = [event["verb"] for event in named_rows.events(connection, 1)]
        (row,) = named_rows.runs(connection)
    assert verbs == ["submit", "claim", "finish"]
    assert (row["outcome"], row["exit_code"], row["reason"]) == ("FAILED", 3, "no data")


def test_a_move_that_fails_leaves_nothing(engine: Engine, layout: Layout) -> None:
    with writing(engine) as connection:
        submit(connection, 0)
    with pytest.raises(StateConflict), writing(engine) as connection:
        jobs.move(connection, 1, Verb.HOLD, actor="test")
        jobs.move(connection, 1, Verb.FINISH, actor="test", ending=Ending(Outcome.SUCCEEDED, 0))
    with read.reading(layout.db) as connection:
        assert named_rows.runs(connection)[0]["state"] == "QUEUED"


def test_cancel_ends_what_waits_and_asks_what_runs(engine: Engine, layout: Layout) -> None:
    with writing(engine) as connection:
        submit(connection, 0, 0, 0)
    assert claim(engine)
    with writing(engine) as connection:
        touched = jobs.request_cancel(connection, [1, 2], "user")
        assert [run.state for run in touched] == ["RUNNING", "QUEUED"]
        assert jobs.request_cancel(connection, [2], "user") == []
    with read.reading(layout.db) as connection:
        states = [(row["state"], row["outcome"]) for row in named_rows.runs(connection)]
    assert states == [("RUNNING", None), ("DONE", "CANCELLED"), ("QUEUED", None)]


def test_several_jobs_share_a_page(layout: Layout) -> None:
    """Else a file of 100,000 jobs makes a database of 430 MB, and the disk is what takes most of its time."""
    with writing(open_engine(layout.db)) as connection:
        assert connection.value("PRAGMA page_size") == 8192


def test_readers_cannot_write(layout: Layout) -> None:
    with pytest.raises(MpsqError, match="readonly"), read.reading(layout.db) as connection:
        connection.execute("DELETE FROM runs")


def test_a_database_that_another_program_locks_is_no_damage(layout: Layout) -> None:
    with closing(sqlite3.connect(layout.db, isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode=EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        with (
            pytest.raises(MpsqError, match="another program has locked the database") as error,
            read.reading(layout.db, patience_s=0.1) as reader,
        ):
            named_rows.runs(reader)
    assert "close the program" in error.value.hint


def test_a_file_that_is_no_database_is_a_sentence(layout: Layout) -> None:
    layout.db.write_bytes(b"not a database, but long enough to be looked at" * 100)
    with pytest.raises(MpsqError, match="cannot be read"):
        read.schema_revision(layout.db)


def test_a_run_has_several_notes_of_the_queue(engine: Engine) -> None:
    with writing(engine) as connection:
        submit(connection, 0)
    run = claim(engine)
    assert run is not None
    with writing(engine) as connection:
        for kind in ("not_quiet", "metric_absent", "not_quiet"):
            results.save_note(connection, run.run_id, kind, f"why {kind}")
        expected = {kind: f"why {kind}" for kind in ("not_quiet", "metric_absent")}
        assert results.note_texts(connection, run.run_id) == expected
