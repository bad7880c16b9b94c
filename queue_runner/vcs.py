"""What git knows of the code that is submitted: commit, branch, and the patch of the tracked files."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

MAX_DIFF_BYTES = 4 << 20
_TIMEOUT_S = 20.0
_SECRET_FILES = (".env*", "*.pem", "id_*", ".netrc")


@dataclass(frozen=True)
class Revision:
    """The state of a work tree. `diff` is None when it was larger than MAX_DIFF_BYTES."""

    commit: str
    branch: str | None
    dirty: bool
    diff: str | None


def revision(folder: Path) -> Revision | None:
    """The revision of the repository around `folder`; None outside of one, without git, or without a commit."""
    if not any((parent / ".git").exists() for parent in (folder, *folder.parents)):
        return None
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    branch = _git(folder, "symbolic-ref", "--short", "-q", "HEAD")
    leave_out = [f":(exclude,glob)**/{pattern}" for pattern in _SECRET_FILES]
    diff = _git(folder, "diff", "--binary", "--no-ext-diff", "--no-textconv", "HEAD", "--", ":/", *leave_out)
    too_large = diff is not None and len(diff) > MAX_DIFF_BYTES
    return Revision(commit.strip(), branch.strip() if branch else None, bool(diff), None if too_large else diff)


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
            env=None,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else None
