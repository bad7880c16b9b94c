"""Names of this machine's hardware, and the memory of this process. Standard library only."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import resource
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

_RUSAGE_INFO_V0 = 0
_AT_FOOTPRINT = 16 + 7 * 8
"""Bytes before ri_phys_footprint in struct rusage_info_v0 (macOS, <sys/resource.h>): a uuid, seven numbers of 64 bits.
The resident size before it lacks compressed pages and has freed ones."""
_RUSAGE_BYTES = 512
"""Size of the buffer: more than the struct needs."""


def cpu_name() -> str:
    """Return the processor's name as the system gives it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return " ".join(line.partition(":")[2].split())
    return apple_name() or platform.processor() or platform.machine()


def apple_name() -> str:
    """Return Apple's name of the chip, which is its GPU's too; empty on another system."""
    if platform.system() != "Darwin":
        return ""
    return _output("/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string")


def macos_version() -> str:
    """Return the version of macOS. platform.mac_ver() returns 16.0 on macOS 26 in a Python built for an older one."""
    told = _output("/usr/bin/sw_vers", "-productVersion", SYSTEM_VERSION_COMPAT="0")
    return told or platform.mac_ver()[0]


def nvidia_name(index: int) -> str:
    """Return the driver's name of the card with this number; empty if nvidia-smi does not answer."""
    return _output("nvidia-smi", f"--id={index}", "--query-gpu=name", "--format=csv,noheader")


def process_memory() -> tuple[None, int | None]:
    """Return the memory of a device on the CPU: None for bytes in tensors, which only an allocator could count, and the
    resident set size (RSS) of this process in bytes, on macOS its physical footprint; (None, None) if the system does
    not tell it.

    Called between two timed iterations: takes a microsecond on Linux.
    """
    read = _resident()
    return None, read() if read is not None else None


@cache
def _resident() -> Callable[[], int | None] | None:
    """Return a function that reads that memory in bytes; None if there is no way (getrusage has the peak only)."""
    if platform.system() == "Darwin":
        return _darwin_footprint()
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


def _darwin_footprint() -> Callable[[], int | None] | None:
    """Return a function that reads the physical footprint by libproc's proc_pid_rusage, which needs no rights for the
    own process."""
    try:
        ask = ctypes.CDLL(None).proc_pid_rusage
    except (OSError, AttributeError):
        return None
    buffer, pid = ctypes.create_string_buffer(_RUSAGE_BYTES), os.getpid()

    def read() -> int | None:
        if ask(pid, _RUSAGE_INFO_V0, buffer) != 0:
            return None
        return int.from_bytes(buffer.raw[_AT_FOOTPRINT : _AT_FOOTPRINT + 8], "little")

    return read


def _output(*command: str, **variables: str) -> str:
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        environment = {**os.environ, **variables}
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True, env=environment)
        return done.stdout.strip()
    return ""
