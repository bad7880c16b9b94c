"""Stored trees, under snapshots/HASH/: the files of each, and as much of their content as its jobs need.

    manifest.gz   every path with its mode, its hash, and whether git tracked it
    changed.tar   the files that no commit holds: together with the commit they are the whole tree
    tree.tar      the whole tree, for jobs that run in a copy

A file is either whole or absent: it is written to a temporary name, synced and renamed.
"""

from __future__ import annotations

import gzip
import json
import os
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from queue_runner.source import git_commands, git_hash, rules
from queue_runner.source.scan import Entry, SourceTree

MANIFEST, CHANGED, WHOLE = "manifest.gz", "changed.tar", "tree.tar"
_VERSION = 1


class Vanished(Exception):
    """A file changed or disappeared while it was read; the text is its path."""


class Damaged(Exception):
    """A part of a stored tree is missing or altered; the text says which."""


@dataclass(frozen=True)
class Manifest:
    """The content of a tree. `missing` are the paths whose content is neither in a commit nor in changed.tar."""

    entries: Mapping[str, Entry]
    missing: tuple[str, ...] = ()


def has_whole(snapshots: Path, tree_hash: str) -> bool:
    """Return whether the whole tree is stored."""
    return (snapshots / tree_hash / WHOLE).is_file()


def has_manifest(snapshots: Path, tree_hash: str) -> bool:
    """Return whether the manifest of the tree is stored."""
    return (snapshots / tree_hash / MANIFEST).is_file()


def read_manifest(snapshots: Path, tree_hash: str) -> Manifest:
    """Read the manifest of a tree. Raises: Damaged."""
    path = snapshots / tree_hash / MANIFEST
    try:
        data = json.loads(gzip.decompress(path.read_bytes()))
        entries = {name: Entry((mode, oid), bool(tracked)) for name, (mode, oid, tracked) in data["entries"].items()}
        return Manifest(entries, tuple(data["missing"]))
    except FileNotFoundError as error:
        raise Damaged(f"{path} was deleted") from error
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"{path} cannot be read: {error}") from error


def store_manifest(snapshots: Path, tree: SourceTree, missing: Iterable[str]) -> None:
    """Store the manifest of the tree. Raises: OSError."""
    data = {
        "v": _VERSION,
        "missing": sorted(missing),
        "entries": {path: [*entry.content, int(entry.tracked)] for path, entry in tree.entries.items()},
    }
    packed = gzip.compress(json.dumps(data, separators=(",", ":")).encode(), compresslevel=1, mtime=0)
    _write(snapshots / tree.hash / MANIFEST, lambda stream: stream.write(packed))


def store_changed(snapshots: Path, tree: SourceTree, is_same: Callable[[], bool]) -> tuple[str, ...]:
    """Store what no commit holds, up to the limits; return the paths that were too large.

    `is_same` returns afterwards whether the tree is unchanged. Raises: Vanished when it is not; OSError.
    """
    total, chosen, missing = 0, [], []
    for path in sorted(tree.changed):
        size = tree.size(path)
        total += size
        if size > rules.MAX_FILE_BYTES or total > rules.MAX_UNTRACKED_BYTES:
            missing.append(path)
        else:
            chosen.append(path)
    if chosen:
        _write(snapshots / tree.hash / CHANGED, lambda stream: _pack(stream, tree, chosen), is_same)
    return tuple(missing)


def store_whole(snapshots: Path, tree: SourceTree, is_same: Callable[[], bool] = lambda: True) -> None:
    """Store the whole tree. `is_same` as in store_changed. Raises: Vanished, OSError."""
    _write(snapshots / tree.hash / WHOLE, lambda stream: _pack(stream, tree, sorted(tree.entries)), is_same)


def _pack(stream: IO[bytes], tree: SourceTree, paths: Iterable[str]) -> None:
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path in paths:
            try:
                _add(archive, tree, path)
            except OSError as error:
                if error.filename is None and "unexpected end of data" not in str(error):
                    raise  # an error of the disk that is written to
                raise Vanished(path) from error


def _add(archive: tarfile.TarFile, tree: SourceTree, path: str) -> None:
    info, mode = tarfile.TarInfo(path), tree.entries[path].mode  # without owner and time
    if mode == "120000":
        info.type, info.linkname = tarfile.SYMTYPE, str((tree.root / path).readlink())
        archive.addfile(info)
        return
    with git_hash.open_regular(tree.root / path) as source:
        info.mode = 0o755 if mode == "100755" else 0o644
        info.size = os.fstat(source.fileno()).st_size
        archive.addfile(info, source)


def _write(path: Path, fill: Callable[[IO[bytes]], object], is_same: Callable[[], bool] = lambda: True) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=".partial-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            fill(stream)
            stream.flush()
            os.fsync(stream.fileno())
        if not is_same():
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
    manifest, stored = read_manifest(snapshots, tree_hash), snapshots / tree_hash
    if manifest.missing:
        raise Damaged(f"{manifest.missing[0]} could not be stored")
    with tempfile.TemporaryDirectory(prefix=".partial-", dir=stored) as name:
        try:
            unpacked = _unpack_changed(stored / CHANGED, Path(name))
            committed = {path: entry for path, entry in manifest.entries.items() if path not in unpacked}
            for path, entry in committed.items():
                if not entry.tracked:
                    raise Damaged(f"{path} is in no commit and was not stored")
            if committed:
                git_commands.check_out(root, {path: entry.content for path, entry in committed.items()}, Path(name))
            store_whole(snapshots, SourceTree(Path(name), manifest.entries, {}))
        except tarfile.TarError as error:
            raise Damaged(f"{stored / CHANGED} cannot be read: {error}") from error
        except git_commands.GitFailed as error:
            raise Damaged(f"git cannot restore it: {error}") from error
        except Vanished as error:
            raise Damaged(f"git cannot restore {error}") from error


def _unpack_changed(path: Path, target: Path) -> frozenset[str]:
    """Unpack changed.tar, where there is one; return the paths that were in it."""
    if not path.is_file():
        return frozenset()
    with tarfile.open(path) as archive:
        archive.extraction_filter = lambda member, _: member  # links may lead anywhere
        archive.extractall(target)
        return frozenset(archive.getnames())
