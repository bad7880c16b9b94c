"""Whether a run takes as long beside another one as it does alone: an equivalence test, said in a sentence. Pure."""

from __future__ import annotations

from queue_runner import units
from queue_runner.analysis.neighbours import WHOLE
from queue_runner.analysis.significance import SAME_WITHIN, Verdict, Word


def times(verdict: Verdict) -> tuple[float, float | None, float | None]:
    """Return how many times as long a run takes beside another one, and the ends of the 95 % interval; above 1 the
    neighbour slows it down. `verdict` is on the runs beside against those alone."""
    ends = verdict.high, verdict.low
    low, high = (1 / end if end else None for end in ends)
    return 1 / verdict.speedup, low, high


def sentence(who: str, verdict: Verdict, same_within: float | None = None) -> str:
    """Return what the runs of `who` show of its lane: isolated within the margin (0.01 for ±1 %, by default
    SAME_WITHIN), not isolated, or neither."""
    margin = f"{units.PLUS_MINUS}{(same_within or SAME_WITHIN) * 100:g} %"
    ratio, low, high = times(verdict)
    known = low is not None and high is not None
    interval = f" ({units.number(low, 4)} to {units.number(high, 4)})" if known else ""
    measured = f"{units.number(ratio, 4)} x{interval}"
    return f"{who} takes {measured} as long beside another run as alone: {_said(verdict, margin)}"


def _said(verdict: Verdict, margin: str) -> str:
    if verdict.word is Word.SAME:
        return f"the same within {margin}, so that the lane is isolated to that margin"
    if verdict.word in (Word.SLOWER, Word.FASTER):
        return f"{verdict.word}, so that the lane is not isolated"
    if verdict.word is Word.NO_DIFFERENCE:
        seen = ""
        if verdict.same_within is not None:
            seen = f" (these runs show it within {units.PLUS_MINUS}{units.percent(verdict.same_within, 2)})"
        return f"isolation within {margin} is not shown, nor a difference{seen}"
    return f"isolation is not shown: {verdict}"


def incomplete(share: float | None) -> str:
    """Return why a run that was to have a neighbour throughout is left out; empty if it is not."""
    if share is None:
        return "no neighbour was active while it was measured"
    return "" if share >= WHOLE else f"its neighbour was active for {units.percent(share, 3)} of its measured time only"
