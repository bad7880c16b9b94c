"""Report a training run to mpsq: JSON lines appended to the file that MPSQ_EVENTS names (docs/protocol.md).

Standard library only, one file: import it from an installed mpsq, or copy it beside your trainer. Without MPSQ_EVENTS
every call does nothing. For the Trainers of transformers and Lightning there are TrainerCallback and LightningCallback.

    import mpsq_report

    report = mpsq_report.Reporter()
    report.hello(workload="mine", framework="torch", device="mps", dtype="fp32", tokens_per_iter=16384)
    with report.phase("measure"):
        for i in range(1000):
            ...                                     # synchronise the device before both readings of the clock
            report.iter(i, dur_s, loss, synced=True)
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
"""Maximum length of a line with its newline. A longer one is shortened, and marked with "cut": true."""

_TEXT_LIMITS = (8192, 1024, 128)
"""Characters kept of each text if a line is too long, tried in this order."""
_MAX_DEPTH = 24
"""Values nested deeper are written as text: the reader refuses more than 32 levels."""
_MAX_S = 1e9
"""Longest duration: the reader takes a longer one for a wrong unit."""
_SYNCED = {None: "", True: ',"synced":true', False: ',"synced":false'}
_ITER_PHASES = {name: f',"phase":"{name}"' for name in ("compile", "warmup", "measure")}
_IMPORTED_AT = time.perf_counter()
_ELSEWHERE = {
    "TrainerCallback": "mpsq_report_transformers",
    "LightningCallback": "mpsq_report_lightning",
    "Watch": "mpsq_report_watch",
}
"""Names defined in modules beside this file, which import a framework and are loaded on first use."""


def __getattr__(name: str) -> Any:
    if name in _ELSEWHERE:
        return getattr(importlib.import_module(_ELSEWHERE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class Reporter:
    """Writes the events of one run. `path` defaults to MPSQ_EVENTS; `clock` is in seconds, `zero` its reading at the
    start; `cpu` reads the CPU seconds of this process and of the children it waited for.

    The zero of "t" is the spawn of the process, which the queue passes in MPSQ_T0 as a reading of the same clock;
    without it, the import of this module.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        clock: Callable[[], float] = time.perf_counter,
        zero: float | None = None,
        cpu: Callable[[], float] | None = None,
    ) -> None:
        self._clock = clock
        self._cpu = _cpu_s if cpu is None else cpu
        self._zero = _zero(clock()) if zero is None else zero
        self._pid = os.getpid()
        self._fd = -1
        self._complained = False
        self._compiled = _compiled()
        path = os.environ.get("MPSQ_EVENTS") if path is None else path
        if path and not _is_worker_process():
            self._open(path)

    @property
    def active(self) -> bool:
        """Return whether this process is writing events."""
        return self._fd >= 0 and os.getpid() == self._pid

    def hello(self, **fields: Any) -> None:
        """Report workload, framework, versions, device, dtype, params, ... A second hello adds to the first."""
        self._send("hello", {"v": VERSION} | fields | {"v": VERSION})

    def begin(self, name: str, *, since_start: bool = False) -> None:
        """Open a phase, one of PHASES. `since_start` dates it to the clock's zero, so that it includes the imports."""
        self._edge(name, "begin", 0.0 if since_start else None)

    def end(self, name: str) -> None:
        """Close the innermost open phase of this name."""
        self._edge(name, "end", None)

    @contextlib.contextmanager
    def phase(self, name: str, *, since_start: bool = False) -> Iterator[None]:
        """Open a phase around a block. Phases nest; the time of one excludes the phases inside it."""
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
        synced: bool | None = None,
        phase: str = "measure",
        allocated_bytes: int | None = None,
        reserved_bytes: int | None = None,
    ) -> None:
        """Report one iteration: its number from 0, its seconds, its loss; `synced`: whether the clock waited for the
        device at both readings, which is unknown if it is not given. What torch.compile compiled in a measured one
        follows as metrics.

        Formatted by hand: it is called between two timed iterations, and the json module takes twice as long.
        """
        fd = self._fd
        if fd < 0 or os.getpid() != self._pid:
            return
        try:
            if not 0 <= dur_s < _MAX_S:
                raise ValueError(f"dur_s={dur_s} is not a duration")
            if loss is None:
                loss_field = ""
            elif math.isfinite(loss):
                loss_field = f',"loss":{loss:.9g}'
            else:
                loss_field = f',"loss":"{_word(float(loss))}"'
            memory = "" if allocated_bytes is None else f',"allocated_bytes":{allocated_bytes:d}'
            if reserved_bytes is not None:
                memory += f',"reserved_bytes":{reserved_bytes:d}'
            line = (
                f'{{"type":"iter","t":{self._clock() - self._zero:.6f},"i":{i:d},"dur_s":{dur_s:.9f}{loss_field}'
                f"{_SYNCED[synced]}{_ITER_PHASES[phase]}{memory}}}\n"
            ).encode()
        except Exception as error:
            self._complain(f"iteration {i!r} cannot be reported: {error!r}")
            return
        self._write(line)
        if (now := _compiled()) != self._compiled:
            self._tell_compiled(now, i if phase == "measure" else None)

    def eval(self, i: int, split: str, metrics: dict[str, float], dur_s: float | None = None) -> None:
        """Report metrics after `i` iterations, such as {"loss": 1.7}, on a split of the data."""
        fields = {"i": i, "split": split, "metrics": metrics}
        self._send("eval", fields if dur_s is None else {**fields, "dur_s": dur_s})

    def metric(self, name: str, value: float, unit: str = "", i: int | None = None) -> None:
        """Report any other number."""
        fields = {"name": name, "value": value, "unit": unit}
        self._send("metric", fields if i is None else {**fields, "i": i})

    def note(self, kind: str, text: str = "", **extra: Any) -> None:
        """Report an incident: op_fallback, oom, nan_loss, wrong_loss, compile_cache, device_unavailable, ..."""
        self._send("note", {"kind": kind, "text": text, **extra})

    def bye(self, ok: bool = True) -> None:
        """Write the last event; later ones are dropped. It is shown to users, and does not decide the outcome."""
        self._send("bye", {"ok": bool(ok)})
        self._close()

    def _tell_compiled(self, now: tuple[int, int], i: int | None) -> None:
        """Report compilations since the last line, if they were in measured iteration `i`: from then on the times
        belong to another program."""
        before, self._compiled = self._compiled, now
        if i is None:
            return
        if now[0] > before[0]:
            self.metric("recompilations", now[0] - before[0], "graphs", i)
        if now[1] > before[1]:
            self.metric("graph_breaks", now[1] - before[1], "", i)

    def _edge(self, name: str, edge: str, t: float | None) -> None:
        self._compiled = _compiled()  # what an evaluation compiles is in no iteration
        if name in PHASES:
            cpu_s = 0.0 if t is not None else round(self._cpu(), 6)
            self._send("phase", {"name": name, "edge": edge, "cpu_s": cpu_s}, t)
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
        except Exception as error:  # such as an object whose str() raises: the training matters more than the line
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
        """Print the first problem, and no other: a full disk must not fill a terminal too."""
        if not self._complained:
            self._complained = True
            with contextlib.suppress(Exception):
                print(f"mpsq_report: {text}", file=sys.stderr, flush=True)


def _compiled() -> tuple[int, int]:
    """Return the frames that torch.compile has compiled and its graph breaks, of this process so far; zeros without
    torch. It takes about a microsecond."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    counters = getattr(dynamo, "counters", None)
    if not counters:
        return 0, 0
    try:
        return counters["frames"]["total"], sum(counters["graph_break"].values())
    except (AttributeError, KeyError, TypeError):  # another version of torch
        return 0, 0


def _zero(now: float) -> float:
    """Return MPSQ_T0 if it is a moment that this clock passed not too long ago; else the import of this module."""
    try:
        zero = float(os.environ.get("MPSQ_T0", ""))
    except ValueError:
        return _IMPORTED_AT
    return zero if 0 <= now - zero < _MAX_S else _IMPORTED_AT


def _cpu_s() -> float:
    """Return the CPU seconds, user and system, of this process and of the children it waited for."""
    try:
        import resource
    except ImportError:  # Windows, which tells no children's
        return time.process_time()
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


def _is_worker_process() -> bool:
    """Return whether multiprocessing started this process: it inherits MPSQ_EVENTS, and does not train."""
    multiprocessing = sys.modules.get("multiprocessing")
    return multiprocessing is not None and multiprocessing.parent_process() is not None


def _word(number: float) -> str:
    """Return the text of a number that JSON does not have."""
    return "nan" if number != number else "inf" if number > 0 else "-inf"


def _plain(value: Any, depth: int = 0) -> Any:
    """Return `value` as JSON can represent it: scalars of numpy and torch as numbers, other objects as text."""
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
    """Return the event's line, with texts shortened as needed; None if that does not suffice."""
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
