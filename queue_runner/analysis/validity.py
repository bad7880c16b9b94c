"""Taints: reasons to reject the numbers of a run (invalid) or to qualify them (caveat); docs/methodology.md lists them.

What disturbs a run makes comparisons less certain and is a caveat; a run is invalid only if it does not measure what it
should.

Each rule checks recorded data; the detail of a taint is what it found, with units.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise

from msgspec import Struct, field

from queue_runner import units
from queue_runner.analysis import clock_check, neighbour_share, stats, steadiness
from queue_runner.analysis.points import IterationPoint
from queue_runner.analysis.summary import Summary
from queue_runner.machine_records import SensorSample
from queue_runner.model import IN_COPY, NEIGHBOUR_BUSY, PHASES, SYNC_UNKNOWN, WROTE_OUTSIDE, Outcome, Taint

OTHERS_BESIDE_SHARE = 0.5
"""Processors that other programs may use during a run that is not contended, as a share of those that the run itself
uses, one at least: others share its caches and lower its clock. Twice that in its worst tenth."""
OTHERS_WHEN_FULL_SHARE = 0.1
"""The same while less than IDLE_SHARE of the machine is idle: others take the run's time then."""
IDLE_SHARE = 0.05
GPU_BUSY_SHARE = 0.1
"""Utilisation of the GPU that other programs may cause without a taint; WindowServer is one."""
HOT_C = 90.0
"""Temperature from which a GPU counts as throttled if it does not tell its own limit; those are 87 to 105."""
LOW_CLOCK_SHARE = 0.6
"""Median clock of a working GPU, of its highest, below which it counts as throttled. A power cap alone takes GPUs of
data centres to some 0.7 in products of large matrices."""
STOLEN_SHARE = 0.02
"""Share of CPU time that a hypervisor may take without a taint."""
START_SHARE = 0.1
"""Share of a run's real time that its start may take: more could change a ratio of such times."""
SLEPT_S = 0.5
"""Tolerance of the clock pair that detects sleep (docs/macos.md)."""
SWAP_BYTES_PER_S = 1 << 20
LAUNCHD_PRIORITY = 31
"""Lowest scheduler priority of an unthrottled process on macOS (31 to 37); below it launchd throttles the service."""
_DIVERGED_NATS = 1.0
WORST_SHARE = 0.1
"""Shortest part of the sampled time that is looked at by itself."""
WORST_S = 2.0
"""Shortest such part in seconds: less is a hiccup."""
MOST_DROPPED = 5
"""Maximum number of dropped fields that a detail names."""


class Facts(Struct, frozen=True):
    """The input of the rules: everything that is stored of a run."""

    outcome: Outcome
    expects_iterations: bool
    iterations: Sequence[IterationPoint]
    summary: Summary
    notes: Mapping[str, str]
    conditions: Sequence[SensorSample]
    watched: bool
    """whether it ran here, where the machine's load is sampled: not so for an imported log"""
    slept_s: float
    paused_s: float = 0.0
    resumed_from: str | None = None
    learns: bool = True
    real_s: float | None = None
    start_s: float = 0.0
    """at most so much of real_s passed before the program's first instruction"""
    clock_step_s: float = 0.0
    """by how much the wall clock was set meanwhile"""
    dur_is: object = None
    """in its hello: "mean" where an iteration stands for several calls"""
    lines: clock_check.LineTimes = field(default_factory=clock_check.LineTimes)
    dropped: Sequence[str] = ()
    """fields that were left out of the trainer's lines"""
    recompiled: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """graphs compiled and graph breaks by the number of a measured iteration that compiled"""
    neighbours: neighbour_share.NeighbourActivity | None = None
    """the runs of other lanes that were active while it was measured"""


def learns(workload: str | None) -> bool:
    """Return whether a workload trains, by the name in its hello: losses of mode=eval belong to single batches and have
    no trend."""
    return not (workload or "").endswith("-eval")


def find_taints(facts: Facts) -> list[Taint]:
    """Return all taints of a run, the invalidating ones first."""
    rules = {"invalid": _invalid(facts), "caveat": _caveats(facts)}
    return [Taint(kind, severity, detail) for severity, taints in rules.items() for kind, detail in taints]


def _invalid(f: Facts) -> Iterable[tuple[str, str]]:
    if f.slept_s > SLEPT_S:
        yield "slept", f"the machine slept {f.slept_s:.1f} s during the run"
    if f.paused_s > 0:
        pause = units.duration(f.paused_s)
        yield "suspended", f"the run was stopped for {pause} (mpsq pause or SIGSTOP): an iteration may include that"
    if f.real_s is None and (detail := _contradiction(f)):
        yield "wrong_clock", detail
    for kind in ("wrong_loss", "wrong_result", "log_rewritten"):
        if kind in f.notes:
            yield kind, f.notes[kind]
    if "nan_loss" in f.notes:
        yield "diverged", f.notes["nan_loss"]
    elif f.learns and (detail := _diverged(f.summary)):
        yield "diverged", detail
    if f.expects_iterations and not f.iterations and f.outcome is Outcome.SUCCEEDED:
        yield "unobserved", "the run succeeded but reported no iteration"
    if (rate := mean_over(f.conditions, "swap_out_bytes_per_s")) is not None and rate > SWAP_BYTES_PER_S:
        yield "swapping", f"the machine wrote {rate / 1e6:.0f} MB/s to swap"


def _caveats(f: Facts) -> Iterable[tuple[str, str]]:
    synced = {point.synced for point in f.iterations if PHASES[point.phase] == "measure"}
    if SYNC_UNKNOWN in synced:
        yield (
            "sync_unknown",
            "it is unknown whether the clock waited for the device: the iterations do not report `synced`",
        )
    if 0 in synced and "not_synced" not in f.notes:
        yield (
            "unsynced",
            "times taken without synchronizing the device: an iteration may include part of the previous one",
        )
    if "not_synced" in f.notes:
        yield "unsynced", f.notes["not_synced"]
    if f.clock_step_s:
        yield "clock_step", f"the wall clock was moved {f.clock_step_s:+.1f} s: durations taken with it are wrong"
    if f.watched and (n_missing := clock_check.missing_iterations(f.iterations)):
        gaps = "not reported: the iteration numbers have gaps"
        yield "iterations_missing", f"{units.counted(n_missing, 'iteration')} {gaps}"
    if f.real_s is not None and (detail := _contradiction(f)):  # reports compare by the real time then
        yield "wrong_clock", detail
    if "op_fallback" in f.notes:
        yield "op_fallback", f.notes["op_fallback"]
    if f.dropped:
        more = f"; {len(f.dropped) - MOST_DROPPED} more" if len(f.dropped) > MOST_DROPPED else ""
        yield "field_dropped", f"ignored in the trainer's report: {'; '.join(f.dropped[:MOST_DROPPED])}{more}"
    if f.recompiled:
        yield "recompiled", _recompiled(f)
    if f.real_s and not f.iterations and f.start_s > START_SHARE * f.real_s:
        start, real = (units.short_duration(x_s, 2) for x_s in (f.start_s, f.real_s))
        yield "short_run", f"starting the program took up to {start} of the run's {real}"
    if f.watched and not _values(f, "others_cpu_share"):
        yield "unwatched", "the run ended before the machine's load was sampled: other programs may have disturbed it"
    if f.resumed_from:
        at = f" at iteration {units.count(f.iterations[0].i)}" if f.iterations else ""
        yield "resumed", f"resumed{at} from the checkpoint of run {f.resumed_from}: only a segment of the training"
    if f.neighbours is not None:
        yield NEIGHBOUR_BUSY, f.neighbours.detail()
    if detail := _contended(f.conditions):
        yield "contended", detail
    if detail := _gpu_contended(f.conditions):
        yield "gpu_contended", detail
    # the maximum, since macOS lowers priorities for a while if threads outnumber cores; throttling caps them
    if (priority := _greatest(f, "priority")) is not None and priority < LAUNCHD_PRIORITY:
        yield "throttled_service", f"the scheduler priority was {priority:.0f}: run mpsq service install again"
    for kind in ("not_quiet", IN_COPY, "editable_install", WROTE_OUTSIDE):
        if kind in f.notes:
            yield kind, f.notes[kind]
    if any(sample.on_battery for sample in f.conditions):
        yield "battery", "the machine ran on battery"
    if any(sample.low_power for sample in f.conditions):
        yield "low_power", "low power mode was on"
    if (share := _greatest(f, "gpu_busy_before")) is not None and share > GPU_BUSY_SHARE:
        yield "gpu_busy", f"other programs kept the GPU {units.percent(share, 2)} busy before the run started"
    elif (n := _greatest(f, "gpu_others")) and not _values(f, "gpu_others_busy_share"):
        held = units.size(_greatest(f, "gpu_others_bytes") or 0)
        yield "gpu_busy", f"{n:.0f} other programs held {held} of the GPU's memory; how busy they kept it is unknown"
    if details := [*_throttled(f)]:
        yield "throttled", "; ".join(details)
    if (share := mean_over(f.conditions, "steal_share")) is not None and share > STOLEN_SHARE:
        yield "stolen", f"the hypervisor took {share:.1%} of the CPU time"
    yield from steadiness.marks(f.summary.course)


def _contradiction(f: Facts) -> str | None:
    return clock_check.contradiction(f.iterations, f.summary, f.real_s, f.lines, f.dur_is)


def _contended(conditions: Sequence[SensorSample]) -> str | None:
    """Return the load of other programs if it was too much: over the run, or over its worst tenth."""
    processors = max((sample.processors or 0.0 for sample in conditions), default=0.0)
    share = mean_over(conditions, "others_cpu_share")
    if share is not None and share > _limit_share(share, mean_over(conditions, "job_cpu_share"), processors):
        return f"other programs used {_cpu_use(share, processors)}"
    too_much: list[tuple[float, float]] = []
    for part in stretches(conditions, "others_cpu_share", "job_cpu_share"):
        share = part.means["others_cpu_share"]
        if share > 2 * _limit_share(share, part.means.get("job_cpu_share"), processors):
            too_much.append((share, part.dur_s))
    if not too_much:
        return None
    share, dur_s = max(too_much)
    return f"other programs used {_cpu_use(share, processors)} for {units.duration(dur_s)}"


def _limit_share(others: float, job: float | None, processors: float) -> float:
    """Return what others may use, as a share of all processors. Where the number of processors is unknown (samples of
    earlier versions), the run counts as one that uses half of them."""
    if not processors:
        return OTHERS_BESIDE_SHARE * 0.5
    used = max(job or 0.0, 1 / processors)
    return used * (OTHERS_WHEN_FULL_SHARE if others + used > 1 - IDLE_SHARE else OTHERS_BESIDE_SHARE)


def _cpu_use(share: float, processors: float) -> str:
    count = f" ({share * processors:.1f} of {processors:.0f})" if processors else ""
    return f"{share:.0%} of the machine's cores{count}"


def _gpu_contended(conditions: Sequence[SensorSample]) -> str | None:
    share = mean_over(conditions, "gpu_others_busy_share")
    if share is not None and share > GPU_BUSY_SHARE:
        return f"other programs kept the run's GPU {share:.0%} busy"
    parts = [(p.means["gpu_others_busy_share"], p.dur_s) for p in stretches(conditions, "gpu_others_busy_share")]
    if (worst := max(parts, default=(0.0, 0.0)))[0] > GPU_BUSY_SHARE:
        return f"other programs kept the run's GPU {worst[0]:.0%} busy for {units.duration(worst[1])}"
    after = max((sample.gpu_busy_after or 0.0 for sample in conditions), default=0.0)
    if after > GPU_BUSY_SHARE:
        return (
            f"other programs kept the GPU {after:.0%} busy right after the run; while it ran, their use could not "
            "be separated from its own"
        )
    return None


def _throttled(f: Facts) -> Iterable[str]:
    """Yield the signs of heat and of lowered clocks, of a GPU only while it works."""
    if (level := _greatest(f, "thermal_level")) is not None and level > 0:
        yield f"thermal pressure reached level {level:.0f}"
    working = [sample for sample in f.conditions if (sample.gpu_busy_share or 0.0) > GPU_BUSY_SHARE]
    slowed = [{*(sample.gpu_slowed_by or ())} - {"power cap"} for sample in working]
    if any(slowed):
        words = ", ".join(sorted(set().union(*slowed)))
        yield f"the GPU was slowed down in {sum(map(bool, slowed))} of {len(working)} samples: {words}"
    hot = [sample.gpu_temperature_c for sample in working if sample.gpu_temperature_c is not None and _is_hot(sample)]
    if hot:
        yield f"the GPU reached {max(hot):.0f} degrees Celsius"
    loaded = [sample for sample in working if (sample.gpu_busy_share or 0.0) > 0.5]
    clocks = [sample.gpu_clock_share for sample in loaded if sample.gpu_clock_share is not None]
    if clocks and (clock := stats.median(clocks)) < LOW_CLOCK_SHARE:
        yield f"the GPU's clock was {clock:.0%} of its highest (median of {len(clocks)} samples under load)"


def _is_hot(sample: SensorSample) -> bool:
    if sample.gpu_thermal_margin_c is not None:
        return sample.gpu_thermal_margin_c <= 0
    return (sample.gpu_temperature_c or 0.0) >= HOT_C


def _recompiled(f: Facts) -> str:
    graphs, breaks = (sum(counts) for counts in zip(*f.recompiled.values(), strict=True))
    n = f"{units.count(len(f.recompiled))} of {units.count(f.summary.n_measure)} measured iterations"
    text = f"{n} compiled again (first: {units.count(min(f.recompiled))}): {units.count(graphs)} graph"
    text += "" if graphs == 1 else "s"
    return text + (f", {units.count(breaks)} graph break{'' if breaks == 1 else 's'}" if breaks else "")


def _diverged(summary: Summary) -> str | None:
    first, last = summary.loss_first, summary.loss_last
    if first is None or last is None:
        return None
    if math.isinf(last) or last > first + _DIVERGED_NATS:
        return f"the loss rose from {first:.4f} to {last:.4f}"
    return None


def _values(f: Facts, name: str) -> list[float]:
    return [value for sample in f.conditions if (value := getattr(sample, name)) is not None]


def _greatest(f: Facts, name: str) -> float | None:
    return max(_values(f, name), default=None)


class Stretch(Struct, frozen=True):
    """Means over consecutive samples that last `dur_s` altogether; a name that no sample has is missing."""

    dur_s: float
    means: Mapping[str, float]


def mean_over(samples: Sequence[SensorSample], name: str) -> float | None:
    """Return the mean of `name` over the run, each sample weighted by the time since the one before."""
    known: list[tuple[float, float]] = [(dur_s, getattr(sample, name)) for dur_s, sample in _timed(samples, name)]
    total_s = sum(dur_s for dur_s, _ in known)
    if total_s <= 0:
        return sum(value for _, value in known) / len(known) if known else None
    return sum(dur_s * value for dur_s, value in known) / total_s


def stretches(samples: Sequence[SensorSample], name: str, *others: str) -> Iterator[Stretch]:
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
