"""Limits on the number of processes and threads. Standard library only."""

from __future__ import annotations

import os

from harness.errors import UsageError

THREADS_PER_CORE = 16
"""More threads than this per core are a typing error."""


def refuse_distributed(device: str) -> None:
    """Raise UsageError if a launcher (torchrun, accelerate launch) started more than one process: each would train on
    its own, on the same device, and measure the time of the others as its own."""
    size = os.environ.get("WORLD_SIZE", "")
    if not size.isdecimal() or int(size) < 2:
        return
    hint = "start it by python, not by torchrun or accelerate launch; unset WORLD_SIZE if it was left over"
    if device.partition(":")[0] == "mps":
        reason = "several processes cannot train on mps together, neither gloo nor nccl takes its tensors"
        raise UsageError(f"WORLD_SIZE={size}: {reason}", hint)
    raise UsageError(f"WORLD_SIZE={size}: this workload trains in one process", hint)


def refuse_threads(n: int) -> None:
    """Raise UsageError if `n` is more than THREADS_PER_CORE threads per core: they would only wait for each other, and
    where the system refuses them OpenMP ends the process."""
    cores = os.cpu_count() or 1
    if n > THREADS_PER_CORE * cores:
        raise UsageError(
            f"threads={n}: this machine has {cores} cores",
            f"at most {THREADS_PER_CORE * cores}, {THREADS_PER_CORE} for each; 0 is the framework's own choice",
        )
