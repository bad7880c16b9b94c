"""`mpsq export --bundle GROUP`."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from queue_runner.bundles import collect
from queue_runner.cli.common import home, remark
from queue_runner.errors import UsageError
from queue_runner.model import Selector, parse_selector
from queue_runner.paths import Layout
from queue_runner.store.read import reading
from queue_runner.units import counted

HOW = "mpsq export --bundle g4 > g4.mpsq"


def write_bundle(names: Sequence[str], other_options: bool) -> None:
    """Write a bundle of these submissions to standard output. Raises: UsageError, MpsqError as `make_bundle`."""
    if other_options:
        raise UsageError("--bundle writes whole submissions to standard output and takes no other options", HOW)
    if sys.stdout.isatty():
        raise UsageError("a bundle is not text for a terminal", HOW)
    with tempfile.TemporaryDirectory(prefix="mpsq-bundle-") as folder:
        path = Path(folder) / "bundle.mpsq"
        selectors = [parse_selector(f"g{text}" if text.isdecimal() else text) for text in names]
        n_left = make_bundle(home(), selectors, path)
        with path.open("rb") as file:
            shutil.copyfileobj(file, sys.stdout.buffer, 1 << 20)
    sys.stdout.buffer.flush()
    if n_left:
        remark(f"{counted(n_left, 'run')} not ended yet: not in the bundle; a later one adds them")


def make_bundle(layout: Layout, selectors: Sequence[Selector], path: Path) -> int:
    """Write a bundle of whole submissions; return how many of their runs are not in it because they have not ended.

    Raises: UsageError for a selector that does not name a submission that ran here, MpsqError for content that a bundle
    cannot hold.
    """
    with reading(layout.db) as connection:
        connection.execute("BEGIN")
        return collect.export(layout, connection, selectors, path)
