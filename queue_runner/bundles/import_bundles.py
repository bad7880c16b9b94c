"""`mpsq import BUNDLE...`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from msgspec import to_builtins

from queue_runner.bundles import merge
from queue_runner.bundles.file import MOST_FILE_BYTES
from queue_runner.cli.common import hint, print_json, remark
from queue_runner.errors import UsageError
from queue_runner.host.home import ensure_home
from queue_runner.host.run_dir import read_regular
from queue_runner.text import plain
from queue_runner.units import count, counted

_GZIP = b"\x1f\x8b"  # RFC 1952


def recognizes(path: Path) -> bool:
    """Return whether a file is compressed as a bundle is, which no readable log is."""
    if str(path) == "-":
        return True
    if not path.is_file():  # opening a FIFO would wait for its writer
        return False
    try:
        with path.open("rb") as file:
            return file.read(2) == _GZIP
    except OSError:
        return False  # the reader of logs reports it


def import_files(paths: Sequence[Path], json: bool) -> None:
    """Add the runs of bundles to the queue. Raises: UsageError for a file that cannot be read or is not a bundle."""
    merged = merge.merge(ensure_home(), [(str(path), _read(path)) for path in paths])
    if json:
        print_json("mpsq.merge/1", bundles=to_builtins(merged))
        return
    for bundle in merged:
        parts = [f"{counted(bundle.runs, 'new run')} of {counted(bundle.jobs, 'new job')}"]
        parts[0] += f", {count(bundle.iterations)} iterations"
        parts += [f"{counted(bundle.known, 'run')} here already"] if bundle.known else []
        parts += [f"{counted(bundle.from_here, 'run')} of this queue itself"] if bundle.from_here else []
        print(plain(f"{' '.join([*bundle.groups, bundle.file])}: {'; '.join(parts)}"))
        for machine in bundle.machines:
            print(plain(f"  on {machine}"))
        print(plain(f"  report of its points: {bundle.report}"))
    remark("hashes show damage, not who wrote a bundle: import bundles only from people whom you trust")
    hint("mpsq report gallery puts the machines side by side")


def _read(path: Path) -> bytes:
    if str(path) == "-":
        return sys.stdin.buffer.read(MOST_FILE_BYTES + 1)
    try:
        return read_regular(path.resolve(), MOST_FILE_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", "name a file of mpsq export --bundle") from error
