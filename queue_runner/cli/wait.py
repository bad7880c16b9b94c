"""mpsq wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from queue_runner import units
from queue_runner.cli.common import IdsOrLast, Json, Tags, Timeout, chosen, home, new_app, print_json, say
from queue_runner.errors import UsageError
from queue_runner.text import plain

if TYPE_CHECKING:
    from queue_runner.monitor.awaiting import Awaited

app = new_app()


@app.command("wait")
def wait(
    ids: IdsOrLast = None,
    tag: Tags = None,
    timeout: Timeout = None,
    all_: Annotated[bool, typer.Option("--all", help="Wait for every job that waits or runs.")] = False,
    json: Json = False,
) -> None:
    """Wait until jobs have ended: the named ones, else those of the newest group.

    Exit codes: 0 if all runs succeeded, 3 if not, 124 after a timeout.
    """
    from queue_runner.monitor import awaiting as use_case

    layout = home()
    if all_ and (ids or tag):
        raise UsageError("--all already means every job", "leave out --all, or the ids and --tag")
    selectors = use_case.open_jobs(layout) if all_ else chosen(ids, tag, "@last")
    if not selectors:
        if json:
            print_json("mpsq.wait/1", ok=True, runs=[])
        else:
            print("nothing waits or runs")
        return
    timeout_s = units.parse_duration(timeout, "--timeout") if timeout else None

    printed: set[str] = set()

    def on_waiting(awaited: Awaited) -> None:
        intention = [] if ids or tag else [awaited.intention()]
        for sentence in [*intention, *map(plain, awaited.hindrances())]:
            if sentence not in printed:
                printed.add(sentence)
                say(sentence)

    awaited = use_case.until_done(layout, selectors, timeout_s, on_waiting)
    failed, probes, late = awaited.failed, awaited.probes_out_of_memory, awaited.beyond_budget
    total = awaited.total
    if json:
        print_json("mpsq.wait/1", ok=not failed, runs=awaited.runs)
    else:
        too_large = f"; {len(probes)} found a value that does not fit into memory" if probes else ""
        not_started = f"; {len(late)} did not start within the budget" if late else ""
        unneeded = f"; {len(awaited.unneeded)} would start only after a failure" if awaited.unneeded else ""
        print(f"{total - len(failed) - len(probes)} of {total} runs succeeded{too_large}{not_started}{unneeded}")
        for line in awaited.failures():
            print(plain(line))
    awaited.refuse_failures()
