"""mpsq show."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from queue_runner import tables
from queue_runner.cli.common import IdsOrLast, Json, Tags, chosen, hint, home, new_app, print_json, say
from queue_runner.text import plain

if TYPE_CHECKING:
    from sqlite3 import Connection

    from queue_runner.model import Selector
    from queue_runner.monitor.run_details import Details, Patch
    from queue_runner.monitor.run_view import RunView

app = new_app()


@app.command("show")
def show(
    ids: IdsOrLast = None,
    tag: Tags = None,
    diff: Annotated[
        bool, typer.Option("--diff", help="Print only the uncommitted changes in the job's code, as a patch.")
    ] = False,
    json: Json = False,
) -> None:
    """Show everything known about a job or a run, or the summary of a group."""
    from queue_runner.monitor import group_summary
    from queue_runner.monitor import run_details as use_case
    from queue_runner.monitor.run_view import select
    from queue_runner.store.read import reading

    layout, selectors = home(), chosen(ids, tag, "@last")
    with reading(layout.db) as connection:
        runs = select(connection, selectors)
        if diff:
            _print_patches(use_case.patches(connection, runs), json)
            return
        if not json and group_summary.is_one_group(selectors, runs):
            _print_group(connection, selectors, runs)
            return
        details = [use_case.details(layout, connection, run) for run in runs]
    if json:
        print_json("mpsq.show/1", runs=details)
        return
    job = None
    for n, run in enumerate(details):
        print(("\n" if n else "") + _text(run, same_job=run.run.job_id == job))
        job = run.run.job_id


def _print_group(connection: Connection, selectors: Sequence[Selector], runs: Sequence[RunView]) -> None:
    from queue_runner.monitor import group_summary, listing

    colour = tables.in_colour()
    facts = tables.facts(
        group_summary.facts(connection, runs),
        prose=("runs", "rounds", "invalid", "note"),
        commands=("command",),
        style=lambda name, _value: "doubt" if colour and name == "invalid" else "",
    )
    print(facts + "\n")
    print(listing.table(listing.jobs(connection, listing.Filter(tuple(selectors))), colour=colour))
    hint(f"mpsq report g{runs[0].group_id} compares them; mpsq show {runs[0].run} shows everything about a run")


def _print_patches(patches: Sequence[Patch], json: bool) -> None:
    """Print patches on stdout, as `git apply` takes them, and what each belongs to on stderr."""
    if json:
        print_json("mpsq.diff/1", patches=patches)
        return
    for patch in patches:
        say(f"job {patch.job}: {plain(patch.about)}")
        if patch.text is not None:
            sys.stdout.write(plain(patch.text) if sys.stdout.isatty() else patch.text)
            sys.stdout.flush()


def _text(details: Details, *, same_job: bool) -> str:
    """Return the facts of a run; those that all runs of a job share are left out after a run of the `same_job`."""
    from queue_runner.monitor import show_text

    facts = [fact for fact in show_text.facts(details) if not (same_job and fact[0] in show_text.OF_JOB)]
    styles = show_text.styles(details) if tables.in_colour() else {}
    prose = {name for name, _value in facts} - {*show_text.COPIED}
    return tables.facts(facts, prose=prose, style=lambda name, _value: styles.get(name, ""), commands=("command",))
