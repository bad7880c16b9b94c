"""Schedules: submit command lines that the worker submits at given times.

A schedule's row holds the earliest time not yet handled. When it has come (or passed, because the machine slept or no
worker was running), the worker submits once and advances the row to the next time after now, in one transaction. So
nothing is submitted twice, and several missed times are made up for once. The worker does it while none of its runs is
on the accelerator: submitting only queues, so it can wait until a measurement has ended.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from itertools import islice
from typing import Any

from queue_runner import failpoints, redact
from queue_runner.errors import MpsqError, UsageError, did_you_mean
from queue_runner.host import child, job_environments, job_secrets, locks, wakeup
from queue_runner.model import Row
from queue_runner.paths import Layout
from queue_runner.source import snapshot, verify
from queue_runner.store import migrate, resolve, schedules
from queue_runner.store.delete import forget_secrets
from queue_runner.store.engine import Connection, Engine, looking, open_engine, writing
from queue_runner.submit import plan, policy
from queue_runner.submit.cron import Cron
from queue_runner.submit.request import Request
from queue_runner.times import local_zone

PATIENCE_S = 5.0
"""How long the worker waits for the code of a schedule while it does nothing else."""
_LATER_S = 10 * 366 * 86_400.0
"""Period after which every time that names a day has passed, in seconds."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,59}")


@dataclass(frozen=True)
class Added:
    """A new schedule. `next_at` holds its first times (Unix seconds); `runs` is the number of runs each time queues."""

    id: int
    name: str
    cron: str
    timezone: str
    title: str
    next_at: tuple[float, ...]
    runs: int


def add(
    layout: Layout, line: str, request: Request, command: str, *, name: str | None = None, timezone: str | None = None
) -> Added:
    """Check and store a schedule. `request` keeps the current environment, folder and interpreter. `command` is its
    command line in displayable form.

    Raises: UsageError for an invalid line, zone, name or request; MpsqError when it cannot be stored.
    """
    line = " ".join(line.split())  # a line break in it would break every list
    cron = Cron(line, zone := timezone or local_zone())
    planned = plan.plan(request)
    _refuse_days(request)
    spec = planned.jobs[0].spec
    python = request.python if request.env_name or request.workload is None else spec.python
    variables = redact.assignments(request.env, "--env")
    kept = replace(request, cwd=spec.cwd, python=python)
    migrate.ensure(layout)
    with writing(open_engine(layout.db, check=False)) as connection:
        hidden = job_environments.public(layout, variables)
        kept = replace(kept, env=tuple(f"{name}={value}" for name, value in hidden.items()))
        resolve.dependencies(connection, planned.after)
        named = _free_name([row["name"] for row in schedules.every(connection)], name, spec.name)
        times = tuple(islice(cron.times_after(time.time()), 2))
        id = schedules.add(
            connection,
            name=named,
            cron=line,
            timezone=zone,
            title=command,
            request_json=json.dumps(asdict(replace(kept, title=f"mpsq schedule {named}: {command}"))),
            env_file=job_environments.save(layout, redact.inherited(os.environ) | variables),
            next_at=times[0],
        )
    wakeup.ring(layout.fifo)
    return Added(id, named, line, zone, command, times, len(planned.order))


def remove(layout: Layout, which: str) -> str:
    """Remove a schedule by name or id and return its name; its jobs stay. Raises: UsageError."""
    with _changing(layout, which) as (connection, row):
        schedules.remove(connection, row["id"])
    forget_secrets(open_engine(layout.db), layout)
    return str(row["name"])


def pause(layout: Layout, which: str) -> str:
    """Pause a schedule and return its name; times that pass meanwhile are not made up for. Raises: UsageError."""
    with _changing(layout, which) as (connection, row):
        schedules.set_next(connection, row["id"], None)
    return str(row["name"])


def resume(layout: Layout, which: str) -> tuple[str, float | None]:
    """Resume a schedule and return its name and next time. Raises: UsageError."""
    with _changing(layout, which) as (connection, row):
        at = row["next_at"]
        if at is None:
            at = Cron(row["cron"], row["timezone"]).next_after(time.time())
            schedules.set_next(connection, row["id"], at)
    wakeup.ring(layout.fifo)
    return str(row["name"]), at


def coming(rows: Iterable[Row], which: str, count: int, now: float) -> tuple[Row, list[float]]:
    """Return the row of a schedule and its next `count` times after `now`. Raises: UsageError."""
    row = _find(rows, which)
    return row, list(islice(Cron(row["cron"], row["timezone"]).times_after(now), count))


class Due:
    """Submits due schedules, one after another. Their folders and code are read in a child process, for at most READ_S
    seconds: that may wait in the kernel for hours. Close it."""

    def __init__(self, layout: Layout, engine: Engine, log: Callable[[str], None]) -> None:
        self._layout, self._engine, self._log = layout, engine, log
        self._reading: _Reading | None = None

    @property
    def is_reading(self) -> bool:
        return self._reading is not None

    def submit(self, patience_s: float = PATIENCE_S) -> None:
        """Submit each due schedule once; one that takes longer than `patience_s` to read is for the next call. One that
        can no longer be submitted is logged and advanced to its next time.

        Raises: MpsqError when the store fails; nothing has changed then.
        """
        with looking(self._engine) as connection:
            rows: list[Row] = [*schedules.due(connection, time.time())]
        if self._reading is not None and self._reading.row not in rows:
            self.close()
        if self._reading is not None:
            rows, patience_s = [self._reading.row], 0.0
        for row in rows:
            try:
                self._reading = self._reading or _Reading(self._layout, row)
                if not self._reading.call.wait(min(patience_s, self._reading.left_s())):
                    if self._reading.left_s() > 0:
                        return
                    raise _CannotSubmit(f"its code could not be read within {verify.READ_S:.0f} s: mpsq doctor")
                self._store(self._reading)
            except _CannotSubmit as error:
                _refuse(self._engine, row, str(error), self._log)
            self.close()

    def _store(self, reading: _Reading) -> None:
        row = reading.row
        try:
            following = Cron(row["cron"], row["timezone"]).next_after(time.time())
            planned, taken = reading.call.answer()
        except Exception as error:  # workload, folder or request may be broken by now: the worker continues
            raise _CannotSubmit(_words(error)) from error
        failpoints.reach("schedule.planned")
        with writing(self._engine) as connection:
            if not schedules.answer(connection, row, following, last_at=time.time(), last_error=None):
                return
            try:
                stored = plan.insert(self._layout, connection, planned, taken, actor="schedule")
            except UsageError as error:
                raise _CannotSubmit(_words(error)) from error
            schedules.note_group(connection, row["id"], stored.group)
            failpoints.reach("schedule.before_commit")
        failpoints.reach("schedule.committed")
        self._log(f"schedule {row['name']}: submitted g{stored.group}")

    def close(self) -> None:
        """End what is still being read."""
        if self._reading is not None:
            self._reading.close()
            self._reading = None


class _CannotSubmit(Exception):
    """This time cannot be submitted; the message gives the reason."""


class _Reading:
    """A schedule that is being planned, and its code snapshotted; no snapshot is removed meanwhile."""

    def __init__(self, layout: Layout, row: Row) -> None:
        self.row = row
        self._until = time.monotonic() + verify.READ_S
        self._lock = locks.share(layout.snapshots_lock)
        try:
            self.call = child.ChildCall(_planned, layout, row)
        except OSError as error:
            self._lock.close()
            raise _CannotSubmit(_words(error)) from error

    def left_s(self) -> float:
        return self._until - time.monotonic()

    def close(self) -> None:
        self.call.close()
        self._lock.close()


def _planned(layout: Layout, row: Row) -> tuple[plan.Plan, list[snapshot.Taken]]:
    request = _request(row["request_json"])
    try:
        environment = job_environments.read(layout, row["env_file"])
    except job_secrets.Missing as error:
        raise UsageError(error.message, "remove the schedule and add it again") from error
    names = redact.assignments(request.env, "--env")
    env = tuple(f"{name}={environment[name]}" for name in names)
    planned = plan.plan(replace(request, environment=environment, env=env))
    jobs = tuple(replace(job, terms=replace(job.terms, schedule_id=row["id"])) for job in planned.jobs)
    planned = replace(planned, jobs=jobs)
    return planned, plan.take_snapshots(layout, planned)


def _refuse(engine: Engine, row: Row, reason: str, log: Callable[[str], None]) -> None:
    """Record why nothing was submitted and advance to the next time; without one the schedule is paused."""
    now = time.time()
    try:
        following = Cron(row["cron"], row["timezone"]).next_after(now)
    except UsageError:
        following = None
    said = f"{time.strftime('%Y-%m-%d %H:%M', time.localtime(now))}: {reason}"
    with writing(engine) as connection:
        schedules.answer(connection, row, following, last_error=said)
    log(f"schedule {row['name']}: nothing was submitted: {reason}")


def _words(error: Exception) -> str:
    if isinstance(error, MpsqError):
        return f"{error.message} ({error.hint})" if error.hint else error.message
    if isinstance(error, OSError):
        return f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")
    return f"{type(error).__name__}: {error}"


def _request(text: str) -> Request:
    """Return the stored request; fields that a newer mpsq has added have their defaults."""
    data: dict[str, Any] = json.loads(text)
    known = {field.name for field in fields(Request)}
    if unknown := sorted(set(data) - known):
        raise UsageError(
            f"it was created by a newer mpsq ({', '.join(unknown)})", "remove the schedule and add it again"
        )
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}
    return Request(**values)


def _refuse_days(request: Request) -> None:
    """Raise UsageError for an --at or --deadline that names a fixed day: it must be meaningful each time."""
    try:
        policy.of_request(request, time.time() + _LATER_S)
    except UsageError as error:
        raise UsageError(
            "--at or --deadline names a day, but a schedule repeats", "give a time of day or +2h"
        ) from error


def _free_name(taken: list[str], name: str | None, otherwise: str) -> str:
    if name is None:
        stem = re.sub(r"[^A-Za-z0-9_.-]", "-", otherwise)[:50]
        stem = stem if _NAME.fullmatch(stem) else f"s-{stem}"
        candidates = [stem, *(f"{stem}-{n}" for n in range(2, len(taken) + 3))]
        return next(candidate for candidate in candidates if candidate not in taken)
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"--name {name!r} is not a valid name", "start with a letter, followed by letters, digits, and . _ -"
        )
    if name in taken:
        raise UsageError(
            f'schedule "{name}" already exists', "give another --name, or remove it first: mpsq schedule remove"
        )
    return name


def _find(rows: Iterable[Row], which: str) -> Row:
    found = {str(row["name"]): row for row in rows}
    for row in found.values():
        if which in (row["name"], str(row["id"])):
            return row
    listing = "mpsq schedule list shows them"
    raise UsageError(f'there is no schedule "{which}"', did_you_mean(which, found, listing))


@contextmanager
def _changing(layout: Layout, which: str) -> Iterator[tuple[Connection, Row]]:
    """Open a transaction for changes to a schedule. Raises: MpsqError if there is no queue, UsageError."""
    from queue_runner.store.read import schema_revision

    if schema_revision(layout.db) is None:
        raise MpsqError("there is no queue here yet", "mpsq schedule add creates one")
    with writing(open_engine(layout.db)) as connection:
        yield connection, _find(schedules.every(connection), which)
