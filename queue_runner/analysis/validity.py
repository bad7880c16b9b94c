"""Taints: reasons to reject the numbers of a run (invalid) or to qualify them (caveat); docs/methodology.md lists them.

Each rule checks recorded data; the detail of a taint is what it found, with units.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from queue_runner import units
from queue_runner.analysis.summary import Summary
from queue_runner.model import PHASES, Outcome

CONTENDED_CPU_SHARE = 0.25
"""Mean share of the machine's cores that other programs may use during a run that is not contended."""
GPU_BUSY_SHARE = 0.1
"""Utilisation of the GPU before a run's start that other programs may cause without a taint; WindowServer is one."""
STOLEN_SHARE = 0.02
"""Share of CPU time that a hypervisor may take without a taint."""
SLEPT_S = 0.5
"""Tolerance of the clock pair that detects sleep (docs/macos.md)."""
DRIFT_RATIO = 0.05
"""Change of the median between the first and the last third of the measured iterations."""
SWAP_BYTES_PER_S = 1 << 20
LAUNCHD_PRIORITY = 31
"""Lowest scheduler priority of an unthrottled process on macOS (31 to 37); below it launchd throttles the service."""
_DIVERGED_NATS = 1.0


@dataclass(frozen=True)
class Taint:
    kind: str
    severity: str
    detail: str


@dataclass(frozen=True)
class Facts:
    """The input of the rules. `iterations`, `conditions` and `ingests` are rows of the tables of that name."""

    outcome: Outcome
    expects_iterations: bool
    iterations: Sequence[Mapping[str, Any]]
    summary: Summary
    notes: Mapping[str, str]
    conditions: Sequence[Mapping[str, Any]]
    ingests: Sequence[Mapping[str, Any]]
    slept_s: float
    paused_s: float = 0.0
    resumed_from: str | None = None
    learns: bool = True
    """False for mode=eval, whose losses are of single batches and have no trend"""


def find_taints(facts: Facts) -> list[Taint]:
    """Return all taints of a run, the invalidating ones first."""
    rules = {"invalid": _invalid(facts), "caveat": _caveats(facts)}
    return [Taint(kind, severity, detail) for severity, found in rules.items() for kind, detail in found]


def _invalid(f: Facts) -> Iterable[tuple[str, str]]:
    if f.slept_s > SLEPT_S:
        yield "slept", f"the machine slept {f.slept_s:.1f} s during the run"
    if f.paused_s > 0:
        pause = units.duration(f.paused_s)
        yield "suspended", f"the run was stopped for {pause} (mpsq suspend or SIGSTOP): an iteration may include that"
    for kind in ("wrong_loss", "wrong_result", "log_rewritten"):
        if kind in f.notes:
            yield kind, f.notes[kind]
    if "nan_loss" in f.notes:
        yield "diverged", f.notes["nan_loss"]
    elif f.learns and (detail := _diverged(f.summary)):
        yield "diverged", detail
    if f.expects_iterations and not f.iterations and f.outcome is Outcome.SUCCEEDED:
        yield "unobserved", "the run succeeded but reported no iteration"
    if (share := _mean(f, "others_cpu_share")) is not None and share > CONTENDED_CPU_SHARE:
        yield "contended", f"other programs used {share:.0%} of the machine's cores"
    if (rate := _mean(f, "swap_out_bytes_per_s")) is not None and rate > SWAP_BYTES_PER_S:
        yield "swapping", f"the machine wrote {rate / 1e6:.0f} MB/s to swap"
    # the maximum, since macOS lowers priorities for a while if threads outnumber cores; throttling caps them
    if (priority := _greatest(f, "priority")) is not None and priority < LAUNCHD_PRIORITY:
        yield "throttled_service", f"the scheduler priority was {priority:.0f}: run mpsq service install again"


def _caveats(f: Facts) -> Iterable[tuple[str, str]]:
    if any(not row["synced"] for row in f.iterations if PHASES[row["phase"]] == "measure"):
        yield (
            "unsynced",
            "times taken without synchronizing the device: an iteration may include time of the one before",
        )
    if "op_fallback" in f.notes:
        yield "op_fallback", f.notes["op_fallback"]
    if f.ingests and not _values(f, "others_cpu_share"):
        yield "unwatched", "the run ended before the machine's load was sampled: it may be contended"
    if f.resumed_from:
        at = f" at iteration {units.count(f.iterations[0]['i'])}" if f.iterations else ""
        yield "resumed", f"resumed{at} from the checkpoint of run {f.resumed_from}: only a segment of the training"
    if any(c.get("on_battery") for c in f.conditions):
        yield "battery", "the machine ran on battery"
    if any(c.get("low_power") for c in f.conditions):
        yield "low_power", "low power mode was on"
    if (share := _greatest(f, "gpu_busy_before")) is not None and share > GPU_BUSY_SHARE:
        yield "gpu_busy", f"other programs kept the GPU {units.percent(share, 2)} busy before the run started"
    if (level := _greatest(f, "thermal_level")) is not None and level > 0:
        yield "throttled", f"thermal pressure reached level {level:.0f}"
    if (share := _mean(f, "steal_share")) is not None and share > STOLEN_SHARE:
        yield "stolen", f"the hypervisor took {share:.1%} of the CPU time"
    drift = f.summary.drift_ratio
    if drift is not None and abs(drift - 1) > DRIFT_RATIO:
        yield "drift", f"iterations of the last third took {drift:.2f} times as long as those of the first"
    if f.summary.bimodal:
        yield "bimodal", "iteration times have two levels: the median hides one of them"


def _diverged(summary: Summary) -> str | None:
    first, last = summary.loss_first, summary.loss_last
    if first is None or last is None:
        return None
    if math.isinf(last) or last > first + _DIVERGED_NATS:
        return f"the loss rose from {first:.4f} to {last:.4f}"
    return None


def _values(f: Facts, name: str) -> list[float]:
    return [float(c[name]) for c in f.conditions if isinstance(c.get(name), int | float)]


def _mean(f: Facts, name: str) -> float | None:
    values = _values(f, name)
    return sum(values) / len(values) if values else None


def _greatest(f: Facts, name: str) -> float | None:
    return max(_values(f, name), default=None)
