"""The CPU of this machine as a device, its name and its memory, and the choice of --device auto."""

from __future__ import annotations

import contextlib
import os
import platform
import resource
from collections.abc import Callable
from functools import cache
from pathlib import Path

AUTO = ("cuda", "mps", "cpu")
"""The order in which `--device auto` tries devices."""
Memory = tuple[int | None, int | None]
"""Bytes in arrays, and bytes reserved from the system; on the CPU None and the process's resident size (RSS)."""
WRONG_PRODUCT = "it returns a wrong product of two small integer matrices"


def cpu_name() -> str:
    """Return the processor's name as the system gives it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return " ".join(line.partition(":")[2].split())
    from harness.apple import chip_name

    return chip_name() or platform.processor() or platform.machine()


def process_memory() -> Memory:
    """Return the memory of a device on the CPU: None, and the resident set size (RSS) of this process in bytes.

    On macOS it is the physical footprint. Only an allocator could count the bytes in tensors. Without support by the
    system it is (None, None).

    Called between two timed iterations: takes a microsecond on Linux.
    """
    read = _memory_reader()
    return None, read() if read is not None else None


@cache
def _memory_reader() -> Callable[[], int | None] | None:
    """Return a function that reads that memory in bytes; None if there is no way (getrusage has the peak only)."""
    if platform.system() == "Darwin":
        from harness.apple import footprint_reader

        return footprint_reader()
    try:
        fd = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    page_bytes = resource.getpagesize()

    def read() -> int | None:
        try:
            return int(os.pread(fd, 128, 0).split()[1]) * page_bytes
        except (OSError, IndexError, ValueError):
            return None

    return read


def choose(label: str, why_not: Callable[[str], str | None]) -> str:
    """Return `label`; for auto the first device of AUTO that computes, or the CPU.

    `why_not` returns None for a device that computes, else the reason why it does not.
    """
    if label != "auto":
        return label
    return next(name for name in AUTO if name == "cpu" or why_not(name) is None)


def check(label: str, why_not: Callable[[str], str | None], framework: str) -> None:
    """Raise JobError with exit code 69 if the device does not compute."""
    if (reason := why_not(label)) is not None:
        from harness.installing import unavailable

        raise unavailable(label, reason, [name for name in sorted(AUTO) if why_not(name) is None], framework)
