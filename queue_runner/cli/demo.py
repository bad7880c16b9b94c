"""`make demo`: the main task on this machine, with the commands that a user would type. Its queue is var/demo."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

REPEATS = 4  # the fewest with which a comparison can be significant


def main() -> int:
    """Queue nanoGPT on every working device, eager and compiled, run it, and report. Returns an exit code."""
    home = Path(os.environ.get("MPSQ_HOME") or Path.cwd() / "var" / "demo")
    os.environ["MPSQ_HOME"] = str(home)
    from queue_runner.host.torch_probe import computing_devices

    devices = computing_devices()
    print(f"working devices: {', '.join(devices)}\nthe demo's queue: {os.path.relpath(home)}\n", flush=True)
    steps = (
        f"submit nanogpt --config tiny --device {','.join(devices)} --compile both --repeats {REPEATS}",
        "worker --until-idle",
        "report --group @last",
        "report breakdown --group @last",
    )
    return max(mpsq(step) for step in steps)


def mpsq(arguments: str) -> int:
    """Show a command and run it. Returns its exit code."""
    print(f"$ mpsq {arguments}", flush=True)
    code = subprocess.run([sys.executable, "-m", "queue_runner.cli.main", *arguments.split()], check=False).returncode
    print(flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
