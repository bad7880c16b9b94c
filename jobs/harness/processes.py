"""How many processes a launcher started. Standard library only."""

from __future__ import annotations

import os

from harness.problems import UsageError


def refuse_several(device: str) -> None:
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
