"""Modes and hashes of files on the disk, as git would store them."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from queue_runner.host.filesystem import open_regular
from queue_runner.source import git_commands

_READ_BYTES = 1 << 20
_TRIES = 3

Content = tuple[str, str]
"""The content of a file: its mode in git, 100644, 100755 or 120000 (a link), and the hash of its blob (hex)."""


def read(root: Path, paths: Iterable[str], oid_length: int) -> dict[str, Content]:
    """Return the content of each file as git would store it (line ends, LFS). Files that do not exist or cannot be read
    are omitted, as is everything that is neither a file nor a link, or lies behind a link.

    `oid_length` is 40 for SHA-1 repositories, 64 for SHA-256 (gitformat-pack, "object names").
    """
    modes = {path: mode for path in _not_below_links(root, paths) if (mode := _mode(root / path)) is not None}
    oids = _hashes_of_git(root, [path for path, mode in modes.items() if mode != "120000"])
    for path in modes.keys() - oids.keys():
        if (oid := _blob_hash(root / path, modes[path], oid_length)) is not None:
            oids[path] = oid
    return {path: (mode, oids[path]) for path, mode in modes.items() if path in oids}


def _not_below_links(root: Path, paths: Iterable[str]) -> Iterator[str]:
    real_root = os.path.realpath(root)
    is_inside: dict[Path, bool] = {}
    for path in paths:
        folder = Path(path).parent
        if folder not in is_inside:
            is_inside[folder] = os.path.realpath(root / folder) == str(real_root / folder)
        if is_inside[folder]:
            yield path


def _mode(path: Path) -> str | None:
    try:
        status = path.lstat()
    except OSError:
        return None
    if stat.S_ISLNK(status.st_mode):
        return "120000"
    if stat.S_ISREG(status.st_mode):
        return "100755" if status.st_mode & 0o100 else "100644"
    return None


def _hashes_of_git(root: Path, paths: Collection[str]) -> dict[str, str]:
    """Return the hashes that git computes, which are those after its filters; none outside of a repository."""
    listable = [path for path in paths if "\n" not in path and not path.startswith('"') and not path.endswith("\r")]
    if not listable or git_commands.work_tree(root) is None:
        return {}
    for _ in range(_TRIES):
        readable = [path for path in listable if os.access(root / path, os.R_OK)]
        names = b"".join(os.fsencode(path) + b"\n" for path in readable)
        try:
            oids = git_commands.git(root, "hash-object", "--stdin-paths", input=names).decode().split()
            return dict(zip(readable, oids, strict=True))
        except (git_commands.GitFailed, ValueError):
            continue  # a file was removed meanwhile
    return {}


def _blob_hash(path: Path, mode: str, oid_length: int) -> str | None:
    """Return the hash of a blob with the bytes of this file or link; None when it cannot be read."""
    new = hashlib.sha1 if oid_length == 40 else hashlib.sha256
    try:
        if mode == "120000":
            target = os.fsencode(path.readlink())
            return new(b"blob %d\0%s" % (len(target), target)).hexdigest()
        with os.fdopen(open_regular(path), "rb") as stream:
            digest = new(b"blob %d\0" % os.fstat(stream.fileno()).st_size)
            while data := stream.read(_READ_BYTES):
                digest.update(data)
            return digest.hexdigest()
    except OSError:
        return None
