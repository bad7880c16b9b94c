"""mpsq bench."""

from __future__ import annotations

import sys
import textwrap
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec.structs import replace

from queue_runner import tables
from queue_runner.cli.common import DryRun, Json, Yes, home, new_app, new_home, remark, remind, say
from queue_runner.cli.run import Verbose, follow_to_the_end, plan_of, refuse_hold
from queue_runner.cli.typer_options import OfWorkload, with_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from queue_runner.paths import Layout
    from queue_runner.submit.plan import Plan

app = new_app()

EPILOG = (
    "It does what mpsq run does, on every working device (not on the CPU if there is CUDA), "
    "eager and compiled. Options override these defaults."
)


@app.command("bench", cls=OfWorkload, epilog=EPILOG)
@with_options
def bench(
    ctx: typer.Context,
    fields: dict[str, Any],
    yes: Yes = False,
    dry_run: DryRun = False,
    detach: Annotated[bool, typer.Option("--detach", help="Queue the runs for a worker, and do not wait.")] = False,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Run a workload on each device, eager and compiled, until it is clear which is faster; then print the report."""
    from queue_runner.cli.submit import print_plan, print_stored, store

    if not (dry_run or detach):
        refuse_hold(fields, "bench", "bench --detach")

    def plan(layout: Layout) -> Plan:
        planned, notes, forecast = _grid(fields, layout)
        if dry_run:
            remark(*notes)
        else:
            remind(notes, layout, json)
            planned = replace(planned, warnings=())  # once they are printed
        say(forecast)
        if dry_run or yes or not sys.stdin.isatty():
            return planned
        if not typer.confirm("queue these runs?", default=True, err=True):
            say("nothing was queued")
            raise typer.Exit(1)
        return planned

    if dry_run:
        print_plan(plan(home()), home(), json)
    elif detach:
        layout = new_home()
        planned = plan(layout)
        print_stored(planned, store(planned, layout, json), layout, json)
    else:
        follow_to_the_end(new_home(), plan, verbose=verbose, json=json)


def _grid(fields: dict[str, Any], layout: Layout) -> tuple[Plan, Sequence[str], str]:
    """Return the plan, notes on it, and how long it takes."""
    from queue_runner.monitor.forecast import forecast, lines
    from queue_runner.submit import benchmark_grid

    say("probing the devices of this machine ...")
    full, notes = benchmark_grid.complete(fields, layout)
    planned = plan_of(full)
    expected = forecast(layout, planned)
    sentence = textwrap.fill(expected.sentence(time.time()), 80, subsequent_indent="  ")
    return planned, [*notes, *planned.warnings], f"{tables.facts(lines(planned, expected))}\n{sentence}"
