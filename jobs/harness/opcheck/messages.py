"""Verdicts from torch's messages about operators that a device does not compute. Standard library only.

The wordings are those of torch 2.13's macOS build (ATen/mps) and of its dispatcher. None is an interface, so an
unrecognised message stays an error with its own text.
"""

from __future__ import annotations

import re

NATIVE = "native"
"""The device computed the CPU's result."""
FALLBACK = "fallback"
"""The device's backend let the CPU compute the result."""
MISSING = "missing"
"""Not implemented: there is no kernel, or none for this dtype."""
WRONG = "wrong"
"""The device's result differs from the CPU's."""
ERROR = "error"
"""An exception, a crash, a timeout, or out of memory."""
UNCHECKED = "unchecked"
"""The device computed a result, and the CPU has no kernel to compare it with."""
VERDICTS = (NATIVE, FALLBACK, MISSING, WRONG, ERROR, UNCHECKED)

NO_MEMORY = "out of memory"

_FALLBACK = re.compile(r"The operator '([^']+)' is not currently supported on the MPS backend and will fall back")
_OTHER_FALLBACK = re.compile(r"^(.*?)[:,.]? *(?:is )?not supported on MPS backend\. Falling back on CPU", re.M)
_PROFILED = re.compile(r"^CPU Fallback::([\w:.]+)", re.M)
_NO_KERNEL = re.compile(r"The operator '([^']+)' is not currently implemented for the MPS device")
_DISTRIBUTED = re.compile(r"The distributed operator '([^']+)'")
_NOT_DISPATCHED = re.compile(r"Could not run '([^']+)' with arguments from the '([^']+)' backend")
_NO_DTYPE = re.compile(r"[\"']([\w:.]+)[\"'] not implemented for [\"'](\w+)[\"']")
_FLOAT64 = "MPS framework doesn't support float64"
_NO_MEMORY = re.compile(
    r"out of memory|can't allocate memory|not enough memory|Invalid buffer size|Cannot allocate memory"
    r"|Insufficient Memory \(\w+:kIOGPUCommandBuffer",
    re.I,
)
_NOT_SUPPORTED = re.compile(
    r"not (?:yet |currently )?(?:implemented|supported|available)|unsupported|(?:does not|doesn't|only) support"
    r"|no kernel|expects? .{0,40} but found (?:Half|BFloat16|Bool|Long)",
    re.I,
)
_REFUSED = re.compile(r"\w+_STATUS_NOT_SUPPORTED")
"""A library's status for a case without a kernel: not the sign of a lost device."""
_LOST = re.compile(r"CUDA error|device-side assert|illegal (?:memory access|address)|command buffer", re.I)
_GAVE_UP = re.compile(
    r"command buffer exited with error status|Execution of the command buffer was aborted due to an error"
)
_REASON = re.compile(r"[A-Z][\w /]+ \([0-9a-f]{8}:\w+\)")
_CONTROL = re.compile(r"\s+")


def fallen_back(warning: str) -> str | None:
    """Return the operator in a warning of a fallback to the CPU; None for another warning.

    A kernel without a name in its warning is called by the words before it.
    """
    if match := _FALLBACK.search(warning):
        return match[1]
    if match := _OTHER_FALLBACK.search(warning):
        return _CONTROL.sub(" ", match[1]).strip()[:80] or "unnamed"
    return None


def profiled(log: str) -> list[str]:
    """Return the operators that PYTORCH_MPS_LOG_PROFILE_INFO=4 logs as computed by the CPU, each once.

    A line is the operator, its tensors and figures: "CPU Fallback::aten::poisson:MPS:Float[5] (id=1, run=1, ...".
    """
    names = (found.split(":MPS", 1)[0].split(":CPU", 1)[0].rstrip(":") for found in _PROFILED.findall(log))
    return list(dict.fromkeys(names))


def read_error(kinds: str, text: str) -> tuple[str, str]:
    """Return verdict and reason for an operator that raised. `kinds` are the names of the exception's classes.

    For an operator that the CPU computes with the same arguments: what the CPU refuses too says nothing.
    """
    if "OutOfMemoryError" in kinds or "MemoryError" in kinds or _NO_MEMORY.search(text):
        return ERROR, f"{NO_MEMORY}: {first_line(text)}"
    if match := _NO_KERNEL.search(text):
        return MISSING, f"no kernel for {match[1]}"
    if match := _DISTRIBUTED.search(text):
        return MISSING, f"no kernel for {match[1]}, which is distributed and cannot fall back"
    if match := _NOT_DISPATCHED.search(text):
        return MISSING, f"no kernel for {match[1]} on {match[2]}"
    if match := _NO_DTYPE.search(text):
        return MISSING, f"{match[1]} has no {match[2]}"
    if _FLOAT64 in text:
        return MISSING, "MPS has no float64"
    if device_lost(text):
        return ERROR, first_line(text)
    if "NotImplementedError" in kinds or _REFUSED.search(text) or _NOT_SUPPORTED.search(text):
        return MISSING, first_line(text)
    return ERROR, f"{kinds.split(' ')[0]}: {first_line(text)}"


def gave_up(log: str) -> str | None:
    """Return Metal's message on stderr that it did not finish its work; None if there is none.

    torch then raises nothing and continues with old contents of the memory: the result says nothing of the operator.
    """
    if (match := _GAVE_UP.search(log)) is None:
        return None
    reason = _REASON.search(log, match.start())
    return first_line(match[0] + (f": {reason[0].strip()}" if reason else ""))


def device_lost(text: str) -> bool:
    """Return whether an error may leave the device unusable for the rest of the process."""
    return bool(_LOST.search(text)) and not _REFUSED.search(text)


def first_line(text: str, most: int = 200) -> str:
    """Return the first non-empty line, at most `most` characters."""
    lines = (_CONTROL.sub(" ", line).strip() for line in text.splitlines())
    text_line = next((line for line in lines if line), "no text")
    return text_line if len(text_line) <= most else text_line[: most - 1] + "…"
