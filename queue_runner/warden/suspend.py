"""Suspending and continuing the whole process tree of a run (mpsq pause --now, mpsq resume).

SIGSTOP cannot be caught; the run keeps what it holds: the lane, memory, the accelerator's memory. The run's processes
are found as at its end (process_tree.py), with the same gap on macOS. A program that hides its environment, as Apple's
own do, is missed if it became an orphan in a new session between two notes of the warden.
"""

# importing pathlib would add a fifth to the start time, so:
# ruff: noqa: PTH108
from __future__ import annotations

import os
import signal
import time

from queue_runner.warden.files import awake, publish, say
from queue_runner.warden.process_tree import send

TYPE_CHECKING = False
if TYPE_CHECKING:
    from queue_runner.warden.process_tree import ProcessTree, Row


ROUNDS_S = 2.0  # a tree that grows faster than it can be stopped is handled further at the next poll


class Pause:
    """The suspension of the tree, in effect while the file `suspend` exists in the run's folder."""

    def __init__(self, folder: str, tree: ProcessTree) -> None:
        self.tree = tree
        self.request, self.record = f"{folder}/suspend", f"{folder}/warden/suspended"
        self.stopped: set[tuple[int, float]] = set()  # by us: a process stopped before stays stopped afterwards
        self.on = False
        self.still = False  # all were stopped at the last look, or wait in the kernel with their SIGSTOP pending

    def look(self) -> None:
        """Apply the current request. Called four times a second, so that processes created or continued meanwhile are
        stopped too. Raises: OSError."""
        requested = os.path.lexists(self.request)
        if requested:
            self.stop()
        elif self.on:
            self.resume()

    def stop(self) -> None:
        """Stop all processes, until a scan finds no new one: a parent may fork while being stopped.

        A parent between vfork and its child's exec stays in the kernel (state D) until the stopped child goes on.
        """
        began, new, n, self.still = awake(), 1, 0, False
        while (new or not (self.on or self.still)) and awake() - began < ROUNDS_S:
            rows = self.tree.find()
            new, n, self.still = 0, len(rows), True
            for pid in from_the_top(rows):
                each = rows[pid]
                known = (pid, each.start) in self.stopped
                self.still &= each.stopped or (known and each.uninterruptible)
                if each.stopped or (known and not self.on):
                    continue  # it is stopped, or will be once it returns from the kernel
                send(pid, each.start, signal.SIGSTOP)
                new += not known
                self.stopped.add((pid, each.start))
        if not self.on:
            self.on = True
            record = {"v": 1, "at": time.time(), "processes": n}
            try:
                publish(self.record, record)
            except OSError as error:
                say("the suspension is not recorded:", error)  # the disk is full: the tree is suspended all the same

    def resume(self) -> None:
        """Continue the processes stopped here, children first, so that a continued parent finds them running."""
        rows = self.tree.find()
        for pid in reversed(from_the_top(rows)):
            if (pid, rows[pid].start) in self.stopped:
                send(pid, rows[pid].start, signal.SIGCONT)
        self.forget()

    def forget(self) -> None:
        """Clear the record of stopped processes: they run again, or are being ended."""
        self.stopped.clear()
        self.on = self.still = False
        try:
            os.unlink(self.record)
        except OSError:
            pass


def from_the_top(rows: dict[int, Row]) -> list[int]:
    """Return pids, parents before their children: a shell that sees its child stop could act on it."""

    def depth(pid: int) -> int:
        steps, visited = 0, {pid}
        while (pid := rows[pid].parent) in rows and pid not in visited:
            visited.add(pid)
            steps += 1
        return steps

    return sorted(rows, key=depth)
