"""Stored trees, under snapshots/HASH/: what was in each, and as much of its content as its jobs need.

    manifest.gz   every path with its mode, its hash, and whether git tracked it
    changed.tar   the files that no commit holds: with the commit's own they are the whole tree
    tree.tar      the whole tree, for jobs that run in a copy

A file is either whole or absent: it is written to a temporary name, synced and renamed.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import stat
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from queue_runner.source import git_commands, rules
from queue_runner.source.scan import Entry, SourceTree

MANIFEST, CHANGED, WHOLE = "manifest.gz", "changed.tar", "tree.tar"
_VERSION = 1
_COPY_BYTES = 1 << 20


class Vanished(Exception):
    """A file changed or disappeared while it was read; the text is its path."""


class Damaged(Exception):
    """A part of a stored tree is missing or altered; the text says which."""


@dataclass(frozen=True)
class Manifest:
    """The content of a tree. `missing` are the paths whose content is neither in a commit nor in changed.tar."""

    entries: Mapping[str, Entry]
    missing: tuple[str, ...] = ()


def folder_of(snapshots: Path, tree_hash: str) -> Path:
    """Return the folder of a stored tree."""
    return snapshots / tree_hash


def has_whole(snapshots: Path, tree_hash: str) -> bool:
    """Return whether the whole tree is stored."""
    return (folder_of(snapshots, tree_hash) / WHOLE).is_file()


def is_kept(snapshots: Path, tree_hash: str) -> bool:
    """Return whether the manifest of the tree is stored."""
    return (folder_of(snapshots, tree_hash) / MANIFEST).is_file()


def read_manifest(snapshots: Path, tree_hash: str) -> Manifest:
    """Read the manifest of a tree. Raises: Damaged."""
    path = folder_of(snapshots, tree_hash) / MANIFEST
    try:
        data = json.loads(gzip.decompress(path.read_bytes()))
        entries = {name: Entry(mode, oid, bool(tracked)) for name, (mode, oid, tracked) in data["entries"].items()}
        return Manifest(entries, tuple(data["missing"]))
    except FileNotFoundError as error:
        raise Damaged(f"{path} was deleted") from error
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"{path} cannot be read: {error}") from error


def keep_manifest(snapshots: Path, tree: SourceTree, missing: Iterable[str]) -> None:
    """Store the manifest of the tree. Raises: OSError."""
    data = {
        "v": _VERSION,
        "missing": sorted(missing),
        "entries": {path: [e.mode, e.oid, int(e.tracked)] for path, e in tree.entries.items()},
    }
    packed = gzip.compress(json.dumps(data, separators=(",", ":")).encode(), compresslevel=1, mtime=0)
    _write(folder_of(snapshots, tree.hash) / MANIFEST, lambda stream: stream.write(packed))


def keep_changed(snapshots: Path, tree: SourceTree, same: Callable[[], bool]) -> tuple[str, ...]:
    """Store what no commit holds, up to the limits; return the paths that were too large.

    `same` returns afterwards whether the tree is unchanged. Raises: Vanished when it is not; OSError.
    """
    total, taken, missing = 0, [], []
    for path in sorted(tree.changed):
        size = (tree.root / path).lstat().st_size if os.path.lexists(tree.root / path) else 0
        total += size
        if size > rules.MAX_FILE_BYTES or total > rules.MAX_UNTRACKED_BYTES:
            missing.append(path)
        else:
            taken.append(path)
    if taken:
        _write(folder_of(snapshots, tree.hash) / CHANGED, lambda stream: _pack(stream, tree, taken), same)
    return tuple(missing)


def keep_whole(snapshots: Path, tree: SourceTree, same: Callable[[], bool]) -> None:
    """Store the whole tree. `same` as in keep_changed. Raises: Vanished, OSError."""
    _write(folder_of(snapshots, tree.hash) / WHOLE, lambda stream: _pack(stream, tree, sorted(tree.entries)), same)


def _pack(stream: IO[bytes], tree: SourceTree, paths: Iterable[str]) -> None:
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as archive:
        _add_all(archive, tree, paths)


def _add_all(archive: tarfile.TarFile, tree: SourceTree, paths: Iterable[str]) -> None:
    for path in paths:
        mode = tree.entries[path].mode
        try:
            if mode == "120000":
                _add(archive, path, mode, link=str((tree.root / path).readlink()))
            else:
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                with os.fdopen(os.open(tree.root / path, flags), "rb") as source:
                    status = os.fstat(source.fileno())
                    if not stat.S_ISREG(status.st_mode):
                        raise Vanished(path)
                    _add(archive, path, mode, source, status.st_size)
        except OSError as error:
            if error.filename is None:
                raise  # an error of the disk that is written to
            raise Vanished(path) from error


def _add(
    archive: tarfile.TarFile, path: str, mode: str, source: IO[bytes] | None = None, size: int = 0, link: str = ""
) -> None:
    info = tarfile.TarInfo(path)
    info.mode = 0o755 if mode == "100755" else 0o644
    info.size = size
    if source is None:
        info.type, info.linkname = tarfile.SYMTYPE, link
    try:
        archive.addfile(info, source)
    except OSError as error:
        if "unexpected end of data" in str(error):  # the file was truncated meanwhile
            raise Vanished(path) from error
        raise


def _write(path: Path, fill: Callable[[IO[bytes]], object], same: Callable[[], bool] = lambda: True) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=".partial-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            fill(stream)
            stream.flush()
            os.fsync(stream.fileno())
        if not same():
            raise Vanished("")
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink()
        raise
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rebuild_whole(snapshots: Path, tree_hash: str, root: Path) -> None:
    """Rebuild tree.tar of a tree that is no longer on the disk, from changed.tar and the repository at `root`.

    Raises: Damaged when a part of it no longer exists anywhere; OSError.
    """
    manifest, place = read_manifest(snapshots, tree_hash), folder_of(snapshots, tree_hash)
    if manifest.missing:
        raise Damaged(f"{manifest.missing[0]} could not be kept")

    def fill(stream: IO[bytes]) -> None:
        with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as archive:
            left = dict(manifest.entries)
            if (place / CHANGED).is_file():
                with tarfile.open(place / CHANGED) as changed:
                    for info in changed:
                        left.pop(info.name, None)
                        archive.addfile(info, changed.extractfile(info) if info.isreg() else None)
            _add_from_git(archive, left, root, place)

    try:
        _write(place / WHOLE, fill)
    except tarfile.TarError as error:
        raise Damaged(f"{place / CHANGED} cannot be read: {error}") from error
    except Vanished as error:
        raise Damaged(f"git cannot give {error} back") from error


def _add_from_git(archive: tarfile.TarFile, wanted: Mapping[str, Entry], root: Path, near: Path) -> None:
    """Add every file that a commit has, by its hash; temporary files are written below `near`."""
    for path, entry in wanted.items():
        if not entry.tracked:
            raise Damaged(f"{path} is in no commit and was not kept")
    if not wanted:
        return
    with tempfile.TemporaryDirectory(prefix=".partial-", dir=near) as name:
        place = Path(name)
        try:
            git_commands.check_out(root, {path: (e.mode, e.oid) for path, e in wanted.items()}, place)
        except git_commands.GitFailed as error:
            raise Damaged(f"git cannot give it back: {error}") from error
        tree = SourceTree(place, wanted, {})
        _add_all(archive, tree, wanted)


def copy_kept(source: tarfile.ExFileObject | IO[bytes], target: Path, mode: str) -> None:
    """Write one stored file to a path that must not exist. Raises: OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(target, flags, 0o755 if mode == "100755" else 0o644), "wb") as stream:
        shutil.copyfileobj(source, stream, _COPY_BYTES)
