"""mpsq gallery."""

from __future__ import annotations

from typing import Annotated

import typer

from queue_runner import tables
from queue_runner.cli.common import Ids, Tags, groups, home, new_app
from queue_runner.cli.run_selection import Group, Since, Where

app = new_app()


@app.command("gallery", epilog="The same as mpsq report gallery, which also writes --html. Example: mpsq gallery")
def gallery(
    ids: Ids = None,
    where: Where = None,
    group: Group = None,
    tag: Tags = None,
    since: Since = None,
    all: Annotated[bool, typer.Option("--all", help="Include invalid runs.")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Show everything behind it: footnotes, details.")] = False,
    format: Annotated[str, typer.Option(help="The output format.")] = "table",
    json: Annotated[bool, typer.Option("--json", help="Same as --format json; docs/json.md describes it.")] = False,
) -> None:
    """Show the machines side by side, this one and those of merged bundles; never as a ratio."""
    from queue_runner import reports
    from queue_runner.reports._common import printing
    from queue_runner.reports._common.options import read_options
    from queue_runner.store.read import reading

    format = "json" if json else tables.check_format(format)
    selectors = [*(ids or ()), *groups(group)]
    options = read_options(selectors=selectors, tags=tag or (), where=where or (), since=since, include_invalid=all)
    with reading(home().db) as connection:
        result = reports.run("gallery", connection, options)
    print(printing.as_text("gallery", result, format, explain=explain, colour=tables.in_colour()))
