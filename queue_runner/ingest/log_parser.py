"""Shared code of all log parsers: line cleaning, `time` output, and the trouble signs that frameworks print."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from queue_runner.events import LogEvent, Note
from queue_runner.ingest.time_output import TimeOutput
from queue_runner.text import plain
from queue_runner.units import BOOLEANS

NUMBER = r"[-+]?(?:\d{1,15}(?:\.\d{0,15})?(?:e[-+]?\d{1,3})?|nan|inf)"
DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
"""Names of dtypes in nanoGPT's settings."""
_FALLBACK = re.compile(r"The operator '([^']{1,200})' is not currently supported on the MPS backend")
_OUT_OF_MEMORY = re.compile(r"(?:(?:MPS backend|CUDA) out of memory|Invalid buffer size: \d)[^\r\n]{0,200}")


def clean(line: str) -> str:
    """Return the line as a terminal shows it: without colours and control characters other than tabs."""
    if line.isprintable():
        return line
    return plain(line)


def whole(value: object) -> int | None:
    """Return the number that a setting of a log's header holds; None for an expression or anything else."""
    text = str(value)
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 16 else None


def compile_and_device(known: Mapping[str, object] | None) -> dict[str, Any]:
    """Return a log's header at first: facts about the run that are known without it, `compile` as a boolean."""
    header: dict[str, Any] = {k: v for k, v in (known or {}).items() if k in ("compile", "device")}
    if "compile" in header:
        header["compile"] = BOOLEANS.get(str(header["compile"]).lower(), False)
    return header


class LogParser:
    """A parser of one log format. Subclasses override `understand` and list their state in `KEPT`.

    Events have no time (`t` is None) and each has its own `offset`, within the line if the line yields several.
    """

    KEPT: ClassVar[tuple[str, ...]] = ()
    """Names of the attributes, all JSON values, that the next line depends on."""

    def __init__(self, known: Mapping[str, object] | None = None) -> None:
        self._time = TimeOutput()

    def feed(self, line: str, offset: int = 0) -> list[LogEvent]:
        """Return the events of a line, given without its terminator; `offset` is that of its first byte in the file."""
        text = clean(line)
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

    def state(self) -> dict[str, Any]:
        """Return everything the next line depends on, as JSON values."""
        return {"time": self._time.state(), **{name: getattr(self, name) for name in self.KEPT}}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Return a parser that continues where the one that returned this state stopped."""
        parser = cls()
        parser._time = TimeOutput.from_state(state["time"])
        for name in set(cls.KEPT) & state.keys():  # an older mpsq that began the run may have stored fewer
            setattr(parser, name, state[name])
        return parser
