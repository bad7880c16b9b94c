"""`make demo`: the main task on this machine, with the commands that a user would type. Its queue is var/demo."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

QUESTION = "--config tiny --set n_layer=1,8 --compile off"
"""Eager and compiled are about as fast in a model so small; one layer and eight differ on any machine."""
SHORT = "--set max_iters=40 --set eval_interval=0 --set threads=1 --budget 2m --no-gate --yes"
"""Of several threads each waits for the others, which takes ten times as long where other programs run."""
LIMIT_S = 200.0
"""After this time the runs that have not ended are cancelled, so that the demo ends within four minutes."""


def main() -> int:
    """Compare two sizes of nanoGPT on every working device until that is decided. Returns an exit code."""
    home = Path(os.environ.get("MPSQ_HOME") or Path.cwd() / "var" / "demo")
    os.environ["MPSQ_HOME"] = str(home)
    print(f"the demo's queue: {os.path.relpath(home)}\n", flush=True)
    return mpsq(f"bench nanogpt {QUESTION} {SHORT}", LIMIT_S) or mpsq("report breakdown --group @last")


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
