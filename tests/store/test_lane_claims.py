"""What the database says of runs on lanes: which goes first, for whom a neighbour runs, and what a claim binds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from sqlalchemy import Connection

from queue_runner.lanes import Lane
from queue_runner.model import Condition, State
from queue_runner.paths import Layout
from queue_runner.spec import NEIGHBOUR, JobSpec, NewJob, Terms
from queue_runner.store import jobs, lane_claims, lanes, neighbours, ready
from queue_runner.store.engine import open_engine, writing

pytestmark = pytest.mark.process

NOW = 1_000_000.0
A, B, C = (Lane(f"cpu:{n}", (n,)) for n in range(3))
BESIDE, FIRST, SECOND, ALONE = 1, 2, 3, 4
"""A round, of a run and its two neighbours, and what came later with a higher priority."""


def spec(lane: str = "", pairing: str = "") -> JobSpec:
    return JobSpec(kind="command", name="x", argv=("true",), device="cpu", lane=lane, pairing=pairing)


@pytest.fixture
def connection(layout: Layout) -> Iterator[Connection]:
    engine = open_engine(layout.db, keep_open=True)
    with writing(engine) as connection:
        yield connection
    engine.dispose()


@pytest.fixture
def queue(connection: Connection) -> Connection:
    """One round, whose first neighbour runs and is measured."""
    new = [NewJob(spec(A.name)), NewJob(spec(B.name, NEIGHBOUR)), NewJob(spec(C.name, NEIGHBOUR))]
    jobs.submit(connection, "round", 0, new, [(1, 1), (2, 1), (0, 1)])
    jobs.add_dependencies(connection, ((BESIDE, on, Condition.WHILE) for on in (FIRST, SECOND)))
    jobs.submit(connection, "alone", 0, [NewJob(spec(), terms=Terms(priority=9))], [(0, 1)])
    start(connection, FIRST, B)
    return connection


def run_of(connection: Connection, job: int) -> int:
    return int(connection.exec_driver_sql("SELECT id FROM runs WHERE job_id = ?", (job,)).scalar_one())


def start(connection: Connection, job: int, lane: Lane) -> None:
    """Claim the job's run on the lane and begin to measure it."""
    run = lane_claims.claim(connection, lane, "t" * 32, "boot", run_of(connection, job))
    assert run is not None
    connection.exec_driver_sql(
        "INSERT INTO phases (run_id, offset, t_s, name, edge) VALUES (?, 0, 0, 'measure', 'begin')", (run.run_id,)
    )


def waiting(connection: Connection) -> list[tuple[int, bool]]:
    return [(one.job, bool(one.begun)) for one in lane_claims.waiting(connection, NOW)]


def test_a_round_that_has_begun_goes_on_before_everything_else(queue: Connection) -> None:
    assert waiting(queue) == [(SECOND, True), (ALONE, False)]
    start(queue, SECOND, C)
    assert waiting(queue) == [(BESIDE, True), (ALONE, False)]
    assert neighbours.idle(queue, NOW) == []


@pytest.mark.parametrize(
    "stands_still",
    [
        "UPDATE runs SET state = 'HELD' WHERE job_id = 1",
        "UPDATE runs SET state = 'HELD' WHERE job_id = 3",
        f"UPDATE runs SET not_before_at = {NOW + 60} WHERE job_id = 1",
        "INSERT INTO lanes (name, paused_at) VALUES ('machine', 1)",
        "INSERT INTO lanes (name, paused_at) VALUES ('cpu:0', 1)",
        "INSERT INTO lanes (name, paused_at) VALUES ('cpu:2', 1)",
    ],
)
def test_a_round_that_stands_still_keeps_no_neighbour(queue: Connection, stands_still: str) -> None:
    queue.exec_driver_sql(stands_still)
    assert neighbours.idle(queue, NOW) == [run_of(queue, FIRST)]


def test_a_run_that_began_on_an_earlier_lane_keeps_its_processors(connection: Connection) -> None:
    jobs.submit(connection, "wide", 0, [NewJob(spec())], [(0, 1)])
    jobs.submit(connection, "next", 0, [NewJob(spec())], [(0, 1)])
    start(connection, 1, Lane("cpu:0-3", (0, 1, 2, 3)))
    later = run_of(connection, 2)
    assert lane_claims.claim(connection, Lane("cpu:2+8", (2, 8)), "t" * 32, "boot", later) is None
    assert lane_claims.claim(connection, Lane("cpu:4-5", (4, 5)), "t" * 32, "boot", later) is not None


def undo(connection: Connection, job: int) -> None:
    """As a worker whose warden could not be started."""
    jobs.unclaim(connection, run_of(connection, job), "test")
    lane_claims.unbind(connection, run_of(connection, job))


def test_a_claim_that_is_undone_binds_nothing(connection: Connection) -> None:
    jobs.submit(connection, "two", 0, [NewJob(spec()), NewJob(replace(spec(), name="y"))], [(0, 1), (1, 1)])
    stored = "SELECT id, lane, spec_json, spec_hash FROM jobs ORDER BY id"
    before = connection.exec_driver_sql(stored).all()
    start(connection, 1, A)
    assert connection.exec_driver_sql(stored).all() != before
    undo(connection, 1)
    assert connection.exec_driver_sql(stored).all() == before
    start(connection, 2, B)


def test_an_undone_claim_leaves_what_has_begun_bound(connection: Connection) -> None:
    jobs.submit(connection, "two", 0, [NewJob(spec()), NewJob(spec())], [(0, 1), (1, 1)])
    start(connection, 1, A)
    connection.exec_driver_sql(
        "UPDATE runs SET state = 'DONE', outcome = 'SUCCEEDED', exit_code = 0, started_at = 1 WHERE id = 1"
    )
    start(connection, 2, A)
    undo(connection, 2)
    assert [one.lane for one in lane_claims.waiting(connection, NOW)] == [A.name]


def test_an_undone_claim_leaves_the_lane_that_a_job_was_submitted_with(queue: Connection) -> None:
    undo(queue, FIRST)
    assert queue.exec_driver_sql("SELECT lane FROM jobs WHERE id < 4 ORDER BY id").scalars().all() == [
        A.name,
        B.name,
        C.name,
    ]


def test_what_waits_for_a_paused_lane_does_not_keep_a_worker(connection: Connection) -> None:
    bound = NewJob(spec(f"{A.name},{B.name}"))
    jobs.submit(connection, "bound", 0, [bound], [(0, 1)])
    jobs.submit(connection, "behind it", 0, [NewJob(spec(), terms=Terms(after=((1, Condition.OK),)))], [(0, 1)])
    assert ready.something_waits(connection, "machine", NOW)
    lanes.pause(connection, B.name, "test")
    assert not ready.something_waits(connection, "machine", NOW)
    jobs.submit(connection, "free", 0, [NewJob(spec())], [(0, 1)])
    assert ready.something_waits(connection, "machine", NOW)
    assert not ready.something_waits(connection, "machine", NOW, stuck={3})


def test_a_neighbour_does_not_start_for_a_run_that_cannot(queue: Connection) -> None:
    jobs.move(queue, run_of(queue, BESIDE), jobs.Verb.HOLD, actor="user")
    assert waiting(queue) == [(ALONE, False)]
    jobs.move(queue, run_of(queue, BESIDE), jobs.Verb.RELEASE, actor="user")
    lanes.pause(queue, A.name, "test")
    assert waiting(queue) == [(ALONE, False)]
    assert not ready.unsatisfiable(queue, NOW)
    assert queue.exec_driver_sql("SELECT state FROM runs WHERE job_id = 3").scalar() == State.QUEUED
