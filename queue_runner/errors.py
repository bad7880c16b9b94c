"""Errors a user can cause: a sentence, a hint, and the documented exit code.

Raised deep, caught once (cli/main). The exit codes are listed in docs/cli.md.
"""

from __future__ import annotations

import difflib
import errno
from collections.abc import Mapping, Sequence

_SHORT_OF = frozenset(
    getattr(errno, name)
    for name in ("ENOSPC", "EDQUOT", "ENOMEM", "EAGAIN", "EMFILE", "ENFILE", "EROFS", "EIO", "ETIMEDOUT", "EINTR")
)


def is_shortage(error: OSError) -> bool:
    """Whether the machine is short of something, so that any job would be refused now and may be started later."""
    return error.errno in _SHORT_OF


class MpsqError(Exception):
    """Something the user can mend. `message` says what is wrong, `hint` what to do about it."""

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(MpsqError):
    """The command line or a value in it cannot be understood."""

    exit_code = 2


class WaitedJobFailed(MpsqError):
    """`mpsq wait` saw a job end in anything but SUCCEEDED."""

    exit_code = 3


class SchemaError(MpsqError):
    """The database is of another schema version than this mpsq."""

    exit_code = 4


class RunActive(SchemaError):
    """The schema has to be changed, and a run goes on under its warden: that has to end first."""


class DamageError(MpsqError):
    """The database file is damaged, or is none: a restart does not mend it."""


class ConfigError(MpsqError):
    """The settings file cannot be understood: a restart does not mend it."""


class AlreadyRunning(MpsqError):
    """Another worker holds this queue (EX_TEMPFAIL of sysexits.h)."""

    exit_code = 75


class WaitTimeout(MpsqError):
    """The time given to `mpsq wait` has passed (the code of timeout(1))."""

    exit_code = 124


def did_you_mean(word: str, known: Sequence[str] | set[str] | Mapping[str, object], otherwise: str) -> str:
    """A hint that names the nearest known word, and where the others are listed."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f'did you mean "{near[0]}"? {otherwise}' if near else otherwise
