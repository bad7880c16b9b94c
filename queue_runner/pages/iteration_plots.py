"""Time and loss of each iteration, for uPlot: complete, or the lowest and highest of each stretch, with a note."""

from __future__ import annotations

import math
import zlib
from array import array
from collections.abc import Container, Mapping, Sequence
from typing import Any

from msgspec import Struct

from queue_runner import units
from queue_runner.analysis.comparison import Family
from queue_runner.analysis.grouping import Arm
from queue_runner.model import PHASES
from queue_runner.pages.dots import colour
from queue_runner.pages.run_records import RunRecords
from queue_runner.reports._common import arm_tables
from queue_runner.store.read import tuples

MOST_POINTS = 160_000
"""Points of a page, of time and of loss together: some 1.3 MB of text, and drawn in under a second."""
MOST_RUNS = 100
"""Runs of a page whose iterations are drawn."""
MEASURE = PHASES.index("measure")
_DIGITS = 5
"""Significant digits of a value: beyond what a line on a screen shows."""
_WINDOW = "i BETWEEN ? AND ?"


class RunPlot(Struct, frozen=True):
    """What a page keeps of the iterations of one run: seconds and losses by their places on the axis, the least and the
    most of its measured times, and the times of its other iterations."""

    dur_s: Mapping[float, float]
    loss: Mapping[float, float]
    measured_s: tuple[float, float] | None
    others_s: array[float]


class Plots(Struct, frozen=True):
    """The data of all plots, and what to say of them."""

    families: Sequence[Mapping[str, Any]]
    notes: Sequence[str]


def plots(evidence: RunRecords) -> Plots:
    """Read the iterations of one run after the other, and thin them to what fits a page."""
    chosen, n_left = _chosen(evidence)
    n_of_run = _counts(evidence, chosen)
    n_iters = sum(n_of_run.values())
    stretch = 1 if 2 * n_iters <= MOST_POINTS else math.ceil(4 * n_iters / MOST_POINTS)
    made = (_plot(evidence, family, n_of_run, stretch) for family in evidence.families)
    families = [plot for plot in made if plot is not None]
    notes = []
    if stretch > 1:
        notes.append(
            f"{units.counted(n_iters, 'iteration')} are too many for a page: of every {stretch} the lowest and the"
            " highest are drawn, so that no outlier is missing; mpsq report iterations --format csv has each"
        )
    if any(plotted["out"] for family in families for plotted in family["runs"]):
        notes.append("dashed: runs that are left out")
    if n_left:
        notes.append(
            f"of {len(chosen) + n_left} runs {len(chosen)} are drawn: as many of each row as there is room for"
        )
    return Plots(families, notes if families else [])


def _chosen(evidence: RunRecords) -> tuple[list[int], int]:
    """Return the runs to draw: in turn one of each arm until there are MOST_RUNS; and how many are left out."""
    arms = [[row.run_id for row in arm.runs] for family in evidence.families for arm in family.arms]
    in_turn = dict.fromkeys(
        run_id for k in range(max(map(len, arms), default=0)) for run_ids in arms for run_id in run_ids[k : k + 1]
    )
    return [*in_turn][:MOST_RUNS], len([*in_turn][MOST_RUNS:])


def _counts(evidence: RunRecords, chosen: Sequence[int]) -> dict[int, int]:
    """Return the number of iterations of each of these runs that has any."""
    run_ids = ", ".join(map(str, chosen))
    sql = f"SELECT run_id, count(DISTINCT i) FROM iterations WHERE run_id IN ({run_ids}) AND {_WINDOW} GROUP BY run_id"
    return dict(tuples(evidence.context.connection, sql, _window(evidence)).fetchall())


def _window(evidence: RunRecords) -> tuple[int, int]:
    return evidence.context.options.iters or (0, 2**62)


def _read(evidence: RunRecords, run_id: int, work: float, stretch: int) -> RunPlot:
    """Read and thin the iterations of a run, their times divided by `work`; of a number that a resumed run repeats, the
    last."""
    sql = f"SELECT i, dur_s, loss, phase, max(offset) FROM iterations WHERE {_WINDOW} AND run_id = ? GROUP BY i"
    rows = tuples(evidence.context.connection, f"{sql} ORDER BY i", [*_window(evidence), run_id])
    numbers, dur_s, losses, phases, _ = zip(*rows, strict=True)
    times = [time_s / work for time_s in dur_s]
    known = [(time_s, phase == MEASURE and time_s > 0) for time_s, phase in zip(times, phases, strict=True)]
    measured = [time_s for time_s, is_measured in known if is_measured and math.isfinite(time_s)]
    return RunPlot(
        _thinned(numbers, times, stretch),
        _thinned(numbers, losses, stretch),
        (min(measured), max(measured)) if measured else None,
        array("d", [time_s for time_s, is_measured in known if not is_measured and math.isfinite(time_s)]),
    )


def _thinned(numbers: Sequence[int], values: Sequence[float | None], stretch: int) -> dict[float, float]:
    """Return the values by their iterations; or of each stretch its lowest and its highest, in the order in which they
    came, at its beginning and its middle."""
    known = ((i, value) for i, value in zip(numbers, values, strict=True) if value is not None and math.isfinite(value))
    if stretch == 1:
        return {i: _rounded(value) for i, value in known}
    parts: dict[int, list[float]] = {}
    for i, value in known:
        parts.setdefault(i // stretch * stretch, []).append(value)
    thinned: dict[float, float] = {}
    for start, part in parts.items():
        first, second = sorted((min(part), max(part)), key=part.index)
        thinned |= {start: _rounded(first), start + stretch / 2: _rounded(second)}
    return thinned


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def _plot(evidence: RunRecords, family: Family, drawn: Container[int], stretch: int) -> Mapping[str, Any] | None:
    """Return the data of a family: `x` of all runs, and by run the values at each x; None if that is one point."""
    shown = [(at, arm, row) for at, arm in enumerate(family.arms) for row in arm.runs if row.run_id in drawn]
    if not shown:
        return None
    plotted = [_read(evidence, row.run_id, _work(arm, family.per_work), stretch) for _, arm, row in shown]
    xs = sorted({x for run in plotted for x in (*run.dur_s, *run.loss)})
    if len(xs) < 2:
        return None
    left_out = {row.run_id for arm in family.arms for row in arm.left_out}
    ends = [end for run in plotted for end in run.measured_s or ()] or [x for run in plotted for x in run.others_s]
    low, high = min(ends, default=0.0), max(ends, default=1.0)
    return {
        "id": f"{zlib.crc32(repr(family.key).encode()):x}",
        "caption": arm_tables.caption(family),
        "unit": family.per_work or "iteration",
        "x": xs,
        "arms": [{"label": arm.label, "colour": colour(at)} for at, arm in enumerate(family.arms)],
        "runs": [
            {
                "run": row.run,
                "arm": at,
                "out": row.run_id in left_out,
                "dur": [run.dur_s.get(x) for x in xs],
                "loss": [run.loss.get(x) for x in xs],
            }
            for (at, _, row), run in zip(shown, plotted, strict=True)
        ],
        "measured": (low, high),
        "outside": sum(not low <= time_s <= high for run in plotted for time_s in run.others_s),
    }


def _work(arm: Arm, unit: str) -> float:
    """Return by what the times are divided where those of a token or sample are compared."""
    return (arm.work(unit) if unit else None) or 1.0
