"""Devices by the queue's names, independent of the framework, and the error for a device that does not compute.

| queue | torch | mlx | tinygrad | jax |
|---|---|---|---|---|
| cpu | cpu | cpu | CPU | cpu |
| mps | mps | gpu, of a build with Metal | METAL | a plugin for Metal (platform METAL or mps) |
| cuda, cuda:1 | cuda:1 | gpu, of a build with CUDA | CUDA:1 | cuda |

The queue and its reports use the first column only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from harness import installing
from harness.errors import EX_UNAVAILABLE, JobError
from harness.machine import process_memory

AUTO = ("cuda", "mps", "cpu")
"""The order in which `--device auto` tries devices."""


@dataclass(frozen=True)
class Device:
    """A device of mlx, tinygrad or jax; that of torch has more methods (torch_backend/device.py)."""

    asked: str
    """cpu, cuda:1 or mps: the queue's name"""
    backend: str
    """the framework's name, such as METAL"""
    name: str
    """of the hardware, such as "Apple M1 Max" """
    handle: Any
    """the framework's object, or the name that it takes"""
    memory: Callable[[], tuple[int | None, int | None]] = process_memory
    """current bytes in arrays and bytes reserved from the system; on the CPU None and the RSS of the process"""

    @property
    def kind(self) -> str:
        """Return cpu, cuda or mps."""
        return self.asked.partition(":")[0]

    @property
    def index(self) -> int:
        """Return its number among the devices of its kind."""
        return number(self.asked)

    def __str__(self) -> str:
        return self.asked


def number(asked: str) -> int:
    """Return the number behind the colon: 1 of cuda:1, 0 of cuda."""
    return int(asked.partition(":")[2] or 0)


def choose(asked: str, why_not: Callable[[str], str | None]) -> str:
    """Return `asked`; for auto the first device of AUTO that computes, or the CPU.

    `why_not` returns None for a device that computes, else the reason why it does not.
    """
    if asked != "auto":
        return asked
    return next(name for name in AUTO if name == "cpu" or why_not(name) is None)


def unavailable(asked: str, reason: str, computes: Iterable[str], framework: str) -> JobError:
    """Return the error for a device that does not compute, exit code 69; `computes` are the devices that do."""
    there = ", ".join(name for name in computes if name != asked) or "nothing"
    return JobError(
        f'device "{asked}" is unavailable: {reason}',
        f"devices that compute here: {there}" + installing.hint(framework, asked.partition(":")[0]),
        EX_UNAVAILABLE,
        "device_unavailable",
    )
