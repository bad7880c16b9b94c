"""What a target answers about a block, whichever kind it is."""

from __future__ import annotations

from dataclasses import dataclass


class Unreachable(Exception):
    """The target does not answer; the text says how."""


class Refused(Exception):
    """The target refuses the block, of which it keeps nothing; the text is its own."""


class NotSent(Refused):
    """The target did not answer before it could have started the block."""


@dataclass(frozen=True)
class Down:
    """A target that does not answer: why, since when, and when it is asked again, in Unix seconds."""

    why: str
    since: float
    next_try_at: float


@dataclass(frozen=True)
class Seen:
    """What the target says of a block: waiting, running or gone; in its words, on which node, under which id."""

    state: str
    said: str = ""
    node: str = ""
    job: str = ""
