"""A workload's literal, whole: one that is `like` another takes from it what it does not say itself."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_NOTHING: Mapping[str, Any] = {"unit": "", "help": ""}
_LEAST = {
    "max_iters": 0, "warmup_iters": 0, "eval_interval": 0, "checkpoint_interval": 0, "log_interval": 1, "threads": 0,
}  # fmt: skip
"""Of what the loop reads."""


def whole(workload: Mapping[str, Any]) -> Mapping[str, Any]:
    """The literal with what it takes from the file that it is like, which is read and not run: its framework need not
    be here.

    Ours goes over theirs, config by config, key by key of params and word by word of a key; keys in "without" are left
    out. queue_runner/workloads/manifest.py does the same for a workload that is asked for. What the loop itself reads
    takes what the loop takes, where nothing is said of it.
    """
    both = dict(workload)
    if "like" in workload:
        theirs = _literal(Path(__file__).parents[1] / f"{both.pop('like')}.py")
        out, params = workload.get("without", ()), theirs["params"]
        params = {**params, **{key: {**params.get(key, {}), **said} for key, said in both.get("params", {}).items()}}
        both = {**theirs, **both}
        both["params"] = {key: said for key, said in params.items() if key not in out}
        both["configs"] = {
            name: {key: value for key, value in config.items() if key not in out}
            for name, config in {**theirs["configs"], **workload.get("configs", {})}.items()
        }
    modes = {"mode": {"choices": ["train", *both["modes"]]}} if "modes" in both else {}
    counts = {key for key, said in both["params"].items() if isinstance(said["default"], int | float)}
    of_loop = {key: {"least": least} for key, least in _LEAST.items() if key in counts} | modes
    both["params"] = {key: {**_NOTHING, **of_loop.get(key, {}), **said} for key, said in both["params"].items()}
    return both


def _literal(file: Path) -> dict[str, Any]:
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and [getattr(one, "id", None) for one in node.targets] == ["WORKLOAD"]:
            return dict(ast.literal_eval(node.value))
    raise LookupError(f"{file} has no WORKLOAD")
