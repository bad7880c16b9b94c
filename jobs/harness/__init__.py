"""Parts shared by the workloads. nanogpt_torch.py, read first, uses start, command_line, loop and torch_backend."""

from __future__ import annotations

from typing import Any

LOOP_KEYS: dict[str, dict[str, Any]] = {
    "max_iters": {"unit": "iterations", "least": 0, "help": "number of updates"},
    "warmup_iters": {"unit": "iterations", "least": 0, "help": "iterations after the first that are not measured"},
    "eval_interval": {
        "unit": "iterations", "least": 0,
        "help": "iterations between evaluations, with one at the end; 0: no evaluation",
    },
    "eval_at_start": {"unit": "", "help": "also evaluate the initial weights, as step 0, after iteration 0"},
    "log_interval": {
        "unit": "iterations", "least": 1,
        "help": "iterations between printed lines; all iterations are reported",
    },
    "checkpoint_interval": {
        "unit": "iterations", "least": 0,
        "help": "iterations between checkpoints, with one at the end if --out is given; 0: only that one",
    },
    "stop_on_nan": {"unit": "", "help": "stop when a loss is not a number"},
    "threads": {"unit": "threads", "least": 0, "help": "threads of the CPU; 0: torch chooses"},
}  # fmt: skip
"""The keys of params that the loop itself reads. `"max_iters": 150` in a WORKLOAD gives the default of such a key; a
mapping declares it anew, in full. queue_runner/workloads/manifest.py reads this literal without running it."""
