"""A stand-in for a device: the CPU, with planted kernels while "the device" computes. It is no more than that.

What MPS would say is said in the words of torch 2.13's macOS build.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

NO_KERNEL = (
    "The operator '{}' is not currently implemented for the MPS device. If you want this op to be considered for "
    "addition please comment on https://github.com/pytorch/pytorch/issues/141287 and mention use-case, that resulted "
    "in missing op as well as commit hash cf30153c4c13. As a temporary fix, you can set the environment variable "
    "`PYTORCH_ENABLE_MPS_FALLBACK=1` to use the CPU as a fallback for this op. WARNING: this will be slower than "
    "running natively on MPS."
)
FALLS_BACK = (
    "The operator '{}' is not currently supported on the MPS backend and will fall back to run on the CPU. This may "
    "have performance implications."
)
NO_MEMORY = (
    "MPS backend out of memory (MPS allocated: 7.93 GB, other allocations: 1.00 MB, max allowed: 9.07 GB). Tried to "
    "allocate 2.00 GB on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory "
    "allocations (may cause system failure)."
)


class Planted:
    """Enter it around what the device does: `with planted(name):`. `kernels` are by the names of aten's operators."""

    def __init__(self, **kernels: Callable[..., Any]) -> None:
        self._kernels = kernels

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a kernel is exchanged
            for operator, kernel in self._kernels.items():
                library.impl(operator.replace("__", "."), kernel, "CPU", allow_override=True)
        try:
            yield
        finally:
            library._destroy()


def raises(kind: type[Exception], text: str) -> Callable[..., Any]:
    def kernel(*args: object, **kwargs: object) -> Any:
        raise kind(text)

    return kernel


def falls_back(operator: str, compute: Callable[..., Any]) -> Callable[..., Any]:
    """What MPS does with fallbacks on: it warns once, unless torch is to warn always; logs if asked; and computes."""
    warned = False

    def kernel(*args: Any, **kwargs: Any) -> Any:
        nonlocal warned
        if torch.is_warn_always_enabled() or not warned:
            warned = True
            warnings.warn(FALLS_BACK.format(operator), stacklevel=2)
        if os.environ.get("PYTORCH_MPS_LOG_PROFILE_INFO") == "4":
            os.write(2, f"CPU Fallback::{operator}:MPS:Float[5, 5] (id=1, run=1, CopyOverhead=200 bytes)\n".encode())
        return compute(*args, **kwargs)

    return kernel
