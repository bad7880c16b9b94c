"""The warden stops the whole tree of a run and lets it go on (mpsq suspend, mpsq continue).

Copied into the run's folder: the standard library only. SIGSTOP cannot be caught, so no process has a
say in it; what the run holds stays held: the lane, memory, the accelerator's memory. Who belongs to the run is known as
for its end (warden_tree.py), on macOS too: there an orphan that moved to a session of its own between two notes of the
warden goes unseen.
"""

# pathlib would cost a fifth of the start, so:
# ruff: noqa: PTH108
from __future__ import annotations

import os
import signal
import time

from queue_runner.warden.files import awake, publish, say
from queue_runner.warden.processes import send

TYPE_CHECKING = False
if TYPE_CHECKING:
    from queue_runner.warden.processes import Row, Tree


ROUNDS_S = 2.0  # a tree that grows faster than it can be stopped is stopped further at the next look


class Pause:
    """Keeps the tree as the file `suspend` in the run's folder wishes it: there, everything stands still."""

    def __init__(self, folder: str, tree: Tree) -> None:
        self.tree = tree
        self.wish, self.told = f"{folder}/suspend", f"{folder}/warden/suspended"
        self.stopped: set[tuple[int, float]] = set()  # by us: what stood still before does so afterwards
        self.on = False

    def look(self) -> None:
        """Do what is wished now. Called four times a second, so that what was born or woken meanwhile stands still
        again. Raises: OSError."""
        wished = os.path.lexists(self.wish)
        if wished:
            self.stop()
        elif self.on:
            self.go_on()

    def stop(self) -> None:
        """Stop all that is there, again until a look finds nobody new: a child may be born while its parent is."""
        began, new, n = awake(), 1, 0
        while new and awake() - began < ROUNDS_S:
            found = self.tree.find()
            new, n = 0, len(found)
            for pid in from_the_top(found):
                each = found[pid]
                known = (pid, each.start) in self.stopped
                if each.stopped or (known and not self.on):
                    continue  # it stands still, or will as soon as the kernel lets go of it
                send(pid, each.start, signal.SIGSTOP)
                new += not known
                self.stopped.add((pid, each.start))
        if not self.on:
            self.on = True
            told = {"v": 1, "at": time.time(), "processes": n}
            try:
                publish(self.told, told)
            except OSError as error:
                say("nobody is told of the pause:", error)  # the disk is full: it stands still all the same

    def go_on(self) -> None:
        """Let go on what was stopped here, children first: a parent that wakes finds them at work."""
        found = self.tree.find()
        for pid in reversed(from_the_top(found)):
            if (pid, found[pid].start) in self.stopped:
                send(pid, found[pid].start, signal.SIGCONT)
        self.forget()

    def forget(self) -> None:
        """Nothing is stopped here any more: it goes on, or is being ended."""
        self.stopped.clear()
        self.on = False
        try:
            os.unlink(self.told)
        except OSError:
            pass


def from_the_top(found: dict[int, Row]) -> list[int]:
    """Parents before their children: a shell that sees its child stop could act on it."""

    def depth(pid: int) -> int:
        steps, seen = 0, {pid}
        while (pid := found[pid].parent) in found and pid not in seen:
            seen.add(pid)
            steps += 1
        return steps

    return sorted(found, key=depth)
