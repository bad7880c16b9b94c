"""mpsq bench."""

from __future__ import annotations

import sys
import textwrap
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queue_runner import tables
from queue_runner.cli.common import Json, hint, home, new_app, new_home, remark, remind, say
from queue_runner.cli.typer_options import OfWorkload, with_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from queue_runner.paths import Layout
    from queue_runner.submit.plan import Plan

app = new_app()

EPILOG = (
    "mpsq bench nanogpt is mpsq submit nanogpt on every working device of this machine, eager and compiled, four times "
    "each: enough for a verdict on most differences. Options override these defaults."
)


@app.command("bench", cls=OfWorkload, epilog=EPILOG)
@with_options
def bench(
    ctx: typer.Context,
    fields: dict[str, Any],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the jobs and the order of their runs; store nothing.")
    ] = False,
    json: Json = False,
) -> None:
    """Queue a workload over this machine's devices and modes, with repeats."""
    from queue_runner.cli.submit import print_plan, print_stored, store

    layout = home() if dry_run else new_home()
    planned, notes, forecast = _grid(fields, layout)
    if dry_run:
        remark(*notes)
    else:
        remind(notes, layout, json)
    say(forecast)
    if dry_run:
        print_plan(planned, layout, json)
        return
    if not yes and sys.stdin.isatty() and not typer.confirm("queue these runs?", default=True, err=True):
        say("nothing was queued")
        raise typer.Exit(1)
    print_stored(planned, store(planned, layout, json), layout, json)


def _grid(fields: dict[str, Any], layout: Layout) -> tuple[Plan, Sequence[str], str]:
    """Return the plan, notes on it, and how long it takes."""
    from queue_runner.monitor.forecast import forecast, lines
    from queue_runner.submit import benchmark_grid, plan
    from queue_runner.submit.submit_options import Request

    hint("probing the devices of this machine")
    full, notes = benchmark_grid.complete(fields, layout)
    planned = plan.plan(Request(**{**full, "measures": True}))
    expected = forecast(layout, planned)
    sentence = textwrap.fill(expected.sentence(time.time()), 80, subsequent_indent="  ")
    return planned, [*notes, *planned.warnings], f"{tables.facts(lines(planned, expected))}\n{sentence}"
