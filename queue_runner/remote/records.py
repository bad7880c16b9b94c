"""The record of a run that comes from another machine, checked before it is stored: what a worker of mpsq writes, or
nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from queue_runner.model import Outcome, State
from queue_runner.run_dir import is_word
from queue_runner.text import one_line, plain

_TIMES = ("claimed_at", "started_at", "ended_at")
_LATEST = 1e11
"""Unix seconds of the year 5138, which every calendar of Python can show."""
_REASON_MOST = 2000
_DEPTH = 20


class _Bad(Exception):
    """A value that no worker writes."""


def checked(record: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the record of a run that is DONE, its texts without control characters; None for what is no such record.

    Its keys are those of store.blocks.result.
    """
    if record is None or record.get("state") != State.DONE:
        return None
    try:
        return _checked(_cleaned(record))
    except (_Bad, KeyError, TypeError):
        return None


def is_time(value: object) -> bool:
    """Return whether this is a time in Unix seconds that can be stored and shown."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _LATEST


def _checked(record: dict[str, Any]) -> dict[str, Any]:
    _need(record["outcome"] in set(Outcome))
    _need(record["exit_code"] is None or _is_count(record["exit_code"], 1 << 32))
    _need(record["signal"] is None or _is_count(record["signal"], 128))
    _need(all(record.get(name) is None or is_time(record[name]) for name in _TIMES))
    for name in ("reason", "boot_id"):
        _need(record.get(name) is None or isinstance(record[name], str))
    exit_ = record.get("exit")
    _need(exit_ is None or (isinstance(exit_, dict) and is_word(exit_)))
    _need(all(exit_ is None or exit_.get(name) is None or is_time(exit_[name]) for name in _TIMES))
    _need(all(isinstance(record.get(name, {}), dict) for name in ("machine", "system")))
    conditions, notes = record.get("conditions", []), record.get("notes", [])
    _need(isinstance(conditions, list) and isinstance(notes, list))
    _need(all(_is_pair(one) and is_time(one[0]) and isinstance(one[1], dict) for one in conditions))
    _need(all(_is_pair(one) and isinstance(one[0], str) and isinstance(one[1], str) for one in notes))
    reason = one_line(record["reason"] or "")[:_REASON_MOST]
    return {**record, "reason": reason or None, "notes": [[one_line(kind), one_line(text)] for kind, text in notes]}


def _cleaned(value: Any, depth: int = 0) -> Any:
    """Return the value with `plain` texts. Raises: _Bad for a number that is none, or for too deep a value."""
    if depth > _DEPTH:
        raise _Bad
    if isinstance(value, dict):
        return {plain(key): _cleaned(one, depth + 1) for key, one in value.items()}
    if isinstance(value, list):
        return [_cleaned(one, depth + 1) for one in value]
    if isinstance(value, str):
        return plain(value).encode(errors="replace").decode()
    _need(not isinstance(value, int | float) or abs(value) < 1 << 63)  # nor NaN
    return value


def _is_count(value: object, below: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < below


def _is_pair(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2


def _need(good: bool) -> None:
    if not good:
        raise _Bad
