"""The histories of the report trend: a line per row, its steps, and marks where versions or the code changed. Pure."""

from __future__ import annotations

import time
from collections.abc import Sequence

from msgspec import Struct

from queue_runner.pages.axis import Tick, linear_ticks, place
from queue_runner.reports._common.document import RowHistory

_DAY_S = 86_400.0


class HistoryMark(Struct, frozen=True):
    """A point, or a vertical line, in percent of width and height, and what to say of it."""

    x: float
    y: float
    title: str


class HistoryLine(Struct, frozen=True):
    """A row: the path through its points in a box of 1000 x 100, and the marks on it."""

    label: str
    about: str
    path: str
    points: Sequence[HistoryMark]
    steps: Sequence[HistoryMark]
    changes: Sequence[HistoryMark]


def lines(histories: Sequence[RowHistory]) -> tuple[list[HistoryLine], list[Tick]]:
    """Return a line for each history, from its lowest to its highest value, and the days of their common axis."""
    times = {point.at for history in histories for point in history.points}
    if len(times) < 2:
        return [], []
    first, last = min(times), max(times)
    return [_line(history, first, last) for history in histories], _days(first, last)


def _line(history: RowHistory, first: float, last: float) -> HistoryLine:
    values = [point.value for point in history.points]
    low, high = min(values), max(values)
    points, steps, changes = [], [], []
    for point in history.points:
        x, y = place(point.at, first, last), 100 - place(point.value, low, high, edge=8)
        points.append(HistoryMark(x, y, f"{point.name}, {_day(point.at)}: {history.show(point.value)}"))
        if point.changes:
            changes.append(HistoryMark(x, 0, f"{point.name}: {', '.join(point.changes)}"))
        if point.name in history.steps:
            steps.append(HistoryMark(x, 0, f"a step at {point.name}"))
    path = "M" + "L".join(f"{10 * point.x:.1f} {point.y:.1f}" for point in points)
    return HistoryLine(history.label, history.about, path, points, steps, changes)


def _days(first: float, last: float) -> list[Tick]:
    if last - first < _DAY_S:
        return [Tick(place(first, first, last), _day(first))]
    days = linear_ticks(0, (last - first) / _DAY_S)
    return [Tick(place(first + day * _DAY_S, first, last), _day(first + day * _DAY_S, "%b %d")) for day in days]


def _day(at: float, form: str = "%Y-%m-%d") -> str:
    return time.strftime(form, time.localtime(at))
