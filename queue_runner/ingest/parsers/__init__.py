"""Parsers of foreign logs: one file per format, and the folder is the registry.

A file holds NAME, HELP, SIGN (a pattern that tells its logs from others) and `Parser`, a `LogParser`. Files whose name
begins with an underscore are shared parts.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
from collections.abc import Mapping
from typing import Any, cast

from queue_runner.errors import UsageError, did_you_mean
from queue_runner.events import Counts, LogEvent
from queue_runner.ingest.parsers._base import LogParser

__all__ = ["DEFAULT", "LogParser", "LogReader", "find", "helps", "load", "names", "read_log", "sniff"]

DEFAULT = "plain"
MAX_LINE_BYTES = 65_536
"""A longer line is skipped and counted as bad: no log format here has one."""

_LINE_END = re.compile(rb"[\r\n]")


def names() -> list[str]:
    """The parsers there are."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))


def find(name: str) -> type[LogParser]:
    """The parser of that name. Raises: UsageError when there is none."""
    return cast(type[LogParser], _module(name).Parser)


def helps() -> dict[str, str]:
    """What each parser reads, in a sentence."""
    return {name: _module(name).HELP for name in names()}


def load(name: str, told: Mapping[str, object] | None = None) -> LogReader:
    """A reader of a new log. `told` is what is known about the run besides (compile, device).

    Raises: UsageError when there is no such parser.
    """
    return LogReader(find(name), told)


def read_log(name: str, data: bytes, told: Mapping[str, object] | None = None) -> list[LogEvent]:
    """The events of a whole log that is at hand, whose last line counts as complete.

    Raises: UsageError when there is no such parser.
    """
    return load(name, told).read_chunk(data + b"\n", 0)[0]


def sniff(text: str) -> str:
    """The parser that knows most of the first lines of a log; DEFAULT when none knows any."""
    found = {name: len(_module(name).SIGN.findall(text[:200_000])) for name in names() if name != DEFAULT}
    best = max(found, key=lambda name: found[name], default=DEFAULT)
    return best if found.get(best) else DEFAULT


def _module(name: str) -> Any:
    if name not in (known := names()):
        raise UsageError(f'no parser "{name}"', did_you_mean(name, known, f"the parsers are {', '.join(known)}"))
    return importlib.import_module(f"{__name__}.{name}")


class LogReader:
    """Reads a growing log in chunks; its state is text, to be stored with what it has read."""

    def __init__(self, parser: type[LogParser], told: Mapping[str, object] | None = None) -> None:
        self._class = parser
        self._parser = parser(told)

    def state(self) -> str:
        """Everything the next chunk depends on, as JSON."""
        return json.dumps(self._parser.state(), separators=(",", ":"))

    def restore(self, state: str) -> None:
        """Go on where the reader that gave this `state` was."""
        self._parser = self._class.from_state(json.loads(state))

    def read_chunk(
        self, data: bytes, base_offset: int = 0, *, final: bool = False
    ) -> tuple[list[LogEvent], int, Counts]:
        """Read the complete lines of `data`, whose first byte is at `base_offset` in the file.

        A carriage return ends a line as well: progress bars have no other end. With `final` a last line without an end
        is read too, unless it ends in a digit: then it may be cut in the middle of a number. Returns as wire.read_chunk
        does: events, bytes consumed, counts.
        """
        events: list[LogEvent] = []
        start = bad = 0
        for end in _LINE_END.finditer(data):
            line = data[start : end.start()]
            if len(line) > MAX_LINE_BYTES:
                bad += 1
            elif line:
                events += self._parser.feed(line.decode("utf-8", "replace"), base_offset + start)
            start = end.end()
        rest = data[start:]
        if len(rest) > MAX_LINE_BYTES:  # skipped but for its end, so that its rest is not taken for a line
            start += len(rest) - MAX_LINE_BYTES - 1
        elif final and rest and not rest[-1:].isdigit() and not rest.endswith((b".", b",")):
            events += self._parser.feed(rest.decode("utf-8", "replace"), base_offset + start)
            start = len(data)
        return events, start, Counts(bad=bad)
