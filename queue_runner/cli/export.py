"""mpsq export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from queue_runner.cli.common import Ids, Json, Tags, groups, home, new_app, print_json
from queue_runner.cli.run_selection import Group, Since, Where
from queue_runner.units import count, counted

app = new_app()

EPILOG = (
    "Targets: csv, jsonl, parquet, tensorboard, mlflow. docs/data.md describes what is written. "
    "Example: mpsq export --to parquet out g4"
)


@app.command("export", epilog=EPILOG)
def export(
    out: Annotated[Path, typer.Argument(metavar="FOLDER", help="The new folder.")],
    ids: Ids = None,
    to: Annotated[str, typer.Option(metavar="TARGET", help="What to write.")] = ...,  # type: ignore[assignment]
    where: Where = None,
    group: Group = None,
    tag: Tags = None,
    since: Since = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier export.")] = False,
    json: Json = False,
) -> None:
    """Write runs, iterations, evaluations and metrics to files of other tools."""
    from queue_runner import export as targets
    from queue_runner.reports._common.options import read_options
    from queue_runner.store.read import reading

    options = read_options(selectors=[*(ids or ()), *groups(group)], tags=tag or (), where=where or (), since=since)
    with reading(home().db) as connection:
        done = targets.write(to, connection, options, out, force=force)
    if json:
        print_json("mpsq.export/1", target=done.target, path=str(done.path), rows=done.rows, not_valid=done.n_not_valid)
        return
    runs, *others = done.rows.items()
    of_them = f" ({count(done.n_not_valid)} of them not valid)" if done.n_not_valid else ""
    rest = ", ".join(f"{count(n)} {name}" for name, n in others)
    print(f"{done.path}: {counted(runs[1], 'run')}{of_them}, {rest}")
