"""Tensors of a .safetensors file as numpy arrays, without the package of that name.

The format (github.com/huggingface/safetensors): eight bytes, the length of a JSON header, little-endian; the header,
{"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...}; the numbers, little-endian. It contains
no code.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.errors import UsageError

MAX_HEADER_BYTES = 100_000_000
"""The limit of the format's own readers; without one a malformed file could request all memory."""
_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "U8": "u1", "BOOL": "?"}


def read(path: Path) -> dict[str, NDArray[Any]]:
    """Return all tensors of the file; bf16 as fp32, which represents it exactly.

    Raises: UsageError if the file cannot be read or has another format.
    """
    try:
        data = np.memmap(path, np.uint8, mode="r")
        header, begins = _header(data)
        return {name: _tensor(data, begins, entry) for name, entry in header.items() if name != "__metadata__"}
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, AttributeError, struct.error, RecursionError) as error:
        raise UsageError(f"{path} is not a valid .safetensors file: {error}") from None


def _header(data: NDArray[np.uint8]) -> tuple[dict[str, Any], int]:
    (size,) = struct.unpack("<Q", data[:8].tobytes())
    if size > min(MAX_HEADER_BYTES, len(data) - 8):
        raise ValueError("its header does not end in it")
    return json.loads(data[8 : 8 + size].tobytes()), 8 + size


def _tensor(data: NDArray[np.uint8], begins: int, entry: dict[str, Any]) -> NDArray[Any]:
    first, last = entry["data_offsets"]
    if not 0 <= first <= last <= len(data) - begins:
        raise ValueError("a tensor ends behind its end")
    kind = _TYPES.get(entry["dtype"])
    if kind is None:
        raise ValueError(f"numbers of type {entry['dtype']}, which are not read here")
    tensor = np.array(data[begins + first : begins + last]).view(kind).reshape(entry["shape"])
    if entry["dtype"] == "BF16":  # the upper half of fp32
        return (tensor.astype(np.uint32) << 16).view(np.float32)
    return tensor
