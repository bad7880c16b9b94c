"""Sweep over operators in a child process, which is replaced when it crashes, hangs or loses the device.

Standard library only. child.py has the protocol.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from harness.errors import JobError
from harness.opcheck.messages import ERROR, first_line, gave_up

START_LIMIT_S = 300.0
"""Time limit to import torch and its tables on a busy machine."""
MOST_STARTS_IN_VAIN = 3
"""Consecutive children that may end before they are ready."""

_LOG_BYTES = 1 << 20
MOST_LOST_IN_A_ROW = 10
"""Consecutive units that may end their child: then the device is suspected, not the operators."""


@dataclass(frozen=True)
class Unit:
    """One operator in one dtype. `directions` are those to check."""

    op: str
    dtype: str
    directions: tuple[str, ...] = ("forward", "backward")


@dataclass(frozen=True)
class Finding:
    """A child's answer for one direction of a unit, or how the child ended."""

    unit: Unit
    direction: str
    verdict: str
    detail: str = ""
    n: int = 0
    n_bad: int = 0
    first_s: float | None = None
    times_s: tuple[float, ...] = ()
    random: bool = False
    profiled: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, str, str]:
        """Return operator, dtype and direction."""
        return self.unit.op, self.unit.dtype, self.direction


@dataclass
class _Child:
    process: subprocess.Popen[bytes]
    answers: int
    life: int
    log: Any
    log_from: int = 0
    """offset in the log at which the current unit begins"""
    buffer: bytes = b""
    silent: bool = False
    """whether it has closed its end of the pipe: it has ended, or is about to"""
    ready: Mapping[str, Any] = field(default_factory=dict)


class Sweep:
    """Runs units in children started by `command`, to which the arguments of the protocol are appended.

    `limit_s` is the time limit of one unit. Use it as a context manager: no child outlives it.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str], limit_s: float) -> None:
        self._command, self._env, self.limit_s = list(command), dict(env), limit_s
        self._child: _Child | None = None
        self.restarts = 0

    def __enter__(self) -> Sweep:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def start(self) -> None:
        """Start a child; `ops` waits for it."""
        answers_read, answers_write = os.pipe()
        life_read, life_write = os.pipe()
        log = tempfile.TemporaryFile()  # noqa: SIM115 - closed when its child has ended
        words = [*self._command, f"--answers={answers_write}", f"--life={life_read}"]
        try:
            process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env=self._env,
                pass_fds=(answers_write, life_read),
            )
        finally:
            os.close(answers_write)
            os.close(life_read)
        self._child = _Child(process, answers_read, life_write, log)

    def ops(self) -> Mapping[str, Sequence[str]]:
        """Return the operators with the dtypes that each accepts. Raises: JobError if no child gets ready."""
        for _ in range(MOST_STARTS_IN_VAIN):
            if self._child is None:
                self.start()
            child = self._child
            assert child is not None
            if child.ready:
                return dict(child.ready["ops"])
            answer = self._answer(child, START_LIMIT_S)
            if answer is not None and answer.get("ready"):
                child.ready = answer
                continue
            why = self._why(child, START_LIMIT_S)
            self._end()
        raise JobError(f"the process that checks operators failed to start: {why}", "run it by hand to see more")

    def run(self, units: Iterable[Unit], tell: Callable[[Unit, float, list[Finding]], None]) -> None:
        """Check each unit, and call `tell` with the unit, its seconds and its findings. Raises: JobError.

        Neighbouring operators may all abort in a library's assertion, as in Metal's, on an intact device: it is lost
        only if a unit that was computed before ends a child, too.
        """
        lost, proven = 0, None
        for unit in units:
            self.ops()
            begun, before = time.perf_counter(), self.restarts
            findings = self._one(unit)
            tell(unit, time.perf_counter() - begun, findings)
            if self.restarts == before:
                lost, proven = 0, unit
                continue
            lost += 1
            if lost == MOST_LOST_IN_A_ROW:
                if proven is not None and self._still_computes(proven):
                    lost = 0
                    continue
                why = findings[-1].detail
                raise JobError(
                    f"{lost} operators one after the other ended the process that checked them; the last: {why}",
                    "the device may be gone: try a workload on it, or --set ops=... without these",
                )

    def _still_computes(self, proven: Unit) -> bool:
        """Return whether a new child completes a unit that was completed before."""
        self.ops()
        before = self.restarts
        self._one(proven)
        return self.restarts == before

    def _one(self, unit: Unit) -> list[Finding]:
        child = self._child
        assert child is not None and child.process.stdin is not None
        child.log_from = os.fstat(child.log.fileno()).st_size
        findings: list[Finding] = []
        at, until = unit.directions[0], time.monotonic() + self.limit_s
        line = json.dumps({"op": unit.op, "dtype": unit.dtype, "directions": unit.directions}) + "\n"
        try:
            child.process.stdin.write(line.encode())
            child.process.stdin.flush()
        except OSError:  # it died between two units
            pass
        while (answer := self._answer(child, until - time.monotonic())) is not None:
            if answer.get("done") and not answer["lost"]:
                return findings
            if answer.get("done"):
                break
            if "at" in answer:
                at = answer["at"]
            else:
                findings.append(_found(unit, answer))
                if (why := gave_up(self._log(child))) is not None:
                    findings[-1] = replace(findings[-1], verdict=ERROR, detail=why, first_s=None, times_s=())
                    break
        if answer is None:
            findings.append(Finding(unit, at, ERROR, self._why(child, self.limit_s)))
        self._replace()
        if len(unit.directions) > 1 and [one.direction for one in findings] == [unit.directions[0]]:
            rest = replace(unit, directions=unit.directions[1:])
            self.ops()
            findings += [replace(one, unit=unit) for one in self._one(rest)]
        return findings

    def _replace(self) -> None:
        self._end()
        self.restarts += 1

    def _answer(self, child: _Child, within_s: float) -> dict[str, Any] | None:
        """Return the next line; None if there is none within that time, or the child is gone."""
        until = time.monotonic() + within_s
        while b"\n" not in child.buffer:
            ready, _, _ = select.select([child.answers], [], [], max(0.0, until - time.monotonic()))
            some = os.read(child.answers, 1 << 16) if ready else b""
            if not some:
                child.silent = bool(ready)
                return None
            child.buffer += some
        line, _, child.buffer = child.buffer.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _why(self, child: _Child, limit_s: float) -> str:
        """Return why a child does not answer."""
        if not child.silent:
            return f"no end within {limit_s:g} s"
        try:
            code = child.process.wait(10)  # its answers are closed: it is exiting
        except subprocess.TimeoutExpired:
            return "it stopped answering"
        log = self._log(child)
        if code < 0:
            reason = next((line for line in log.splitlines() if "rror" in line or "failed assertion" in line), "")
            return f"crash: {_named(-code)}" + (f": {first_line(reason)}" if reason else "")
        last = [line for line in log.splitlines() if line.strip()][-1:]
        return f"its process ended with {code}" + (f": {first_line(last[0])}" if last else "")

    def _log(self, child: _Child) -> str:
        """Return its stderr of the current unit. The file position is shared with the child and must not move."""
        fd = child.log.fileno()
        size = min(os.fstat(fd).st_size - child.log_from, _LOG_BYTES)
        return os.pread(fd, max(0, size), child.log_from).decode("utf-8", "replace")

    def _end(self) -> None:
        """Kill the child and close its descriptors."""
        child, self._child = self._child, None
        if child is None:
            return
        child.process.kill()
        child.process.wait()
        if child.process.stdin is not None:
            try:
                child.process.stdin.close()
            except OSError:  # unread input
                pass
        os.close(child.answers)
        os.close(child.life)
        child.log.close()


def _named(number: int) -> str:
    """Return the name of a signal, SIGSEGV for 11; its number if it has none."""
    return next((one.name for one in signal.Signals if one == number), f"signal {number}")


def _found(unit: Unit, answer: Mapping[str, Any]) -> Finding:
    return Finding(
        unit=unit,
        direction=answer["direction"],
        verdict=answer["verdict"],
        detail=answer["detail"],
        n=answer["n"],
        n_bad=answer["n_bad"],
        first_s=answer["first_s"],
        times_s=tuple(answer["times_s"]),
        random=answer["random"],
        profiled=tuple(answer["profiled"]),
    )
