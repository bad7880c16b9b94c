"""wait: what counts is the last attempt of each repeat, and a retry to come is waited for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from queue_runner.errors import WaitedJobFailed
from queue_runner.model import DEFAULT_LANE, Ending, Outcome, Verb
from queue_runner.monitor import wait
from queue_runner.paths import Layout
from queue_runner.spec import NewJob, Terms
from queue_runner.store import jobs, retries
from queue_runner.store.engine import open_engine, writing
from tests.cli_support import SPEC, Cli, empty_queue

FAILED = Ending(Outcome.FAILED, 1, reason="no luck")
OK = Ending(Outcome.SUCCEEDED, 0)


@pytest.fixture
def mpsq(capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(capsys)


@pytest.fixture
def layout(home: Path) -> Layout:
    return empty_queue(home)


@pytest.fixture
def engine(layout: Layout) -> Iterator[Engine]:
    made = open_engine(layout.db)
    yield made
    made.dispose()


def queue(engine: Engine, *terms: Terms) -> None:
    new = [NewJob(SPEC, terms=one) for one in terms]
    with writing(engine) as connection:
        jobs.submit(connection, "t", 0, new, [(k, 1) for k in range(len(new))])


def end_next(engine: Engine, ending: Ending) -> None:
    with writing(engine) as connection:
        run = jobs.claim(connection, DEFAULT_LANE, "ab" * 16, "boot")
        assert run is not None
        jobs.move(connection, run.run_id, Verb.FINISH, actor="worker", ending=ending, ended_at=time.time())
        retries.retry_as_agreed(connection, run.run_id, ending, time.time())


def test_a_job_with_a_retry_to_come_has_not_ended(engine: Engine, mpsq: Cli) -> None:
    queue(engine, Terms(retries=2))
    end_next(engine, FAILED)
    assert mpsq("wait", "1", "--timeout", "1ms").code == 124
    assert mpsq("wait", "1.1").code == 3  # that attempt is over, whatever comes
    end_next(engine, OK)
    assert mpsq.ok("wait", "g1").out == "1 of 1 runs succeeded\n"


def test_retries_that_are_used_up_are_a_failure(engine: Engine, mpsq: Cli) -> None:
    queue(engine, Terms(retries=1))
    end_next(engine, FAILED)
    end_next(engine, FAILED)
    ran = mpsq("wait", "g1")
    assert ran.code == 3 and "0 of 1 runs succeeded" in ran.out and "run 1.2: FAILED(1): no luck" in ran.out
    assert ran.err.startswith("error: the run did not succeed\n")


def test_failures_are_counted() -> None:
    ended = {"job_id": 1, "attempt": 1, "state": "DONE"}
    bad = [{**ended, "run": f"1.{n}", "repeat": n, "outcome": "FAILED"} for n in (1, 2)]
    with pytest.raises(WaitedJobFailed, match=r"^none of the 2 runs succeeded$"):
        wait.refuse_failures(bad)
    with pytest.raises(WaitedJobFailed, match=r"^2 of 3 runs did not succeed$"):
        wait.refuse_failures([*bad, {**ended, "run": "1.3", "repeat": 3, "outcome": "SUCCEEDED"}])
    wait.refuse_failures([])


def test_held_jobs_need_a_hand_and_wait_says_so_once(engine: Engine, mpsq: Cli) -> None:
    queue(engine, Terms(hold=True), Terms(hold=True))
    ran = mpsq("wait", "g1", "--timeout", "1ms")
    assert ran.code == 124
    assert "2 runs are held and will not start until released: mpsq release 1 2\n" in ran.err
    assert (
        "run 2.1 is held and will not start until released: mpsq release 2\n"
        in mpsq("wait", "2", "--timeout", "1ms").err
    )


def test_what_was_skipped_did_not_succeed(engine: Engine, mpsq: Cli) -> None:
    queue(engine, Terms())
    with writing(engine) as connection:
        ending = Ending(Outcome.SKIPPED, reason="dependency: job 7 did not succeed")
        jobs.move(connection, 1, Verb.SKIP, actor="worker", ending=ending, ended_at=time.time())
    ran = mpsq("wait", "1")
    assert ran.code == 3 and "run 1.1: SKIPPED(dependency): job 7 did not succeed" in ran.out
