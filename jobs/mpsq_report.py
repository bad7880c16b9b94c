"""Report a training run to mpsq: one file, standard library only, to be imported or copied next to your own trainer.

    from mpsq_report import Reporter

    report = Reporter()                      # does nothing outside of mpsq
    report.hello(workload="mine", framework="torch", device="mps", planned_iters=1000)
    for i in range(1000):
        ...                                  # synchronise, read the clock, step, synchronise, read the clock
        report.iter(i, dur_s, loss)
    report.bye(ok=True)

Each call appends one JSON line to the file that MPSQ_EVENTS names, with one write(2) and no fsync; a call costs a few
microseconds and never waits. Nothing in here raises into a training loop: when the file cannot be written, reporting
stops and says so once on stderr. The protocol is docs/protocol.md of mpsq, version 1.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

PROTOCOL = 1
MAX_LINE_BYTES = 65_536

_IMPORTED = time.perf_counter()


class Reporter:
    """Writes the events of one run. `path` defaults to MPSQ_EVENTS; without either, every call does nothing.

    Times `t` are seconds since the warden started the process (MPSQ_T0, on the same system-wide clock as perf_counter),
    or since the import of this module. A forked child, such as a data loader's worker, does not write.
    """

    def __init__(self, path: str | None = None) -> None:
        self._zero = _zero()
        self._file: int | None = None
        target = path or os.environ.get("MPSQ_EVENTS")
        if target:
            try:
                self._file = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            except OSError as error:
                self._give_up(error)
        if self._file is not None and hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    @property
    def active(self) -> bool:
        """Whether anybody reads what is reported."""
        return self._file is not None

    def elapsed_s(self) -> float:
        """Seconds on the clock of the events."""
        return time.perf_counter() - self._zero

    def hello(self, **said: Any) -> None:
        """Who runs what on which device: see docs/protocol.md for the keys that reports know; others are kept."""
        self._send({"type": "hello", "t": self.elapsed_s(), "v": PROTOCOL, **said})

    @contextmanager
    def phase(self, name: str, since_start: bool = False) -> Iterator[None]:
        """A stretch of setup, compile, warmup, measure, eval or checkpoint. Phases nest; time inside an inner phase is
        the inner one's alone. `since_start` lets it begin with the process: imports belong to setup."""
        self._send({"type": "phase", "t": 0.0 if since_start else self.elapsed_s(), "name": name, "edge": "begin"})
        try:
            yield
        finally:
            self._send({"type": "phase", "t": self.elapsed_s(), "name": name, "edge": "end"})

    def iter(
        self,
        i: int,
        dur_s: float,
        loss: float | None = None,
        synced: bool = True,
        phase: str = "measure",
        allocated_bytes: int | None = None,
        reserved_bytes: int | None = None,
    ) -> None:
        """One iteration: its number, seconds, loss, and whether the device was synchronised around the clock reads."""
        if self._file is None:
            return
        line = f'{{"type":"iter","t":{time.perf_counter() - self._zero:.6f},"i":{i},"dur_s":{_number(dur_s)}'
        if loss is not None:
            line += f',"loss":{_number(loss)}'
        line += f',"synced":{"true" if synced else "false"},"phase":"{phase}"'
        if allocated_bytes is not None:
            line += f',"allocated_bytes":{allocated_bytes}'
        if reserved_bytes is not None:
            line += f',"reserved_bytes":{reserved_bytes}'
        self._write(line.encode() + b"}\n")

    def eval(self, i: int, split: str, metrics: dict[str, float], dur_s: float) -> None:
        """An evaluation before iteration `i`; it is never inside an iteration's time."""
        self._send({"type": "eval", "t": self.elapsed_s(), "i": i, "split": split, "metrics": metrics, "dur_s": dur_s})

    def metric(self, name: str, value: float, unit: str) -> None:
        """Any other number, with its unit."""
        self._send({"type": "metric", "t": self.elapsed_s(), "name": name, "value": value, "unit": unit})

    def note(self, kind: str, text: str, **more: Any) -> None:
        """Something to be known about the run: op_fallback, oom, wrong_loss, device_unavailable, compile_cache, ..."""
        self._send({"type": "note", "t": self.elapsed_s(), "kind": kind, "text": text, **more})

    def bye(self, ok: bool) -> None:
        """The job's own view of its end. The outcome is the exit status, which only the warden reports."""
        self._send({"type": "bye", "t": self.elapsed_s(), "ok": ok})

    def _send(self, event: dict[str, Any]) -> None:
        if self._file is None:
            return
        event["t"] = round(event["t"], 6)
        try:
            line = json.dumps(_finite(event), separators=(",", ":"), ensure_ascii=False, default=str).encode("utf-8", "replace")
        except (ValueError, RecursionError) as error:  # what cannot be said is left out, with a word
            line = json.dumps({"type": "note", "t": event["t"], "kind": "unsaid", "text": f"{event['type']}: {error}"}).encode()
        if len(line) > MAX_LINE_BYTES:
            text = f"a {event['type']} of {len(line)} bytes was left out: a line holds {MAX_LINE_BYTES}"
            line = json.dumps({"type": "note", "t": event["t"], "kind": "unsaid", "text": text}).encode()
        self._write(line + b"\n")

    def _write(self, line: bytes) -> None:
        try:
            if self._file is not None and os.write(self._file, line) != len(line):
                raise OSError("the disk is full")
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self._forget()
        print(f"mpsq_report: reporting has stopped: {error}", file=sys.stderr)

    def _forget(self) -> None:
        self._file = None


def _zero() -> float:
    """The perf_counter reading that is t = 0."""
    try:
        started = float(os.environ["MPSQ_T0"])
    except (KeyError, ValueError):
        return _IMPORTED
    return started if 0.0 <= time.perf_counter() - started < 1e9 else _IMPORTED


def _number(x: float) -> str:
    """JSON for a number; one that is not finite is a word, for JSON has none."""
    x = float(x)
    return repr(x) if math.isfinite(x) else f'"{_word(x)}"'


def _word(x: float) -> str:
    return "nan" if math.isnan(x) else "inf" if x > 0 else "-inf"


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return _word(value)
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
