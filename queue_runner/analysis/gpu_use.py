"""A run's sensors while it was measured: use of the GPU, its dips, power, clock, heat, energy. Pure.

A sample belongs to the phase of the seconds that it covers, or else of the second before it.

A counter of joules is read every few seconds; a phase begins and ends between two readings. Its value there is
interpolated, and as it never falls, the true one lies between the two readings: that distance is the error stated. It
does not contain the counter's own (NVIDIA states about 5 % for the power that it sums; RAPL and IOReport are models).
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from msgspec import Struct, field

from queue_runner.analysis import stats
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


Points = Sequence[tuple[float, float]]
"""(seconds since the start of the run, joules counted), in order of time."""


class Energy(Struct, frozen=True):
    """Joules over a phase. `error_j`: of the interpolation at its borders."""

    joules: float
    error_j: float


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
    joules: Mapping[str, Energy] = field(default_factory=dict)
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
            meter: joules
            for meter, points in readings(samples, zero).items()
            if meter not in foreign and (joules := counted(points, parts)) is not None
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


class IterationEnergy(NamedTuple):
    """Joules of an iteration: the median over runs, the largest error at the borders of the phase, the MAD."""

    j: float | None = None
    j_error: float | None = None
    j_mad: float | None = None
    j_per_token: float | None = None


def of_iteration(runs: Iterable[tuple[Sequence[Energy], int, float | None]]) -> IterationEnergy:
    """Return the energy of an iteration over runs, given the energies of each, its iterations and their tokens."""
    joules, errors, per_token = [], [], []
    for energies, n, tokens in runs:
        joules.append(math.fsum(energy.joules for energy in energies) / n)
        errors.append(math.fsum(energy.error_j for energy in energies) / n)
        if tokens:
            per_token.append(joules[-1] / tokens)
    if not joules:
        return IterationEnergy()
    mad = stats.mad(joules) if len(joules) > 1 else None
    return IterationEnergy(stats.median(joules), max(errors), mad, stats.median(per_token) if per_token else None)


def readings(samples: Sequence[SensorSample], zero: float) -> dict[str, Points]:
    """Return the readings of each counter, at their own times where these were not the samples'."""
    courses: dict[str, dict[float, float]] = {}
    for sample in samples:
        at = sample.at if sample.energy_at is None else sample.energy_at
        for meter, joules in (sample.energy_j or {}).items():
            courses.setdefault(meter, {})[at - zero] = joules
    return {meter: sorted(course.items()) for meter, course in courses.items()}


def counted(points: Points, spans: Iterable[Span]) -> Energy | None:
    """Return what a counter of joules counted over the spans; None where it does not cover them, or was reset."""
    if any(b[1] < a[1] for a, b in pairwise(points)):
        return None
    borders = [(_interpolated(points, span.from_s), _interpolated(points, span.to_s)) for span in spans]
    known = [(begin, end) for begin, end in borders if begin is not None and end is not None]
    if not borders or len(known) < len(borders):
        return None
    return Energy(
        math.fsum(end[0] - begin[0] for begin, end in known), math.fsum(begin[1] + end[1] for begin, end in known)
    )


def _interpolated(points: Points, t_s: float) -> tuple[float, float] | None:
    """Return the joules at a time, and their largest error; None outside of the readings."""
    if not points or not points[0][0] <= t_s <= points[-1][0]:
        return None
    after = bisect_left(points, t_s, key=lambda point: point[0])
    t_b, b = points[after]
    if t_b == t_s:
        return b, 0.0
    t_a, a = points[after - 1]
    joules = a + (b - a) * (t_s - t_a) / (t_b - t_a)
    return joules, max(b - joules, joules - a)
