"""mpsq export."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from queue_runner import export as targets
from queue_runner.cli.common import Ids, Json, groups, home, new_app, print_json, remark
from queue_runner.cli.run_selection import Selection, with_selection
from queue_runner.errors import UsageError
from queue_runner.model import parse_selector
from queue_runner.units import count, counted

app = new_app()


@app.command(
    "export",
    epilog=f"Targets: {', '.join(targets.names())}. docs/data.md describes what is written. "
    "Examples: mpsq export --to parquet out g4; mpsq export --bundle g4 > g4.mpsq",
)
@with_selection
def export(
    out: Annotated[Path | None, typer.Argument(metavar="[FOLDER]", help="The new folder.")] = None,
    ids: Ids = None,
    to: Annotated[str | None, typer.Option(metavar="TARGET", help="What to write.")] = None,
    bundle: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GROUP",
            help="Write a whole submission to standard output, for mpsq import on another machine. Repeatable.",
        ),
    ] = None,
    *,
    selection: Selection,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier export.")] = False,
    json: Json = False,
) -> None:
    """Write runs, iterations and metrics to files of other tools, or a bundle for another machine."""
    from queue_runner.store.read import reading

    if bundle:
        if out or ids or to or selection.given or force or json:
            raise UsageError("--bundle writes whole submissions to standard output: it goes with no other option", HOW)
        _bundle(bundle)
        return
    if to is None or out is None:
        what = "a target" if to is None else "a folder"
        raise UsageError(f"export needs {what}", f"mpsq export --to {targets.names()[0]} out g4; {HOW}")
    if to == "bundle":
        raise UsageError("a bundle is one file, on standard output", HOW)
    options = selection.read(ids or [])
    with reading(home().db) as connection:
        done = targets.write(to, connection, options, out, force=force)
    if json:
        print_json("mpsq.export/1", target=done.target, path=str(done.path), rows=done.rows, not_valid=done.n_not_valid)
        return
    runs, *others = done.rows.items()
    of_them = f" ({count(done.n_not_valid)} of them not valid)" if done.n_not_valid else ""
    rest = ", ".join(f"{count(n)} {name}" for name, n in others)
    print(f"{done.path}: {counted(runs[1], 'run')}{of_them}, {rest}")


HOW = "mpsq export --bundle g4 > g4.mpsq"


def _bundle(names: list[str]) -> None:
    from queue_runner import bundles

    if sys.stdout.isatty():
        raise UsageError("a bundle is no text for a terminal", HOW)
    data, n_left = bundles.export(home(), [parse_selector(text) for text in groups(names)])
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
    if n_left:
        remark(f"{counted(n_left, 'run')} not ended yet: not in the bundle; a later one adds them")
