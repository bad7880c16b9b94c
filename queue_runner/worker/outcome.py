"""What the warden's exit.json means: the outcome of a run, decided in one place and from the warden's word alone."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from queue_runner.model import EXIT_DEVICE_UNAVAILABLE, EXIT_OUT_OF_MEMORY, Ending, Outcome
from queue_runner.text import plain

_STOPPED = {
    "cancel": Outcome.CANCELLED,
    "timeout": Outcome.TIMED_OUT,
    "stall": Outcome.STALLED,
    "output": Outcome.OUTPUT_LIMIT,
    "disk": Outcome.OUTPUT_LIMIT,
}

_CRASHES = {signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP}
"""Signals that a program's own fault raises; nothing but an `abort` or a bug sends them."""

_SAID = {
    EXIT_DEVICE_UNAVAILABLE: ("device_unavailable", Outcome.DEVICE_UNAVAILABLE),
    EXIT_OUT_OF_MEMORY: ("oom", Outcome.OUT_OF_MEMORY),
}

_NO_MEMORY = re.compile(
    r"(?:[A-Za-z_][\w.]*\.)?(?:OutOfMemoryError|MemoryError)\b"
    r"|[A-Za-z_][\w.]*Error: .*(?:(?:CUDA|MPS backend) out of memory|RESOURCE_EXHAUSTED: Out of memory"
    r"|DefaultCPUAllocator: (?:can't allocate|not enough) memory|malloc\] (?:Unable|Attempting) to allocate"
    r"|Insufficient Memory \(\w+:kIOGPUCommandBuffer)"
)
"""The last line of a traceback that torch, jax, mlx or Python itself ends with when memory runs out."""

_METAL_MEMORY = re.compile(rb"^.*Insufficient Memory \(\w+:kIOGPUCommandBuffer.*$", re.MULTILINE)
"""What MLX throws where nothing can catch it, so that the process aborts (ml-explore/mlx issue 3390)."""
_METAL_FAILED = re.compile(
    rb"command buffer exited with error status|Execution of the command buffer was aborted due to an error"
)
_METAL_REASON = re.compile(rb"^\s*(?:[\w ]+\. )?([A-Z][\w ()/]{2,80}) \([0-9a-f]{8}:", re.MULTILINE)


def of_exit(exit_: Mapping[str, Any], notes: Mapping[str, str]) -> Ending:
    """The ending that an exit.json tells. `notes` are the texts of the run's notes by kind: an exit code of 69 or 71
    means what sysexits.h says only when the job has also said so in its events."""
    if exit_.get("spawn_error"):
        text = exit_["spawn_error"].get("text", "it could not be started")
        return Ending(Outcome.SPAWN_FAILED, reason=plain(str(text)))
    code, number, stop = exit_.get("exit_code"), exit_.get("signal"), exit_.get("stop")
    if stop and (exit_.get("stopped") or (code is None and number is None)):
        return Ending(_STOPPED[stop["cause"]], code, number, plain(str(stop.get("detail", ""))))
    if number is not None:
        if number == signal.SIGKILL and exit_.get("oom_killed"):
            return Ending(Outcome.OUT_OF_MEMORY, signal=number, reason="the kernel killed it for memory")
        how = "it crashed" if number in _CRASHES else "sent from outside mpsq"
        return Ending(Outcome.KILLED, signal=number, reason=f"{_signal_name(number)}: {how}")
    if code == 0:
        return Ending(Outcome.SUCCEEDED, 0)
    if code in _SAID and _SAID[code][0] in notes:
        kind, outcome = _SAID[code]
        return Ending(outcome, code, reason=notes[kind])
    return Ending(Outcome.FAILED, code)


def with_last_words(ending: Ending, said: str, end: bytes = b"") -> Ending:
    """A failure whose reason is the last thing that the job said on stderr. Where that is the error of a framework
    without memory, it ran out of memory: a program that nobody adapted to mpsq knows no exit code of 71. `end` is more
    of stderr: behind the words of a process that aborts there may be those of its helpers."""
    if ending.signal == signal.SIGABRT and (found := _METAL_MEMORY.search(end)):
        words = plain(found[0].decode("utf-8", "replace")).strip()
        return replace(ending, outcome=Outcome.OUT_OF_MEMORY, reason=words)
    if ending.reason or ending.outcome is not Outcome.FAILED:
        return ending
    outcome = Outcome.OUT_OF_MEMORY if _NO_MEMORY.match(said) else Outcome.FAILED
    return replace(ending, outcome=outcome, reason=said or "it said nothing on stderr")


def failed_on_metal(stderr: bytes) -> str | None:
    """A sentence where Metal says that it did not finish what it was given. torch only lets it say so and goes on, with
    whatever was in memory in the place of results (pytorch issues 125442, 123171)."""
    if (found := _METAL_FAILED.search(stderr)) is None:
        return None
    reason = _METAL_REASON.search(stderr, found.start())
    why = f" ({plain(reason[1].decode('utf-8', 'replace')).strip()})" if reason else ""
    return f"Metal gave up a command buffer{why}: what it should have computed is missing"


def of_silence(*, rebooted: bool) -> Ending:
    """The ending of a run that was started, left no exit.json and has no warden any more."""
    if rebooted:
        return Ending(Outcome.LOST, reason="reboot: the machine went down while it ran")
    return Ending(Outcome.LOST, reason="warden_died: its supervisor left no word, so its exit status is not known")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
