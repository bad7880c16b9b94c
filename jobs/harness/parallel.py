"""How many processes train together (--gpus), and how many threads each may have. Standard library only."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from harness.errors import UsageError

THREADS_PER_CORE = 16
"""More threads than this per core are a typing error."""


def number_of_gpus(text: str, device: str, workload: Mapping[str, Any], values: Mapping[str, Any], mode: str) -> int:
    """Return the number of processes. Raises: UsageError where the workload, the mode or the device has one only."""
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f'--gpus "{text}" is not a number of GPUs', "such as --gpus 2")
    gpus, key = int(text), workload.get("gpus_divide")
    if gpus == 1:
        return gpus
    if key is None or mode not in ("", "train"):
        subject = f"mode={mode}" if key else f"{workload['name']} in {workload['framework']}"
        raise UsageError(f"--gpus {gpus}: {subject} runs in one process", "remove --gpus")
    if device == "mps" or ":" in device:
        raise UsageError(f"--gpus {gpus}: {device} is one GPU", "--device cuda, or cpu for as many processes")
    if values[key] % gpus:
        raise UsageError(
            f"--gpus {gpus}: the processes share the {key}={values[key]} batches of an iteration, which {gpus} does "
            "not divide",
            f"for example --set {key}={gpus * max(1, values[key] // gpus)}",
        )
    return gpus


def check_threads(n: int) -> None:
    """Raise UsageError if `n` is more than THREADS_PER_CORE threads per core: they would only wait for each other, and
    where the system refuses them OpenMP ends the process."""
    cores = os.cpu_count() or 1
    if n > THREADS_PER_CORE * cores:
        raise UsageError(
            f"threads={n}: this machine has {cores} cores",
            f"at most {THREADS_PER_CORE * cores}, {THREADS_PER_CORE} for each; 0 is the framework's own choice",
        )
