"""The WORKLOAD literal of a twin, which takes its entries from another workload: "like" names that one's file."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness import LOOP_KEYS


def merge(workload: Mapping[str, Any]) -> dict[str, Any]:
    """Return the literal with the entries of the one that "like" names, whose file is parsed and not run: its framework
    need not be installed.

    The literal overrides that one config by config, key by key of params and word by word of a key. "without" names the
    keys that are omitted; "gpus_divide" belongs to the code and is not inherited.

    Raises: LookupError if the file named by "like" has no WORKLOAD.
    """
    base = _literal(Path(__file__).parents[1] / f"{workload['like']}.py")
    omitted, params = workload.get("without", ()), dict[str, Any]()
    for key, param in (*base.get("params", {}).items(), *workload.get("params", {}).items()):
        if not isinstance(param, Mapping):
            param = {**LOOP_KEYS.get(key, {}), **params.get(key, {}), "default": param}
        params[key] = {**params.get(key, {}), **param}
    configs = {**base.get("configs", {}), **workload.get("configs", {})}
    inherited = {key: value for key, value in base.items() if key != "gpus_divide"}
    both = {key: value for key, value in {**inherited, **workload}.items() if key != "like"}
    both["params"] = {key: param for key, param in params.items() if key not in omitted}
    both["configs"] = {
        name: {key: value for key, value in config.items() if key not in omitted} for name, config in configs.items()
    }
    return both


def _literal(file: Path) -> dict[str, Any]:
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and [getattr(target, "id", None) for target in node.targets] == ["WORKLOAD"]:
            return dict(ast.literal_eval(node.value))
    raise LookupError(f"{file} has no WORKLOAD")
