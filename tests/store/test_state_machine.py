"""Everything a user and a worker can do to a queue, in any order, against a model of the state machine (Hypothesis)."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, precondition, rule

from queue_runner.control import changes, new_attempts, pausing
from queue_runner.errors import MpsqError, UsageError
from queue_runner.model import Condition, Ending, Outcome, Selector, State, Verb
from queue_runner.monitor import run_view
from queue_runner.paths import Layout
from queue_runner.spec import JobSpec, NewJob, Terms
from queue_runner.store import editing, jobs, lane_claims, read, ready, retries
from queue_runner.store.engine import looking, open_engine, writing
from tests import named_rows
from tests.cli_support import empty_queue
from tests.store_support import claim_next

pytestmark = pytest.mark.process

SPEC = JobSpec(kind="command", name="true", argv=("/usr/bin/true",), cwd="/")
ENDINGS = {
    "ok": Ending(Outcome.SUCCEEDED, 0),
    "failed": Ending(Outcome.FAILED, 1),
    "lost": Ending(Outcome.LOST, reason="reboot: it went down"),
}
LONG = os.environ.get("MPSQ_CAMPAIGN") == "long"


@dataclass
class Run:
    job: int
    repeat: int
    attempt: int
    state: State = State.QUEUED
    outcome: Outcome | None = None


@dataclass
class Job:
    """What the model knows of a job. `after` maps jobs to conditions."""

    priority: int
    retries: int
    after: dict[int, Condition] = field(default_factory=dict)


class Queue(RuleBasedStateMachine):
    """`runs` maps 12.3 to what it must be, `places` lists what waits, in its order within one priority."""

    named = Bundle("named")

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="mpsq-test-"))
        self.layout: Layout = empty_queue(self.folder / "home")
        self.engine = open_engine(self.layout.db, keep_open=True)
        self.jobs: dict[int, Job] = {}
        self.runs: dict[str, Run] = {}
        self.places: list[str] = []
        self.paused = False

    def teardown(self) -> None:
        self.engine.dispose()
        shutil.rmtree(self.folder)

    # -- the model -------------------------------------------------------------------------------------------------

    def queued(self) -> list[str]:
        return sorted(self.places, key=lambda run: -self.jobs[self.runs[run].job].priority)

    def of(self, job: int) -> list[str]:
        return [name for name, run in self.runs.items() if run.job == job]

    def last(self, job: int) -> list[str]:
        best: dict[int, str] = {}
        for name in self.of(job):
            run = self.runs[name]
            if run.repeat not in best or run.attempt > self.runs[best[run.repeat]].attempt:
                best[run.repeat] = name
        return list(best.values())

    def met(self, job: int) -> bool | None:
        """Whether all that it waits for has happened; None: it never will; False: not yet."""
        found: bool | None = True
        for on, condition in self.jobs[job].after.items():
            if any(self.runs[name].state is not State.DONE for name in self.of(on)):
                found = found and False
                continue
            ok = all(self.runs[name].outcome is Outcome.SUCCEEDED for name in self.last(on))
            if condition is not Condition.ANY and ok is not (condition is Condition.OK):
                return None
        return found

    def end(self, name: str, outcome: Outcome) -> None:
        self.runs[name].state, self.runs[name].outcome = State.DONE, outcome
        if name in self.places:
            self.places.remove(name)

    def again(self, name: str, first: bool) -> str:
        old = self.runs[name]
        new = f"{old.job}.{len(self.of(old.job)) + 1}"
        attempt = 1 + max(self.runs[n].attempt for n in self.of(old.job) if self.runs[n].repeat == old.repeat)
        self.runs[new] = Run(old.job, old.repeat, attempt)
        self.places.insert(0 if first else len(self.places), new)
        return new

    def running(self) -> str | None:
        return next((name for name, run in self.runs.items() if run.state is State.RUNNING), None)

    # -- what is done ----------------------------------------------------------------------------------------------

    @rule(
        target=named,
        repeats=st.integers(1, 3),
        priority=st.integers(-1, 1),
        hold=st.booleans(),
        retries=st.integers(0, 1),
        after=st.lists(
            st.tuples(st.integers(1, 8), st.sampled_from(list(Condition))), max_size=2, unique_by=lambda p: p[0]
        ),
    )
    def submit(self, repeats: int, priority: int, hold: bool, retries: int, after: list[tuple[int, Condition]]) -> int:
        after = [(on, condition) for on, condition in after if on in self.jobs]
        terms = Terms(priority=priority, hold=hold, retries=retries, after=tuple(after))
        turns = [(0, repeat) for repeat in range(1, repeats + 1)]
        with writing(self.engine) as connection:
            (job,) = jobs.submit(connection, "test", 0, [NewJob(SPEC, repeats, terms)], turns)[1]
        self.jobs[job] = Job(priority, retries, dict(after))
        for repeat in range(1, repeats + 1):
            self.runs[f"{job}.{repeat}"] = Run(job, repeat, 1, State.HELD if hold else State.QUEUED)
            self.places.append(f"{job}.{repeat}")
        return job

    @rule(job=named)
    def hold(self, job: int) -> None:
        pausing.pause(self.layout, [Selector(str(job), job=job)])
        for name in self.of(job):
            if self.runs[name].state is State.QUEUED:
                self.runs[name].state = State.HELD

    @rule(job=named)
    def release(self, job: int) -> None:
        pausing.resume(self.layout, [Selector(str(job), job=job)])
        for name in self.of(job):
            if self.runs[name].state is State.HELD:
                self.runs[name].state = State.QUEUED

    @rule(job=named)
    def cancel(self, job: int) -> None:
        with looking(self.engine) as connection:
            rows = connection.column("SELECT id FROM runs WHERE job_id = ?", (job,))
        with writing(self.engine) as connection:
            jobs.request_cancel(connection, rows, "user")
        for name in self.of(job):
            if self.runs[name].state in (State.HELD, State.QUEUED):
                self.end(name, Outcome.CANCELLED)

    @rule(job=named, other=named, where=st.sampled_from(editing.Where))
    def move(self, job: int, other: int, where: editing.Where) -> None:
        others = [Selector(str(other), job=other)] if where is editing.Where.BEFORE else []
        moved = [name for name in self.queued() if self.runs[name].job == job]
        rest = [name for name in self.queued() if self.runs[name].job != job]
        anchors = [place for place, name in enumerate(rest) if self.runs[name].job == other]
        if others and (job == other or not anchors):
            with pytest.raises(UsageError):
                changes.move(self.layout, [Selector(str(job), job=job)], where, others)
            return
        changes.move(self.layout, [Selector(str(job), job=job)], where, others)
        if not moved:
            return
        at = {
            editing.Where.TOP: 0,
            editing.Where.BOTTOM: len(rest),
            editing.Where.BEFORE: min(anchors, default=0),
        }[where]
        self.places = [*rest[:at], *moved, *rest[at:]]
        before = self.jobs[self.runs[rest[at - 1]].job].priority if at > 0 else None
        after = self.jobs[self.runs[rest[at]].job].priority if at < len(rest) else None
        own = self.jobs[job]
        if (before is not None and own.priority > before) or (after is not None and own.priority < after):
            up = after if where in (editing.Where.TOP, editing.Where.BEFORE) else before
            assert up is not None
            own.priority = up

    @rule(job=named, priority=st.integers(-1, 1))
    def edit(self, job: int, priority: int) -> None:
        if all(self.runs[name].state is State.DONE for name in self.of(job)):
            with pytest.raises(UsageError):
                changes.edit(self.layout, [Selector(str(job), job=job)], changes.Edit(priority=priority))
            return
        changes.edit(self.layout, [Selector(str(job), job=job)], changes.Edit(priority=priority))
        self.jobs[job].priority = priority

    @rule(job=named)
    def retry(self, job: int) -> None:
        again = [
            name
            for name in self.last(job)
            if self.runs[name].state is State.DONE and self.runs[name].outcome is not Outcome.SUCCEEDED
        ]
        if not again or self.met(job) is None:  # nothing to try, or only to be skipped at once
            with pytest.raises(MpsqError):
                new_attempts.retry(self.layout, [Selector(str(job), job=job)])
            return
        found = new_attempts.retry(self.layout, [Selector(str(job), job=job)])
        assert {one.old: one.new for one in found} == {
            name: self.again(name, first=False) for name in sorted(again, key=list(self.runs).index)
        }

    @rule(on=st.booleans())
    def pause(self, on: bool) -> None:
        with writing(self.engine) as connection:
            lane_claims.pause(connection, "machine", "test" if on else None)
        self.paused = on

    @rule()
    def skip(self) -> None:
        """What a worker does before it claims."""
        while True:
            with writing(self.engine) as connection:
                late = ready.unsatisfiable(connection, 0.0)
                for run_id, ending in late:
                    jobs.move(connection, run_id, Verb.SKIP, actor="test", ending=ending)
            gone = [name for name in self.places if self.met(self.runs[name].job) is None]
            assert len(late) == len(gone)
            for name in gone:
                self.end(name, Outcome.SKIPPED)
            if not late:
                return

    @precondition(lambda self: self.running() is None)
    @rule()
    def claim(self) -> None:
        with writing(self.engine) as connection:
            run = claim_next(connection, now=1.0)
        free = [name for name in self.queued() if self.runs[name].state is State.QUEUED]
        ready = [name for name in free if self.met(self.runs[name].job)]
        wanted = ready[0] if ready and not self.paused else None
        assert (str(run.id) if run else None) == wanted
        if wanted is not None:
            self.runs[wanted].state = State.RUNNING
            self.places.remove(wanted)

    @precondition(lambda self: self.running() is not None)
    @rule(how=st.sampled_from(sorted(ENDINGS)))
    def finish(self, how: str) -> None:
        name = self.running()
        assert name is not None
        with writing(self.engine) as connection:
            run = jobs.running(connection, "machine")
            assert run is not None and str(run.id) == name
            asked = jobs.cancel_requested(connection, run.run_id)
            jobs.move(connection, run.run_id, Verb.FINISH, actor="test", ending=ENDINGS[how])
            retries.retry_as_agreed(connection, run.run_id, ENDINGS[how], 0.0)
        self.end(name, ENDINGS[how].outcome)
        if how == "failed" and not asked and self.runs[name].attempt <= self.jobs[self.runs[name].job].retries:
            self.again(name, first=True)

    # -- what always holds -----------------------------------------------------------------------------------------

    @invariant()
    def the_store_is_the_model(self) -> None:
        with read.reading(self.layout.db) as connection:
            rows = named_rows.runs(connection)
            shown = [run.run for run in run_view.queue(connection) if run.state == State.QUEUED]
        assert {row["run"]: (row["state"], row["outcome"]) for row in rows} == {
            name: (run.state, run.outcome) for name, run in self.runs.items()
        }
        assert shown == [name for name in self.queued() if self.runs[name].state is State.QUEUED]


TestQueue = Queue.TestCase
TestQueue.settings = settings(
    max_examples=200 if LONG else 5,
    stateful_step_count=60 if LONG else 25,
    deadline=None,
    derandomize=not LONG,
    suppress_health_check=list(HealthCheck),
)
