"""Marks of what others do on the machine (analysis/validity.py) on simulated runs, and all marks together."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

from msgspec.structs import replace

from queue_runner.analysis import steadiness
from queue_runner.analysis.points import IterationPoint
from queue_runner.analysis.summary import Summary
from queue_runner.analysis.validity import Facts, find_taints
from queue_runner.machine_records import SensorSample
from queue_runner.model import PHASES, Outcome
from tests.simulate import runs

LENGTHS_S = (10, 30, 120, 600)
OF_RUNS_S = (5, *LENGTHS_S)
N_CLEAN = 1000
N_PLANTED = 200
PROCESSORS, GPU = "others_cpu_share", "gpu_others_busy_share"
FAULTS = {
    "all processors": (PROCESSORS, 1.0),
    "60 % of the processors": (PROCESSORS, 0.6),
    "half of its GPU": (GPU, 0.5),
}
"""The processor or GPU that others use for a fifth of a run, and their share of it."""
QUIET = Facts(
    outcome=Outcome.SUCCEEDED,
    expects_iterations=True,
    iterations=[IterationPoint(5, 0.1, 4.0, PHASES.index("measure"), synced=1)],
    summary=Summary(n_iters=1, n_measure=1, loss_first=4.2, loss_last=2.0, drift_ratio=1.0),
    notes={},
    conditions=[],
    watched=False,
    slept_s=0.0,
)


def _course(rng: random.Random, name: str, seconds: int) -> list[float]:
    """Return what others use in each second: a few percent of the processors, and much for a second at times."""
    if name == GPU:
        return [rng.betavariate(1.2, 60) for _ in range(seconds)]
    return [min(1.0, rng.betavariate(1.2, 25) + (rng.random() < 0.01) * rng.uniform(0.3, 0.9)) for _ in range(seconds)]


def samples(rng: random.Random, seconds: int, fault: str = "") -> list[SensorSample]:
    """Return a run's samples: a second apart for ten, then five; with a fault for a fifth of it, at any place."""
    courses = {name: _course(rng, name, seconds) for name in (PROCESSORS, GPU)}
    if fault:
        name, share = FAULTS[fault]
        long = max(2, seconds // 5)
        first = rng.randrange(seconds - long + 1)
        for second in range(first, first + long):
            courses[name][second] = min(1.0, courses[name][second] + share)
    times = [*range(1, min(10, seconds) + 1), *range(15, seconds + 1, 5)]
    spans = [*zip([0, *times], times, strict=False)]
    return [
        SensorSample(at=1e9 + now, **{name: sum(course[then:now]) / (now - then) for name, course in courses.items()})
        for then, now in spans
    ]


def kinds(conditions: Sequence[SensorSample], summary: Summary = QUIET.summary) -> list[str]:
    """Return the marks of a run with these samples."""
    return [taint.kind for taint in find_taints(replace(QUIET, conditions=conditions, summary=summary))]


def caught(fault: str, seconds: int, tries: int = N_PLANTED) -> float:
    """Return the share of runs beside others that are marked."""
    rng = random.Random(f"{fault} {seconds}")
    return sum(bool(kinds(samples(rng, seconds, fault))) for _ in range(tries)) / tries


def false_marks(n_runs: int = N_CLEAN) -> float:
    """Return the share of quiet runs with a mark."""
    rng = random.Random(13)
    return sum(bool(kinds(samples(rng, rng.choice(OF_RUNS_S)))) for _ in range(n_runs)) / n_runs


def any_marks(n_runs: int = N_CLEAN) -> float:
    """Return the share of quiet runs of one speed, of every noise in turn, with any mark."""
    rng, shapes = random.Random("any"), [*runs.SHAPES]
    marked = 0
    for k in range(n_runs):
        n = rng.choice(runs.LENGTHS)
        times = runs.clean(shapes[k % len(shapes)], rng.choice(runs.SPREADS), n, rng)
        course = steadiness.course(range(n), times)
        summary = dataclasses.replace(QUIET.summary, n_iters=n, n_measure=n, course=course)
        marked += bool(kinds(samples(rng, rng.choice(OF_RUNS_S)), summary))
    return marked / n_runs


def table() -> str:
    """Return the table as Markdown."""
    columns = [f"{seconds} s" if seconds < 60 else f"{seconds // 60} min" for seconds in LENGTHS_S]
    lines = [f"Others for a fifth of a run, at any place in it, {N_PLANTED} runs each: share with a mark", ""]
    lines += ["| they use | " + " | ".join(columns) + " |", "|---|" + "---|" * len(columns)]
    for fault in FAULTS:
        cells = [f"{100 * caught(fault, seconds):.3g} %" for seconds in LENGTHS_S]
        lines.append(f"| {fault} | " + " | ".join(cells) + " |")
    quiet = f"Of {N_CLEAN:,} quiet runs, with a second of load now and then, {100 * false_marks():.2g} % have a mark of"
    every = f"these; of {N_CLEAN:,} that also have one speed, with the noises above in turn, {100 * any_marks():.2g} %"
    return "\n".join([*lines, "", quiet, f"{every} have a mark of any kind."]) + "\n"
