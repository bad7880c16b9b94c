"""A plot as text for a terminal, by plotext: the same panels at the resolution of its cells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from queue_runner import units
from queue_runner.export._common.library import need
from queue_runner.export._plot.plot_data import LOG_FROM, Comparison, Plot, PlotRun
from queue_runner.tables import elide
from queue_runner.text import one_line

_COLOURS = ("blue", "orange", "green", "magenta", "cyan", "red")
_MARKS = ("o", "+", "*", "#", "@", "%", "&", "=")
"""A letter for each row: colours are not needed to tell them apart."""
_INVALID = "x"
_HEIGHT = 16


def draw(plot: Plot, columns: int, *, colour: bool) -> str:
    """Return the plot as lines of at most `columns` characters. Raises: UsageError without plotext."""
    plotext = need("plotext", "plot")
    parts: list[str] = []
    for comparison in plot.comparisons:
        parts += [one_line(comparison.title), _key(comparison)]
        runs = [(n, run) for n, row in enumerate(comparison.rows) for run in row.runs]
        what = "ms, median of each run" if comparison.per_iteration else "s, real time of each run"
        factor = 1e3 if comparison.per_iteration else 1.0
        dots = [(n, run, [run.value_s * factor], [-n]) for n, run in runs if run.value_s is not None]
        labels = [one_line(row.label) for row in comparison.rows]
        parts.append(_panel(plotext, dots, what, columns, colour, labels=labels))
        times = [(n, run, [p.i for p in run.points], [p.dur_s * 1e3 for p in run.points]) for n, run in runs]
        values = [point.dur_s for point in comparison.points if point.dur_s > 0]
        spread = (
            bool(values) and max(values) > LOG_FROM * min(values) and len(values) == sum(1 for _ in comparison.points)
        )
        what = f"time (ms{', logarithmic' if spread else ''}) over iterations"
        parts.append(_panel(plotext, times, what, columns, colour, logarithmic=spread))
        with_loss = [(n, run, [p for p in run.points if p.loss is not None]) for n, run in runs]
        losses = [(n, run, [p.i for p in some], [p.loss or 0.0 for p in some]) for n, run, some in with_loss]
        parts.append(_panel(plotext, losses, "loss (nats) over iterations", columns, colour))
    n_points = sum(1 for comparison in plot.comparisons for _ in comparison.points)
    if n_points > columns:
        parts.append(f"{units.count(n_points)} iterations in {columns} columns: --plot FILE.png draws each of them")
    return "\n".join(part for part in parts if part)


def _key(comparison: Comparison) -> str:
    rows = [f"{_MARKS[n % len(_MARKS)]} {one_line(row.label)}" for n, row in enumerate(comparison.rows)]
    invalid = [f"{_INVALID} not valid"] if any(not run.used for run in comparison.runs) else []
    return "   ".join([*rows, *invalid])


def _panel(
    plotext: Any,
    series: Sequence[tuple[int, PlotRun, Sequence[float], Sequence[float]]],
    title: str,
    columns: int,
    colour: bool,
    *,
    labels: Sequence[str] = (),
    logarithmic: bool = False,
) -> str:
    """Draw one panel; nothing where there are no values. `labels` name the rows -0, -1, ... of the vertical axis."""
    drawn = [one for one in series if one[2]]
    if not drawn:
        return ""
    figure = plotext.figure
    figure.clear()
    figure.theme("simple")
    figure.plot_size(columns, 2 * len(labels) + 4 if labels else _HEIGHT)
    figure.title(title)
    for n, run, xs, ys in drawn:
        mark = _MARKS[n % len(_MARKS)] if run.used else _INVALID
        marker = plotext.marker(mark, pixel=_COLOURS[n % len(_COLOURS)])
        figure.draw(figure.signal(list(xs), list(ys), marker=marker))
    ruler = figure.ruler("y")
    if logarithmic:
        ruler.scale("log")
    if labels:
        ruler.lim(-len(labels) + 0.5, 0.5)
        ruler.ticks([-n for n in range(len(labels))], [elide(label, columns // 3) for label in labels])
    text: str = figure.build().string(colorless=not colour)
    figure.clear()
    return "\n".join(line.rstrip() for line in text.splitlines())
