"""Metrics of --metric, read from the log of an ended run.

A regular expression may take longer than anybody waits, so they are searched in a child process with a time limit.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from queue_runner.text import plain

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}(:min|:mean)?", re.ASCII)
"""The name of a metric, and which of its values counts; the last one by default."""
MAX_LINE_CHARS = 65_536
TIMEOUT_S = 10.0
_PAIR = re.compile(r"([A-Za-z][A-Za-z0-9_]{0,30})([ \t]{0,3}[:=]?[ \t]{0,3})[-+]?\d{1,9}\.\d{1,12}", re.ASCII)
_MEANT = ("val_loss", "loss", "accuracy", "acc", "perplexity", "score", "error")
"""Words by which the metric is known that somebody probably wants, the likeliest first."""


class Unread(Exception):
    """The log could not be searched; the message says why."""


def read(paths: Sequence[Path], patterns: Mapping[str, str]) -> dict[str, float]:
    """Return the metrics that the first of the logs with a match has, without those that no log has.

    Raises: Unread when the search takes too long.
    """
    from queue_runner.host import child  # not above: submit needs the name alone

    try:
        return child.call(TIMEOUT_S, _search, [str(path) for path in paths], dict(patterns))
    except child.TookTooLong:
        raise Unread(f"the expressions of --metric took more than {TIMEOUT_S:.0f} s: make them simpler") from None
    except Exception as error:  # any failure: it must not keep the end of the run from being stored
        raise Unread(f"the metrics could not be read from the log: {error}") from error


def suggest(log: str) -> tuple[str, str] | None:
    """Return the name and the expression for a number that the log names, such as "loss 2.31"; None without any."""
    pairs = {match[1]: match for match in _PAIR.finditer(log)}
    likely = [name for word in _MEANT for name in pairs if name.lower() == word]
    likely += [name for word in _MEANT for name in pairs if word in name.lower().split("_")]
    if not likely:
        return None
    between = re.escape(pairs[likely[0]][2]).replace("\\ ", " ").replace("\\\t", "\\t")
    return likely[0], rf"\b{likely[0]}{between}([-+0-9.e]+)"


def _lines(path: str) -> Iterator[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as log:
            while line := log.readline(MAX_LINE_CHARS):
                text = line.rstrip("\n")
                yield plain(text) if "\x1b" in text else text
    except OSError:
        return


def _numbers(path: str, pattern: str) -> Iterator[float]:
    search = re.compile(pattern)
    for line in _lines(path):
        for match in search.finditer(line):
            try:
                yield float(match[1])
            except (TypeError, ValueError):
                continue


def _value(numbers: Iterable[float], which: str) -> float | None:
    values = list(numbers) if which else [*deque(numbers, maxlen=1)]
    if not values:
        return None
    if which == "min":
        return min(values)
    return math.fsum(values) / len(values) if which == "mean" else values[-1]


def _search(paths: Sequence[str], patterns: Mapping[str, str]) -> dict[str, float]:
    metrics: dict[str, float] = {}
    for name, pattern in patterns.items():
        for path in paths:
            value = _value(_numbers(path, pattern), name.partition(":")[2])
            if value is not None:
                if math.isfinite(value):
                    metrics[name] = value
                break
    return metrics
