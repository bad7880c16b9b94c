"""The logs of karpathy/nanochat's base_train.py and karpathy/autoresearch's train.py, live or from a file.

Both print a line for each step, after waiting for the device. autoresearch ends it with a carriage return and trains
for a fixed time; nanochat also names the planned steps. Neither counts its first eleven steps as training time. The
printed loss is a running mean.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

from queue_runner.events import Hello, Iter, LogEvent, Metric
from queue_runner.ingest.log_parser import NUMBER, LogParser

NAME = "nanochat"
HELP = "karpathy/nanochat and karpathy/autoresearch: steps (dt), tokens_per_s, val_bpb"
SIGN = re.compile(r"step \d{5,12}(?:/\d{1,12})? \(\d{1,9}\.\d{1,2}%\) \| loss: ")

WARM_UP = 10
"""The last step that neither program counts as training time."""
_STEP = re.compile(
    rf"step (?P<i>\d{{1,12}})(?:/(?P<planned>\d{{1,12}}))? \([^|]{{1,20}}%\) \| loss: (?P<loss>{NUMBER}) \|"
    rf".{{0,200}}?\bdt: (?P<ms>{NUMBER})ms \| tok/sec: (?P<speed>[\d,]{{1,20}})"
)
_BPB = re.compile(rf"(?:Step (?P<i>\d{{1,12}}) \| Validation bpb|^val_bpb): +(?P<bpb>{NUMBER})")
_BATCH = re.compile(r"Total batch size ([\d,]{1,20}) => gradient accumulation steps")
_PARAMS = re.compile(r"(?:^\s{0,8}total {1,40}|Number of parameters): ([\d,]{1,20})")


class NanochatHeader(Struct, omit_defaults=True):
    """The values that are printed before the first step."""

    tokens_per_iter: int | None = None
    params: int | None = None


class Parser(LogParser):
    """Parser whose state is the header, whether a step has passed, and the number of the last one."""

    KEPT = ("header", "started", "last")

    def __init__(self, known: Mapping[str, object] | None = None) -> None:
        super().__init__(known)
        self.header = NanochatHeader()
        self.started = False
        self.last = 0

    def understand(self, text: str, offset: int) -> list[LogEvent]:
        if match := _STEP.search(text):
            return self._step(match, offset)
        if match := _BPB.search(text):
            i = int(match["i"]) if match["i"] else self.last
            return [Metric(offset, None, "val_bpb", float(match["bpb"]), "bits/byte", i)]
        for name, pattern in (("tokens_per_iter", _BATCH), ("params", _PARAMS)):
            if not self.started and (match := pattern.search(text)):
                setattr(self.header, name, _whole(match[1]))
        return []

    def _step(self, match: re.Match[str], offset: int) -> list[LogEvent]:
        i, time_ms = int(match["i"]), float(match["ms"])
        if not 0 <= time_ms < 1e12:  # nan compares false
            return []
        events: list[LogEvent] = [] if self.started else [self._hello(match["planned"], offset)]
        phase = "compile" if not self.started else "measure" if i > WARM_UP else "warmup"
        self.started, self.last = True, i
        speed = float(_whole(match["speed"]) or 0)
        return [
            *events,
            Iter(offset, None, i, time_ms / 1e3, float(match["loss"]), synced=True, phase=phase),
            Metric(offset + match.start("speed"), None, "tokens_per_s", speed, "tokens/s", i),
        ]

    def _hello(self, planned: str | None, offset: int) -> Hello:
        tokens = self.header.tokens_per_iter
        return Hello(
            offset,
            None,
            workload="nanochat",
            framework="torch",
            params=self.header.params,
            tokens_per_iter=float(tokens) if tokens else None,
            planned_iters=int(planned) if planned else None,
        )


def _whole(text: str) -> int | None:
    return int(digits) if (digits := text.replace(",", "")) else None
