"""Paths that users give in settings."""

from __future__ import annotations

from pathlib import Path

from harness.errors import UsageError


def expanded(text: str) -> Path:
    """Return a path with the home of a leading ~. Raises: UsageError for ~user without a home."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise UsageError(f"{text} begins with the home of a user that does not exist", "write the whole path") from None
