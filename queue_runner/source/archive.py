"""Stored trees, under snapshots/HASH/: the files of each, and their content.

    manifest.gz   every path with its mode, its hash, and the file and offset where its bytes are
    content-*     bytes of files, one after the other

A tree stores only what the tree before it in the same folder does not hold, so its manifest may name files of other
trees. `latest/` has that tree's hash by the folder. A file is either whole or absent: it is written to a temporary
name, synced and renamed.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import secrets
import tarfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple

from msgspec import Struct

from queue_runner.atomic_file import replacing
from queue_runner.host.filesystem import open_regular
from queue_runner.source import rules
from queue_runner.source.scan import Entry, NotCode, SourceTree

MANIFEST = "manifest.gz"
_UNREADABLE = (EOFError, zlib.error, RecursionError)
"""Errors of a damaged file, beside those of its content."""
_VERSION = 2
_CHUNK_BYTES = 1 << 20


class Vanished(Exception):
    """A file changed or disappeared while it was read; the text is its path."""


class Damaged(Exception):
    """A part of a stored tree is missing or altered; the text says which."""


class Extent(NamedTuple):
    """Where the bytes of a file are: a file below snapshots/, and a range of it."""

    file: str
    offset: int
    size: int


class Manifest(Struct, frozen=True):
    """The content of a tree. A file without a place is too large to be stored; with `has_content` False, all files are
    without one. Of the folder that was stored first, others may have the same content: `left_out` are its paths that do
    not belong to the tree, and `in_git` whether git listed its files."""

    entries: Mapping[str, Entry]
    places: Mapping[str, Extent]
    left_out: tuple[str, ...] = ()
    in_git: bool = True
    has_content: bool = True

    @property
    def files(self) -> frozenset[str]:
        """The files below snapshots/ that hold its content."""
        return frozenset(place.file for place in self.places.values())


def is_stored(snapshots: Path, tree_hash: str, *, with_large: bool) -> bool:
    """Return whether the tree is stored, and nothing of it is missing."""
    try:
        manifest = read_manifest(snapshots, tree_hash)
        check(snapshots, manifest)
    except Damaged:
        return False
    return not with_large or len(manifest.places) == len(manifest.entries)


def read_manifest(snapshots: Path, tree_hash: str) -> Manifest:
    """Read the manifest of a tree. Raises: Damaged."""
    path = snapshots / tree_hash / MANIFEST
    try:
        data = json.loads(gzip.decompress(path.read_bytes()))
        rows = data["entries"]
        entries = {name: Entry((mode, oid), bool(tracked)) for name, (mode, oid, tracked, *_) in rows.items()}
        if data["v"] < _VERSION:
            whole = f"{tree_hash}/tree.tar"
            if not (snapshots / whole).is_file():
                return Manifest(entries, {}, has_content=False)
            return Manifest(entries, _extents_in_tar(snapshots, whole))
        files = data["files"]
        places = {name: Extent(files[n], at, size) for name, (*_, n, at, size) in rows.items() if n >= 0}
        return Manifest(entries, places, tuple(data["left_out"]), data["in_git"])
    except FileNotFoundError as error:
        raise Damaged(f"{path} was deleted") from error
    except (*_UNREADABLE, OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise Damaged(f"{path} cannot be read: {error}") from error


def _extents_in_tar(snapshots: Path, file: str) -> dict[str, Extent]:
    """Return where the files are in the archive of a tree that version 0.1 stored: POSIX.1-1988 ustar has the target of
    a link 157 bytes into its header. Raises: Damaged."""
    extents = {}
    try:
        with tarfile.open(snapshots / file) as archive:
            for info in archive:
                link = len(os.fsencode(info.linkname))
                if link <= 100:  # a longer one has a member of its own
                    offset = info.offset_data - 512 + 157 if link else info.offset_data
                    extents[info.name] = Extent(file, offset, link or info.size)
    except tarfile.TarError as error:
        raise Damaged(f"{snapshots / file} cannot be read: {error}") from error
    return extents


def check(snapshots: Path, manifest: Manifest) -> None:
    """Check that the files with the content of a tree are there and whole. Raises: Damaged."""
    ends: dict[str, int] = {}
    for place in manifest.places.values():
        ends[place.file] = max(ends.get(place.file, 0), place.offset + place.size)
    for file, end in ends.items():
        try:
            size = (snapshots / file).stat().st_size
        except OSError as error:
            raise Damaged(f"{snapshots / file} was deleted") from error
        if size < end:
            raise Damaged(f"{snapshots / file} is incomplete: it has {size:,} of {end:,} bytes")
    if not manifest.has_content:
        raise Damaged("an earlier version of mpsq stored its hashes only")


def needed(snapshots: Path, hashes: Iterable[str]) -> set[str]:
    """Return these trees and those that hold a part of their content."""
    trees = set(hashes)
    for tree in tuple(trees):
        with suppress(Damaged):
            trees |= {file.partition("/")[0] for file in read_manifest(snapshots, tree).files}
    return trees


def store(snapshots: Path, tree: SourceTree, is_same: Callable[[], bool], *, with_large: bool) -> None:
    """Store a tree: its manifest, and what no other stored tree of its folder holds. Files above rules.MAX_FILE_BYTES
    are stored only `with_large`.

    `is_same` returns afterwards whether the tree is unchanged. Raises: Vanished when it is not; NotCode; OSError.
    """
    places = _held(snapshots, tree)
    sizes = {path: tree.size(path) for path in tree.entries if path not in places}
    chosen = [path for path in sorted(sizes) if with_large or sizes[path] <= rules.MAX_FILE_BYTES]
    total = sum(sizes[path] for path in chosen) + sum(place.size for place in places.values())
    if total > rules.MAX_TREE_BYTES:
        raise NotCode(f"the code in {tree.root} is {total / 2**30:.1f} GiB")
    if chosen:
        file = f"{tree.hash}/content-{secrets.token_hex(4)}"
        _write(snapshots / file, lambda stream: places.update(_pack(stream, tree, chosen, file)), is_same)
    elif not is_same():
        raise Vanished("")
    _store_manifest(snapshots, tree, places)
    remember(snapshots, tree)


def remember(snapshots: Path, tree: SourceTree) -> None:
    """Let the next tree of the folder store only what this stored one does not hold. Raises: OSError."""
    pointer = _latest(snapshots, tree.root)
    with suppress(OSError, UnicodeDecodeError):
        if pointer.read_text() == tree.hash:
            return
    pointer.parent.mkdir(mode=0o700, exist_ok=True)
    with replacing(pointer, durable=False) as partial:
        partial.write_text(tree.hash)


def _latest(snapshots: Path, root: Path) -> Path:
    return snapshots / "latest" / hashlib.sha256(os.fsencode(root)).hexdigest()[:32]


def _held(snapshots: Path, tree: SourceTree) -> dict[str, Extent]:
    """Return where files are stored that the last stored tree of the folder has with the same content."""
    try:
        before = read_manifest(snapshots, _latest(snapshots, tree.root).read_text())
        check(snapshots, before)
    except (OSError, Damaged, UnicodeDecodeError):
        return {}
    same = before.places.keys() & tree.entries.keys()
    return {path: before.places[path] for path in same if before.entries[path].content == tree.entries[path].content}


def _store_manifest(snapshots: Path, tree: SourceTree, places: Mapping[str, Extent]) -> None:
    files = sorted({place.file for place in places.values()})
    numbers = {file: number for number, file in enumerate(files)}

    def row(path: str, entry: Entry) -> list[object]:
        place = places.get(path)
        where = (-1, 0, 0) if place is None else (numbers[place.file], place.offset, place.size)
        return [*entry.content, int(entry.tracked), *where]

    data = {
        "v": _VERSION,
        "in_git": tree.dirty is not None,
        "left_out": sorted(tree.left_out),
        "files": files,
        "entries": {path: row(path, entry) for path, entry in tree.entries.items()},
    }
    packed = gzip.compress(json.dumps(data, separators=(",", ":")).encode(), compresslevel=1, mtime=0)
    _write(snapshots / tree.hash / MANIFEST, lambda stream: stream.write(packed))


def _pack(stream: IO[bytes], tree: SourceTree, paths: Sequence[str], file: str) -> dict[str, Extent]:
    """Write the bytes of these files; return where they are."""
    places = {}
    offset = 0
    for path in paths:
        size = _copy(tree.root / path, tree.entries[path].mode, path, stream)
        places[path] = Extent(file, offset, size)
        offset += size
    return places


def _copy(source: Path, mode: str, path: str, stream: IO[bytes]) -> int:
    """Write the bytes of a file, or the target of a link, to the stream; return their number."""
    try:
        if mode == "120000":
            return stream.write(os.fsencode(source.readlink()))
        descriptor = open_regular(source)
    except OSError as error:
        raise Vanished(path) from error
    size = 0
    try:
        while data := _read(descriptor, path):
            size += stream.write(data)
    finally:
        os.close(descriptor)
    return size


def _read(descriptor: int, path: str) -> bytes:
    try:
        return os.read(descriptor, _CHUNK_BYTES)
    except OSError as error:
        raise Vanished(path) from error


def _write(path: Path, fill: Callable[[IO[bytes]], object], is_same: Callable[[], bool] = lambda: True) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with replacing(path, durable=True) as partial:
        with partial.open("wb") as stream:
            fill(stream)
        if not is_same():
            raise Vanished("")
