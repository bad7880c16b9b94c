"""Parsers of foreign logs: one file per format; the folder is the registry.

A file defines NAME, HELP, SIGN and `Parser`, a `LogParser`. SIGN is the regular expression by which `sniff` recognizes
the format: the parser with the most matches in the first 200,000 characters of a log is chosen.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from queue_runner.errors import UsageError, did_you_mean

if TYPE_CHECKING:  # `mpsq submit` needs the names only
    from queue_runner.events import LogEvent
    from queue_runner.ingest.log_parser import LogParser

DEFAULT = "plain"
REMOVED = "sample"
"""A parser of earlier versions, without iterations: jobs that name it are read as by DEFAULT."""


def names() -> list[str]:
    """Return the names of all parsers."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def find(name: str) -> type[LogParser]:
    """Return the parser of this name. Raises: UsageError when there is none."""
    return cast("type[LogParser]", _module(name).Parser)


def load(name: str, known: Mapping[str, object] | None = None) -> LogParser:
    """Return a parser for a new log. `known` holds what else is known about the run (compile, device).

    Raises: UsageError when there is no such parser.
    """
    return find(DEFAULT if name == REMOVED else name)(known)


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
