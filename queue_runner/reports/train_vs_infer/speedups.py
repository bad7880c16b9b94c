"""Training and inference of the same model, as arms with a throughput each: the data of `train-vs-infer`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from queue_runner.analysis import significance, stats
from queue_runner.analysis.grouping import BESIDE, WORK, by_key, round_of, taints
from queue_runner.analysis.pairing import Runs
from queue_runner.analysis.significance import Verdict
from queue_runner.model import Outcome
from queue_runner.reports._common.document import Context, Row
from queue_runner.reports._common.settings import LENGTH_SETTINGS, effective

TRAIN = "train"
KINDS = (TRAIN, "eval", "prefill", "decode")
"""Training, evaluation (mode=eval), and the two parts of text generation (mode=sample)."""
_METRICS = {"prefill": "prefill_tokens_per_s", "decode": "decode_tokens_per_s"}
_ALIKE = ("machine", "model", "config", "framework", "framework_version", "compile", "dtype", "n_params")
"""Names in which training and inference rows agree. Other settings differ by nature (batch, duration); the number of
parameters shows that the model is the same."""
_ABSENCE_DIFFERS = frozenset({"env", "resumed", "arguments", BESIDE})
"""Factors that are not versions: a run without one differs from a run with it."""


@dataclass(frozen=True, eq=False)
class ThroughputArm:
    """Runs of one kind and one spec. `rates` has one value per run of `used`, in `unit` per second.

    `used` are the valid runs; if there are none, the invalid ones, which are not compared.
    """

    kind: str
    key: Mapping[str, Any]
    """_ALIKE, device, device_name and settings"""
    used: Sequence[Row]
    rates: Sequence[float]
    unit: str
    counts: bool
    batch: Any

    @cached_property
    def _times(self) -> list[float]:
        return [1 / rate for rate in self.rates]

    @property
    def rate(self) -> float:
        """Rate at the geometric mean of the runs' times, as in every report: a speedup is the ratio of two."""
        return 1 / stats.geometric_mean(self._times)

    @property
    def spread(self) -> float | None:
        """MAD of the runs' times, converted to the unit of the rate; None for a single run."""
        return stats.mad(self._times) * self.rate**2 if len(self.rates) > 1 else None

    @property
    def runs(self) -> Runs:
        """The times of an item of work, with when their runs were planned and started."""
        rounds = [round_of(row) for row in self.used]
        started = [row["started_at"] for row in self.used]
        return Runs(self._times, rounds, started, frozenset(key for key in rounds if key is not None))

    @cached_property
    def alike(self) -> tuple[Any, ...]:
        return tuple(self.key[name] for name in _ALIKE)

    def twin_of(self, other: ThroughputArm) -> bool:
        """Return whether only the device differs. A version missing on one side does not count as different: a run on
        the CPU has no CUDA."""
        if (self.kind, self.unit, self.alike) != (other.kind, other.unit, other.alike):
            return False
        mine, theirs = self.key["settings"], other.key["settings"]
        requested = {name for arm in (self, other) for row in arm.used for name in row["settings"]} | _ABSENCE_DIFFERS
        return all(
            mine.get(name) == theirs.get(name) or (name not in requested and None in (mine.get(name), theirs.get(name)))
            for name in {*mine, *theirs}
        )


class _Rate(NamedTuple):
    kind: str
    per_s: float
    unit: str


def throughput_arms(rows: Sequence[Row], context: Context) -> list[ThroughputArm]:
    """Return the arms of prepared rows, sorted by model, framework, kind, the CPU first."""
    effective_settings = effective(rows, context)
    names = ", ".join(f"'{name}'" for name in _METRICS.values())
    sql = f"SELECT run_id, name, value FROM v_metric WHERE run_id IN ({{runs}}) AND name IN ({names}) AND value > 0"
    metrics = context.by_run(sql, rows)
    runs = []
    for row in rows:
        if row["outcome"] != Outcome.SUCCEEDED:
            continue
        mode = str(effective_settings[row["run_id"]].get("mode", TRAIN))
        key = {
            **{name: row[name] for name in ("machine", "config", "framework", "framework_version", "dtype")},
            **{name: row[name] for name in ("device", "device_name")},
            "model": str(row["subject"]).removesuffix(f"-{mode}"),
            "compile": row["compile"] or False,
            "n_params": row["params"],
            "settings": {name: value for name, value in row["factors"].items() if name not in LENGTH_SETTINGS},
        }
        runs += [(rate, key, row) for rate in _rates(row, mode, metrics.get(row["run_id"], []))]
    arms = []
    for alike in by_key(runs, _spec).values():
        valid = [run for run in alike if run[2]["valid"] or context.options.include_invalid]
        rates, keys, used = zip(*(valid or alike), strict=True)
        batch = effective_settings[used[0]["run_id"]].get("batch_size")
        per_s = [rate.per_s for rate in rates]
        arms.append(ThroughputArm(rates[0].kind, keys[0], used, per_s, rates[0].unit, bool(valid), batch))
    return sorted(arms, key=_order)


def _spec(run: tuple[_Rate, Mapping[str, Any], Row]) -> tuple[str, str]:
    rate, key, _ = run
    return rate.kind, str({**key, "settings": sorted(key["settings"].items())})


def _order(arm: ThroughputArm) -> tuple[Any, ...]:
    key = arm.key
    place = [str(key[name]) for name in ("machine", "model", "config", "framework", "framework_version", "dtype")]
    kind = KINDS.index(arm.kind)
    return *place, str(key["compile"]), kind, str(key["settings"]), key["device"] != "cpu", str(key["device"])


def _rates(row: Row, mode: str, metrics: Iterable[Row]) -> Iterable[_Rate]:
    if mode == "sample":
        for kind, name in _METRICS.items():
            if values := [metric["value"] for metric in metrics if metric["name"] == name]:
                yield _Rate(kind, stats.median(values), "tokens")
    elif (row["median_s"] or 0) > 0 and (mode == "eval" or (mode == TRAIN and _trained(row))):
        unit = next((unit for unit in WORK if row[f"{unit}s_per_iter"]), None)
        if unit is not None:
            yield _Rate(mode, row[f"{unit}s_per_iter"] / row["median_s"], f"{unit}s")


def _trained(row: Row) -> bool:
    """Return whether the run had a loss; a final NaN is not stored, but the run is marked as diverged."""
    return row["loss_last"] is not None or "diverged" in taints(row)


def judge(arms: Sequence[ThroughputArm], same_within: float | None) -> dict[ThroughputArm, Verdict]:
    """Compare each valid arm of another device with its CPU twin, judging all pairs together."""
    pairs: list[tuple[ThroughputArm, ThroughputArm]] = []
    for arm in arms:
        if arm.key["device"] != "cpu" and arm.counts:
            twins = [other for other in arms if other.key["device"] == "cpu" and other.counts and arm.twin_of(other)]
            pairs += [(arm, twins[0])] if len(twins) == 1 else []
    if not pairs:
        return {}
    runs = [(arm.runs, twin.runs) for arm, twin in pairs]
    planned = max((row["planned_cells"] or 0 for arm in arms for row in arm.used), default=0)
    judged = significance.compare_all(runs, same_within, planned - 1)
    return {arm: verdict for (arm, _), verdict in zip(pairs, judged, strict=True)}
