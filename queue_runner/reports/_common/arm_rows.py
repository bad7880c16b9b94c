"""Arms as rows of numbers: SI units, None where unknown, nothing rounded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from queue_runner.analysis import run_metrics
from queue_runner.analysis.comparison import Family
from queue_runner.analysis.compile_payoff import break_even_iters, compile_cost_s, first_iter_s, main_cache
from queue_runner.analysis.grouping import Arm, kinds_of_taint
from queue_runner.analysis.peaks import Peak, mfu
from queue_runner.analysis.reported_run import LastEvaluation
from queue_runner.analysis.rounds import Verdict
from queue_runner.analysis.summary import RunNumbers
from queue_runner.reports._common import losses
from queue_runner.reports._common.device_peaks import Peaks

_COPIED = ("framework", "framework_version", "device", "device_name", "compile", "dtype")
_MEDIANS = (*(field.name for field in fields(RunNumbers)), "real_s", "user_s", "sys_s", "max_rss_bytes")
_NO_FACTORS = frozenset(
    {"machine", "subject", "config", "device", "compile", "dtype", "framework", "device_name", "time_of"}
)
"""Names in the key of an arm that have a column or the title of their own."""


@dataclass(frozen=True, kw_only=True)
class JudgedRow:
    """A row that may have a verdict, `judged`, against a baseline."""

    label: str
    judged: Verdict | None
    is_baseline: bool
    taints: Sequence[str]

    @property
    def speedup(self) -> float | None:
        """The ratio to the baseline."""
        return self.judged.change if self.judged else None

    @property
    def answer(self) -> Verdict | None:
        """The answer of the row: its verdict on the time, unless the user chose another measure."""
        return self.judged

    @property
    def low(self) -> float | None:
        """The lower end of the interval of the speedup; None without an interval."""
        return self.judged.low if self.judged else None

    @property
    def high(self) -> float | None:
        """The upper end; None without an interval."""
        return self.judged.high if self.judged else None


@dataclass(frozen=True, kw_only=True)
class RowMetric:
    """A metric of an arm: the mean over its runs, and the answer against the baseline."""

    value: float | None
    judged: Verdict | None

    def as_json(self) -> dict[str, Any]:
        """Return its values by the names in docs/json.md."""
        answer = self.judged
        return {
            "value": self.value,
            "difference": answer and answer.change,
            "low": answer and answer.low,
            "high": answer and answer.high,
            "verdict": answer and str(answer.word),
            "undecided_because": (answer and answer.next_step) or None,
            "n_rounds": answer and answer.n,
            "given_after": answer and answer.given_after,
            "more_rounds": answer and answer.more,
            "same_within": answer and answer.same_within,
        }


@dataclass(frozen=True, kw_only=True)
class ArmRow(RunNumbers, LastEvaluation, JudgedRow):
    """What reports show of an arm. Numbers are medians over its runs."""

    table: int
    workload: str
    config: str | None
    time_of: str
    framework: str | None
    framework_version: str | None
    device: str | None
    device_name: str | None
    compile: bool | str | None
    dtype: str | None
    factors: Mapping[str, Any]
    runs: Sequence[str]
    n_runs: int
    n_valid: int
    n_machines: int
    compared: bool
    spread_s: float | None
    spread_over: str | None
    real_s: float | None
    user_s: float | None
    sys_s: float | None
    max_rss_bytes: float | None
    tokens_per_s: float | None
    samples_per_s: float | None
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
        return metric.judged if metric else self.judged

    @property
    def speedup(self) -> float | None:
        """The ratio to the baseline, whose own is 1."""
        return self.judged.change if self.judged else 1.0 if self.is_baseline and self.compared else None

    @property
    def excluded(self) -> bool:
        """Whether a run that ended is not used."""
        return self.n_valid < self.n_runs


def newest_first(families: Iterable[Family]) -> list[Family]:
    """Sort families by their newest run, the newest first."""
    return sorted(families, key=lambda family: -family.newest_run)


def row_of(family: Family, arm: Arm, peaks: Peaks, table: int) -> ArmRow:
    """Return all values that reports have for an arm, which is a row of the table with this number."""
    medians: dict[str, Any] = {name: arm.median(name) for name in _MEDIANS}
    shared: dict[str, Any] = {name: _shared(arm, name) for name in _COPIED}
    median_s, (spread_s, spread_over) = arm.median_s, arm.spread_s
    flops, tokens, samples = (arm.median(f"{unit}_per_iter") for unit in ("flops", "tokens", "samples"))
    peak, twin, cache = peaks.of(arm), family.twin(arm), main_cache(arm)
    pair, against = family.pair(arm), family.twin_pair(arm)
    cost_s = compile_cost_s(arm, twin, cache)
    return ArmRow(
        **{**medians, "median_s": median_s, "first_iter_s": first_iter_s(arm, cache)},
        **shared,
        **vars(losses.of_arm(arm)),
        table=table,
        workload=arm.key["subject"],
        config=arm.key["config"],
        time_of=arm.key.get("time_of") or "iteration",
        label=arm.label,
        factors={
            name: value
            for name, value in arm.key.items()
            if name not in _NO_FACTORS and value is not None and (name, value) != ("gpus", 1)
        },
        runs=[row.run for row in arm.runs],
        n_runs=arm.n_ended,
        n_valid=arm.n_valid,
        n_machines=arm.n_machines,
        compared=bool(arm.times),
        spread_s=spread_s,
        spread_over=spread_over,
        tokens_per_s=tokens / median_s if tokens is not None and median_s else None,
        samples_per_s=samples / median_s if samples is not None and median_s else None,
        flops_per_s=flops / median_s if flops is not None and median_s else None,
        mfu=mfu(flops, median_s, peak),
        peak=peak,
        compile_cost_s=cost_s,
        compile_cache=cache,
        compile_cost_warm_s=compile_cost_s(arm, twin, "warm") if cache == "cold" else None,
        break_even_iters=break_even_iters(arm, twin, cost_s) if against is not None and against.pays_off else None,
        is_baseline=arm is family.baseline,
        judged=pair.verdict if pair else None,
        metrics={
            name: RowMetric(value=run_metrics.mean(arm, name), judged=pair.metrics.get(name) if pair else None)
            for name in family.metrics
        },
        by=family.by,
        taints=kinds_of_taint(arm.shown),
    )


def _shared(arm: Arm, name: str) -> Any:
    """Return the value common to the arm's runs; None where --group-by pools different ones."""
    values = {getattr(row, name) for row in arm.shown or arm.runs[:1]}
    return values.pop() if len(values) == 1 else None
