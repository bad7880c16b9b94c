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

from tests.mps_texts import FALLS_BACK, PROFILED


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
            os.write(2, f"{PROFILED.format(operator)}\n".encode())
        return compute(*args, **kwargs)

    return kernel
