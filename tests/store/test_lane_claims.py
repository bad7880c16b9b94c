"""Runs on lanes in the database: which one goes first, and what a claim binds."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from queue_runner.lanes import Lane
from queue_runner.model import Condition
from queue_runner.paths import Layout
from queue_runner.spec import JobSpec, NewJob, Terms
from queue_runner.store import jobs, lane_claims, ready
from queue_runner.store.engine import Connection, open_engine, writing

pytestmark = pytest.mark.process

NOW = 1_000_000.0
A, B, C = (Lane(f"cpu:{n}", (n,)) for n in range(3))


def spec(lane: str = "") -> JobSpec:
    return JobSpec(kind="command", name="x", argv=("true",), device="cpu", lane=lane)


@pytest.fixture
def connection(layout: Layout) -> Iterator[Connection]:
    engine = open_engine(layout.db, keep_open=True)
    with writing(engine) as connection:
        yield connection
    engine.dispose()


def run_of(connection: Connection, job: int) -> int:
    return int(connection.value("SELECT id FROM runs WHERE job_id = ?", (job,)))


def start(connection: Connection, job: int, lane: Lane) -> None:
    """Claim the job's run on the lane."""
    assert lane_claims.claim(connection, lane, "t" * 32, "boot", run_of(connection, job), time.time()) is not None


def test_a_run_that_began_on_an_earlier_lane_keeps_its_processors(connection: Connection) -> None:
    jobs.submit(connection, "wide", 0, [NewJob(spec())], [(0, 1)])
    jobs.submit(connection, "next", 0, [NewJob(spec())], [(0, 1)])
    start(connection, 1, Lane("cpu:0-3", (0, 1, 2, 3)))
    later = run_of(connection, 2)
    assert lane_claims.claim(connection, Lane("cpu:2+8", (2, 8)), "t" * 32, "boot", later, time.time()) is None
    assert lane_claims.claim(connection, Lane("cpu:4-5", (4, 5)), "t" * 32, "boot", later, time.time()) is not None


def undo(connection: Connection, job: int) -> None:
    """As a worker whose warden could not be started."""
    jobs.unclaim(connection, run_of(connection, job), "test")
    lane_claims.unbind(connection, run_of(connection, job))


def test_a_claim_that_is_undone_binds_nothing(connection: Connection) -> None:
    jobs.submit(connection, "two", 0, [NewJob(spec()), NewJob(replace(spec(), name="y"))], [(0, 1), (1, 1)])
    stored = "SELECT id, lane, spec_json, spec_hash FROM jobs ORDER BY id"
    before = connection.rows(stored)
    start(connection, 1, A)
    assert connection.rows(stored) != before
    undo(connection, 1)
    assert connection.rows(stored) == before
    start(connection, 2, B)


def test_an_undone_claim_leaves_what_has_begun_bound(connection: Connection) -> None:
    jobs.submit(connection, "two", 0, [NewJob(spec()), NewJob(spec())], [(0, 1), (1, 1)])
    start(connection, 1, A)
    connection.change(
        "UPDATE runs SET state = 'DONE', outcome = 'SUCCEEDED', exit_code = 0, started_at = 1 WHERE id = 1"
    )
    start(connection, 2, A)
    undo(connection, 2)
    assert [one.lane for one in lane_claims.waiting(connection, NOW)] == [A.name]


def test_an_undone_claim_leaves_the_lane_that_a_rerun_was_submitted_with(connection: Connection) -> None:
    jobs.submit(connection, "first", 0, [NewJob(spec())], [(0, 1)])
    jobs.submit(connection, "again", 0, [NewJob(spec(A.name), terms=Terms(rerun_of=1))], [(0, 1)])
    start(connection, 2, A)
    undo(connection, 2)
    assert connection.value("SELECT lane FROM jobs WHERE id = 2") == A.name


def test_what_waits_for_a_paused_lane_does_not_keep_a_worker(connection: Connection) -> None:
    bound = NewJob(spec(f"{A.name},{B.name}"))
    jobs.submit(connection, "bound", 0, [bound], [(0, 1)])
    jobs.submit(connection, "behind it", 0, [NewJob(spec(), terms=Terms(after=((1, Condition.OK),)))], [(0, 1)])
    assert ready.something_waits(connection, "machine", NOW)
    lane_claims.pause(connection, B.name, "test")
    assert not ready.something_waits(connection, "machine", NOW)
    jobs.submit(connection, "free", 0, [NewJob(spec())], [(0, 1)])
    assert ready.something_waits(connection, "machine", NOW)
    assert not ready.something_waits(connection, "machine", NOW, stuck={3})
