"""The record of a run that comes from another machine, checked before it is stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, ValidationError, convert
from msgspec.structs import replace

from queue_runner.model import Ending, Outcome
from queue_runner.text import one_line, plain
from queue_runner.warden_records import RunEnd, Time

_REASON_MOST = 2000
_DEPTH = 20


class NodeRecord(Struct, frozen=True):
    """A run that is DONE, as its node recorded it: block_store.result."""

    state: Literal["DONE"]
    outcome: Outcome
    exit_code: Annotated[int, Meta(ge=0, lt=1 << 32)] | None
    signal: Annotated[int, Meta(ge=0, lt=128)] | None
    reason: str | None
    boot_id: str | None = None
    claimed_at: Time | None = None
    started_at: Time | None = None
    ended_at: Time | None = None
    exit: RunEnd | None = None
    machine: dict[str, Any] = {}
    system: dict[str, Any] = {}
    conditions: list[tuple[Time, dict[str, Any]]] = []
    notes: list[tuple[str, str]] = []

    @property
    def ending(self) -> Ending:
        return Ending(self.outcome, self.exit_code, self.signal, self.reason or "")


def checked(record: Mapping[str, Any] | None) -> NodeRecord | None:
    """Return the record of a run that is DONE, its texts without control characters; None if it is not valid."""
    try:
        node_record = convert(_cleaned(record), NodeRecord)
    except ValidationError:
        return None
    if node_record.exit is not None and not node_record.exit.says_how:
        return None
    reason = one_line(node_record.reason or "")[:_REASON_MOST]
    notes = [(one_line(kind), one_line(text)) for kind, text in node_record.notes]
    return replace(node_record, reason=reason or None, notes=notes)


def _cleaned(value: Any, depth: int = 0) -> Any:
    """Return the value with `plain` texts. Raises: ValidationError for too deep a value, or a number beyond 64 bits."""
    if depth > _DEPTH:
        raise ValidationError("nested too deeply")
    if isinstance(value, dict):
        return {plain(key): _cleaned(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list):
        return [_cleaned(item, depth + 1) for item in value]
    if isinstance(value, str):
        return plain(value).encode(errors="replace").decode()
    if isinstance(value, int | float) and not abs(value) < 1 << 63:  # nor NaN
        raise ValidationError("a number beyond 64 bits")
    return value
