"""How a log ends: a traceback, a lack of memory, a signal or an exit status say that the program did not succeed."""

from __future__ import annotations

import re
from collections.abc import Sequence

from queue_runner.events import Eval, Iter, LogEvent, Metric, Note
from queue_runner.ingest.time_output import TimeOutput
from queue_runner.model import Ending, Outcome
from queue_runner.text import plain

MAX_TAIL_BYTES = 1 << 20
"""Bytes at the end of a log in which its last words are sought."""
MAX_REASON_CHARS = 300

NO_MEMORY = re.compile(
    r"(?:[A-Za-z_][\w.]*\.)?(?:OutOfMemoryError|MemoryError)\b"
    r"|[A-Za-z_][\w.]*Error: .*(?:(?:CUDA|MPS backend) out of memory|Invalid buffer size: \d"
    r"|RESOURCE_EXHAUSTED: Out of memory|DefaultCPUAllocator: (?:can't allocate|not enough) memory"
    r"|malloc\] (?:Unable|Attempting) to allocate"
    r"|Insufficient Memory \(\w+:kIOGPUCommandBuffer)"
)
"""The last line of a traceback of torch, jax, mlx or Python itself when memory runs out."""

NO_SPACE = re.compile(
    r"(?i)(?:^|[:\]] )(?:no space left on device|disk quota exceeded|database or disk is full)(?:$|[^\w'\"])"
)
"""How a program reports that the disk is full, or the user's part of it: strerror(3), and SQLite's own words."""

_TRACEBACK = re.compile(r"\s*(?:\[\w+\d+\]:\s*)?Traceback \(most recent call last\):")
_IGNORED = re.compile(r"Exception ignored |--- Logging error ---")
"""Before a traceback of what Python reports and goes on after: at its own end, too."""
_STATUS = re.compile(r"Command exited with non-zero status (\d{1,3})\b")
_SIGNAL = re.compile(r"Command terminated by signal (\d{1,2})\b")
"""GNU time's."""
_CRASH = re.compile(
    r"(?:[\w./-]+: (?:line )?\d+: +\d+ )?(Killed|Segmentation fault|Aborted|Bus error|Terminated)(?: \(core dumped\))?"
    r"(?: +.*)?|zsh: (killed|segmentation fault|abort|bus error|terminated) .*"
)
"""What a shell prints of a program that a signal ended."""


def ending(data: bytes, events: Sequence[LogEvent]) -> Ending | None:
    """Return how the program of this log failed, by what follows its last iteration; None if nothing says that it did.

    A log without an exit status tells no more than that a traceback is its end: the outcome is then LOST, which means
    unknown, and never SUCCEEDED.
    """
    progress = max((e.offset for e in events if isinstance(e, Iter | Eval | Metric)), default=-1)
    start = max(0, len(data) - MAX_TAIL_BYTES, progress)
    lines = [plain(line) for line in re.split(r"[\r\n]", data[start:].decode("utf-8", "replace"))]
    memory = next((e.text for e in events if isinstance(e, Note) and e.kind == "oom" and e.offset > progress), None)
    for line in lines:
        memory = memory or (line.strip() if NO_MEMORY.match(line.strip()) else None)
    if memory:
        return Ending(Outcome.OUT_OF_MEMORY, reason=memory[:MAX_REASON_CHARS])
    words = _last_words(lines)
    if words and NO_SPACE.search(words):
        return Ending(Outcome.DISK_FULL, reason=words)
    for pattern, outcome in ((_STATUS, Outcome.FAILED), (_SIGNAL, Outcome.KILLED)):
        if match := next(filter(None, map(pattern.search, lines)), None):
            number = int(match[1])
            code, signal = (number, None) if outcome is Outcome.FAILED else (None, number)
            if number:
                return Ending(outcome, code, signal, words or match[0])
    if words:
        return Ending(Outcome.LOST, reason=f"the log ends in a traceback: {words}")
    if crash := next((line.strip() for line in lines if _CRASH.fullmatch(line.strip())), None):
        return Ending(Outcome.LOST, reason=f"the log ends in: {crash[:MAX_REASON_CHARS]}")
    return None


def _last_words(lines: Sequence[str]) -> str | None:
    """Return the exception of the last traceback that ended the program, None without one."""
    words, time = None, TimeOutput()
    inside = False
    for before, line in zip(["", *lines], lines, strict=False):
        if _TRACEBACK.match(line):
            inside = not _IGNORED.match(before)
        elif inside and line.strip() and not line[0].isspace() and time.feed(line, 0) is None:
            words, inside = line.strip()[:MAX_REASON_CHARS], False
    return words or ("it is cut off" if inside else None)
