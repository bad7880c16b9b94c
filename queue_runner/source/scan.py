"""The content of a source tree: its files, their hashes, and the ignored paths.

In a repository git's index is the cache: only files that git reports as changed are read. A file's hash is that of
git's blob, so that `git add` and `git commit` change nothing; equal trees have equal hashes wherever they are.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from queue_runner.source import git_commands, git_hash, rules
from queue_runner.source.git_hash import Content


class NotCode(Exception):
    """A folder cannot be stored as code; the text says why."""


class Entry(NamedTuple):
    """A file of a tree, and whether git tracked it."""

    content: Content
    tracked: bool

    @property
    def mode(self) -> str:
        return self.content[0]


class SourceTree(Struct, frozen=True, dict=True):
    """A tree as it was when scanned. Paths are relative to `root`; bytes that are not UTF-8 are escaped as by
    os.fsdecode. `changed` are the paths that `commit` does not hold with this content; without a commit, all."""

    root: Path
    entries: Mapping[str, Entry]
    left_out: Mapping[str, str]
    commit: str = ""
    branch: str | None = None
    changed: frozenset[str] = frozenset()
    dirty: bool | None = None  # whether tracked files differ from the commit; None outside of a repository

    def size(self, path: str) -> int:
        """Return the size of a file in bytes; 0 when it no longer exists."""
        try:
            return os.lstat(f"{self.root}/{path}").st_size
        except OSError:
            return 0

    @cached_property
    def hash(self) -> str:
        """sha256 (hex) of the content."""
        return content_hash(self.entries)

    def code(self, not_code: str) -> str:
        """Return the sha256 (hex) of the content without documents and the output of jobs: equal for two runs of the
        same code. `not_code` as in rules.matters."""
        rest = {p: e for p, e in self.entries.items() if rules.matters(p, not_code, tracked=e.tracked, is_new=True)}
        return content_hash(rest)


def content_hash(entries: Mapping[str, Entry]) -> str:
    """Return the sha256 (hex) of names, modes and contents."""
    files = sorted((path, *entry.content) for path, entry in entries.items())
    lines = [b"%s %s %s\0" % (mode.encode(), oid.encode(), os.fsencode(path)) for path, mode, oid in files]
    return hashlib.sha256(b"".join(lines)).hexdigest()


def of_code(folder: Path, home: Path | None = None) -> SourceTree:
    """Return the tree that a command in `folder` runs: the work tree around it, if git lists files of the folder;
    otherwise every file of the folder, or of the work tree where git is missing or refuses.

    Raises: NotCode, OSError.
    """
    root = git_commands.work_tree(folder)
    if root is None:
        return of_folder(folder, home)
    try:
        tree = of_repository(folder, home)
    except git_commands.GitFailed:
        return of_folder(root, home)
    inside = os.path.relpath(os.path.realpath(folder), os.path.realpath(tree.root))
    below = "" if inside == "." else f"{inside}/"
    is_listed = not below or any(path.startswith(below) for path in tree.entries)
    return tree if is_listed else of_folder(folder, home)


def of_repository(folder: Path, home: Path | None = None) -> SourceTree:
    """Return the work tree around `folder`: tracked files, and untracked ones that are not ignored and not too large.

    Untracked files below `home`, the queue's own folder, are not code.

    Raises: git_commands.GitFailed when git fails.
    """
    from concurrent.futures import ThreadPoolExecutor  # 8 ms, which --dry-run need not spend

    root = git_commands.top(folder)
    commit, branch = git_commands.head(root)
    base = commit or git_commands.git(root, "hash-object", "-t", "tree", "--stdin").decode().strip()
    listings = (
        ("ls-files", "-s", "-v", "-z"),
        ("diff-index", "-z", "--no-renames", "--ignore-submodules=all", base),
        ("ls-files", "-o", "-z", "--exclude-standard"),
    )
    scan = _Scan(root, len(base))
    with ThreadPoolExecutor() as pool:
        index, differences, others = (pool.submit(git_commands.git, root, *arguments) for arguments in listings)
        scan.add_index(index.result())
        scan.add_differences(differences.result())
        untracked = others.result()
    below_root = _below(home, root)
    names = [os.fsdecode(name) for name in untracked.split(b"\0") if name]
    scan.add_untracked(name for name in names if below_root is None or not name.startswith(below_root))
    scan.read_files()
    return SourceTree(root, scan.entries, scan.left_out, commit, branch, scan.changed(), scan.is_dirty())


def of_folder(folder: Path, home: Path | None = None) -> SourceTree:
    """Return a folder outside of a repository: every file below it that is not too large and not in `home`.

    Raises: NotCode when it holds more than a source tree would, or is `home`; OSError.
    """
    if home is not None and os.path.realpath(home) == os.path.realpath(folder):
        raise NotCode(f"{folder} is the queue's own folder")
    scan = _Scan(folder)
    scan.add_untracked(_walk(folder, _below(home, folder)), refuse=True)
    scan.read_files()
    return SourceTree(folder, scan.entries, scan.left_out, changed=scan.changed())


def _below(home: Path | None, root: Path) -> str | None:
    """Return `home/` as a prefix of paths relative to `root`; None when it is elsewhere."""
    if home is None:
        return None
    inside = os.path.relpath(os.path.realpath(home), os.path.realpath(root))
    return None if inside == ".." or inside.startswith("../") else f"{inside}/"


def _walk(folder: Path, home: str | None = None) -> list[str]:
    """Return every file below `folder`; a nested repository or environment is one name that ends with a slash."""
    names: list[str] = []
    for place, folders, files in os.walk(folder):
        here = os.path.relpath(place, folder)
        prefix = "" if here == "." else here + "/"
        if prefix == home:
            folders.clear()
            continue
        if prefix and (".git" in folders or ".git" in files):
            folders.clear()
            names.append(prefix)
            continue
        links = [name for name in folders if (Path(place) / name).is_symlink()]
        folders[:] = [name for name in folders if name not in ("__pycache__", ".git") and name not in links]
        names += [prefix + name for name in (*files, *links) if name != ".git"]
        if len(names) > rules.MAX_FILES:
            raise NotCode(f"{folder} contains more than {rules.MAX_FILES:,} files")
    return names


class _Scan:
    """A scan of a tree, in steps."""

    def __init__(self, root: Path, oid_length: int = 40) -> None:
        self.entries: dict[str, Entry] = {}
        self._root = root
        self._oid_length = oid_length
        self.left_out: dict[str, str] = {}
        self._committed: dict[str, Content] = {}  # where the commit differs from the index or the disk
        self._to_read: dict[str, bool] = {}  # whether git tracks it, by path

    def add_index(self, listing: bytes) -> None:
        """Process lines `TAG MODE OID STAGE\\tPATH` of ls-files -s -v."""
        for line in listing.split(b"\0"):
            facts, tab, raw = line.partition(b"\t")
            if not tab:
                continue
            tag, mode, oid, stage = facts.decode().split(" ")
            path = os.fsdecode(raw)
            if mode == "160000":
                self.left_out[path] = "a submodule"
            elif rules.is_secret(path):
                self.left_out[path] = "may hold a secret"
            elif stage != "0" or tag == "S" or tag.islower():
                self._to_read[path] = True  # git would not check whether it has changed
            else:
                self.entries[path] = Entry((mode, oid), True)

    def add_differences(self, listing: bytes) -> None:
        """Process pairs `:OLDMODE NEWMODE OLDOID NEWOID STATUS` and `PATH` of diff-index."""
        parts = listing.split(b"\0")
        for facts, raw in zip(parts[0::2], parts[1::2], strict=False):
            old_mode, _new_mode, old_oid, new_oid, status = facts.decode().lstrip(":").split(" ")
            path = os.fsdecode(raw)
            if path in self.left_out or rules.is_secret(path):
                continue
            self._committed.setdefault(path, (old_mode, old_oid))
            if new_oid.strip("0") or path not in self.entries:
                continue  # the disk has what the index has, or it is to be read anyway
            del self.entries[path]
            if not status.startswith("D"):
                self._to_read[path] = True

    def add_untracked(self, names: Iterable[str], *, refuse: bool = False) -> None:
        """Add small untracked files, the smallest first, up to the limits; beyond them `refuse` raises."""
        listed = list(names)
        environments = tuple(n.removesuffix("pyvenv.cfg") for n in listed if n.endswith("/pyvenv.cfg"))
        self.left_out.update((place, "a virtual environment") for place in environments)
        sizes: list[tuple[int, str]] = []
        for path in listed:
            if path.endswith("/"):
                self.left_out[path] = "a repository of its own"
            elif path.startswith(environments) or not rules.is_kept(path):
                continue
            elif rules.is_secret(path):
                self.left_out[path] = "may hold a secret"
            elif (status := self._status(path)) is None:
                continue
            elif stat.S_ISREG(status.st_mode) and status.st_size > rules.MAX_FILE_BYTES:
                self.left_out[path] = f"larger than {rules.MAX_FILE_BYTES >> 20} MiB"
            elif stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):
                sizes.append((status.st_size, path))
        total = 0
        for count, (size, path) in enumerate(sorted(sizes)):
            total += size
            if total <= rules.MAX_UNTRACKED_BYTES and count < rules.MAX_FILES:
                self._to_read[path] = False
            elif refuse:
                raise NotCode(
                    f"{self._root} contains more than {rules.MAX_UNTRACKED_BYTES >> 20} MiB of untracked files"
                )
            else:
                self.left_out[path] = "one of too many untracked files"

    def read_files(self) -> None:
        """Read the files that git has no hash of. One that was removed meanwhile is not in the tree."""
        hashes = git_hash.read(self._root, self._to_read, self._oid_length)
        for path, tracked in self._to_read.items():
            if path in hashes:
                self.entries[path] = Entry(hashes[path], tracked)
            elif (status := self._status(path)) is not None and not stat.S_ISDIR(status.st_mode):
                self.left_out[path] = "cannot be read" if stat.S_ISREG(status.st_mode) else "no regular file"

    def _status(self, path: str) -> os.stat_result | None:
        try:
            return (self._root / path).lstat()
        except OSError:
            return None

    def changed(self) -> frozenset[str]:
        """Return the paths that the commit does not hold with this content."""
        return frozenset(path for path, entry in self.entries.items() if self._in_commit(path) != entry.content)

    def _in_commit(self, path: str) -> Content | None:
        if path in self._committed:
            return self._committed[path]
        entry = self.entries[path]
        return entry.content if entry.tracked and path not in self._to_read else None

    def is_dirty(self) -> bool:
        """Return whether a tracked file differs from the commit."""
        return any(
            path not in self.entries or self.entries[path].content != content
            for path, content in self._committed.items()
        )
