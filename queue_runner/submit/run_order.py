"""The order of the runs of a submission.

Repeats are interleaved: a round runs each cell once. Rounds come in mirrored pairs: an odd round draws its order, the
next even round reverses it. So neither the place in a round nor a machine that warms up favours a cell. The draw
depends on the group's seed and the number of the pair alone: rounds that are added later continue the same order.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

MAX_RUNS = 100_000


def rounds(repeats: Sequence[int], seed: int) -> list[tuple[int, int]]:
    """Return (cell, repeat from 1) for each run, where each cell has `repeats[cell]` of them."""
    return [
        (cell, number)
        for number in range(1, max(repeats, default=0) + 1)
        for cell in round_order(len(repeats), number, seed)
        if repeats[cell] >= number
    ]


def round_order(cells: int, number: int, seed: int) -> list[int]:
    """Return the order of the cells in the round of this number, from 1."""
    order = list(range(cells))
    random.Random(f"{seed} {(number + 1) // 2}").shuffle(order)
    return order if number % 2 else order[::-1]
