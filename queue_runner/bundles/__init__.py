"""Bundles: the results of whole submissions as one file, for another machine (docs/data.md).

`collect` reads a queue, without what is nobody's business; `parts`, `question` and `fingerprint` say what a bundle may
hold; `scratch` is the database in which both sides compute summary, taints and report from the points alone; `file` is
the format; `merge` stores, and `identity` says what no later bundle may change.
"""

from __future__ import annotations

from collections.abc import Sequence

from queue_runner.bundles import collect, file
from queue_runner.bundles.scratch import scratch
from queue_runner.model import Selector
from queue_runner.paths import Layout
from queue_runner.store.read import reading


def export(layout: Layout, selectors: Sequence[Selector]) -> tuple[bytes, int]:
    """Return a bundle of whole submissions, and how many of their runs have not ended and so are not in it.

    Raises: UsageError for what is no submission that ran here, MpsqError for what a bundle cannot hold.
    """
    with reading(layout.db) as connection, scratch(connection) as content:
        connection.execute("BEGIN")
        n_left = collect.collect(layout, connection, selectors, content)
        content.judge()
        return file.pack(content), n_left
