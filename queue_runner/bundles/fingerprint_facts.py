"""The fingerprints of machine and software as a bundle has them: facts, of which those that reports read have a type.

A field that this mpsq does not know may be of a newer one: it is taken if it is a fact, or facts by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from queue_runner.bundles.parts import Check, number, whole, word
from queue_runner.events import MAX_INT
from queue_runner.ingest.storable import BadLine

_MOST = 1000
"""Facts of one field: packages, variables, GPUs."""
_NAME, _COUNT = word(), whole(0, 1 << 30)


def _fact(value: Any, key: str) -> None:
    """Check a fact: a name, a number, true or false."""
    if type(value) is str:
        _NAME(value, key)
    elif type(value) not in (int, float, bool) or abs(value) > MAX_INT:
        raise BadLine(f"{key} of a fingerprint is not a name or number")


def _facts(value: Any, key: str) -> None:
    if type(value) is not dict or len(value) > _MOST:
        raise BadLine(f"{key} of a fingerprint is not an object of at most {_MOST} values")
    for name, item in value.items():
        _NAME(name, key)
        if item is not None:
            _fact(item, key)


def _any(value: Any, key: str) -> None:
    if type(value) is dict:
        _facts(value, key)
    else:
        _fact(value, key)


def _gpus(value: Any, key: str) -> None:
    if type(value) is not list or len(value) > _MOST:
        raise BadLine(f"{key} of a fingerprint is not a list of at most {_MOST} items")
    for item in value:
        _any(item, key)
        if type(item) is dict and item.get("cores") is not None:
            _COUNT(item["cores"], key)


_KNOWN: Mapping[str, Mapping[str, Check]] = {
    "machine": {
        **dict.fromkeys(("arch", "cpu", "id", "model", "system"), _NAME),
        **dict.fromkeys(("cores_logical", "cores_physical", "memory_gib"), _COUNT),
        "cpu_quota": number(0, 1e6),
        "cores_by_tier": _facts,
        "gpus": _gpus,
    },
    "software": {
        **dict.fromkeys(("versions", "packages", "system", "env"), _facts),
        **dict.fromkeys(("code", "python"), _NAME),
    },
}


def check(kind: str, data: Mapping[str, Any]) -> None:
    """Check a fingerprint; `kind` is "machine" or "software". Raises: BadLine for what no fingerprint has."""
    for name, value in data.items():
        _NAME(name, kind)
        if value is not None:
            field: Check = _KNOWN[kind].get(name, _any)
            field(value, name)
