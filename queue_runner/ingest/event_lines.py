"""Reader of wire protocol v1: lines of MPSQ_EVENTS become events, and each field is checked (docs/protocol.md).

The job writes the file, so every line is hostile until parsed. A line that is not a protocol event is `Bad`. One that
claims to be the warden's is `Forged`. One that this version does not know is kept as `Unknown`. No input raises
anything but `ProtocolVersionError`.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable
from json.decoder import JSONDecoder
from typing import Any, NoReturn, TypeVar

from msgspec import Struct, ValidationError, structs

from queue_runner.decoding import convert
from queue_runner.errors import MpsqError
from queue_runner.events import (
    FIELD_DROPPED,
    PROTOCOL,
    Bad,
    Bye,
    Count,
    Counts,
    Eval,
    Event,
    Forged,
    Hello,
    Iter,
    Metric,
    Note,
    Phase,
    Seconds,
    Unknown,
)

E = TypeVar("E", bound=Struct)

_HEAD_BYTES = 40
"""A line tells its type within its first bytes, as Reporter writes it."""
MAX_LINE_BYTES = 65_536
"""The protocol's limit, without the newline; a longer line is bad."""


MAX_DEPTH = 32
"""Nesting allowed in values stored unchanged: far below the recursion limit of any later writer."""
NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
"""Words for the numbers that JSON lacks."""


class BadLine(Exception):
    """The line is not valid; the message gives the reason."""


class ProtocolVersionError(MpsqError):
    """The job speaks another major version of the protocol than this mpsq."""


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


def _no_constant(token: str) -> NoReturn:
    raise BadLine(f"{token} is not JSON")


def _float(text: str) -> float | str:
    """Return a number; one beyond the range of a double stays text, which no field of a number accepts."""
    number = float(text)
    return number if math.isfinite(number) else text


_scan: Callable[[str, int], tuple[Any, int]] = JSONDecoder(  # type: ignore[attr-defined]
    parse_constant=_no_constant, parse_float=_float
).scan_once
_fields = functools.cache(structs.fields)


def _event(kind: type[E], line: dict[str, Any], dropped: list[str]) -> E:
    """Return the event of a line. A wrong field that the event can do without is left out, and named in `dropped`.

    Raises: ValidationError for a field that is needed.
    """
    try:
        return convert(line, kind)
    except ValidationError:
        for field in _fields(kind):
            if field.name in line and (reason := _wrong(field.name, line[field.name], field.type)):
                if field.required or field.name == "phase":  # its default would be another phase than the one given
                    raise BadLine(reason) from None
                if line.pop(field.name) is not None:
                    dropped.append(reason)
    return convert(line, kind)


def _wrong(name: str, value: Any, kind: Any) -> str:
    """Return why a field is wrong, empty if it is right."""
    try:
        convert(value, kind)
    except ValidationError as error:
        return f"{name}: {str(error).split(' - at ')[0].replace('Expected', 'expected').replace('`', '')}"
    return ""


def _drop_unstorable(line: dict[str, Any], dropped: list[str]) -> None:
    for key, value in list(line.items()):
        try:
            storable({key: value})
        except BadLine as error:
            dropped.append(f"{key!a}: {error}")
            del line[key]


def _finite_or_word(value: Any) -> Any:
    """Return a value with the numbers that JSON lacks in the place of their words."""
    return NOT_FINITE.get(value, value) if type(value) is str else value


def _iter(line: dict[str, Any], dropped: list[str]) -> Iter:
    if type(line.get("loss")) is str:
        line["loss"] = _finite_or_word(line["loss"])
    return _event(Iter, line, dropped)


def _hello(line: dict[str, Any], dropped: list[str]) -> Hello:
    if (version := convert(line.get("v"), Count)) != PROTOCOL:
        raise ProtocolVersionError(
            f"the job uses version {version} of the wire protocol; this mpsq reads version {PROTOCOL}",
            "use the mpsq_report.py that came with this mpsq, or upgrade mpsq",
        )
    line["extra"] = {key: value for key, value in line.items() if key not in _HELLO_KEYS}
    return _event(Hello, line, dropped)


_HELLO_KEYS = {"type", *Hello.__struct_fields__} - {"extra"}


def _eval(line: dict[str, Any], dropped: list[str]) -> Eval:
    given = convert(line.get("metrics"), dict[str, Any])
    metrics = {name: _finite_or_word(value) for name, value in given.items()}
    wrong = {name: reason for name, value in metrics.items() if (reason := _wrong(name, value, float))}
    if wrong and len(wrong) == len(metrics):
        raise BadLine("no metric is a number")
    dropped += wrong.values()
    line["metrics"] = {name: value for name, value in metrics.items() if name not in wrong}
    return _event(Eval, {"split": "val", **line}, dropped)


def _metric(line: dict[str, Any], dropped: list[str]) -> Metric:
    return _event(Metric, {**line, "value": _finite_or_word(line.get("value"))}, dropped)


def _note(line: dict[str, Any], dropped: list[str]) -> Note:
    extra = {key: value for key, value in line.items() if key not in ("type", "offset", "t", "kind", "text")}
    return _event(Note, {**line, "extra": extra}, dropped)


_READERS: dict[str, Callable[[dict[str, Any], list[str]], Event]] = {
    "iter": _iter,
    "hello": _hello,
    "phase": functools.partial(_event, Phase),
    "eval": _eval,
    "metric": _metric,
    "note": _note,
    "bye": functools.partial(_event, Bye),
}


def parse_line(data: bytes, offset: int = 0, dropped: list[str] | None = None) -> Event | Bad | Forged:
    """Read one line, given without its newline. `offset` is that of its first byte in the file. To `dropped` is added
    why a field was left out that the line can do without.

    Raises: ProtocolVersionError for a hello of another major version; nothing else.
    """
    if len(data) > MAX_LINE_BYTES:
        return Bad(offset, f"longer than {MAX_LINE_BYTES} bytes")
    try:
        text = data.decode()
        line, end = _scan(text, 0)
        if end != len(text) and text[end:].strip(" \t\r"):
            return Bad(offset, "more than one JSON value")
        if type(line) is not dict:
            return Bad(offset, "not an object")
        kind = line.get("type")
        if kind == "exit":
            return Forged(offset)
        if type(kind) is not str:
            return Bad(offset, "no type")
        if line.get("t") is None:
            return Bad(offset, "no t")
        reader = _READERS.get(kind)
        if reader is None:
            storable(line)
            return Unknown(offset, convert(line["t"], Seconds), kind, text)
        dropped = [] if dropped is None else dropped
        if kind != "iter":  # an iteration holds no text and nothing nested
            _drop_unstorable(line, dropped)
        line["offset"] = offset
        return reader(line, dropped)
    except (BadLine, ValidationError) as error:
        return Bad(offset, str(error))
    except (StopIteration, json.JSONDecodeError):
        return Bad(offset, "not JSON")
    except UnicodeDecodeError:
        return Bad(offset, "not UTF-8")
    except RecursionError:
        return Bad(offset, "nested too deeply")
    except ValueError:  # an integer with more digits than Python converts
        return Bad(offset, "an integer with too many digits")


def _dropped_note(event: Event, dropped: list[str], noted: set[str]) -> list[Event]:
    """Return a note of the fields of this event that were left out, unless it is in `noted` already. Its offset is
    within the line, since the event may have a note at its own."""
    text = f"{type(event).__name__.lower()}: {'; '.join(dropped)}"
    if text in noted:
        return []
    noted.add(text)
    return [Note(event.offset + 1, event.t, FIELD_DROPPED, text)]


def read_chunk(data: bytes, base_offset: int = 0) -> tuple[list[Event], int, Counts]:
    """Read the complete lines of `data`, whose first byte is at `base_offset` in the file.

    Returns the events, the number of bytes consumed (whole lines; pass the remainder again with the bytes appended to
    it) and the counts. Of an unfinished line beyond the limit all but the last MAX_LINE_BYTES + 1 bytes are consumed:
    it blocks no reader, and the remainder is still too long to be taken for a line. An event of which a field was left
    out is followed by a note, once for each reason.

    Raises: ProtocolVersionError, see parse_line.
    """
    events: list[Event] = []
    dropped: list[str] = []
    noted: set[str] = set()
    bad = forged = unknown = 0
    start = 0
    lines = data.split(b"\n")
    remainder = lines.pop()
    for line in lines:
        if line and not line.isspace():
            event = parse_line(line, base_offset + start, dropped)
            if type(event) is Bad:
                bad += 1
                if b'"iter"' in line[:_HEAD_BYTES]:
                    events += _dropped_note(Iter(event.offset, None, 0, 0.0), [event.why], noted)
            elif type(event) is Forged:
                forged += 1
            else:
                unknown += type(event) is Unknown
                events.append(event)  # type: ignore[arg-type]
            if dropped:
                if type(event) is not Bad:
                    events += _dropped_note(event, dropped, noted)  # type: ignore[arg-type]
                dropped = []
        start += len(line) + 1
    return events, start + max(0, len(remainder) - MAX_LINE_BYTES - 1), Counts(bad, forged, unknown)
