"""Processes of torch that train one model together, as DistributedDataParallel does: each on a GPU of its own with
nccl, or on the CPU with gloo."""

from __future__ import annotations

import contextlib
import math
import os
import sys
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from harness.device import Memory
from harness.errors import UsageError
from harness.torch_backend import ranks
from harness.torch_backend.device import ALONE, Group

_PATIENCE = timedelta(minutes=30)
"""How long a process waits for another, which may compile."""


@dataclass(frozen=True)
class Ranks(Group):
    """This process among several that train together."""

    backend: str = ""
    """nccl or gloo"""

    def device_name(self, name: str) -> str:
        names: list[Any] = [None] * self.size
        dist.all_gather_object(names, name)
        return " + ".join(sorted(set(names)))  # GPUs of several kinds have no peak

    def replica(self, forward: Any, device: torch.device) -> Any:
        return DistributedDataParallel(forward, [torch.cuda.current_device()] if device.type == "cuda" else None)

    def averaging(self, replica: Any, last: bool) -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext() if last else replica.no_sync()

    def mean(self, total: float, n: int) -> float:
        return sum(part for (part,) in self._gather(total)) / n

    def mean_and_largest(self, loss: float, memory: Memory) -> tuple[float, Memory]:
        """Return the mean of the processes' losses, and the memory of the process that has most."""
        sizes = (math.nan if size is None else float(size) for size in memory)
        losses, *parts = zip(*self._gather(loss, *sizes), strict=True)
        allocated, reserved = (None if any(map(math.isnan, part)) else int(max(part)) for part in parts)
        return sum(losses) / len(losses), (allocated, reserved)

    def _gather(self, *values: float) -> list[list[float]]:
        """Return the values of every process, in the order of their ranks."""
        local = torch.tensor(values, dtype=torch.float64, device="cuda" if self.backend == "nccl" else "cpu")
        parts = [torch.empty_like(local) for _ in range(self.size)]
        dist.all_gather(parts, local)
        return [part.tolist() for part in parts]


def choose_gpu(label: str) -> None:
    """Make "cuda" the GPU of this rank. Raises: UsageError if another launcher started several processes."""
    ranks.refuse_distributed(label)
    if label == "cuda" and ranks.is_rank() and ranks.rank() < torch.cuda.device_count():
        torch.cuda.set_device(ranks.rank())


def join(kind: str) -> Group:
    """Return the group of this rank on devices of this kind, once all of its processes are there."""
    if not ranks.is_rank():
        return ALONE
    if kind == "mps":
        raise UsageError(f"--gpus {ranks.size()}: several processes cannot train on mps", "--device cpu")
    backend = "nccl" if kind == "cuda" else "gloo"
    store = Path(os.environ[ranks.FOLDER]) / "store"  # a file: torch's own server listens on every interface
    dist.init_process_group(
        backend, init_method=store.as_uri(), rank=ranks.rank(), world_size=ranks.size(), timeout=_PATIENCE
    )
    return Ranks(ranks.rank(), ranks.size(), backend)


def leave(code: int) -> NoReturn:
    """End this process, and before that, without an error, its part in the group: other ranks may be gone after one,
    for which nccl would wait. Threads of torch that live on may abort an interpreter that tears itself down."""
    if code == 0 and dist.is_initialized():
        dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
