"""Taints: reasons to reject a number (invalid), or to qualify it (caveat). docs/methodology.md lists them.

Each rule checks what was recorded and reports in its detail what it found, with units.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from queue_runner import units
from queue_runner.analysis.summary import Summary
from queue_runner.model import PHASES, Outcome

CONTENDED_CPU_SHARE = 0.25
"""Share of the machine's cores that others may use, on average over the run, before it counts as contended."""
STOLEN_SHARE = 0.02
"""Share of CPU time that a hypervisor may take before the run is marked."""
SLEPT_S = 0.5
"""Tolerance of the clock pair that detects sleep (docs/macos.md)."""
DRIFT_RATIO = 0.05
"""Change of the median between the first and the last third of the measured iterations."""
SWAP_BYTES_PER_S = 1 << 20
LAUNCHD_PRIORITY = 31
"""Scheduler priority of an unthrottled process on macOS; below it the service throttles its children."""
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
    """False of mode=eval, whose losses are those of its batches and have no trend"""


def find_taints(facts: Facts) -> list[Taint]:
    """Return every taint of a run, the invalidating ones first."""
    return [*_invalid(facts), *_caveats(facts)]


def _invalid(f: Facts) -> list[Taint]:
    found = []
    if f.slept_s > SLEPT_S:
        found.append(("slept", f"the machine slept {f.slept_s:.1f} s during the run"))
    if f.paused_s > 0:
        pause = units.duration(f.paused_s)
        found.append(("suspended", f"it stood still for {pause} (mpsq suspend or SIGSTOP): an iteration may hold that"))
    named = (("wrong_loss", "wrong_loss"), ("wrong_result", "wrong_result"), ("log_rewritten", "log_rewritten"))
    for kind, name in (*named, ("diverged", "nan_loss")):
        if name in f.notes:
            found.append((kind, f.notes[name]))
    if f.learns and "nan_loss" not in f.notes and (detail := _diverged(f.summary)):
        found.append(("diverged", detail))
    if f.expects_iterations and not f.iterations and f.outcome is Outcome.SUCCEEDED:
        found.append(("unobserved", "it ended well but reported no iteration"))
    if (share := _mean(f, "others_cpu_share")) is not None and share > CONTENDED_CPU_SHARE:
        found.append(("contended", f"other programs used {share:.0%} of the machine's cores meanwhile"))
    if (rate := _mean(f, "swap_out_bytes_per_s")) is not None and rate > SWAP_BYTES_PER_S:
        found.append(("swapping", f"the machine wrote {rate / 1e6:.0f} MB/s to swap meanwhile"))
    # the maximum: with more threads than cores macOS lowers the priority of each for a while, and a limit is a ceiling
    if (priority := _greatest(f, "priority")) is not None and priority < LAUNCHD_PRIORITY:
        found.append(
            ("throttled_service", f"its scheduler priority was {priority:.0f}: run mpsq service install again")
        )
    return [Taint(kind, "invalid", detail) for kind, detail in found]


def _caveats(f: Facts) -> list[Taint]:
    found = []
    measured = [row for row in f.iterations if PHASES[row["phase"]] == "measure"]
    if any(not row["synced"] for row in measured):
        found.append(
            ("unsynced", "the log's clock does not wait for the device: an iteration may hold its neighbour's time")
        )
    if "op_fallback" in f.notes:
        found.append(("op_fallback", f.notes["op_fallback"]))
    if f.ingests and not _values(f, "others_cpu_share"):
        found.append(("unwatched", "it ended before the machine's load could be sampled: it may have been contended"))
    if f.resumed_from:
        at = f" at iteration {units.count(f.iterations[0]['i'])}" if f.iterations else ""
        found.append(("resumed", f"it went on{at} from the checkpoint of run {f.resumed_from}: a segment of its own"))
    if any(c.get("on_battery") for c in f.conditions):
        found.append(("battery", "the machine ran on battery"))
    if any(c.get("low_power") for c in f.conditions):
        found.append(("low_power", "low power mode was on"))
    if (level := _greatest(f, "thermal_level")) is not None and level > 0:
        found.append(("throttled", f"thermal pressure reached level {level:.0f}"))
    if (share := _mean(f, "steal_share")) is not None and share > STOLEN_SHARE:
        found.append(("stolen", f"the hypervisor took {share:.1%} of the CPU time"))
    drift = f.summary.drift_ratio
    if drift is not None and abs(drift - 1) > DRIFT_RATIO:
        found.append(("drift", f"the last third of the iterations took {drift:.2f} times as long as the first"))
    if f.summary.bimodal:
        found.append(("bimodal", "the iterations come in two speeds: the median hides one of them"))
    return [Taint(kind, "caveat", detail) for kind, detail in found]


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
