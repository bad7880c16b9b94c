"""Prevention of idle sleep while a process lives. A closed lid or an empty battery still causes sleep."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

CAFFEINATE = "/usr/bin/caffeinate"


class Awake:
    """A helper that keeps the machine awake and ends by itself with the process, whatever else dies."""

    def __init__(self, process: subprocess.Popen[bytes] | None, said: str) -> None:
        self._process = process
        self._said = said

    @property
    def held(self) -> bool:
        """Whether the helper is running; one that was refused, as by polkit over ssh, has ended."""
        return self._process is not None and self._process.poll() is None

    def __str__(self) -> str:
        """Return a sentence about what keeps the machine awake, or why nothing does."""
        if self._process is not None and not self.held:
            return f"nothing keeps this machine from sleep: {self._said} ended (code {self._process.returncode})"
        return f"{self._said} keeps this machine from idle sleep" if self._process is not None else self._said

    def release(self) -> None:
        """Let the machine sleep again."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()


def keep_awake(pid: int, *, platform: str = sys.platform, root: Path = Path("/")) -> Awake:
    """Keep the machine awake while `pid` lives, where the system supports it; else the result says that it does not."""
    command = command_for(pid, platform=platform, root=root)
    if command is None:
        return Awake(
            None, "nothing keeps this machine from sleep: it has neither caffeinate nor a running systemd-logind"
        )
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,  # Ctrl-C, and launchd's sweep of a dead job, reach the whole process group
        )
    except OSError as error:
        return Awake(None, f"nothing keeps this machine from sleep: {Path(command[0]).name}: {error.strerror}")
    return Awake(process, Path(command[0]).name)


def command_for(pid: int, *, platform: str = sys.platform, root: Path = Path("/")) -> Sequence[str] | None:
    """Return the helper's command line; None where there is none."""
    if platform == "darwin":
        return [CAFFEINATE, "-i", "-m", "-w", str(pid)]
    inhibit, tail = shutil.which("systemd-inhibit"), shutil.which("tail")
    if inhibit and tail and (root / "run/systemd/system").is_dir():
        about = ["--what=idle:sleep", "--mode=block", "--who=mpsq", "--why=a training benchmark is being measured"]
        return [inhibit, *about, tail, f"--pid={pid}", "-f", "/dev/null"]
    return None
