"""mpsq cancel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from queue_runner import units
from queue_runner.cli.common import Ids, Json, Tags, chosen, home, new_app, print_json, say, sentences
from queue_runner.text import plain

if TYPE_CHECKING:
    from queue_runner.control.cancellation import Cancelled

app = new_app()


@app.command("cancel")
def cancel(
    ids: Ids = None,
    tag: Tags = None,
    grace: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Time between SIGINT, SIGTERM and SIGKILL; 0 kills at once.")
    ] = None,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="Request the cancellation and do not wait for the result.")
    ] = False,
    json: Json = False,
) -> None:
    """Cancel waiting and running jobs.

    Waiting jobs are cancelled at once. A running job gets SIGINT, then SIGTERM, then SIGKILL.
    """
    from queue_runner import config_file
    from queue_runner.control import cancellation as use_case
    from queue_runner.host.locks import START_A_WORKER
    from queue_runner.monitor.queue_state import NO_WORKER

    layout = home()
    selectors = chosen(ids, tag)
    grace_s = units.parse_duration(grace, "--grace") if grace is not None else None
    settings = config_file.load(layout.config)
    patience_s = 2 * grace_s if grace_s is not None else settings.grace_int_s + settings.grace_term_s
    results = use_case.cancel(layout, selectors, grace_s=grace_s, within_s=0.0 if no_wait else patience_s + 2.0)
    if json:
        print_json("mpsq.cancel/1", runs=results)
    else:
        print("\n".join(sentences((run.run, _fate(run)) for run in results)))
    if any(run.result in (use_case.CancelResult.UNRECORDED, use_case.CancelResult.UNWATCHED) for run in results):
        say(f"{NO_WORKER}; {START_A_WORKER}")


def _fate(run: Cancelled) -> str:
    outcome = f" ({run.outcome})" if run.outcome and run.outcome != "CANCELLED" else ""
    return f"{run.result}{outcome}" + (f" ({plain(run.block)})" if run.block else "")
