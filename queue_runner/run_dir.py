"""The folder of one run, `runs/12.3/`: who writes which file, and how each is read.

The job writes its log and its events, the CLI the cancel request, and only the warden writes under warden/. Nothing
prevents a job from writing there too, so reads are validated and never block.
"""

from __future__ import annotations

import errno
import json
import math
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from queue_runner.paths import Below

READ_MAX_BYTES = 16 << 20
"""Limit for a file that a job may have written; the warden never writes more."""
_CAUSES = ("cancel", "timeout", "stall", "output", "disk")
_TIMES = ("real_s", "slept_s", "paused_s", "user_s", "sys_s", "max_rss_bytes", "started_at", "ended_at")


@dataclass(frozen=True)
class RunDir:
    """Paths of a run's files."""

    path: Path

    spec = Below("path", "spec.json")
    secrets = Below("path", "secrets.json")
    """Path of the command line and the variables with their secrets, until the warden has read them."""
    warden_program = Below("path", "program/queue_runner/warden")
    """Path of this run's own copy of queue_runner/warden; its modules import each other by that name."""
    warden_lock = Below("path", "warden.lock")
    cancel = Below("path", "cancel")
    suspend = Below("path", "suspend")
    events = Below("path", "events.jsonl")
    stdout = Below("path", "stdout.log")
    stderr = Below("path", "stderr.log")
    out = Below("path", "out")
    tree = Below("path", "tree")
    resume = Below("path", "resume")
    """Path of the copy of the checkpoint that the run resumes from."""
    warden_log = Below("path", "warden/warden.log")
    noted_pids = Below("path", "warden/pids.jsonl")

    def has_run(self) -> bool:
        """Return whether a trainer may have been started here: there is a fence, a record of the end, or output."""
        warden = self.path / "warden"
        left = (warden / "started", warden / "exit.json", self.stdout, self.stderr, self.events, self.out)
        return not self.path.is_symlink() and any(os.path.lexists(path) for path in left)

    def set_aside(self, folder: Path) -> Path:
        """Move the run into `folder`, out of the way of one of the same name; return its new path. Raises: OSError."""
        folder.mkdir(mode=0o700, exist_ok=True)
        return self.path.rename(folder / f"{self.path.name}-{time.time_ns()}")

    def started(self) -> dict[str, Any] | None:
        """Return the fence, which exists once the trainer may have been started. A torn fence counts as existing."""
        started = self._read("started", torn={})
        return started if started is None or _is_number(started.get("at")) else {}

    def exit(self) -> dict[str, Any] | None:
        """Return the warden's record of the run's end; None if there is none, or for content no warden writes."""
        exit_ = self._read("exit.json", torn=None)
        return exit_ if exit_ is not None and is_word(exit_) else None

    def stop(self) -> dict[str, Any] | None:
        """Return why the warden is ending the run; None while it is not."""
        return self._read("stop", torn=None)

    def suspended(self) -> dict[str, Any] | None:
        """Return since when (`at`) the warden has the tree stopped, and how many `processes`; None if it has not."""
        suspended = self._read("suspended", torn=None)
        good = (
            suspended is not None and _is_number(suspended.get("at")) and _is_count(suspended.get("processes"), 2**31)
        )
        return suspended if good else None

    def waits_for_exec(self) -> bool:
        """Return whether the trainer has waited for its exec for seconds: for its folder, or its program."""
        return self._read("waits", torn={}) is not None and self.exit() is None

    def of_trainer(self) -> list[tuple[int, float]]:
        """Return (pid, start) of the processes seen by the warden since the trainer's start, the trainer first."""
        return [*self._of_trainer()]

    def trainer(self) -> tuple[int, float] | None:
        """Return (pid, start) of the trainer; None before the warden has seen it."""
        return next(self._of_trainer(), None)

    def _of_trainer(self) -> Iterator[tuple[int, float]]:
        before = (self._read("prepared", torn=None) or {}).get("noted")
        notes = islice(self._notes(), before if isinstance(before, int) and before > 0 else 0, None)
        return ((note["pid"], float(note["start"])) for note in notes)

    def noted(self) -> list[dict[str, Any]]:
        """Return all processes that the warden has seen below the trainer, and below the preparation."""
        return [*self._notes()]

    def _notes(self) -> Iterator[dict[str, Any]]:
        try:
            lines = read_regular(self.noted_pids).splitlines()
        except OSError:
            return
        for line in lines:
            try:
                note = json.loads(line)
            except (ValueError, RecursionError):
                continue  # the warden was killed mid-line
            if isinstance(note, dict) and _is_count(note.get("pid"), 2**31) and _is_number(note.get("start")):
                yield note

    def prepared_at(self) -> float | None:
        """Return when the preparation of the run had ended; None before that, and where there is none."""
        at = (self._read("prepared", torn=None) or {}).get("at")
        return float(at) if isinstance(at, int | float) and _is_number(at) else None

    def is_preparing(self) -> bool:
        """Return whether the warden's next step is, or may be, the preparation of the run, and not the run itself."""
        if self._read("prepared", torn={}) is not None or self.exit() is not None:
            return False
        try:
            return bool(json.loads(read_regular(self.spec)).get("prepare"))
        except (OSError, ValueError, AttributeError):
            return False

    def repair(self) -> None:
        """Restore the owner's access to folders whose permissions a job has removed."""
        for folder in (self.path, self.path / "warden"):
            try:
                if stat.S_ISDIR(mode := folder.lstat().st_mode) and mode & 0o700 != 0o700:
                    folder.chmod(0o700)
            except OSError:
                return

    def request_cancel(self, who: str) -> None:
        """Write the cancel request for the warden; do nothing where the run has no folder yet.

        Raises: OSError when it cannot be written.
        """
        self._leave(self.cancel, who)

    def request_pause(self, wished: bool) -> None:
        """Write or withdraw the request to suspend the run; do nothing where the run has no folder.

        Raises: OSError when it cannot be written.
        """
        if wished:
            self._leave(self.suspend, "")
            return
        try:
            self.suspend.unlink(missing_ok=True)
        except OSError:  # the job has created a folder of that name
            self.suspend.rename(self.suspend.with_name(f"suspend.aside-{time.time_ns()}"))

    def _leave(self, path: Path, text: str) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            descriptor = os.open(path, flags, 0o600)
        except OSError:
            if not os.path.lexists(self.path) or os.path.lexists(path):
                return  # the warden treats whatever the job has put there as the request
            raise
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)

    def _read(self, name: str, torn: dict[str, Any] | None) -> dict[str, Any] | None:
        try:
            data = json.loads(read_regular(self.path / "warden" / name))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError):
            return torn
        return data if isinstance(data, dict) else torn


def read_end(path: Path, size: int = 4096) -> bytes:
    """Return the last `size` bytes of a file; b"" when it cannot be read."""
    try:
        return read_regular(path, size, from_end=True)
    except OSError:
        return b""


def read_regular(path: Path, limit: int = READ_MAX_BYTES, *, from_end: bool = False) -> bytes:
    """Return the first (or last) `limit` bytes of a regular file. Raises: OSError, also for a link, a FIFO or a device,
    which could lead elsewhere, block or never end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as stream:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        if from_end:
            stream.seek(max(0, status.st_size - limit))
        return stream.read(limit)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and abs(value) < 1e18 and not (isinstance(value, float) and math.isnan(value))


def _is_count(value: object, below: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < below


def is_word(content: dict[str, Any]) -> bool:
    """Return whether a warden may have written this as an exit.json, so that its fields can be stored."""
    code, number, stop, error = (content.get(name) for name in ("exit_code", "signal", "stop", "spawn_error"))
    try:
        json.dumps(content, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError):
        return False
    return (
        (code is None or code == 0 or _is_count(code, 256))
        and (number is None or _is_count(number, 128))
        and (stop is None or (isinstance(stop, dict) and stop.get("cause") in _CAUSES))
        and (error is None or isinstance(error, dict))
        and not (code is None and number is None and not stop and not error)
        and all(content.get(name) is None or _is_number(content[name]) for name in _TIMES)
    )
