"""Standing notes: sentences that hold for every submission alike, and are said once a day.

A note about one submission is an ordinary string, and is said each time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Sequence

from queue_runner.atomic_file import replacing
from queue_runner.paths import Layout

EVERY_S = 86400.0
"""Seconds after which a standing note is said again."""


class Standing(str):
    """A note that the next submission would repeat word for word."""


def news(layout: Layout, notes: Sequence[str]) -> list[str]:
    """Return `notes` without the standing ones that were said within EVERY_S, and record those that are left as said.

    A note whose words have changed is another note. A record that cannot be read or written costs a repetition only.
    """
    now = time.time()
    repeated = _read(layout, now)
    new = [note for note in notes if not (isinstance(note, Standing) and _key(note) in repeated)]
    fresh = {_key(note): now for note in new if isinstance(note, Standing)}
    if fresh:
        with contextlib.suppress(OSError), replacing(layout.said, durable=False) as partial:
            partial.write_text(json.dumps(repeated | fresh), "utf-8")
    return new


def _read(layout: Layout, now: float) -> dict[str, float]:
    """Return when each note was said that need not be repeated yet, by its key."""
    try:
        times = json.loads(layout.said.read_text("utf-8"))
        return {str(key): float(at) for key, at in times.items() if 0 <= now - float(at) < EVERY_S}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def _key(note: str) -> str:
    return hashlib.sha256(note.encode("utf-8", "surrogateescape")).hexdigest()[:16]
