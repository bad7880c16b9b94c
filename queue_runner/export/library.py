"""The libraries of the targets: extras, imported when used."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from queue_runner.errors import UsageError


def need(module: str, extra: str) -> Any:
    """Return the imported module. Raises: UsageError with the extra that installs it."""
    try:
        return import_module(module)
    except ImportError as error:
        name = module.partition(".")[0]
        raise UsageError(f"{name} is not installed here ({error})", f"pip install 'mpsq[{extra}]'") from error
