"""mpsq rerun."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from queue_runner.cli.common import JobIds, Json, home, new_app, print_json, queued, remark, remind, say, say_obstacles
from queue_runner.cli.typer_options import submit_option, title
from queue_runner.errors import UsageError
from queue_runner.model import parse_selector

if TYPE_CHECKING:
    from collections.abc import Sequence

    from queue_runner.model import Selector
    from queue_runner.paths import Layout
    from queue_runner.submit.plan import Submitted

app = new_app()


@app.command("rerun")
def rerun(
    ctx: typer.Context,
    ids: JobIds,
    repeats: Annotated[int | None, typer.Option(metavar="N", help="Runs of each new job; default: as before.")] = None,
    rounds: Annotated[
        int | None,
        typer.Option(metavar="N", help="Add N rounds to a group, such as g4, instead of queueing jobs."),
    ] = None,
    missing: Annotated[
        bool,
        typer.Option("--missing", help="Queue only the missing runs (mpsq report missing), with the current code."),
    ] = False,
    timeout: Annotated[str | None, submit_option("timeout")] = None,
    hold: Annotated[bool, typer.Option("--hold", help="Hold it until mpsq resume ID.")] = False,
    snapshot: Annotated[
        str | None,
        typer.Option(metavar="MODE", help="As in mpsq submit. Default: the old job's."),
    ] = None,
    json: Json = False,
) -> None:
    """Queue jobs again, with exactly the code that they ran.

    Settings, variables, interpreter and seed stay the same. If the code has changed, the new job runs in a copy of the
    old code. With --snapshot off, it runs the current code.
    """
    from queue_runner.control import resubmission as use_case
    from queue_runner.submit.submit_options import snapshot_mode

    layout = home()
    mode = snapshot and snapshot_mode(snapshot)
    options = use_case.RerunOptions(repeats, hold, mode, timeout)
    selectors = [parse_selector(text) for text in ids]
    alone = [flag for flag, given in (("--missing", missing), ("--rounds", rounds is not None)) if given]
    if alone and (alone[1:] or options != use_case.RerunOptions()):
        raise UsageError(
            f"{alone[0]} cannot be combined with other options", "these runs have the options of the earlier ones"
        )
    if missing:
        done = _queue_missing(layout, selectors, title(ctx), json)
        if done is None:
            return
    elif rounds is None:
        done = use_case.rerun(layout, selectors, options, title(ctx))
    else:
        done = use_case.add_rounds(layout, selectors, rounds)
    remind(done.notes, layout, json)
    if json:
        print_json("mpsq.rerun/1", group=done.group, jobs=done.jobs, runs=done.runs)
    else:
        print(queued(done.group, done.jobs, done.runs, held=hold))
    say_obstacles(layout)


def _queue_missing(layout: Layout, selectors: Sequence[Selector], line: str, json: bool) -> Submitted | None:
    """Queue the runs that jobs of a grid lack. Without any, say so, and return None."""
    from msgspec.structs import replace

    from queue_runner import reports
    from queue_runner.control import resubmission
    from queue_runner.monitor import run_view
    from queue_runner.monitor.answers.run_query import Options
    from queue_runner.reports._common import printing
    from queue_runner.store.read import reading
    from queue_runner.submit import plan

    with reading(layout.db) as connection:
        result = reports.run("missing", connection, Options(selectors))
        if not result.items:
            resubmission.refuse_missing(run_view.select(connection, selectors))
    missing = {gap.jobs[-1]: gap.missing for gap in result.items if gap.missing}
    if not json:
        print(printing.as_text("missing", replace(result, notes=[]), "table"))
    if not missing:
        waiting = "the missing runs are queued already"
        say(f"nothing was queued: {waiting if result.items else '; '.join(result.lines)}")
        if json:
            print_json("mpsq.rerun/1", group=None, jobs=[], runs=[])
        return None
    stored = plan.store(layout, resubmission.missing(layout, missing, line))
    if resubmission.code_changed(layout, [*missing], stored.jobs):
        remark("the code has changed: reports show old and new runs in separate rows")
    return stored
