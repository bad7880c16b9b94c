"""The identifier of this machine's current boot."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

from queue_runner.host.command import ask

_LINUX_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@functools.cache
def boot_id() -> str:
    """Return the identifier of this boot: pids and start times recorded under another one are meaningless now."""
    try:
        return _LINUX_BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return boot_id_darwin(lambda name: ask(["/usr/sbin/sysctl", "-n", name]) or "")


def boot_id_darwin(sysctl: Callable[[str], str]) -> str:
    """Return kern.bootsessionuuid, else the second of the boot, else "unknown".

    `sysctl` returns the value of a name, or "".
    """
    if uuid := sysctl("kern.bootsessionuuid").strip():
        return uuid.lower()
    # kern.boottime reads `{ sec = 1700000000, usec = 123456 } Tue Nov 14 22:13:20 2023`
    words = sysctl("kern.boottime").replace(",", " ").split()
    return f"boottime-{words[words.index('sec') + 2]}" if "sec" in words[:-2] else "unknown"
