"""How many processes a launcher started, and how many threads may compute. Standard library only."""

from __future__ import annotations

import os

from harness.errors import UsageError

THREADS_OF_A_CORE = 16
"""More of them than this are not meant."""


def refuse_distributed(device: str) -> None:
    """Raises: UsageError when a launcher (torchrun, accelerate launch) started more than this one: each would train by
    itself, on the same device, and take the other's time for its own."""
    size = os.environ.get("WORLD_SIZE", "")
    if not size.isdecimal() or int(size) < 2:
        return
    hint = "start it by python, not by torchrun or accelerate launch; unset WORLD_SIZE if it was left over"
    if device.partition(":")[0] == "mps":
        reason = "several processes cannot train on mps together, neither gloo nor nccl takes its tensors"
        raise UsageError(f"WORLD_SIZE={size}: {reason}", hint)
    raise UsageError(f"WORLD_SIZE={size}: this workload trains in one process", hint)


def refuse_threads(n: int) -> None:
    """Raises: UsageError when so many threads are asked for that they are a slip: they would only wait for each other,
    and where the system refuses them OpenMP ends the process, and others of this user cannot start any."""
    cores = os.cpu_count() or 1
    if n > THREADS_OF_A_CORE * cores:
        raise UsageError(
            f"threads={n}: this machine has {cores} cores",
            f"at most {THREADS_OF_A_CORE * cores}, {THREADS_OF_A_CORE} for each; 0 is the framework's own choice",
        )
