"""The folder of one run, `runs/12.3/`: who writes which file, and how each is read.

The job writes its log and its events, the CLI the cancel request, and only the warden writes under warden/. Nothing
prevents a job from writing there too, so reads are validated and never block.
"""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from queue_runner.host.filesystem import open_regular
from queue_runner.paths import Below

if TYPE_CHECKING:
    from queue_runner.host.warden_records import Fence, NotedProcess, Preparation, RunEnd, Suspension

READ_MAX_BYTES = 16 << 20
"""Limit for a file that a job may have written; the warden never writes more."""


class RunDir(Struct, frozen=True):
    """Paths of a run's files."""

    path: Path

    spec = Below("path", "spec.json")
    secrets = Below("path", "secrets.json")
    """Path of the command line and the variables with their secrets, until the warden has read them."""
    warden_lock = Below("path", "warden.lock")
    cancel = Below("path", "cancel")
    suspend = Below("path", "suspend")
    events = Below("path", "events.jsonl")
    stdout = Below("path", "stdout.log")
    stderr = Below("path", "stderr.log")
    out = Below("path", "out")
    tree = Below("path", "tree")
    private = Below("path", "private")
    """Path of the caches of a sealed run (referee/sealed.py)."""
    resume = Below("path", "resume")
    """Path of the copy of the checkpoint that the run resumes from."""
    evaluated = Below("path", "evaluation.log")
    """Path of the output of --evaluate, which alone has the metrics of such a run (referee/evaluation.py)."""
    wrote_outside = Below("path", "wrote_outside")
    """Path of the sentence on files that a sealed run changed outside its copy (referee/sealed.py)."""
    warden_log = Below("path", "warden/warden.log")
    noted_pids = Below("path", "warden/pids.jsonl")

    def has_run(self) -> bool:
        """Return whether a trainer may have been started here: there is a fence, a record of the end, or output."""
        warden = self.path / "warden"
        traces = (warden / "started", warden / "exit.json", self.stdout, self.stderr, self.events, self.out)
        return not self.path.is_symlink() and any(os.path.lexists(path) for path in traces)

    def set_aside(self, folder: Path) -> Path:
        """Move the run into `folder`, out of the way of one of the same name; return its new path. Raises: OSError."""
        folder.mkdir(mode=0o700, exist_ok=True)
        return self.path.rename(folder / f"{self.path.name}-{time.time_ns()}")

    def is_supervised(self) -> bool | None:
        """Return whether a warden holds this run; None when the job has put something else in the place of its
        lock."""
        from queue_runner.host import locks  # not above: submit reads no lock of a run

        try:
            return locks.is_held(self.warden_lock)
        except OSError:
            return None

    def started(self) -> Fence | None:
        """Return the fence, which exists once the trainer may have been started. A torn fence counts as existing."""
        from queue_runner.host.warden_records import Fence  # not above: submit reads no record

        return self._record("started") or (Fence() if self._exists("started") else None)

    def exit(self) -> RunEnd | None:
        """Return the warden's record of the run's end; None if there is none, or for content no warden writes."""
        end: RunEnd | None = self._record("exit.json")
        return end if end is not None and end.says_how else None

    def suspended(self) -> Suspension | None:
        """Return since when the warden has the tree stopped, and how many processes; None if it has not."""
        suspension: Suspension | None = self._record("suspended")
        return suspension

    def waits_for_exec(self) -> bool:
        """Return whether the trainer has waited for its exec for seconds: for its folder, or its program."""
        return self._exists("waits") and self.exit() is None

    def of_trainer(self) -> Iterator[tuple[int, float]]:
        """Yield (pid, start) of the processes seen by the warden since the trainer's start, the trainer first."""
        preparation: Preparation | None = self._record("prepared")
        before = preparation.noted if preparation is not None else 0
        return ((process.pid, process.start) for process in islice(self.noted(), before, None))

    def trainer(self) -> tuple[int, float] | None:
        """Return (pid, start) of the trainer; None before the warden has seen it."""
        return next(self.of_trainer(), None)

    def noted(self) -> Iterator[NotedProcess]:
        """Yield the processes that the warden has seen below the trainer, and below the preparation. A job may have
        started 50,000, of which most callers need the first."""
        from queue_runner.host import warden_records

        try:
            data = read_regular(self.noted_pids)
        except OSError:
            return iter(())
        return warden_records.decode_noted(data)

    def output_order(self) -> list[tuple[int, int]]:
        """Return the sizes that stdout and stderr had when another of the two began to grow, the first ones first. It
        ends where they do not increase."""
        sizes: list[tuple[int, int]] = []
        try:
            for line in read_regular(self.path / "warden/output_order").splitlines():
                stdout, stderr = map(int, line.split())
                if not (stdout >= (sizes[-1][0] if sizes else 0) and stderr >= (sizes[-1][1] if sizes else 0)):
                    break
                sizes.append((stdout, stderr))
        except (OSError, ValueError):
            pass  # the last line may be torn
        return sizes

    def prepared_at(self) -> float | None:
        """Return when the preparation of the run had ended; None before that, and where there is none."""
        preparation: Preparation | None = self._record("prepared")
        return None if preparation is None else preparation.at

    def is_preparing(self) -> bool:
        """Return whether the warden's next step is, or may be, the preparation of the run, and not the run itself."""
        if self._exists("prepared") or self.exit() is not None:
            return False
        try:
            return bool(json.loads(read_regular(self.spec)).get("prepare"))
        except (OSError, ValueError, RecursionError, AttributeError):
            return False

    def shorten_logs(self, keep_bytes: int) -> None:
        """Cut the logs of an ended run that are larger than `keep_bytes`."""
        for path in (self.stdout, self.stderr):
            cut_middle(path, keep_bytes, keep_bytes)

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
        except FileNotFoundError:
            return  # once there is a folder, the worker looks for requests in the database
        except OSError:
            if os.path.lexists(path):
                return  # the warden treats whatever the job has put there as the request
            raise
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)

    def _exists(self, name: str) -> bool:
        return os.path.lexists(self.path / "warden" / name)

    def _record(self, name: str) -> Any:
        from queue_runner.host import warden_records

        try:
            return warden_records.decode(name, read_regular(self.path / "warden" / name))
        except OSError:
            return None


def read_end(path: Path, size: int = 4096) -> bytes:
    """Return the last `size` bytes of a file; b"" when it cannot be read."""
    try:
        return read_regular(path, size, from_end=True)
    except OSError:
        return b""


def read_regular(path: Path, limit: int = READ_MAX_BYTES, *, from_end: bool = False) -> bytes:
    """Return the first (or last) `limit` bytes of a file. Raises: OSError as `open_regular`."""
    with os.fdopen(open_regular(path), "rb") as stream:
        if from_end:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - limit))
        return stream.read(limit)


def cut_middle(log: Path, limit_bytes: int, keep_bytes: int) -> None:
    """Keep `keep_bytes` of the whole lines at the beginning and the end of a log that is larger than `limit_bytes`.

    It is cut in place, since a service manager keeps the worker's log open for appending. If the disk refuses, or
    something else is in the place of the log, nothing is done.
    """
    half = keep_bytes // 2
    try:
        with os.fdopen(open_regular(log, os.O_RDWR), "r+b") as stream:
            size = os.fstat(stream.fileno()).st_size
            if size <= limit_bytes:
                return
            stream.seek(half)
            stream.readline(half // 4)
            head = stream.tell()
            stream.seek(max(size - half, head))
            stream.readline(half // 4)
            tail = stream.read()
            stream.seek(head)
            n_cut = size - head - len(tail)
            stream.write(b"[mpsq: %d bytes in the middle of this log were not kept]\n" % n_cut + tail)
            stream.truncate()
    except OSError:
        return
