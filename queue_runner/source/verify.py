"""Check before a start that the code is still what was submitted; done holding the lane, when nothing is measured."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from queue_runner.errors import is_shortage
from queue_runner.model import Ending, Outcome
from queue_runner.source import archive, git_commands, git_hash, rules, scan
from queue_runner.source.archive import Damaged
from queue_runner.source.scan import Entry
from queue_runner.spec import JobSpec
from queue_runner.text import plain

_NAMED = 3


def refusal(snapshots: Path, spec: JobSpec) -> Ending | None:
    """Return why this job must not be started; None when it may.

    Raises: OSError when the machine is short of a resource. Other errors, of this job's files, end only this job.
    """
    try:
        return _refusal(snapshots, spec)
    except OSError as error:
        if is_shortage(error):
            raise
        what = f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")
        return Ending(Outcome.SPAWN_FAILED, reason=plain(f"its code cannot be read: {what}"))


def _refusal(snapshots: Path, spec: JobSpec) -> Ending | None:
    if spec.kind == "workload":
        script = snapshots / str(spec.snapshot) / str(spec.script)
        return None if script.is_file() else lost(Damaged(f"{script} was deleted"))
    if not spec.tree:
        return None
    if spec.copy:
        gone = archive.folder_of(snapshots, spec.tree) / archive.WHOLE
        return None if gone.is_file() else lost(Damaged(f"{gone} was deleted"))
    if spec.allow_changed:
        return None
    found = differences(snapshots, spec)
    if not found:
        return None
    named = ", ".join(plain(text) for text in found[:_NAMED])
    more = f" and {len(found) - _NAMED:,} more" if len(found) > _NAMED else ""
    return Ending(Outcome.CODE_CHANGED, reason=f"{named}{more}")


def lost(error: Damaged) -> Ending:
    """Return the ending of a job whose stored code is gone, which no retry can fix."""
    return Ending(Outcome.CODE_CHANGED, reason=f"the code that was kept for it is gone: {error}")


def differences(snapshots: Path, spec: JobSpec) -> list[str]:
    """Return the relevant differences between the tree now and at submit, in words; tracked files first.

    Raises: OSError.
    """
    root = Path(spec.root)
    if not root.is_dir():
        return [f"{root} went away"]
    now: Mapping[str, Entry] | None = None
    oid_length = 40
    try:
        tree = scan.of_repository(root, snapshots.parent)
        if tree.hash == spec.tree:
            return []
        now = tree.entries if tree.root == root else {}
    except git_commands.GitFailed:
        pass  # git is gone: every file is read
    try:
        before = archive.read_manifest(snapshots, spec.tree).entries
    except Damaged as error:
        return [f"something changed, and what is not known any more ({error})"]
    oid_length = next((len(entry.oid) for entry in before.values()), oid_length)
    found: list[tuple[bool, str, str]] = []
    unlisted = {path: entry.mode for path, entry in before.items() if path not in (now or {})}
    there = {path: entry for path, entry in (now or {}).items()}
    oids = git_hash.hashes(root, unlisted, oid_length)
    for path, oid in oids.items():
        mode = git_hash.mode_of((root / path).lstat()) if os.path.lexists(root / path) else None
        there[path] = Entry(mode or "", oid, before[path].tracked)
    for path, entry in before.items():
        is_now = there.get(path)
        if is_now is not None and (is_now.mode, is_now.oid) == (entry.mode, entry.oid):
            continue
        tracked = entry.tracked or (is_now is not None and is_now.tracked)
        if rules.matters(path, tracked=tracked, is_new=False):
            found.append((not tracked, path, "changed" if is_now is not None else "went away"))
    for path, entry in there.items():
        if path not in before and rules.matters(path, tracked=entry.tracked, is_new=True):
            found.append((not entry.tracked, path, "is new"))
    return [f"{path} {what}" for _, path, what in sorted(found)]
