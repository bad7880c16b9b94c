"""Prevention of idle sleep while a process lives. A closed lid or an empty battery still causes sleep."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

CAFFEINATE = "/usr/bin/caffeinate"


def keep_awake(pid: int, *, platform: str = sys.platform, root: Path = Path("/")) -> subprocess.Popen[bytes] | None:
    """Start the helper that keeps the machine awake while `pid` lives, and ends with it; None where there is none."""
    command = command_for(pid, platform=platform, root=root)
    if command is None:
        return None
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,  # Ctrl-C, and launchd's sweep of a dead job, reach the whole process group
        )
    except OSError:
        return None


def command_for(pid: int, *, platform: str = sys.platform, root: Path = Path("/")) -> Sequence[str] | None:
    """Return the helper's command line; None where there is none."""
    if platform == "darwin":
        return [CAFFEINATE, "-i", "-m", "-w", str(pid)]
    inhibit, tail = shutil.which("systemd-inhibit"), shutil.which("tail")
    if inhibit and tail and (root / "run/systemd/system").is_dir():
        about = ["--what=idle:sleep", "--mode=block", "--who=mpsq", "--why=a training benchmark is being measured"]
        return [inhibit, *about, tail, f"--pid={pid}", "-f", "/dev/null"]
    return None
