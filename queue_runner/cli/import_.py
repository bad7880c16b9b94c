"""mpsq import."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from queue_runner import extensions, units
from queue_runner.cli.common import Json, hint, new_app, new_home, print_json
from queue_runner.errors import UsageError
from queue_runner.ingest import parsers
from queue_runner.text import plain

app = new_app()


@app.command("import", epilog="docs/data.md describes bundles.")
def import_(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...", help="Logs of runs that have ended, or bundles; - is a bundle on standard input."
        ),
    ],
    parser: Annotated[
        str | None,
        typer.Option(metavar="NAME", help=f"The format of the log: {', '.join(parsers.names())}; default: detected."),
    ] = None,
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
    """Import the logs of runs made elsewhere, or bundles of mpsq export --bundle.

    Everything is checked before anything is stored. Runs of a bundle are rows of their own in reports.
    """
    from queue_runner.control import import_log
    from queue_runner.host import redact

    for importer in extensions.importers():
        recognized = [path for path in files if importer.recognizes(path)]
        if recognized and (len(recognized) < len(files) or parser or set_ or name or tag):
            raise UsageError(
                "a bundle cannot be imported together with logs or options", "run mpsq import once for each"
            )
        if recognized:
            importer.import_files(files, json)
            return

    labels = redact.assignments(set_ or (), "--set")
    if name is not None:
        labels["name"] = name
    if parser is not None:
        parsers.find(parser)
    runs = import_log.import_logs(new_home(), files, parser, labels, tuple(tag or ()))
    if json:
        print_json("mpsq.import/1", runs=runs)
        return
    for run in runs:
        real = f", {units.seconds(run.real_s)} s real" if run.real_s is not None else ""
        count = units.counted(run.iterations, "iteration")
        print(plain(f"run {run.run}: {Path(run.file).name}, read as {run.parser}: {count}{real}"))
        if run.outcome != "SUCCEEDED":
            hint(f"it counts as {run.outcome}, and reports leave it out unless you pass --all: {plain(run.reason)}")
        if not run.iterations:
            hint(f"it has no time for each iteration: mpsq show {run.run} shows its contents")
    hint("mpsq report compares them")
