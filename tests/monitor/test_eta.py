"""When the queue will be done: from stored durations of the same questions, and how sure that is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import insert, update

from queue_runner.events import Hello, Iter, Phase
from queue_runner.host.warden_records import RunEnd
from queue_runner.model import Condition, Ending, Outcome, Verb
from queue_runner.monitor import eta, queue_status, run_view
from queue_runner.monitor.eta import Eta, Turn
from queue_runner.monitor.forecast import forecast, with_short_gate
from queue_runner.paths import Layout
from queue_runner.spec import JobSpec, NewJob, Terms
from queue_runner.store import history, jobs, read, results
from queue_runner.store.engine import Engine, open_engine, writing
from queue_runner.store.schema import job_events, runs
from queue_runner.submit.plan import Plan
from tests.cli_support import Cli, empty_queue
from tests.store_support import claim_next

pytestmark = pytest.mark.process

NOW = 1_000_000.0
A = JobSpec(kind="workload", name="toy", workload="toy", framework="torch", device="cpu", compile=False, dtype="fp32")
B = replace(A, device="mps")
OK = Ending(Outcome.SUCCEEDED, 0)


class Past:
    """A queue with a history."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.engine: Engine = open_engine(layout.db, check=False)

    def took(self, spec: JobSpec, *seconds: float, ending: Ending = OK, slept_s: float = 0.0) -> None:
        for real_s in seconds:
            self.queue(NewJob(spec))
            run = self.start(NOW - 5000)
            with writing(self.engine) as connection:
                results.save_exit(connection, run.run_id, RunEnd(real_s=real_s, slept_s=slept_s))
                jobs.move(connection, run.run_id, Verb.FINISH, actor="worker", ending=ending, ended_at=NOW - 4000)

    def queue(self, *new: NewJob) -> list[int]:
        order = [(k, repeat) for k, job in enumerate(new) for repeat in range(1, job.repeats + 1)]
        with writing(self.engine) as connection:
            return jobs.submit(connection, "t", 0, new, order)[1]

    def start(self, at: float) -> Any:
        with writing(self.engine) as connection:
            run = claim_next(connection, token="ab" * 16, now=NOW)
            assert run is not None
            connection.execute(update(runs).where(runs.c.id == run.run_id).values(started_at=at, claimed_at=at))
        return run

    def look(self, **options: Any) -> Eta:
        with read.reading(self.layout.db) as connection:
            return eta.estimate(connection, run_view.queue(connection), NOW, **options)

    def starts(self, **options: Any) -> dict[str, tuple[float | None, float | None]]:
        """Seconds from now by run."""
        turns = self.look(**options).turns.values()

        def since(at: float | None) -> float | None:
            return None if at is None else round(at - NOW, 6)

        return {turn.run: (since(turn.start_at), since(turn.finish_at)) for turn in turns}


@pytest.fixture
def past(home: Path) -> Iterator[Past]:
    made = Past(empty_queue(home))
    yield made
    made.engine.dispose()


@pytest.mark.parametrize(
    ("left_s", "is_sure", "text"),
    [
        (1.77, False, "in at least 2 s"),
        (1.1, True, "in about 1 s"),
        (0.5, True, ""),
        (90.0, True, "in about 1 min 30 s, at "),
    ],
)
def test_a_start_within_a_minute_has_no_time_of_day(left_s: float, is_sure: bool, text: str) -> None:
    """ "in at least 1.77 s, after 11:27" was read within 11:27."""
    starting = eta.starting(Turn("1.1", history.Expected(), NOW + left_s, None, is_sure), NOW)
    assert starting.startswith(text) and (":" in starting) == (left_s >= 60)


def test_an_empty_queue_has_no_end(past: Past) -> None:
    assert past.look() == Eta({}, None, 0.0) and past.look().sentence(NOW) == ""


def test_the_same_question_takes_as_long_as_before(past: Past) -> None:
    past.took(A, 10, 30, 11)
    past.took(A, 5000, ending=Ending(Outcome.FAILED, 1, reason="no"))
    past.took(B, 100, slept_s=40)
    first, second = past.queue(NewJob(A, 2), NewJob(B))
    assert past.starts(gap_s=1) == {f"{first}.1": (0, 11), f"{first}.2": (12, 23), f"{second}.1": (24, 84)}
    found = past.look()
    assert found.unknown == 0 and found.sentence(NOW).startswith("about 1 min 22 s, at ")
    assert "run" not in found.sentence(NOW)
    assert eta.starting(found.turns[f"{second}.1"], NOW) == "in about 22 s"


def test_only_the_newest_runs_are_expected(past: Past, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "NEWEST", 1)
    past.took(A, 1000, 1000, 1)
    past.queue(NewJob(A))
    assert past.look().left_s == 1


def test_a_question_that_differs_in_a_setting_is_alike_and_one_of_another_length_is_not(past: Past) -> None:
    past.took(replace(A, params={"lr": 0.1, "max_iters": 10}), 20)
    past.took(replace(A, params={"lr": 0.1, "max_iters": 1000}), 2000)
    past.queue(
        NewJob(replace(A, params={"lr": 0.3, "max_iters": 10})),
        NewJob(replace(A, params={"lr": 0.3, "max_iters": 77})),
        NewJob(replace(A, params={"lr": 0.3, "max_iters": 10}, device="mps")),
    )
    found = past.look()
    assert [turn.expected.basis for turn in found.turns.values()] == [history.ALIKE, "", ""]
    said = found.sentence(NOW)
    assert said.startswith("at least 20 s")
    assert all(x in said for x in ("2 of 3 runs have", "no history", "1 of 3 runs estimated from similar"))
    assert [turn.start_sure for turn in found.turns.values()] == [True, True, False]


def test_commands_are_alike_only_within_a_sweep(past: Past) -> None:
    command = JobSpec(kind="command", name="sh", argv=("sh", "-c", "sleep 1"))
    past.took(command, 1)
    past.took(replace(command, argv=("sh", "t.sh", "1"), params={"x": "1"}), 7)
    past.queue(
        NewJob(command),
        NewJob(replace(command, argv=("sh", "-c", "sleep 100"))),
        NewJob(replace(command, argv=("sh", "t.sh", "2"), params={"x": "2"})),
    )
    assert [turn.expected.real_s for turn in past.look().turns.values()] == [1, None, 7]


def test_nothing_is_known_of_what_was_never_asked(past: Past) -> None:
    past.queue(NewJob(A))
    assert "not known" in past.look().sentence(NOW)
    past.queue(NewJob(B))
    assert "no run like these has ended" in past.look().sentence(NOW)


def test_the_running_run_counts_with_what_is_left_of_it(past: Past) -> None:
    past.took(A, 10)
    past.queue(NewJob(A, 2))
    past.start(NOW - 4)
    assert [finish for _, finish in past.starts().values()] == [6, 16]


def test_a_run_that_takes_longer_than_ever_makes_the_rest_unsure(past: Past) -> None:
    past.took(A, 10)
    past.queue(NewJob(A, 2))
    past.start(NOW - 60)
    assert [finish for _, finish in past.starts().values()] == [0, 10]
    assert past.look().sentence(NOW).startswith("at least 10 s")
    assert [finish for _, finish in past.starts(left_s={"2.1": 5}).values()] == [5, 15]  # at its own pace
    assert past.look(left_s={"2.1": 5}).sentence(NOW).startswith("about 15 s")


def test_each_running_run_has_its_own_pace(past: Past) -> None:
    past.took(A, 100)
    past.queue(NewJob(A), NewJob(A))
    with read.reading(past.layout.db) as connection:
        running = [replace(run, state="RUNNING", started_at=NOW - 200) for run in run_view.queue(connection)]
        turns = eta.estimate(connection, running, NOW, left_s={"2.1": 5, "3.1": 50}).turns
    assert {name: turn.finish_at for name, turn in turns.items()} == {"2.1": NOW + 5, "3.1": NOW + 50}


def test_status_knows_the_pace_of_the_second_running_run(past: Past) -> None:
    """`why` knew it, and named another time than `status` for the runs behind it."""
    past.took(A, 100)
    past.queue(NewJob(A), NewJob(A))
    with writing(past.engine) as connection:
        for run_id, lane in ((2, "cpu:0"), (3, "cpu:1")):
            assert jobs.claimed(connection, run_id, lane, "ab" * 16, "boot", NOW)
            results.mark_started(connection, run_id, time.time() - 200)
            measured = [Iter(30 + n, float(n), n, 1.0, synced=True) for n in range(5)]
            events = [Hello(0, 0.0, planned_iters=10), Phase(10, 0.0, "measure", "begin"), *measured]
            results.save_events(connection, run_id, events)
    turns = queue_status.read_status(past.layout).eta.turns
    assert {run: turn.expected.basis for run, turn in turns.items()} == {"2.1": history.PACE, "3.1": history.PACE}


def test_its_own_pace_counts_more_than_similar_runs(past: Past) -> None:
    past.took(replace(A, params={**A.params, "batch_size": 4}), 10)
    past.queue(NewJob(A))
    past.start(NOW - 4)
    assert past.look().turns["2.1"].expected.basis == history.ALIKE
    assert [finish for _, finish in past.starts(left_s={"2.1": 60}).values()] == [60]


def test_what_is_suspended_has_as_much_left_as_before_and_is_not_sure(past: Past) -> None:
    past.took(A, 10)
    past.queue(NewJob(A, 2))
    run = past.start(NOW - 9)

    def happened(verb: str, at: float) -> None:
        with writing(past.engine) as connection:
            values = {"at": at, "job_id": run.id.job, "run_id": run.run_id, "actor": "me", "verb": verb}
            connection.execute(insert(job_events).values(**values))
            paused_at = at if verb == "suspend" else None
            connection.execute(update(runs).where(runs.c.id == run.run_id).values(paused_at=paused_at))

    happened("suspend", NOW - 7)
    assert [finish for _, finish in past.starts().values()] == [8, 18]
    assert past.look().sentence(NOW).startswith("at least 18 s")
    happened("continue", NOW - 2)
    assert [finish for _, finish in past.starts().values()] == [6, 16]
    assert past.look().sentence(NOW).startswith("about 16 s")


def test_time_order_and_dependencies(past: Past) -> None:
    past.took(A, 10)
    late, first, dependent = past.queue(
        NewJob(A, terms=Terms(not_before_at=NOW + 25)),
        NewJob(A),
        NewJob(A, terms=Terms(priority=-1)),
    )
    held, behind, on_failure, overdue = past.queue(
        NewJob(A, terms=Terms(hold=True)), NewJob(A), NewJob(A), NewJob(A, terms=Terms(deadline_at=NOW + 5))
    )
    with writing(past.engine) as connection:
        ok = Condition.OK
        jobs.add_dependencies(
            connection, [(dependent, late, ok), (behind, held, ok), (on_failure, first, Condition.FAIL)]
        )
    assert past.starts() == {
        f"{first}.1": (0, 10),
        f"{late}.1": (25, 35),
        f"{dependent}.1": (35, 45),
        f"{held}.1": (None, None),
        f"{behind}.1": (None, None),
        f"{on_failure}.1": (None, None),
        f"{overdue}.1": (None, None),
    }
    assert past.look().left_s == 45


def test_a_queue_of_thousands_is_estimated_fast(past: Past) -> None:
    past.took(A, 10)
    ids = past.queue(*[NewJob(A, 10)] * 200)
    with writing(past.engine) as connection:
        jobs.add_dependencies(connection, [(job, ids[0], Condition.ANY) for job in ids[1:]])
    begin = time.process_time()
    assert past.look().left_s == 20_000
    assert time.process_time() - begin < 5.0  # 0.1 s on an idle machine; a quadratic walk takes minutes


def test_a_plan_is_summed(past: Past) -> None:
    past.took(A, 10)
    past.layout.config.write_text("cooldown_s = 1\n")
    new = (NewJob(A, 4), NewJob(B, 2), NewJob(replace(A, seed=7), 1))
    found = forecast(past.layout, Plan("a plan", 0, new))
    assert (found.total_s, found.unknown, found.alike) == (56.0, 2, 1)


@pytest.mark.parametrize(("before", "gate_s"), [((), 1.0), ((2.0,), 1.0), ((5.0,), 5.0)])
def test_a_first_question_waits_as_little_as_a_short_one(past: Past, before: tuple[float, ...], gate_s: float) -> None:
    past.took(A, *before)
    gated = Plan("a plan", 0, (NewJob(A.changed(gate=True), 3),))
    watched = with_short_gate(past.layout, gated)
    assert watched.jobs[0].spec.gate_s == gate_s
    longer = replace(watched, jobs=(NewJob(A.changed(gate=True, gate_s=60.0)),))
    assert with_short_gate(past.layout, longer) == longer


def test_status_and_why_say_it(past: Past, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    mpsq = Cli(capsys)
    past.took(A, 3600)
    past.queue(NewJob(A, 2), NewJob(B, terms=Terms(hold=True)))
    assert "about 2 h 00 min once" in mpsq.ok("status").out
    state = mpsq.ok("status", "--json").json()["eta"]
    assert [turn["basis"] for turn in state["turns"]] == ["same", "same", None]
    monkeypatch.setattr("queue_runner.host.locks.worker", lambda _: (True, 1))
    out = mpsq.ok("status").out
    assert "about 2 h 00 min, at " in out and " now" in out and max(map(len, out.splitlines())) <= 80
    past.start(time.time())
    why = mpsq.ok("why", "2.2").out
    assert "is before it" in why and "about 1 h 00 min, at " in why
