"""Processes that train together, as they know of each other, and limits on processes and threads.

Standard library only.

With --gpus N the first process of a workload starts N more, the ranks, and waits for them (torch_backend/launch.py).
Rank 0 alone reports. What ends a rank is written into the folder of its launch: the launcher decides what ended the
run.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from harness.errors import UsageError

THREADS_PER_CORE = 16
"""More threads than this per core are a typing error."""
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
FOLDER = "MPSQ_RANKS"
"""The variable by which a launcher names its folder to its ranks."""


def rank() -> int:
    """Return the number of this process among those that train together; 0 if it is alone."""
    return int(os.environ["RANK"]) if is_rank() else 0


def size() -> int:
    """Return the number of processes that train together."""
    return int(os.environ["WORLD_SIZE"]) if is_rank() else 1


def is_rank() -> bool:
    """Return whether a launcher of ours started this process."""
    return FOLDER in os.environ and os.environ.get("RANK", "").isdecimal()


def end_with_parent() -> None:
    """Let the kernel end this process when its launcher dies; elsewhere than on Linux only a warden ends it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def mute() -> None:
    """Let this process print nothing on stdout: rank 0 says what there is to say."""
    sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115


def tell_failure(failure: dict[str, Any]) -> None:
    """Write what ends this rank, before the others can notice that it is gone."""
    with contextlib.suppress(OSError):
        partial = Path(os.environ[FOLDER]) / f".{rank()}.json"
        partial.write_text(json.dumps({"at": time.monotonic(), **failure}), encoding="utf-8")
        partial.replace(partial.with_name(f"{rank()}.json"))


def failure_of(folder: Path, number: int) -> dict[str, Any] | None:
    """Return what a rank wrote; None if it ended without words."""
    try:
        found = json.loads((folder / f"{number}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def refuse_distributed(device: str) -> None:
    """Raise UsageError if a launcher (torchrun, accelerate launch) started more than one process: each would train on
    its own, on the same device, and measure the time of the others as its own."""
    said = os.environ.get("WORLD_SIZE", "")
    if not said.isdecimal() or int(said) < 2:
        return
    hint = "start it by python, not by torchrun or accelerate launch; unset WORLD_SIZE if it was left over"
    if device.partition(":")[0] == "mps":
        reason = "several processes cannot train on mps together, neither gloo nor nccl takes its tensors"
        raise UsageError(f"WORLD_SIZE={said}: {reason}", hint)
    if not is_rank():
        raise UsageError(f"WORLD_SIZE={said}: only --gpus starts several processes of a workload", hint)


def refuse_threads(n: int) -> None:
    """Raise UsageError if `n` is more than THREADS_PER_CORE threads per core: they would only wait for each other, and
    where the system refuses them OpenMP ends the process."""
    cores = os.cpu_count() or 1
    if n > THREADS_PER_CORE * cores:
        raise UsageError(
            f"threads={n}: this machine has {cores} cores",
            f"at most {THREADS_PER_CORE * cores}, {THREADS_PER_CORE} for each; 0 is the framework's own choice",
        )
