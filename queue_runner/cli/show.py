"""mpsq show."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from queue_runner import tables
from queue_runner.cli.common import IdsOrLast, Json, Tags, chosen, hint, home, new_app, print_json, say
from queue_runner.model import Row
from queue_runner.text import plain

if TYPE_CHECKING:
    from sqlite3 import Connection

    from queue_runner.model import Selector
    from queue_runner.monitor.show import Patch

app = new_app()


@app.command("show")
def show(
    ids: IdsOrLast = None,
    tag: Tags = None,
    diff: Annotated[bool, typer.Option("--diff", help="Print only the patch of its code.")] = False,
    json: Json = False,
) -> None:
    """Show everything known about a job or a run, or the summary of a group."""
    from queue_runner.monitor import group_summary
    from queue_runner.monitor import show as use_case
    from queue_runner.store.read import reading, select

    layout, selectors = home(), chosen(ids, tag, "@last")
    if diff:
        with reading(layout.db) as connection:
            patches = use_case.patches(connection, select(connection, selectors))
        _print_patches(patches, json)
        return
    with reading(layout.db) as connection:
        rows = select(connection, selectors)
        if not json and group_summary.of_one_group(selectors, rows):
            _print_group(connection, selectors, rows)
            return
        found = [use_case.details(layout, connection, row) for row in rows]
    if json:
        print_json("mpsq.show/1", runs=found)
        return
    for before, one in zip([None, *found], found, strict=False):
        again = before is not None and before["run"]["job_id"] == one["run"]["job_id"]
        print(("\n" if before is not None else "") + _text(one, again))


def _print_group(connection: Connection, selectors: Sequence[Selector], rows: Sequence[Row]) -> None:
    from queue_runner.monitor import group_summary, job_table, listing

    colour = tables.in_colour()
    facts = tables.facts(
        group_summary.facts(connection, rows),
        prose=("ended", "invalid", "remark"),
        style=lambda name, _value: "doubt" if colour and name == "invalid" else "",
    )
    print(facts + "\n")
    print(job_table.jobs(listing.jobs(connection, listing.Filter(tuple(selectors))), colour=colour))
    group = rows[0]["group_id"]
    hint(f"mpsq report g{group} compares them; mpsq show {rows[0]['run']} shows everything about a run")


def _print_patches(patches: Sequence[Patch], json: bool) -> None:
    """Print patches on stdout, as `git apply` takes them, and what each belongs to on stderr."""
    if json:
        print_json("mpsq.diff/1", patches=[asdict(one) for one in patches])
        return
    for one in patches:
        say(f"job {one.job}: {plain(one.about)}")
        if one.text is not None:
            sys.stdout.write(plain(one.text) if sys.stdout.isatty() else one.text)
            sys.stdout.flush()


def _text(one: Row, again: bool) -> str:
    from queue_runner.monitor import show_text

    shown = [(name, value) for name, value in show_text.facts(one) if not (again and name in show_text.OF_JOB)]
    styles = show_text.styles(one) if tables.in_colour() else {}
    return tables.facts(shown, prose=show_text.PROSE, style=lambda name, _value: styles.get(name, ""))
