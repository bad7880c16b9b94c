"""Devices of JAX: which one computes, and how much memory it holds."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from harness import machine
from harness.device import AUTO, Device, choose, number, unavailable

_PLATFORMS = {"cpu": ("cpu",), "cuda": ("cuda",), "mps": ("METAL", "mps")}
"""JAX's names of platforms. Each plugin for Metal has its own."""


def open_device(asked: str) -> Device:
    """Return the device called cpu, cuda, cuda:1, mps or auto (the first of cuda, mps, cpu that computes).

    It becomes JAX's default device. Raises: JobError with exit code 69 if it does not compute.
    """
    if asked == "cpu":
        jax.config.update("jax_platforms", "cpu")  # otherwise JAX would also open the GPU and allocate its memory
    asked = choose(asked, why_not)
    reason = why_not(asked)
    if reason is not None:
        raise unavailable(asked, reason, [name for name in AUTO if why_not(name) is None], "jax")
    handle = _find(asked)
    jax.config.update("jax_default_device", handle)
    names = {"cpu": machine.cpu_name, "mps": machine.apple_name}
    name = names.get(asked, lambda: "")() or str(handle.device_kind)
    return Device(asked, handle.platform, name, handle, lambda: _memory(handle))


def why_not(name: str) -> str | None:
    """Return None if the device multiplies two matrices correctly, else the reason why it does not."""
    a = np.arange(64, dtype=np.float32).reshape(8, 8)
    try:
        there = jax.device_put(a, _find(name))
        found = np.asarray(jax.numpy.matmul(there, there, precision="highest"))
    except Exception as error:  # RuntimeError for a platform that is unknown; a plugin may raise anything
        lines = str(error).strip().splitlines()
        return lines[0].rstrip(".") if lines else type(error).__name__
    return None if np.array_equal(found, a @ a) else "it returns a wrong product of two small integer matrices"


def cpu() -> Any:
    """Return JAX's CPU; None if the environment (JAX_PLATFORMS) excludes it."""
    try:
        return jax.devices("cpu")[0]
    except RuntimeError:
        return None


def _find(name: str) -> Any:
    """Return JAX's device object. Raises: RuntimeError if there is none of this kind or number."""
    kind, index = name.partition(":")[0], number(name)
    errors = []
    for platform in _PLATFORMS[kind]:
        try:
            devices = jax.devices(platform)
        except RuntimeError as error:
            errors.append(str(error))
            continue
        if index < len(devices):
            return devices[index]
        errors.append(f"there are {len(devices)} of this kind, numbered from 0")
    raise RuntimeError(errors[-1])


def _memory(handle: Any) -> tuple[int | None, int | None]:
    if handle.platform == "cpu":
        return machine.process_memory()
    found = handle.memory_stats()
    return (found.get("bytes_in_use"), found.get("pool_bytes")) if found else (None, None)
