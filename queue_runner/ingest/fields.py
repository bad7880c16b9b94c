"""Checks of the fields of a wire line. The job writes them, so they may hold anything.

Each takes a decoded JSON value and its key and returns the value in its own type, or raises BadLine with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

MAX_S = 1e9
"""Largest time or duration accepted, in seconds (31 years); a larger one is a wrong unit or forged."""
MAX_INT = 2**63 - 1
"""The largest integer that SQLite holds."""
MAX_DEPTH = 32
"""Nesting allowed in values stored unchanged: far below the recursion limit of any later writer."""

SPOKEN = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
"""Words for the numbers that JSON lacks."""


class BadLine(Exception):
    """The line is not an event; the message gives the reason."""


def real(value: Any, key: str) -> float:
    """Return a number; non-finite ones are given as a word of SPOKEN. Raises: BadLine."""
    if type(value) is float or type(value) is int:
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return number
    elif type(value) is str and value in SPOKEN:
        return SPOKEN[value]
    raise BadLine(f"{key} is not a number")


def seconds(value: Any, key: str) -> float:
    if (type(value) is float or type(value) is int) and 0 <= value <= MAX_S:
        return float(value)
    raise BadLine(f"{key} is not a duration")


def positive(value: Any, key: str) -> float:
    number = real(value, key)
    if 0 < number < math.inf:
        return number
    raise BadLine(f"{key} is not positive")


def count(value: Any, key: str) -> int:
    if type(value) is int and 0 <= value <= MAX_INT:
        return value
    raise BadLine(f"{key} is not a count")


def integer(value: Any, key: str) -> int:
    if type(value) is int and -MAX_INT <= value <= MAX_INT:
        return value
    raise BadLine(f"{key} is not a 64-bit integer")


def _of_type(kind: type[T], what: str) -> Callable[[Any, str], T]:
    def check(value: Any, key: str) -> T:
        if type(value) is kind:
            return value
        raise BadLine(f"{key} is not {what}")

    return check


text = _of_type(str, "text")
flag = _of_type(bool, "true or false")
mapping: Callable[[Any, str], dict[str, Any]] = _of_type(dict, "an object")


def texts(value: Any, key: str) -> dict[str, str]:
    if type(value) is dict and all(type(item) is str for item in value.values()):
        return value
    raise BadLine(f"{key} is not an object of texts")


def storable(value: Any, depth: int = 0) -> None:
    """Reject values that a database or JSON writer cannot hold.

    Raises: BadLine for lone surrogates, NUL, infinity by overflow or deep nesting.
    """
    if depth > MAX_DEPTH:
        raise BadLine("nested too deeply")
    if type(value) is str:
        if "\0" in value or (not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value)):
            raise BadLine("text holds NUL or half a surrogate pair")
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
