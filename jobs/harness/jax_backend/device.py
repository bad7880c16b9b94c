"""Devices of JAX: which one computes, and how much memory it holds."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from harness import apple
from harness.array_device import Device, number
from harness.device import WRONG_PRODUCT, check, choose, cpu_name, process_memory
from harness.errors import first_line

_PLATFORMS = {"cpu": ("cpu",), "cuda": ("cuda",), "mps": ("METAL", "mps")}
"""JAX's names of platforms. Each plugin for Metal has its own."""


def open_device(label: str) -> Device:
    """Return the device called cpu, cuda, cuda:1, mps or auto (the first of cuda, mps, cpu that computes).

    It becomes JAX's default device. Raises: JobError with exit code 69 if it does not compute.
    """
    if label == "cpu":
        jax.config.update("jax_platforms", "cpu")  # otherwise JAX would also open the GPU and allocate its memory
    label = choose(label, why_not)
    check(label, why_not, "jax")
    handle = _find(label)
    jax.config.update("jax_default_device", handle)
    names = {"cpu": cpu_name, "mps": apple.chip_name}
    name = names.get(label, lambda: "")() or str(handle.device_kind)
    return Device(label, handle.platform, name, handle, lambda: _memory(handle))


def why_not(name: str) -> str | None:
    """Return None if the device multiplies two matrices correctly, else the reason why it does not."""
    a = np.arange(64, dtype=np.float32).reshape(8, 8)
    try:
        matrix = jax.device_put(a, _find(name))
        product = np.asarray(jax.numpy.matmul(matrix, matrix, precision="highest"))
    except Exception as error:  # RuntimeError for a platform that is unknown; a plugin may raise anything
        return first_line(error).rstrip(".")
    return None if np.array_equal(product, a @ a) else WRONG_PRODUCT


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
        return process_memory()
    stats = handle.memory_stats()
    return (stats.get("bytes_in_use"), stats.get("pool_bytes")) if stats else (None, None)
