"""Types of values in bundles, as msgspec checks them: harmless texts, and numbers that every later sum can hold."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from queue_runner.errors import MpsqError
from queue_runner.events import MAX_INT
from queue_runner.spec import MOST_NAME

MOST_TEXT = 10_000
MOST_ITEMS = 10_000
"""Values in one JSON value."""
MOST_FACTS = 1000
"""Settings, packages, words, variables or GPUs in one field."""
MOST_SECONDS = 1e12
"""Durations: far beyond any, and far below where sums overflow."""
MOST_VALUE = 1e30
_CONTROLS = r"\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069"
"""What text.plain removes."""
_UNPRINTABLE = (
    r"\t\n\xa0\xad\u061c\u1680\u180e\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ud800-\uf8ff\ufeff\ufff9-\uffff"
)
"""What a terminal or a page may take for something else than a letter."""

Count = Annotated[int, Meta(ge=0, le=MAX_INT)]
Integer = Annotated[int, Meta(ge=-MAX_INT, le=MAX_INT)]
Digest = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
Prose = Annotated[str, Meta(max_length=MOST_TEXT, pattern=rf"\A[^{_CONTROLS}\ud800-\udfff]*\Z")]
"""A text of several lines, without control characters."""
Name = Annotated[str, Meta(max_length=MOST_NAME, pattern=rf"\A[^<>{_CONTROLS}{_UNPRINTABLE}]*\Z")]
"""One line without text that a terminal or a page would take for a command."""
Fact = Name | Integer | Annotated[float, Meta(ge=-float(MAX_INT), le=float(MAX_INT))] | bool


class BadBundle(MpsqError):
    """The file is damaged, is not a bundle, or has content that a bundle may not have: it is refused whole."""

    def __init__(self, reason: str, hint: str = "ask for it again: nothing of it was stored") -> None:
        super().__init__(f"this bundle is refused: {reason}", hint)
        self.reason = reason
