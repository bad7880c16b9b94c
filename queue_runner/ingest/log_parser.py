"""Shared code of all log parsers: line cleaning, `time` output, and the trouble signs that frameworks print."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import ClassVar, Self

import msgspec
from msgspec import Struct

from queue_runner.decoding import convert
from queue_runner.events import Counts, LogEvent, Note
from queue_runner.ingest.time_output import TimeOutput
from queue_runner.machine_records import known_fields
from queue_runner.text import plain
from queue_runner.units import BOOLEANS

NUMBER = r"[-+]?(?:\d{1,15}(?:\.\d{0,15})?(?:e[-+]?\d{1,3})?|nan|inf)"
MAX_LINE_BYTES = 65_536
"""Longest line parsed; longer ones occur in no format here and are skipped and counted as bad."""
_LINE_END = re.compile(rb"[\r\n]")
DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
"""Names of dtypes in nanoGPT's settings."""
_FALLBACK = re.compile(r"The operator '([^']{1,200})' is not currently supported on the MPS backend")
_OUT_OF_MEMORY = re.compile(r"(?:(?:MPS backend|CUDA) out of memory|Invalid buffer size: \d)[^\r\n]{0,200}")


class LogHeader(Struct, omit_defaults=True):
    """The fields of its run that a log has reported so far. None is unknown."""

    compile: bool | None = None
    device: str | None = None
    dtype: str | None = None

    @classmethod
    def of_run(cls, known: Mapping[str, object] | None) -> Self:
        """Return a log's header at first: facts about the run that are known without it."""
        known = known or {}
        compiles = BOOLEANS.get(str(known["compile"]).lower(), False) if "compile" in known else None
        return cls(compile=compiles, device=device if isinstance(device := known.get("device"), str) else None)


class LogParser:
    """A parser of one log format. Subclasses override `understand` and list their state in `KEPT`.

    Events have no time (`t` is None) and each has its own `offset`, within the line if the line yields several.
    """

    KEPT: ClassVar[tuple[str, ...]] = ()
    """Names of the attributes, JSON values or a LogHeader, that the next line depends on."""

    def __init__(self, known: Mapping[str, object] | None = None) -> None:
        self._time = TimeOutput()

    def feed(self, line: str, offset: int = 0) -> list[LogEvent]:
        """Return the events of a line, given without its terminator; `offset` is that of its first byte in the file."""
        text = plain(line)
        events = self.understand(text, offset)
        if (rusage := self._time.feed(text, offset)) is not None:
            events.append(rusage)
        if match := _FALLBACK.search(text):
            events.append(Note(offset + match.start(), None, "op_fallback", f"{match[1]} ran on the CPU"))
        elif match := _OUT_OF_MEMORY.search(text):
            events.append(Note(offset + match.start(), None, "oom", match[0]))
        return events

    def understand(self, text: str, offset: int) -> list[LogEvent]:
        """Return the events of this format in a cleaned line."""
        return []

    def state(self) -> str:
        """Return everything the next line depends on, as JSON."""
        state = {"time": self._time, **{name: getattr(self, name) for name in self.KEPT}}
        return msgspec.json.encode(state).decode()

    def restore(self, state: str) -> None:
        """Continue where the parser that returned this state stopped."""
        fields = json.loads(state)
        self._time = convert(fields["time"], TimeOutput)
        for name in set(self.KEPT) & fields.keys():  # an older mpsq that began the run may have stored fewer
            kind = type(getattr(self, name))
            setattr(self, name, known_fields(fields[name], kind) if issubclass(kind, Struct) else fields[name])

    def read_chunk(
        self, data: bytes, base_offset: int = 0, *, final: bool = False
    ) -> tuple[list[LogEvent], int, Counts]:
        """Read the complete lines of `data`, whose first byte is at `base_offset` in the file.

        A carriage return also ends a line: progress bars write nothing else. With `final`, an unterminated last line is
        read too, unless it ends in a digit, where a number may be cut. Returns events, bytes consumed and counts, like
        event_lines.read_chunk.
        """
        events: list[LogEvent] = []
        start = bad = 0
        for end in _LINE_END.finditer(data):
            line = data[start : end.start()]
            if len(line) > MAX_LINE_BYTES:
                bad += 1
            elif line:
                events += self.feed(line.decode("utf-8", "replace"), base_offset + start)
            start = end.end()
        rest = data[start:]
        if len(rest) > MAX_LINE_BYTES:  # skip all but its end, so that the rest is not taken for a line
            start += len(rest) - MAX_LINE_BYTES - 1
        elif final and rest and not rest[-1:].isdigit() and not rest.endswith((b".", b",")):
            events += self.feed(rest.decode("utf-8", "replace"), base_offset + start)
            start = len(data)
        return events, start, Counts(bad=bad)
