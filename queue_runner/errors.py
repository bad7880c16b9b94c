"""Errors a user can cause: a message, a hint, and the documented exit code.

Caught in one place, cli/main. The exit codes are listed in docs/cli.md.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence

_SHORT_OF = frozenset(
    getattr(errno, name)
    for name in ("ENOSPC", "EDQUOT", "ENOMEM", "EAGAIN", "EMFILE", "ENFILE", "EROFS", "EIO", "ETIMEDOUT", "EINTR")
)


def is_shortage(error: OSError) -> bool:
    """Return whether a resource shortage caused the error, so that any job would fail now but may start later."""
    return error.errno in _SHORT_OF


class MpsqError(Exception):
    """An error the user can fix. `message` states the problem, `hint` the remedy."""

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    @property
    def with_remedy(self) -> str:
        """The message with its remedy, where both stand on one line."""
        return f"{self.message} ({self.hint})" if self.hint else self.message


class UsageError(MpsqError):
    """The command line or a value in it is invalid."""

    exit_code = 2


class WaitedJobFailed(MpsqError):
    """`mpsq wait` saw a job end in anything but SUCCEEDED."""

    exit_code = 3


class SchemaError(MpsqError):
    """The database has another schema version than this mpsq."""

    exit_code = 4


class RunActive(SchemaError):
    """The schema must be migrated, but a run is still active under its warden and must end first."""


class DamageError(MpsqError):
    """The database file is damaged or not a database: a restart does not fix it."""


class ConfigError(MpsqError):
    """The settings file is invalid: a restart does not fix it."""


class OwnershipError(MpsqError):
    """Another user owns or may write the queue's files: a restart does not fix it."""


class AlreadyRunning(MpsqError):
    """Another worker holds this queue (EX_TEMPFAIL of sysexits.h)."""

    exit_code = 75


class WaitTimeout(MpsqError):
    """`mpsq wait` timed out (the exit code of timeout(1))."""

    exit_code = 124


def did_you_mean(word: str, known: Sequence[str] | set[str] | Mapping[str, object], otherwise: str) -> str:
    """Return a hint that names the nearest known word, and where the others are listed."""
    import difflib  # deferred: takes a millisecond, and few commands need it

    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f'did you mean "{near[0]}"? {otherwise}' if near else otherwise
