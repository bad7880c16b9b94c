"""Labelled examples, and which of them a batch holds: the same on every device and in every version of numpy.

As in batches.py everything follows from the seed through the raw output of PCG64, which numpy guarantees to keep.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

STREAMS = {"examples": 2, "order": 3}
"""Second part of the seed of a stream; 0 and 1 are those of batches.py."""

Part = tuple[NDArray[Any], NDArray[np.int64]]
"""Inputs (n, ...) and labels (n,)."""


@dataclass(frozen=True)
class Examples:
    """The examples of all splits, in memory."""

    name: str
    about: str
    """in words, such as "1,024 + 128 images of 224 x 224 in 10 classes" """
    parts: Mapping[str, Part]
    """by split, "train" and "val" """

    def fields(self) -> dict[str, Any]:
        """Return the fields of hello about the data: name, description, sha256, bytes."""
        digest = hashlib.sha256()
        for x, y in self.parts.values():
            digest.update(np.ascontiguousarray(x))
            digest.update(np.ascontiguousarray(y))
        n_bytes = sum(x.nbytes for x, _ in self.parts.values())
        return {"name": self.name, "about": self.about, "sha256": digest.hexdigest(), "bytes": n_bytes}


class Order:
    """The order of batches over `n` examples: each epoch has every example once, shuffled anew."""

    def __init__(self, n: int, seed: int, batch_size: int) -> None:
        self._n, self._seed, self._rows = n, seed, batch_size
        self._shuffled = lru_cache(2)(self._draw)

    def of_iteration(self, i: int) -> NDArray[np.int64]:
        """Return the indices of the examples in the batch of iteration i (from 0)."""
        at = np.arange(i * self._rows, (i + 1) * self._rows)
        epochs = at // self._n
        return np.concatenate([self._shuffled(int(k))[at[epochs == k] % self._n] for k in np.unique(epochs)])

    def _draw(self, epoch: int) -> NDArray[np.int64]:
        stream = np.random.PCG64([self._seed, STREAMS["order"], epoch])
        return np.argsort(stream.random_raw(self._n), kind="stable")


def in_turn(n: int, k: int, batch_size: int) -> NDArray[np.int64]:
    """Return the indices of the k-th batch (from 0) of an evaluation: consecutive, modulo n."""
    return np.arange(k * batch_size, (k + 1) * batch_size) % n


def random_bytes(stream: np.random.PCG64, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return uniformly distributed bytes of this shape."""
    n = int(np.prod(shape))
    return stream.random_raw(-(-n // 8)).view(np.uint8)[:n].reshape(shape)
