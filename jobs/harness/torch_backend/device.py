"""Devices of torch: which one computes, how to wait for it, how much memory it holds.

A device counts as available when it has allocated and computed, not when torch says `is_available()`: that can be true
where the first allocation fails, as in a virtual machine without Metal.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import torch

from harness.device import choose, unavailable
from harness.machine import apple_name, cpu_name, process_memory
from harness.processes import is_rank, rank, refuse_distributed
from harness.torch_backend import ddp
from harness.torch_backend.ddp import ALONE, Group

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def _nothing() -> None:
    """Do nothing: on the CPU a call returns when it has finished."""


@dataclass(frozen=True)
class Device:
    """One device. `synchronize` returns when all work submitted to the device is done."""

    handle: torch.device
    name: str
    """of the hardware, such as "Apple M1 Max" """
    synchronize: Callable[[], None]
    group: Group = ALONE
    """the processes that train together, of which this device computes for one"""

    @property
    def kind(self) -> str:
        """Return cpu, cuda or mps."""
        return self.handle.type

    def __str__(self) -> str:
        return str(self.handle)

    def memory(self) -> tuple[int | None, int | None]:
        """Return the bytes in tensors and the bytes reserved from the system, now; (None, RSS) on the CPU."""
        if self.kind == "cuda":
            # one look: each of memory_allocated() and memory_reserved() sorts all counters, 0.1 ms an iteration
            counters = torch.cuda.memory_stats_as_nested_dict(self.handle)
            allocated, reserved = (
                counters.get(f"{which}_bytes", {}).get("all", {}).get("current", 0)
                for which in ("allocated", "reserved")
            )
            return allocated, reserved
        if self.kind == "mps":
            return torch.mps.current_allocated_memory(), torch.mps.driver_allocated_memory()
        return process_memory()

    def peak_memory(self) -> tuple[int | None, int | None]:
        """Return the most of both since the process began, on mps, whose allocator counts it from torch 2.13 on;
        (None, None) elsewhere."""
        if self.kind != "mps" or torch.__version__ < (2, 13):
            return None, None
        try:
            return torch.accelerator.max_memory_allocated(), torch.accelerator.max_memory_reserved()
        except RuntimeError:
            return None, None

    def rng_state(self) -> torch.Tensor | None:
        """Return the state of the device's random number generator (dropout); None on the CPU."""
        if self.kind == "cuda":
            return torch.cuda.get_rng_state(self.handle)
        return torch.mps.get_rng_state() if self.kind == "mps" else None

    def set_rng_state(self, state: torch.Tensor) -> None:
        if self.kind == "cuda":
            torch.cuda.set_rng_state(state, self.handle)
        elif self.kind == "mps":
            torch.mps.set_rng_state(state)

    def autocast(self, dtype: str) -> contextlib.AbstractContextManager[object]:
        """Return a context of mixed precision in `dtype`; of none for fp32. The device's own type is passed: nanoGPT's
        autocast has no effect on mps."""
        if dtype == "fp32":
            return contextlib.nullcontext()
        return torch.autocast(self.kind, dtype=DTYPES[dtype])


def open_device(asked: str) -> Device:
    """Return the device called cpu, cuda, cuda:1, mps or auto (the first of cuda, mps, cpu that computes).

    Raises: JobError with exit code 69 if it does not compute, UsageError if several processes were launched.
    """
    asked = choose(asked, why_not)
    refuse_distributed(asked)
    if asked == "cuda" and is_rank() and rank() < torch.cuda.device_count():
        torch.cuda.set_device(rank())  # "cuda" is from here on the GPU of this process
    reason = why_not(asked)
    if reason is not None:
        raise unavailable(asked, reason, [name for name in ("cpu", "cuda", "mps") if why_not(name) is None], "torch")
    device = torch.device(asked)
    if is_rank():
        group = ddp.join(device.type)
        if device.type == "cuda":
            names = group.each(torch.cuda.get_device_name(device))
            name = " + ".join(sorted(set(names)))  # GPUs of several kinds have no peak
            return Device(device, name, lambda: torch.cuda.synchronize(device), group)
        return Device(device, cpu_name(), _nothing, group)
    if device.type == "cuda":
        torch.cuda.set_device(device.index or 0)  # it refuses a device without a number
        return Device(device, torch.cuda.get_device_name(device), lambda: torch.cuda.synchronize(device))
    if device.type == "mps":
        return Device(device, _mps_name(), torch.mps.synchronize)
    return Device(device, cpu_name(), _nothing)


def why_not(name: str) -> str | None:
    """Return None if the device multiplies two matrices correctly, else the reason why it does not.

    The types of the exceptions do not help: RuntimeError, NotImplementedError, AssertionError and AttributeError all
    mean that there is no such device.
    """
    try:
        a = torch.arange(64, dtype=torch.float32).reshape(8, 8)
        found = (a.to(name) @ a.to(name)).cpu()
    except Exception as error:
        lines = str(error).strip().splitlines()
        return lines[0].rstrip(".") if lines else type(error).__name__
    return None if torch.equal(found, a @ a) else "it returns a wrong product of two small integer matrices"


def _mps_name() -> str:
    """Return Apple's name of the chip: its GPU has none of its own."""
    try:
        return str(torch.backends.mps.get_name())
    except (AttributeError, RuntimeError):  # it came with 2.10 or so
        return apple_name() or "Apple GPU"
