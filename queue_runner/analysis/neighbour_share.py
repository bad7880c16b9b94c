"""Runs beside a run: those of other lanes that were active while it was measured. Pure.

A neighbour is active from the claim to the end of its process: its set-up and compilation load the machine, too. Any
overlap with the measured part counts, since no share is known below which a neighbour changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from queue_runner import units
from queue_runner.analysis.phases import spans
from queue_runner.analysis.points import PhaseMark

SHARE = "neighbour_busy_share"
"""The metric of such a run: the share of its measured time during which a neighbour was active, 0 to 1."""
MOST_NAMED = 3
"""Maximum number of neighbours that a detail names; the rest is counted."""


class Neighbour(Struct, frozen=True):
    """A run of another lane, active from `from_s` to `to_s`: seconds since the start of the run that it was beside."""

    run: str
    lane: str
    from_s: float
    to_s: float


class NeighbourActivity(Struct, frozen=True):
    """The neighbours that were active while a run was measured, none if they belong to another queue, and the share of
    the measured time (0 to 1) in which there was one."""

    share: float
    neighbours: Sequence[Neighbour]

    def detail(self) -> str:
        """Return the text of the taint."""
        names = units.listed([f"{neighbour.run} on {neighbour.lane}" for neighbour in self.neighbours], MOST_NAMED)
        named = f": {names}" if names else ""
        return f"for {units.percent(self.share, 3)} of its measured time another lane was busy{named}"


def neighbour_activity(
    marks: Iterable[PhaseMark], awake_s: float | None, whole_s: float, neighbours: Iterable[Neighbour]
) -> NeighbourActivity | None:
    """Return which neighbours were active during the measured part of a run, and for how much of it; None if none was.

    `marks` and `awake_s` are as of phases.spans. The measured part is the phase `measure` without the phases inside it;
    of a run that reports no such phase, whose time is that of the whole run, all of its `whole_s` seconds.
    """
    measured = [(span.from_s, span.to_s) for span in spans(marks, awake_s) if span.name == "measure"]
    measured = measured or [(0.0, whole_s)]
    total_s = sum(to_s - from_s for from_s, to_s in measured)
    overlapping = [n for n in neighbours if any(_overlap(part, (n.from_s, n.to_s)) for part in measured)]
    if not overlapping or total_s <= 0:
        return None
    busy_s = sum(_overlap(part, active) for part in measured for active in _joined(overlapping))
    return NeighbourActivity(min(1.0, busy_s / total_s), sorted(overlapping, key=lambda neighbour: neighbour.from_s))


def _overlap(first: tuple[float, float], second: tuple[float, float]) -> float:
    return max(0.0, min(first[1], second[1]) - max(first[0], second[0]))


def _joined(neighbours: Iterable[Neighbour]) -> list[tuple[float, float]]:
    """Return the times during which any of them was active, without overlaps: two at once are one busy time."""
    merged: list[tuple[float, float]] = []
    for from_s, to_s in sorted((neighbour.from_s, neighbour.to_s) for neighbour in neighbours):
        if merged and from_s <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], to_s))
        else:
            merged.append((from_s, to_s))
    return merged
