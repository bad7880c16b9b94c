"""Changes to jobs, and to the order of waiting runs. Each is one transaction and reports the actual result."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import asdict

from queue_runner import times
from queue_runner.analysis.stats import by_key
from queue_runner.control.pausing import Changed
from queue_runner.errors import UsageError
from queue_runner.host import wakeup
from queue_runner.model import Outcome, Selector, State
from queue_runner.paths import Layout
from queue_runner.store import added_rounds, resolve
from queue_runner.store.engine import open_engine, writing
from queue_runner.store.resolve import NamedRun
from queue_runner.submit import policy

if TYPE_CHECKING:
    from queue_runner.store.editing import Where

_NOT_WAITING = {State.RUNNING: "is running", State.DONE: "has ended"}


class Edit(Struct, frozen=True):
    """Requested changes; None leaves a value unchanged. `after`, `at`, `deadline` and `timeout` may be empty to remove
    the value."""

    priority: int | None = None
    after: Sequence[str] | None = None
    at: str | None = None
    deadline: str | None = None
    note: str | None = None
    tags: Sequence[str] = ()
    untags: Sequence[str] = ()
    retries: int | None = None
    name: str | None = None
    timeout: str | None = None


def move(
    layout: Layout,
    selectors: Sequence[Selector],
    where: Where,
    others: Sequence[Selector] = (),
    *,
    actor: str = "user",
) -> list[Changed]:
    """Move waiting runs to an end of the queue, or next to others.

    Raises: UsageError (no match; the others do not wait, or are the moved ones), MpsqError (store).
    """
    from queue_runner.store import editing  # it imports SQLAlchemy

    with writing(open_engine(layout.db)) as connection:
        rows = resolve.runs_of(connection, selectors)
        chosen = {row.id for row in rows if row.state in editing.WAITING}
        neighbours = resolve.runs_of(connection, others) if others else []
        anchors = {row.id for row in neighbours if row.state in editing.WAITING}
        if others and not anchors:
            raise UsageError(
                f"{others[0].text} has no waiting run", "name a job that waits (mpsq status lists them), or use --top"
            )
        if anchors & chosen:
            raise UsageError("a run cannot be moved next to itself", "choose another run")
        editing.move(connection, chosen, where, anchors, actor=actor)
    wakeup.ring(layout.fifo)
    done = f"is moved {where}" + (f" {', '.join(other.text for other in others)}" if others else "")
    return [Changed(row.run, row.id in chosen, _moved(row, done)) for row in rows]


def _moved(row: NamedRun, done: str) -> str:
    if row.state == State.HELD:
        return f"{done}, but is held: mpsq resume {row.job_id} releases it"
    return _NOT_WAITING.get(State(row.state), done)


def edit(
    layout: Layout, selectors: Sequence[Selector], change: Edit, note: Callable[[str], None] = lambda _: None
) -> list[int]:
    """Change jobs. Returns their ids. `note` gets a sentence on those that stay as they are, since the change has no
    effect on them.

    Raises: UsageError (no match, a cycle of dependencies, a deadline before its start, no effect on any job, or on one
    that was named by its id).
    """
    from queue_runner.store import editing  # it imports SQLAlchemy

    now = time.time()
    columns = _columns(change, now)
    summary = _summary(change)
    at = times.parse_time(change.at, now) if change.at else None
    after = [policy.dependency(text) for text in change.after or ()]
    timeout_s = policy.timeout_of(change.timeout or "")
    tags = [policy.check_tag(tag) for tag in change.tags]
    with writing(open_engine(layout.db)) as connection:
        rows = resolve.runs_of(connection, selectors)
        jobs = sorted({row.job_id for row in rows})
        open_jobs = {job for group in added_rounds.open_jobs(connection).values() for job in group}
        in_vain = _in_vain(resolve.siblings(connection, rows), change, open_jobs)
        by_id = in_vain.keys() & {selector.job for selector in selectors}
        if by_id or in_vain.keys() == {*jobs}:
            raise in_vain[min(by_id or in_vain)]
        jobs = [job for job in jobs if job not in in_vain]
        others = resolve.dependencies(connection, after)
        for job in jobs:
            editing.edit(connection, job, "user", summary, **columns)
            if change.at is not None:
                editing.set_time(connection, job, at)
            if change.after is not None:
                editing.set_dependencies(connection, job, others)
            if change.timeout is not None:
                editing.set_timeout(connection, job, timeout_s)
            if tags or change.untags:
                editing.set_tags(connection, job, tags, change.untags)
            if (change.at or change.deadline) and editing.is_too_late(connection, job):
                raise UsageError(f"job {job} would never run: --deadline is not after --at", "give a later --deadline")
    wakeup.ring(layout.fifo)
    if in_vain:
        note(f"these jobs have ended or started, and stay as they are: {', '.join(map(str, sorted(in_vain)))}")
    return jobs


def _summary(change: Edit) -> str:
    """Return the requested changes for the history: `priority 3; no deadline; after 2 4:any`."""
    parts = []
    for name, value in asdict(change).items():
        if value is None or (name in ("tags", "untags") and not value):
            continue
        text = " ".join(value) if isinstance(value, tuple) else str(value)
        parts.append(f"{name} {text}" if text else f"no {name}")
    return "; ".join(parts)


def _columns(change: Edit, now: float) -> dict[str, str | int | float | None]:
    """Return the columns of jobs that change."""
    columns: dict[str, str | int | float | None] = {}
    if change.priority is not None:
        columns["priority"] = policy.check_priority(change.priority)
    if change.deadline is not None:
        columns["deadline_at"] = times.parse_time(change.deadline, now, "--deadline") if change.deadline else None
    if change.note is not None:
        columns["note"] = policy.check_note(change.note)
    if change.name is not None:
        columns["name"] = policy.check_name(change.name)
    if change.retries is not None:
        columns["retries"] = policy.check_retries(change.retries)
    return columns


def _in_vain(rows: Sequence[NamedRun], change: Edit, open_jobs: set[int]) -> dict[int, UsageError]:
    """Return by job why a change has no effect: a job that has ended can only get a name, a note and tags, and one that
    runs no other time. `rows` are all runs of the jobs; further rounds of `open_jobs` follow."""
    words = ("priority", "after", "at", "deadline", "retries", "timeout")
    option = next((word for word in words if getattr(change, word) is not None), None)
    if option is None:
        return {}
    start = next((word for word in ("at", "after", "deadline") if getattr(change, word) is not None), None)
    errors = {}
    for job, runs in by_key(rows, lambda row: row.job_id).items():
        states = {row.state for row in runs}
        has_started = not states <= {State.QUEUED, State.HELD}
        if change.timeout is not None and (has_started or any(row.is_sent for row in runs)):
            fact = "has started" if has_started else "was sent to its machine"
            again = f"mpsq rerun {job} --timeout {shlex.quote(change.timeout)} queues it again with that limit"
            remedy = _another_run(job, runs) if runs[0].kind == "import" else again
            errors[job] = UsageError(f"job {job} {fact}: --timeout has no effect on it", remedy)
            continue
        if states == {State.DONE}:
            if option == "at" or job not in open_jobs:
                message = f"job {job} has ended: --{option} has no effect on it"
                errors[job] = UsageError(message, _another_run(job, runs))
        elif start is not None and states <= {State.RUNNING, State.DONE} and not (job in open_jobs or runs[0].retries):
            again = f"mpsq cancel {job} ends it; mpsq rerun {job} queues it again"
            errors[job] = UsageError(f"job {job} has started: --{start} has no effect on it", again)
    return errors


def _another_run(job: int, runs: Sequence[NamedRun]) -> str:
    """Return how a job that has ended runs again."""
    if runs[0].kind == "import":
        return "it was imported: only its name, notes and tags can be changed"
    last = {row.repeat: row for row in sorted(runs, key=lambda row: row.attempt)}.values()
    is_late = runs[0].deadline_at is not None and runs[0].deadline_at <= time.time()
    no_retry = all(row.outcome in (Outcome.SUCCEEDED, Outcome.SKIPPED) for row in last) or is_late or runs[0].deleted_at
    return f"mpsq {'rerun' if no_retry else 'retry'} {job} runs it again"
