"""What doctor looks at beside the machine: the hooks, the desktop's notifications, the backups."""

from __future__ import annotations

import re
import shlex
import shutil
import time
from collections.abc import Iterator

from queue_runner import config, notify, units
from queue_runner.errors import MpsqError
from queue_runner.paths import Layout
from queue_runner.store.backup import stored

Found = tuple[str, str, str, str]
"""Name, verdict, finding and what mends it: the fields of doctor.Check."""
_STALE_S = 7 * 86400.0
"""A newest backup that lacks more than a week of changes is worth a word."""
_SHELL_WORDS = frozenset({"if", "for", "while", "case", "exit", "cd", "export", "eval", "exec", "trap", ".", ":"})


def hooks(layout: Layout) -> Iterator[Found]:
    """Whether what the settings want called can be called."""
    try:
        settings = config.load(layout.config)
    except MpsqError as error:
        yield ("hooks", "warn", error.message, error.hint)
        return
    lines = {name: getattr(settings, f"hook_{name}") for name in ("done", "failed", "idle")}
    missing = [f"hook_{name}: {word}" for name, line in lines.items() if (word := _missing(line))]
    if missing:
        yield ("hooks", "warn", f"no such program: {', '.join(missing)}", "mend the line: mpsq config set")
    else:
        told = ", ".join(name for name, line in lines.items() if line) or "none"
        yield ("hooks", "ok", told + ("; mpsq status shows those that fail" if told != "none" else ""), "")
    if settings.notify != "off":
        found = shutil.which(notify.program())
        finding = f"{settings.notify}, by {found or notify.program()}"
        yield (
            "notify",
            "ok" if found else "warn",
            finding + ("" if found else ", which is not there"),
            notify.remedy(),
        )


def _missing(line: str) -> str | None:
    """The first word of a command line, where it is a plain name or path of a program and there is none."""
    try:
        words = shlex.split(line)
    except ValueError:
        return None  # for sh to say
    if not words or not re.fullmatch(r"[\w./+-]+", words[0]) or words[0] in _SHELL_WORDS:
        return None
    return None if shutil.which(words[0]) else words[0]


def backups(layout: Layout) -> Found:
    """Whether there is a backup, and how old the newest is."""
    newest = next(reversed(stored(layout.backups)), None) if layout.backups.is_dir() else None
    if newest is None:
        return ("backups", "ok", "none yet: the worker makes one when nothing runs", "")
    age_s = max(time.time() - newest.stat().st_mtime, 0.0)
    stale = age_s > _STALE_S and layout.db.exists() and layout.db.stat().st_mtime - newest.stat().st_mtime > _STALE_S
    finding = f"the newest is {units.duration(age_s)} old"
    return ("backups", "warn" if stale else "ok", finding, "mpsq db backup makes one; the worker's log says why not")
