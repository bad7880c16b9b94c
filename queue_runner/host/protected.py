"""The folders that macOS (TCC) guards: a program in the background is refused there, or blocked by a prompt."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

SLOW = "a network drive that does not answer, or a folder for which macOS waits for permission: mpsq doctor"
"""Usual causes of a read that does not end, and the remedy."""
_IN_HOME = ("Documents", "Desktop", "Downloads", "Library/Mobile Documents", "Library/CloudStorage")
REMEDY = (
    "a background worker is refused there, or waits for a prompt that nobody sees: move the files, for example below"
    " ~/src, or allow access in System Settings, Privacy & Security, Files and Folders"
)


def place(path: Path, user_home: Path) -> str | None:
    """Return the guarded folder that contains `path`, else None. Access there fails with EPERM in a service even though
    it works in a terminal, so the error must not be read as "missing"."""
    for candidate in (path, path.resolve()):
        text = str(candidate).casefold()
        for name in _IN_HOME:
            if (text + "/").startswith(str(user_home / name).casefold() + "/"):
                return f"~/{name}"
    if path.resolve().is_relative_to("/Volumes"):
        return "another volume"
    return None


def found(paths: Iterable[str], *, system: str = sys.platform, user_home: Path | None = None) -> dict[str, str]:
    """Return those of the paths that are guarded, each with its guarded folder; nothing but on macOS."""
    if system != "darwin":
        return {}
    home = user_home or Path.home()
    return {path: known for path in dict.fromkeys(paths) if (known := place(Path(path), home))}
