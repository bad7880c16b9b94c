"""Parts shared by the workloads. nanogpt_torch.py, read first, uses start, command_line, loop and torch_backend."""

from __future__ import annotations

from typing import Any

LOOP_KEYS: dict[str, dict[str, Any]] = {
    "max_iters": {"unit": "iterations", "least": 0, "help": "updates to make"},
    "warmup_iters": {"unit": "iterations", "least": 0, "help": "after the first that are not measured"},
    "eval_interval": {
        "unit": "iterations", "least": 0,
        "help": "evaluate each time so many are done, and at the end; 0: never",
    },
    "eval_at_start": {"unit": "", "help": "evaluate the initial weights too, as step 0, when iteration 0 is over"},
    "log_interval": {"unit": "iterations", "least": 1, "help": "print every so many; all of them are reported"},
    "checkpoint_interval": {
        "unit": "iterations", "least": 0,
        "help": "save each time so many are done, and at the end with --out; 0: only that",
    },
    "stop_on_nan": {"unit": "", "help": "end when a loss is not a number"},
    "threads": {"unit": "threads", "least": 0, "help": "of the CPU; 0: torch's own choice"},
}  # fmt: skip
"""The keys of params that the loop itself reads. `"max_iters": 150` in a WORKLOAD gives the default of such a key; a
mapping declares it anew, in full. queue_runner/workloads/manifest.py reads this literal without running it."""
