"""Arrays by name in a .npz file: weights that every framework reads, and the checkpoints of mlx, tinygrad and jax."""

from __future__ import annotations

import os
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.errors import JobError, UsageError

Arrays = Mapping[str, NDArray[Any]]


def write(path: Path, arrays: Mapping[str, Any]) -> Path:
    """Write the file atomically and return `path`.

    Raises: JobError if it cannot be written.
    """
    partial = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, partial = tempfile.mkstemp(dir=path.parent, prefix=".weights-")
        with os.fdopen(descriptor, "wb") as stream:
            np.savez(stream, **{name: np.asarray(value) for name, value in arrays.items()})
            stream.flush()
            os.fsync(stream.fileno())
        Path(partial).replace(path)
    except OSError as error:
        if partial:
            Path(partial).unlink(missing_ok=True)
        raise JobError(
            f"{path} cannot be written: {error}", "give --out a folder with room", note="checkpoint_failed"
        ) from None
    return path


def read(path: Path, what: str) -> dict[str, NDArray[Any]]:
    """Return the arrays of a file. `what` names the expected content in the error. No pickled objects are loaded.

    Raises: UsageError if the file is missing or has another format.
    """
    try:
        with np.load(path, allow_pickle=False) as arrays:
            if not hasattr(arrays, "files"):
                raise ValueError("a single array")
            return {name: arrays[name] for name in arrays.files}
    except OSError as error:
        raise UsageError(f"{what} {path} cannot be read: {error.strerror or error}") from None
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile):
        raise UsageError(f"{path} is not {what}: it is not a complete .npz file of arrays") from None


def fitting(arrays: Arrays, shapes: Mapping[str, tuple[int, ...]], path: Path) -> dict[str, NDArray[np.float32]]:
    """Return the arrays named by `shapes`, in fp32. Raises: UsageError if one is missing, unexpected or of another
    shape."""
    wrong = [name for name, shape in shapes.items() if name not in arrays or arrays[name].shape != shape]
    wrong += [name for name in arrays if name not in shapes]
    if wrong:
        name = wrong[0]
        actual = f"is {arrays[name].shape}" if name in arrays else "is missing"
        expected = f"of shape {shapes[name]}" if name in shapes else "not in it"
        raise UsageError(
            f"{path} holds the weights of another model: {name} {actual}, here it is {expected}",
            "use the --config, --set and data that it was written with",
        )
    return {name: np.ascontiguousarray(arrays[name], np.float32) for name in shapes}
