"""mpsq import."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from queue_runner import units
from queue_runner.cli.common import Json, hint, new_app, print_json
from queue_runner.errors import UsageError
from queue_runner.ingest import parsers
from queue_runner.text import plain

app = new_app()


@app.command("import")
def import_(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Logs of runs that have ended.")],
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
    run: Annotated[
        str | None,
        typer.Option(
            "--run",
            metavar="ID",
            help="With --parser powermetrics or macmon: the run that was watched; default: those of the same time.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Import the logs of runs made elsewhere.

    With --parser powermetrics or macmon: what that tool saw while runs of this queue went on.
    """
    from queue_runner import redact
    from queue_runner.control import import_log
    from queue_runner.host.home import ensure_home
    from queue_runner.ingest import timelines

    if parser is not None and parser in timelines.names():
        if set_ or name or tag:
            raise UsageError(f"--set, --name and --tag are of a log; {parser} only adds to runs", "leave them out")
        _watched(files, parser, run, json)
        return
    if run is not None:
        raise UsageError("--run is of what watched a run", f"add --parser {' or '.join(timelines.names())}")

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
        if one.outcome != "SUCCEEDED":
            hint(f"it counts as {one.outcome}, and reports leave it out unless --all: {plain(one.reason)}")
        if not one.iterations:
            hint(f"it has no times of single iterations: mpsq show {one.run} shows its contents")
    hint("mpsq report compares them")


def _watched(files: list[Path], tool: str, run: str | None, json: bool) -> None:
    from queue_runner.control import import_timeline
    from queue_runner.host.home import ensure_home

    found = import_timeline.import_timelines(ensure_home(), files, tool, run)
    if json:
        print_json("mpsq.import/1", runs=[asdict(one) for one in found])
        return
    for one in found:
        print(plain(f"run {one.run}: {units.counted(one.samples, 'sample')} of {Path(one.file).name}, by {one.parser}"))
    hint("mpsq report utilization shows them")
