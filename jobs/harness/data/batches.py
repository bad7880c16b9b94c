"""Batches of a text, the same in every framework, on every device, in every version of numpy.

The start of a sequence depends on the seed, the split and the sequence's number alone, through the raw output of PCG64,
which numpy guarantees to keep. So there is no state to save: iteration 500 draws the same batch after a resume.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int32]
Share = tuple[int, int]
"""The number of a process, from 0, and how many share the batches."""
WHOLE: Share = (0, 1)
_STREAMS = {"iterations": 0, "evaluations": 1}


class Batches:
    """Draw from `parts`, {"train": tokens, "val": tokens}: arrays of type "i" with more than `block_size` tokens."""

    def __init__(self, parts: Mapping[str, array[int]], seed: int, batch_size: int, block_size: int) -> None:
        self._parts = {name: np.frombuffer(part, np.intc).astype(np.int32, copy=False) for name, part in parts.items()}
        self._seed, self._rows, self._block = seed, batch_size, block_size
        self._offsets = np.arange(block_size + 1)
        self._drawn: tuple[int, np.random.PCG64] = (0, self._stream("iterations"))

    def of_iteration(self, i: int, parts: int = 1, share: Share = WHOLE) -> tuple[Tokens, Tokens]:
        """Return the `parts` batches of iteration i (from 0) and their successors, each (parts, batch, block); of a
        share those of one of several processes, which divide `parts` evenly.

        Sequences are numbered consecutively, so that two parts of 4 hold the sequences of one part of 8.
        """
        index, of = share
        own = parts // of
        first = i * parts + index * own
        at, stream = self._drawn
        if at != first:
            stream = self._stream("iterations").advance(first * self._rows)
        self._drawn = (first + own, stream)
        return self._cut("train", stream, own)

    def of_evaluation(self, split: str, n: int, share: Share = WHOLE) -> tuple[Tokens, Tokens]:
        """Return `n` batches of a split, the same at every evaluation, each (n, batch, block); of a share every so
        manieth of them."""
        index, of = share
        x, y = self._cut(split, self._stream("evaluations"), n)
        return x[index::of], y[index::of]

    def _stream(self, name: str) -> np.random.PCG64:
        return np.random.PCG64([self._seed, _STREAMS[name]])

    def _cut(self, split: str, stream: np.random.PCG64, n: int) -> tuple[Tokens, Tokens]:
        tokens = self._parts[split]
        # The bias of the remainder towards the first places, len / 2^64, is negligible.
        starts = stream.random_raw(n * self._rows) % np.uint64(len(tokens) - self._block)
        rows = tokens[starts.astype(np.int64)[:, None] + self._offsets].reshape(n, self._rows, self._block + 1)
        return np.ascontiguousarray(rows[..., :-1]), np.ascontiguousarray(rows[..., 1:])
