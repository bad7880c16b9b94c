"""Names of this machine's hardware, whatever the framework. Standard library only."""

from __future__ import annotations

import contextlib
import platform
import subprocess
from pathlib import Path


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


def nvidia_name(index: int) -> str:
    """The driver's name of the card with this number; empty where it cannot be asked."""
    return _output("nvidia-smi", f"--id={index}", "--query-gpu=name", "--format=csv,noheader")


def _output(*command: str) -> str:
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
    return ""
