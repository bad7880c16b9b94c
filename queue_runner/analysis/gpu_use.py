"""A run's sensors while it was measured: use of the GPU, its dips, power, clock, heat, energy. Pure.

A sample belongs to the phase of the seconds that it covers, or else of the second before it.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, field

from queue_runner.analysis import energy, stats
from queue_runner.analysis.phases import Span, spans
from queue_runner.analysis.points import PhaseMark
from queue_runner.machine_records import SensorSample

DIP_SHARE = 0.1
"""How far below the phase's median a sample must lie to count as a dip: clearly, and not by a percent of rounding."""
LOOK_BACK_S = 1.0
"""How far back a driver's average of the use may reach (NVML: 1/6 to 1 s): a sample sooner after the begin of a phase
belongs to the phase before."""
WHOLE = "whole run"
"""Name for the one phase of a run that reported none."""


class PhaseUse(Struct, frozen=True):
    """The samples of one phase; None is unknown. Shares are from 0 to 1."""

    phase: str
    n_samples: int
    """samples that know the GPU's use"""
    busy_share: float | None
    """median"""
    dips_share: float | None
    """share of the samples more than DIP_SHARE below the median"""
    clock_share: float | None
    """median of the clock, as a share of its highest"""
    clock_hz: float | None
    temperature_c: float | None
    """highest"""
    capped_share: float | None
    """share of the samples in which the power cap lowered the clock"""
    power_w: Mapping[str, float] = field(default_factory=dict)
    """mean by meter"""
    joules: Mapping[str, energy.Energy] = field(default_factory=dict)
    """by meter"""


def measured(
    samples: Sequence[SensorSample], marks: Iterable[PhaseMark], started_at: float | None, real_s: float | None
) -> PhaseUse | None:
    """Return the use in the phase `measure`, of a run that reported no phases in the whole run; None without a sample
    or a meter's reading there. `samples` are in the order of their times."""
    zero = started_at or 0.0
    phases = spans(marks, real_s) if started_at is not None else []
    if samples and not phases:
        phases = [Span(WHOLE, samples[0].at - zero, samples[-1].at - zero)]
    parts = [span for span in phases if span.name in ("measure", WHOLE)]
    name = parts[0].name if parts else ""
    foreign = _foreign_boards(samples)
    inside = [sample for sample in samples if _is_inside(sample, name, parts, zero)]
    busy = [sample.gpu_busy_share for sample in inside if sample.gpu_busy_share is not None]
    middle = stats.median(busy) if busy else None
    slowed = [sample.gpu_slowed_by for sample in inside if sample.gpu_slowed_by is not None]
    clocks = [sample.gpu_clock_share for sample in inside if sample.gpu_clock_share is not None]
    clocks_hz = [sample.gpu_clock_hz for sample in inside if sample.gpu_clock_hz is not None]
    watts: dict[str, list[float]] = {}
    for sample in inside:
        for meter, value in (sample.power_w or {}).items():
            watts.setdefault(meter, []).append(value)
    use = PhaseUse(
        phase=name,
        n_samples=len(busy),
        busy_share=middle,
        dips_share=None if middle is None else sum(share < middle - DIP_SHARE for share in busy) / len(busy),
        clock_share=stats.median(clocks) if clocks else None,
        clock_hz=stats.median(clocks_hz) if clocks_hz else None,
        temperature_c=max((heat for s in inside if (heat := s.gpu_temperature_c) is not None), default=None),
        capped_share=sum("power cap" in reasons for reasons in slowed) / len(clocks) if clocks else None,
        power_w={meter: sum(values) / len(values) for meter, values in watts.items() if meter not in foreign},
        joules={
            meter: counted
            for meter, points in energy.readings(samples, zero).items()
            if meter not in foreign and (counted := energy.counted(points, parts)) is not None
        },
    )
    return use if use.n_samples or use.power_w or use.joules else None


def _is_inside(sample: SensorSample, name: str, parts: Sequence[Span], zero: float) -> bool:
    at_s = sample.at - zero
    back_s = 0.0 if name == WHOLE else sample.over_s or LOOK_BACK_S
    n = bisect_right(parts, at_s - back_s, key=lambda span: span.from_s)
    return n > 0 and at_s <= parts[n - 1].to_s


def _foreign_boards(samples: Sequence[SensorSample]) -> set[str]:
    """Return the boards that are not the run's: all of several where its processes were not seen on any."""
    boards = {meter for sample in samples for meter in sample.energy_j or () if re.fullmatch(r"gpu\d+", meter)}
    used = {f"gpu{n}" for sample in samples for n in sample.gpus_used or ()}
    return boards - used if used or len(boards) > 1 else set()
