"""Values from outside, on the wire and in bundles: which of them can be stored."""

from __future__ import annotations

import math
from typing import Any

MAX_DEPTH = 32
"""Nesting allowed in values stored unchanged: far below the recursion limit of any later writer."""
NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
"""Words for the numbers that JSON lacks."""


class BadLine(Exception):
    """The line is not valid; the message gives the reason."""


def storable(value: Any, depth: int = 0) -> None:
    """Reject values that a database or JSON writer cannot hold.

    Raises: BadLine for lone surrogates, NUL, infinity by overflow or deep nesting.
    """
    if depth > MAX_DEPTH:
        raise BadLine("nested too deeply")
    if type(value) is str:
        if "\0" in value or (not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value)):
            raise BadLine("the text contains NUL or an unpaired surrogate")
    elif type(value) is float:
        if not math.isfinite(value):
            raise BadLine("a number beyond the range of a double")
    elif type(value) is dict:
        for key, item in value.items():
            storable(key, depth + 1)
            storable(item, depth + 1)
    elif type(value) is list:
        for item in value:
            storable(item, depth + 1)
