"""Notes that hold for every submission: each is shown once a day. An ordinary string is shown every time."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Sequence

from queue_runner.atomic_file import replacing
from queue_runner.paths import Layout

EVERY_S = 86400.0
"""Seconds after which a repeated note is shown again."""


class RepeatedNote(str):
    """A note that the next submission would repeat word for word."""


def new(layout: Layout, notes: Sequence[str]) -> list[str]:
    """Return `notes` without the repeated ones that were shown within EVERY_S, and record the others as shown.

    A note with other words is another note. If the record cannot be read or written, a note is merely repeated.
    """
    now, shown = time.time(), dict[str, float]()
    with contextlib.suppress(OSError, ValueError, AttributeError, TypeError):
        times = json.loads(layout.shown_notes.read_text("utf-8"))
        shown = {str(key): float(at) for key, at in times.items() if 0 <= now - float(at) < EVERY_S}
    notes = [note for note in notes if not (isinstance(note, RepeatedNote) and _key(note) in shown)]
    record = shown | {_key(note): now for note in notes if isinstance(note, RepeatedNote)}
    if record != shown:
        with contextlib.suppress(OSError), replacing(layout.shown_notes, durable=False) as partial:
            partial.write_text(json.dumps(record), "utf-8")
    return notes


def _key(note: str) -> str:
    return hashlib.sha256(note.encode("utf-8", "surrogateescape")).hexdigest()[:16]
