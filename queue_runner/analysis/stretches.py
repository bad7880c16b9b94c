"""Samples of a run as stretches of time: the mean that hides nothing, and the worst part of the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise

from msgspec import Struct

from queue_runner.machine_records import SensorSample

WORST_SHARE = 0.1
"""Shortest part of the sampled time that is looked at by itself."""
WORST_S = 2.0
"""Shortest such part in seconds: less is a hiccup."""


class Stretch(Struct, frozen=True):
    """Means over consecutive samples that last `dur_s` altogether; a name that no sample has is missing."""

    dur_s: float
    means: Mapping[str, float]


def whole(samples: Sequence[SensorSample], name: str) -> float | None:
    """Return the mean of `name` over the run, each sample weighted by the time since the one before."""
    known: list[tuple[float, float]] = [(dur_s, getattr(sample, name)) for dur_s, sample in _timed(samples, name)]
    total_s = sum(dur_s for dur_s, _ in known)
    if total_s <= 0:
        return sum(value for _, value in known) / len(known) if known else None
    return sum(dur_s * value for dur_s, value in known) / total_s


def parts(samples: Sequence[SensorSample], name: str, *others: str) -> Iterator[Stretch]:
    """Yield, for each sample that has `name`, the shortest stretch that ends there and lasts WORST_S and WORST_SHARE
    of the time; none if all samples together are shorter."""
    timed = list(_timed(samples, name))
    ends = [0.0, *accumulate(dur_s for dur_s, _ in timed)]
    sums = {key: _sums(timed, key) for key in (name, *others)}
    least_s = max(WORST_S, WORST_SHARE * ends[-1]) - 1e-9
    first = 0
    for last in range(1, len(ends)):
        while ends[last] - ends[first + 1] >= least_s:
            first += 1
        if ends[last] - ends[first] >= least_s:
            totals = {key: (v[last] - v[first], w[last] - w[first]) for key, (v, w) in sums.items()}
            yield Stretch(ends[last] - ends[first], {key: v / w for key, (v, w) in totals.items() if w > 0})


def _sums(timed: Sequence[tuple[float, SensorSample]], name: str) -> tuple[list[float], list[float]]:
    """Return the running sums of the value times its seconds, and of those seconds, over samples that have it."""
    values = [(dur_s, getattr(sample, name)) for dur_s, sample in timed]
    known = [(0.0, 0.0) if value is None else (dur_s, value) for dur_s, value in values]
    products = accumulate((dur_s * value for dur_s, value in known), initial=0.0)
    return [*products], [*accumulate((dur_s for dur_s, _ in known), initial=0.0)]


def _timed(samples: Sequence[SensorSample], name: str) -> Iterator[tuple[float, SensorSample]]:
    """Yield the seconds that each sample with `name` stands for, and the sample: its own, or else the time since the
    one before, with or without `name`. The first stands for as long as the second, a single one for a second."""
    readings = [(sample.over_s, sample) for sample in samples if sample.over_s is not None]
    others = [sample for sample in samples if sample.over_s is None]
    steps = [after.at - before.at for before, after in pairwise(others)]
    for dur_s, sample in [*readings, *zip([*steps[:1], *steps] or [1.0], others, strict=False)]:
        if getattr(sample, name) is not None:
            yield max(dur_s, 0.0), sample
