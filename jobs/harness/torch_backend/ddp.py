"""Processes of torch that train one model together, as DistributedDataParallel does: each on a GPU of its own with
nccl, or on the CPU with gloo."""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from harness import processes
from harness.errors import UsageError

T = TypeVar("T")
_PATIENCE = timedelta(minutes=30)
"""How long a process waits for another, which may compile."""


@dataclass(frozen=True)
class Group:
    """This process among those that train together. Every method but `share` is called by all of them."""

    rank: int = 0
    size: int = 1
    backend: str = ""
    """nccl or gloo; empty if the process is alone"""

    @property
    def share(self) -> tuple[int, int]:
        """Its number, and how many there are."""
        return self.rank, self.size

    def replica(self, forward: Any, device: torch.device) -> Any:
        """Return what training calls: a module whose gradients are averaged over the processes."""
        if self.size == 1:
            return forward
        return DistributedDataParallel(forward, [torch.cuda.current_device()] if device.type == "cuda" else None)

    def averaging(self, replica: Any, last: bool) -> contextlib.AbstractContextManager[object]:
        """Return a context for a forward and backward: gradients are averaged in the `last` of an iteration only."""
        return contextlib.nullcontext() if last or self.size == 1 else replica.no_sync()

    def gather(self, *values: float) -> list[list[float]]:
        """Return the values of every process, in the order of their ranks."""
        if self.size == 1:
            return [[*values]]
        own = torch.tensor(values, dtype=torch.float64, device="cuda" if self.backend == "nccl" else "cpu")
        found = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(found, own)
        return [part.tolist() for part in found]

    def each(self, value: T) -> list[T]:
        """Return an object of every process, in the order of their ranks."""
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value)
        return found


ALONE = Group()


def join(kind: str) -> Group:
    """Return the group of this rank on devices of this kind, once all of its processes are there."""
    if kind == "mps":
        raise UsageError(f"--gpus {processes.size()}: several processes cannot train on mps", "--device cpu")
    backend = "nccl" if kind == "cuda" else "gloo"
    store = Path(os.environ[processes.FOLDER]) / "store"  # a file: torch's own server listens on every interface
    dist.init_process_group(
        backend, init_method=store.as_uri(), rank=processes.rank(), world_size=processes.size(), timeout=_PATIENCE
    )
    return Group(processes.rank(), processes.size(), backend)


def leave(code: int) -> None:
    """End this process's part in the group, and after an error the process: other ranks may be gone, for which nccl
    would wait."""
    if code == 0 and dist.is_initialized():
        dist.destroy_process_group()
    elif code:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
