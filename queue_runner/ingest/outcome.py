"""The outcome of a run, decided in one place and only from the warden's exit.json."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping

from msgspec.structs import replace

from queue_runner.host.warden_records import RunEnd
from queue_runner.ingest.last_words import NO_MEMORY, NO_SPACE
from queue_runner.model import EXIT_DEVICE_UNAVAILABLE, EXIT_OUT_OF_MEMORY, Ending, Outcome
from queue_runner.text import plain

SILENT = "it wrote nothing to stderr"
"""The reason of a failure without last words."""
_STOPPED = {
    "cancel": Outcome.CANCELLED,
    "timeout": Outcome.TIMED_OUT,
    "stall": Outcome.STALLED,
    "output": Outcome.OUTPUT_LIMIT,
    "disk": Outcome.DISK_FULL,
}

_CRASHES = {signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP}
"""Signals raised by a program's own fault; only an `abort` or a bug sends them."""

_REPORTED = {
    EXIT_DEVICE_UNAVAILABLE: ("device_unavailable", Outcome.DEVICE_UNAVAILABLE),
    EXIT_OUT_OF_MEMORY: ("oom", Outcome.OUT_OF_MEMORY),
}

_METAL_MEMORY = re.compile(rb"^.*Insufficient Memory \(\w+:kIOGPUCommandBuffer.*$", re.MULTILINE)
"""The error that MLX throws where nothing can catch it, so that the process aborts (ml-explore/mlx issue 3390)."""
_METAL_FAILED = re.compile(
    rb"command buffer exited with error status|Execution of the command buffer was aborted due to an error"
)
_METAL_REASON = re.compile(rb"^\s*(?:[\w ]+\. )?([A-Z][\w ()/]{2,80}) \([0-9a-f]{8}:", re.MULTILINE)


def of_exit(exit_: RunEnd, notes: Mapping[str, str]) -> Ending:
    """Return the ending from an exit.json. `notes` are the texts of the run's notes by kind: an exit code of 69 or 71
    has its meaning of sysexits.h only if the job's events say the same."""
    if exit_.spawn_error is not None:
        return Ending(Outcome.SPAWN_FAILED, reason=plain(exit_.spawn_error.text))
    code, number, stop = exit_.exit_code, exit_.signal, exit_.stop
    if stop is not None and (exit_.stopped or (code is None and number is None)):
        return Ending(_STOPPED[stop.cause], code, number, plain(stop.detail))
    if number is not None:
        if number == signal.SIGKILL and exit_.oom_killed:
            return Ending(Outcome.OUT_OF_MEMORY, signal=number, reason="the kernel killed it because memory ran out")
        how = "it crashed" if number in _CRASHES else "sent from outside mpsq"
        return Ending(Outcome.KILLED, signal=number, reason=f"{_signal_name(number)}: {how}")
    if code == 0:
        return Ending(Outcome.SUCCEEDED, 0)
    if code in _REPORTED and _REPORTED[code][0] in notes:
        kind, outcome = _REPORTED[code]
        return Ending(outcome, code, reason=notes[kind])
    return Ending(Outcome.FAILED, code)


def with_last_words(ending: Ending, last_words: str, end: bytes = b"") -> Ending:
    """Return a failure with the job's last words on stderr as its reason. If they are a framework's error for lack of
    memory, it ran out of memory: a program not adapted to mpsq does not use exit code 71. If they are the system's
    words for a full disk, it is DISK_FULL. `end` is more of stderr: the words of an aborting process may be followed by
    those of its helpers."""
    if ending.signal == signal.SIGABRT and (error := _METAL_MEMORY.search(end)):
        words = plain(error[0].decode("utf-8", "replace")).strip()
        return replace(ending, outcome=Outcome.OUT_OF_MEMORY, reason=words)
    if ending.reason or ending.outcome is not Outcome.FAILED:
        return ending
    outcome = Outcome.DISK_FULL if NO_SPACE.search(last_words) else Outcome.FAILED
    outcome = Outcome.OUT_OF_MEMORY if NO_MEMORY.match(last_words) else outcome
    return replace(ending, outcome=outcome, reason=last_words or SILENT)


def failed_on_metal(stderr: bytes) -> str | None:
    """Return a sentence if Metal reports that it did not finish its work. torch only lets it report that and continues
    with whatever was in memory in place of the results (pytorch issues 125442, 123171)."""
    if (error := _METAL_FAILED.search(stderr)) is None:
        return None
    reason = _METAL_REASON.search(stderr, error.start())
    why = f" ({plain(reason[1].decode('utf-8', 'replace')).strip()})" if reason else ""
    return f"Metal aborted a command buffer{why}: its results are missing"


def of_silence(*, rebooted: bool) -> Ending:
    """Return the ending of a run that was started, left no exit.json and no longer has a warden."""
    if rebooted:
        return Ending(Outcome.LOST, reason="reboot: the machine went down while it ran")
    return Ending(Outcome.LOST, reason="warden_died: its supervisor left no record, so its exit status is unknown")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
