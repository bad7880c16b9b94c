"""The numbers of a run as named series over steps, for tools that know nothing else: TensorBoard, MLflow."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from queue_runner.export._common.selected import EVALS, ITERATIONS, METRICS, Selected, SelectedRun

_NOT_IN_A_NAME = re.compile(r"[^\w./ :-]", re.ASCII)
"""What MLflow allows in a name; TensorBoard allows more."""
_MOST_LETTERS = 250


class Scalar(NamedTuple):
    name: str
    step: int
    value: float


class Names:
    """Names that every tool allows, each for one series: two series never become one because their names look alike."""

    def __init__(self) -> None:
        self._given: dict[str, str] = {}
        self._taken: set[str] = set()

    def of(self, name: str) -> str:
        if name not in self._given:
            clean = plain = _NOT_IN_A_NAME.sub("_", name.replace("%", "percent"))[: _MOST_LETTERS - 8]
            n = 1
            while clean in self._taken:
                n += 1
                clean = f"{plain}_{n}"
            self._given[name] = clean
            self._taken.add(clean)
        return self._given[name]


def of_run(selected: Selected, run_id: int) -> Iterator[Scalar]:
    """Yield the times and losses of a run's iterations, its evaluations and other metrics, with the unit in the name.

    The step is the iteration; of a metric without one, how many of that name came before.
    """
    names = Names()
    for i, *numbers in selected.of_run(ITERATIONS, run_id, "i", *_NUMBERS):
        yield from (
            Scalar(f"iteration/{name}", i, x) for name, x in zip(_NUMBERS, numbers, strict=True) if x is not None
        )
    for i, split, metric, value, dur_s in selected.of_run(EVALS, run_id, "i", "split", "metric", "value", "dur_s"):
        if value is not None:
            yield Scalar(names.of(f"eval/{split}/{metric}"), i, value)
        if dur_s is not None:
            yield Scalar(names.of(f"eval/{split}/{metric}/dur_s"), i, dur_s)
    counts: Counter[str] = Counter()
    for i, name, value, unit in selected.of_run(METRICS, run_id, "i", "name", "value", "unit"):
        suffix = (unit or "").replace("/", "_per_")
        series = name if not suffix or name.endswith(f"_{suffix}") else f"{name}_{suffix}"
        if value is not None:
            yield Scalar(names.of(f"metric/{series}"), i if i is not None else counts[series], value)
        counts[series] += 1


_NUMBERS = ("dur_s", "loss", "allocated_bytes", "reserved_bytes")


def of_summary(run: SelectedRun) -> dict[str, float]:
    """Return the numbers that describe the whole run: its median time, real, user and system time, memory and so on."""
    return {
        f"run/{name}": value
        for name, value in run.known.items()
        if (name.endswith(("_s", "_bytes")) and name != "backoff_s") or name in _SUMMARY
    }


_SUMMARY = frozenset({"n_iters", "n_measure", "loss_first", "loss_last", "loss_min", "val_loss_last"})
