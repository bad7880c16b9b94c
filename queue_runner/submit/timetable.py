"""Schedules: stored command lines of `mpsq submit` that the worker runs at given times (worker/due.py).

A schedule's row holds the earliest time not yet handled. A submission for it stores its jobs and advances the row to
the next time after now, in one transaction. So nothing is submitted twice, and several missed times are made up for
once.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import replace

from queue_runner.errors import MpsqError, UsageError, did_you_mean
from queue_runner.host import job_environments, redact, wakeup
from queue_runner.paths import Layout
from queue_runner.store import migrate, read, resolve, schedules
from queue_runner.store.engine import Connection, open_engine, writing
from queue_runner.store.private_files import forget_secrets
from queue_runner.submit import plan
from queue_runner.submit.cron import Cron
from queue_runner.submit.submit_options import Request
from queue_runner.text import plain
from queue_runner.times import local_zone

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,59}")


def add(
    layout: Layout,
    line: str,
    words: Sequence[str],
    request: Request,
    *,
    name: str | None = None,
    timezone: str | None = None,
) -> tuple[schedules.StoredCommand, int]:
    """Check and store a schedule, with the current environment, folder and interpreter. `request` is what the `words`
    of its command line mean. Return the schedule, and how many runs it queues each time.

    Raises: UsageError for an invalid line, zone, name or request; MpsqError when it cannot be stored.
    """
    zone = timezone or local_zone()
    if zone is None:
        hint = "give its IANA name, such as --timezone Europe/Berlin"
        raise UsageError("the time zone of this machine is not known", hint)
    line = " ".join(line.split())  # a line break in it would break every list
    next_at = Cron(line, zone).next_after(time.time())
    planned = plan.plan(request)
    name = planned.jobs[0].spec.name if name is None else name
    if not _NAME.fullmatch(name):
        raise UsageError(
            f'a schedule cannot be named "{name}"', "--name takes a letter, followed by letters, digits, and . _ -"
        )
    words = redact.replace_env_values(words, "")
    folder = str(Path.cwd())
    if folder.encode("utf-8", "replace").decode() != folder:
        raise UsageError(
            f"the name of this folder is not valid UTF-8: {plain(folder)}", "rename it, or use another one"
        )
    with migrate.writing_to(layout) as connection:
        resolve.dependencies(connection, planned.after)
        if any(command.name == name for command in schedules.commands(connection)):
            raise UsageError(
                f'schedule "{name}" already exists',
                f"give another --name, or remove it first: mpsq schedule remove {name}",
            )
        new = schedules.StoredCommand(
            id=None,
            name=name,
            cron=line,
            timezone=zone,
            title=shlex.join(redact.redact(words)),
            next_at=next_at,
            command_json=json.dumps(words),
            cwd=folder,
            python=sys.executable,
            env_file=job_environments.save(layout, {**redact.inherited(os.environ), **request.env}),
        )
        stored = replace(new, id=schedules.add(connection, new))
    wakeup.ring(layout.fifo)
    return stored, len(planned.order)


def due_time(layout: Layout, id: int) -> plan.DueTime:
    """Return the time at which a schedule is due now. Raises: UsageError for one that is not due."""
    with read.reading(layout.db) as connection:
        row = next((row for row in read.schedules(connection) if row.id == id), None)
    if row is None or row.next_at is None or row.next_at > time.time():
        raise UsageError(f"schedule {id} is not due", "mpsq schedule list shows when each schedule is due")
    following = Cron(row.cron, row.timezone).next_after(time.time())
    return plan.DueTime(id, f"mpsq schedule {row.name}: {row.title}", row.next_at, following)


def remove(layout: Layout, which: str) -> str:
    """Remove a schedule by name or id and return its name; its jobs stay. Raises: UsageError."""
    with _changing(layout, which) as (connection, row):
        schedules.remove(connection, row.id)
    forget_secrets(open_engine(layout.db), layout)
    return row.name


def pause(layout: Layout, which: str) -> str:
    """Pause a schedule and return its name; times that pass meanwhile are not made up for. Raises: UsageError."""
    with _changing(layout, which) as (connection, row):
        schedules.set_next(connection, row.id, None)
    return row.name


def resume(layout: Layout, which: str) -> read.ScheduleRow:
    """Resume a schedule and return it, with its next time. Raises: UsageError."""
    with _changing(layout, which) as (connection, row):
        at = row.next_at
        if at is None:
            at = Cron(row.cron, row.timezone).next_after(time.time())
            schedules.set_next(connection, row.id, at)
    wakeup.ring(layout.fifo)
    return replace(row, next_at=at)


@contextmanager
def _changing(layout: Layout, which: str) -> Iterator[tuple[Connection, read.ScheduleRow]]:
    """Yield a schedule by name or id, and a transaction. Raises: MpsqError if there is no queue, UsageError."""
    if read.schema_revision(layout.db) is None:
        raise MpsqError("there is no queue here yet", "mpsq schedule add creates one")
    with read.reading(layout.db) as reader:
        rows = read.schedules(reader)
    row = next((row for row in rows if which in (row.name, str(row.id))), None)
    if row is None:
        hint = did_you_mean(which, [row.name for row in rows], "mpsq schedule list shows them")
        raise UsageError(f'there is no schedule "{which}"', hint)
    with writing(open_engine(layout.db)) as connection:
        yield connection, row
