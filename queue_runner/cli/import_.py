"""mpsq import."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from queue_runner import units
from queue_runner.cli.common import Json, hint, new_app, print_json, remark
from queue_runner.errors import UsageError
from queue_runner.ingest import parsers
from queue_runner.text import plain

app = new_app()


@app.command("import", epilog="docs/data.md describes bundles and the formats of logs.")
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
    from queue_runner import redact
    from queue_runner.control import import_log
    from queue_runner.host.home import ensure_home

    bundles = [path for path in files if _is_bundle(path)]
    if bundles:
        if len(bundles) < len(files) or parser or set_ or name or tag:
            raise UsageError("a bundle is imported without options and without logs", "run mpsq import once for each")
        _import_bundles(files, json)
        return

    labels = redact.assignments(set_ or (), "--set")
    if name is not None:
        labels["name"] = name
    if parser is not None:
        parsers.find(parser)
    runs = import_log.import_logs(ensure_home(), files, parser, labels, tuple(tag or ()))
    if json:
        print_json("mpsq.import/1", runs=[asdict(run) for run in runs])
        return
    for run in runs:
        real = f", {units.seconds(run.real_s)} s real" if run.real_s is not None else ""
        count = units.counted(run.iterations, "iteration")
        print(plain(f"run {run.run}: {Path(run.file).name}, read as {run.parser}: {count}{real}"))
        if run.outcome != "SUCCEEDED":
            hint(f"it counts as {run.outcome}, and reports leave it out unless --all: {plain(run.reason)}")
        if not run.iterations:
            hint(f"it has no times of single iterations: mpsq show {run.run} shows its contents")
    hint("mpsq report compares them")


def _is_bundle(path: Path) -> bool:
    """Return whether a file is compressed by gzip (RFC 1952), as a bundle is and no log that can be read."""
    if str(path) == "-":
        return True
    try:
        with path.open("rb") as file:
            return file.read(2) == b"\x1f\x8b"
    except OSError:
        return False  # the reader of logs reports it


def _import_bundles(files: list[Path], json: bool) -> None:
    from queue_runner.bundles import merge
    from queue_runner.host.home import ensure_home
    from queue_runner.units import count, counted

    merged = merge.merge(ensure_home(), [(str(path), _data(path)) for path in files])
    if json:
        print_json("mpsq.merge/1", bundles=[asdict(bundle) for bundle in merged])
        return
    for bundle in merged:
        parts = [f"{counted(bundle.runs, 'new run')} of {counted(bundle.jobs, 'new job')}"]
        parts[0] += f", {count(bundle.iterations)} iterations"
        parts += [f"{counted(bundle.known, 'run')} here already"] if bundle.known else []
        parts += [f"{counted(bundle.own, 'run')} of this queue itself"] if bundle.own else []
        print(plain(f"{' '.join([*bundle.groups, bundle.file])}: {'; '.join(parts)}"))
        for machine in bundle.machines:
            print(plain(f"  on {machine}"))
        print(plain(f"  report of its points: {bundle.report}"))
    remark("hashes show damage, not who wrote a bundle: import bundles only from people whom you trust")
    hint("mpsq report gallery puts the machines side by side")


def _data(path: Path) -> bytes:
    from queue_runner.bundles.file import MOST_FILE_BYTES
    from queue_runner.run_dir import read_regular

    if str(path) == "-":
        return sys.stdin.buffer.read(MOST_FILE_BYTES + 1)
    try:
        return read_regular(path.resolve(), MOST_FILE_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", "name a file of mpsq export --bundle") from error
