"""Code of a candidate that speaks to mpsq, or sets a clock, where the champion's does not: refused before it runs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from queue_runner.errors import UsageError
from queue_runner.paths import Layout
from queue_runner.source.archive import read_manifest
from queue_runner.spec import JobSpec

_TRICKS = re.compile(
    rb"\b(MPSQ_(?:SEED|EVENTS|RUN|HOME|T0|TRAINED)|mpsq_report"
    rb"|(?:time\.(?:time|monotonic)|perf_counter)(?:_ns)?(?= *=[^=]))\b"
)
"""Variables of mpsq that tell a run who judges it, its module, and an assignment to a clock of Python's."""
_MOST_BYTES = 1 << 20
"""A larger file is not source code."""


def refuse(layout: Layout, specs: Sequence[JobSpec]) -> None:
    """Raise UsageError if the last of the jobs, the candidate, mentions mpsq or sets a clock more often than the first.

    Raises: archive.Damaged when a stored tree is torn.
    """
    if not all(spec.tree for spec in specs):
        return  # their code is not stored
    champion, candidate = (mentions(layout, spec.tree) for spec in (specs[0], specs[-1]))
    for word, n in (candidate - champion).items():
        raise UsageError(
            f"the candidate mentions {word} {n} more times than the champion: it may read the seed or set the clock",
            "change that in the champion first, if both should have it",
        )


def mentions(layout: Layout, tree: str) -> Counter[str]:
    """Return how often the files of a stored tree have each of these words."""
    counts: Counter[str] = Counter()
    for place in read_manifest(layout.snapshots, tree).places.values():
        if place.size <= _MOST_BYTES:
            with (layout.snapshots / place.file).open("rb") as stream:
                stream.seek(place.offset)
                text = stream.read(place.size)
            if b"\0" not in text:
                counts.update(word.decode() for word in _TRICKS.findall(text))
    return counts
