"""A workload's literal, whole: one that is `like` another takes from it what it does not say itself."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def whole(workload: Mapping[str, Any]) -> Mapping[str, Any]:
    """The literal with what it takes from the file that it is like, which is read and not run: its framework need not
    be here.

    Ours goes over theirs, key by key in params and configs; keys in "without" are left out. queue_runner/catalog.py
    does the same for a workload that is asked for.
    """
    if "like" not in workload:
        return workload
    theirs = _literal(Path(__file__).parents[1] / f"{workload['like']}.py")
    out = workload.get("without", ())
    both = {key: value for key, value in {**theirs, **workload}.items() if key != "like"}
    params = {**theirs["params"], **workload.get("params", {})}
    both["params"] = {key: value for key, value in params.items() if key not in out}
    both["configs"] = {
        name: {key: value for key, value in config.items() if key not in out}
        for name, config in {**theirs["configs"], **workload.get("configs", {})}.items()
    }
    return both


def _literal(file: Path) -> dict[str, Any]:
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and [getattr(one, "id", None) for one in node.targets] == ["WORKLOAD"]:
            return dict(ast.literal_eval(node.value))
    raise LookupError(f"{file} has no WORKLOAD")
