"""Git's view of a work tree: only plumbing, no lock in the user's repository, no daemon, no prompt."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from queue_runner.host import find_tool
from queue_runner.source.rules import secret_pathspecs

MAX_DIFF_BYTES = 4 << 20
"""The limit for the stored patch, which is only for reading; what a rerun needs is stored separately."""
TIMEOUT_S = 20.0
_LEADS_ELSEWHERE = ("DIR", "WORK_TREE", "INDEX_FILE", "OBJECT_DIRECTORY", "COMMON_DIR", "PREFIX", "NAMESPACE")
"""GIT_* variables that a hook of git sets, and that would select another repository than the one around the folder."""


class GitFailed(Exception):
    """Git is missing, refuses, or timed out; the text says which, in a few words."""


class Revision(Struct, frozen=True):
    """The state of a work tree. `commit` is "" before the first one; `diff` is None when it was larger than
    MAX_DIFF_BYTES."""

    commit: str
    branch: str | None
    dirty: bool
    diff: str | None


def work_tree(folder: Path) -> Path | None:
    """Return the root of the repository around this folder, whatever git says of it; None outside of one."""
    return next((parent for parent in (folder, *folder.parents) if os.path.lexists(parent / ".git")), None)


def top(folder: Path) -> Path:
    """Return the root of the work tree around `folder`. Raises: GitFailed outside of one, or when git refuses."""
    return Path(os.fsdecode(git(folder, "rev-parse", "--show-toplevel").removesuffix(b"\n")))


def lists(root: Path, otherwise: bool) -> bool:
    """Return whether this folder is the root of a work tree; `otherwise` where git does not answer."""
    if work_tree(root) is None:
        return False
    try:
        return top(root) == root
    except GitFailed:
        return otherwise


def head(root: Path) -> tuple[str, str | None]:
    """Return (commit, branch): "" before the first commit, None for a detached HEAD. Raises: GitFailed."""
    try:
        commit = git(root, "rev-parse", "--verify", "-q", "HEAD^{commit}").decode().strip()
    except GitFailed:
        commit = ""
    try:
        branch = git(root, "symbolic-ref", "--short", "-q", "HEAD").decode("utf-8", "replace").strip()
    except GitFailed:
        branch = ""
    return commit, branch or None


def revision(folder: Path) -> Revision | None:
    """Return the revision of the repository around `folder`; None outside of one, without git, or without a commit."""
    if work_tree(folder) is None:
        return None
    try:
        root = top(folder)
        commit, branch = head(root)
        if not commit:
            return None
        patch = diff(root, commit)
    except GitFailed:
        return None
    return Revision(commit, branch, patch != "", patch)


def diff(root: Path, commit: str, leave_out: Sequence[str] = ()) -> str | None:
    """Return the patch from `commit` to the tracked files on disk, without secrets and the paths `leave_out`; None when
    it is too large. Bytes that are not UTF-8 are replaced: it is for reading. Raises: GitFailed."""
    specs = [*secret_pathspecs(), *(f":(exclude,literal,top){path}" for path in leave_out)]
    options = ("--binary", "--no-ext-diff", "--no-textconv", "--no-renames", "--no-color", "--ignore-submodules=all")
    patch = git(root, "diff", *options, commit, "--", ":/", *specs, limit=MAX_DIFF_BYTES)
    return None if len(patch) > MAX_DIFF_BYTES else patch.decode("utf-8", "replace")


def commit_of(folder: Path, name: str) -> str:
    """Return the commit of this name, or of a tag or branch, in the repository around `folder`. Raises: GitFailed."""
    return git(folder, "rev-parse", "--verify", "-q", "--end-of-options", f"{name}^{{commit}}").decode().strip()


def check_out(root: Path, commit: str, target: Path) -> None:
    """Write the tree of a commit to `target`, as a repository that borrows its objects; nothing in `root` changes.

    Raises: GitFailed.
    """
    objects = os.fsdecode(git(root, "rev-parse", "--path-format=absolute", "--git-path", "objects").rstrip(b"\n"))
    kind = git(root, "rev-parse", "--show-object-format").decode().strip()
    git(root, "init", "-q", "--template=", f"--object-format={kind}", str(target))
    (target / ".git" / "objects" / "info").mkdir(exist_ok=True)
    (target / ".git" / "objects" / "info" / "alternates").write_bytes(os.fsencode(objects) + b"\n")
    git(target, "checkout", "-q", "--detach", commit)


def ignored(root: Path) -> list[str]:
    """Return the files and folders that git ignores; a folder ends with a slash, and nothing below it is listed.

    Raises: GitFailed.
    """
    options = ("--porcelain=v1", "-z", "--ignored=matching", "--untracked-files=all", "--ignore-submodules=all")
    lines = git(root, "status", *options).split(b"\0")
    return [os.fsdecode(line.removeprefix(b"!! ")) for line in lines if line.startswith(b"!! ")]


def are_ignored(root: Path, names: Iterable[str]) -> set[str]:
    """Return those of these paths that git ignores; that of a folder ends with a slash. Raises: GitFailed."""
    listing = b"".join(os.fsencode(name) + b"\0" for name in names)
    answer = git(root, "check-ignore", "-z", "-v", "-n", "--stdin", input=listing).split(b"\0")
    matches = zip(answer[0::4], answer[2::4], answer[3::4], strict=False)  # file, line, pattern and path of each
    return {os.fsdecode(name) for file, pattern, name in matches if file and not pattern.startswith(b"!")}


def git(folder: Path, *arguments: str, input: bytes = b"", limit: int = -1) -> bytes:
    """Return the output of a git command; with `limit`, at most one byte more than that.

    Raises: GitFailed, with git's own message.
    """
    if sys.platform == "darwin" and find_tool.find("git") is None:
        raise GitFailed("git is not installed: xcode-select --install")
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stderr:
        stdin.write(input)
        stdin.seek(0)
        try:
            process = subprocess.Popen(
                ["git", "-c", "core.fsmonitor=false", "-C", str(folder), *arguments],
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=_environment(os.environ),
            )
        except OSError as error:
            missing = isinstance(error, FileNotFoundError)
            raise GitFailed("git is not installed" if missing else str(error.strerror)) from error
        timer = threading.Timer(TIMEOUT_S, process.kill)
        timer.daemon = True
        timer.start()
        try:
            with process:
                assert process.stdout is not None
                output: bytes = process.stdout.read(limit + 1 if limit >= 0 else -1)
                if 0 <= limit < len(output):
                    process.kill()
                    return output
            if process.returncode == 0:
                return output
            if not timer.is_alive():
                raise GitFailed(f"git took longer than {TIMEOUT_S:.0f} s")
            stderr.seek(0)
            lines = stderr.read(4096).decode("utf-8", "replace").strip().splitlines()
            raise GitFailed(lines[0].removeprefix("fatal: ") if lines else f"git ended with {process.returncode}")
        finally:
            timer.cancel()


def _environment(source: Mapping[str, str]) -> dict[str, str]:
    environment = {k: v for k, v in source.items() if not (k.startswith("GIT_") and k[4:] in _LEADS_ELSEWHERE)}
    return environment | {
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_NO_LAZY_FETCH": "1",
        "LC_ALL": "C",
    }
