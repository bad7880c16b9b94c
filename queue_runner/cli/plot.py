"""mpsq plot."""

from __future__ import annotations

from pathlib import Path
from shutil import get_terminal_size
from typing import Annotated, Any

import typer

from queue_runner import tables
from queue_runner.cli import run_selection
from queue_runner.cli.common import Ids, Json, Tags, home, new_app, print_json, say
from queue_runner.cli.run_selection import Group, GroupBy, Iters, Since, Vs, Where

app = new_app()

EPILOG = "Example: mpsq plot g4 -o g4.png. Needs the extra plot: matplotlib for files, plotext for terminals."


@app.command("plot", epilog=EPILOG)
def plot(
    ctx: typer.Context,
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
    json: Json = False,
) -> None:
    """Draw the rows of a report: their runs, speedups with intervals, time and loss over iterations.

    --json prints what is drawn instead of drawing it on the terminal.
    """
    from queue_runner.export._plot import picture, series, terminal
    from queue_runner.store.read import reading

    options = run_selection.read(ctx, ids or ())
    if output is not None:
        picture.check(output, force=force)
    with reading(home().db) as connection:
        found = series.read(connection, options)
    notes = [*found.notes, *series.without_numbers(found)]
    if output is not None:
        picture.write(found, output, force=force)
    if json:
        print_json("mpsq.plot/1", **series.summary(found), **_file(output), notes=notes)
        return
    if output is None:
        print(terminal.draw(found, get_terminal_size().columns, colour=tables.in_colour()))
    else:
        print(f"{output}: {found.said()}")
    for note in notes:
        say(note)


def _file(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {"path": None, "size_bytes": None}
    return {"path": str(path.absolute()), "size_bytes": path.stat().st_size}
