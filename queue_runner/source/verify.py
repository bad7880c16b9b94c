"""Look before a start at the code of a job, holding the lane: nothing is measured meanwhile. If it is as submitted,
the run starts in its folder; if not, in a copy of the code as submitted."""

from __future__ import annotations

import os
import time
from pathlib import Path

from msgspec import Struct

from queue_runner import units
from queue_runner.errors import is_shortage
from queue_runner.host import child, protected
from queue_runner.model import Ending, Outcome
from queue_runner.source import archive, editable, git_commands, git_hash, rules, scan, working_copy
from queue_runner.source.archive import Damaged, Manifest
from queue_runner.source.scan import Entry, SourceTree
from queue_runner.spec import JobSpec
from queue_runner.text import plain

READ_S = 120.0
"""The lane is held, and nothing is measured, while the tree of a command is read."""
_NAMED = 3


class StartCode(Struct, frozen=True):
    """Where a job's run starts, or why it must not: `refusal`. `copy` is None if it starts in its folder. `note` says
    why it starts in a copy, though that was not requested; `caveat` names what the copy does not cover."""

    refusal: Ending | None = None
    copy: working_copy.CopyPlan | None = None
    note: str = ""
    caveat: str = ""


class Look:
    """A look at the code of a job before its start. The user's folders are read in a child process, for at most READ_S
    seconds: that may wait in the kernel for hours. Close it."""

    def __init__(self, snapshots: Path, spec: JobSpec, not_code: str, reader: child.Child, *, copied: bool) -> None:
        """Begin it. `reader` lives as long as the runs follow each other: its start takes longer than a look.

        Raises: OSError as `look`.
        """
        self.what = f"code in {spec.root}"
        self._deadline = time.monotonic() + READ_S
        self._reader = reader
        elsewhere = spec.kind != "workload" and spec.tree and not spec.allow_changed
        if elsewhere:
            reader.begin(look, snapshots, spec, not_code, copied=copied)
        self._code = None if elsewhere else look(snapshots, spec, not_code, copied=copied)

    def wait(self, at_most_s: float) -> StartCode | None:
        """Return the result; None if it is not known yet. Raises: OSError as `look`."""
        if self._code is None and self._reader.wait(min(at_most_s, self._deadline - time.monotonic())):
            self._code = self._reader.answer()
        if self._code is not None or time.monotonic() < self._deadline:
            return self._code
        text = f"its {self.what} could not be read within {READ_S:.0f} s ({protected.SLOW})"
        return StartCode(Ending(Outcome.SPAWN_FAILED, reason=plain(text)))

    def close(self) -> None:
        """End a look that is not wanted any more."""
        if self._code is None:
            self._reader.close()


def look(snapshots: Path, spec: JobSpec, not_code: str, *, copied: bool = False) -> StartCode:
    """Look at the folders that a job's start depends on. `not_code` are the patterns of that setting. `copied`: an
    earlier run of the submission needed a copy, so all its later ones use one.

    Raises: OSError when the machine is short of a resource. Other errors, of this job's files, end only this job.
    """
    try:
        return _look(snapshots, spec, not_code, copied)
    except Damaged as error:
        return StartCode(lost(error))
    except OSError as error:
        if is_shortage(error):
            raise
        what = f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")
        return StartCode(Ending(Outcome.SPAWN_FAILED, reason=plain(f"its code cannot be read: {what}")))


def _look(snapshots: Path, spec: JobSpec, not_code: str, copied: bool) -> StartCode:
    if spec.kind == "workload":
        script = snapshots / str(spec.snapshot) / str(spec.script)
        if not script.is_file():
            raise Damaged(f"{script} was deleted")
        return StartCode()
    if not spec.tree or spec.allow_changed:
        return StartCode()
    now, changes = compare(snapshots, spec, not_code)
    if not (changes or spec.copy or copied):
        return StartCode()
    try:
        manifest = archive.read_manifest(snapshots, spec.tree)
        archive.check(snapshots, manifest)
    except Damaged as error:
        named = f"{listed(changes)}; " if changes else ""
        return StartCode(Ending(Outcome.CODE_CHANGED, reason=plain(f"{named}its stored code is gone: {error}")))
    large = manifest.entries.keys() - manifest.places.keys()  # the copy has links to them
    unchecked = ", and is too large to be stored: it is used as it is"
    changes = [(path, what + (unchecked if path in large else "")) for path, what in changes]
    note = ""
    if not spec.copy:
        note = listed(changes) or "an earlier run of its submission needed a copy"
    imports, caveat = editable.look(spec)
    links = _links(Path(spec.root), manifest, now, snapshots.parent)
    return StartCode(None, working_copy.CopyPlan(links, working_copy.real_folders(spec), imports), note, caveat)


def lost(error: Damaged) -> Ending:
    """Return the ending of a job whose stored code is gone, which no retry can fix."""
    return Ending(Outcome.CODE_CHANGED, reason=plain(f"its stored code is gone: {error}"))


Changes = list[tuple[str, str]]
"""Paths, and what happened to each; those that git tracks come first."""


def listed(changes: Changes) -> str:
    """Name the first changes: "train.py changed, lib.py was removed and 3 more"; "" for none."""
    return units.listed([plain(f"{path} {what}") for path, what in changes], _NAMED)


def compare(snapshots: Path, spec: JobSpec, not_code: str) -> tuple[SourceTree | None, Changes]:
    """Return the tree as it is now, if it can be listed, and how it differs from the submitted one.

    Raises: OSError, Damaged.
    """
    root = Path(spec.root)
    if not os.access(root, os.F_OK):
        return None, [(str(root), "was removed")]
    tree = None
    try:
        tree = scan.of_repository(root, snapshots.parent)
        if tree.hash == spec.tree:
            return tree, []
    except git_commands.GitFailed:
        pass
    manifest = archive.read_manifest(snapshots, spec.tree)
    if not git_commands.lists(root, manifest.in_git):
        try:
            tree = scan.of_folder(root, snapshots.parent)
        except scan.NotCode:
            tree = None
    elif tree is not None and tree.root != root:
        tree = None
    before = manifest.entries
    now = {} if tree is None else dict(tree.entries)
    oid_length = next((len(entry.content[1]) for entry in before.values()), 40)
    for path, content in git_hash.read(root, before.keys() - now.keys(), oid_length).items():
        now[path] = Entry(content, before[path].tracked)
    changes: list[tuple[bool, str, str]] = []
    for path in before.keys() | now.keys() - {*manifest.left_out}:
        old, new = before.get(path), now.get(path)
        if old and new and old.content == new.content:
            continue
        tracked = any(entry.tracked for entry in (old, new) if entry)
        if rules.matters(path, not_code, tracked=tracked, is_new=old is None):
            changes.append((not tracked, path, "was added" if not old else "changed" if new else "was removed"))
    return tree, [(path, what) for _, path, what in sorted(changes)]


def _links(root: Path, manifest: Manifest, now: SourceTree | None, home: Path) -> tuple[str, ...]:
    """Return what a copy links to the folder: data, checkpoints and other entries that git ignores, and files that are
    not stored. Neither byte code nor the queue's own folder is among them."""
    ignored: list[str] = []
    if git_commands.lists(root, manifest.in_git):
        try:
            ignored = git_commands.ignored(root)
        except git_commands.GitFailed:
            ignored = []
    names = {name.rstrip("/") for name in (*ignored, *manifest.left_out, *(now.left_out if now else ()))}
    names -= manifest.entries.keys()
    linked = (name for name in sorted(names) if rules.is_kept(f"{name}/") and rules.is_kept(name))
    return tuple(name for name in linked if os.access(root / name, os.F_OK) and root / name != home)
