"""The worker's own backups: made between two runs, never beside one; the newest few are kept.

A backup reads and writes the whole database, which would disturb a measurement. So it is made while holding the lane
lock and nothing waits; if the queue never empties, between two runs once a backup is overdue by a whole period.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from queue_runner.config_file import Config
from queue_runner.errors import MpsqError
from queue_runner.paths import Layout
from queue_runner.store import backup
from queue_runner.store.engine import open_engine
from queue_runner.store.private_files import forget_secrets
from queue_runner.worker.now import Clocks
from queue_runner.worker.throttled_log import ThrottledLog

LOOK_AGAIN_S = 60.0
"""Interval at which the backup folder is checked."""
TRY_AGAIN_S = 3600.0
"""Time until the next try after a failed backup."""


class Backups:
    """Schedule and creation of backups."""

    def __init__(self, layout: Layout, config: Config, log: Callable[[str], None], clocks: Clocks) -> None:
        self._layout = layout
        self._every_s = config.backup_every_s
        self._keep = config.keep_backups
        self._log = log
        self._clocks = clocks
        self._complain = ThrottledLog(log, 24 * 3600.0, self._clocks.steady)
        self._born = self._clocks.wall()
        self._look_at = 0.0
        self._overdue_s: float | None = None

    def overdue_s(self) -> float | None:
        """Return the seconds since a backup was due; None if none is. Looks at files only once a minute."""
        if self._every_s and self._clocks.steady() >= self._look_at:
            self._look_at = self._clocks.steady() + LOOK_AGAIN_S
            self._overdue_s = self._overdue()
        return self._overdue_s

    def _overdue(self) -> float | None:
        """Return the seconds since a backup was due; None if the newest is young enough, or up to date."""
        changed = _mtime(self._layout.db, Path(f"{self._layout.db}-wal"))
        newest = next(reversed(backup.stored(self._layout.backups)), None)
        made = _mtime(newest) if newest else None
        if changed is None:
            return None
        if made is None:
            return max(self._clocks.wall() - self._born, 0.0)
        age_s = self._clocks.wall() - made
        if age_s >= 0 and changed <= made:
            return None  # an identical copy would only push an older one out
        return abs(age_s) - self._every_s if abs(age_s) >= self._every_s else None  # abs: the clock was set back

    def make(self) -> None:
        """Make a backup, rotate, and remove environments that no run needs. A failure is logged; the next try is in an
        hour."""
        self._overdue_s = None
        try:
            began = self._clocks.steady()
            path = backup.make(self._layout, backup.AUTO)
            backup.rotate(self._layout.backups, self._keep)
            forget_secrets(open_engine(self._layout.db), self._layout)
            self._log(f"backup {path.name} in {self._clocks.steady() - began:.1f} s")
        except (MpsqError, OSError) as error:
            self._look_at = self._clocks.steady() + TRY_AGAIN_S
            self._complain(f"no backup: {error.with_remedy if isinstance(error, MpsqError) else error}")


def _mtime(*paths: Path) -> float | None:
    times = []
    for path in paths:
        try:
            times.append(path.stat().st_mtime)
        except OSError:
            continue
    return max(times, default=None)
