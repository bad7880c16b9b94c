"""Check before a start that the code has not changed since submit, holding the lane: nothing is measured meanwhile."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from queue_runner.errors import is_shortage
from queue_runner.host import child, protected
from queue_runner.model import Ending, Outcome
from queue_runner.source import archive, git_commands, git_hash, rules, scan, working_copy
from queue_runner.source.archive import Damaged
from queue_runner.source.scan import Entry
from queue_runner.spec import JobSpec
from queue_runner.text import plain

READ_S = 120.0
"""The lane is held, and nothing is measured, while the tree of a command is read."""
_NAMED = 3


@dataclass(frozen=True)
class Found:
    """Why a job must not be started, if so, and the real paths of the folders that its command names in a copy."""

    refusal: Ending | None
    real: Mapping[str, str] = field(default_factory=dict)


class Look:
    """A look at the code of a job before its start. The user's folders are read in a child process, for at most READ_S
    seconds: that may wait in the kernel for hours. Close it."""

    def __init__(self, snapshots: Path, spec: JobSpec, reader: child.Child) -> None:
        """Begin it. `reader` lives as long as the runs follow each other: its start takes longer than a look.

        Raises: OSError as `refusal`.
        """
        named = working_copy.named_folders(spec) if spec.copy else set()
        self.what = "command's files in " + ", ".join(sorted(named)) if named else f"code in {spec.root}"
        self._deadline = time.monotonic() + READ_S
        self._reader = reader
        elsewhere = spec.kind != "workload" and spec.tree and (named or not (spec.copy or spec.allow_changed))
        if elsewhere:
            reader.begin(look, snapshots, spec)
        self._found = None if elsewhere else look(snapshots, spec)

    def wait(self, at_most_s: float) -> Found | None:
        """Return the result; None if it is not known yet. Raises: OSError as `refusal`."""
        if self._found is None and self._reader.wait(min(at_most_s, self._deadline - time.monotonic())):
            self._found = self._reader.answer()
        if self._found is not None or time.monotonic() < self._deadline:
            return self._found
        text = f"its {self.what} could not be read within {READ_S:.0f} s ({protected.SLOW})"
        return Found(Ending(Outcome.SPAWN_FAILED, reason=plain(text)))

    def close(self) -> None:
        """End a look that is not wanted any more."""
        if self._found is None:
            self._reader.close()


def look(snapshots: Path, spec: JobSpec) -> Found:
    """Look at the folders that a job's start depends on. Raises: OSError as `refusal`."""
    return Found(refusal(snapshots, spec), working_copy.real_folders(spec) if spec.copy else {})


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
        stored = snapshots / spec.tree / archive.WHOLE
        return None if stored.is_file() else lost(Damaged(f"{stored} was deleted"))
    if spec.allow_changed:
        return None
    changes = differences(snapshots, spec)
    if not changes:
        return None
    named = ", ".join(plain(text) for text in changes[:_NAMED])
    more = f" and {len(changes) - _NAMED:,} more" if len(changes) > _NAMED else ""
    return Ending(Outcome.CODE_CHANGED, reason=f"{named}{more}")


def lost(error: Damaged) -> Ending:
    """Return the ending of a job whose stored code is gone, which no retry can fix."""
    return Ending(Outcome.CODE_CHANGED, reason=f"its stored code is gone: {error}")


def differences(snapshots: Path, spec: JobSpec) -> list[str]:
    """Return the relevant differences between the tree now and at submit as sentences; tracked files first.

    Raises: OSError.
    """
    root = Path(spec.root)
    if not root.is_dir():
        return [f"{root} was removed"]
    now: dict[str, Entry] = {}
    try:
        tree = scan.of_repository(root, snapshots.parent)
        if tree.hash == spec.tree:
            return []
        if tree.root == root:
            now = dict(tree.entries)
    except git_commands.GitFailed:
        pass  # git is gone: every file is read
    try:
        before = archive.read_manifest(snapshots, spec.tree).entries
    except Damaged as error:
        return [f"the code changed, but the list of its files is gone ({error})"]
    oid_length = next((len(oid) for _, oid in (entry.content for entry in before.values())), 40)
    for path, content in git_hash.read(root, before.keys() - now.keys(), oid_length).items():
        now[path] = Entry(content, before[path].tracked)
    changes: list[tuple[bool, str, str]] = []
    for path in before.keys() | now.keys():
        old, new = before.get(path), now.get(path)
        if old and new and old.content == new.content:
            continue
        tracked = any(entry.tracked for entry in (old, new) if entry)
        if rules.matters(path, tracked=tracked, is_new=old is None):
            changes.append((not tracked, path, "was added" if not old else "changed" if new else "was removed"))
    return [f"{path} {what}" for _, path, what in sorted(changes)]
