"""Parsers of foreign logs: one file per format; the folder is the registry.

A file defines NAME, HELP, SIGN and `Parser`, a `LogParser`. SIGN is the regular expression by which `sniff` recognizes
the format: the parser with the most matches in the first 200,000 characters of a log is chosen.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from queue_runner.errors import UsageError, did_you_mean

if TYPE_CHECKING:  # `mpsq submit` needs the names only
    from queue_runner.events import Counts, LogEvent
    from queue_runner.ingest.log_parser import LogParser

DEFAULT = "plain"
MAX_LINE_BYTES = 65_536
"""Longest line parsed; longer ones occur in no format here and are skipped and counted as bad."""

_LINE_END = re.compile(rb"[\r\n]")


def names() -> list[str]:
    """Return the names of all parsers."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def find(name: str) -> type[LogParser]:
    """Return the parser of this name. Raises: UsageError when there is none."""
    return cast("type[LogParser]", _module(name).Parser)


def iterates(name: str) -> bool:
    """Return whether the format has iterations: a run without any has reported nothing then."""
    return bool(getattr(_module(name), "ITERATES", True))


def load(name: str, known: Mapping[str, object] | None = None) -> LogReader:
    """Return a reader for a new log. `known` holds what else is known about the run (compile, device).

    Raises: UsageError when there is no such parser.
    """
    return LogReader(find(name), known)


def read_log(name: str, data: bytes, known: Mapping[str, object] | None = None) -> list[LogEvent]:
    """Return the events of an entire log; its last line counts as complete.

    Raises: UsageError when there is no such parser.
    """
    return load(name, known).read_chunk(data + b"\n", 0)[0]


def sniff(text: str) -> str:
    """Return the name of the parser whose SIGN matches the start of a log most often; DEFAULT when none matches."""
    counts = {name: len(_module(name).SIGN.findall(text[:200_000])) for name in names() if name != DEFAULT}
    best = max(counts, key=lambda name: counts[name], default=DEFAULT)
    return best if counts.get(best) else DEFAULT


def _module(name: str) -> Any:
    if name not in (known := names()):
        raise UsageError(f'unknown parser "{name}"', did_you_mean(name, known, f"the parsers are {', '.join(known)}"))
    return importlib.import_module(f"{__name__}.{name}")


class LogReader:
    """A reader of a growing log in chunks; its state is text, stored together with the events."""

    def __init__(self, parser: type[LogParser], known: Mapping[str, object] | None = None) -> None:
        self._class = parser
        self._parser = parser(known)

    def state(self) -> str:
        """Return everything the next chunk depends on, as JSON."""
        return json.dumps(self._parser.state(), separators=(",", ":"))

    def restore(self, state: str) -> None:
        """Continue where the reader that returned this `state` stopped."""
        self._parser = self._class.from_state(json.loads(state))

    def read_chunk(
        self, data: bytes, base_offset: int = 0, *, final: bool = False
    ) -> tuple[list[LogEvent], int, Counts]:
        """Read the complete lines of `data`, whose first byte is at `base_offset` in the file.

        A carriage return also ends a line: progress bars write nothing else. With `final`, an unterminated last line is
        read too, unless it ends in a digit, where a number may be cut. Returns events, bytes consumed and counts, like
        wire.read_chunk.
        """
        from queue_runner.events import Counts

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
        if len(rest) > MAX_LINE_BYTES:  # skip all but its end, so that the rest is not taken for a line
            start += len(rest) - MAX_LINE_BYTES - 1
        elif final and rest and not rest[-1:].isdigit() and not rest.endswith((b".", b",")):
            events += self._parser.feed(rest.decode("utf-8", "replace"), base_offset + start)
            start = len(data)
        return events, start, Counts(bad=bad)
