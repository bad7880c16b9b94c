"""`make demo`: the main task on this machine, with the commands that a user would type. Its queue is var/demo."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

BUDGET = "2m"
LIMIT_S = 200.0
"""After this time the runs that have not ended are cancelled, so that the demo ends within four minutes."""


def main() -> int:
    """Compare eager and compiled nanoGPT on every working device until that is decided. Returns an exit code."""
    home = Path(os.environ.get("MPSQ_HOME") or Path.cwd() / "var" / "demo")
    os.environ["MPSQ_HOME"] = str(home)
    print(f"the demo's queue: {os.path.relpath(home)}\n", flush=True)
    # with one seed, what the runs share is computed once
    options = f"--config tiny --budget {BUDGET} --seed 1337 --no-gate --no-preflight --yes"
    return mpsq(f"bench nanogpt {options}", LIMIT_S) or mpsq("report breakdown --group @last")


def mpsq(arguments: str, limit_s: float | None = None) -> int:
    """Show a command and run it. After `limit_s` its runs are cancelled: it reports those that have ended. Returns its
    exit code, 0 for one that was cancelled."""
    print(f"$ mpsq {arguments}", flush=True)
    process = subprocess.Popen([sys.executable, "-m", "queue_runner.cli.main", *arguments.split()])
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        print(f"\nthis machine is busy: after {limit_s:g} s the demo cancels the remaining runs", flush=True)
        mpsq("cancel @last")
        process.wait()
        return 0


if __name__ == "__main__":
    sys.exit(main())
