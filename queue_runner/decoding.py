"""Values of JSON as checked records. Every one is made here: msgspec 0.22 crashes the process where two threads use a
kind of record for the first time at once.
"""

from __future__ import annotations

import threading
from typing import Any, TypeVar, overload

import msgspec

T = TypeVar("T")

_lock = threading.Lock()
_prepared: set[object] = set()


@overload
def prepared(kind: type[T]) -> type[T]: ...
@overload
def prepared(kind: Any) -> Any: ...
def prepared(kind: Any) -> Any:
    """Return the kind, once msgspec has looked at it and all that it contains, in one thread at a time."""
    if kind not in _prepared:
        with _lock:
            msgspec.msgpack.Decoder(kind)
            _prepared.add(kind)
    return kind


@overload
def convert(value: object, kind: type[T]) -> T: ...
@overload
def convert(value: object, kind: Any) -> Any: ...
def convert(value: object, kind: Any) -> Any:
    """Return the value as one of this kind. Raises: msgspec.ValidationError."""
    return msgspec.convert(value, prepared(kind))


def from_json(text: str | bytes, kind: type[T]) -> T:
    """Return what a text of JSON holds, as one of this kind. Raises: msgspec.DecodeError."""
    return msgspec.json.decode(text, type=prepared(kind))
