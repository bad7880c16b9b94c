"""mpsq import."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from queue_runner import units
from queue_runner.cli.common import Json, hint, new_app, print_json
from queue_runner.text import plain

app = new_app()


@app.command("import")
def import_(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Logs of runs that have ended.")],
    parser: Annotated[str | None, typer.Option(help="The format of the log; default: detected.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Known properties of the runs: device=mps, compile=on. Repeatable."
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="The name in lists and reports; default: the file's name.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="A tag for selecting jobs. Repeatable.")] = None,
    json: Json = False,
) -> None:
    """Import the logs of runs made elsewhere."""
    from queue_runner import redact
    from queue_runner.control import import_log
    from queue_runner.host.home import ensure_home
    from queue_runner.ingest import parsers

    labels = redact.assignments(set_ or (), "--set")
    if name is not None:
        labels["name"] = name
    if parser is not None:
        parsers.find(parser)
    found = import_log.import_logs(ensure_home(), files, parser, labels, tuple(tag or ()))
    if json:
        print_json("mpsq.import/1", runs=[asdict(one) for one in found])
        return
    for one in found:
        real = f", {units.seconds(one.real_s)} s real" if one.real_s is not None else ""
        count = units.counted(one.iterations, "iteration")
        print(plain(f"run {one.run}: {Path(one.file).name}, read as {one.parser}: {count}{real}"))
        if not one.iterations:
            hint(f"it has no times of single iterations: mpsq show {one.run} shows its contents")
    hint("mpsq report compares them")
