"""Checks of single fields of a line of the wire, each of which is the job's to write and may hold anything.

Each takes a decoded JSON value and its key and returns it in its own type, or raises BadLine with the reason.
"""

from __future__ import annotations

import math
from typing import Any

MAX_S = 1e9
"""No time or duration reaches 31 years; one that does is a unit mistaken or a number forged."""
MAX_INT = 2**63 - 1
"""The largest integer that SQLite holds."""
MAX_DEPTH = 32
"""Nesting allowed in what is kept as it is: far below any recursion limit of a later writer."""

SPOKEN = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
"""The words for numbers that JSON does not have."""


class BadLine(Exception):
    """The line is no event; the text says why."""


def real(value: Any, key: str) -> float:
    """A number, or the word for one that is not finite."""
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


def text(value: Any, key: str) -> str:
    if type(value) is str:
        return value
    raise BadLine(f"{key} is not text")


def flag(value: Any, key: str) -> bool:
    if type(value) is bool:
        return value
    raise BadLine(f"{key} is not true or false")


def texts(value: Any, key: str) -> dict[str, str]:
    if type(value) is dict and all(type(item) is str for item in value.values()):
        return value
    raise BadLine(f"{key} is not an object of texts")


def mapping(value: Any, key: str) -> dict[str, Any]:
    if type(value) is dict:
        return value
    raise BadLine(f"{key} is not an object")


def storable(value: Any, depth: int = 0) -> None:
    """Refuse what a database or a JSON writer cannot hold: lone surrogates, NUL, infinity by overflow, deep nesting."""
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
