"""Memory that other programs hold while no run is active: without it, "out of memory" would say nothing about a job."""

from __future__ import annotations

import re
from functools import partial

from queue_runner.host.command import Ask, ask

ACCELERATOR_SHARE = 0.05
"""Share of an accelerator's memory held by others that counts as taken; a display or a driver holds less."""
HOST_SHARE = 0.5
"""The same of main memory, which is also that of Apple's GPUs: the system itself and its services hold much of it."""
_BRIEFLY = partial(ask, timeout_s=5.0)


def is_taken(device: str | None, *, ask: Ask = _BRIEFLY, host_share: float | None = None) -> bool:
    """Return whether others hold much of the memory of `device`. May run nvidia-smi."""
    if device == "cpu" or device == "mps":
        shares: list[float] = []
    else:
        shares = parse(ask(["nvidia-smi", "--query-gpu=memory.used,memory.total", "--format=csv,noheader,nounits"]))
        index = (device or "").partition(":")[2]
        if index.isdecimal() and int(index) < len(shares):
            shares = [shares[int(index)]]
    if shares:
        return max(shares) > ACCELERATOR_SHARE
    return (_host_share() if host_share is None else host_share) > HOST_SHARE


def parse(text: str | None) -> list[float]:
    """Parse lines of `used, total` in MiB: the share of each GPU's memory that is in use."""
    pairs = re.findall(r"^\s*(\d+)\s*,\s*([1-9]\d*)\s*$", text or "", re.MULTILINE)
    return [int(used) / int(total) for used, total in pairs]


def _host_share() -> float:
    import psutil

    memory = psutil.virtual_memory()
    return 1 - memory.available / memory.total
