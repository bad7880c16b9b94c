"""analysis/intervals.py for thousands of families at once; tests/analysis/test_simulated.py holds the two equal."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from queue_runner.analysis import intervals
from tests.simulate.machines import Array

ABOVE, BELOW, SAME = 1, -1, 2


@dataclass(frozen=True)
class Looks:
    """Arrays of families, rounds and contrasts: the words that stand (0: none), the intervals, and where the rounds
    contradicted each other."""

    words: Array
    lows: Array
    highs: Array
    contradicted: Array

    def wrong(self, *words: int) -> Array:
        """Return, for each family, whether any contrast had one of these words at any look."""
        return np.isin(self.words, words).any((1, 2))

    def standing(self, *words: int) -> Array:
        """Return the same for the last look."""
        return np.isin(self.words[:, -1], words).any(1)

    def first(self, contrast: int = 0) -> Array:
        """Return the round of the first word of a contrast; one above the number of rounds where there is none."""
        given = self.words[:, :, contrast] != 0
        return np.where(given.any(1), given.argmax(1) + 1, given.shape[1] + 1)


def looks(
    differences: Array,
    n_words: int | Array | None = None,
    margin: float | None = None,
    *,
    levels: bool = False,
    step: float = 0.0,
    c: float = intervals.EFFECT_SD,
    d0: float = intervals.PRIOR_ROUNDS,
    machines: Array | None = None,
) -> Looks:
    """Look after each round at families of contrasts. `machines` has that of each round, if they are the unit."""
    n_families, n_rounds, n_contrasts = differences.shape
    n_words = n_contrasts if n_words is None else n_words
    means, half_widths = running_intervals(differences, n_words, step, c, d0, machines)
    n_units = np.arange(1, n_rounds + 1) if machines is None else _distinct(machines)
    low = np.full((n_families, n_contrasts), -np.inf)
    high, word = -low, np.zeros_like(low, dtype=int)
    words, lows, highs, contradicted = [word], [low], [high], [np.zeros_like(low, dtype=bool)]
    first = intervals.FIRST_LOOK_WITH_LEVELS if levels else intervals.FIRST_LOOK
    for at in range(1, n_rounds):
        mean, half_width = means[:, at], half_widths[:, at]
        left = np.zeros_like(word, dtype=bool)
        if at + 1 >= first and n_units[at] >= intervals.FIRST_LOOK:
            low, high = np.maximum(low, mean - half_width), np.minimum(high, mean + half_width)
            left = (mean < low) | (mean > high)
            low, high = np.where(left, mean - half_width, low), np.where(left, mean + half_width, high)
            same = (low > -margin) & (high < margin) if margin is not None else np.zeros_like(left)
            now = np.select([low > 0, high < 0, same], [ABOVE, BELOW, SAME])
            word = np.where(left | (word == 0), now, word)
        for rows, row in ((words, word), (lows, low), (highs, high), (contradicted, left)):
            rows.append(row)
    return Looks(*(np.stack(rows, 1) for rows in (words, lows, highs, contradicted)))


def running_intervals(
    differences: Array,
    n_words: int | Array = 1,
    step: float = 0.0,
    c: float = intervals.EFFECT_SD,
    d0: float = intervals.PRIOR_ROUNDS,
    machines: Array | None = None,
) -> tuple[Array, Array]:
    """Return the means and the half widths after each round."""
    least = step
    if machines is None:
        n = np.arange(1, differences.shape[1] + 1)[None, :, None]
        means = differences.cumsum(1) / n
        centred = differences - differences[:, :1]
        squares = (centred**2).cumsum(1) - n * (centred.cumsum(1) / n) ** 2
        variances = np.maximum(squares, 0) / np.maximum(n - 1, 1)
    else:
        n = _distinct(machines)[None, :, None]
        means, variances = _of_machines(differences, machines)
        _, least = running_intervals(differences, n_words, step, c, d0)
    prior = d0 if differences.shape[-1] > 1 else 0.0
    freedom = prior + n - 1
    shrunk = (prior * variances.mean(-1, keepdims=True) + (n - 1) * variances) / np.maximum(freedom, 1e-300)
    g = 1 + n * c**2
    a = (n_words / intervals.ALPHA * np.sqrt(g)) ** (2 / (freedom + 1))
    t2 = np.where(a < g, freedom * (a - 1) / np.where(a < g, 1 - a / g, 1.0), np.inf)
    with np.errstate(invalid="ignore"):
        half_widths = np.sqrt(t2 * (shrunk + step**2 / 6) / n)
    return means, np.maximum(least, np.where(a < g, half_widths, np.inf))


def _distinct(machines: Array) -> Array:
    """Return how many machines there are up to each round."""
    return np.array([len({*machines[:end]}) for end in range(1, len(machines) + 1)])


def _of_machines(differences: Array, machines: Array) -> tuple[Array, Array]:
    """Return the mean of the machines' means, and their variance, after each round."""
    means, variances = [], []
    for end in range(1, len(machines) + 1):
        rounds = [machines[:end] == machine for machine in sorted({*machines[:end]})]
        of_machine = np.stack([differences[:, :end][:, its].mean(1) for its in rounds], 1)
        means.append(of_machine.mean(1))
        variances.append(of_machine.var(1, ddof=1) if len(rounds) > 1 else np.zeros_like(means[-1]))
    return np.stack(means, 1), np.stack(variances, 1)
