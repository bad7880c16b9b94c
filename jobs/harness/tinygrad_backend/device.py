"""Devices of tinygrad: which one computes, and how much memory it holds."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tinygrad import Device as devices
from tinygrad import Tensor
from tinygrad.dtype import DType
from tinygrad.helpers import DEV, GlobalCounters

from harness import apple
from harness.array_device import Device, number, nvidia_name
from harness.device import WRONG_PRODUCT, check, choose, cpu_name
from harness.errors import first_line

_BACKENDS = {"cpu": "CPU", "cuda": "CUDA", "mps": "METAL"}


def open_device(label: str) -> Device:
    """Return the device called cpu, cuda, cuda:1, mps or auto (the first of cuda, mps, cpu that computes).

    It becomes tinygrad's default device. Raises: JobError with exit code 69 if it does not compute.
    """
    label = choose(label, why_not)
    check(label, why_not, "tinygrad")
    backend = _backend(label)
    if DEV.device != backend:
        DEV.value = backend
    names = {"cpu": cpu_name, "mps": apple.chip_name}
    name = names.get(label, lambda: nvidia_name(number(label)))()
    if label == "cpu":
        return Device(label, backend, name, backend)
    return Device(label, backend, name, backend, lambda: (GlobalCounters.mem_used_per_device[backend], None))


def why_not(name: str) -> str | None:
    """Return None if the device multiplies two matrices correctly, else the reason why it does not."""
    _find_clang()
    a = np.arange(64, dtype=np.float32).reshape(8, 8)
    try:
        matrix = Tensor(a, device=_backend(name))
        product = (matrix @ matrix).numpy()
        devices[_backend(name)].synchronize()
    except Exception as error:  # OSError, AttributeError, AssertionError, ExceptionGroup: by the missing part
        reason = first_line(error).rstrip(".")
        return "there is no clang here to compile for it" if "clang" in reason else reason
    return None if np.array_equal(product, a @ a) else WRONG_PRODUCT


def why_not_dtype(name: str, dtype: DType) -> str | None:
    """Return None if the device multiplies in `dtype`, else the reason: clang 14 has no bf16 on x86, for example."""
    try:
        with _quiet():
            there = Tensor(np.ones((4, 4), np.float32), device=_backend(name)).cast(dtype).realize()
            (there @ there).float().numpy()
    except Exception as error:  # subprocess.CalledProcessError of a compiler; a renderer's own
        return first_line(error)
    return None


def _find_clang() -> None:
    """Set CC to the clang of the wheel, beside the interpreter, if there is none on PATH."""
    beside = Path(sys.executable).with_name("clang")
    if "CC" not in os.environ and shutil.which("clang") is None and beside.exists():
        os.environ["CC"] = str(beside)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Discard what a compiler writes to stderr: the reason is in the exception."""
    sys.stderr.flush()
    stderr = os.dup(2)
    try:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


def _backend(name: str) -> str:
    kind, index = name.partition(":")[0], number(name)
    return _BACKENDS[kind] + (f":{index}" if index else "")
