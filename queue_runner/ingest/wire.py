"""Reader of wire protocol v1: lines of MPSQ_EVENTS become events. docs/protocol.md specifies it for both sides.

The job writes the file, so every line is hostile until parsed: a line that is not a protocol event is `Bad`, one
that claims to be the warden's is `Forged`, one that this version does not know is kept as `Unknown`. No input raises
anything but `ProtocolVersionError`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from json.decoder import JSONDecoder
from typing import Any, NoReturn, TypeVar

from queue_runner.errors import MpsqError
from queue_runner.events import (
    FIELD_DROPPED,
    PROTOCOL,
    Bad,
    Bye,
    Counts,
    Eval,
    Event,
    Forged,
    Hello,
    Iter,
    Metric,
    Note,
    Phase,
    Unknown,
)
from queue_runner.ingest import fields
from queue_runner.model import PHASES

T = TypeVar("T")

MAX_LINE_BYTES = 65_536
"""The protocol's limit, without the newline; a longer line is bad."""
ITER_PHASES = frozenset({"compile", "warmup", "measure", "eval_iter"})
RUN_PHASES = frozenset(PHASES[:6])


class ProtocolVersionError(MpsqError):
    """The job speaks another major version of the protocol than this mpsq."""


def _no_constant(token: str) -> NoReturn:
    raise fields.BadLine(f"{token} is not JSON")


_scan: Callable[[str, int], tuple[Any, int]] = JSONDecoder(parse_constant=_no_constant).scan_once  # type: ignore[attr-defined]
_HELLO_FIELDS: dict[str, Callable[[Any, str], Any]] = {
    "workload": fields.text,
    "framework": fields.text,
    "versions": fields.texts,
    "device": fields.text,
    "device_name": fields.text,
    "dtype": fields.text,
    "params": fields.count,
    "flops_per_iter": fields.positive,
    "tokens_per_iter": fields.positive,
    "samples_per_iter": fields.positive,
    "optimizer": fields.text,
    "seed": fields.integer,
    "compile": fields.flag,
    "compile_cache": fields.text,
    "planned_iters": fields.count,
    "config": fields.text,
    "data": fields.mapping,
}


def _optional(said: dict[str, Any], key: str, check: Callable[[Any, str], T], dropped: list[str]) -> T | None:
    """Return a field that its line can do without; None, and the reason in `dropped`, if it is wrong."""
    try:
        return None if said.get(key) is None else check(said[key], key)
    except fields.BadLine as bad:
        dropped.append(str(bad))
        return None


def _iter(offset: int, t: float, said: dict[str, Any], dropped: list[str]) -> Iter:
    get = said.get
    i, dur_s, loss, phase, synced = get("i"), get("dur_s"), get("loss"), get("phase", "measure"), get("synced")
    allocated, reserved = get("allocated_bytes"), get("reserved_bytes")
    if type(i) is not int or not 0 <= i <= fields.MAX_INT:
        raise fields.BadLine("i is not a count")
    if type(dur_s) is not float or not 0 <= dur_s <= fields.MAX_S:
        dur_s = fields.seconds(dur_s, "dur_s")
    if loss is not None and not (type(loss) is float and math.isfinite(loss)):
        loss = _optional(said, "loss", fields.real, dropped)
    if synced is not None:
        synced = _optional(said, "synced", fields.flag, dropped)
    if type(phase) is not str or phase not in ITER_PHASES:
        raise fields.BadLine("phase is not a phase of an iteration")
    if allocated is not None:
        allocated = _optional(said, "allocated_bytes", fields.count, dropped)
    if reserved is not None:
        reserved = _optional(said, "reserved_bytes", fields.count, dropped)
    return Iter(offset, t, i, dur_s, loss, synced, phase, allocated, reserved)


def _hello(offset: int, t: float, said: dict[str, Any], dropped: list[str]) -> Hello:
    version = fields.count(said.get("v"), "v")
    if version != PROTOCOL:
        raise ProtocolVersionError(
            f"the job uses version {version} of the wire protocol; this mpsq reads version {PROTOCOL}",
            "use the mpsq_report.py that came with this mpsq, or upgrade mpsq",
        )
    said = {key: value for key, value in said.items() if _is_storable(key, value, dropped)}
    found = {key: _optional(said, key, check, dropped) for key, check in _HELLO_FIELDS.items()}
    named: dict[str, Any] = {key: value for key, value in found.items() if value is not None}
    extra = {key: value for key, value in said.items() if key not in _HELLO_FIELDS and key not in ("type", "t", "v")}
    return Hello(offset, t, version, **named, extra=extra)


def _is_storable(key: str, value: Any, dropped: list[str]) -> bool:
    try:
        fields.storable(key)
    except fields.BadLine as bad:
        dropped.append(f"a name is left out: {bad}")
        return False
    try:
        fields.storable({key: value})
    except fields.BadLine as bad:
        dropped.append(f"{key} cannot be stored: {bad}")
        return False
    return True


def _phase(offset: int, t: float, said: dict[str, Any], dropped: list[str]) -> Phase:
    name, edge = fields.text(said.get("name"), "name"), fields.text(said.get("edge"), "edge")
    if name not in RUN_PHASES or edge not in ("begin", "end"):
        raise fields.BadLine("no such phase or edge")
    cpu_s = None if said.get("cpu_s") is None else fields.seconds(said["cpu_s"], "cpu_s")
    return Phase(offset, t, name, edge, cpu_s)


def _eval(offset: int, t: float, said: dict[str, Any], dropped: list[str]) -> Eval:
    told = fields.mapping(said.get("metrics"), "metrics")
    dropped += [f"{name} is not a number" for name, value in told.items() if value is None]
    metrics = {name: value for name in told if (value := _optional(told, name, fields.real, dropped)) is not None}
    if told and not metrics:
        raise fields.BadLine("no metric is a number")
    dur_s = _optional(said, "dur_s", fields.seconds, dropped)
    return Eval(
        offset, t, fields.count(said.get("i"), "i"), fields.text(said.get("split", "val"), "split"), metrics, dur_s
    )


def _metric(offset: int, t: float, said: dict[str, Any], dropped: list[str]) -> Metric:
    i, unit = _optional(said, "i", fields.count, dropped), _optional(said, "unit", fields.text, dropped) or ""
    return Metric(offset, t, fields.text(said.get("name"), "name"), fields.real(said.get("value"), "value"), unit, i)


def _note(offset: int, t: float, said: dict[str, Any], dropped: list[str]) -> Note:
    extra = {key: value for key, value in said.items() if key not in ("type", "t", "kind", "text")}
    return Note(offset, t, fields.text(said.get("kind"), "kind"), fields.text(said.get("text", ""), "text"), extra)


def _bye(offset: int, t: float, said: dict[str, Any], dropped: list[str]) -> Bye:
    return Bye(offset, t, fields.flag(said.get("ok"), "ok"))


_READERS: dict[str, Callable[[int, float, dict[str, Any], list[str]], Event]] = {
    "iter": _iter,
    "hello": _hello,
    "phase": _phase,
    "eval": _eval,
    "metric": _metric,
    "note": _note,
    "bye": _bye,
}


def parse_line(line: bytes, offset: int = 0, dropped: list[str] | None = None) -> Event | Bad | Forged:
    """Read one line, given without its newline. `offset` is that of its first byte in the file. To `dropped` is added
    why a field was left out that the line can do without.

    Raises: ProtocolVersionError for a hello of another major version; nothing else.
    """
    if len(line) > MAX_LINE_BYTES:
        return Bad(offset, f"longer than {MAX_LINE_BYTES} bytes")
    try:
        text = line.decode()
        said, end = _scan(text, 0)
        if end != len(text) and text[end:].strip(" \t\r"):
            return Bad(offset, "more than one JSON value")
        if type(said) is not dict:
            return Bad(offset, "not an object")
        kind, t = said.get("type"), said.get("t")
        if kind == "exit":
            return Forged(offset)
        if type(kind) is not str:
            return Bad(offset, "no type")
        if type(t) is not float or not 0 <= t <= fields.MAX_S:
            t = fields.seconds(t, "t")
        if kind not in ("iter", "hello"):  # an iteration holds no text and nothing nested; a hello is checked by field
            fields.storable(said)
        reader = _READERS.get(kind)
        return reader(offset, t, said, [] if dropped is None else dropped) if reader else Unknown(offset, t, kind, text)
    except fields.BadLine as bad:
        return Bad(offset, str(bad))
    except (StopIteration, json.JSONDecodeError):
        return Bad(offset, "not JSON")
    except UnicodeDecodeError:
        return Bad(offset, "not UTF-8")
    except RecursionError:
        return Bad(offset, "nested too deeply")
    except ValueError:  # an integer with more digits than Python converts
        return Bad(offset, "an integer with too many digits")


def _tell(event: Event, dropped: list[str], told: set[str]) -> list[Event]:
    """Return a note of the fields of this event that were left out, unless it is in `told` already."""
    text = f"{type(event).__name__.lower()}: {'; '.join(dropped)}"
    if text in told:
        return []
    told.add(text)
    return [Note(event.offset, event.t, FIELD_DROPPED, text)]


def read_chunk(data: bytes, base_offset: int = 0) -> tuple[list[Event], int, Counts]:
    """Read the complete lines of `data`, whose first byte is at `base_offset` in the file.

    Returns the events, the number of bytes consumed (whole lines; pass the remainder again with the bytes appended to
    it) and the counts. Of an unfinished line beyond the limit all but the last MAX_LINE_BYTES + 1 bytes are consumed:
    it blocks no reader, and its remainder is still too long to be taken for a line. Each event of which a field was
    left out is followed by a note, once for each reason.

    Raises: ProtocolVersionError, see parse_line.
    """
    events: list[Event] = []
    dropped: list[str] = []
    told: set[str] = set()
    bad = forged = unknown = 0
    start = 0
    lines = data.split(b"\n")
    rest = lines.pop()
    for line in lines:
        if line and not line.isspace():
            event = parse_line(line, base_offset + start, dropped)
            if type(event) is Bad:
                bad += 1
            elif type(event) is Forged:
                forged += 1
            else:
                unknown += type(event) is Unknown
                events.append(event)  # type: ignore[arg-type]
            if dropped:
                if type(event) is not Bad:
                    events += _tell(event, dropped, told)  # type: ignore[arg-type]
                dropped = []
        start += len(line) + 1
    return events, start + max(0, len(rest) - MAX_LINE_BYTES - 1), Counts(bad, forged, unknown)
