"""Devices of mlx, tinygrad and jax by the queue's names, and the dtype that they lack.

| queue | torch | mlx | tinygrad | jax |
|---|---|---|---|---|
| cpu | cpu | cpu | CPU | cpu |
| mps | mps | gpu, of a build with Metal | METAL | a plugin for Metal (platform METAL or mps) |
| cuda, cuda:1 | cuda:1 | gpu, of a build with CUDA | CUDA:1 | cuda |

The queue and its reports use the first column only.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from harness.apple import output
from harness.command_line import Options
from harness.device import Memory, process_memory
from harness.errors import UsageError


@dataclass(frozen=True)
class Device:
    """A device of mlx, tinygrad or jax; that of torch has more methods (torch_backend/device.py)."""

    label: str
    """cpu, cuda:1 or mps: the queue's name"""
    backend: str
    """the framework's name, such as METAL"""
    name: str
    """of the hardware, such as "Apple M1 Max" """
    handle: Any
    """the framework's object, or the name that it takes"""
    memory: Callable[[], Memory] = process_memory

    @property
    def kind(self) -> str:
        """Return cpu, cuda or mps."""
        return self.label.partition(":")[0]

    @property
    def index(self) -> int:
        """Return its number among the devices of its kind."""
        return number(self.label)

    def __str__(self) -> str:
        return self.label


def number(label: str) -> int:
    """Return the number behind the colon: 1 of cuda:1, 0 of cuda."""
    return int(label.partition(":")[2] or 0)


def nvidia_name(index: int) -> str:
    """Return the driver's name of the card with this number among the visible ones; empty if nvidia-smi does not name
    it."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    chosen = str(index) if visible is None else "".join(visible.split(",")[index : index + 1]).strip()
    for line in output("nvidia-smi", "--query-gpu=index,uuid,name", "--format=csv,noheader").splitlines():
        position, uuid, name = [*line.split(", ", 2), "", ""][:3]
        if chosen and (position == chosen or uuid.startswith(chosen)):  # CUDA takes the first digits of a UUID
            return name
    return ""


def refuse_fp16(options: Options, framework: str) -> None:
    """Raise UsageError for fp16: its gradients underflow without loss scaling, which only torch has of the four."""
    if options.dtype == "fp16":
        raise UsageError(
            f"{framework} has no loss scaling, without which gradients in fp16 vanish",
            "--dtype bf16 has the range of fp32 and needs none; fp16 trains in torch",
        )
