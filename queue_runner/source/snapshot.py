"""The code as it was at submit: jobs/, copied once per content, or the tree around a command's folder."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from queue_runner import units
from queue_runner.atomic_file import flush
from queue_runner.errors import UsageError
from queue_runner.host.once_a_day import RepeatedNote
from queue_runner.source import archive, git_commands, rules, scan
from queue_runner.source.git_commands import Revision
from queue_runner.source.scan import NotCode, SourceTree
from queue_runner.spec import JobSpec
from queue_runner.text import plain

_TRIES = 3
"""The number of scans of a tree that changes while it is read."""
_NAMED = 3
_MOST_LEFT_OUT = 500
"""The limit for the stored names of omitted files."""


class NotCopied(UsageError):
    """A commit cannot be copied. Another one may be."""

    def __init__(self, commit: str, why: str, hint: str) -> None:
        super().__init__(f"commit {commit[:12]} {why}", hint)
        self.commit = commit


class Snapshot(Struct, frozen=True):
    """The stored code. `kind` is workload (a folder under snapshots/) or tree (see archive)."""

    hash: str
    kind: str
    revision: Revision | None
    tree_hash: str | None = None
    copied: bool = False
    left_out: Mapping[str, str] = field(default_factory=dict)


class Taken(Struct, frozen=True):
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
                copy.write_bytes(content)
                flush(copy)
            try:
                Path(partial).rename(target)
            except OSError:
                if not target.is_dir():  # else another submitter copied the same content first
                    raise
    return Snapshot(digest.hexdigest(), "workload", revision)


def of_command(cwd: Path, store: Path, *, copy: bool, allow_changed: bool, not_code: str) -> Taken:
    """Store the tree around a command's folder, so that its runs do not depend on the folder; with `copy` also its
    large files. With `allow_changed` nothing is stored but the state of the repository.

    Raises: UsageError for `copy` when it cannot be stored; OSError.
    """
    try:
        if allow_changed:
            return _as_it_is(cwd, store, not_code)
        tree = _stored(lambda: scan.of_code(Path(os.path.realpath(cwd)), store.parent), store, copy=copy)
    except NotCode as error:
        if copy:
            raise UsageError(
                f"{error}, too much to copy for each run",
                "add data and results to .gitignore, name the folder of the code with --cwd, or omit --snapshot copy",
            ) from error
        note = f"{error}: runs use the code that is there when they start, unchecked"
        return Taken(None, notes=(RepeatedNote(note),))
    taken = _taken(tree, cwd, not_code)
    return replace(taken, notes=tuple(_notes(taken.snapshot.left_out if taken.snapshot else {}, copy)))


def of_commit(cwd: Path, commit: str, store: Path, *, not_code: str) -> Taken:
    """Store the tree of a commit of the repository around `cwd`. Runs get a copy of it, with the data there that git
    ignores.

    Raises: NotCopied when git or the commit cannot give it; OSError.
    """
    store.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".partial-", dir=store, ignore_cleanup_errors=True) as folder:
        target = Path(folder, "tree")
        try:
            root = git_commands.top(cwd)
            git_commands.check_out(root, commit, target)
            tree = _stored(lambda: scan.of_repository(target, store.parent), store, copy=True)
        except (git_commands.GitFailed, NotCode) as error:
            hint = "git checkout must work for it; git fsck may say why"
            raise NotCopied(commit, f"cannot be copied: {error}", hint) from error
    taken = _taken(replace(tree, root=root), cwd, not_code)
    if taken.inside != "." and not any(path.startswith(f"{taken.inside}/") for path in tree.entries):
        raise NotCopied(commit, f"has no folder {taken.inside}", "--cwd names the folder of the command")
    return taken


def _as_it_is(cwd: Path, store: Path, not_code: str) -> Taken:
    note = "runs use the code that is there when they start (--snapshot off)"
    try:
        return replace(_taken(scan.of_repository(cwd, store.parent), cwd, not_code, is_stored=False), notes=(note,))
    except git_commands.GitFailed:
        return Taken(None, notes=(note,))


def _stored(scan_tree: Callable[[], SourceTree], store: Path, *, copy: bool) -> SourceTree:
    """Scan a tree and store it, until the stored tree equals the scanned one. Files that change meanwhile, such as the
    log of a running job, are left out, unless all of it is to be copied."""
    busy: dict[str, str] = {}

    def look() -> SourceTree:
        tree = scan_tree()
        entries = {path: entry for path, entry in tree.entries.items() if path not in busy}
        return replace(tree, entries=entries, left_out={**tree.left_out, **busy}) if busy else tree

    tree, changing = look(), ""
    for _ in range(_TRIES):
        if archive.is_stored(store, tree.hash, with_large=copy):
            archive.remember(store, tree)
            return tree
        try:
            archive.store(store, tree, lambda tree=tree: look().hash == tree.hash, with_large=copy)  # type: ignore[misc]
            return tree
        except archive.Vanished:
            later = look()
            paths = tree.entries.keys() | later.entries.keys()
            changed = sorted(path for path in paths if tree.entries.get(path) != later.entries.get(path))
            changing = changed[0] if changed else changing
            busy |= {} if copy else dict.fromkeys(changed, "changes while it is read")
            tree = look()
    raise NotCode(f"the code in {tree.root} changes while it is copied" + (f" ({plain(changing)})" if changing else ""))


def _revision(tree: SourceTree) -> Revision | None:
    """Return commit, branch and the patch, without files that are too large to be stored; None outside of git."""
    if tree.dirty is None:
        return None
    diff: str | None = ""
    if tree.dirty and tree.commit:
        large = [path for path in tree.changed if tree.size(path) > rules.MAX_FILE_BYTES]
        try:
            diff = git_commands.diff(tree.root, tree.commit, large)
        except git_commands.GitFailed:
            diff = None
    return Revision(tree.commit, tree.branch, bool(tree.dirty), diff)


def _taken(tree: SourceTree, cwd: Path, not_code: str, *, is_stored: bool = True) -> Taken:
    revision = _revision(tree)
    diff = "" if revision is None else revision.diff or ""
    identity = (tree.hash, tree.commit, tree.branch or "", diff, str(is_stored))
    names = sorted(tree.left_out)
    left_out = {name: tree.left_out[name] for name in names[:_MOST_LEFT_OUT]}
    if len(names) > _MOST_LEFT_OUT:
        left_out["..."] = f"and {len(names) - _MOST_LEFT_OUT:,} more"
    digest = hashlib.sha256("\0".join([*identity, *left_out]).encode("utf-8", "surrogateescape")).hexdigest()
    inside = os.path.relpath(os.path.realpath(cwd), os.path.realpath(tree.root))
    snapshot = Snapshot(digest, "tree", revision, tree.hash if is_stored else None, is_stored, left_out)
    return Taken(snapshot, str(tree.root), inside, tree.code(not_code))


def _notes(left_out: Mapping[str, str], copied: bool) -> Iterator[str]:
    if copied:
        yield RepeatedNote("each run gets a copy of the code as it is now; $MPSQ_CWD is the original folder, {cwd}")
    else:
        yield RepeatedNote(
            "if this folder's code changes before a run starts, the run uses the code as it was when you submitted it"
        )
    if left_out:
        listed = units.listed([f"{plain(name)} ({reason})" for name, reason in left_out.items()], _NAMED)
        listed += ": mpsq show lists all" if len(left_out) > _NAMED else ""
        yield RepeatedNote(f"these files are not copied, so that runs read the originals: {listed}")
