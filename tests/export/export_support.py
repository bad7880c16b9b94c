"""An export as `mpsq export` makes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from queue_runner.export import formats
from queue_runner.reports._common.report_options import read_options
from queue_runner.store import read
from tests.reports.report_fixture import Store

TIMES = [0.5, 0.25, 0.125]
"""Seconds of the iterations of every run."""


def write(store: Store, target: str, out: Path, *ids: str, **options: Any) -> formats.Exported:
    with read.reading(store.layout.db) as connection:
        return formats.write(target, connection, read_options(selectors=ids, **options), out)
