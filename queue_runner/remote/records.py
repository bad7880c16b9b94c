"""The records of runs that come back from another machine, checked before they are stored."""

from __future__ import annotations

import contextlib
from collections.abc import Container, Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, ValidationError, convert
from msgspec.structs import replace

from queue_runner.host.warden_records import RunEnd, Time
from queue_runner.model import Ending, Outcome
from queue_runner.remote.block import Folder
from queue_runner.remote.block_store import BlockRun
from queue_runner.remote.json_files import read_json
from queue_runner.text import one_line, plain

TAKEN = "taken: the scheduler asked the block to end"
"""Why a node has ended a block that had SIGTERM."""
_REASON_MOST = 2000
_DEPTH = 20


class Beginning(Struct, frozen=True):
    """When the node claimed a run and started it; None where that is not known."""

    at: Time | None = None
    started: Time | None = None
    boot_id: str | None = None


class NodeRecord(Struct, frozen=True):
    """A run that is DONE, as its node recorded it (block_store.result)."""

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
    taken: int = 0
    """Whether the scheduler had asked the block to end before: its answer says how the run ended, this does not."""

    @property
    def ending(self) -> Ending:
        return Ending(self.outcome, self.exit_code, self.signal, self.reason or "")


def beginning(folder: Folder, name: str) -> Beginning | None:
    """Return when the node began a run; None where nothing has come of it."""
    data = read_json(folder.run(name).path / "began.json")
    try:
        return None if data is None else convert(data, Beginning)
    except ValidationError:
        return Beginning()


def began(folder: Folder, among: Container[str] | None = None) -> list[str]:
    """Return the runs of which something has come (of those in `among`, if given), in the order of their starts."""
    begun = []
    with contextlib.suppress(OSError):
        for path in folder.runs.iterdir():
            if (among is None or path.name in among) and (times := beginning(folder, path.name)) is not None:
                begun.append((times.at or float("inf"), path.name))
    return [name for _, name in sorted(begun)]


def permitted(folder: Folder, rows: Sequence[BlockRun]) -> set[str]:
    """Return the runs that the node may have begun, of which nothing needs to have come; all if the folder is gone."""
    if not folder.path.exists():
        return {row.name for row in rows}
    return {str(name) for name in (read_json(folder.permitted) or {}).get("runs", ())}


def ended(folder: Folder, name: str) -> NodeRecord | None:
    """Return the checked record of a run's end. None before that, and for an invalid record: it is waited for as if it
    were late."""
    return checked(read_json(folder.run(name).path / "record.json"))


def is_bad(folder: Folder, name: str) -> bool:
    """Return whether there is a record of a run and it is not valid."""
    return (folder.run(name).path / "record.json").exists() and ended(folder, name) is None


def checked(record: Any) -> NodeRecord | None:
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
