"""The processes of a workload with --gpus N, as they know of each other. Standard library only.

The first process of a workload starts N more, the ranks, and waits for them (launch.py). Rank 0 alone reports. A rank
that fails writes its error into the folder of its launch; from these files the launcher decides which failed first.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from harness.errors import JobError, UsageError, first_line

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


def begin() -> None:
    """Tie this rank to its launcher, and let only rank 0 print on stdout.

    The kernel ends the rank when its launcher dies; elsewhere than on Linux only a warden ends it.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if rank():
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115


def write_failure(error: Exception, problem: JobError | None) -> int:
    """Write the error that ends this rank, before the others can notice that it is gone. Return the exit code."""
    from harness.explain import is_lost_peer

    lost = is_lost_peer(error)
    if problem is None:
        if not lost:
            traceback.print_exc()
        problem = JobError(f"{type(error).__name__}: {first_line(error)}", note="error")
    failure = {
        "at": time.monotonic(),
        "message": problem.message,
        "hint": problem.hint,
        "code": problem.exit_code,
        "note": problem.note,
        "lost_peer": lost,
    }
    with contextlib.suppress(OSError):
        partial = Path(os.environ[FOLDER]) / f".{rank()}.json"
        partial.write_text(json.dumps(failure), encoding="utf-8")
        partial.replace(partial.with_name(f"{rank()}.json"))
    return problem.exit_code


def failure_of(folder: Path, number: int) -> dict[str, Any] | None:
    """Return the error that a rank wrote; None if it wrote none."""
    try:
        failure = json.loads((folder / f"{number}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return failure if isinstance(failure, dict) else None


def refuse_distributed(device: str) -> None:
    """Raise UsageError if a launcher (torchrun, accelerate launch) started more than one process: each would train on
    its own, on the same device, and measure the time of the others as its own."""
    world_size = os.environ.get("WORLD_SIZE", "")
    if not world_size.isdecimal() or int(world_size) < 2:
        return
    hint = "start it by python, not by torchrun or accelerate launch; unset WORLD_SIZE if it was left over"
    if device.partition(":")[0] == "mps":
        reason = "several processes cannot train together on mps, as neither gloo nor nccl supports its tensors"
        raise UsageError(f"WORLD_SIZE={world_size}: {reason}", hint)
    if not is_rank():
        raise UsageError(f"WORLD_SIZE={world_size}: only --gpus starts several processes of a workload", hint)
