"""What may start, when, and in which order: a table over a fake clock, one line a case."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from queue_runner.errors import UsageError
from queue_runner.model import Condition, Ending, Outcome, Verb
from queue_runner.paths import Layout
from queue_runner.spec import JobSpec, NewJob, Terms
from queue_runner.store import editing, jobs, lane_claims, ready, retries
from queue_runner.store.engine import Connection, Engine, open_engine, writing
from tests.store_support import claim_next

pytestmark = pytest.mark.process

SPEC = JobSpec(kind="command", name="true", argv=("/usr/bin/true",), cwd="/")
OK, ANY, FAIL = Condition.OK, Condition.ANY, Condition.FAIL
NOW = 1_000_000.0

Job = dict[str, Any]


@pytest.fixture
def engine(layout: Layout) -> Iterator[Engine]:
    engine = open_engine(layout.db, keep_open=True)
    yield engine
    engine.dispose()


def play(engine: Engine, given: list[Job], *, fails: tuple[int, ...] = (), until: float = NOW + 1000) -> list[str]:
    """Let a worker on a fake clock run all that it can: `2@10` says that job 2 started 10 s after NOW, `-3` that it
    was skipped. Each run takes a second; the jobs in `fails` fail."""
    with writing(engine) as connection:
        for job in given:
            repeats, terms = job.get("repeats", 1), {k: v for k, v in job.items() if k not in ("repeats", "after")}
            turns = [(0, repeat) for repeat in range(1, repeats + 1)]
            jobs.submit(connection, "test", 0, [NewJob(SPEC, repeats, Terms(**terms))], turns)
        for job_id, job in enumerate(given, start=1):
            editing.set_dependencies(connection, job_id, job.get("after", ()))
    told, now = [], NOW
    while now < until:
        with writing(engine) as connection:
            told += skip(connection, now)
            run = claim_next(connection, now=now)
            if run is None:
                soonest = ready.next_change_at(connection, now)
                if soonest is None:
                    return told
                now = soonest
                continue
            told.append(f"{run.id.job}@{now - NOW:g}")
            now += 1
            failed = run.id.job in fails
            ending = Ending(Outcome.FAILED, 1) if failed else Ending(Outcome.SUCCEEDED, 0)
            jobs.move(connection, run.run_id, Verb.FINISH, actor="test", ending=ending)
            retries.retry_as_agreed(connection, run.run_id, ending, now)
    return told


def skip(connection: Connection, now: float) -> list[str]:
    told: list[str] = []
    while late := ready.unsatisfiable(connection, now):
        for run_id, ending in late:
            jobs.move(connection, run_id, Verb.SKIP, actor="test", ending=ending)
            told.append(f"-{connection.value(f'SELECT job_id FROM runs WHERE id = {run_id}')}")
    return told


def at(seconds: float) -> Job:
    return {"not_before_at": NOW + seconds}


CASES: list[tuple[list[Job], tuple[int, ...], str]] = [
    ([{}, {}, {}], (), "1@0 2@1 3@2"),
    ([{}, {"priority": 1}, {"priority": -1}], (), "2@0 1@1 3@2"),
    ([at(10), {}], (), "2@0 1@10"),
    ([at(10) | {"priority": 9}, {}, at(0.5)], (), "2@0 3@1 1@10"),
    ([at(-5), {}], (), "1@0 2@1"),
    ([{"after": ((2, OK),)}, {}], (), "2@0 1@1"),
    ([{"after": ((2, OK),)}, {}], (2,), "2@0 -1"),
    ([{"after": ((2, ANY),)}, {}], (2,), "2@0 1@1"),
    ([{"after": ((2, FAIL),)}, {}], (2,), "2@0 1@1"),
    ([{"after": ((2, FAIL),)}, {}], (), "2@0 -1"),
    ([{}, {"after": ((1, OK),)}, {"after": ((2, OK),)}, {"after": ((3, ANY),)}], (1,), "1@0 -2 -3 4@1"),
    ([{}, {}, {"after": ((1, OK), (2, OK)), "priority": 9}], (), "1@0 2@1 3@2"),
    ([{}, {}, {"after": ((1, OK), (2, FAIL)), "priority": 9}], (2,), "1@0 2@1 3@2"),
    ([{}, {"after": ((1, OK),)} | at(10)], (), "1@0 2@10"),
    ([at(10), {"after": ((1, OK),), "priority": 9}, {}], (), "3@0 1@10 2@11"),
    ([{"repeats": 2}, {"after": ((1, OK),), "priority": 9}], (), "1@0 1@1 2@2"),
    ([{"retries": 1}, {}], (1,), "1@0 1@1 2@2"),
    ([{"retries": 2, "backoff_s": 10.0}, {}], (1,), "1@0 2@1 1@11 1@32"),
    ([{"retries": 1, "backoff_s": 5.0}, {"after": ((1, FAIL),)}], (1,), "1@0 1@6 2@7"),
    ([{"retries": 1, "retry_on": ("lost",)}, {}], (1,), "1@0 2@1"),
    ([{}, {"deadline_at": NOW + 0.5}, {"after": ((2, ANY),)}], (), "1@0 -2 3@1"),
    ([{}, {"deadline_at": NOW + 5}], (), "1@0 2@1"),
    ([at(10) | {"deadline_at": NOW + 20}, {}], (), "2@0 1@10"),
    ([{"hold": True}, {}, {"after": ((1, ANY),)}], (), "2@0"),
    ([{"hold": True, "deadline_at": NOW + 3}, {"after": ((1, FAIL),)}], (), "-1 2@3"),
]


@pytest.mark.parametrize(("given", "fails", "then"), CASES, ids=[f"{n}: {case[2]}" for n, case in enumerate(CASES)])
def test_order_time_and_dependencies(engine: Engine, given: list[Job], fails: tuple[int, ...], then: str) -> None:
    assert " ".join(play(engine, given, fails=fails)) == then


def queue(connection: Connection) -> list[int]:
    return [job for _, job, _ in editing.waiting(connection)]


def submit(connection: Connection, *priorities: int) -> None:
    new = [NewJob(SPEC, 1, Terms(priority=priority)) for priority in priorities]
    jobs.submit(connection, "test", 0, new, [(n, 1) for n in range(len(new))])


def test_the_next_run_costs_no_more_where_more_wait_whatever_their_priorities(engine: Engine) -> None:
    def steps(connection: Connection) -> int:
        count = itertools.count()
        connection._driver.set_progress_handler(lambda: next(count) < 0, 1)
        next(lane_claims.waiting(connection, NOW))
        connection._driver.set_progress_handler(None, 0)
        return next(count)

    with writing(engine) as connection:
        jobs.submit(connection, "ended", 0, [NewJob(SPEC, 1, Terms(priority=1))], [(0, 1)])
        jobs.request_cancel(connection, [1], "user")
        few_steps = []
        for n_more in (10, 1000):
            for priority in (-1, 0):
                new = [NewJob(SPEC, n_more, Terms(priority=priority))]
                jobs.submit(connection, "t", 0, new, [(0, repeat + 1) for repeat in range(n_more)])
            few_steps.append(steps(connection))
    assert few_steps[1] < 1.5 * few_steps[0], few_steps


@pytest.mark.parametrize(
    ("priorities", "moved", "where", "others", "then"),
    [
        ((0, 0, 0, 0), {3}, editing.Where.TOP, set(), [3, 1, 2, 4]),
        ((0, 0, 0, 0), {4, 2}, editing.Where.TOP, set(), [2, 4, 1, 3]),
        ((0, 0, 0, 0), {1}, editing.Where.BOTTOM, set(), [2, 3, 4, 1]),
        ((0, 0, 0, 0), {4}, editing.Where.BEFORE, {2}, [1, 4, 2, 3]),
        ((0, 0, 0, 0), {4}, editing.Where.BEFORE, {2, 3}, [1, 4, 2, 3]),
        ((5, 0, 0, -5), {4}, editing.Where.TOP, set(), [4, 1, 2, 3]),
        ((5, 0, 0, -5), {1}, editing.Where.BOTTOM, set(), [2, 3, 4, 1]),
        ((5, 0, 0, -5), {4}, editing.Where.BEFORE, {1}, [4, 1, 2, 3]),
    ],
)
def test_moving(
    engine: Engine,
    priorities: tuple[int, ...],
    moved: set[int],
    where: editing.Where,
    others: set[int],
    then: list[int],
) -> None:
    with writing(engine) as connection:
        submit(connection, *priorities)
        editing.move(connection, moved, where, others, "test")
        assert queue(connection) == then
        submit(connection, -5)
        assert queue(connection) == [*then, len(priorities) + 1]


def test_a_circle_of_dependencies_is_refused(engine: Engine) -> None:
    with writing(engine) as connection:
        submit(connection, 0, 0, 0)
        editing.set_dependencies(connection, 2, [(1, OK)])
        editing.set_dependencies(connection, 3, [(2, OK)])
        with pytest.raises(UsageError, match="1 waits for 3 waits for 2 waits for 1"):
            editing.set_dependencies(connection, 1, [(3, ANY)])
        with pytest.raises(UsageError, match="1 waits for 1"):
            editing.set_dependencies(connection, 1, [(1, ANY)])


def test_a_paused_lane_starts_nothing(engine: Engine) -> None:
    with writing(engine) as connection:
        submit(connection, 0)
        assert lane_claims.pause(connection, "machine", "lunch") and not lane_claims.pause(
            connection, "machine", "lunch"
        )
        assert claim_next(connection) is None
        assert not ready.something_waits(connection, "machine", NOW)
        assert lane_claims.pause(connection, "machine", None)
        assert claim_next(connection) is not None


def test_what_was_cancelled_is_not_tried_again(engine: Engine) -> None:
    with writing(engine) as connection:
        jobs.submit(connection, "test", 0, [NewJob(SPEC, 1, Terms(retries=5))], [(0, 1)])
        run = claim_next(connection)
        assert run is not None
        jobs.request_cancel(connection, [run.run_id], "user")
        ending = Ending(Outcome.FAILED, 1)  # it failed before the cancel reached it
        jobs.move(connection, run.run_id, Verb.FINISH, actor="test", ending=ending)
        assert retries.retry_as_agreed(connection, run.run_id, ending, NOW) is None


def test_what_waits_for_a_hand_does_not_keep_a_worker(engine: Engine) -> None:
    with writing(engine) as connection:
        jobs.submit(connection, "test", 0, [NewJob(SPEC, 1, Terms(hold=True))], [(0, 1)])
        for on in (1, 2):
            jobs.submit(connection, "test", 0, [NewJob(SPEC, 1, Terms(after=((on, OK),)))], [(0, 1)])
        assert not ready.something_waits(connection, "machine", NOW)
        jobs.submit(connection, "test", 0, [NewJob(SPEC, 1, Terms(not_before_at=NOW + 60))], [(0, 1)])
        assert ready.something_waits(connection, "machine", NOW)


def test_a_job_that_is_held_in_part_still_keeps_a_worker(engine: Engine) -> None:
    with writing(engine) as connection:
        jobs.submit(connection, "test", 0, [NewJob(SPEC, 2, Terms(not_before_at=NOW + 60))], [(0, 1), (0, 2)])
        jobs.move(connection, 1, Verb.HOLD, actor="user")
        assert ready.something_waits(connection, "machine", NOW)
