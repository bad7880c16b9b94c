"""Events as plain objects, for comparing with golden files."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any


def fields(event: Any) -> dict[str, Any]:
    """Every field of an event by its name, whichever kind of class it is."""
    return dict(event._asdict()) if isinstance(event, tuple) else asdict(event)
