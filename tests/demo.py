"""`make demo`: the main task on this machine, with the commands that a user would type. Its queue is var/demo."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from queue_runner.errors import WaitedJobFailed

QUESTION = "--config tiny --set n_layer=1,8 --compile off"
"""Eager and compiled are about as fast in a model so small; one layer and eight differ on any machine."""
SHORT = "--set max_iters=40 --set eval_interval=0 --set threads=1 --budget 150s --no-gate --yes"
"""Of several threads each waits for the others, which takes ten times as long where other programs run. With the run
that the end of the budget meets, the demo takes at most four minutes."""


def main() -> int:
    """Compare two sizes of nanoGPT on every working device until that is decided. Returns an exit code."""
    home = Path(os.environ.get("MPSQ_HOME") or Path.cwd() / "var" / "demo")
    os.environ["MPSQ_HOME"] = str(home)
    print(f"the demo's queue: {os.path.relpath(home)}\n", flush=True)
    code = mpsq(f"bench nanogpt {QUESTION} {SHORT}")
    if code not in (0, WaitedJobFailed.exit_code):  # the budget of a busy machine may end before the third round
        return code
    return mpsq("report breakdown @last")


def mpsq(arguments: str) -> int:
    """Show a command, run it and return its exit code."""
    print(f"$ mpsq {arguments}", flush=True)
    return subprocess.call([sys.executable, "-m", "queue_runner.cli.main", *arguments.split()])


if __name__ == "__main__":
    sys.exit(main())
