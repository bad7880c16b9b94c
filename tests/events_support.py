"""Events as plain objects, for comparing with golden files."""

from __future__ import annotations

from typing import Any

from msgspec import structs


def fields(event: Any) -> dict[str, Any]:
    """Return every field of an event by its name."""
    return structs.asdict(event)
