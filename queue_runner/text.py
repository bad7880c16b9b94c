"""Text from jobs and names from users, made safe to show: no terminal escapes, no control characters."""

from __future__ import annotations

import re

_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[PX^_][^\x1b]*(?:\x1b\\)?|[ -/]*[0-~])"
)
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def plain(text: str) -> str:
    """`text` without ANSI escapes and without control characters; tabs and newlines stay."""
    return _CONTROLS.sub("", _ESCAPES.sub("", text))


def last_line(data: bytes, limit: int = 300) -> str:
    """The last line of a log that says something, safe to show, at most `limit` characters long."""
    for line in reversed(re.split(r"[\r\n]+", data.decode("utf-8", "replace"))):
        if shown := plain(line).strip():
            return shown if len(shown) <= limit else shown[: limit - 1] + "…"
    return ""
