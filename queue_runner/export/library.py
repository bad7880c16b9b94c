"""The libraries of the targets, imported when used."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from queue_runner.errors import UsageError


def need(module: str) -> Any:
    """Return the imported module, whose package has its name. Raises: UsageError where it is not installed."""
    try:
        return import_module(module)
    except ImportError as error:
        name = module.partition(".")[0]
        raise UsageError(f"{name} is not installed here ({error})", f"pip install {name}") from error
