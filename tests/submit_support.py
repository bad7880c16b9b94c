"""Requests of a submission from the options that a person gives."""

from __future__ import annotations

from typing import Any

from queue_runner.submit import given_options
from queue_runner.submit.submit_options import Request

_OTHERS = ("title", "home", "measures")
"""Fields that no option sets."""


def requested(**fields: Any) -> Request:
    """Return the request of these options, with values as on a command line or in Python; None is not given."""
    given = {name: value for name, value in fields.items() if name not in _OTHERS and value not in (None, ())}
    others = {name: value for name, value in fields.items() if name in _OTHERS}
    return Request(**given_options.read(given, whole=True), **others)
