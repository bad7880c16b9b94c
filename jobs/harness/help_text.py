"""The keys of a workload in --help."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.command_line import LIMITS


def keys(workload: Mapping[str, Any]) -> str:
    """Return a line for each key of --set."""
    lines = ["keys of --set, with their defaults:"]
    for name, param in workload["params"].items():
        unit = f" [{param['unit']}]" if param["unit"] else ""
        takes = f" ({values})" if (values := _accepted(param)) else ""
        lines.append(f"  {name}={_printed(param['default'])}{unit}{takes}  {param['help']}".replace("%", "%%"))
    return "\n".join(lines)


def _accepted(param: Mapping[str, Any]) -> str:
    if param.get("choices"):
        return " | ".join(map(_printed, param["choices"]))
    if param.get("each_of"):
        return f"+ between: {' '.join(param['each_of'])}"
    if param.get("path_or") is not None:
        return " | ".join([*filter(None, param["path_or"]), "PATH"])
    limits = {words: param.get(name) for name, (words, *_) in LIMITS.items()}
    return " and ".join(f"{words} {limit}" for words, limit in limits.items() if limit is not None)


def _printed(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
