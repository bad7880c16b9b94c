"""`mpsq report --plot FILE`: a PNG or SVG file, by matplotlib. Every iteration is drawn; lines are not simplified."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from queue_runner import atomic_file, reports
from queue_runner.analysis.grouping import Arm
from queue_runner.analysis.rounds import Verdict
from queue_runner.cli.common import say
from queue_runner.cli.report import ReportRequest
from queue_runner.errors import UsageError
from queue_runner.export import plot_data
from queue_runner.export.formats import need
from queue_runner.export.plot_data import LOG_FROM, Comparison, Plot, PlotRun
from queue_runner.reports._common import arm_tables
from queue_runner.store.read import reading
from queue_runner.tables import elide
from queue_runner.text import one_line

FORMATS = (".png", ".svg")
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
"""Okabe & Ito 2008, "Color Universal Design", without their yellow, which is faint on white."""
_MARKERS = ("o", "s", "^", "D", "v", "P", "*")
_LINES = ("-", "--", ":", "-.")
_FEW = 60
"""Runs of at most so many iterations have a dot for each."""
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


def write_plot(path: str, request: ReportRequest) -> None:
    """Draw the rows of the report.

    Raises: UsageError, and OSError when the file cannot be written.
    """
    if request.submit or request.format != "table" or request.name != reports.DEFAULT:
        raise UsageError(
            "--plot draws the default report and cannot be combined with another report or format, or --submit",
            "mpsq report g4 --plot g4.png",
        )
    file = Path(path)
    check(file)
    with reading(request.layout.db) as connection:
        plot = plot_data.read(connection, request.options)
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


def write(plot: Plot, path: Path) -> None:
    """Write the picture, whole or not at all. Raises: UsageError (see check), also without matplotlib; OSError."""
    check(path)
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
    lines = any(comparison.points)
    legend = 0.25 * (len(comparison.rows) / 3 + 2)
    return 1.5 + 0.42 * len(comparison.rows) + (3.4 + legend if lines else 0.3)


def _draw(part: Any, comparison: Comparison) -> None:
    part.suptitle(elide(one_line(arm_tables.caption(comparison.family)), 120), fontweight="bold", fontsize=12)
    compared = bool(comparison.family.pairs)
    times = any(comparison.points)
    losses = any(p.loss is not None for p in comparison.points) or any(run.evals for run in comparison.runs)
    top = ["runs", "speedup" if compared else "runs"]
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
        handles, names = _legend(comparison, {"time", "loss"} & {*axes})
        part.legend(handles, names, loc="outside lower center", ncols=3, fontsize=9)


def _style(n: int) -> dict[str, Any]:
    return {
        "color": _COLOURS[n % len(_COLOURS)],
        "marker": _MARKERS[n % len(_MARKERS)],
        "linestyle": _LINES[n // len(_COLOURS) % len(_LINES)],
    }


def _scale(values_s: Iterable[float]) -> tuple[float, str]:
    """Return the factor and the unit in which times are drawn."""
    return (1e3, "ms") if max(values_s, default=0.0) < 10 else (1.0, "s")


def _name(arm: Arm) -> str:
    return elide(one_line(arm.label), _MOST_LETTERS)


def _runs(axes: Any, comparison: Comparison) -> None:
    """Draw a dot for each run, a bar at the geometric mean of the row, a cross for a run that does not count."""
    factor, unit = _scale(run.value_s for run in comparison.runs if run.value_s is not None)
    for n, (arm, runs) in enumerate(comparison.rows):
        style = _style(n)
        drawn = [run for run in runs if run.value_s is not None]
        for k, run in enumerate(drawn):
            y = n + (k - (len(drawn) - 1) / 2) * min(0.12, 0.5 / len(drawn))
            shape = {"marker": style["marker"]} if run.used else {"marker": "x"}
            axes.plot((run.value_s or 0.0) * factor, y, color=style["color"], markersize=6, alpha=0.8, **shape)
        if arm.used and arm.median_s is not None:
            axes.plot([arm.median_s * factor] * 2, [n - 0.36, n + 0.36], color=style["color"], linewidth=2)
    labels = [f"{_name(arm)}  {arm.n_valid}/{arm.n_ended}" for arm, _ in comparison.rows]
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(comparison.rows) - 0.4, -0.6)
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
    verdicts = [pair.verdict if (pair := family.pair(arm)) else None for arm, _ in comparison.rows]
    for n, ((arm, _), verdict) in enumerate(zip(comparison.rows, verdicts, strict=True)):
        style = _style(n)
        if arm is family.baseline:
            axes.plot(1, n, color=style["color"], marker=style["marker"], markersize=7)
        elif verdict is not None and verdict.low is not None and verdict.high is not None:
            around = [[verdict.change - verdict.low], [verdict.high - verdict.change]]
            look = {"color": style["color"], "marker": style["marker"], "markersize": 4, "capsize": 7}
            axes.errorbar(verdict.change, n, xerr=around, elinewidth=1.6, capthick=1.6, **look)
        elif verdict is not None:
            axes.plot(verdict.change, n, color=style["color"], marker=style["marker"], markersize=7, fillstyle="none")
        words = "baseline" if arm is family.baseline else _words(verdict) if verdict is not None else "no numbers"
        at = {"xycoords": ("axes fraction", "data"), "xytext": (6, 0), "textcoords": "offset points"}
        axes.annotate(words, (1, n), va="center", fontsize=9, **at)
    axes.set_ylim(*beside.get_ylim())
    axes.set_yticks([])
    axes.margins(x=0.1)
    _plain_ticks(axes.xaxis)
    per = f" per {family.per_work}" if family.per_work else ""
    axes.set_xlabel(f"times as fast{per} as {_name(family.baseline) if family.baseline else ''}")
    intervals = any(verdict is not None and verdict.low is not None for verdict in verdicts)
    axes.set_title("speedup with its 95 % interval" if intervals else "speedup as measured: no interval")


def _words(verdict: Verdict) -> str:
    """Return the ratio, its interval if there is one, and the verdict: "7.09 x (6.90 to 7.20)", below it "faster"."""
    return f"{verdict.size}\n{verdict}"


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
    for n, (_, runs) in enumerate(comparison.rows):
        style = _style(n)
        for run in runs:
            drawn = values(run)
            few = len(drawn) <= _FEW
            marker = (style["marker"] if run.used else "x") if few else "" if run.used else "x"
            axes.plot(
                [i for i, _ in drawn],
                [value for _, value in drawn],
                color=style["color"],
                linestyle=style["linestyle"] if run.used else (0, (1, 2)),
                linewidth=0.7,
                alpha=0.7 if run.used else 0.5,
                marker=marker,
                markersize=2.5 if run.used else 4,
                markevery=1 if few else max(1, len(drawn) // 12),
            )
    axes.set_xlabel("iteration")


def _marks(
    axes: Any, comparison: Comparison, values: Callable[[PlotRun], Sequence[tuple[int, float]]], **look: Any
) -> None:
    """Draw a mark at some values of each run."""
    for n, (_, runs) in enumerate(comparison.rows):
        drawn = [value for run in runs for value in values(run)]
        x, y = [i for i, _ in drawn], [value for _, value in drawn]
        axes.plot(x, y, linestyle="", markeredgecolor=_style(n)["color"], **look)


def _times(axes: Any, comparison: Comparison) -> None:
    """Draw the times, logarithmic where they differ much, and circle the iterations that were not measured."""
    times = [point.dur_s for point in comparison.points]
    factor, unit = _scale(sorted(times)[: max(1, len(times) * 9 // 10)])
    _lines(axes, comparison, lambda run: [(p.i, p.dur_s * factor) for p in run.points])
    not_measured = {"marker": "o", "markersize": 4, "markerfacecolor": "none", "markeredgewidth": 0.7}
    _marks(axes, comparison, lambda r: [(p.i, p.dur_s * factor) for p in r.points if not p.measured], **not_measured)
    positive = [time for time in times if time > 0]
    logarithmic = bool(positive) and max(positive) > LOG_FROM * min(positive)
    if logarithmic:
        axes.set_yscale("log")
        axes.autoscale_view()
        _plain_ticks(axes.yaxis)
    elif positive:
        axes.margins(y=0.1)
    axes.set_ylabel(f"time ({unit}{', logarithmic' if logarithmic else ''})")
    axes.set_title("time of each iteration")


def _losses(axes: Any, comparison: Comparison) -> None:
    _lines(axes, comparison, lambda run: [(p.i, p.loss) for p in run.points if p.loss is not None])
    _marks(axes, comparison, lambda run: run.evals, marker="D", markersize=6, markerfacecolor="white")
    axes.set_ylabel("loss (nats)")
    axes.set_title("loss of each iteration's batch")


def _legend(comparison: Comparison, panels: set[str]) -> tuple[list[Any], list[str]]:
    lines = need("matplotlib.lines")
    handles = [lines.Line2D([], [], markersize=5, **_style(n)) for n in range(len(comparison.rows))]
    names = [_name(arm) for arm, _ in comparison.rows]
    grey = {"color": "#555555", "linestyle": ""}
    if any(not run.used for run in comparison.runs):
        handles.append(lines.Line2D([], [], color="#555555", linestyle=(0, (1, 2)), marker="x", markersize=5))
        names.append("not valid: in no number of the report")
    if "time" in panels and any(not point.measured for point in comparison.points):
        handles.append(lines.Line2D([], [], marker="o", markerfacecolor="none", **grey))
        names.append("not measured: first, warm-up, with evaluation")
    if "loss" in panels and any(run.evals for run in comparison.runs):
        handles.append(lines.Line2D([], [], marker="D", markerfacecolor="none", **grey))
        names.append("validation loss")
    return handles, names
