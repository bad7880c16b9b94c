"""What a run's sensors said in each of its phases: use of the GPU, its dips, power, clock, heat, energy. Pure.

A sample belongs to the phase of the second before it. Rows have the columns of the tables `phases` and `conditions`.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from queue_runner.analysis import energy, stats
from queue_runner.analysis.phases import RUN_PHASES, Span, spans

_Timed = tuple[float, Mapping[str, Any]]
"""Seconds since the start of the run, and what the sample says."""
DIP_SHARE = 0.1
"""How far below the phase's median a sample must lie to count as a dip: clearly, and not by a percent of rounding."""
LOOK_BACK_S = 1.0
"""How far back a driver's average of the use may reach (NVML: 1/6 to 1 s): a sample sooner after the begin of a phase
is of the phase before."""
WHOLE = "whole run"
"""Name for the one phase of a run that reported none."""


@dataclass(frozen=True, slots=True)
class PhaseUse:
    """What the samples of one phase say; None is unknown. Shares are of 1."""

    phase: str
    n_samples: int
    """samples that know the GPU's use"""
    busy_share: float | None
    """median"""
    dips_share: float | None
    """share of the samples more than DIP_SHARE below the median"""
    clock_share: float | None
    """median of the clock, of its highest"""
    clock_hz: float | None
    temperature_c: float | None
    """highest"""
    capped_share: float | None
    """share of the samples in which the power cap lowered the clock"""
    power_w: Mapping[str, float] = field(default_factory=dict)
    """mean by meter"""
    energy: Mapping[str, energy.Energy] = field(default_factory=dict)
    """by meter"""
    source: str | None = None
    """the tool whose imported output this is"""


def by_phase(
    conditions: Iterable[Mapping[str, Any]],
    marks: Iterable[Mapping[str, Any]],
    started_at: float | None,
    real_s: float | None,
) -> list[PhaseUse]:
    """Return the use in each phase that has a sample or a meter's reading, in the order of RUN_PHASES.

    Imported samples, where there are any, replace those of mpsq: they are of one tool, and denser.
    """
    zero = started_at or 0.0
    timed: list[_Timed] = []
    for row in sorted(conditions, key=lambda row: float(row["at"])):
        data = json.loads(row["data_json"])
        if "energy_at" in data:
            data["counted_s"] = data["energy_at"] - zero
        timed.append((row["at"] - zero, data))
    sampled = [sample for sample in timed if "source" in sample[1]] or timed
    phases = spans(marks, real_s) if started_at is not None else []
    if timed and not phases:
        phases = [Span(WHOLE, timed[0][0], timed[-1][0])]
    names = [name for name in (*RUN_PHASES, WHOLE) if any(span.name == name for span in phases)]
    uses = [_use(name, [span for span in phases if span.name == name], sampled, timed) for name in names]
    return [use for use in uses if use.n_samples or use.power_w or use.energy]


def measured(uses: Sequence[PhaseUse]) -> PhaseUse | None:
    """Return the use while it was measured; for a run without phases, that of the whole run."""
    return next((use for use in uses if use.phase in ("measure", WHOLE)), None)


def _use(name: str, parts: Sequence[Span], samples: Sequence[_Timed], all_: Sequence[_Timed]) -> PhaseUse:
    of_others = _of_others(all_)
    before_s = 0.0 if name == WHOLE else LOOK_BACK_S
    begins = [span.from_s + before_s for span in parts]
    inside = [data for t_s, data in samples if (n := bisect_right(begins, t_s)) and t_s <= parts[n - 1].to_s]
    busy = _known(inside, "gpu_busy_share")
    middle = stats.median(busy) if busy else None
    slowed = [data["gpu_slowed_by"] for data in inside if "gpu_slowed_by" in data]
    clocked = [data for data in inside if "gpu_clock_share" in data]
    return PhaseUse(
        phase=name,
        n_samples=len(busy),
        busy_share=middle,
        dips_share=None if middle is None else sum(share < middle - DIP_SHARE for share in busy) / len(busy),
        clock_share=_median(inside, "gpu_clock_share"),
        clock_hz=_median(inside, "gpu_clock_hz"),
        temperature_c=max(_known(inside, "gpu_temperature_c"), default=None),
        capped_share=sum("power cap" in reasons for reasons in slowed) / len(clocked) if clocked else None,
        power_w={meter: sum(watts) / len(watts) for meter, watts in _by_meter(inside, "power_w", of_others)},
        energy=_energy(parts, all_, of_others),
        source=next((data["source"] for data in inside if "source" in data), None),
    )


def _of_others(samples: Sequence[_Timed]) -> set[str]:
    """Return the boards that are not the run's: all of several where its processes were not seen on any."""
    boards = {meter for _, data in samples for meter in data.get("energy_j", {}) if re.fullmatch(r"gpu\d+", meter)}
    used = {f"gpu{n}" for _, data in samples for n in data.get("gpus_used", ())}
    return boards - used if used or len(boards) > 1 else set()


def _energy(parts: Sequence[Span], samples: Sequence[_Timed], of_others: set[str]) -> Mapping[str, energy.Energy]:
    """Return the energy by meter, of the counter where there is one, else of the power."""
    energies: dict[str, energy.Energy] = {}
    for name, method in (("power_w", energy.integrated), ("energy_j", energy.counted)):
        for meter, points in _courses(samples, name).items():
            if meter not in of_others and (energy_j := method(points, parts)) is not None:
                energies[meter] = energy_j
    return energies


def _courses(samples: Sequence[_Timed], name: str) -> dict[str, list[tuple[float, float]]]:
    """Return the readings of each meter, at their own time if they have one."""
    courses: dict[str, dict[float, float]] = {}
    for t_s, data in samples:
        for meter, value in (data.get(name) or {}).items():
            courses.setdefault(meter, {})[data.get("counted_s", t_s)] = float(value)
    return {meter: sorted(course.items()) for meter, course in courses.items()}


def _by_meter(
    samples: Iterable[Mapping[str, Any]], name: str, of_others: set[str]
) -> Iterable[tuple[str, list[float]]]:
    powers: dict[str, list[float]] = {}
    for data in samples:
        for meter, value in (data.get(name) or {}).items():
            if meter not in of_others:
                powers.setdefault(meter, []).append(float(value))
    return powers.items()


def _known(samples: Iterable[Mapping[str, Any]], name: str) -> list[float]:
    return [float(data[name]) for data in samples if isinstance(data.get(name), int | float)]


def _median(samples: Iterable[Mapping[str, Any]], name: str) -> float | None:
    values = _known(samples, name)
    return stats.median(values) if values else None
