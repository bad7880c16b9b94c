"""mpsq schedule."""

from __future__ import annotations

import shlex
import textwrap
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queue_runner import tables
from queue_runner.cli.common import Json, home, new_app, new_home, print_json, remark, say, say_obstacles
from queue_runner.cli.typer_options import GOES_AFTER, WithCommand, with_options
from queue_runner.errors import UsageError
from queue_runner.text import plain
from queue_runner.times import clock, local_zone, zone
from queue_runner.units import counted

if TYPE_CHECKING:
    from queue_runner.store.read import ScheduleRow
    from queue_runner.submit.submit_options import Request

app = new_app("Submit on a schedule: every night, every Monday.")

Which = Annotated[str, typer.Argument(metavar="NAME|ID", help="A name from mpsq schedule list.")]

EPILOG = (
    "-- is followed by a command line of mpsq submit; a command in it goes after a second --. "
    "The five fields are those of crontab(5): minute, hour, day of month, month, day of week (0 and 7 are Sunday). "
    "If times pass while no worker runs or the machine sleeps, the jobs are submitted once afterwards. "
    'Example: mpsq schedule add "0 2 * * *" --name nightly -- nanogpt --device cpu --repeats 4'
)


class WithSubmit(WithCommand):
    """A command in which `--` is followed by a command line of submit."""

    behind = "submit"
    usage = '"MINUTE HOUR DAY MONTH WEEKDAY" -- SUBMIT_ARGUMENTS ...'


@app.command("add", cls=WithSubmit, epilog=EPILOG)
def add(
    ctx: typer.Context,
    cron: Annotated[list[str], typer.Argument(metavar="CRON", help='Five fields in quotes: "30 22 * * mon-fri".')],
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Default: the job's name.")] = None,
    timezone: Annotated[
        str | None, typer.Option(metavar="ZONE", help="For example Europe/Berlin; default: that of this machine.")
    ] = None,
    json: Json = False,
) -> None:
    """Submit a command line at the given times."""
    from queue_runner.host import locks
    from queue_runner.submit import timetable

    words = ctx.meta.get("command", ())
    if not words:
        example = 'mpsq schedule add "0 2 * * *" -- nanogpt --device cpu'
        raise UsageError("schedule add needs a command line after --", example)
    argv = ctx.meta["argv"]
    request = _request(words, shlex.join(["mpsq", *argv[: argv.index("--") + 1]]))
    layout = new_home()
    locks.worker(layout.home)  # report unusable locks before anything is stored
    added, n_runs = timetable.add(layout, " ".join(cron), words, request, name=name, timezone=timezone)
    if json:
        print_json("mpsq.schedule.add/1", id=added.id, name=added.name, next_at=added.next_at, runs_each_time=n_runs)
    else:
        assert added.next_at is not None  # a line that never occurs is refused
        print(f"{added.name}: {counted(n_runs, 'run')} {_time(added.next_at, added.timezone)} ({added.timezone})")
    say_obstacles(layout)


_submission = new_app()


@_submission.command("submit", cls=WithCommand)
@with_options
def _read(ctx: typer.Context, fields: dict[str, Any]) -> None:
    """Read the options of submit, with the same checks and the same errors."""
    from queue_runner.submit import plan as use_case
    from queue_runner.submit.submit_options import Request

    request = Request(**fields)
    remark(*use_case.plan(request).warnings)
    ctx.obj.append(request)


def _request(words: Sequence[str], before: str) -> Request:
    """Return the request of a command line of submit; `before` is what stands before it. Raises: UsageError."""
    from typer.main import get_command

    taken: list[Request] = []
    command = get_command(_submission)
    assert isinstance(command, WithCommand)
    try:
        with command.make_context("mpsq submit", list(words), obj=taken) as context:
            context.meta["argv"] = list(words)
            command.invoke(context)
    except UsageError as error:
        other, goes_after, _ = error.hint.partition(GOES_AFTER)
        if goes_after:
            options, argv = command.apart(words)
            error.hint = f"{other}a command has a second --: {before} {shlex.join([*options, '--', *argv])}"
        raise
    return taken[0]


@app.command("list")
def list_(json: Json = False) -> None:
    """List schedules: the next time of each, what it submitted last, and its last error."""
    from queue_runner.store import read

    with read.reading(home().db) as connection:
        rows = read.schedules(connection)
    if json:
        print_json("mpsq.schedules/1", schedules=rows)
        return
    if not rows:
        say('there are no schedules yet: mpsq schedule add "0 2 * * *" -- nanogpt')
        return
    _print(rows)


def _print(rows: Sequence[ScheduleRow]) -> None:
    local = local_zone()
    columns = [
        tables.Column("id", "id", right=True),
        tables.Column("name", "name", words=lambda name: tables.elide(name, 16)),
        tables.Column(
            "cron", "when", value=lambda row: row.cron if row.timezone == local else f"{row.cron} ({row.timezone})"
        ),
        tables.Column("next", "next", value=_next),
        tables.Column("last", "last", value=_last),
        tables.Column("title", "submits", flexible=True),
    ]
    print(tables.table(rows, columns))
    for row in rows:
        if row.last_error:
            sentence = plain(f"{row.name} submitted nothing at {row.last_error}")
            print("\n" + textwrap.fill(sentence, 78, subsequent_indent="    "))


def _last(row: ScheduleRow) -> str | None:
    at = row.last_at
    return f"g{row.last_group_id} {_time(at, row.timezone)}" if row.last_group_id and at else None


def _next(row: ScheduleRow) -> str:
    if row.next_at is None:
        return "paused"
    return "due" if row.next_at <= time.time() else _time(row.next_at, row.timezone)


def _time(at: float, timezone: str) -> str:
    """Return a time of a schedule in the zone of its line; in the local one where this machine no longer knows that."""
    try:
        return clock(at, zone=zone(timezone))
    except UsageError:
        return clock(at)


@app.command("remove")
def remove(which: Which) -> None:
    """Remove a schedule; the jobs that it has submitted stay."""
    from queue_runner.submit import timetable

    print(f"{timetable.remove(home(), which)}: removed")


@app.command("pause")
def pause(which: Which) -> None:
    """Pause a schedule; missed times are not made up for."""
    from queue_runner.submit import timetable

    print(f"{timetable.pause(home(), which)}: paused")


@app.command("resume")
def resume(which: Which) -> None:
    """Resume a paused schedule at its next time."""
    from queue_runner.submit import timetable

    row = timetable.resume(home(), which)
    at = row.next_at
    print(f"{row.name}: " + (f"next {_time(at, row.timezone)} ({row.timezone})" if at else "it has no next time"))
