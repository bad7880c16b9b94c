"""Names of an Apple-silicon Mac's chip and system, and the memory of this process as macOS counts it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import subprocess
from collections.abc import Callable

_RUSAGE_INFO_V0 = 0
_FOOTPRINT_OFFSET = 16 + 7 * 8
"""Bytes before ri_phys_footprint in struct rusage_info_v0 (macOS, <sys/resource.h>): a uuid, seven numbers of 64 bits.
The resident size before it lacks compressed pages and has freed ones."""
_RUSAGE_BYTES = 512
"""Size of the buffer: more than the struct needs."""


def chip_name() -> str:
    """Return Apple's name of the chip, which is its GPU's too; empty on another system."""
    return output("/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string") if platform.system() == "Darwin" else ""


def macos_version() -> str:
    """Return the version of macOS. platform.mac_ver() returns 16.0 on macOS 26 in a Python built for an older one."""
    version = output("/usr/bin/sw_vers", "-productVersion", SYSTEM_VERSION_COMPAT="0")
    return version or platform.mac_ver()[0]


def output(*command: str, **variables: str) -> str:
    """Return what a command prints; empty if it fails or takes more than five seconds."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        environment = {**os.environ, **variables}
        process = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True, env=environment)
        return process.stdout.strip()
    return ""


def footprint_reader() -> Callable[[], int | None] | None:
    """Return a function that reads the physical footprint by libproc's proc_pid_rusage, which a process may call for
    itself without rights; None if the system lacks it."""
    try:
        proc_pid_rusage = ctypes.CDLL(None).proc_pid_rusage
    except (OSError, AttributeError):
        return None
    buffer, pid = ctypes.create_string_buffer(_RUSAGE_BYTES), os.getpid()

    def read() -> int | None:
        if proc_pid_rusage(pid, _RUSAGE_INFO_V0, buffer) != 0:
            return None
        return int.from_bytes(buffer.raw[_FOOTPRINT_OFFSET : _FOOTPRINT_OFFSET + 8], "little")

    return read
