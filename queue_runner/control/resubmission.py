"""Rerun: ask a job's question once more, with exactly the code that it ran, as a new job in a new group, or by further
rounds of the same group. And what `rerun --missing` queues, with today's code."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from queue_runner import config_file, extensions
from queue_runner.errors import MpsqError, UsageError
from queue_runner.host import failpoints, job_environments, job_secrets, locks, redact, wakeup
from queue_runner.model import Selector
from queue_runner.monitor import run_view
from queue_runner.monitor.run_view import RunView
from queue_runner.paths import Layout
from queue_runner.source import snapshot, verify
from queue_runner.source.snapshot import Snapshot
from queue_runner.source.verify import StartCode
from queue_runner.spec import JobSpec, NewJob, Terms, more_rounds
from queue_runner.store import added_rounds, jobs, read, resolve
from queue_runner.store.added_rounds import RoundJob
from queue_runner.store.engine import looking, open_engine, writing
from queue_runner.submit import policy, run_order
from queue_runner.submit.plan import Plan, Submitted, drawn
from queue_runner.workloads import mps_switches, venvs


class RerunOptions(Struct, frozen=True):
    """Possible differences from the old job; None leaves a value unchanged."""

    repeats: int | None = None
    hold: bool = False
    snapshot: str | None = None
    timeout: str | None = None


def rerun(layout: Layout, selectors: Sequence[Selector], options: RerunOptions, title: str) -> Submitted:
    """Queue every selected job once more; all of them or none.

    Raises: UsageError (no match, an import), MpsqError when the code of one is no longer available.
    """
    if options.repeats is not None and options.repeats < 1:
        raise UsageError(f"--repeats {options.repeats} would run nothing", "give 1 or more")
    policy.timeout_of(options.timeout or "")
    with read.reading(layout.db):
        pass  # reports a missing queue
    with locks.share(layout.snapshots_lock):  # keep snapshots until the new jobs refer to them
        return _rerun(layout, selectors, options, title)


def add_rounds(layout: Layout, selectors: Sequence[Selector], count: int) -> Submitted:
    """Queue this many further rounds of a submission, all of its jobs. Nothing else of it changes.

    Raises: UsageError (not one whole submission, or one that can have no rounds), MpsqError when a job's code or
    environment is no longer as it was.
    """
    if count < 1:
        raise UsageError(f"--rounds {count} would run nothing", "give 1 or more")
    if len(selectors) != 1 or (selectors[0].group is None and not selectors[0].last):
        raise UsageError("--rounds needs one whole group", f"for example {more_rounds(4)}")
    with read.reading(layout.db):
        pass  # reports a missing queue
    engine = open_engine(layout.db)
    with locks.share(layout.snapshots_lock):
        with looking(engine) as connection:
            job_ids = resolve.job_ids(connection, selectors[0])
            group = connection.value("SELECT group_id FROM jobs WHERE id = ?", [job_ids[0]])
            jobs = added_rounds.jobs_of(connection, group)
            specs = resolve.specs(connection, job_ids)
        _refuse_rounds(jobs, count)
        checked = {job: _refuse_changed(layout, job, spec) for job, spec in specs.items()}  # reads the trees
        with writing(engine) as connection:
            _refuse_rounds(added_rounds.jobs_of(connection, group), count)  # one may have been deleted meanwhile
            for job, (spec, _) in checked.items():
                if spec is not None:
                    added_rounds.renew_environment(connection, job, job_environments.save(layout, spec.env))
            runs = added_rounds.add(connection, group, count, run_order.round_order, "user")
            failpoints.reach("submit.before_commit")
    failpoints.reach("submit.committed")
    wakeup.ring(layout.fifo)
    notes = dict.fromkeys(note for _, note in checked.values() if note)
    return Submitted(group, tuple(job.id for job in jobs), tuple(map(str, runs)), tuple(notes))


def _refuse_rounds(jobs: Sequence[RoundJob], count: int) -> None:
    if (total := len(jobs) * count) > run_order.MAX_RUNS:
        raise UsageError(f"{total:,} runs are too many", f"at most {run_order.MAX_RUNS:,} can be added at once")
    for job in jobs:
        if obstacle := job.obstacle(time.time()):
            raise UsageError(f"job {job.id} {obstacle[0]}", obstacle[1])


def _refuse_changed(layout: Layout, job: int, spec: JobSpec) -> tuple[JobSpec | None, str]:
    """Refuse further rounds of a job that would not run as its earlier ones did. Return it with today's environment if
    its own is no longer stored: the queue forgets it once nothing of the job waits or may be retried. Return also a
    sentence if its runs will use a copy of its code.

    Today's is the same where all variables of the fingerprint have their old values.
    """
    what = f"job {job} can have no further rounds"
    hint = f"mpsq rerun {job} queues it in a new group"
    code = verify.look(layout.snapshots, spec, config_file.load(layout.config).not_code)
    if code.refusal:
        raise MpsqError(f"{what}: {code.refusal.reason}", hint)
    new = None
    try:
        env = job_environments.load(layout, spec)
    except job_secrets.Missing:
        new = with_todays_environment(layout, spec, job)
        env = dict(new.env)
    today = job_environments.public(layout, env)
    for name in sorted({*today, *spec.env}):
        values = spec.env.get(name), today.get(name)
        if values[0] != values[1] and any(redact.is_public(name, value) for value in values if value is not None):
            raise MpsqError(f"{what}: {name} was {values[0] or 'unset'}, and is {values[1] or 'unset'} now", hint)
    try:
        job_environments.check(layout, spec, env)
    except job_secrets.Missing as error:
        raise MpsqError(f"{what}: {error.message}", error.hint) from error
    return new, _in_copy(code)


def _in_copy(code: StartCode) -> str:
    return f"runs will use a copy of the code first submitted, because {code.note}" if code.note else ""


_NO_CODE: dict[str, str | None] = {"snapshot": None, "tree": "", "code": "", "root": "", "inside": ""}


def _never_ran(job: int, spec: JobSpec) -> UsageError:
    how = "merged" if spec.merged else "imported"
    return UsageError(f"job {job} was {how}: it never ran here", "submit a job with the same settings")


def refuse_missing(selected: Sequence[RunView]) -> None:
    """Raise UsageError where only searches and imports are selected: neither can lack runs."""
    first = selected[0]
    if all(run.kind == "import" for run in selected):
        raise _never_ran(first.job_id, first.spec)
    if all(run.spec.find_max for run in selected):
        raise UsageError(
            f"job {first.job_id} is a search, which lacks no runs", f"mpsq rerun {first.job_id} repeats it"
        )


def missing(layout: Layout, repeats: Mapping[int, int], title: str) -> Plan:
    """Return a plan of so many repeats of these jobs, with today's code and environment.

    The place, the variables, the priority, the tags and the retries are those of the job; its start time and
    dependencies are dropped. Raises: MpsqError when the value of an --env is no longer known.
    """
    with read.reading(layout.db) as connection:
        olds = {run.job_id: run for run in run_view.select(connection, [Selector(str(job), job) for job in repeats])}
    new = []
    for job, count in repeats.items():
        old = olds[job]
        spec = with_todays_environment(layout, old.spec.changed(find_max="", **_NO_CODE), job)
        new.append(NewJob(spec, count, _terms(old, RerunOptions())))
    return Plan(title, drawn(None), tuple(new))


def code_changed(layout: Layout, before: Sequence[int], after: Sequence[int]) -> bool:
    """Return whether a job of `after` runs other code than its counterpart in `before`."""
    sql = "SELECT id, snapshot_hash FROM jobs WHERE id IN (SELECT value FROM json_each(?))"
    with read.reading(layout.db) as connection:
        code: dict[int, str | None] = dict(read.tuples(connection, sql, [json.dumps([*before, *after])]))
    return any(code[old] != code[new] for old, new in zip(before, after, strict=True))


def _rerun(layout: Layout, selectors: Sequence[Selector], options: RerunOptions, title: str) -> Submitted:
    with read.reading(layout.db) as connection:
        olds = [*{run.job_id: run for run in run_view.select(connection, selectors)}.values()]  # the last run of each
        named = {selector.job for selector in selectors}
        olds = [old for old in olds if old.deleted_at is None or old.job_id in named] or olds
        repeats: dict[int, int] = dict(read.tuples(connection, "SELECT job_id, max(repeat) FROM runs GROUP BY job_id"))
        seed: int = read.value(connection, "SELECT seed FROM groups WHERE id = ?", olds[0].group_id)
    not_code = config_file.load(layout.config).not_code
    new, notes, codes = [], [], []
    for old in olds:
        job_id = old.job_id
        spec, note, code = _code(layout, old, options.snapshot, not_code)
        codes += [code] if code else []
        try:
            job_environments.check(layout, spec, {})
        except job_secrets.Missing as error:
            raise MpsqError(f"job {job_id} cannot be rerun: {error.message}", error.hint) from error
        notes += [note] if note and note not in notes else []
        if options.timeout is not None:
            spec = spec.changed(timeout_s=policy.timeout_of(options.timeout))
        spec = with_todays_environment(layout, spec.changed(find_max=""), job_id)
        new.append(NewJob(spec, options.repeats or repeats[job_id], _terms(old, options)))
    rounds = max(job.repeats for job in new)
    if rounds * len(new) > run_order.MAX_RUNS:
        raise UsageError(
            f"{rounds * len(new):,} runs are too many", f"a group can have at most {run_order.MAX_RUNS:,} runs"
        )
    order = run_order.rounds([job.repeats for job in new], seed)
    with writing(open_engine(layout.db)) as connection:
        environments = job_environments.Saver(layout)
        new = [replace(job, spec=environments.stored(job.spec)) for job in new]
        for taken in codes:
            jobs.save_snapshot(connection, taken)
        group, ids = jobs.submit(connection, title, seed, new, order)
        added_rounds.copy_aim(connection, olds[0].group_id, group)
        failpoints.reach("submit.before_commit")
    failpoints.reach("submit.committed")
    wakeup.ring(layout.fifo)
    return Submitted(group, tuple(ids), tuple(f"{ids[index]}.{repeat}" for index, repeat in order), tuple(notes))


def _terms(old: RunView, options: RerunOptions) -> Terms:
    return Terms(
        priority=old.priority,
        tags=old.tags,
        note=old.note,
        hold=options.hold,
        retries=old.retries,
        backoff_s=old.backoff_s,
        retry_on=tuple(old.retry_on.split(",")) if old.retry_on else ("failed",),
        rerun_of=old.job_id,
    )


def with_todays_environment(layout: Layout, spec: JobSpec, job: int) -> JobSpec:
    """Return the question with the environment of this process, and with its own variables (--env, --env-name, --mps).

    Raises: MpsqError when the value of an --env is neither stored nor in this environment.
    """
    try:
        stored = job_environments.load(layout, spec)
    except job_secrets.Missing:
        stored = {}
    variables = {}
    for name, value in spec.variables.items():
        candidates = filter(None, (value, stored.get(name), os.environ.get(name)))
        same = [text for text in candidates if job_environments.public(layout, {name: text})[name] == value]
        if not same:
            raise MpsqError(
                f"job {job} cannot be rerun: the value of --env {name} is no longer stored",
                f"set {name} to the same value in this shell, or submit the job again",
            )
        variables[name] = same[0]
    env = redact.inherited(os.environ) | variables
    env |= {name: value for name, value in spec.env.items() if redact.PLACEHOLDER.search(value)}  # of --env, once
    if spec.env_name:
        env = venvs.find(layout, spec.env_name).activated(env)
    if spec.mps:
        env = mps_switches.environment(spec.mps, env)
    if spec.on:
        env = extensions.placement().sent_variables(env, variables, keeps_places="kind" not in spec.on)
    return spec.changed(env=env, variables=variables)


def _code(layout: Layout, old: RunView, mode: str | None, not_code: str) -> tuple[JobSpec, str, Snapshot | None]:
    """Return the question with its code, a sentence if its runs will use a copy of that, and the current code where
    they will use that."""
    spec, job = old.spec, old.job_id
    if spec.env_name:
        spec = spec.changed(packages=venvs.find(layout, spec.env_name).packages)
    if spec.kind == "import":
        raise _never_ran(job, spec)
    current = f"mpsq rerun {job} --snapshot off runs the current code"
    if spec.kind == "command":
        if mode is not None:
            spec = spec.changed(copy=mode == "copy", allow_changed=mode == "off")
        if spec.allow_changed:
            taken = snapshot.of_command(
                Path(spec.cwd), layout.snapshots, copy=False, allow_changed=True, not_code=not_code
            )
            spec = spec.changed(**_NO_CODE)
            return replace(taken, packages=spec.packages).applied_to(spec), "", taken.snapshot
        if mode is not None and not spec.tree:
            raise MpsqError(f"job {job} cannot be rerun with --snapshot {mode}: its code was not stored", current)
    code = verify.look(layout.snapshots, spec, not_code)
    if code.refusal:
        hint = "submit it again, with the current code" if spec.kind == "workload" else current
        raise MpsqError(f"job {job} cannot be rerun: {code.refusal.reason}", hint)
    return spec, _in_copy(code), None
