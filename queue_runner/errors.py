"""Errors a user can cause: a sentence, a hint, and the documented exit code.

Raised deep, caught once (cli/main). The exit codes are listed in docs/cli.md.
"""

from __future__ import annotations


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
