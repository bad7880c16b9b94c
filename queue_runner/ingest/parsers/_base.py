"""What all log parsers share: cleaning a line, `time` output, and the signs of trouble that frameworks print."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from queue_runner.events import LogEvent, Note
from queue_runner.ingest.parsers._time import TimeOutput
from queue_runner.text import plain

_FALLBACK = re.compile(r"The operator '([^']{1,200})' is not currently supported on the MPS backend")
_OUT_OF_MEMORY = re.compile(r"(?:MPS backend|CUDA) out of memory[^\r\n]{0,200}")


def clean(line: str) -> str:
    """The line as a terminal would show it: no colours, no control characters but tabs."""
    if line.isprintable():
        return line
    return plain(line)


class LogParser:
    """A parser of one log format. A format overrides `understand` and lists its own state in `KEPT`.

    Events have no time (`t` is None) and an `offset` of their own, inside the line where it yields several.
    """

    KEPT: ClassVar[tuple[str, ...]] = ()
    """Attributes, JSON values all, that the next line depends on."""

    def __init__(self, told: Mapping[str, object] | None = None) -> None:
        self._time = TimeOutput()

    def feed(self, line: str, offset: int = 0) -> list[LogEvent]:
        """The events of one line, given without its end; `offset` is that of its first byte in the file."""
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
        """The events that this format has in a cleaned line."""
        return []

    def state(self) -> dict[str, Any]:
        """Everything the next line depends on, fit for JSON."""
        return {"time": self._time.state(), **{name: getattr(self, name) for name in self.KEPT}}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """A parser that goes on where the one that gave this state was."""
        parser = cls()
        parser._time = TimeOutput.from_state(state["time"])
        for name in set(cls.KEPT) & state.keys():  # an older mpsq, which began the run, may have kept less
            setattr(parser, name, state[name])
        return parser
