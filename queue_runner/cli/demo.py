"""`make demo`: the main task on this machine, with the commands that a user would type. Its queue is var/demo."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

REPEATS = 4  # the fewest with which a comparison can be significant
GATE_TIMEOUT = "2m"  # on a machine that is never quiet it ends, too


def main() -> int:
    """Queue nanoGPT on every working device, eager and compiled, run it, and report. Returns an exit code."""
    home = Path(os.environ.get("MPSQ_HOME") or Path.cwd() / "var" / "demo")
    os.environ["MPSQ_HOME"] = str(home)
    from queue_runner.host.torch_probe import computing_devices

    devices = computing_devices()
    print(f"working devices: {', '.join(devices)}\nthe demo's queue: {os.path.relpath(home)}\n", flush=True)
    steps = (
        f"submit nanogpt --config tiny --device {','.join(devices)} --compile both --repeats {REPEATS} --until-valid"
        f" --gate-timeout {GATE_TIMEOUT}",
        "worker --until-idle",
        "report --group @last",
        "report breakdown --group @last",
    )
    return max(mpsq(step) for step in steps)


def mpsq(arguments: str) -> int:
    """Show a command and run it, with the progress of the submission while the worker runs. Returns its exit code."""
    from queue_runner import paths
    from queue_runner.model import parse_selector
    from queue_runner.monitor import overall

    print(f"$ mpsq {arguments}", flush=True)
    process = subprocess.Popen([sys.executable, "-m", "queue_runner.cli.main", *arguments.split()])
    teller = overall.Teller(lambda: overall.sentence(paths.layout(), parse_selector("@last")))
    while arguments.startswith("worker"):
        try:
            process.wait(overall.TERMINAL_S)
            break
        except subprocess.TimeoutExpired:
            teller.step()
    teller.close()
    code = process.wait()
    print(flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
