"""Simulated rounds: noise by shape, spreads by row, the order of the runs, and what the machine adds to each."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from queue_runner.submit.run_order import rounds as planned_rounds

SEED = 20_261_123
Array = Any
"""numpy's arrays; numpy has no types that mypy --strict would accept without a plugin."""
Noise = Callable[[np.random.Generator, tuple[int, ...]], Array]
"""Deviations with mean 0, of a single run; those of symmetric shapes have standard deviation 1 but for outliers."""


def rng_of(*cell: object) -> np.random.Generator:
    """Return the generator of a cell, the same in every process."""
    return np.random.default_rng([SEED, zlib.crc32(repr(cell).encode())])


def _lognormal(rng: np.random.Generator, size: tuple[int, ...]) -> Array:
    sigma = 0.3
    spread = math.sqrt(math.expm1(sigma**2) * math.exp(sigma**2))
    return (np.exp(sigma * rng.standard_normal(size)) - math.exp(sigma**2 / 2)) / spread


def _levels(share: float) -> Noise:
    def draw(rng: np.random.Generator, size: tuple[int, ...]) -> Array:
        high = rng.random(size) < share
        return (high - share) / math.sqrt(share * (1 - share)) + 0.05 * rng.standard_normal(size)

    return draw


def _outliers(rng: np.random.Generator, size: tuple[int, ...]) -> Array:
    return np.where(rng.random(size) < 0.05, 10.0, 1.0) * rng.standard_normal(size)


def _slow_outliers(rng: np.random.Generator, size: tuple[int, ...]) -> Array:
    return rng.standard_normal(size) + 10 * ((rng.random(size) < 0.05) - 0.05)


NOISES: Mapping[str, Noise] = {
    "normal": lambda rng, size: rng.standard_normal(size),
    "Laplace": lambda rng, size: rng.laplace(0, math.sqrt(0.5), size),
    "Cauchy": lambda rng, size: rng.standard_cauchy(size),
    "uniform": lambda rng, size: rng.uniform(-math.sqrt(3), math.sqrt(3), size),
    "5 % outliers of either sign, 10 x": _outliers,
    "lognormal(0.3)": _lognormal,
    "exponential": lambda rng, size: rng.exponential(1, size) - 1,
    "gamma(1/2)": lambda rng, size: (rng.gamma(0.5, 1, size) - 0.5) / math.sqrt(0.5),
    "5 % outliers of one sign, 10 sd": _slow_outliers,
    "two levels 50:50": _levels(0.5),
    "two levels 80:20": _levels(0.2),
}
AUTOREGRESSIVE = "AR(1) 0.9 in time"
PERSISTENT = {"AR(1) 0.3 of each row by itself": 0.3, "AR(1) 0.5 of each row by itself": 0.5}
"""Rows whose rounds resemble each other for reasons of their own: nothing tells that from a difference."""

COURSES: Mapping[str, Callable[[Array, int], Array]] = {
    "first of a round slower by 10 sd": lambda at, rows: 10.0 * (at % rows == 0),
    "first of a round slower by 30 sd": lambda at, rows: 30.0 * (at % rows == 0),
    "drift of 1 sd a run": lambda at, rows: 1.0 * at,
    "drift of 10 sd a run": lambda at, rows: 10.0 * at,
    "warm-up of 30 sd over a round": lambda at, rows: -30.0 * np.exp(-at / rows),
    "a step of 30 sd halfway": lambda at, rows: 30.0 * (at >= 12 * rows),
    "waves of 10 sd, two rounds long": lambda at, rows: 10.0 * np.sin(2 * np.pi * (at / (2 * rows) + 0.1)),
}
"""The time that the machine adds to run number `at` of all."""


def spreads(n_rows: int, ratio: float) -> Array:
    """Return the standard deviation of each row, the baseline first: every other row spreads `ratio` times as much."""
    return np.array([ratio if row % 2 else 1.0 for row in range(n_rows)])


def orders(cell: object, n_families: int, n_rounds: int, n_rows: int, how: str = "mirrored") -> Array:
    """Return the place in time of each run: an array of families, rounds and rows.

    "mirrored" is the order of submit/run_order.py; "random" draws each round anew, "fixed" never changes.
    """
    rng = rng_of("order", cell, how)
    if how == "mirrored":
        seeds = rng.integers(1 << 31, size=n_families)
        drawn = [[row for row, _ in planned_rounds([n_rounds] * n_rows, int(seed))] for seed in seeds]
        places = np.array(drawn).reshape(n_families, n_rounds, n_rows).argsort(-1)
    elif how == "random":
        places = rng.random((n_families, n_rounds, n_rows)).argsort(-1)
    else:
        places = np.broadcast_to(np.arange(n_rows), (n_families, n_rounds, n_rows))
    return places + n_rows * np.arange(n_rounds)[None, :, None]


def values(
    noise: str, n_families: int, n_rounds: int, n_rows: int, ratio: float = 1.0, course: str = "", how: str = "mirrored"
) -> Array:
    """Return the logarithms of the times: an array of families, rounds and rows, the baseline first."""
    cell = (noise, n_rounds, n_rows, ratio, course, how)
    rng, size = rng_of(*cell), (n_families, n_rounds, n_rows)
    if noise in PERSISTENT:
        by_row = autoregressive(rng, n_families * n_rows, n_rounds, PERSISTENT[noise])
        return by_row.reshape(n_families, n_rows, n_rounds).swapaxes(1, 2) * spreads(n_rows, ratio)
    if noise == AUTOREGRESSIVE:
        in_time = autoregressive(rng, n_families, n_rounds * n_rows)
        places = orders(cell, *size, "random")
        return np.take_along_axis(in_time, places.reshape(n_families, -1), 1).reshape(size) * spreads(n_rows, ratio)
    deviations = NOISES[noise](rng, size) * spreads(n_rows, ratio)
    return deviations + COURSES[course](orders(cell, *size, how), n_rows) if course else deviations


def autoregressive(rng: np.random.Generator, n_families: int, n_runs: int, phi: float = 0.9) -> Array:
    """Return noise whose runs resemble the ones before."""
    steps = rng.standard_normal((n_families, n_runs))
    steps[:, 1:] *= math.sqrt(1 - phi * phi)
    for at in range(1, n_runs):
        steps[:, at] += phi * steps[:, at - 1]
    return steps


def differences(values: Array) -> Array:
    """Return each row minus the baseline."""
    return values[..., 1:] - values[..., :1]
