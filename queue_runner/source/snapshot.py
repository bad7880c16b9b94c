"""The code as it was at submit: jobs/, copied once per content, or the tree around a command's folder."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from queue_runner.errors import MpsqError, UsageError
from queue_runner.host.once_a_day import RepeatedNote
from queue_runner.source import archive, git_commands, rules, scan
from queue_runner.source.git_commands import Revision
from queue_runner.source.scan import SourceTree
from queue_runner.spec import JobSpec

_TRIES = 3
"""The number of scans of a tree that changes while it is read."""
_NAMED = 3


@dataclass(frozen=True)
class Snapshot:
    """The stored code. `kind` is workload (a folder under snapshots/) or tree (see archive)."""

    hash: str
    kind: str
    revision: Revision | None
    tree_hash: str | None = None
    copied: bool = False
    left_out: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Taken:
    """A job's snapshot, the root of its tree, the working folder of a command in it, and messages for the user."""

    snapshot: Snapshot | None
    root: str = ""
    inside: str = ""
    code: str = ""  # hash of the relevant part of the tree
    packages: Mapping[str, str] = field(default_factory=dict)  # versions in the job's environment of mpsq env
    notes: tuple[str, ...] = ()

    def applied_to(self, spec: JobSpec) -> JobSpec:
        """Return the spec of a job with this code."""
        if self.snapshot is None:
            return spec.changed(packages=self.packages)
        return spec.changed(
            packages=self.packages,
            snapshot=self.snapshot.hash,
            tree=self.snapshot.tree_hash or "",
            code=self.code,
            root=self.root,
            inside=self.inside,
        )


def of_workloads(jobs: Path, store: Path, revision: Revision | None, local: Sequence[Path] = ()) -> Snapshot:
    """Copy the workloads' source to `store`/<sha256>, unless that content is there already, along with the `local`
    files of a user's workload.

    Raises: OSError when the disk refuses; a partial copy is never visible under its hash.
    """
    files = sorted(path for path in jobs.rglob("*.py") if "__pycache__" not in path.parts)
    named = [(path.relative_to(jobs).as_posix(), path) for path in files]
    digest = hashlib.sha256()
    contents = {}
    for name, path in (*named, *((path.name, path) for path in local)):
        contents[name] = path.read_bytes()
        digest.update(f"{name}\0{len(contents[name])}\0".encode() + contents[name])
    target = store / digest.hexdigest()
    if not target.is_dir():
        store.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".partial-", dir=store, ignore_cleanup_errors=True) as partial:
            for name, content in contents.items():
                copy = Path(partial, name)
                copy.parent.mkdir(parents=True, exist_ok=True)
                with copy.open("wb") as stream:
                    stream.write(content)
                    os.fsync(stream.fileno())
            try:
                Path(partial).rename(target)
            except OSError:
                if not target.is_dir():  # else another submitter copied the same content first
                    raise
    return Snapshot(digest.hexdigest(), "workload", revision)


def of_command(cwd: Path, store: Path, *, copy: bool, allow_changed: bool) -> Taken:
    """Store the tree around a command's folder: its manifest, and what no commit holds, or with `copy` all of it.

    Raises: UsageError when a copy is requested but impossible; MpsqError for a tree that keeps changing; OSError.
    """
    if not git_commands.has_repository(cwd):
        return _of_folder(cwd, store) if copy else Taken(None, notes=() if allow_changed else (_UNKNOWN,))
    try:
        tree = _stored(lambda: scan.of_repository(cwd, store.parent), store, copy=copy)
        revision = _revision(tree)
    except git_commands.GitFailed as error:
        if copy:
            raise UsageError(
                f"the code cannot be copied: {error}", "check git status in this folder, or omit --snapshot copy"
            ) from error
        return Taken(None, notes=(f"changes of the code before the run cannot be detected: {error}",))
    return _taken(tree, cwd, revision, copied=copy)


_UNKNOWN = RepeatedNote(
    "changes of the code before the run cannot be detected outside of a git repository;"
    " --snapshot copy runs the code as it is now"
)


def _of_folder(cwd: Path, store: Path) -> Taken:
    place = Path(os.path.realpath(cwd))
    return _taken(_stored(lambda: scan.of_folder(place, store.parent), store, copy=True), cwd, None, copied=True)


def _stored(scan_tree: Callable[[], SourceTree], store: Path, *, copy: bool) -> SourceTree:
    """Scan a tree and store it, until the stored tree equals the scanned one."""
    tree, path = scan_tree(), ""
    for _ in range(_TRIES):
        try:
            _store(store, tree, scan_tree, copy=copy)
            return tree
        except archive.Vanished as error:
            tree, path = scan_tree(), str(error) or path
    if not copy:
        archive.store_manifest(store, tree, tree.changed)
        return tree
    named = f" ({path})" if path else ""
    raise MpsqError(
        f"the code in {tree.root} changes while it is copied{named}",
        "wait until nothing writes there, or add the written files to .gitignore",
    )


def _store(store: Path, tree: SourceTree, scan_tree: Callable[[], SourceTree], *, copy: bool) -> None:
    """Store the missing parts. Raises: archive.Vanished when the tree has changed after that; UsageError when it
    is too large for a copy."""

    def is_same() -> bool:
        return scan_tree().hash == tree.hash

    if copy and not archive.has_whole(store, tree.hash):
        _check_size(tree)
        archive.store_whole(store, tree, is_same)
    if not archive.has_manifest(store, tree.hash):
        archive.store_manifest(store, tree, () if copy else archive.store_changed(store, tree, is_same))


def _check_size(tree: SourceTree) -> None:
    total = sum(tree.size(path) for path in tree.entries)
    if total > rules.MAX_TREE_BYTES:
        raise UsageError(
            f"the code in {tree.root} is {total / 2**30:.1f} GiB, and every run would copy it",
            f"omit --snapshot copy, whose limit is {rules.MAX_TREE_BYTES >> 30} GiB, or add data to .gitignore",
        )


def _revision(tree: SourceTree) -> Revision:
    """Return commit, branch and the patch, without files that are too large to be stored."""
    diff: str | None = ""
    if tree.dirty and tree.commit:
        large = [path for path in tree.changed if tree.size(path) > rules.MAX_FILE_BYTES]
        diff = git_commands.diff(tree.root, tree.commit, large)
    return Revision(tree.commit, tree.branch, bool(tree.dirty), diff)


def _taken(tree: SourceTree, cwd: Path, revision: Revision | None, *, copied: bool) -> Taken:
    identity = (tree.hash, tree.commit, tree.branch or "", "" if revision is None else revision.diff or "", str(copied))
    digest = hashlib.sha256("\0".join([*identity, *tree.left_out]).encode("utf-8", "surrogateescape")).hexdigest()
    inside = os.path.relpath(os.path.realpath(cwd), os.path.realpath(tree.root))
    snapshot = Snapshot(digest, "tree", revision, tree.hash, copied, tree.left_out)
    return Taken(snapshot, str(tree.root), inside, tree.code, notes=tuple(_notes(tree, copied)))


def _notes(tree: SourceTree, copied: bool) -> Iterator[str]:
    if tree.left_out:
        named = [f"{name} ({reason})" for name, reason in list(tree.left_out.items())[:_NAMED]]
        more = len(tree.left_out) - len(named)
        listed = ", ".join(named) + (f" and {more} more: mpsq show lists all" if more > 0 else "")
        lacks = "not in the copy" if copied else "changes of these files are not detected"
        yield RepeatedNote(f"{lacks}: {listed}")
    if copied:
        ignored = "files that git ignores are not in the copy" if tree.dirty is not None else "it runs in a copy"
        yield RepeatedNote(f"{ignored}; the original folder is $MPSQ_CWD, or {{cwd}} in the command")
