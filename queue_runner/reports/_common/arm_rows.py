"""Arms as rows of numbers: SI units, None where unknown, nothing rounded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar, cast

from queue_runner.analysis import run_metrics
from queue_runner.analysis.comparison import Family
from queue_runner.analysis.grouping import Arm, kinds_of_taint
from queue_runner.analysis.peaks import Peak, mfu
from queue_runner.analysis.reported_run import LastEvaluation
from queue_runner.analysis.rounds import Verdict
from queue_runner.analysis.summary import RunNumbers
from queue_runner.reports._common import losses
from queue_runner.reports._common.columns import columns, of_answer
from queue_runner.reports._common.device_peaks import Peaks

T = TypeVar("T")

_COPIED = ("framework", "framework_version", "device", "device_name", "compile", "dtype")
_MEDIANS = (*(field.name for field in fields(RunNumbers)), "real_s", "user_s", "sys_s", "max_rss_bytes")
_NO_FACTORS = frozenset(
    {"machine", "subject", "config", "device", "compile", "dtype", "framework", "device_name", "time_of"}
)
"""Names in the key of an arm that have a column or the title of their own."""


def of_arm(value: Callable[[Arm], T]) -> T:
    """Return a property of rows that have an `arm`: this value of it, of which it has the type."""
    return cast(T, property(lambda row: value(row.arm)))


class ArmNumbers:
    """A row with the numbers of its `arm`, by the keys of shared columns. It is `excluded` if a repeat that ended has
    no valid run."""

    __slots__ = ()
    label = of_arm(lambda arm: arm.label)
    workload = of_arm(lambda arm: str(arm.key["subject"]))
    config = of_arm(lambda arm: arm.key["config"])
    time_of = of_arm(lambda arm: str(arm.key.get("time_of") or "iteration"))
    runs = of_arm(lambda arm: [run.run for run in arm.runs])
    n_runs = of_arm(lambda arm: arm.n_ended)
    n_valid = of_arm(lambda arm: arm.n_valid)
    valid = of_arm(lambda arm: all(run.valid for run in arm.shown))
    n_machines = of_arm(lambda arm: arm.n_machines)
    compared = of_arm(lambda arm: bool(arm.times))
    median_s = of_arm(lambda arm: arm.median_s)
    spread_s = of_arm(lambda arm: arm.spread_s[0])
    spread_over = of_arm(lambda arm: arm.spread_s[1])
    tokens_per_s = of_arm(lambda arm: arm.rate("token"))
    samples_per_s = of_arm(lambda arm: arm.rate("sample"))
    excluded = of_arm(lambda arm: arm.n_valid < arm.n_ended)
    taints = of_arm(lambda arm: kinds_of_taint(arm.shown))


@dataclass(frozen=True, kw_only=True)
class JudgedRow(ArmNumbers):
    """A row that may have a verdict, `judged`, against a baseline."""

    arm: Arm
    judged: Verdict | None
    is_baseline: bool

    @property
    def speedup(self) -> float | None:
        """The ratio to the baseline."""
        return self.judged.change if self.judged else None

    @property
    def answer(self) -> Verdict | None:
        """The answer of the row: its verdict on the time, unless the user chose another measure."""
        return self.judged

    @property
    def has_interval(self) -> bool:
        """Whether the speedup has an interval."""
        return self.judged is not None and self.judged.low is not None


@dataclass(frozen=True, kw_only=True)
class RowMetric:
    """A metric of an arm: the mean over its runs, and the answer against the baseline."""

    value: float | None
    answer: Verdict | None

    def as_json(self) -> dict[str, Any]:
        """Return its values by the names in docs/json.md."""
        return {"value": self.value, **{column.key: column.of(self) for column in _OF_METRIC}}


_OF_METRIC = (
    of_answer("change", "difference"),
    *map(of_answer, ("low", "high")),
    *columns("verdict undecided_because n_rounds given_after more_rounds"),
    of_answer("same_within"),
)


@dataclass(frozen=True, kw_only=True)
class ArmRow(RunNumbers, LastEvaluation, JudgedRow):
    """What reports show of an arm. Numbers are medians over its runs."""

    table: int
    framework: str | None
    framework_version: str | None
    device: str | None
    device_name: str | None
    compile: bool | str | None
    dtype: str | None
    factors: Mapping[str, Any]
    real_s: float | None
    user_s: float | None
    sys_s: float | None
    max_rss_bytes: float | None
    flops_per_s: float | None
    mfu: float | None
    peak: Peak | None
    compile_cost_s: float | None
    compile_cache: str | None
    compile_cost_warm_s: float | None
    break_even_iters: float | None
    metrics: Mapping[str, RowMetric]
    by: str

    @property
    def answer(self) -> Verdict | None:
        metric = self.metrics.get(self.by)
        return metric.answer if metric else self.judged

    @property
    def speedup(self) -> float | None:
        """The ratio to the baseline, whose own is 1."""
        return self.judged.change if self.judged else 1.0 if self.is_baseline and self.compared else None


def newest_first(families: Iterable[Family]) -> list[Family]:
    """Sort families by their newest run, the newest first."""
    return sorted(families, key=lambda family: -family.newest_run)


def row_of(family: Family, arm: Arm, peaks: Peaks, table: int) -> ArmRow:
    """Return all values that reports have for an arm, which is a row of the table with this number."""
    medians: dict[str, Any] = {name: arm.median(name) for name in _MEDIANS}
    shared: dict[str, Any] = {name: _shared(arm, name) for name in _COPIED}
    median_s, flops = arm.median_s, arm.median("flops_per_iter")
    peak, twin, cache = peaks.of(arm), family.twin(arm), arm.main_cache
    pair, against = family.pair(arm), family.twin_pair(arm)
    cost_s = arm.compile_cost_s(twin, cache)
    return ArmRow(
        **{**medians, "median_s": median_s, "first_iter_s": arm.first_iter_s(cache)},
        **shared,
        **vars(losses.of_arm(arm)),
        arm=arm,
        table=table,
        factors={
            name: value
            for name, value in arm.key.items()
            if name not in _NO_FACTORS and value is not None and (name, value) != ("gpus", 1)
        },
        flops_per_s=flops / median_s if flops is not None and median_s else None,
        mfu=mfu(flops, median_s, peak),
        peak=peak,
        compile_cost_s=cost_s,
        compile_cache=cache,
        compile_cost_warm_s=arm.compile_cost_s(twin, "warm") if cache == "cold" else None,
        break_even_iters=arm.break_even_iters(twin, cost_s) if against is not None and against.pays_off else None,
        is_baseline=arm is family.baseline,
        judged=pair.verdict if pair else None,
        metrics={
            name: RowMetric(value=run_metrics.mean(arm, name), answer=pair.metrics.get(name) if pair else None)
            for name in family.metrics
        },
        by=family.by,
    )


def _shared(arm: Arm, name: str) -> Any:
    """Return the value common to the arm's runs; None where --group-by pools different ones."""
    values = {getattr(row, name) for row in arm.shown or arm.runs[:1]}
    return values.pop() if len(values) == 1 else None
