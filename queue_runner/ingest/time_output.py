"""Output of `time` commands at the end of a log, in the format of each shell and system, as TimeUsage.

| command | example |
|---|---|
| BSD and macOS time, mksh | `3588.66 real 90.18 user 32.03 sys`; with -l `10485760  maximum resident set size`, bytes |
| POSIX -p, bash, ksh | three lines `real 1.23`, `real 0m25.614s`, then user, sys |
| GNU time | `0.10user 0.02system 0:00.12elapsed 99%CPU (0avgtext+0avgdata 10240maxresident)k`, KiB |
| GNU time -v | `User time (seconds): 0.10` ... |
| zsh | `python x  1.23s user 0.05s system 98% cpu 1.301 total` |
| fish | `Executed in   14.73 millis`, `usr time    0.65 millis` |
"""

from __future__ import annotations

import re

from msgspec import Struct

from queue_runner.events import TimeUsage

_N = r"(\d{1,12}(?:[.,]\d{1,9})?)"
_MS = r"((?:\d{1,9}m)?\d{1,12}(?:[.,]\d{1,9})?)s?"  # 1.23, 1.23s, 0m1.23s
_CLOCK = r"((?:\d{1,9}:){0,2}\d{1,12}(?:[.,]\d{1,9})?)"  # 1.3, 0:01.30, 1:02:03
_ONE_LINE = {  # groups in the order of the name
    "real user sys": re.compile(rf"{_MS}\s+real\s+{_MS}\s+user\s+{_MS}\s+sys(?:tem)?\b"),
    "user sys real rss_kib": re.compile(
        rf"{_N}user\s+{_N}system\s+{_CLOCK}elapsed\s+[\d?]+%CPU(?:\s+\(\d+avgtext\+\d+avgdata\s+(\d{{1,15}})maxresident\)k)?"
    ),
    "user sys real": re.compile(rf"{_N}s user\s+{_N}s system\s+\d+% cpu\s+{_CLOCK} total"),
}
_TRIPLE = re.compile(rf"\s*(real|user|sys)\s+{_MS}\s*")
_VERBOSE = {
    "user": re.compile(rf"User time \(seconds\): {_N}"),
    "sys": re.compile(rf"System time \(seconds\): {_N}"),
    "real": re.compile(rf"Elapsed \(wall clock\) time \(h:mm:ss or m:ss\): {_CLOCK}"),
    "rss_kib": re.compile(r"Maximum resident set size \(kbytes\): (\d{1,15})"),
    "rss_bytes": re.compile(r"^\s*(\d{1,18})\s+maximum resident set size"),
}
_FISH = {
    "real": re.compile(rf"Executed in\s+{_N} (micros|millis|secs|mins|hours)\b"),
    "user": re.compile(rf"usr time\s+{_N} (micros|millis|secs|mins|hours)\b"),
    "sys": re.compile(rf"sys time\s+{_N} (micros|millis|secs|mins|hours)\b"),
}
_FISH_UNITS = {"micros": 1e-6, "millis": 1e-3, "secs": 1.0, "mins": 60.0, "hours": 3600.0}
_ORDER = ("real", "user", "sys")
_WORDS = re.compile(r"real|user|sys|usr time|User time|System time|elapsed|Elapsed|aximum resident|Executed in")
"""Pattern that occurs in every relevant line: a quick rejection of most lines."""
MAX_LINE_CHARS = 1000
"""Longest line considered: no `time` command writes a longer one, but progress bars do."""


def seconds(text: str) -> float:
    """Return the seconds in 1.23, 1,23, 0m1.23 or 1:02:03.4."""
    total = 0.0
    for part in text.replace(",", ".").replace("m", ":").split(":"):
        total = total * 60 + float(part)
    return total


class TimeOutput(Struct):
    """A collector of the lines of one `time` command. Each TimeUsage holds all values so far; the last one counts."""

    known: dict[str, float] = {}
    triple: list[float] = []

    def feed(self, text: str, offset: int) -> TimeUsage | None:
        """Return all values so far if this line added one and the real time is known, else None."""
        if len(text) > MAX_LINE_CHARS or not _WORDS.search(text):
            if text.strip():
                self.triple = []
            return None
        if not self._read(text) or "real" not in self.known:
            return None
        known = self.known
        rss = known.get("rss_bytes", known["rss_kib"] * 1024 if "rss_kib" in known else None)
        return TimeUsage(offset, known["real"], known.get("user"), known.get("sys"), None if rss is None else int(rss))

    def _read(self, text: str) -> bool:
        if match := _TRIPLE.fullmatch(text):
            return self._read_triple(match[1], seconds(match[2]))
        self.triple = []
        for order, pattern in _ONE_LINE.items():
            if match := pattern.search(text):
                pairs = zip(order.split(), match.groups(), strict=True)
                self.known = {name: seconds(value) for name, value in pairs if value is not None}
                return True
        for name, pattern in _VERBOSE.items():
            if match := pattern.search(text):
                if name == "user":  # first line of a new table
                    self.known = {}
                self.known[name] = seconds(match[1])
                return True
        for name, pattern in _FISH.items():
            if match := pattern.search(text):
                if name == "real":
                    self.known = {}
                self.known[name] = seconds(match[1]) * _FISH_UNITS[match[2]]
                return True
        return False

    def _read_triple(self, word: str, value: float) -> bool:
        """Read a line of real, user, sys in sequence; a lone line with such a word does not belong to `time`."""
        if word == "real":
            self.triple = []
        if len(self.triple) >= 3 or word != _ORDER[len(self.triple)]:
            self.triple = []
            return False
        self.triple.append(value)
        if len(self.triple) < 3:
            return False
        self.known = dict(zip(_ORDER, self.triple, strict=True))
        return True
