"""Cells of runs as rows of numbers: SI units, None where unknown, nothing rounded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from queue_runner.analysis import peaks as hardware
from queue_runner.analysis.comparison import Family, break_even_iters, compile_cost_s, first_iter_s, main_cache
from queue_runner.analysis.grouping import Arm, taints
from queue_runner.reports._common.report import Context

_PEAKS = (
    "SELECT r.machine_hash, r.device, r.dtype, r.framework, r.framework_version, r.compile, r.run, m.value"
    " FROM v_run r JOIN v_metric m ON m.run_id = r.run_id WHERE r.workload = 'matmul' AND m.name = 'peak'"
    " AND m.value > 0 AND r.outcome = 'SUCCEEDED' AND r.valid ORDER BY r.ended_at DESC, r.run_id DESC"
)


class Peaks:
    """The peak of a device in a dtype: the one stated by the user, else a sourced one; none for a cpu. With --peak
    measured, only the one measured by matmul on this machine."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._cores: dict[str, int | None] = {}
        self._measured: dict[tuple[Any, ...], hardware.Peak] | None = None

    def of(self, cell: Arm) -> hardware.Peak | None:
        """Return the peak for a cell's runs."""
        key = cell.key
        name = next((row["device_name"] for row in cell.shown if row["device_name"]), None)
        device = cell.key.get("device")
        return self.find(key.get("machine"), device, name, key.get("dtype"))

    def find(
        self, machine: str | None, device: str | None, name: str | None, dtype: str | None, or_measured: bool = False
    ) -> hardware.Peak | None:
        """Find the peak by the device's name; `or_measured` falls back to a measured one."""
        asked = self._context.options.peak
        found = self._stated(machine, device, name, dtype) if asked != "measured" else None
        return found or (self._on(machine, device, dtype) if asked == "measured" or or_measured else None)

    def _stated(
        self, machine: str | None, device: str | None, name: str | None, dtype: str | None
    ) -> hardware.Peak | None:
        stated = self._context.options.peak_tflops
        for known in (str(device), str(device).partition(":")[0], str(name)):
            if known in stated:
                return hardware.given_peak(stated[known])
        if device is None or device == "cpu":  # a cpu may have the name of the chip, and so of its GPU
            return None
        return hardware.peak(name, self._gpu_cores(machine, name), dtype)

    def _on(self, machine: str | None, device: str | None, dtype: str | None) -> hardware.Peak | None:
        """Return the highest of the newest valid peaks of each framework and mode, so that a slower framework does
        not lower the peak."""
        if self._measured is None:
            self._measured = {}
            newest: set[tuple[Any, ...]] = set()
            for row in self._context.read(_PEAKS):
                place = (row["machine_hash"], row["device"], row["dtype"])
                if (by := (*place, row["framework"], row["compile"])) in newest:
                    continue
                newest.add(by)
                before = self._measured.get(place)
                if before is None or row["value"] > before.flops:
                    self._measured[place] = hardware.measured_peak(
                        row["value"], f"run {row['run']}, matmul in {row['framework']} {row['framework_version']}"
                    )
        return self._measured.get((machine, device, dtype))

    def _gpu_cores(self, machine: str | None, name: str | None) -> int | None:
        """Read the number of GPU cores from the machine's fingerprint; only Apple's device names do not imply it."""
        if machine is None or not str(name).startswith("Apple"):
            return None
        if machine not in self._cores:
            found = self._context.read("SELECT data_json FROM fingerprints WHERE hash = ?", [machine])
            from queue_runner.host.machine import gpu_cores

            self._cores[machine] = gpu_cores(json.loads(found[0]["data_json"])) if found else None
        return self._cores[machine]


def row_of(family: Family, cell: Arm, peaks: Peaks) -> dict[str, Any]:
    """Return all values the report has for a cell."""
    key = cell.key
    median_s, (spread_s, spread_over) = cell.median_s, cell.spread_s
    peak = peaks.of(cell)
    flops = cell.median("flops_per_iter")
    twin, pair = family.twin(cell), family.pair(cell)
    cache = main_cache(cell)
    cost_s = compile_cost_s(cell, twin, cache)
    return {
        "workload": key["subject"],
        "config": key["config"],
        "label": cell.label,
        **{name: _shared(cell, name) for name in ("framework", "framework_version", "device", "device_name")},
        "compile": None if (compile := _shared(cell, "compile")) is None else bool(compile),
        "dtype": _shared(cell, "dtype"),
        "factors": _factors(key),
        "runs": [row["run"] for row in cell.runs],
        "n_runs": len(cell.ended),
        "n_valid": len(cell.used),
        "compared": bool(cell.times),
        "median_s": median_s,
        "spread_s": spread_s,
        "spread_over": spread_over,
        "q1_s": cell.median("q1_s"),
        "q3_s": cell.median("q3_s"),
        "n_measure": _whole(cell.median("n_measure")),
        "tokens_per_s": _rate(cell.median("tokens_per_iter"), median_s),
        "samples_per_s": _rate(cell.median("samples_per_iter"), median_s),
        "flops_per_s": _rate(flops, median_s),
        "mfu": hardware.mfu(flops, median_s, peak),
        "peak_flops": peak.flops if peak else None,
        "peak_source": peak.source if peak else None,
        "first_iter_s": first_iter_s(cell, cache),
        "compile_cost_s": cost_s,
        "compile_cache": cache,
        "compile_cost_warm_s": compile_cost_s(cell, twin, "warm") if cache == "cold" else None,
        "break_even_iters": break_even_iters(cell, twin, cost_s),
        "real_s": cell.median("real_s"),
        "user_s": cell.median("user_s"),
        "sys_s": cell.median("sys_s"),
        "max_rss_bytes": _whole(cell.median("max_rss_bytes")),
        "n_iters": _whole(cell.median("n_iters")),
        "loss_first": cell.median("loss_first"),
        "loss_last": cell.median("loss_last"),
        "val_loss_last": cell.median("val_loss_last"),
        "projected_real_s": cell.median("projected_real_s"),
        "is_baseline": cell is family.baseline,
        "speedup": 1.0 if cell is family.baseline and cell.times else pair.ratio if pair else None,
        "speedup_low": pair.verdict.low if pair else None,
        "speedup_high": pair.verdict.high if pair else None,
        "p": pair.verdict.p if pair else None,
        "p_corrected": pair.verdict.p_corrected if pair else None,
        "verdict": str(pair.verdict) if pair else None,
        "judged": pair.verdict if pair else None,  # for the readable tables: not a column
        "taints": sorted({kind for row in cell.shown for kind in taints(row)}),
    }


def _factors(key: Mapping[str, Any]) -> dict[str, Any]:
    named = ("machine", "subject", "config", "device", "compile", "dtype", "framework", "device_name")
    return {name: value for name, value in key.items() if name not in named and value is not None}


def _shared(cell: Arm, name: str) -> Any:
    """Return the value common to the cell's runs; None where --group-by pools different ones."""
    values = {row[name] for row in cell.shown or cell.runs[:1]}
    return values.pop() if len(values) == 1 else None


def _rate(amount: float | None, dur_s: float | None) -> float | None:
    return amount / dur_s if amount is not None and dur_s else None


def _whole(x: float | None) -> int | None:
    return None if x is None else round(x)
