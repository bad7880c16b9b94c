"""The secrets that --secret names: files that only this user can read, below HOME/secrets, and in no backup
(docs/security.md).

Earlier versions also stored words of a command line in such files, each under the name of its placeholder in the
database. They are still read.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from queue_runner.errors import MpsqError, UsageError
from queue_runner.host import redact
from queue_runner.host.run_dir import read_regular
from queue_runner.model import Ending, Outcome
from queue_runner.paths import Layout

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Missing(MpsqError):
    """A secret, or the environment, of a job that no longer exists or that others may read."""

    def ending(self) -> Ending:
        return Ending(Outcome.SPAWN_FAILED, reason=f"{self.message}: {self.hint}")


def reveal(layout: Layout, argv: Iterable[str], env: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return a command line and variables with what their placeholders stand for. Raises: Missing."""
    folder = layout.words
    words = [_revealed(folder, word, "a word of its command line") for word in argv]
    return words, {name: _revealed(folder, value, f"the value of --env {name}") for name, value in env.items()}


def named(layout: Layout, names: Iterable[str]) -> dict[str, str]:
    """Return the variables of --secret by name. Raises: Missing."""
    return {name: _named(layout.secrets / name) for name in names}


def check_names(layout: Layout, names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of --secret, each once. Raises: UsageError for one that cannot be read, and how to create it."""
    for name in names:
        if not _NAME.fullmatch(name) or name.startswith("MPSQ_"):
            raise UsageError(f'--secret "{name}" cannot name a variable of the job', "for example --secret HF_TOKEN")
    try:
        named(layout, names)
    except Missing as error:
        raise UsageError(error.message, error.hint) from error
    return tuple(dict.fromkeys(names))


def stored(layout: Layout) -> list[Path]:
    """Return the files of words, each of which has the name of its placeholder."""
    try:
        return [path for path in layout.words.iterdir() if redact.PLACEHOLDER.fullmatch(path.name)]
    except OSError:
        return []


def _revealed(folder: Path, text: str, what: str) -> str:
    def word(match: re.Match[str]) -> str:
        try:
            return read_regular(folder / match[0]).decode(errors="surrogateescape")
        except OSError as error:
            raise Missing(f"{what} was a secret, and its file is gone", "submit it again, with the secret") from error

    return redact.PLACEHOLDER.sub(word, text)


def _named(path: Path) -> str:
    try:
        status = path.lstat()
    except OSError as error:
        raise Missing(f"there is no secret {path.name}", f"create its file: {_creation(path)}") from error
    if not stat.S_ISREG(status.st_mode) or status.st_uid not in (0, os.geteuid()):
        raise Missing(f"the secret {path} is not a file of yours", f"replace it: {_creation(path)}")
    if status.st_mode & 0o077:
        raise Missing(f"other users can read the secret {path}", f"chmod 600 {path}; renew it if they may have read it")
    try:
        return read_regular(path).decode().removesuffix("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise Missing(f"the secret {path} cannot be read: {error}", _creation(path)) from error


def _creation(path: Path) -> str:
    return f"(umask 077; mkdir -p {path.parent}; cat > {path})"
