"""The order of the runs of a submission.

Repeats are interleaved: every round runs each cell once, in a newly shuffled order, so that a machine that warms up or
slows down overnight affects all cells equally. The shuffle is seeded; the seed is stored with the group.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

MAX_RUNS = 100_000


def interleave(cells: int, repeats: int, seed: int) -> list[tuple[int, int]]:
    """Return (cell, repeat from 1) for every run: `repeats` rounds, each a seeded shuffle of all cells."""
    return rounds([repeats] * cells, seed)


def rounds(repeats: Sequence[int], seed: int) -> list[tuple[int, int]]:
    """Return the same for cells with `repeats[cell]` repeats each: a cell is in that many rounds."""
    if len(repeats) == 1:  # nothing to shuffle
        return [(0, repeat) for repeat in range(1, repeats[0] + 1)]
    generator = random.Random(seed)
    order: list[tuple[int, int]] = []
    cells = list(range(len(repeats)))
    for repeat in range(1, max(repeats, default=0) + 1):
        cells = [cell for cell in cells if repeats[cell] >= repeat]
        round_ = list(cells)
        generator.shuffle(round_)
        order += [(cell, repeat) for cell in round_]
    return order


def round_order(cells: int, number: int, seed: int) -> list[int]:
    """Return the order of the cells in the round of this number, as a grid of that many repeats would have it."""
    return [cell for cell, repeat in interleave(cells, number, seed) if repeat == number]
