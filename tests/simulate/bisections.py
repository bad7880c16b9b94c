"""The table of docs/simulations.md on `mpsq bisect`: searches for a step of known place and size. Seeded."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np
from msgspec.structs import replace

from queue_runner.analysis.rounds import SAME_WITHIN
from queue_runner.referee.bisection import Bisection, CannotTell, Measured, NamedStep, VersionPair
from queue_runner.spec import MOST_ROUNDS
from tests.simulate.look_tables import table
from tests.simulate.machines import rng_of

N_SEARCHES = 1_000
N_VERSIONS = 32


@dataclass(frozen=True)
class History:
    """Versions whose time spreads by `spread` from run to run, with steps at drawn places, or a drift over all."""

    spread: float = 0.01
    steps: tuple[float, ...] = (0.05,)
    drift: float = 0.0


HISTORIES: Mapping[str, History] = {
    "a step of 5 %, spread 1 %": History(),
    "a step of 5 %, spread 3 %": History(spread=0.03),
    "a step of 1 %, spread 1 %": History(steps=(0.01,)),
    "two steps of 3 %, spread 1 %": History(steps=(0.03, 0.03)),
    "a drift of 5 % over all, spread 1 %": History(steps=(), drift=0.05),
    "no step, spread 1 %": History(steps=()),
}


@dataclass(frozen=True)
class Search:
    """Whether a step was named, and whether it is one; the rounds of all pairs."""

    named: bool
    right: bool
    rounds: int


def searches(history: History, n: int) -> list[Search]:
    """Simulate searches, each in another history, as the command and the worker make them."""
    rng = rng_of("bisect", history.spread, *history.steps, history.drift)
    return [_search(rng, history) for _ in range(n)]


def _search(rng: np.random.Generator, history: History) -> Search:
    places = rng.choice(np.arange(1, N_VERSIONS), len(history.steps), replace=False)
    times = np.linspace(0.0, math.log1p(history.drift), N_VERSIONS)
    for place, size in zip(places, history.steps, strict=True):
        times[place:] += math.log1p(size)
    bisection = Bisection(N_VERSIONS - 1, margin=math.log1p(SAME_WITHIN))
    answer = bisection.next()
    while isinstance(answer, VersionPair):
        bisection, answer = _submission(rng, bisection, answer, times[answer.newer] - times[answer.older], history)
    is_right = isinstance(answer, NamedStep) and answer.newer in places and answer.older == answer.newer - 1
    return Search(isinstance(answer, NamedStep), is_right, bisection.n_rounds)


def _submission(
    rng: np.random.Generator, bisection: Bisection, pair: VersionPair, slower: float, history: History
) -> tuple[Bisection, VersionPair | NamedStep | CannotTell]:
    """Measure a pair in mirrored rounds until another one comes next, or the submission is full."""
    differences: tuple[float, ...] = ()
    for _ in range(MOST_ROUNDS // 2):
        both = history.spread * rng.standard_normal((2, 2))
        differences += tuple(float(x) for x in both[0] - both[1] - slower)
        longer = replace(bisection, measured=(*bisection.measured, Measured(pair.older, pair.newer, differences)))
        answer = longer.next(pair)
        if answer != pair:
            break
    return longer, answer


def answers_table(n: int = N_SEARCHES) -> str:
    """Return what searches of known histories end with."""
    lines = []
    for name, history in HISTORIES.items():
        results = searches(history, n)
        counts = Counter("right" if x.right else "wrong" if x.named else "cannot tell" for x in results)
        shares = [f"{100 * counts[kind] / n:.1f}" for kind in ("right", "wrong", "cannot tell")]
        rounds = [x.rounds for x in results]
        lines.append([name, *shares, f"{median(rounds):.0f}", f"{fmean(rounds):.1f}"])
    return table(["32 versions", "right, %", "wrong, %", "cannot tell, %", "rounds, median", "mean"], lines)


TABLES: Mapping[str, Callable[[], str]] = {"bisect": answers_table}
