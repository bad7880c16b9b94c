"""Reader of wire protocol v1: lines of MPSQ_EVENTS become events. docs/protocol.md specifies it for both sides.

The job writes the file, so every line is hostile until parsed: a line that is not a protocol event is `Bad`, one
that claims to be the warden's is `Forged`, one that this version does not know is kept as `Unknown`. No input raises
anything but `ProtocolVersionError`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from json.decoder import JSONDecoder
from typing import Any, NoReturn

from queue_runner.errors import MpsqError
from queue_runner.events import (
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


def _iter(offset: int, t: float, said: dict[str, Any]) -> Iter:
    get = said.get
    i, dur_s, loss, phase, synced = get("i"), get("dur_s"), get("loss"), get("phase", "measure"), get("synced", False)
    allocated, reserved = get("allocated_bytes"), get("reserved_bytes")
    if type(i) is not int or not 0 <= i <= fields.MAX_INT:
        raise fields.BadLine("i is not a count")
    if type(dur_s) is not float or not 0 <= dur_s <= fields.MAX_S:
        dur_s = fields.seconds(dur_s, "dur_s")
    if loss is not None:
        loss = fields.real(loss, "loss")
    if synced is not True and synced is not False:
        raise fields.BadLine("synced is not true or false")
    if type(phase) is not str or phase not in ITER_PHASES:
        raise fields.BadLine("phase is not a phase of an iteration")
    if allocated is not None:
        fields.count(allocated, "allocated_bytes")
    if reserved is not None:
        fields.count(reserved, "reserved_bytes")
    return Iter(offset, t, i, dur_s, loss, synced, phase, allocated, reserved)


def _hello(offset: int, t: float, said: dict[str, Any]) -> Hello:
    version = fields.count(said.get("v"), "v")
    if version != PROTOCOL:
        raise ProtocolVersionError(
            f"the job uses version {version} of the wire protocol; this mpsq reads version {PROTOCOL}",
            "use the mpsq_report.py that came with this mpsq, or upgrade mpsq",
        )
    named = {key: check(said[key], key) for key, check in _HELLO_FIELDS.items() if said.get(key) is not None}
    extra = {key: value for key, value in said.items() if key not in _HELLO_FIELDS and key not in ("type", "t", "v")}
    return Hello(offset, t, version, **named, extra=extra)


def _phase(offset: int, t: float, said: dict[str, Any]) -> Phase:
    name, edge = fields.text(said.get("name"), "name"), fields.text(said.get("edge"), "edge")
    if name not in RUN_PHASES or edge not in ("begin", "end"):
        raise fields.BadLine("no such phase or edge")
    return Phase(offset, t, name, edge)


def _eval(offset: int, t: float, said: dict[str, Any]) -> Eval:
    metrics = {name: fields.real(value, name) for name, value in fields.mapping(said.get("metrics"), "metrics").items()}
    dur_s = None if said.get("dur_s") is None else fields.seconds(said["dur_s"], "dur_s")
    return Eval(
        offset, t, fields.count(said.get("i"), "i"), fields.text(said.get("split", "val"), "split"), metrics, dur_s
    )


def _metric(offset: int, t: float, said: dict[str, Any]) -> Metric:
    i = None if said.get("i") is None else fields.count(said["i"], "i")
    unit = fields.text("" if said.get("unit") is None else said["unit"], "unit")
    return Metric(offset, t, fields.text(said.get("name"), "name"), fields.real(said.get("value"), "value"), unit, i)


def _note(offset: int, t: float, said: dict[str, Any]) -> Note:
    extra = {key: value for key, value in said.items() if key not in ("type", "t", "kind", "text")}
    return Note(offset, t, fields.text(said.get("kind"), "kind"), fields.text(said.get("text", ""), "text"), extra)


def _bye(offset: int, t: float, said: dict[str, Any]) -> Bye:
    return Bye(offset, t, fields.flag(said.get("ok"), "ok"))


_READERS: dict[str, Callable[[int, float, dict[str, Any]], Event]] = {
    "iter": _iter,
    "hello": _hello,
    "phase": _phase,
    "eval": _eval,
    "metric": _metric,
    "note": _note,
    "bye": _bye,
}


def parse_line(line: bytes, offset: int = 0) -> Event | Bad | Forged:
    """Read one line, given without its newline. `offset` is that of its first byte in the file.

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
        if kind != "iter":  # an iteration holds no text and nothing nested
            fields.storable(said)
        reader = _READERS.get(kind)
        return reader(offset, t, said) if reader else Unknown(offset, t, kind, text)
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


def read_chunk(data: bytes, base_offset: int = 0) -> tuple[list[Event], int, Counts]:
    """Read the complete lines of `data`, whose first byte is at `base_offset` in the file.

    Returns the events, the number of bytes consumed (whole lines; pass the remainder again with the bytes appended to
    it) and the counts. Of an unfinished line beyond the limit all but the last MAX_LINE_BYTES + 1 bytes are consumed:
    it blocks no reader, and its remainder is still too long to be taken for a line.

    Raises: ProtocolVersionError, see parse_line.
    """
    events: list[Event] = []
    bad = forged = unknown = 0
    start = 0
    lines = data.split(b"\n")
    rest = lines.pop()
    for line in lines:
        if line and not line.isspace():
            event = parse_line(line, base_offset + start)
            if type(event) is Bad:
                bad += 1
            elif type(event) is Forged:
                forged += 1
            else:
                unknown += type(event) is Unknown
                events.append(event)  # type: ignore[arg-type]
        start += len(line) + 1
    return events, start + max(0, len(rest) - MAX_LINE_BYTES - 1), Counts(bad, forged, unknown)
