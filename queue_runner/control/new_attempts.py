"""Retry: new runs of the same jobs, with the original code; the records of the old runs are kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Mapping, Sequence

from msgspec import Struct

from queue_runner import config_file
from queue_runner.control import checkpoints
from queue_runner.errors import MpsqError, UsageError
from queue_runner.host import failpoints, job_environments, job_secrets, wakeup
from queue_runner.model import PREFLIGHT, Outcome, Selector, State
from queue_runner.paths import Layout
from queue_runner.source import verify
from queue_runner.spec import JobSpec
from queue_runner.store import ready, resolve, retries
from queue_runner.store.engine import Connection, looking, open_engine, writing
from queue_runner.store.resolve import NamedRun


class Retried(Struct, frozen=True):
    """`old`, to be retried as `new` (12.3)."""

    old: str
    new: str


def retry(
    layout: Layout,
    selectors: Sequence[Selector],
    *,
    succeeded_too: bool = False,
    resumed: bool = False,
    note: Callable[[str], None] = lambda _: None,
    actor: str = "user",
) -> list[Retried]:
    """Queue another attempt for the last attempt of each selected repeat that did not succeed.

    `succeeded_too`: also of those that did. `resumed`: each resumes from the last checkpoint of the run before. `note`
    gets a sentence for each job that will not run, since its code is gone, or that will run in a copy of its code.

    Raises: UsageError when nothing can be retried, every retry would be skipped at once, the code of every job is gone,
    or a run left no checkpoint, with the reason; MpsqError when a secret of a job is gone.
    """
    engine = open_engine(layout.db)
    with looking(engine) as connection:
        chosen = _selected(connection, selectors, succeeded_too)
        specs = resolve.specs(connection, {row.job_id for row in chosen})
    looks = _looks(layout, specs)  # reads the trees: not while holding the write lock
    gone = {job: ending.reason for job, code in looks.items() if (ending := code.refusal)}
    if gone.keys() == specs.keys():
        job = min(gone)
        hint = f"mpsq rerun {job} --snapshot off runs the current code"
        raise UsageError(f"job {job} would not run: {gone[job]}", hint)
    _refuse_without_secrets(layout, specs)  # reads files: likewise
    with writing(engine) as connection:
        chosen = _selected(connection, selectors, succeeded_too)
        retried = []
        for row in chosen:
            origin = checkpoints.find(connection, layout, row.id) if resumed else None
            reason = f"to resume from the checkpoint of run {origin.run}" if origin else "the user requested it"
            origin_id = origin.run_id if origin else None
            new = retries.again(connection, row.id, actor=actor, reason=reason, resumed_from=origin_id)
            retried.append(Retried(row.run, str(new)))
        _refuse_in_vain(connection, chosen)
        failpoints.reach("retry.before_commit")
    failpoints.reach("retry.committed")
    wakeup.ring(layout.fifo)
    for job, why in gone.items():
        note(f"job {job} will not run unless its code is restored: {why}")
    for job, code in looks.items():
        if code.note:
            where = f"in a copy of the code as submitted, because {code.note}"
            note(f"job {job} will run {where}; mpsq rerun {job} --snapshot off runs the current code")
    return retried


def _selected(connection: Connection, selectors: Sequence[Selector], succeeded_too: bool) -> list[NamedRun]:
    """Return the runs to retry, in their order. Raises: UsageError when there are none."""
    rows = resolve.runs_of(connection, selectors)
    siblings = sorted(resolve.siblings(connection, rows), key=lambda row: row.attempt)
    last = list({(row.job_id, row.repeat): row for row in siblings}.values())
    jobs = {selector.job for selector in selectors}
    # ids follow the seeded order of a grid, numbers do not
    chosen = sorted((row for row in last if _is_meant(row, rows, succeeded_too, jobs)), key=lambda row: row.id)
    if not chosen:
        raise _nothing(rows, last, any(selector.number is not None for selector in selectors))
    return chosen


def _looks(layout: Layout, specs: Mapping[int, JobSpec]) -> dict[int, verify.StartCode]:
    """Return by job where the worker would start its runs; each tree is read once."""
    not_code = config_file.load(layout.config).not_code
    by_code: dict[tuple[object, ...], verify.StartCode] = {}
    looks = {}
    for job, spec in specs.items():
        code = (spec.kind, spec.snapshot, spec.script, spec.root, spec.tree, spec.copy, spec.allow_changed)
        if code not in by_code:
            by_code[code] = verify.look(layout.snapshots, spec, not_code)
        looks[job] = by_code[code]
    return looks


def _refuse_without_secrets(layout: Layout, specs: Mapping[int, JobSpec]) -> None:
    for job, spec in specs.items():
        try:
            job_environments.check(layout, spec)
        except job_secrets.Missing as error:
            raise MpsqError(f"job {job} cannot be retried: {error.message}", error.hint) from error


def _refuse_in_vain(connection: Connection, chosen: Sequence[NamedRun]) -> None:
    """Refuse if all would be skipped: past deadlines and failed dependencies still apply and cannot be edited."""
    jobs = {row.job_id for row in chosen}
    job_of = {row.id: row.job_id for row in resolve.siblings(connection, chosen)}
    skipped = {
        job_of[id]: end for id, end in ready.unsatisfiable(connection, time.time(), sorted(jobs)) if id in job_of
    }
    if set(skipped) == jobs:
        job = min(jobs)
        kind, _, why = skipped[job].reason.partition(": ")
        without = "the deadline" if kind == "deadline" else "dependencies"
        raise UsageError(f"job {job} would be skipped at once: {why}", f"mpsq rerun {job} runs it without {without}")


def _is_meant(row: NamedRun, named: Sequence[NamedRun], succeeded_too: bool, jobs: Container[int | None]) -> bool:
    """Return whether this last attempt has ended, belongs to a selected repeat, and is to be retried.

    A probe of --find-max that ran out of memory counts as answered: it is retried only if its job is named (`jobs`).
    """
    if row.state != State.DONE or row.kind == "import" or row.deleted_at is not None:
        return False
    is_named = any((run.job_id, run.repeat) == (row.job_id, row.repeat) for run in named)
    answered = row.outcome == Outcome.SUCCEEDED or (
        row.outcome == Outcome.OUT_OF_MEMORY and row.find_max and row.job_id not in jobs
    )
    return is_named and (succeeded_too or not answered)


def _nothing(rows: Sequence[NamedRun], last: Sequence[NamedRun], named: bool) -> UsageError:
    if all(row.kind == "import" for row in rows):
        return UsageError("an imported run cannot be run again here", "submit the workload or the command itself")
    if all(row.deleted_at is not None for row in rows):
        return UsageError("a deleted job cannot be retried", f"mpsq rerun {rows[0].job_id} queues it as a new job")
    if any(row.state != State.DONE for row in rows):
        return UsageError("no run has failed yet; some still wait or run", "mpsq status shows them")
    repeats = {(row.job_id, row.repeat) for row in rows}
    coming = [row for row in last if (row.job_id, row.repeat) in repeats and row.state != State.DONE]
    if coming:
        new = coming[0]
        old = next(row.run for row in rows if (row.job_id, row.repeat) == (new.job_id, new.repeat))
        return UsageError(f"run {old} is already being retried, as run {new.run}", "mpsq status shows it")
    named = named and len({(row.job_id, row.repeat) for row in rows}) == 1
    anyway = f"--all retries {'it' if named else 'them'} anyway; mpsq rerun creates a new job"
    successes = {(row.job_id, row.repeat): row for row in last if row.outcome == Outcome.SUCCEEDED}
    for row in rows:
        new = successes.get((row.job_id, row.repeat), row)
        if row.outcome != Outcome.SUCCEEDED and new is not row and row.number != PREFLIGHT:
            return UsageError(f"run {row.run} was retried already: run {new.run} succeeded", anyway)
    what = "that run" if named else "every selected run"
    return UsageError(f"{what} succeeded: nothing failed", anyway)
