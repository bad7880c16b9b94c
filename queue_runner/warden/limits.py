"""Reasons to stop a trainer: a request, or a limit of time, silence, output or disk is exceeded."""

# ruff: noqa: PTH116
from __future__ import annotations

import json
import os

from queue_runner.warden.files import awake

TYPE_CHECKING = False  # importing typing would add a quarter to the start time
if TYPE_CHECKING:
    from collections.abc import Sequence

    from queue_runner.warden.instructions import RunInstructions


DISK_S = 1.0
LINE_BYTES_MAX = 1 << 16  # docs/protocol.md
READ_MAX_BYTES = 16 << 20  # of events per poll; beyond that only the end is read


def cancelled(folder: str, spec: RunInstructions) -> tuple[str, str] | None:
    """Return (cause, detail) when the file `cancel` exists; a grace named in it replaces the spec's."""
    who = ""
    try:
        os.lstat(f"{folder}/cancel")
    except OSError:
        return None
    try:
        fd = os.open(f"{folder}/cancel", os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            who = os.read(fd, 200).decode(errors="replace").strip()
        finally:
            os.close(fd)
    except OSError:
        pass  # anything of that name is the request
    name, marked, seconds = who.rpartition(" (grace ")
    if marked and seconds.removesuffix(" s)").replace(".", "", 1).isdecimal():
        grace = float(seconds.removesuffix(" s)"))
        spec.grace_s = {"int": grace, "term": grace}
        who = name
    return "cancel", f"cancelled by {who}" if who else "cancelled"


class Limits:
    """Limits of this run. `running_s`: seconds since its start without those it was stopped or the machine asleep."""

    def __init__(self, folder: str, spec: RunInstructions) -> None:
        self.folder, self.spec = folder, spec
        self.progress = EventProgress(spec.stall_s, spec.events)
        self.next_disk = 0.0

    def sizes(self, outputs: Sequence[int]) -> tuple[int, int]:
        """Return the bytes of (events, stdout and stderr)."""
        try:
            events = os.stat(self.spec.events).st_size
        except OSError:
            events = 0
        files = {(status.st_dev, status.st_ino): status.st_size for status in map(os.fstat, outputs)}
        return events, sum(files.values())  # a preparation has one for both

    def passed(self, running_s: float, outputs: Sequence[int]) -> tuple[str, str] | None:
        """Return (cause, detail) of an exceeded limit."""
        spec, now = self.spec, awake()
        timeout_s, limit, floor = spec.timeout_s, spec.output_limit_bytes, spec.min_free_bytes
        if timeout_s is not None and running_s >= timeout_s:
            return "timeout", f"it ran longer than {timeout_s:g} s"
        sizes = self.sizes(outputs)
        if limit and sum(sizes) > limit:
            return "output", f"it wrote more than {limit} bytes of output and events"
        if stalled := self.progress.stalled(sizes, running_s):
            return "stall", stalled
        if floor and now >= self.next_disk:
            self.next_disk = now + DISK_S
            disk = os.statvfs(self.folder)
            if disk.f_bavail * disk.f_frsize < floor:
                return "disk", f"less than {floor} bytes of disk space are left"
        return None


class EventProgress:
    """The trainer's progress: whether it still writes, and its phase (docs/protocol.md: phase and iter lines)."""

    def __init__(self, limits: dict[str, float], events: str) -> None:
        self.limits, self.events = limits, events
        self.offset = 0
        self.rest = b""
        self.open: list[str] = []  # phases that have begun and not ended
        self.iterating = ""  # the phase of the last iteration, until that phase ends
        self.in_iteration = False  # the latest position came from an iteration
        self.told = False  # it has reported a phase
        self.last: tuple[int, int] = (0, 0)
        self.at_s = 0.0

    def stalled(self, sizes: tuple[int, int], running_s: float) -> str:
        """Return why it counts as stalled, or "". `sizes`: bytes of (events, output); without events output counts."""
        if not self.limits:
            return ""
        if sizes != self.last:
            if sizes[0] != self.last[0] or not sizes[0]:
                self.at_s = running_s
            self.last = sizes
            self.follow(sizes[0])
        phase, limit = self.limit()
        if limit is None or running_s - self.at_s < limit:
            return ""
        return f"nothing was reported for {limit:g} s" + (f" in phase {phase}" if phase else "")

    def limit(self) -> tuple[str, float | None]:
        """Return the current phase, "" for unknown or none, and its limit in seconds.

        Before a trainer reports a phase (a command that never does, or one still importing its framework), the
        applicable limit is unknown: the longest is used, if every phase has one.
        """
        others = self.limits.get("*")
        if not self.told:
            return "", None if others is None else max(self.limits.values())
        phase = self.iterating if self.in_iteration or not self.open else self.open[-1]
        return phase, self.limits.get(phase, others)

    def follow(self, size: int) -> None:
        """Read new events. Only the last iteration before a phase change matters; the others are not decoded, as that
        would take time from the trainer."""
        if size < self.offset or size - self.offset > READ_MAX_BYTES:
            self.offset, self.rest = max(0, size - LINE_BYTES_MAX), b""
        if size == self.offset:
            return
        with open(self.events, "rb") as file:
            file.seek(self.offset)
            data = self.rest + file.read(size - self.offset)
        self.offset = size
        *lines, self.rest = data.split(b"\n")
        iteration = b""
        for line in lines:
            if len(line) > LINE_BYTES_MAX or b'"phase"' not in line:
                continue
            if b'"edge"' in line:
                self.take(iteration)
                self.take(line)
                iteration = b""
            else:
                iteration = line
        self.take(iteration)
        self.rest = self.rest[-LINE_BYTES_MAX:]

    def take(self, line: bytes) -> None:
        """Process an iter or phase line; anything else is counted by the worker."""
        try:
            fields = json.loads(line) if line else {}
            kind, edge = fields.get("type"), fields.get("edge")
            name = fields.get("phase" if kind == "iter" else "name")
        except (ValueError, RecursionError, AttributeError):
            return
        if not isinstance(name, str):
            return
        if kind == "iter":
            self.iterating, self.in_iteration, self.told = name, True, True
        elif kind == "phase" and edge == "begin":
            self.open, self.in_iteration, self.told = [*self.open[-63:], name], False, True
        elif kind == "phase" and edge == "end":
            self.in_iteration = False
            if name in self.open:
                last = len(self.open) - 1 - self.open[::-1].index(name)
                del self.open[last:]  # with phases left open inside it
            if name == self.iterating:
                self.iterating = ""
