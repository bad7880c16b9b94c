"""Git's hashes of files: of the blob that git would store."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from queue_runner.source import git_commands

_READ_BYTES = 1 << 20
_TRIES = 3


def mode_of(status: os.stat_result) -> str | None:
    """Return a file's mode as git stores it; None for what is neither a file nor a link."""
    if stat.S_ISLNK(status.st_mode):
        return "120000"
    if stat.S_ISREG(status.st_mode):
        return "100755" if status.st_mode & 0o100 else "100644"
    return None


def hashes(root: Path, modes: Mapping[str, str], oid_length: int) -> dict[str, str]:
    """Return the blob hash of each file, as git would store it (line ends, LFS); vanished files are omitted."""
    plain = [p for p, mode in modes.items() if mode != "120000" and "\n" not in p and not p.startswith('"')]
    found: dict[str, str] = {}
    if plain and git_commands.has_repository(root):
        for _ in range(_TRIES):
            there = [p for p in plain if _can_be_read(root / p)]
            names = b"".join(os.fsencode(p) + b"\n" for p in there)
            try:
                said = git_commands.git(root, "hash-object", "--stdin-paths", input=names).decode().split()
                found = dict(zip(there, said, strict=True))
                break
            except (git_commands.GitFailed, ValueError):
                continue  # a file vanished: retry with the others
    for path, mode in modes.items():
        if path not in found and (oid := blob_hash(root / path, mode, oid_length)) is not None:
            found[path] = oid
    return found


def _can_be_read(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode) and os.access(path, os.R_OK)
    except OSError:
        return False


def blob_hash(path: Path, mode: str, oid_length: int = 40) -> str | None:
    """Return the hash of a git blob with the bytes of this file or link; None when it cannot be read.

    `oid_length` is 40 for SHA-1 repositories, 64 for SHA-256 (gitformat-pack, "object names").
    """
    new = hashlib.sha1 if oid_length == 40 else hashlib.sha256
    try:
        if mode == "120000":
            target = os.fsencode(path.readlink())
            return new(b"blob %d\0%s" % (len(target), target)).hexdigest()
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as stream:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                return None
            digest = new(b"blob %d\0" % status.st_size)
            while data := stream.read(_READ_BYTES):
                digest.update(data)
            return digest.hexdigest()
    except OSError:
        return None
