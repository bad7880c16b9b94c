"""The working copy of one run, runs/ID/tree: made before its start, and after its end without what was in it before."""

from __future__ import annotations

import errno
import os
import stat
import tarfile
import time
from pathlib import Path

from queue_runner.spec import JobSpec
from queue_runner.tree_store import WHOLE, Damaged, copy_kept, folder_of, read_manifest

MAX_COPY_S = 120.0
"""The lane is held, and nobody is measured, while a copy is made: beyond this the machine counts as refusing."""
WRITTEN_AT_S = 946_684_800
"""Every file of a copy has this modification time (2000-01-01 UTC): one that has another was written by the job."""


def make(snapshots: Path, spec: JobSpec, target: Path) -> Path:
    """Write the job's tree to `target`, which must not be there; returns the folder that the job starts in.

    Links that lead out of the tree lead where they led; links to the tree itself lead into the copy.

    Raises: Damaged when the stored tree is gone or torn; OSError when the disk refuses or takes too long.
    """
    entries = read_manifest(snapshots, spec.tree).entries
    deadline = time.monotonic() + MAX_COPY_S
    target.mkdir(mode=0o700)
    made, count = {""}, 0
    stored = folder_of(snapshots, spec.tree) / WHOLE
    try:
        with tarfile.open(stored) as archive:
            for info in archive:
                entry = entries.get(info.name)
                if entry is None:
                    raise Damaged(f"{stored} holds {info.name}, which was not in the tree")
                above = os.path.dirname(info.name)
                if above not in made:
                    (target / above).mkdir(parents=True, exist_ok=True)
                    made.add(above)
                path = target / info.name
                if entry.mode == "120000":
                    path.symlink_to(_led(spec.root, info.name, info.linkname, target))
                elif (source := archive.extractfile(info)) is not None:
                    copy_kept(source, path, entry.mode)
                os.utime(path, (WRITTEN_AT_S, WRITTEN_AT_S), follow_symlinks=False)
                count += 1
                if time.monotonic() > deadline:
                    raise OSError(errno.ETIMEDOUT, f"the copy of its code took more than {MAX_COPY_S:.0f} s")
    except FileNotFoundError as error:
        raise Damaged(f"{stored} was deleted") from error
    except (tarfile.TarError, EOFError) as error:
        raise Damaged(f"{stored} cannot be read: {error}") from error
    if count != len(entries):
        raise Damaged(f"{stored} holds {count:,} of {len(entries):,} files")
    cwd = target / spec.inside
    cwd.mkdir(parents=True, exist_ok=True)
    return cwd


def _led(root: str, path: str, link: str, target: Path) -> str:
    """Where a link of the copy must point, so that it leads where it led."""
    place = os.path.normpath(os.path.join(root, os.path.dirname(path), link))
    inside = os.path.relpath(place, root)
    if inside == ".." or inside.startswith("../"):
        return place
    return str(target / inside) if os.path.isabs(link) else link


def python_path(value: str, spec: JobSpec, target: Path) -> str:
    """A PYTHONPATH whose folders inside of the tree are those of the copy."""
    folders = []
    for folder in value.split(os.pathsep):
        inside = os.path.relpath(folder, spec.root) if os.path.isabs(folder) else ".."
        folders.append(folder if inside == ".." or inside.startswith("../") else os.path.normpath(target / inside))
    return os.pathsep.join(folders)


def program(argv: list[str], spec: JobSpec, cwd: Path) -> list[str]:
    """The command line, with a program that is not in the copy (.venv/bin/python) taken from where it was."""
    first = argv[0]
    if "/" not in first or os.path.isabs(first) or os.path.lexists(cwd / first):
        return argv
    return [os.path.join(spec.cwd, first), *argv[1:]]


def tidy(snapshots: Path, spec: JobSpec, target: Path) -> None:
    """Take away from a copy what was in it before the run. What the job has written or changed stays; where it has
    written nothing, nothing stays. Nothing is done where the disk refuses: a copy too many harms nobody."""
    if not spec.copy or not spec.tree or target.is_symlink() or not target.is_dir():
        return
    try:
        entries = read_manifest(snapshots, spec.tree).entries
    except Damaged:
        return
    real = os.path.realpath(target)
    folders = {""} | {os.path.dirname(path) for path in entries} | {spec.inside.strip("./")}
    folders |= {str(above) for folder in folders for above in Path(folder).parents if folder}
    ours = {f for f in folders if os.path.realpath(target / f) == os.path.normpath(os.path.join(real, f))}
    for path in entries:
        if os.path.dirname(path) in ours:
            _remove_if_ours(target / path)
    for folder in sorted(ours - {".", ""}, key=len, reverse=True):
        _remove_caches(target / folder / "__pycache__")
        _remove_empty(target / folder)
    _remove_caches(target / "__pycache__")
    _remove_empty(target)


def _remove_if_ours(path: Path) -> None:
    try:
        status = path.lstat()
        if stat.S_ISLNK(status.st_mode) or (stat.S_ISREG(status.st_mode) and status.st_mtime_ns == WRITTEN_AT_S * 10**9):
            path.unlink()
    except OSError:
        return


def _remove_caches(folder: Path) -> None:
    """Byte code is no result."""
    if folder.is_symlink() or not folder.is_dir():
        return
    try:
        for path in list(folder.iterdir()):
            if path.suffix in (".pyc", ".pyo"):
                path.unlink()
    except OSError:
        return
    _remove_empty(folder)


def _remove_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        return  # it is not empty
