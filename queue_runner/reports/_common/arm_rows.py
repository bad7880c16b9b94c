"""Arms as rows of numbers: SI units, None where unknown, nothing rounded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from queue_runner.analysis.comparison import Family
from queue_runner.analysis.compile_payoff import break_even_iters, compile_cost_s, first_iter_s, main_cache
from queue_runner.analysis.grouping import Arm, taints
from queue_runner.analysis.peaks import mfu
from queue_runner.analysis.significance import Verdict
from queue_runner.reports._common import losses
from queue_runner.reports._common.device_peaks import Peaks

_COPIED = ("framework", "framework_version", "device", "device_name", "compile", "dtype")
_MEDIANS = ("q1_s", "q3_s", "real_s", "user_s", "sys_s", "loss_first", "loss_last", "val_loss_last", "projected_real_s")
_WHOLE_MEDIANS = ("n_measure", "max_rss_bytes", "peak_reserved_bytes", "n_iters")


def newest_first(families: Iterable[Family]) -> list[Family]:
    """Sort families by their newest run, the newest first."""
    return sorted(families, key=lambda family: -family.newest_run)


def row_of(family: Family, arm: Arm, peaks: Peaks) -> dict[str, Any]:
    """Return all values that reports have for an arm."""
    key = arm.key
    median_s, (spread_s, spread_over) = arm.median_s, arm.spread_s
    peak = peaks.of(arm)
    flops = arm.median("flops_per_iter")
    twin, pair, against = family.twin(arm), family.pair(arm), family.twin_pair(arm)
    cache = main_cache(arm)
    cost_s = compile_cost_s(arm, twin, cache)
    return {
        "workload": key["subject"],
        "config": key["config"],
        "time_of": key.get("time_of") or "iteration",
        "label": arm.label,
        **{name: _shared(arm, name) for name in _COPIED},
        "factors": _factors(key),
        "runs": [row.run for row in arm.runs],
        "n_runs": len(arm.ended),
        "n_valid": len(arm.used),
        "compared": bool(arm.times),
        "median_s": median_s,
        "spread_s": spread_s,
        "spread_over": spread_over,
        **{name: arm.median(name) for name in _MEDIANS},
        **losses.of_arm(arm),
        **{name: None if (x := arm.median(name)) is None else round(x) for name in _WHOLE_MEDIANS},
        "tokens_per_s": _rate(arm.median("tokens_per_iter"), median_s),
        "samples_per_s": _rate(arm.median("samples_per_iter"), median_s),
        "flops_per_s": _rate(flops, median_s),
        "mfu": mfu(flops, median_s, peak),
        "mfu_printed": arm.median("mfu_printed"),
        "peak_flops": peak.flops if peak else None,
        "peak_source": peak.source if peak else None,
        "first_iter_s": first_iter_s(arm, cache),
        "compile_cost_s": cost_s,
        "compile_cache": cache,
        "compile_cost_warm_s": compile_cost_s(arm, twin, "warm") if cache == "cold" else None,
        "break_even_iters": break_even_iters(arm, twin, cost_s) if against is not None and against.pays_off else None,
        "is_baseline": arm is family.baseline,
        **values_of(pair.verdict if pair else None),
        **({"speedup": 1.0} if arm is family.baseline and arm.times else {}),
        "taints": sorted({kind for row in arm.shown for kind in taints(row)}),
        "excluded": len(arm.used) < len(arm.ended),  # marks the row: not a column
    }


def values_of(verdict: Verdict | None) -> dict[str, Any]:
    """Return the values that reports have for a verdict; `judged` is for the readable tables, not a column."""
    return {
        "speedup": verdict.speedup if verdict else None,
        "speedup_low": verdict.low if verdict else None,
        "speedup_high": verdict.high if verdict else None,
        "p": verdict.p if verdict else None,
        "p_corrected": verdict.p_corrected if verdict else None,
        "verdict": str(verdict) if verdict else None,
        "same_within": verdict.same_within if verdict else None,
        "seen": verdict.visible if verdict else None,
        "judged": verdict,
    }


def _factors(key: Mapping[str, Any]) -> dict[str, Any]:
    named = ("machine", "subject", "config", "device", "compile", "dtype", "framework", "device_name", "time_of")
    factors = {name: value for name, value in key.items() if name not in named and value is not None}
    return {name: value for name, value in factors.items() if (name, value) != ("gpus", 1)}


def _shared(arm: Arm, name: str) -> Any:
    """Return the value common to the arm's runs; None where --group-by pools different ones."""
    values = {getattr(row, name) for row in arm.shown or arm.runs[:1]}
    return values.pop() if len(values) == 1 else None


def _rate(amount: float | None, dur_s: float | None) -> float | None:
    return amount / dur_s if amount is not None and dur_s else None
