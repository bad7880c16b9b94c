"""Every command counts the runs of a submission alike: each repeat once, without preflights and earlier attempts.
`list --state` shows jobs in that state alone."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Iterator

import pytest

from queue_runner.client import Client
from queue_runner.model import Ending, Outcome, Verb
from queue_runner.monitor import group_summary, listing, run_view
from queue_runner.paths import Layout
from queue_runner.spec import NewJob, Terms
from queue_runner.store import jobs, read, retries
from queue_runner.store.engine import Engine, open_engine, writing
from tests.cli_support import SPEC, Cli
from tests.store_support import claim_next

FAILED = Ending(Outcome.FAILED, 1, reason="no luck")
TIMED_OUT = Ending(Outcome.TIMED_OUT, reason="1 s")
OK = Ending(Outcome.SUCCEEDED, 0)


@pytest.fixture
def engine(layout: Layout) -> Iterator[Engine]:
    made = open_engine(layout.db)
    yield made
    made.dispose()


def submit(engine: Engine, repeats: int, *, retries: int = 0, preflight: bool = False) -> None:
    with writing(engine) as connection:
        new = [NewJob(SPEC, repeats, Terms(retries=retries))]
        order = [(0, repeat) for repeat in range(1, repeats + 1)]
        jobs.submit(connection, "mpsq submit", 0, new, order, tried=[0] if preflight else [])


def end_next(engine: Engine, *endings: Ending) -> None:
    for ending in endings:
        with writing(engine) as connection:
            run = claim_next(connection)
            assert run is not None
            jobs.move(connection, run.run_id, Verb.FINISH, actor="worker", ending=ending, ended_at=time.time())
            retries.retry_as_agreed(connection, run.run_id, ending, time.time())


def test_a_preflight_and_an_attempt_that_was_repeated_count_nowhere(engine: Engine, layout: Layout, mpsq: Cli) -> None:
    """`wait --timeout` counted 7 runs, `list` 5, a report 2 of the first that ended."""
    submit(engine, 5, retries=1, preflight=True)
    waits = mpsq("wait", "g1", "--timeout", "1ms")
    assert "5 of 5 runs" in waits.err
    assert "waiting  5 runs, 1 preflight" in mpsq.ok("status").out
    end_next(engine, OK, FAILED)  # the preflight, and the first repeat, which is tried again
    waits = mpsq("wait", "--timeout", "1ms")
    assert "g1: 5 runs" in waits.err and "5 of 5 runs" in waits.err
    end_next(engine, OK)
    assert "4 of 5 runs" in mpsq("wait", "g1", "--timeout", "1ms").err
    assert "/5" in mpsq.ok("list").out
    assert "1 job, 5 runs" in mpsq.ok("show", "g1").out
    (row,) = mpsq.ok("report", "devices", "g1", "--all", "--json").json()["rows"]
    assert (row["n_runs"], len(row["runs"])) == (1, 6)
    with read.reading(layout.db) as connection:
        assert group_summary.progress(connection, [1])[1].runs == 5
    mpsq.ok("pause", "g1")
    assert "4 runs are held" in mpsq("wait", "g1", "--timeout", "1ms").err


def test_a_state_selects_the_jobs_that_show_it(engine: Engine, layout: Layout, mpsq: Cli) -> None:
    """`list --state failed` showed jobs as QUEUED and as SUCCEEDED."""
    submit(engine, 1, retries=1)
    end_next(engine, FAILED, OK)  # job 1 succeeded in the end
    submit(engine, 2)
    end_next(engine, FAILED, TIMED_OUT)
    submit(engine, 2)
    end_next(engine, FAILED)  # job 3 has a repeat left
    submit(engine, 2)
    submit(engine, 1)

    def ids(state: str, *arguments: str) -> list[int]:
        return [job["job"] for job in mpsq.ok("list", "--json", "--state", state, *arguments).json()["jobs"]]

    assert ids("failed") == [2, 3] and ids("timed_out") == [2] and ids("succeeded") == [1]
    assert ids("done") == [1, 2] and ids("queued") == [3, 4, 5] and ids("held") == ids("running") == []
    mpsq.ok("pause", "3.2", "4.1")
    assert ids("held") == [3] and ids("queued") == [4, 5]
    assert ids("failed", "--limit", "1") == [3]
    shown = mpsq.ok("list", "--state", "failed").out
    assert "FAILED(1), TIMED_OUT" in shown and "HELD, FAILED(1)" in shown and "QUEUED" not in shown
    runs = mpsq.ok("list", "--state", "failed", "--runs").out
    assert re.findall(r"^\d+\.\d+", runs, re.MULTILINE) == ["1.1", "2.1", "2.2", "3.1"]
    assert [run["run"] for run in Client(layout.home).runs(state="timed_out")] == ["2.2"]


@pytest.mark.parametrize(
    ("rounds", "done", "follow"), [(33, "8 of at most 33 rounds done", 25), (8, "8 of at most 20 rounds done", 12)]
)
def test_rounds_that_follow_are_counted_from_those_that_have_ended(
    engine: Engine, layout: Layout, rounds: int, done: str, follow: int
) -> None:
    """A page counted at most 20 rounds where 33 are planned, and 17 to follow although 8 had ended."""
    submit(engine, rounds)
    end_next(engine, *[OK] * 8)
    with writing(engine) as connection:
        connection.change("UPDATE groups SET until = 'decided', judged_rounds = 3, more_rounds = 40")
    with read.reading(layout.db) as connection:
        assert group_summary.progress(connection, [1])[1].done == done
        assert f"about 40 more needed, but at most {follow} follow" in group_summary.undecided(connection)[1]


def test_the_newest_questions_are_looked_for_among_few_runs(
    engine: Engine, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each change of the queue the first page of `mpsq web` read all runs where most jobs are submitted alone."""
    with writing(engine) as connection:
        jobs.submit(connection, "a question", 0, [NewJob(SPEC), NewJob(SPEC)], [(0, 1), (1, 1)])
    submit(engine, 60)
    end_next(engine, *[OK] * 62)

    def steps(most: int) -> int:
        monkeypatch.setattr(group_summary, "MOST_ENDED", most)
        counted = itertools.count()
        with read.reading(layout.db) as connection:
            connection.set_progress_handler(lambda: next(counted) < 0, 1)
            assert group_summary.newest_questions(connection, 6) == [(1, "a question")]
        return next(counted)

    assert steps(10) < steps(62), "it looked at all of them"


def test_failed_selects_what_the_counts_call_failed(engine: Engine, layout: Layout, mpsq: Cli) -> None:
    """`list --state failed` left out runs that timed out, which the counts of a submission included."""
    ends = [TIMED_OUT, Ending(Outcome.LOST), Ending(Outcome.OUT_OF_MEMORY), Ending(Outcome.SKIPPED), OK]
    for ending in ends:
        submit(engine, 1)
        end_next(engine, ending)
    listed = [job["job"] for job in mpsq.ok("list", "--json", "--state", "failed").json()["jobs"]]
    with read.reading(layout.db) as connection:
        counted = [group for group, done in group_summary.progress(connection, range(1, 6)).items() if done.failed]
        recent = [run.job_id for run in run_view.last_failed(connection, 0.0, 10)]
    assert listed == sorted(counted) == sorted(recent) == [1, 2, 3]


def test_a_limit_on_runs_reads_no_others(engine: Engine, layout: Layout) -> None:
    """It read every run of the newest jobs."""
    submit(engine, 5)
    submit(engine, 1)
    with read.reading(layout.db) as connection:
        jobs = listing.runs(connection, listing.Filter(limit=3), run_view.RunLine)
        assert [run.run for job in jobs for run in job.every_run] == ["1.4", "1.5", "2.1"]


def test_status_says_which_of_the_waiting_runs_it_does_not_expect(engine: Engine, mpsq: Cli) -> None:
    """It said `waiting 4 runs`, and then `none of these 2 runs has run on this machine before`."""
    for _ in range(3):
        submit(engine, 1)
    mpsq.ok("submit", "--after", "3", "--", "true")
    mpsq.ok("pause", "3")
    shown = mpsq.ok("status").out
    assert "4 runs (2 of them held or blocked" in shown and "no run like these has ended" in shown


def test_resume_says_that_no_worker_runs(engine: Engine, mpsq: Cli) -> None:
    submit(engine, 1)
    mpsq.ok("pause")
    resumed = mpsq.ok("resume")
    assert "is resumed" in resumed.out and "no worker" in resumed.err
    mpsq.ok("pause", "1")
    assert "no worker" in mpsq.ok("resume", "1").err
    mpsq.ok("pause")
    mpsq.ok("pause", "1")
    assert "queue is paused" in mpsq.ok("resume", "1").err
    mpsq.ok("cancel", "1")
    assert mpsq.ok("resume").err == "", "nothing waits for one"
