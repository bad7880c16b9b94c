"""The content of a source tree: its files, their hashes, and what is ignored.

In a repository git's index is the cache: only files that git reports as changed are read. A file's hash is that of
git's blob, so that `git add` and `git commit` change nothing; equal trees have equal hashes wherever they are.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from queue_runner.errors import MpsqError
from queue_runner.source import git_commands, git_hash, rules

MAX_TOLD = 500
"""The most names of omitted files that are kept."""


@dataclass(frozen=True)
class Entry:
    """A file: `mode` 100644, 100755 or 120000 (a link) as in git, `oid` the hash of its blob (hex)."""

    mode: str
    oid: str
    tracked: bool


@dataclass(frozen=True)
class SourceTree:
    """A tree as it was when scanned. Paths are relative to `root`; bytes that are not UTF-8 are escaped as by
    os.fsdecode. `changed` are the paths that `commit` does not hold with this content; without a commit, all."""

    root: Path
    entries: Mapping[str, Entry]
    left_out: Mapping[str, str]
    commit: str = ""
    branch: str | None = None
    changed: frozenset[str] = frozenset()
    dirty: bool | None = None  # whether tracked files differ from the commit; None outside of a repository

    @cached_property
    def hash(self) -> str:
        """sha256 (hex) of the content."""
        return content_hash(self.entries)

    @property
    def code(self) -> str:
        """sha256 (hex) of the content without the outputs of jobs: equal for two runs of the same code."""
        rest = {p: e for p, e in self.entries.items() if rules.matters(p, tracked=e.tracked, is_new=True)}
        return content_hash(rest)


def content_hash(entries: Mapping[str, Entry]) -> str:
    """Return the sha256 (hex) of names, modes and contents."""
    lines = [b"%s %s %s\0" % (e.mode.encode(), e.oid.encode(), os.fsencode(p)) for p, e in sorted(entries.items())]
    return hashlib.sha256(b"".join(lines)).hexdigest()


def of_repository(folder: Path, home: Path | None = None) -> SourceTree:
    """Return the work tree around `folder`: tracked files, and untracked ones that are not ignored and not too large.

    Untracked files below `home`, the queue's own folder, are not code.

    Raises: git_commands.GitFailed when git fails.
    """
    root = git_commands.top(folder)
    commit, branch = git_commands.head(root)
    base = commit or git_commands.git(root, "hash-object", "-t", "tree", "--stdin").decode().strip()
    with ExitStack() as stack:
        index, others, differing = (
            stack.enter_context(git_commands.Command(root, *arguments))
            for arguments in (
                ("ls-files", "-s", "-v", "-z"),
                ("ls-files", "-o", "-z", "--exclude-standard"),
                ("diff-index", "-z", "--no-renames", "--ignore-submodules=all", base),
            )
        )
        look = _Look(root, len(base))
        look.at_index(index.output())
        look.at_differences(differing.output())
        own = _below(home, root)
        look.at_untracked(name for name in _names(others.output()) if own is None or not name.startswith(own))
    look.hash_files()
    return SourceTree(
        root,
        look.entries,
        look.told(),
        commit,
        branch,
        frozenset(p for p, e in look.entries.items() if look.in_commit(p) != (e.mode, e.oid)),
        look.is_dirty(),
    )


def of_folder(folder: Path, home: Path | None = None) -> SourceTree:
    """Return a folder outside of a repository, with everything below it that is not too large and not in `home`.

    Raises: MpsqError when it holds more than a source tree would; OSError.
    """
    look = _Look(folder)
    look.at_untracked(_walk(folder, _below(home, folder)), refuse=True)
    look.hash_files()
    return SourceTree(folder, look.entries, look.told(), "", None, frozenset(look.entries))


def _names(listing: bytes) -> list[str]:
    return [os.fsdecode(name) for name in listing.split(b"\0") if name]


def _below(home: Path | None, root: Path) -> str | None:
    """Return `home/` as a prefix of paths relative to `root`; None when it is elsewhere."""
    if home is None:
        return None
    inside = os.path.relpath(os.path.realpath(home), os.path.realpath(root))
    return None if inside == ".." or inside.startswith("../") else f"{inside}/"


def _walk(folder: Path, own: str | None = None) -> list[str]:
    """Return every file below `folder`; a nested repository or environment is one name that ends with a slash."""
    found: list[str] = []
    for place, folders, files in os.walk(folder):
        here = os.path.relpath(place, folder)
        prefix = "" if here == "." else here + "/"
        if prefix == own:
            folders.clear()
            continue
        if prefix and (".git" in folders or ".git" in files):
            folders.clear()
            found.append(prefix)
            continue
        links = [name for name in folders if (Path(place) / name).is_symlink()]
        folders[:] = [name for name in folders if name != "__pycache__" and name not in links]
        found += [prefix + name for name in (*files, *links)]
        if len(found) > rules.MAX_FILES:
            raise MpsqError(
                f"{folder} holds more than {rules.MAX_FILES:,} files: that is more than its code",
                "make the code's own folder a git repository, or name it with --cwd",
            )
    return found


class _Look:
    """A scan of a tree, in steps."""

    def __init__(self, root: Path, oid_length: int = 40) -> None:
        self.root = root
        self._oid_length = oid_length
        self.entries: dict[str, Entry] = {}
        self._left_out: dict[str, str] = {}
        self._committed: dict[str, tuple[str, str]] = {}  # where the commit differs from the index or the disk
        self._to_hash: dict[str, tuple[str, bool]] = {}  # path -> (mode, tracked)

    # -- listings of git ----------------------------------------------------------------------------------------------

    def at_index(self, listing: bytes) -> None:
        """Process lines `TAG MODE OID STAGE\\tPATH` of ls-files -s -v."""
        for line in listing.split(b"\0"):
            facts, tab, raw = line.partition(b"\t")
            if not tab:
                continue
            tag, mode, oid, stage = facts.decode().split(" ")
            path = os.fsdecode(raw)
            if mode == "160000":
                self._left_out[path] = "a submodule"
            elif rules.is_secret(path):
                self._left_out[path] = "may hold a secret"
            elif stage != "0" or tag == "S" or tag.islower():
                self._on_disk(path, tracked=True)  # git would not check whether it has changed
            else:
                self.entries[path] = Entry(mode, oid, True)

    def at_differences(self, listing: bytes) -> None:
        """Process pairs `:OLDMODE NEWMODE OLDOID NEWOID STATUS` and `PATH` of diff-index."""
        parts = listing.split(b"\0")
        for facts, raw in zip(parts[0::2], parts[1::2], strict=False):
            old_mode, _new_mode, old_oid, new_oid, status = facts.decode().lstrip(":").split(" ")
            path = os.fsdecode(raw)
            if path in self._left_out or rules.is_secret(path):
                continue
            self._committed.setdefault(path, (old_mode, old_oid))
            if status.startswith("D") and path not in self._to_hash:
                self.entries.pop(path, None)
            elif path in self.entries and not new_oid.strip("0"):  # else the disk has what the index has
                self.entries.pop(path)
                self._on_disk(path, tracked=True)

    def at_untracked(self, names: Iterable[str], *, refuse: bool = False) -> None:
        """Add small untracked files, the smallest first, up to the limits; beyond them `refuse` raises."""
        listed = list(names)
        environments = tuple(n.removesuffix("pyvenv.cfg") for n in listed if n.endswith("/pyvenv.cfg"))
        self._left_out.update((place, "a virtual environment") for place in environments)
        sizes: list[tuple[int, str]] = []
        for path in listed:
            if path.endswith("/"):
                self._left_out[path] = "a repository of its own"
            elif path.startswith(environments) or not rules.is_kept(path):
                continue
            elif rules.is_secret(path):
                self._left_out[path] = "may hold a secret"
            elif (status := self._status(path)) is None:
                continue
            elif stat.S_ISREG(status.st_mode) and status.st_size > rules.MAX_FILE_BYTES:
                self._left_out[path] = f"larger than {rules.MAX_FILE_BYTES >> 20} MiB"
            elif stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):
                sizes.append((status.st_size, path))
        total = 0
        for count, (size, path) in enumerate(sorted(sizes)):
            total += size
            if total > rules.MAX_UNTRACKED_BYTES or count >= rules.MAX_FILES:
                if refuse:
                    raise MpsqError(
                        f"{self.root} holds more than {rules.MAX_UNTRACKED_BYTES >> 20} MiB in small files",
                        "make the code's own folder a git repository, or name it with --cwd",
                    )
                self._left_out[path] = "one of too many untracked files"
            else:
                self._on_disk(path, tracked=False)

    # -- files on the disk --------------------------------------------------------------------------------------------

    def _status(self, path: str) -> os.stat_result | None:
        try:
            return (self.root / path).lstat()
        except OSError:
            return None

    def _on_disk(self, path: str, *, tracked: bool) -> None:
        """Mark this file's content as to be read. A file that has vanished is not in the tree."""
        status = self._status(path)
        if status is None or stat.S_ISDIR(status.st_mode):
            return
        if mode := git_hash.mode_of(status):
            self._to_hash[path] = (mode, tracked)
        else:
            self._left_out[path] = "no regular file"

    def hash_files(self) -> None:
        """Hash the files that git has no hash of."""
        oids = git_hash.hashes(self.root, {path: mode for path, (mode, _) in self._to_hash.items()}, self._oid_length)
        for path, (mode, tracked) in self._to_hash.items():
            if path in oids:
                self.entries[path] = Entry(mode, oids[path], tracked)
            elif self._status(path) is not None:
                self._left_out[path] = "cannot be read"

    # -- results ------------------------------------------------------------------------------------------------------

    def in_commit(self, path: str) -> tuple[str, str] | None:
        """Return (mode, oid) of a path in the commit; None where it is not there."""
        entry = self.entries[path]
        if path in self._committed:
            return self._committed[path]
        return (entry.mode, entry.oid) if entry.tracked and path not in self._to_hash else None

    def is_dirty(self) -> bool:
        """Return whether a tracked file differs from the commit."""
        for path, committed in self._committed.items():
            entry = self.entries.get(path)
            if entry is None or (entry.mode, entry.oid) != committed:
                return True
        return False

    def told(self) -> dict[str, str]:
        """Return what was omitted and why, at most MAX_TOLD entries."""
        names = sorted(self._left_out)
        found = {name: self._left_out[name] for name in names[:MAX_TOLD]}
        if len(names) > MAX_TOLD:
            found["..."] = f"and {len(names) - MAX_TOLD:,} more"
        return found
