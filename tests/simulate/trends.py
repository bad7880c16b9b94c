"""The tables of docs/simulations.md on the report trend: false steps of even histories, and steps that are found."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from statistics import fmean

import numpy as np

from queue_runner.analysis.change_points import Step, find_steps
from tests.simulate.look_tables import table
from tests.simulate.machines import NOISES as NIGHTLY
from tests.simulate.machines import Array, autoregressive, rng_of

N_NIGHTS = 30
AT = 15
STEP = math.log(1.05)
NEAR = 3
MOST_AFTER = 30
CORRELATED = {"AR(1) 0.3": 0.3, "AR(1) 0.5": 0.5}
"""How the noise of a night depends on that of the night before."""
OUTLIERS = "5 % outliers of either sign, 10 x"
NOISES = ("normal", "t, 3 df", OUTLIERS, *CORRELATED)


def histories(noise: str, n: int, n_nights: int = N_NIGHTS) -> Array:
    """Return even histories, one a row, with a spread of 1."""
    rng = rng_of("trend", noise, n_nights)
    if noise in CORRELATED:
        return autoregressive(rng, n, n_nights, CORRELATED[noise])
    if noise.startswith("t"):
        return rng.standard_t(3, (n, n_nights)) / math.sqrt(3)
    return NIGHTLY[noise](rng, (n, n_nights))


def false_share(noise: str, n: int, n_nights: int = N_NIGHTS) -> float:
    """Return the share of even histories in which any night states a step."""
    return fmean(bool(find_steps(row.tolist())) for row in histories(noise, n, n_nights))


def found(noise: str, spread: float, n: int, n_nights: int = N_NIGHTS) -> list[Step]:
    """Return, of histories with a step of 5 % at AT, those that are found within NEAR nights of it."""
    rows = histories(noise, n, n_nights) * spread + np.where(np.arange(n_nights) >= AT, STEP, 0.0)
    near = ([step for step in find_steps(row.tolist()) if abs(step.at - AT) <= NEAR] for row in rows)
    return [steps[0] for steps in near if steps]


def false_table(n: int = 4_000) -> str:
    lines = [
        [noise, f"{100 * false_share(noise, n):.1f}", f"{100 * false_share(noise, n // 4, 100):.1f}"]
        for noise in NOISES
    ]
    return table(["noise", "30 nights", "100 nights"], lines)


def found_table(n: int = 1_000) -> str:
    lines = []
    for noise, spread in (
        *(("normal", spread) for spread in (0.005, 0.01, 0.02)),
        (OUTLIERS, 0.01),
        ("AR(1) 0.5", 0.01),
    ):
        steps = found(noise, spread, n, AT + MOST_AFTER)
        stated = [sum(step.stated <= AT + after for step in steps) / n for after in (3, 5, 15, MOST_AFTER)]
        covered = [
            fmean(step.first <= AT <= step.last for step in steps),
            fmean(step.low <= STEP <= step.high for step in steps),
        ]
        lines.append([noise, f"{100 * spread:g} %", *(f"{100 * share:.0f}" for share in (*stated, *covered))])
    heads = ["noise", "spread", "after 3 nights", "5", "15", str(MOST_AFTER), "place covered", "size covered"]
    return table(heads, lines)


TABLES: Mapping[str, Callable[[], str]] = {"trend-false": false_table, "trend-found": found_table}
