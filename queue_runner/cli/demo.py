"""`make demo`: the main task on this machine, with the commands that a user would type. Its queue is var/demo."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

REPEATS = 3  # the fewest for a verdict
LIMIT_S = 150.0
"""After this time the runs that have not ended are cancelled, so that the demo ends within four minutes."""


def main() -> int:
    """Queue nanoGPT on every working device, eager and compiled, run it, and report. Returns an exit code."""
    start = time.monotonic()
    home = Path(os.environ.get("MPSQ_HOME") or Path.cwd() / "var" / "demo")
    os.environ["MPSQ_HOME"] = str(home)
    from queue_runner.host import compiler
    from queue_runner.host.torch_probe import computing_devices

    cxx = compiler.probe()
    devices = computing_devices()
    print(f"working devices: {', '.join(devices)}\nthe demo's queue: {os.path.relpath(home)}\n", flush=True)
    if not cxx.works:
        print(f"note: {cxx.finding}, so the demo runs eager only ({cxx.fix})\n", flush=True)
    compiled = "both" if cxx.works else "off"
    submit = f"submit nanogpt --config tiny --device {','.join(devices)} --compile {compiled} --repeats {REPEATS}"
    # with one seed, what the runs share is computed once
    if code := mpsq(f"{submit} --seed 1337 --no-gate --no-preflight"):
        return code
    worked = work(start + LIMIT_S)
    reports = [mpsq(f"report {name}--group @last") for name in ("", "breakdown ")]
    return max(worked, *reports)


def mpsq(arguments: str) -> int:
    """Show a command and run it. Returns its exit code."""
    return _started(arguments).wait()


def work(until: float) -> int:
    """Run the queue and show its progress. Cancel the remaining runs at the monotonic time `until`."""
    from queue_runner import paths
    from queue_runner.model import parse_selector
    from queue_runner.monitor import overall

    worker = _started("worker --until-idle")
    teller = overall.Teller(lambda: overall.sentence(paths.layout(), parse_selector("@last")))
    cancelled = False
    while worker.poll() is None:
        try:
            worker.wait(overall.TERMINAL_S)
        except subprocess.TimeoutExpired:
            teller.step()
        if worker.poll() is None and not cancelled and time.monotonic() > until:
            print(f"\nthis machine is busy: after {LIMIT_S:g} s the demo cancels the remaining runs", flush=True)
            cancelled = mpsq("cancel @last") == 0
    teller.close()
    print(flush=True)
    return worker.wait()


def _started(arguments: str) -> subprocess.Popen[bytes]:
    print(f"$ mpsq {arguments}", flush=True)
    return subprocess.Popen([sys.executable, "-m", "queue_runner.cli.main", *arguments.split()])


if __name__ == "__main__":
    sys.exit(main())
