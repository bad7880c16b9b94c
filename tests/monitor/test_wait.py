"""wait: what counts is the last attempt of each repeat, and a retry to come is waited for."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from queue_runner.errors import WaitedJobFailed
from queue_runner.host.low_priority import Wait
from queue_runner.model import Condition, Ending, Outcome, Verb, parse_selector
from queue_runner.monitor import run_view
from queue_runner.monitor.awaiting import Awaited
from queue_runner.monitor.follow import Follower
from queue_runner.paths import Layout
from queue_runner.spec import NewJob, Terms
from queue_runner.store import jobs, read, ready, retries
from queue_runner.store.engine import Engine, open_engine, writing
from tests.cli_support import SPEC, Cli
from tests.store_support import claim_next

FAILED = Ending(Outcome.FAILED, 1, reason="no luck")
OK = Ending(Outcome.SUCCEEDED, 0)


@pytest.fixture(autouse=True)
def keep_the_priority_of_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "nice", lambda _more: 0)


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
        run = claim_next(connection, token="ab" * 16)
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
    assert ran.code == 3 and "0 of 1 runs succeeded" in ran.out and "1.2: FAILED(1): no luck" in ran.out
    assert "did not succeed\n" in ran.err


def test_failures_are_counted(engine: Engine, layout: Layout) -> None:
    with writing(engine) as connection:
        jobs.submit(connection, "t", 0, [NewJob(SPEC, 3)], [(0, 1), (0, 2), (0, 3)])
    with read.reading(layout.db) as reader:
        runs = [replace(run, state="DONE", outcome="FAILED") for run in run_view.runs(reader)]
    with pytest.raises(WaitedJobFailed, match=r"^none of the 2 runs succeeded$"):
        Awaited(runs[:2]).refuse_failures()
    with pytest.raises(WaitedJobFailed, match=r"^2 of 3 runs did not succeed$"):
        Awaited([*runs[:2], replace(runs[2], outcome="SUCCEEDED")]).refuse_failures()
    Awaited([]).refuse_failures()


def test_held_jobs_need_a_hand_and_wait_says_so_once(engine: Engine, mpsq: Cli) -> None:
    queue(engine, Terms(hold=True), Terms(hold=True))
    ran = mpsq("wait", "g1", "--timeout", "1ms")
    assert ran.code == 124
    assert "2 runs are held" in ran.err and "mpsq resume 1 2\n" in ran.err
    ran = mpsq("wait", "2", "--timeout", "1ms")
    assert "run 2.1 is held" in ran.err and "mpsq resume 2\n" in ran.err


def test_what_was_skipped_did_not_succeed(engine: Engine, mpsq: Cli) -> None:
    queue(engine, Terms())
    with writing(engine) as connection:
        ending = Ending(Outcome.SKIPPED, reason="dependency: job 7 did not succeed")
        jobs.move(connection, 1, Verb.SKIP, actor="worker", ending=ending, ended_at=time.time())
    ran = mpsq("wait", "1")
    assert ran.code == 3 and "1.1: SKIPPED(dependency): job 7" in ran.out


@pytest.mark.parametrize("is_measured", [True, False])
def test_a_budget_that_ends_rounds_is_a_failure_only_for_a_row_without_any(
    engine: Engine, mpsq: Cli, is_measured: bool
) -> None:
    """`wait` printed 2 of 2 runs succeeded; `mpsq run` ended with 0 although one row had never run."""
    with writing(engine) as connection:
        order = [(0, 1), (0, 2)] if is_measured else [(0, 1), (1, 1)]
        new = [NewJob(SPEC, repeats=2)] if is_measured else [NewJob(SPEC), NewJob(SPEC)]
        jobs.submit(connection, "t", 0, new, order)
    end_next(engine, OK)
    with writing(engine) as connection:
        over = Ending(Outcome.SKIPPED, reason="budget: it did not start within the --budget")
        jobs.move(connection, 2, Verb.SKIP, actor="worker", ending=over, ended_at=time.time())
    waited = mpsq("wait", "g1")
    if is_measured:
        assert waited.code == 0 and "1 of 1 runs" in waited.out and "1 did not start" in waited.out
    else:
        assert waited.code == 3 and "1 of 2 runs did not succeed" in waited.err


def test_a_job_for_a_failure_that_did_not_happen_has_not_failed(engine: Engine, mpsq: Cli) -> None:
    """Each script that waited for a cleanup job ended with 3, although nothing was wrong."""
    queue(engine, Terms(), Terms(after=((1, Condition.FAIL),)))
    end_next(engine, OK)
    with writing(engine) as connection:
        ((run_id, ending),) = ready.unsatisfiable(connection, time.time())
        jobs.move(connection, run_id, Verb.SKIP, actor="worker", ending=ending, ended_at=time.time())
    assert "1 of 1 runs" in mpsq.ok("wait", "g1").out
    assert mpsq("wait", "2").code == 3, "alone it did not run"


def hold_by_mpsq(engine: Engine, job: int) -> None:
    with writing(engine) as connection:
        reason = "3 runs in a row failed"
        waiting = connection.column("SELECT id FROM runs WHERE job_id = ?", [job])
        jobs.move_all(connection, waiting, Verb.HOLD, actor="worker", reason=reason, blocked_reason=reason)


def after(job: int) -> Terms:
    return Terms(after=((job, Condition.ANY),))


def test_what_waits_for_runs_that_mpsq_holds_has_failed(engine: Engine, mpsq: Cli) -> None:
    queue(engine, Terms())
    queue(engine, after(1))
    queue(engine, after(2))
    hold_by_mpsq(engine, 1)
    ran = mpsq("wait", "3", "--timeout", "2s")
    assert ran.code == 3 and all(x in ran.out for x in ("run 3.1: QUEUED", "job 1, ", "mpsq holds\n"))
    assert all(x in ran.err for x in ("did not succeed", "job 1, ", "mpsq holds\n"))
    assert mpsq("wait", "1", "2", "3", "--timeout", "2s").code == 3


def test_what_waits_for_runs_that_a_user_holds_waits(engine: Engine, layout: Layout, mpsq: Cli) -> None:
    queue(engine, Terms())
    queue(engine, after(1))
    hold_by_mpsq(engine, 1)
    mpsq.ok("pause", "1")
    assert mpsq("wait", "2", "--timeout", "1ms").code == 124
    ran = mpsq("wait", "1", "--timeout", "1ms")
    assert ran.code == 124 and "run 1.1 is held" in ran.err and "mpsq resume 1\n" in ran.err
    assert "3 runs in a row" not in mpsq.ok("why", "1").out, "the hold is the user's now"


def test_a_follower_leaves_runs_that_wait_for_runs_that_mpsq_holds(
    engine: Engine, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue(engine, Terms())
    queue(engine, after(1))
    hold_by_mpsq(engine, 1)
    messages: list[str] = []

    def fail(_self: Wait, seconds: float) -> None:
        raise AssertionError("it waits")

    monkeypatch.setattr(Wait, "__call__", fail)
    follower = Follower(layout, parse_selector("2"), lambda *_: (), messages.append)
    assert [run.state for run in follower.follow().runs] == ["QUEUED"]
    assert "job 1 must end" in messages[0]


def test_runs_held_for_one_reason_are_one_line(engine: Engine, mpsq: Cli) -> None:
    queue(engine, *[Terms()] * 9)
    hold_by_mpsq(engine, 1)
    assert "run 1.1: HELD: 3 runs" in mpsq("wait", "1").out
    for job in range(2, 10):
        hold_by_mpsq(engine, job)
    succeeded, held = mpsq("wait", "g1").out.splitlines()
    assert succeeded == "0 of 9 runs succeeded"
    assert held.startswith("9 runs (1.1, 2.1, 3.1, 4.1, 5.1 and 4 more)") and ": HELD: 3 runs" in held
