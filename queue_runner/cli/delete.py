"""mpsq delete."""

from __future__ import annotations

from typing import Annotated

import typer

from queue_runner import units
from queue_runner.cli.common import JobIds, Json, Yes, confirmed, home, new_app, print_json, say
from queue_runner.errors import MpsqError
from queue_runner.model import parse_selector

app = new_app()


@app.command("delete")
def delete(
    ids: JobIds,
    results: Annotated[
        bool, typer.Option("--results", help="Also delete the results from the database, permanently.")
    ] = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Remove the files of ended jobs and hide the jobs.

    Logs, events, checkpoints and working copies are removed. Results stay in reports unless --results is given; mpsq
    list --deleted shows the hidden jobs. A job that waits or runs must be cancelled first.
    """
    from queue_runner.control import deletion as use_case

    if results and not confirmed(f"delete the results of {' '.join(ids)} for good?", yes):
        say("nothing was deleted")
        raise typer.Exit(1)
    deleted = use_case.delete(home(), [parse_selector(text) for text in ids], results=results)
    if json:
        print_json(
            "mpsq.delete/1", jobs=deleted.jobs, results=results, freed_bytes=deleted.freed_bytes, stuck=deleted.stuck
        )
    else:
        jobs = f"job {deleted.jobs[0]}" if len(deleted.jobs) == 1 else f"{units.count(len(deleted.jobs))} jobs"
        results_are = "with all results" if results else "the results stay in reports"
        done = f"deleted, {results_are}"
        if deleted.already == len(deleted.jobs) and not results:
            done = f"{'was' if deleted.already == 1 else 'were'} deleted before"
        print(f"{jobs} {done}; {units.size(deleted.freed_bytes)} freed")
    if deleted.stuck:
        raise MpsqError("\n".join(["some files could not be removed:", *deleted.stuck]), "fix that, then run mpsq gc")
