"""Devices of MLX: which one computes, and how much memory it holds.

MLX has a CPU and a GPU. The build decides which GPU: Metal on macOS, CUDA or none on Linux.
"""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from harness import apple
from harness.array_device import Device, number, nvidia_name
from harness.device import WRONG_PRODUCT, check, choose, cpu_name
from harness.errors import first_line


def open_device(label: str) -> Device:
    """Return the device called cpu, cuda, cuda:1, mps or auto (the first of cuda, mps, cpu that computes).

    It becomes MLX's default device. Raises: JobError with exit code 69 if it does not compute.
    """
    label = choose(label, why_not)
    check(label, why_not, "mlx")
    handle = _find(label)
    mx.set_default_device(handle)
    if label == "cpu":
        return Device(label, "cpu", cpu_name(), handle)
    name = apple.chip_name() if label == "mps" else nvidia_name(number(label))
    return Device(label, "gpu", name or str(mx.device_info().get("device_name", "")), handle, _memory)


def why_not(name: str) -> str | None:
    """Return None if the device multiplies two matrices correctly, else the reason why it does not."""
    kind = name.partition(":")[0]
    built = {"cpu": True, "mps": mx.metal.is_available(), "cuda": mx.cuda.is_available()}[kind]
    if not built:
        return f"MLX finds no GPU here through {'Metal' if kind == 'mps' else 'CUDA'}"
    a = np.arange(64, dtype=np.float32).reshape(8, 8)
    try:
        device = _find(name)
        if number(name) >= mx.device_count(device.type):
            return f"there are {mx.device_count(device.type)} of this kind, numbered from 0"
        product = np.array(mx.matmul(mx.array(a), mx.array(a), stream=device))
    except Exception as error:  # RuntimeError and ValueError, by build
        return first_line(error).rstrip(".")
    return None if np.array_equal(product, a @ a) else WRONG_PRODUCT


def _find(name: str) -> mx.Device:
    return mx.Device(mx.cpu if name == "cpu" else mx.gpu, number(name))


def _memory() -> tuple[int | None, int | None]:
    active = mx.get_active_memory()
    return active, active + mx.get_cache_memory()
