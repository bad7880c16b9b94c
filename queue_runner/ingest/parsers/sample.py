"""The output of karpathy/nanoGPT's sample.py: texts, each followed by a line of 15 dashes.

The texts are stored as notes of kind `sample`, 2,000 characters at most. Metrics are the characters of each and the
number of texts so far, and tokens where sample.py says how many it writes (an override of max_new_tokens). It prints no
times: the time of a run is its real time, loading included.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from queue_runner.events import Hello, LogEvent, Metric, Note
from queue_runner.ingest.log_parser import DTYPES, LogHeader, LogParser, whole

NAME = "sample"
HELP = "sample.py of karpathy/nanoGPT: its texts, their number and length"
SIGN = re.compile(r"^-{15}$", re.MULTILINE)
ITERATES = False
"""A run that succeeds without iterations is not unobserved."""

BETWEEN = "-" * 15
MOST_CHARACTERS = 2000
_OVERRIDE = re.compile(r"Overriding: ([a-z_]{1,40}) = ?(.{0,200})")
_LAST_OF_HEADER = re.compile(r"Loading meta from \S.*\.\.\.|No meta\.pkl found, assuming GPT-2 encodings\.\.\.")
_KEPT = ("temperature", "top_k", "num_samples", "max_new_tokens", "start")


class SampleHeader(LogHeader):
    """The settings that are printed, as text."""

    temperature: str | None = None
    top_k: str | None = None
    num_samples: str | None = None
    max_new_tokens: str | None = None
    start: str | None = None


class Parser(LogParser):
    """Parser whose state is the header, the text so far, and where its last line ended."""

    KEPT = ("header", "started", "text", "characters", "end", "found")

    def __init__(self, known: Mapping[str, object] | None = None) -> None:
        super().__init__(known)
        self.header = SampleHeader.of_run(known)
        self.started = False
        self.text = ""
        self.characters = 0
        self.end: int | None = None
        """offset after the last line; blank lines are not fed: the gap up to the next line shows them"""
        self.found = 0

    def understand(self, text: str, offset: int) -> list[LogEvent]:
        blank = 0 if self.end is None else max(0, offset - self.end)
        self.end = offset + len(text.encode()) + 1
        if not self.started and (match := _OVERRIDE.fullmatch(text)):
            if match[1] == "compile":
                self.header.compile = {"True": True, "False": False}.get(match[2])
            elif match[1] in (*_KEPT, "device", "dtype"):
                setattr(self.header, match[1], match[2])
            return []
        if not self.started and _LAST_OF_HEADER.fullmatch(text):
            self.text, self.characters = "", 0  # the model did not write the lines before
            return self._begin(offset)
        self._add("\n" * blank)
        if text == BETWEEN:
            return [*self._begin(offset), *self._finish(offset)]
        self._add(text + "\n")
        return []

    def _begin(self, offset: int) -> list[LogEvent]:
        if self.started:
            return []
        self.started = True
        return [self._hello(offset)]

    def _add(self, more: str) -> None:
        self.characters += len(more)
        self.text = (self.text + more)[:MOST_CHARACTERS]

    def _finish(self, offset: int) -> list[LogEvent]:
        self.found += 1
        characters = max(0, self.characters - 1)  # print() ends the text with a line break
        text = self.text[:characters]
        events: list[LogEvent] = [
            Note(offset, None, "sample", text, {"number": self.found}),
            Metric(offset, None, "sample_characters", float(characters), "characters", self.found - 1),
            Metric(offset + 1, None, "samples", float(self.found), "texts", self.found - 1),
        ]
        if (tokens := whole(self.header.max_new_tokens)) is not None:
            events.append(Metric(offset + 2, None, "sample_tokens", float(tokens), "tokens", self.found - 1))
        self.text, self.characters = "", 0
        return events

    def _hello(self, offset: int) -> Hello:
        header = self.header
        device = header.device
        return Hello(
            offset,
            None,
            workload="nanogpt-sample",
            framework="torch",
            device=device,
            dtype=DTYPES.get(header.dtype or "") if "cuda" in (device or "") else "fp32" if device else None,
            compile=header.compile,
            extra={"sampling": {name: value for name in _KEPT if (value := getattr(header, name)) is not None}},
        )
