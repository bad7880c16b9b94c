"""`mpsq report --plot FILE`: a PNG or SVG file, by matplotlib. Every iteration is drawn; lines are not simplified."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from queue_runner import atomic_file, reports, units
from queue_runner.analysis.comparison import Family
from queue_runner.analysis.grouping import Arm
from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.cli.common import say
from queue_runner.cli.report import ReportRequest
from queue_runner.errors import UsageError
from queue_runner.export.formats import need
from queue_runner.monitor.answers import select_runs
from queue_runner.monitor.answers.run_query import Context, Options
from queue_runner.reports._common import arm_tables
from queue_runner.store.read import reading
from queue_runner.tables import elide
from queue_runner.text import one_line

FORMATS = (".png", ".svg")
MOST_COMPARISONS = 4
"""Comparisons in one picture; further ones are counted."""
LOG_FROM = 8
"""The least ratio of the longest to the shortest time at which the axis of times is logarithmic."""
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
"""Okabe & Ito 2008, "Color Universal Design", without their yellow, which is faint on white."""
_MARKERS = ("o", "s", "^", "D", "v", "P", "*")
_LINES = ("-", "--", ":", "-.")
_FEW = 60
"""Runs of at most so many iterations have a dot for each."""
_NOT_VALID: dict[str, Any] = {"linestyle": (0, (1, 2)), "marker": "x", "markersize": 5}
_WIDTH_IN = 12.0
_MOST_LETTERS = 46
_SETTINGS = {
    "text.parse_math": False,  # a label may have dollars
    "path.simplify": False,
    "svg.hashsalt": "mpsq",
    "svg.fonttype": "none",
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
}


class PlotPoint(NamedTuple):
    """An iteration. `measured`: in the phase `measure`, which alone counts for the times of reports."""

    i: int
    dur_s: float
    loss: float | None
    measured: bool


class PlotRun(NamedTuple):
    """A run of the row with this number, its iterations, and its validation losses by iteration."""

    row: int
    run: ReportedRun
    used: bool
    points: Sequence[PlotPoint]
    evals: Sequence[tuple[int, float]]


class Comparison(Struct, frozen=True):
    """A family of the report, those of its rows that have a run that ended, and these runs."""

    family: Family
    rows: Sequence[Arm]
    runs: Sequence[PlotRun]

    @property
    def points(self) -> Iterator[PlotPoint]:
        return (point for run in self.runs for point in run.points)

    @property
    def scale(self) -> tuple[float, str]:
        """The factor and the unit in which times are drawn."""
        longest_s = max((run.run.median_s or 0.0 for run in self.runs), default=0.0)
        return (1e3, "ms") if longest_s < 10 else (1.0, "s")


class Plot(Struct, frozen=True):
    """`notes` are sentences about comparisons and runs that are not drawn."""

    comparisons: Sequence[Comparison]
    notes: Sequence[str]

    @property
    def size(self) -> str:
        """The number of drawn rows, runs and points: "2 rows, 8 runs, 1,600 iterations"."""
        rows = sum(len(comparison.rows) for comparison in self.comparisons)
        runs = sum(len(comparison.runs) for comparison in self.comparisons)
        points = sum(1 for comparison in self.comparisons for _ in comparison.points)
        return ", ".join([units.counted(rows, "row"), units.counted(runs, "run"), units.counted(points, "iteration")])


def write_plot(path: str, request: ReportRequest) -> None:
    """Draw the rows of the report.

    Raises: UsageError, and OSError when the file cannot be written.
    """
    if request.format != "table" or request.name != reports.DEFAULT:
        raise UsageError(
            "--plot draws the default report and cannot be combined with another report or format",
            "mpsq report g4 --plot g4.png",
        )
    file = Path(path)
    check(file)
    with reading(request.layout.db) as connection:
        plot = read(connection, request.options)
    write(plot, file)
    say(f"wrote {file}: {plot.size}")
    for note in plot.notes:
        say(note)


def check(path: Path) -> None:
    """Raise UsageError unless a picture may be written at `path`."""
    if path.suffix.lower() not in FORMATS:
        raise UsageError(f"{path} is neither .png nor .svg", "end the name with .png or .svg")
    if not path.parent.is_dir():
        raise UsageError(f"the folder {path.parent} does not exist", "create it, or name another place")
    if path.is_dir():
        raise UsageError(f"{path} is a folder", "name a file in it")


def read(connection: sqlite3.Connection, options: Options) -> Plot:
    """Read the newest comparison, or those of the chosen runs. Raises: UsageError when there is nothing to draw."""
    connection.execute("BEGIN")
    context = Context(options, connection, *select_runs.condition(connection, options))
    result = reports.run(reports.DEFAULT, connection, replace(options, newest=True))
    ended = [family for family in result.families if any(arm.ended for arm in family.arms)]
    if not ended:
        raise UsageError(select_runs.nothing(context), "mpsq status shows the queue")
    shown = ended[: MOST_COMPARISONS if options.chosen else 1]
    notes = []
    if left := len(ended) - len(shown):
        which = "mpsq report g4 --plot or --where select runs" if not options.chosen else "select fewer runs"
        notes.append(f"{units.counted(left, 'older comparison')} not drawn: {which}")
    comparisons = [_comparison(family, context) for family in shown]
    runs = [run for comparison in comparisons for run in comparison.runs]
    if bare := [run.run.run for run in runs if run.run.median_s is None and not run.points]:
        notes.append(f"ended without numbers, and not drawn: {', '.join(bare)}")
    return Plot(comparisons, notes)


def _comparison(family: Family, context: Context) -> Comparison:
    arms = [arm for arm in family.arms if arm.ended]
    ended = [run for arm in arms for run in arm.ended]
    where = "WHERE run_id IN ({runs}) AND i BETWEEN ? AND ?"
    window = context.options.iters or (0, 2**62)
    sql = f"SELECT run_id, i, dur_s, loss, phase = 'measure' FROM v_iteration {where} ORDER BY run_id, offset"
    points = context.tuples_by_run(sql, ended, window)
    is_loss = "split = 'val' AND metric = 'loss' AND value IS NOT NULL"
    sql = f"SELECT run_id, i, value FROM v_eval {where} AND {is_loss} ORDER BY run_id, offset"
    evals = context.tuples_by_run(sql, ended, window)
    runs = []
    for row, arm in enumerate(arms):
        used = {run.run_id for run in arm.used}
        for run in arm.ended:
            iterations = [PlotPoint(*values) for values in points.get(run.run_id, [])]
            runs.append(PlotRun(row, run, run.run_id in used, iterations, evals.get(run.run_id, [])))
    return Comparison(family, arms, runs)


def write(plot: Plot, path: Path) -> None:
    """Write the picture, whole or not at all. Raises: UsageError without matplotlib; OSError."""
    matplotlib = need("matplotlib")
    figures = need("matplotlib.figure")
    with matplotlib.rc_context(_SETTINGS):
        heights = [_height_in(comparison) for comparison in plot.comparisons]
        figure = figures.Figure(figsize=(_WIDTH_IN, sum(heights)), layout="constrained")
        parts = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)
        for part, comparison in zip(parts[:, 0], plot.comparisons, strict=True):
            _draw(part, comparison)
        with atomic_file.replacing(path, durable=False, mode=0o644) as new:
            kind = path.suffix.lower()[1:]
            figure.savefig(new, format=kind, dpi=120, metadata={"Date": None} if kind == "svg" else {})


def _height_in(comparison: Comparison) -> float:
    legend = 0.25 * (len(comparison.rows) / 3 + 2)
    return 1.5 + 0.42 * len(comparison.rows) + (3.4 + legend if any(comparison.points) else 0.3)


def _draw(part: Any, comparison: Comparison) -> None:
    part.suptitle(elide(one_line(arm_tables.caption(comparison.family)), 120), fontweight="bold", fontsize=12)
    times = any(comparison.points)
    losses = any(p.loss is not None for p in comparison.points) or any(run.evals for run in comparison.runs)
    top = ["runs", "speedup" if comparison.family.pairs else "runs"]
    bottom = ["time" if times else "loss", "loss" if losses else "time"]
    mosaic = [top, bottom] if times or losses else [top]
    rows_in = 1.0 + 0.42 * len(comparison.rows)
    axes = part.subplot_mosaic(mosaic, height_ratios=[rows_in, 3.4][: len(mosaic)])
    _runs(axes["runs"], comparison)
    if "speedup" in axes:
        _speedups(axes["speedup"], comparison, axes["runs"])
    if "time" in axes:
        _times(axes["time"], comparison)
    if "loss" in axes:
        _losses(axes["loss"], comparison)
    if len(mosaic) > 1:
        handles, names = _legend(comparison, {*axes})
        part.legend(handles, names, loc="outside lower center", ncols=3, fontsize=9)


def _style(row: int) -> dict[str, Any]:
    return {
        "color": _COLOURS[row % len(_COLOURS)],
        "marker": _MARKERS[row % len(_MARKERS)],
        "linestyle": _LINES[row // len(_COLOURS) % len(_LINES)],
    }


def _name(arm: Arm) -> str:
    return elide(one_line(arm.label), _MOST_LETTERS)


def _runs(axes: Any, comparison: Comparison) -> None:
    """Draw a dot for each run, a bar at the geometric mean of the row, a cross for a run that does not count."""
    factor, unit = comparison.scale
    for row, arm in enumerate(comparison.rows):
        style = _style(row)
        drawn = [run for run in comparison.runs if run.row == row and run.run.median_s is not None]
        for k, run in enumerate(drawn):
            y = row + (k - (len(drawn) - 1) / 2) * min(0.12, 0.5 / len(drawn))
            marker = style["marker"] if run.used else "x"
            x = (run.run.median_s or 0.0) * factor
            axes.plot(x, y, color=style["color"], markersize=6, alpha=0.8, marker=marker)
        if arm.used and arm.median_s is not None:
            axes.plot([arm.median_s * factor] * 2, [row - 0.36, row + 0.36], color=style["color"], linewidth=2)
    labels = [f"{_name(arm)}  {arm.n_valid}/{arm.n_ended}" for arm in comparison.rows]
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    axes.margins(x=0.06)
    wall = comparison.family.wall
    axes.set_xlabel(f"{'real time of the run' if wall else 'median time per iteration'} ({unit})")
    axes.set_title("a dot for each run" if wall else "a dot for each run, bar: their geometric mean")


def _speedups(axes: Any, comparison: Comparison, beside: Any) -> None:
    """Draw the ratio of each row to the baseline with the interval that the report has, and its verdict in words."""
    axes.axvline(1, color="#555555", linewidth=1)
    axes.set_xscale("log")
    family = comparison.family
    verdicts = {pair.arm: pair.verdict for pair in family.pairs}
    for row, arm in enumerate(comparison.rows):
        look = {"color": _style(row)["color"], "marker": _style(row)["marker"], "markersize": 7}
        verdict, words = verdicts.get(arm), "no numbers"
        if arm is family.baseline:
            words = "baseline"
            axes.plot(1, row, **look)
        elif verdict is not None:
            words = f"{verdict.size}\n{verdict}"
            axes.plot(verdict.change, row, fillstyle="none" if verdict.low is None else "full", **look)
            if verdict.low is not None and verdict.high is not None:
                around = [[verdict.change - verdict.low], [verdict.high - verdict.change]]
                axes.errorbar(verdict.change, row, xerr=around, color=look["color"], capsize=7, elinewidth=1.6)
        at = {"xycoords": ("axes fraction", "data"), "xytext": (6, 0), "textcoords": "offset points"}
        axes.annotate(words, (1, row), va="center", fontsize=9, **at)
    axes.set_ylim(*beside.get_ylim())
    axes.set_yticks([])
    axes.margins(x=0.1)
    _plain_ticks(axes.xaxis)
    per = f" per {family.per_work}" if family.per_work else ""
    axes.set_xlabel(f"times as fast{per} as {_name(family.baseline) if family.baseline else ''}")
    intervals = any(verdict.low is not None for verdict in verdicts.values())
    axes.set_title("speedup with its 95 % interval" if intervals else "speedup as measured: no interval")


def _plain_ticks(axis: Any) -> None:
    """Write the ticks of a logarithmic axis as numbers, few enough to read."""
    ticker = need("matplotlib.ticker")
    axis.set_major_locator(ticker.LogLocator(base=10, subs=(1.0, 2.0, 5.0)))
    axis.set_minor_locator(ticker.NullLocator())
    low, high = sorted(axis.get_view_interval())
    if high < 5 * low:
        axis.set_major_locator(ticker.MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(ticker.FuncFormatter(lambda x, _: f"{x:g}"))


def _lines(axes: Any, comparison: Comparison, values: Callable[[PlotRun], Sequence[tuple[int, float]]]) -> None:
    """Draw a line for each run through all its values; one that does not count is faint, with crosses."""
    for run in comparison.runs:
        drawn = values(run)
        look = {**_style(run.row), "alpha": 0.7, "markersize": 2.5}
        if not run.used:
            look |= _NOT_VALID | {"alpha": 0.5, "markevery": max(1, len(drawn) // 12)}
        elif len(drawn) > _FEW:
            look["marker"] = ""
        axes.plot([i for i, _ in drawn], [value for _, value in drawn], linewidth=0.7, **look)
    axes.set_xlabel("iteration")


def _marks(
    axes: Any, comparison: Comparison, values: Callable[[PlotRun], Sequence[tuple[int, float]]], look: Mapping[str, Any]
) -> None:
    """Draw a mark at some values of each run."""
    for run in comparison.runs:
        x, y = [i for i, _ in values(run)], [value for _, value in values(run)]
        axes.plot(x, y, linestyle="", markeredgecolor=_style(run.row)["color"], **look)


_NOT_MEASURED = {"marker": "o", "markersize": 4, "markerfacecolor": "none", "markeredgewidth": 0.7}
_VALIDATION = {"marker": "D", "markersize": 6, "markerfacecolor": "white"}


def _times(axes: Any, comparison: Comparison) -> None:
    """Draw the times, logarithmic where they differ much, and circle the iterations that were not measured."""
    factor, unit = comparison.scale
    _lines(axes, comparison, lambda run: [(p.i, p.dur_s * factor) for p in run.points])
    _marks(axes, comparison, lambda r: [(p.i, p.dur_s * factor) for p in r.points if not p.measured], _NOT_MEASURED)
    positive = [point.dur_s for point in comparison.points if point.dur_s > 0]
    logarithmic = bool(positive) and max(positive) > LOG_FROM * min(positive)
    if logarithmic:
        axes.set_yscale("log")
        axes.autoscale_view()
        _plain_ticks(axes.yaxis)
    axes.set_ylabel(f"time ({unit}{', logarithmic' if logarithmic else ''})")
    axes.set_title("time of each iteration")


def _losses(axes: Any, comparison: Comparison) -> None:
    _lines(axes, comparison, lambda run: [(p.i, p.loss) for p in run.points if p.loss is not None])
    _marks(axes, comparison, lambda run: run.evals, _VALIDATION)
    axes.set_ylabel("loss (nats)")
    axes.set_title("loss of each iteration's batch")


def _legend(comparison: Comparison, panels: set[str]) -> tuple[list[Any], list[str]]:
    looks = [(_name(arm), _style(row)) for row, arm in enumerate(comparison.rows)]
    if any(not run.used for run in comparison.runs):
        looks.append(("not valid: in no number of the report", _NOT_VALID))
    if "time" in panels and any(not point.measured for point in comparison.points):
        looks.append(("not measured: first, warm-up, with evaluation", {**_NOT_MEASURED, "linestyle": ""}))
    if "loss" in panels and any(run.evals for run in comparison.runs):
        looks.append(("validation loss", {**_VALIDATION, "linestyle": ""}))
    line = need("matplotlib.lines").Line2D
    handles = [line([], [], **{"color": "#555555", "markersize": 5, **look}) for _, look in looks]
    return handles, [name for name, _ in looks]
