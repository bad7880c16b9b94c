"""Report a training run to mpsq: JSON lines appended to the file that MPSQ_EVENTS names (docs/protocol.md).

Standard library only, one file: import it from an installed mpsq, or copy it beside your trainer. Without MPSQ_EVENTS
every call does nothing. For the Trainers of transformers and Lightning there are TrainerCallback and LightningCallback.

    import mpsq_report

    report = mpsq_report.Reporter()
    report.hello(workload="mine", framework="torch", device="mps", dtype="fp32", tokens_per_iter=16384)
    with report.phase("measure"):
        for i in range(1000):
            ...                                     # synchronise the device before both readings of the clock
            report.iter(i, dur_s, loss)
    report.bye(ok=True)

Reporting never blocks, never waits for a disk and never raises into training: when a line cannot be written, reporting
ends, and one sentence on stderr says so. Only the process that made the Reporter writes: a forked child (a DataLoader
worker) is silent.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

VERSION = 1
"""Major version of the protocol."""
PHASES = ("setup", "compile", "warmup", "measure", "eval", "checkpoint")
MAX_LINE_BYTES = 65_536
"""The longest line, its newline included. What is longer is shortened, and marked with "cut": true."""

_TEXT_LIMITS = (8192, 1024, 128)
"""Characters left of each text when a line is too long, tried in this order."""
_MAX_DEPTH = 24
"""What is nested deeper is written as text: the reader refuses more than 32 levels."""
_MAX_S = 1e9
"""The reader takes a longer time for a mistaken unit."""
_ITER_PHASES = {name: f',"phase":"{name}"' for name in ("compile", "warmup", "measure")}
_IMPORTED_AT = time.perf_counter()
_ELSEWHERE = {
    "TrainerCallback": "mpsq_report_transformers",
    "LightningCallback": "mpsq_report_lightning",
    "Watch": "mpsq_report_watch",
}
"""What is beside this file, each with the framework that it is for: imported when it is asked for."""


def __getattr__(name: str) -> Any:
    if name in _ELSEWHERE:
        return getattr(importlib.import_module(_ELSEWHERE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class Reporter:
    """Writes one run's events. `path` defaults to MPSQ_EVENTS; `clock` is in seconds, `zero` its reading at the start.

    The zero of "t" is the spawn of the process, which the queue gives in MPSQ_T0 as a reading of the same clock;
    without it, the import of this module.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        clock: Callable[[], float] = time.perf_counter,
        zero: float | None = None,
    ) -> None:
        self._clock = clock
        self._zero = _zero(clock()) if zero is None else zero
        self._pid = os.getpid()
        self._fd = -1
        self._complained = False
        path = os.environ.get("MPSQ_EVENTS") if path is None else path
        if path and not _is_worker_process():
            self._open(path)

    @property
    def active(self) -> bool:
        """Whether events are being written, by this process."""
        return self._fd >= 0 and os.getpid() == self._pid

    def hello(self, **fields: Any) -> None:
        """Who runs what: workload, framework, versions, device, dtype, params, ... A second hello adds to the first."""
        self._send("hello", {"v": VERSION} | fields | {"v": VERSION})

    def begin(self, name: str, *, since_start: bool = False) -> None:
        """Open a phase, one of PHASES. `since_start`: as of the clock's zero, so that it holds the imports as well."""
        self._edge(name, "begin", 0.0 if since_start else None)

    def end(self, name: str) -> None:
        """Close the innermost open phase of this name."""
        self._edge(name, "end", None)

    @contextlib.contextmanager
    def phase(self, name: str, *, since_start: bool = False) -> Iterator[None]:
        """A phase around a block. Phases nest; the time of one is its own, less that of those inside it."""
        self.begin(name, since_start=since_start)
        try:
            yield
        finally:
            self.end(name)

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
        """One iteration: its number from 0, its seconds, its loss; `synced` says that the clock waited for the device.

        Put together by hand: this is called between two timed iterations, and the json module takes as long again.
        """
        fd = self._fd
        if fd < 0 or os.getpid() != self._pid:
            return
        try:
            if not 0 <= dur_s < _MAX_S:
                raise ValueError(f"dur_s={dur_s} is no duration")
            if loss is None:
                said = ""
            elif math.isfinite(loss):
                said = f',"loss":{loss:.9g}'
            else:
                said = f',"loss":"{_word(float(loss))}"'
            memory = "" if allocated_bytes is None else f',"allocated_bytes":{allocated_bytes:d}'
            if reserved_bytes is not None:
                memory += f',"reserved_bytes":{reserved_bytes:d}'
            line = (
                f'{{"type":"iter","t":{self._clock() - self._zero:.6f},"i":{i:d},"dur_s":{dur_s:.9f}{said}'
                f',"synced":{"true" if synced else "false"}{_ITER_PHASES[phase]}{memory}}}\n'
            ).encode()
        except Exception as error:
            self._complain(f"iteration {i!r} cannot be reported: {error!r}")
            return
        self._write(line)

    def eval(self, i: int, split: str, metrics: dict[str, float], dur_s: float | None = None) -> None:
        """Measures of a model after `i` iterations, such as {"loss": 1.7}, on a part of the data."""
        fields = {"i": i, "split": split, "metrics": metrics}
        self._send("eval", fields if dur_s is None else {**fields, "dur_s": dur_s})

    def metric(self, name: str, value: float, unit: str = "", i: int | None = None) -> None:
        """Any other number."""
        fields = {"name": name, "value": value, "unit": unit}
        self._send("metric", fields if i is None else {**fields, "i": i})

    def note(self, kind: str, text: str = "", **extra: Any) -> None:
        """Something that happened: op_fallback, oom, nan_loss, wrong_loss, compile_cache, device_unavailable, ..."""
        self._send("note", {"kind": kind, "text": text, **extra})

    def bye(self, ok: bool = True) -> None:
        """The last event; what follows it is not written. Shown to users, never taken for the outcome."""
        self._send("bye", {"ok": bool(ok)})
        self._close()

    def _edge(self, name: str, edge: str, t: float | None) -> None:
        if name in PHASES:
            self._send("phase", {"name": name, "edge": edge}, t)
        else:
            self._complain(f"there is no phase {name!r}: it is one of {', '.join(PHASES)}")

    def _open(self, path: str | os.PathLike[str]) -> None:
        # O_NONBLOCK: a named pipe without a reader is an error at once instead of a wait.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        for name in ("O_CLOEXEC", "O_NONBLOCK", "O_NOCTTY", "O_BINARY"):
            flags |= getattr(os, name, 0)
        try:
            self._fd = os.open(path, flags, 0o600)
        except (OSError, ValueError) as error:
            self._stop(f"{path} cannot be opened: {getattr(error, 'strerror', None) or error}")

    def _send(self, kind: str, fields: dict[str, Any], t: float | None = None) -> None:
        if not self.active:
            return
        try:
            t = self._clock() - self._zero if t is None else t
            event = {"type": kind, "t": round(t, 6)}
            line = _line(event | {key: _plain(value) for key, value in fields.items()} | event)
        except Exception as error:  # an object whose str() raises, say: the training is worth more than the line
            self._complain(f"an event of type {kind} cannot be reported: {error!r}")
            return
        if line is None:
            self._complain(f"an event of type {kind} is longer than {MAX_LINE_BYTES} bytes and was left out")
            return
        self._write(line)

    def _write(self, line: bytes) -> None:
        try:
            if os.write(self._fd, line) != len(line):
                self._stop("a line could be written in part only")
        except OSError as error:
            self._stop(error.strerror or str(error))

    def _stop(self, why: str) -> None:
        self._close()
        self._complain(f"{why}; the training goes on, its events are no longer reported")

    def _close(self) -> None:
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = -1

    def _complain(self, text: str) -> None:
        """Say the first thing that went wrong, and no other: a full disk must not fill a terminal too."""
        if not self._complained:
            self._complained = True
            with contextlib.suppress(Exception):
                print(f"mpsq_report: {text}", file=sys.stderr, flush=True)


def _zero(now: float) -> float:
    """MPSQ_T0, where it is a moment that this clock has passed not too long ago; else the import of this module."""
    try:
        told = float(os.environ.get("MPSQ_T0", ""))
    except ValueError:
        return _IMPORTED_AT
    return told if 0 <= now - told < _MAX_S else _IMPORTED_AT


def _is_worker_process() -> bool:
    """Whether multiprocessing started this process: it inherits MPSQ_EVENTS, and is not the one that trains."""
    multiprocessing = sys.modules.get("multiprocessing")
    return multiprocessing is not None and multiprocessing.parent_process() is not None


def _word(number: float) -> str:
    """JSON has no number for these three."""
    return "nan" if number != number else "inf" if number > 0 else "-inf"


def _plain(value: Any, depth: int = 0) -> Any:
    """`value` as JSON can hold it: scalars of numpy and torch as numbers, what has no counterpart as text."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return value.replace("\0", "\ufffd").encode("utf-8", "replace").decode()  # replace: halves of surrogate pairs
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else _word(value)
    if depth < _MAX_DEPTH:
        if isinstance(value, dict):
            return {_plain(str(key)): _plain(item, depth + 1) for key, item in value.items()}
        if isinstance(value, (list, tuple, set, frozenset)):
            return [_plain(item, depth + 1) for item in value]
        if hasattr(value, "item") and getattr(value, "shape", None) == ():
            return _plain(value.item(), depth + 1)
    return _plain(str(value), depth + 1)


def _line(event: dict[str, Any]) -> bytes | None:
    """The event's line, its texts shortened as far as its length demands; None when that is not enough."""
    line = _encoded(event)
    for limit in _TEXT_LIMITS:
        if len(line) <= MAX_LINE_BYTES:
            return line
        line = _encoded({**_shortened(event, limit), "cut": True})
    return line if len(line) <= MAX_LINE_BYTES else None


def _encoded(event: dict[str, Any]) -> bytes:
    return (json.dumps(event, ensure_ascii=False, separators=(",", ":"), allow_nan=False) + "\n").encode()


def _shortened(value: Any, limit: int) -> Any:
    if isinstance(value, str):
        return value if len(value) <= limit else value[: limit - 1] + "…"
    if isinstance(value, dict):
        return {key: _shortened(item, limit) for key, item in value.items()}
    if isinstance(value, list):
        return [_shortened(item, limit) for item in value]
    return value
