"""The full form of a WORKLOAD literal: with the declarations of the loop's keys and what it takes from another."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
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
"""The keys of params that the harness itself reads. `"max_iters": 150` in a WORKLOAD gives the default of such a key; a
mapping declares it anew, in full. queue_runner/workloads/manifest.py reads this literal without running it."""


def resolve(workload: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the literal in full: every key of params is a mapping with a unit and a help text.

    "like" names another workload of this folder, whose file is parsed and not run: its framework need not be installed.
    Ours overrides theirs config by config, key by key of params and word by word of a key; "without" names the keys
    that are left out; "gpus_divide" is of the code and not inherited. queue_runner/workloads/manifest.py does the same
    at submit.

    Raises: LookupError if the file named by "like" has no WORKLOAD.
    """
    theirs = _literal(Path(__file__).parents[1] / f"{workload['like']}.py") if "like" in workload else {}
    out, params = workload.get("without", ()), dict[str, Any]()
    for key, said in (*theirs.get("params", {}).items(), *workload.get("params", {}).items()):
        if not isinstance(said, Mapping):
            said = {**LOOP_KEYS.get(key, {}), **params.get(key, {}), "default": said}
        params[key] = {**params.get(key, {}), **said}
    inherited = {key: value for key, value in theirs.items() if key != "gpus_divide"}
    both = {key: value for key, value in {**inherited, **workload}.items() if key != "like"}
    both["params"] = {
        key: {"unit": "", "help": "", **_required(key, said, both), **said}
        for key, said in params.items()
        if key not in out
    }
    both["configs"] = {
        name: {key: value for key, value in config.items() if key not in out}
        for name, config in {**theirs.get("configs", {}), **workload.get("configs", {})}.items()
    }
    return both


def _required(key: str, said: Mapping[str, Any], workload: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that the harness can work with, for a key declared without them."""
    if key == "mode" and "modes" in workload:
        return {"choices": ["train", *workload["modes"]]}
    if "least" in LOOP_KEYS.get(key, {}) and isinstance(said["default"], int | float):
        return {"least": LOOP_KEYS[key]["least"]}
    return {}


def _literal(file: Path) -> dict[str, Any]:
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and [getattr(one, "id", None) for one in node.targets] == ["WORKLOAD"]:
            return dict(ast.literal_eval(node.value))
    raise LookupError(f"{file} has no WORKLOAD")
