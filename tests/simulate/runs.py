"""Marks of a run's course (analysis/steadiness.py) on simulated runs: clean ones, and ones with a planted fault."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from queue_runner.analysis import steadiness

LENGTHS = (50, 100, 200, 500, 1000, 2000)
SPREADS = (0.003, 0.01, 0.03, 0.1)
"""Standard deviation of an iteration's time over its mean."""
N_CLEAN = 1000
N_PLANTED = 200
KINDS = ("drift", "levels", "stragglers")

Noise = Callable[[random.Random, int], list[float]]
"""Deviations with mean 0 and standard deviation 1."""


def _normal(rng: random.Random, n: int) -> list[float]:
    return [rng.gauss(0, 1) for _ in range(n)]


def _autoregressive(phi: float) -> Noise:
    def noise(rng: random.Random, n: int) -> list[float]:
        values = [rng.gauss(0, 1)]
        while len(values) < n:
            values.append(phi * values[-1] + math.sqrt(1 - phi * phi) * rng.gauss(0, 1))
        return values

    return noise


def _student(rng: random.Random, n: int) -> list[float]:
    """Student's t with 3 degrees of freedom, whose variance is 3."""
    return [rng.gauss(0, 1) / math.sqrt(2 * rng.gammavariate(1.5, 1)) for _ in range(n)]


def _lognormal(rng: random.Random, n: int) -> list[float]:
    """exp of a normal, sigma 0.5: skewness 1.75."""
    sigma = 0.5
    mean, variance = math.exp(sigma**2 / 2), math.expm1(sigma**2) * math.exp(sigma**2)
    return [(rng.lognormvariate(0, sigma) - mean) / math.sqrt(variance) for _ in range(n)]


SHAPES: dict[str, Noise] = {
    "normal": _normal,
    "AR(1) 0.5": _autoregressive(0.5),
    "AR(1) 0.9": _autoregressive(0.9),
    "lognormal": _lognormal,
    "heavy tails (t, 3 df)": _student,
}


def clean(shape: str, spread: float, n: int, rng: random.Random) -> list[float]:
    """Return the times of a run with one speed, 0.1 s."""
    return [0.1 * max(0.05, 1 + spread * x) for x in SHAPES[shape](rng, n)]


def _step(times: Sequence[float], rng: random.Random) -> list[float]:
    at = rng.uniform(0.25, 0.75) * len(times)
    return [x * (1.04 if i >= at else 1) for i, x in enumerate(times)]


def _ramp(times: Sequence[float], rng: random.Random) -> list[float]:
    return [x * (1 + 0.1 * i / len(times)) for i, x in enumerate(times)]


def _three(times: Sequence[float], rng: random.Random) -> list[float]:
    return [x * rng.choice((1, 1.15, 1.3)) for x in times]


def _three_in_turn(times: Sequence[float], rng: random.Random) -> list[float]:
    order = rng.sample((1, 1.15, 1.3), 3)
    return [x * order[3 * i // len(times)] for i, x in enumerate(times)]


def _slow(times: Sequence[float], rng: random.Random) -> list[float]:
    return [x * (2 if rng.random() < 0.08 else 1) for x in times]


FAULTS: dict[str, Callable[[Sequence[float], random.Random], list[float]]] = {
    "a step of 4 %": _step,
    "slower by 10 % from first to last": _ramp,
    "three speeds 15 % apart, at random": _three,
    "three speeds 15 % apart, one after the other": _three_in_turn,
    "8 % of the iterations twice as slow": _slow,
}
PLANTED = ((200, 0.003), (200, 0.01), (200, 0.02), (1000, 0.01), (1000, 0.03), (50, 0.01))
"""Lengths and spreads of the runs in which faults are planted."""


def kinds(times: Sequence[float]) -> list[str]:
    """Return the kinds of marks of a run."""
    return [kind for kind, _ in steadiness.marks(steadiness.course(range(len(times)), times))]


def false_marks(n_runs: int, first: int = 0) -> dict[tuple[str, float, int], Counter[str]]:
    """Return the marks of clean runs by shape, spread and length, spread evenly over all of them; key "runs" counts
    the runs, "any" those with a mark."""
    cells = list(itertools.product(SHAPES, SPREADS, LENGTHS))
    random.Random("cells").shuffle(cells)
    marks_by_cell: dict[tuple[str, float, int], Counter[str]] = {}
    for k in range(first, first + n_runs):
        cell = cells[k % len(cells)]
        marks = kinds(clean(*cell, random.Random(f"clean {k}")))
        marks_by_cell.setdefault(cell, Counter()).update(["runs", *marks, *(["any"] if marks else [])])
    return marks_by_cell


def caught(fault: str, n: int, spread: float, shape: str = "normal", tries: int = N_PLANTED) -> float:
    """Return the share of runs with a planted fault that get any mark."""
    hits = 0
    for k in range(tries):
        rng = random.Random(f"{fault} {n} {spread} {shape} {k}")
        hits += bool(kinds(FAULTS[fault](clean(shape, spread, n, rng), rng)))
    return hits / tries


def table() -> str:
    """Return both tables as Markdown."""
    marks = false_marks(N_CLEAN)
    lines = [f"{N_CLEAN:,} clean simulated runs of 50 to 2,000 iterations, CV 0.3 to 10 %: share with a mark", ""]
    lines += ["| noise | runs | " + " | ".join(KINDS) + " | any |", "|---|---|---|---|---|---|"]
    for shape in SHAPES:
        lines.append(_row(shape, (count for cell, count in marks.items() if cell[0] == shape)))
    lines.append(_row("all", marks.values()))
    worst = max(itertools.product(SHAPES, SPREADS), key=lambda of: _share(_of(marks, *of)))
    lines += [
        "",
        f"The worst noise is {worst[0]} with CV {_percent(worst[1])}: {_percent(_share(_of(marks, *worst)))}.",
        "",
    ]
    lines += [f"Planted faults, {N_PLANTED} runs each: share with a mark, by iterations and CV", ""]
    lines += ["| fault | " + " | ".join(f"{n:,}, {_percent(cv)}" for n, cv in PLANTED) + " | 200, 1 %, AR(1) 0.5 |"]
    lines += ["|---|" + "---|" * (len(PLANTED) + 1)]
    for fault in FAULTS:
        shares = [*(caught(fault, n, cv) for n, cv in PLANTED), caught(fault, 200, 0.01, "AR(1) 0.5")]
        lines.append(f"| {fault} | " + " | ".join(_percent(share) for share in shares) + " |")
    return "\n".join(lines) + "\n"


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _of(marks: dict[tuple[str, float, int], Counter[str]], shape: str, spread: float) -> Counter[str]:
    return sum((count for cell, count in marks.items() if cell[:2] == (shape, spread)), Counter())


def _share(count: Counter[str]) -> float:
    return count["any"] / max(count["runs"], 1)


def _row(name: str, counts: Iterable[Counter[str]]) -> str:
    total = sum(counts, Counter[str]())
    return (
        f"| {name} | {total['runs']:,} | "
        + " | ".join(_percent(total[k] / total["runs"]) for k in (*KINDS, "any"))
        + " |"
    )
