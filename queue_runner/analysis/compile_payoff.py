"""The cost of compilation, and after how many iterations it pays off. Pure."""

from __future__ import annotations

from queue_runner.analysis.grouping import Arm, middle


def compile_cost_s(arm: Arm, twin: Arm | None, cache: str | None) -> float | None:
    """Return the cost of compilation in seconds: the excess of the first iteration over the median, minus that of the
    eager twin; over the runs that started with the compiler's `cache` in that state. None where the state is unknown:
    a mixture of cold and warm starts has no cost."""
    runs = [row for row in arm.shown if cache is not None and row.compile_cache == cache]
    ours = middle(runs, "first_iter_excess_s")
    theirs = twin.median("first_iter_excess_s") if twin is not None else None
    return None if ours is None or theirs is None else ours - theirs


def first_iter_s(arm: Arm, cache: str | None) -> float | None:
    """Return the seconds of the first iteration over the runs that started with the compiler's `cache` in that state: a
    median of cold and warm starts would describe neither."""
    return middle((row for row in arm.shown if row.compile_cache == cache), "first_iter_s")


def main_cache(arm: Arm) -> str | None:
    """Return the state of the compiler's cache to report first: cold if any run was cold, None if unknown."""
    states = {row.compile_cache for row in arm.shown if row.compile_cache is not None}
    return "cold" if "cold" in states else min(states, default=None)


def break_even_iters(arm: Arm, twin: Arm | None, cost_s: float | None) -> float | None:
    """Return the number of iterations after which compilation pays off; None if never."""
    if twin is None or not cost_s or arm.median_s is None or twin.median_s is None:
        return None
    gain_s = twin.median_s - arm.median_s
    return cost_s / gain_s if gain_s > 0 and cost_s > 0 else None
