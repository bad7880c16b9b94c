"""Code shared by all commands: the Typer app, the location of the queue, and messages on stderr."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queue_runner import extensions
from queue_runner.errors import MpsqError, UsageError
from queue_runner.model import PREFLIGHT, Selector, parse_selectors
from queue_runner.text import for_stream, plain
from queue_runner.units import counted

if TYPE_CHECKING:
    from queue_runner.control.pausing import Changed
    from queue_runner.paths import Layout

Json = Annotated[bool, typer.Option("--json", help="Print JSON; docs/json.md describes it.")]


def new_app(help: str | None = None) -> typer.Typer:
    """Return a Typer app in our style: plain help, no coloured tracebacks."""
    return typer.Typer(
        help=help,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=False,
        no_args_is_help=bool(help),
    )


ADDED = "queue_runner.cli.added"
"""Key of a context's `meta`: the added options that were given, each with its value."""


def added_option(ctx: typer.Context) -> Callable[..., None] | None:
    """Return the handler of the option of an optional package that was given, with its value bound; None without one.

    Raises: UsageError when there are several: each of them writes its own output.
    """
    given = ctx.meta.get(ADDED, [])
    if len(given) > 1:
        flags = " and ".join(option.flag for option, _ in given)
        raise UsageError(f"{flags} cannot be combined", "run the command once for each")
    return next((partial(extensions.load(option.handler), value) for option, value in given), None)


def say(text: str) -> None:
    """Print a message to stderr, so that stdout contains data only; wrapped to the width of a terminal."""
    print(for_stream(text, sys.stderr), file=sys.stderr)


def remark(*texts: str) -> None:
    """Print notes about the request."""
    for text in texts:
        say(plain(f"note: {text}"))


def remind(notes: Sequence[str], layout: Layout, json: bool) -> None:
    """Print notes about a submission as `remark` does, but a repeated one once a day; with --json always all."""
    from queue_runner.host import once_a_day

    remark(*(notes if json else once_a_day.new(layout, notes)))


def hint(text: str) -> None:
    """Print the next step on a terminal; a pipe does not get it."""
    if sys.stderr.isatty():
        say(f"hint: {text}")


def confirmed(question: str, yes: bool) -> bool:
    """Ask on a terminal, unless `yes`. Raises: UsageError in a pipe without it, since nobody would answer."""
    if yes:
        return True
    if not sys.stdin.isatty():
        raise UsageError(f"there is no terminal to ask on: {question}", "--yes answers yes")
    return bool(typer.confirm(question, default=False, err=True))


Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the jobs and the order of their runs; store nothing.")]


def print_json(schema: str, /, **fields: Any) -> None:
    """Print one object of a schema that docs/json.md describes."""
    from queue_runner.tables import envelope

    print(envelope(schema, **fields))


def home() -> Layout:
    """Return the layout of the queue's folder without creating anything. Raises: MpsqError for an unsuitable folder, or
    one that others may write."""
    from queue_runner import paths
    from queue_runner.host import ownership

    layout = paths.layout()
    ownership.secure(layout)
    return layout


def new_home() -> Layout:
    """Return the same, created where it is missing, for a command that writes."""
    from queue_runner.host.home import ensure_home

    return ensure_home()


A_JOB = "A job (12 or its name), a run of it (12.3), a group (g4), or the newest group (@last)"
WHOLE_JOBS = "A job (12 or its name), a group (g4), or the newest group (@last)"
Ids = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help=f"{A_JOB}.")]
IdsOrLast = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help=f"{A_JOB[:-1]}, the default).")]
JobIds = Annotated[list[str], typer.Argument(metavar="ID...", help=f"{WHOLE_JOBS}.")]
Tags = Annotated[
    list[str] | None,
    typer.Option("--tag", metavar="WORD", help="Only jobs with this tag. Repeatable: only jobs with all the tags."),
]
InLane = Annotated[
    str | None,
    typer.Option(
        "--lane",
        metavar="NAME",
        help="Only this lane (a device or a set of processors); a prefix of its name is enough.",
    ),
]
Timeout = Annotated[
    str | None,
    typer.Option(metavar="DURATION", help="Stop waiting after this: 90s, 15m, 2h; exit code 124."),
]


def chosen(ids: list[str] | None, tags: list[str] | None, default: str | None = None) -> list[Selector]:
    """Return what the user selected by ids and tags, else `default`. Raises: UsageError when nothing is selected."""
    selectors = parse_selectors(ids or ([default] if default and not tags else []), tags or ())
    if not selectors:
        raise UsageError(
            "no job was selected", "give a job (12), a run (12.3), a group (g4), the newest group (@last) or --tag WORD"
        )
    return list(selectors)


def many(names: Sequence[object], what: str = "run") -> str:
    """Return `run 12.3`, or `4 runs (12.1 ... 13.2)`."""
    return f"{what} {names[0]}" if len(names) == 1 else f"{len(names)} {what}s ({_span(names)})"


def _span(names: Sequence[object]) -> str:
    """Return the first and the last name: "12.1", "12.1, 12.2", "12.1 ... 13.2"."""
    return f"{names[0]} ... {names[-1]}" if names[2:] else ", ".join(map(str, names))


def queued(group: int, jobs: Sequence[int], runs: Sequence[object], *, held: bool = False) -> str:
    """Return `g4: 12 jobs, 36 runs queued (jobs 12 ... 23)`, of one job `g5: 1 job, 3 runs queued (24.1 ... 24.3)`: the
    first and the last run of several jobs would read as runs of one. `held` instead of queued if they are."""
    span = f"jobs {_span(jobs)}" if len(jobs) > 1 else _span(runs)
    what = f"held ({span}) until mpsq resume g{group}" if held else f"queued ({span})"
    return f"g{group}: {counted(len(jobs), 'job')}, {counted(len(runs), 'run')} {what}"


def say_obstacles(layout: Layout, *, always: bool = False) -> bool:
    """Say why no waiting job starts before a user acts, unless the last submission reported it, or `always`; return
    whether jobs start."""
    import time

    from queue_runner.model import DEFAULT_LANE
    from queue_runner.monitor import queue_state
    from queue_runner.store import read

    with read.reading(layout.db) as connection:
        nothing_waits = always and not read.count_waiting(connection)
        obstacles = [] if nothing_waits else queue_state.obstacles(layout, connection)
        since = max(time.time() - _REMINDED_S, read.lane(connection, DEFAULT_LANE).paused_at or 0.0)
        is_known = not always and read.value(connection, _WAITS_TOO, since)
    for sentence in [] if is_known else obstacles:
        say(sentence)
    return not obstacles


_REMINDED_S = 600.0
"""Seconds for which a submission does not repeat that nothing starts."""
_WAITS_TOO = """
SELECT 1 FROM groups WHERE id < (SELECT max(id) FROM groups) AND created_at > ?
AND EXISTS (SELECT 1 FROM jobs j JOIN runs r ON r.job_id = j.id WHERE j.group_id = groups.id AND r.state = 'QUEUED')
"""
"""Whether another submission of the last minutes waits, too."""


_PLURALS = {"is": "are", "has": "have", "was": "were"}


def _plural(fate: str) -> str:
    verb, _, rest = fate.partition(" ")
    rest = re.sub(r"\bit\b", "them", rest.replace("it is", "they are"))
    return f"{_PLURALS.get(verb, verb)} {rest}".rstrip()


def sentences(results: Iterable[tuple[str, str]]) -> list[str]:
    """Return a sentence for each run and its fate ("is held"); runs with one fate share it, without preflights."""
    fates: dict[str, list[str]] = {}
    for run, fate in results:
        fates.setdefault(fate, []).append(run)
    lines = []
    for fate, runs in fates.items():
        runs = [run for run in runs if not run.endswith(f".{PREFLIGHT}")] or runs
        lines.append(f"{many(runs)} {_plural(fate) if len(runs) > 1 else fate}")
    return lines


def tell(schema: str, changes: Sequence[Changed], json: bool, **fields: Any) -> None:
    """Print the results of runs: one line for all with the same result; with `json` an object with `fields`, too.

    Raises: MpsqError with the results when none is as requested.
    """
    if json:
        print_json(schema, **fields, runs=changes)
    lines = sentences((change.run, change.result) for change in changes)
    if not any(change.did for change in changes):
        raise MpsqError("; ".join(lines), "mpsq status shows the queue")
    if not json:
        print("\n".join(lines))
