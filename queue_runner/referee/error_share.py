"""How strong the evidence for a proposal of a contest must be, so that few of the changes that are kept are none. Pure.

Each proposal is judged at its own level, by e-LOND (Xu & Ramdas 2024, "Online multiple testing with e-values",
AISTATS). Then the share of false changes among those that are kept is at most FALSE_SHARE in expectation. This holds
although proposals depend on earlier answers: the evidence of analysis/intervals.py, at the round of the answer, is an
e-value.
"""

from __future__ import annotations

import math

from queue_runner.analysis.intervals import ALPHA

FALSE_SHARE = 0.1


def level(planned: int, n_kept: int, number: int) -> float:
    """Return the level of proposal `number`, from 1, of so many planned ones, after `n_kept` were kept before it.

    The planned ones share FALSE_SHARE equally. Each kept change makes room for the later ones. A proposal beyond the
    plan has none.
    """
    return FALSE_SHARE * (n_kept + 1) / planned if number <= planned else 0.0


def n_words(planned: int, n_kept: int, number: int) -> int:
    """Return the number of words by which the intervals of a planned proposal are corrected."""
    return max(1, math.ceil(ALPHA / level(planned, n_kept, number)))
