"""The two clocks of a machine that sleeps, and the identifier of its current boot.

Clock names mean opposite things (clock_gettime(2) of Linux, clock_gettime(3) of macOS): during sleep, CLOCK_MONOTONIC
stops on Linux and CLOCK_BOOTTIME runs; on macOS CLOCK_UPTIME_RAW stops and CLOCK_MONOTONIC_RAW runs. The warden has
its own copy of the two clocks, because it must run standalone.
"""

from __future__ import annotations

import functools
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

SLEEP_TOLERANCE_S = 0.5
"""A difference of the two clocks up to this is reading jitter, not sleep."""

_LINUX_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_SYSCTL = "/usr/sbin/sysctl"

if sys.platform == "darwin":
    _AWAKE, _COUNTING = time.CLOCK_UPTIME_RAW, time.CLOCK_MONOTONIC_RAW
else:
    _AWAKE = time.CLOCK_MONOTONIC
    _COUNTING = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


@dataclass(frozen=True)
class Reading:
    """Both clocks at one moment, in seconds from arbitrary zeros."""

    awake_s: float
    counting_s: float


def awake_s() -> float:
    """Return seconds on the clock that stops while the machine sleeps."""
    return time.clock_gettime(_AWAKE)


def counting_s() -> float:
    """Return seconds on the clock that runs while the machine sleeps."""
    return time.clock_gettime(_COUNTING)


def read() -> Reading:
    """Read both clocks."""
    return Reading(awake_s(), counting_s())


def slept_s(since: Reading, until: Reading) -> float:
    """Return the seconds that the machine slept between two readings, never negative."""
    return max(0.0, (until.counting_s - since.counting_s) - (until.awake_s - since.awake_s))


@functools.cache
def boot_id() -> str:
    """Return the identifier of this boot: pids and start times recorded under another one are meaningless now."""
    try:
        return _LINUX_BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return boot_id_darwin(_sysctl)


def boot_id_darwin(sysctl: Callable[[str], str]) -> str:
    """Return kern.bootsessionuuid, else the second of the boot, else "unknown".

    `sysctl` returns the value of a name, or "".
    """
    if uuid := sysctl("kern.bootsessionuuid").strip():
        return uuid.lower()
    # kern.boottime reads `{ sec = 1700000000, usec = 123456 } Tue Nov 14 22:13:20 2023`
    words = sysctl("kern.boottime").replace(",", " ").split()
    return f"boottime-{words[words.index('sec') + 2]}" if "sec" in words[:-2] else "unknown"


def _sysctl(name: str) -> str:
    try:
        done = subprocess.run([_SYSCTL, "-n", name], capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
