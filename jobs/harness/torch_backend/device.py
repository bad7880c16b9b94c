"""Devices of torch: which one computes, how to wait for it, how much memory it holds.

A device counts as available when it has allocated and computed, not when torch says `is_available()`: that can be true
where the first allocation fails, as in a virtual machine without Metal.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from harness.device import WRONG_PRODUCT, Memory, check, choose, cpu_name, process_memory
from harness.errors import first_line

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Group:
    """The processes that train together, as one of them sees them: here a process that trains alone (several: ddp.py).

    Every method is called by all processes.
    """

    rank: int = 0
    size: int = 1

    @property
    def share(self) -> tuple[int, int]:
        """The number of this process, and how many there are."""
        return self.rank, self.size

    def device_name(self, name: str) -> str:
        """Return the names of the processes' devices, of which `name` is this one's."""
        return name

    def replica(self, forward: Any, device: torch.device) -> Any:
        """Return the function that a training calls: of several processes, a module that averages gradients."""
        return forward

    def averaging(self, replica: Any, last: bool) -> contextlib.AbstractContextManager[object]:
        """Return a context for a forward and backward: gradients are averaged in the `last` of an iteration only."""
        return contextlib.nullcontext()

    def mean(self, total: float, n: int) -> float:
        """Return the sum of the processes' totals, divided by n."""
        return total / n


ALONE = Group()


def _nothing() -> None:
    """Do nothing: on the CPU a call returns when it has finished."""


@dataclass(frozen=True)
class Device:
    """A device of torch. `synchronize` returns when all work submitted to the device is done."""

    handle: torch.device
    name: str
    """of the hardware, such as "Apple M1 Max" """
    synchronize: Callable[[], None]
    group: Group = ALONE
    """the processes that train together, one of which computes on this device"""

    @property
    def kind(self) -> str:
        """Return cpu, cuda or mps."""
        return self.handle.type

    def __str__(self) -> str:
        return str(self.handle)

    def memory(self) -> Memory:
        """Return the bytes in tensors and the bytes reserved from the system, now; (None, RSS) on the CPU."""
        if self.kind == "cuda":
            # read once: each of memory_allocated() and memory_reserved() sorts all counters, 0.1 ms an iteration
            counters = torch.cuda.memory_stats_as_nested_dict(self.handle)
            allocated, reserved = (
                counters.get(f"{name}_bytes", {}).get("all", {}).get("current", 0) for name in ("allocated", "reserved")
            )
            return allocated, reserved
        if self.kind == "mps":
            return torch.mps.current_allocated_memory(), torch.mps.driver_allocated_memory()
        return process_memory()

    def peak_memory(self) -> Memory:
        """Return the most of both since the process began, on mps, whose allocator counts it from torch 2.13 on;
        (None, None) elsewhere."""
        if self.kind != "mps" or torch.__version__ < (2, 13):
            return None, None
        try:
            return torch.accelerator.max_memory_allocated(), torch.accelerator.max_memory_reserved()
        except RuntimeError:
            return None, None

    def autocast(self, dtype: str) -> contextlib.AbstractContextManager[object]:
        """Return a context of mixed precision in `dtype`; for fp32 one without effect. The device's own type is passed:
        nanoGPT's autocast has no effect on mps."""
        if dtype == "fp32":
            return contextlib.nullcontext()
        return torch.autocast(self.kind, dtype=DTYPES[dtype])


def open_device(label: str) -> Device:
    """Return the device called cpu, cuda, cuda:1, mps or auto (the first of cuda, mps, cpu that computes).

    Raises: JobError with exit code 69 if it does not compute, UsageError if several processes were launched.
    """
    label = choose(label, why_not)
    several = "WORLD_SIZE" in os.environ
    if several:
        from harness.torch_backend import ddp

        ddp.choose_gpu(label)
    check(label, why_not, "torch")
    device = torch.device(label)
    group = ddp.join(device.type) if several else ALONE
    if device.type == "cuda":
        if group.size == 1:
            torch.cuda.set_device(device.index or 0)  # it refuses a device without a number
        name = group.device_name(torch.cuda.get_device_name(device))
        return Device(device, name, lambda: torch.cuda.synchronize(device), group)
    if device.type == "mps":
        return Device(device, _mps_name(), torch.mps.synchronize)
    return Device(device, cpu_name(), _nothing, group)


def why_not(name: str) -> str | None:
    """Return None if the device multiplies two matrices correctly, else the reason why it does not.

    The types of the exceptions do not help: RuntimeError, NotImplementedError, AssertionError and AttributeError all
    mean that there is no such device.
    """
    try:
        a = torch.arange(64, dtype=torch.float32).reshape(8, 8)
        product = (a.to(name) @ a.to(name)).cpu()
    except Exception as error:
        return first_line(error).rstrip(".")
    return None if torch.equal(product, a @ a) else WRONG_PRODUCT


def _mps_name() -> str:
    """Return Apple's name of the chip: its GPU has none of its own."""
    try:
        return str(torch.backends.mps.get_name())
    except (AttributeError, RuntimeError):  # it came with 2.10 or so
        from harness.apple import chip_name

        return chip_name() or "Apple GPU"
