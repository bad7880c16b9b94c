"""A user process beside the queue: in a session of its own, with a time limit; the end of its output is kept."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from queue_runner.host import processes

TAIL_BYTES = 8192
STOP_GRACE_S = 2.0
"""How long a hook may continue after the worker is told to stop."""
_TERM_S = 2.0
_LOOK_S = 0.25
_PIECE_BYTES = 1 << 16
_FREE_BYTES = 1 << 20
_SLOW_S = 0.05
"""Pause between reads after the first MiB of a hook's output, which limits them to 1.3 MB/s: reading takes time from
the measured run."""


@dataclass(frozen=True)
class Ended:
    """The ending of a process: ok, failed, timed_out or lost (the worker was stopped). `missing`: no such program."""

    state: str
    exit_code: int | None
    dur_s: float
    output: str
    missing: bool = False


def is_there(program: str) -> bool:
    """Return whether the program can be found."""
    return shutil.which(program) is not None


def run(
    argv: Sequence[str],
    env: Mapping[str, str],
    *,
    cwd: str,
    timeout_s: float,
    stop: threading.Event,
    started: Callable[[int], None],
) -> Ended:
    """Run a program to its end, and end its remaining descendants. Never raises OSError.

    `started` is called with the pid. `env` must contain MPSQ_TAG, by which all its descendants are found.
    """
    began = time.monotonic()
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(env),
            cwd=cwd,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        said = f"it could not be started: {getattr(error, 'strerror', None) or error}"
        return Ended("failed", None, time.monotonic() - began, said, isinstance(error, FileNotFoundError))
    assert process.stdout is not None
    with process.stdout:
        start = processes.start_time(process.pid)
        started(process.pid)
        pipe = process.stdout.fileno()
        tail = _Tail()
        cut = _follow(process, pipe, tail, began + timeout_s, stop)
        dur_s = time.monotonic() - began
        noted = frozenset({(process.pid, start)} if start is not None else ())
        traces = processes.Traces(env["MPSQ_TAG"], frozenset({process.pid}), noted)
        left = processes.find_orphans(traces)
        stubborn = processes.end_all(traces, 0.0, _TERM_S) if left else []
        tail.drain(pipe)
    if process.poll() is None and not stubborn:
        process.wait()
    code = process.poll()
    notes = [f"[mpsq: {cut}]"] if cut else []
    if left and not cut:
        notes.append(f"[mpsq: it left {len(left)} process{'es' * (len(left) != 1)} behind, which were terminated]")
    if stubborn:
        notes.append(f"[mpsq: process {', '.join(str(p.pid) for p in stubborn)} survived SIGKILL]")
    state = "timed_out" if cut and not stop.is_set() else "lost" if cut else "ok" if code == 0 else "failed"
    return Ended(state, None if cut else code, dur_s, "\n".join(filter(None, [tail.text().rstrip(), *notes])))


def _follow(process: subprocess.Popen[bytes], pipe: int, tail: _Tail, deadline: float, stop: threading.Event) -> str:
    """Read until the process ends. Returns why it has to be ended, "" when it has ended on its own."""
    open_ = True
    stopping = False
    while True:
        if stop.is_set() and not stopping:
            stopping = True
            deadline = min(deadline, time.monotonic() + STOP_GRACE_S)
        left = deadline - time.monotonic()
        if left <= 0:
            return "the worker was stopped" if stopping else "it was terminated at its time limit (hook_timeout_s)"
        if open_:
            if select.select([pipe], [], [], min(left, _LOOK_S))[0]:
                open_ = tail.read(pipe)
        else:
            try:
                process.wait(min(left, _LOOK_S))
            except subprocess.TimeoutExpired:
                pass
        if process.poll() is not None:
            return ""


class _Tail:
    """The last bytes read."""

    def __init__(self) -> None:
        self._kept = b""
        self._count = 0

    def read(self, pipe: int) -> bool:
        """Read a piece; return whether there may be more."""
        data = os.read(pipe, _PIECE_BYTES)
        self._kept = (self._kept + data)[-TAIL_BYTES:]
        self._count += len(data)
        if self._count > _FREE_BYTES:
            time.sleep(_SLOW_S)
        return bool(data)

    def drain(self, pipe: int) -> None:
        """Read the rest of the output of a process that has ended: at most the capacity of a pipe."""
        for _ in range(1 + _FREE_BYTES // _PIECE_BYTES):
            if not select.select([pipe], [], [], 0)[0] or not self.read(pipe):
                return

    def text(self) -> str:
        """Return the kept text, from the first whole line on if its beginning is missing."""
        kept = self._kept
        if self._count > len(kept):
            kept = b"[...]\n" + kept.partition(b"\n")[2]
        return kept.decode("utf-8", "replace")
