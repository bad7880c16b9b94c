"""Kernels according to native_functions.yaml, torch's own list of functions, which every wheel contains.

It is static and needs no device: functions registered in C++ (as by ATen's MPSFallback.mm) are not in it, and a
kernel in the list may lack a dtype. The sweep finds what a device does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_PLACE = Path("packaged", "ATen", "native", "native_functions.yaml")


@dataclass(frozen=True)
class Inventory:
    """Functions by name and overload."""

    n_functions: int
    with_mps: tuple[str, ...]
    without_mps: tuple[str, ...]
    """functions with kernels for CPU and CUDA, and no composite one, which would serve every device"""


def path() -> Path | None:
    """Return the list of the installed torch; None if it came without one."""
    spec = find_spec("torchgen")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if (file := Path(folder) / _PLACE).is_file():
            return file
    return None


def read(file: Path) -> Inventory:
    """Read the list. Raises: ModuleNotFoundError without pyyaml."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where libyaml is built in
    functions = yaml.load(file.read_text(encoding="utf-8"), Loader=loader)
    with_mps, without = [], []
    for function in functions:
        name, keys = function["func"].split("(")[0], _keys(function)
        if "MPS" in keys:
            with_mps.append(name)
        elif {"CPU", "CUDA"} <= keys and not any(key.startswith("Composite") for key in keys):
            without.append(name)
    return Inventory(len(functions), tuple(with_mps), tuple(without))


def _keys(function: Mapping[str, Any]) -> set[str]:
    """Return the dispatch keys of an entry: those in `dispatch`, where one line may name several."""
    return {key.strip() for names in (function.get("dispatch") or {}) for key in str(names).split(",")}
