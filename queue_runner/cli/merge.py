"""mpsq merge."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from queue_runner.cli.common import Json, hint, new_app, print_json, remark
from queue_runner.errors import UsageError
from queue_runner.text import plain
from queue_runner.units import count, counted

app = new_app()


@app.command(
    "merge",
    epilog="Everything is checked before anything is stored; twice is once. docs/data.md describes bundles.",
)
def merge(
    files: Annotated[
        list[Path], typer.Argument(metavar="BUNDLE...", help="Files of mpsq export --bundle; - is standard input.")
    ],
    json: Json = False,
) -> None:
    """Add the runs of other machines, from their bundles, as tables of their own."""
    from queue_runner.bundles import merge as use_case
    from queue_runner.host.home import ensure_home

    given = [(str(path), _data(path)) for path in files]
    found = use_case.merge(ensure_home(), given)
    if json:
        print_json("mpsq.merge/1", bundles=[asdict(one) for one in found])
        return
    for one in found:
        there = [f"{counted(one.known, 'run')} here already"] if one.known else []
        there += [f"{counted(one.own, 'run')} of this queue itself"] if one.own else []
        new = f"{counted(one.runs, 'new run')} of {counted(one.jobs, 'new job')}, {count(one.iterations)} iterations"
        print(plain(f"{' '.join([*one.groups, one.file])}: {'; '.join([new, *there])}"))
        for machine in one.machines:
            print(plain(f"  on {machine}"))
        print(plain(f"  report of its points: {one.report}"))
    remark("hashes show damage, not who wrote a bundle: merge those of people whom you trust")
    hint("mpsq gallery puts the machines side by side")


def _data(path: Path) -> bytes:
    from queue_runner.bundles.file import MOST_FILE_BYTES
    from queue_runner.run_dir import read_regular

    if str(path) == "-":
        return sys.stdin.buffer.read(MOST_FILE_BYTES + 1)
    try:
        return read_regular(path.resolve(), MOST_FILE_BYTES + 1)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror}", "name the file that mpsq export --bundle wrote"
        ) from error
