"""`mpsq export --bundle GROUP` and `mpsq import BUNDLE...`."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

from msgspec import to_builtins

from queue_runner.bundles import collect, merge
from queue_runner.bundles.convert import GZIP
from queue_runner.bundles.reading import MAGIC
from queue_runner.cli.common import hint, home, print_json, remark
from queue_runner.errors import UsageError
from queue_runner.host.home import ensure_home
from queue_runner.model import parse_selector
from queue_runner.store.read import reading
from queue_runner.text import plain
from queue_runner.units import count, counted

HOW = "mpsq export --bundle g4 > g4.mpsq"


def write_bundle(names: Sequence[str], other_options: bool) -> None:
    """Write a bundle of these submissions to standard output. Raises: UsageError, MpsqError as
    `collect.export`."""
    if other_options:
        raise UsageError("--bundle writes whole submissions to standard output and takes no other options", HOW)
    if sys.stdout.isatty():
        raise UsageError("a bundle is not text for a terminal", HOW)
    layout = home()
    with merge.temporary_folder(layout) as folder:
        path = Path(folder) / "bundle.mpsq"
        selectors = [parse_selector(f"g{text}" if text.isdecimal() else text) for text in names]
        with reading(layout.db) as connection:
            connection.execute("BEGIN")
            n_left = collect.export(layout, connection, selectors, path)
        with path.open("rb") as file:
            shutil.copyfileobj(file, sys.stdout.buffer, 1 << 20)
    sys.stdout.buffer.flush()
    if n_left:
        remark(f"{counted(n_left, 'run')} not ended yet: not in the bundle; a later one adds them")


def recognizes(path: Path) -> bool:
    """Return whether a file begins as a bundle does, which no readable log does."""
    if str(path) == "-":
        return True
    if not path.is_file():  # opening a FIFO would wait for its writer
        return False
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)).startswith((MAGIC, GZIP[:2]))
    except OSError:
        return False  # the reader of logs reports it


def import_files(paths: Sequence[Path], json: bool) -> None:
    """Add the runs of bundles to the queue. Raises: UsageError for a file that cannot be read or is not a bundle."""
    layout = ensure_home()
    with merge.temporary_folder(layout) as folder:
        merged = merge.merge(layout, [(str(path), _file(path, Path(folder))) for path in paths])
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
    remark("hashes detect damage, not forgery: import bundles only from people whom you trust")
    hint("mpsq report gallery puts the machines side by side")


def _file(path: Path, folder: Path) -> Path:
    """Return the file of a bundle; standard input becomes one in a folder."""
    if str(path) == "-":
        copy = folder / "stdin.mpsq"
        with copy.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file, 1 << 20)
        return copy
    try:
        with path.open("rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(errno.EINVAL, "it is not a file")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", "name a file of mpsq export --bundle") from error
    return path.resolve()
