"""mpsq bench."""

from __future__ import annotations

import sys
import textwrap
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queue_runner import tables
from queue_runner.cli.common import Json, hint, home, new_app, remark, remind, say
from queue_runner.cli.submit_options import OfWorkload, title, with_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from queue_runner.submit.plan import Plan

app = new_app()

EPILOG = (
    "mpsq bench nanogpt is mpsq submit nanogpt on every working device of this machine, eager and compiled, four times "
    "each, so that a comparison can be significant. Options override the preset."
)


@app.command("bench", cls=OfWorkload, epilog=EPILOG)
@with_options
def bench(
    ctx: typer.Context,
    said: dict[str, Any],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the grid cells and the order of the runs; store nothing.")
    ] = False,
    json: Json = False,
) -> None:
    """Queue a workload over this machine's devices and modes, with repeats."""
    from queue_runner.cli.submit import print_plan, print_stored, store

    planned, remarks, foretold = _grid(said, title(ctx))
    if dry_run:
        remark(*remarks)
    else:
        remind(remarks, json)
    say(foretold)
    if dry_run:
        print_plan(planned, json)
        return
    if not yes and sys.stdin.isatty() and not typer.confirm("queue these runs?", default=True, err=True):
        say("nothing was queued")
        raise typer.Exit(1)
    print_stored(planned, store(planned, json), json)


def _grid(said: dict[str, Any], words: str) -> tuple[Plan, Sequence[str], str]:
    """Return the plan, what to remark about it, and how long it takes."""
    from queue_runner.monitor.forecast import forecast, lines
    from queue_runner.submit import bench as use_case
    from queue_runner.submit import options, plan

    hint("probing the devices of this machine")
    full, notes = use_case.preset(said)
    planned = plan.plan(options.request(full, words, measures=True))
    foreseen = forecast(home(), planned)
    sentence = textwrap.fill(foreseen.sentence(time.time()), 80, subsequent_indent="  ")
    return planned, [*notes, *planned.warnings], f"{tables.facts(lines(planned, foreseen))}\n{sentence}"
