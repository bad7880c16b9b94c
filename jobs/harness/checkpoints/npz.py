"""Checkpoints of mlx, tinygrad and jax: all arrays that the next iteration depends on, by name, in one .npz file.

torch's (torch_backend/training.py) also hold the states of its random number generators. In mlx and jax dropout follows
from the seed and the iteration's number; in tinygrad a resumed training draws other masks.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.checkpoints import weights_file
from harness.errors import UsageError

_DONE, _DATA = "done", "data_sha256"


def save(path: Path, arrays: Mapping[str, Any], done: int, data_sha256: str) -> None:
    """Write `arrays` after `done` iterations on the data of this checksum. Raises: JobError."""
    weights_file.write(path, {**arrays, _DONE: np.int64(done), _DATA: np.array(data_sha256)})


def load(path: Path, like: Mapping[str, tuple[int, ...]], data_sha256: str) -> tuple[int, dict[str, NDArray[Any]]]:
    """Return the number of iterations done, and the arrays, which have the names and shapes of `like`.

    Raises: UsageError if the file cannot be read, or belongs to another framework, model or data.
    """
    arrays = weights_file.read(path, "a checkpoint")
    if _DONE not in arrays or _DATA not in arrays:
        raise UsageError(f"{path} is not a checkpoint of this program", "weights alone: --set init_from=PATH")
    done, data = int(arrays.pop(_DONE)), str(arrays.pop(_DATA))
    if {name: array.shape for name, array in arrays.items()} != dict(like):
        raise UsageError(
            f"{path} belongs to another framework, or to a model of another shape",
            "resume with the framework, --config and --set it was written with",
        )
    if data != data_sha256:
        raise UsageError(f"{path} was trained on another text", "resume with the same data")
    return done, arrays
