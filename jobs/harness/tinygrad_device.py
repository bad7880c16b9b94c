"""Devices of tinygrad: which one computes, and how much memory it holds."""

from __future__ import annotations

import numpy as np
from tinygrad import Device as devices
from tinygrad import Tensor
from tinygrad.helpers import DEV, GlobalCounters

from harness import machine
from harness.device import AUTO, Device, choose, not_there, number

_BACKENDS = {"cpu": "CPU", "cuda": "CUDA", "mps": "METAL"}


def open_device(asked: str) -> Device:
    """The device called cpu, cuda, cuda:1, mps or auto (the first of cuda, mps, cpu that computes).

    Tensors are made on it from here on. Raises: JobError with exit code 69 when it does not compute.
    """
    asked = choose(asked, why_not)
    reason = why_not(asked)
    if reason is not None:
        raise not_there(asked, reason, [name for name in AUTO if why_not(name) is None], "tinygrad")
    backend = _backend(asked)
    if DEV.device != backend:
        DEV.value = backend
    names = {"cpu": machine.cpu_name, "mps": machine.apple_name}
    name = names.get(asked, lambda: machine.nvidia_name(number(asked)))()
    if asked == "cpu":
        return Device(asked, backend, name, backend)
    return Device(asked, backend, name, backend, lambda: (GlobalCounters.mem_used_per_device[backend], None))


def why_not(name: str) -> str | None:
    """None when the device multiplies two matrices and gets the product right, else the reason why it does not."""
    a = np.arange(64, dtype=np.float32).reshape(8, 8)
    try:
        there = Tensor(a, device=_backend(name))
        found = (there @ there).numpy()
        devices[_backend(name)].synchronize()
    except Exception as error:  # OSError, AttributeError, AssertionError, ExceptionGroup: by what is missing
        lines = str(error).strip().splitlines()
        said = lines[0].rstrip(".") if lines else type(error).__name__
        return "there is no clang here to compile for it" if "clang" in said else said
    return None if np.array_equal(found, a @ a) else "it multiplies two small matrices of whole numbers wrongly"


def _backend(name: str) -> str:
    kind, index = name.partition(":")[0], number(name)
    return _BACKENDS[kind] + (f":{index}" if index else "")
