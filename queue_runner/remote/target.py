"""A target of --on: a place that runs blocks, and what it may answer about one, whichever kind it is."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from queue_runner.model import Ending, Outcome
from queue_runner.remote.block import Folder
from queue_runner.remote.fence import has_started, make_void
from queue_runner.remote.profile import Profile


class Unreachable(Exception):
    """The target does not answer; the text says how."""


class Refused(Exception):
    """The target refuses the block and keeps nothing of it; the text is its own."""


class NotSent(Refused):
    """The target did not answer before it could have started the block."""


class Down(Struct, frozen=True):
    """A target that does not answer: why, since when, and when it is asked again, in Unix seconds. `until` is the time
    of that by the monotonic clock, which nobody sets."""

    why: str
    since: float
    next_try_at: float
    until: float

    @property
    def is_left_alone(self) -> bool:
        """Whether every call is Unreachable at once."""
        return time.monotonic() < self.until


class Seen(Struct, frozen=True):
    """The state of a block at its target: waiting, running or gone; with its words, its node and its id there."""

    state: str
    words: str = ""
    node: str = ""
    job: str = ""


_CAUSES = {
    "CANCELLED": (Outcome.CANCELLED, "scancel"),
    "PREEMPTED": (Outcome.LOST, "preempted"),
    "TIMEOUT": (Outcome.TIMED_OUT, "walltime"),
    "DEADLINE": (Outcome.TIMED_OUT, "walltime"),
    "OUT_OF_MEMORY": (Outcome.OUT_OF_MEMORY, "memory"),
    "NODE_FAIL": (Outcome.LOST, "node_fail"),
    "BOOT_FAIL": (Outcome.LOST, "node_fail"),
    "REBOOT": (Outcome.LOST, "reboot"),
}
"""The words of Slurm for an end, and what it means for the run that was running. A box uses NODE_FAIL and REBOOT."""


def ending_of(kind: str, words: str) -> Ending:
    """Return how the run ended that was running when the target ended its block, of which it says these `words`."""
    outcome, reason = next(
        (end for word, end in _CAUSES.items() if words.startswith(word)), (Outcome.LOST, "forgotten")
    )
    return Ending(outcome, reason=f"{reason}: {kind} says {words}")


class Target:
    """A place that runs blocks, whose folders are below `blocks` here. By default the nodes share that folder.

    Every method may take as long as its commands' time limit. One thread uses a target; another calls only `abort`.
    """

    down: Down | None = None
    """That it does not answer; None where it does, and where nothing waits for its answers."""

    def __init__(self, kind: str, blocks: Path, profile: Profile) -> None:
        self.kind = kind
        self._blocks = blocks
        self.profile = profile

    def folder(self, token: str) -> Folder:
        """Return the block's folder as the front reads and writes it."""
        return Folder(self._blocks / token)

    def send(self, token: str, options: Mapping[str, str]) -> str:
        """Submit the block whose folder is written; return its id. Raises: Unreachable, Refused, NotSent."""
        raise NotImplementedError

    def look(self, token: str) -> Seen:
        """Return the state of a block, which may be as old as `poll` of the profile, and bring what came back into its
        folder. Raises: Unreachable; OSError when that cannot be written."""
        raise NotImplementedError

    def ending(self, token: str, *, signalled: bool) -> Ending | None:
        """Return how a block ended that the target has ended; None before that. `signalled`: it was asked to end, and
        has done so. Raises: Unreachable."""
        block = self.look(token)
        return ending_of(self.kind, block.words) if block.state == "gone" else None

    def has_started(self, token: str) -> bool:
        """Return whether the block was started: its fence is there, and is not the front's. Raises: OSError."""
        return has_started(self.folder(token).fence)

    def void(self, token: str) -> bool:
        """Make a block void, or find that it is; False when it was started before. Raises: OSError, Unreachable."""
        return make_void(self.folder(token).fence)

    def request(self, token: str, name: str) -> None:
        """Leave a request, `stop` or `cancel/12.3`, for the node. Raises: OSError."""
        (self.folder(token).path / name).touch()

    def end(self, token: str, *, hard: bool) -> None:
        """Ask for the end of a block: of its supervisor, or (hard) of everything. Raises: Unreachable, OSError."""
        self.request(token, "stop")

    def remove(self, token: str) -> None:
        """Remove the folder of a block that is over. Raises: OSError, Unreachable."""
        shutil.rmtree(self.folder(token).path, ignore_errors=True)

    def abort(self) -> None:
        """End the call that another thread waits for, and any later one: it is Unreachable then."""
