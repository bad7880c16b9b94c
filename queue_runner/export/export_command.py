"""mpsq export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from queue_runner.cli.common import Ids, Json, added_option, home, new_app, print_json
from queue_runner.cli.run_selection import Selection, with_selection
from queue_runner.errors import UsageError
from queue_runner.export import formats
from queue_runner.units import count, counted

app = new_app()


@app.command(
    "export",
    epilog=f"Targets: {', '.join(formats.names())}. docs/data.md describes the files. "
    "Examples: mpsq export --to parquet out g4; mpsq export --bundle g4 > g4.mpsq",
)
@with_selection
def export(
    ctx: typer.Context,
    out: Annotated[Path | None, typer.Argument(metavar="[FOLDER]", help="The new folder.")] = None,
    ids: Ids = None,
    to: Annotated[str | None, typer.Option(metavar="TARGET", help="What to write.")] = None,
    *,
    selection: Selection,
    json: Json = False,
) -> None:
    """Write runs, iterations and metrics to files of other tools, or a bundle for another machine."""
    from queue_runner.store.read import reading

    if (write_added := added_option(ctx)) is not None:
        write_added(other_options=bool(out or ids or to or selection.given or json))
        return
    if to is None or out is None:
        missing = "a target" if to is None else "a folder"
        raise UsageError(f"export needs {missing}", f"mpsq export --to {formats.names()[0]} out g4")
    options = selection.read(ids or [])
    with reading(home().db) as connection:
        done = formats.write(to, connection, options, out)
    if json:
        print_json("mpsq.export/1", target=done.target, path=str(done.path), rows=done.rows, not_valid=done.n_not_valid)
        return
    runs, *others = done.rows.items()
    of_them = f" ({count(done.n_not_valid)} of them are in no report)" if done.n_not_valid else ""
    rest = ", ".join(f"{count(n)} {name}" for name, n in others)
    print(f"{done.path}: {counted(runs[1], 'run')}{of_them}, {rest}")
