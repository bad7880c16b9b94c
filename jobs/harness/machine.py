"""Names of this machine's hardware and the memory of this process, whatever the framework. Standard library only."""

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
_AT_RESIDENT_SIZE = 16 + 6 * 8
"""Bytes before ri_resident_size in struct rusage_info_v0 (macOS, <sys/resource.h>): a uuid, six numbers of 64 bits."""
_RUSAGE_BYTES = 512
"""More than the struct takes."""


def cpu_name() -> str:
    """The processor's name as the system gives it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return " ".join(line.partition(":")[2].split())
    return apple_name() or platform.processor() or platform.machine()


def apple_name() -> str:
    """Apple's name of the chip, which is its GPU's too; empty on another system."""
    if platform.system() != "Darwin":
        return ""
    return _output("/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string")


def macos_version() -> str:
    """The system's version. Not platform.mac_ver(), which says 16.0 on macOS 26 in a Python built for an older one."""
    told = _output("/usr/bin/sw_vers", "-productVersion", SYSTEM_VERSION_COMPAT="0")
    return told or platform.mac_ver()[0]


def nvidia_name(index: int) -> str:
    """The driver's name of the card with this number; empty where it cannot be asked."""
    return _output("nvidia-smi", f"--id={index}", "--query-gpu=name", "--format=csv,noheader")


def process_memory() -> tuple[None, int | None]:
    """What a device on the CPU has for its memory: no bytes in tensors, which only an allocator of its own would count,
    and the bytes of this process that are resident now (RSS); (None, None) where the system does not tell.

    Called between two timed iterations: a microsecond on Linux.
    """
    read = _resident()
    return None, read() if read is not None else None


@cache
def _resident() -> Callable[[], int | None] | None:
    """How RSS is read here; None where it cannot be: getrusage knows the highest only."""
    if platform.system() == "Darwin":
        return _darwin_resident()
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


def _darwin_resident() -> Callable[[], int | None] | None:
    """By libproc's proc_pid_rusage, which is in libSystem and needs no rights for one's own process."""
    try:
        ask = ctypes.CDLL(None).proc_pid_rusage
    except (OSError, AttributeError):
        return None
    buffer, pid = ctypes.create_string_buffer(_RUSAGE_BYTES), os.getpid()

    def read() -> int | None:
        if ask(pid, _RUSAGE_INFO_V0, buffer) != 0:
            return None
        return int.from_bytes(buffer.raw[_AT_RESIDENT_SIZE : _AT_RESIDENT_SIZE + 8], "little")

    return read


def _output(*command: str, **variables: str) -> str:
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        environment = {**os.environ, **variables}
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True, env=environment)
        return done.stdout.strip()
    return ""
