"""Errors with a message, a hint and an exit code, shown to the user instead of a traceback."""

from __future__ import annotations

import sys

EX_ERROR = 1
EX_USAGE = 2
EX_UNAVAILABLE = 69
"""EX_UNAVAILABLE of sysexits.h: the device is unavailable. The queue reads it as DEVICE_UNAVAILABLE."""
EX_OUT_OF_MEMORY = 71
"""EX_OSERR of sysexits.h. The queue reads it as OUT_OF_MEMORY."""


class JobError(Exception):
    """An error that ends the workload. `note` is the kind of the note that tells the queue about it."""

    def __init__(self, message: str, hint: str = "", exit_code: int = EX_ERROR, note: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.exit_code = exit_code
        self.note = note

    def show(self) -> int:
        """Print message and hint to stderr. Return the exit code."""
        sys.stdout.flush()
        print(f"error: {self.message}" + (f"\n\nhint: {self.hint}" if self.hint else ""), file=sys.stderr, flush=True)
        return self.exit_code


class UsageError(JobError):
    """A command line or a setting that is not valid. Exit code 2."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, hint, EX_USAGE)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, at most 500 characters; the name of its class if it has none."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:500] if lines else type(error).__name__
