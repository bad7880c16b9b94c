"""The end of a preflight: its traces are thrown away, and what it says about the runs of its job."""

from __future__ import annotations

import re
import shutil
import time
from functools import partial

from queue_runner.host.command import Ask, ask
from queue_runner.host.run_dir import RunDir
from queue_runner.model import Ending, Outcome
from queue_runner.paths import Layout
from queue_runner.spec import JobSpec
from queue_runner.store import preflights
from queue_runner.store.engine import Connection
from queue_runner.store.jobs import PREFLIGHT_LIMIT_S, Claimed
from queue_runner.worker import launch

_SHARED = frozenset(
    {
        *(Outcome.FAILED, Outcome.SPAWN_FAILED, Outcome.DEVICE_UNAVAILABLE, Outcome.OUT_OF_MEMORY),
        *(Outcome.STALLED, Outcome.OUTPUT_LIMIT, Outcome.CODE_CHANGED),
    }
)
"""Outcomes that the runs would share. A lost or cancelled preflight, one killed from outside, one without disk space or
one that only took longer than the limit of preflights says nothing about them."""

_ACCELERATOR_SHARE = 0.05
"""Share of an accelerator's memory held by others that counts as taken; a display or a driver holds less."""
_HOST_SHARE = 0.5
"""The same of main memory, which is also that of Apple's GPUs: the system itself and its services hold much of it."""
_BRIEFLY = partial(ask, timeout_s=5.0)


def throw_away(layout: Layout, run: Claimed, folder: RunDir) -> None:
    """Remove the output and the compiler cache of a preflight. Its logs and its end stay."""
    shutil.rmtree(folder.out, ignore_errors=True)
    shutil.rmtree(launch.compile_cache(layout, run), ignore_errors=True)


def judge(connection: Connection, run: Claimed, ending: Ending, busy: bool) -> None:
    """Skip the runs of the job if they cannot work; called in the transaction that ends the preflight."""
    preflights.forget_points(connection, run.run_id)
    if is_hopeless(run.spec, ending, busy):
        preflights.skip(connection, run.id.job, ending, time.time())


def is_hopeless(spec: JobSpec, ending: Ending, busy: bool) -> bool:
    """Return whether the runs would end as their preflight did. A `busy` device is none of their doing."""
    if ending.outcome is Outcome.KILLED:
        return ending.reason.endswith("it crashed")
    if ending.outcome is Outcome.TIMED_OUT:  # --timeout, if that is shorter: one iteration is part of every run
        return spec.timeout_s is not None and spec.timeout_s < PREFLIGHT_LIMIT_S
    if ending.outcome is Outcome.OUT_OF_MEMORY and busy:
        return False
    if ending.outcome is Outcome.DEVICE_UNAVAILABLE and "busy" in ending.reason.lower():
        return False
    return ending.outcome in _SHARED


def is_taken(device: str | None, *, ask: Ask = _BRIEFLY, host_share: float | None = None) -> bool:
    """Return whether others hold much of the memory of `device` while no run is active. May run nvidia-smi."""
    if device == "cpu" or device == "mps":
        shares: list[float] = []
    else:
        shares = parse_memory_use(
            ask(["nvidia-smi", "--query-gpu=memory.used,memory.total", "--format=csv,noheader,nounits"])
        )
        index = (device or "").partition(":")[2]
        if index.isdecimal() and int(index) < len(shares):
            shares = [shares[int(index)]]
    if shares:
        return max(shares) > _ACCELERATOR_SHARE
    return (_host_share() if host_share is None else host_share) > _HOST_SHARE


def parse_memory_use(text: str | None) -> list[float]:
    """Parse lines of `used, total` in MiB: the share of each GPU's memory that is in use."""
    pairs = re.findall(r"^\s*(\d{1,9})\s*,\s*([1-9]\d{0,8})\s*$", text or "", re.MULTILINE)
    return [int(used) / int(total) for used, total in pairs]


def _host_share() -> float:
    import psutil

    memory = psutil.virtual_memory()
    return 1 - memory.available / memory.total
