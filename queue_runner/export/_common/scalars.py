"""The numbers of a run as named series over steps, for tools that know nothing else: TensorBoard, MLflow."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from queue_runner.export._common.selected import EVALS, ITERATIONS, METRICS, RUNS, Row, Selected

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


def of_run(selected: Selected, run: Row) -> Iterator[Scalar]:
    """Yield the times and losses of a run's iterations, its evaluations and other metrics, with the unit in the name.

    The step is the iteration; of a metric without one, how many of that name came before.
    """
    names = Names()
    for row in selected.of_run(ITERATIONS, run["run_id"]):
        for key in ("dur_s", "loss", "allocated_bytes", "reserved_bytes"):
            if row[key] is not None:
                yield Scalar(f"iteration/{key}", row["i"], row[key])
    for row in selected.of_run(EVALS, run["run_id"]):
        if row["value"] is not None:
            yield Scalar(names.of(f"eval/{row['split']}/{row['metric']}"), row["i"], row["value"])
        if row["dur_s"] is not None:
            yield Scalar(names.of(f"eval/{row['split']}/{row['metric']}/dur_s"), row["i"], row["dur_s"])
    counts: Counter[str] = Counter()
    for row in selected.of_run(METRICS, run["run_id"]):
        name = _with_unit(row["name"], row["unit"])
        if row["value"] is not None:
            step = row["i"] if row["i"] is not None else counts[name]
            yield Scalar(names.of(f"metric/{name}"), step, row["value"])
        counts[name] += 1


def _with_unit(name: str, unit: str | None) -> str:
    suffix = (unit or "").replace("/", "_per_")
    return name if not suffix or name.endswith(f"_{suffix}") else f"{name}_{suffix}"


def of_summary(run: Row) -> dict[str, float]:
    """Return the numbers that describe the whole run: its median time, real, user and system time, memory and so on."""
    names = [f.name for f in RUNS.fields if f.name.endswith(("_s", "_bytes")) or f.name in ("n_iters", "n_measure")]
    names = [*names, "loss_first", "loss_last", "loss_min", "val_loss_last"]
    return {f"run/{name}": run[name] for name in names if run[name] is not None and name != "backoff_s"}
