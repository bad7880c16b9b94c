"""The worker's own backups: made between two runs, never beside one; the newest few are kept.

A backup reads and writes the whole database, which would disturb a measurement. So it is made while holding the lane
lock and nothing waits; if the queue never empties, between two runs once a backup is overdue by a whole period.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from queue_runner.config import Config
from queue_runner.errors import MpsqError
from queue_runner.paths import Layout
from queue_runner.store import backup
from queue_runner.worker.throttled_log import ThrottledLog

LOOK_AGAIN_S = 60.0
"""Interval at which the backup folder is checked."""
TRY_AGAIN_S = 3600.0
"""Time until the next try after a failed backup."""


class Backups:
    """Schedule and creation of backups."""

    def __init__(
        self,
        layout: Layout,
        config: Config,
        log: Callable[[str], None],
        *,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._layout = layout
        self._every_s = config.backup_every_s
        self._keep = config.keep_backups
        self._log = log
        self._complain = ThrottledLog(log, 24 * 3600.0, clock)
        self._now = now
        self._clock = clock
        self._born = now()
        self._look_at = 0.0
        self._overdue_s: float | None = None

    def is_due(self, something_waits: Callable[[], bool]) -> bool:
        """Return whether to make a backup now, before the next run starts. Looks at files only once a minute, and
        checks for waiting runs only when a backup may be due."""
        if not self._every_s:
            return False
        if self._clock() >= self._look_at:
            self._look_at = self._clock() + LOOK_AGAIN_S
            self._overdue_s = self._overdue()
        return self._overdue_s is not None and (self._overdue_s >= self._every_s or not something_waits())

    def _overdue(self) -> float | None:
        """Return the seconds since a backup was due; None if the newest is young enough, or up to date."""
        changed = _mtime(self._layout.db, Path(f"{self._layout.db}-wal"))
        newest = next(reversed(backup.stored(self._layout.backups)), None)
        made = _mtime(newest) if newest else None
        if changed is None:
            return None
        if made is None:
            return max(self._now() - self._born, 0.0)
        age_s = self._now() - made
        if age_s >= 0 and changed <= made:
            return None  # an identical copy would only push an older one out
        return abs(age_s) - self._every_s if abs(age_s) >= self._every_s else None  # abs: the clock was set back

    def make(self) -> None:
        """Make a backup and rotate. A failure is logged, and retried in an hour."""
        self._overdue_s = None
        try:
            began = self._clock()
            path = backup.make(self._layout, backup.AUTO)
            backup.rotate(self._layout.backups, self._keep)
            self._log(f"backup {path.name} in {self._clock() - began:.1f} s")
        except (MpsqError, OSError) as error:
            self._look_at = self._clock() + TRY_AGAIN_S
            hint = f" ({error.hint})" if isinstance(error, MpsqError) and error.hint else ""
            self._complain(f"no backup: {error}{hint}")


def _mtime(*paths: Path) -> float | None:
    found = []
    for path in paths:
        try:
            found.append(path.stat().st_mtime)
        except OSError:
            continue
    return max(found, default=None)
