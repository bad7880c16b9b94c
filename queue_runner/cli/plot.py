"""mpsq plot."""

from __future__ import annotations

from pathlib import Path
from shutil import get_terminal_size
from typing import Annotated

import typer

from queue_runner import tables
from queue_runner.cli.common import Ids, Tags, groups, home, new_app, say
from queue_runner.cli.run_selection import Group, GroupBy, Iters, Since, Vs, Where

app = new_app()

EPILOG = "Example: mpsq plot g4 -o g4.png. Needs the extra plot: matplotlib for files, plotext for terminals."


@app.command("plot", epilog=EPILOG)
def plot(
    ids: Ids = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="A .png or .svg file. Default: draw on the terminal."),
    ] = None,
    vs: Vs = None,
    where: Where = None,
    group: Group = None,
    tag: Tags = None,
    group_by: GroupBy = None,
    since: Since = None,
    iters: Iters = None,
    all: Annotated[bool, typer.Option("--all", help="Include invalid runs in the numbers of a row.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
) -> None:
    """Draw the rows of a report: their runs, speedups with intervals, time and loss over iterations."""
    from queue_runner.export._plot import picture, series, terminal
    from queue_runner.reports._common.options import read_options
    from queue_runner.store.read import reading

    options = read_options(
        selectors=[*(ids or ()), *groups(group)],
        tags=tag or (),
        where=where or (),
        since=since,
        vs=vs,
        group_by=group_by,
        iters=iters,
        include_invalid=all,
    )
    if output is not None:
        picture.check(output, force=force)
    with reading(home().db) as connection:
        found = series.read(connection, options)
    if output is None:
        print(terminal.draw(found, get_terminal_size().columns, colour=tables.in_colour()))
    else:
        picture.write(found, output, force=force)
        print(f"{output}: {found.said()}")
    for note in [*found.notes, *series.without_numbers(found)]:
        say(note)
