"""The working copy of a run, runs/ID/tree: made before its start, and reduced to the run's own files after its end."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path, PurePath

from queue_runner import failpoints
from queue_runner.source.archive import WHOLE, Damaged, read_manifest
from queue_runner.source.scan import Entry
from queue_runner.spec import JobSpec

MAX_COPY_S = 120.0
"""The lane is held, and nothing is measured, while a copy is made: a longer time counts as a failure of the machine."""
WRITTEN_AT_S = 946_684_800
"""The modification time of every file of a copy (2000-01-01 UTC): a file with another one was written by the job."""


def make(snapshots: Path, spec: JobSpec, target: Path) -> Path:
    """Write the job's tree to `target`, which must not exist; return the folder that the job starts in.

    Links that point out of the tree keep their targets; links into the tree point into the copy.

    Raises: Damaged when the stored tree is missing or torn; OSError when the disk refuses or takes too long.
    """
    stored = snapshots / spec.tree / WHOLE
    target.mkdir(mode=0o700)
    try:
        with tarfile.open(stored) as archive:
            _unpack(archive, stored, read_manifest(snapshots, spec.tree).entries, spec.root, target)
        cwd = target / spec.inside
        cwd.mkdir(parents=True, exist_ok=True)  # git stores no empty folder, and no ignored one
        return cwd
    except BaseException as error:
        shutil.rmtree(target, ignore_errors=True)
        if isinstance(error, FileNotFoundError) and error.filename == str(stored):
            raise Damaged(f"{stored} was deleted") from error
        if isinstance(error, FileExistsError):
            raise Damaged(f"{stored} contains two files that have one name here: {error.filename}") from error
        if isinstance(error, tarfile.TarError | EOFError):
            raise Damaged(f"{stored} cannot be read: {error}") from error
        raise


def _unpack(archive: tarfile.TarFile, stored: Path, entries: Mapping[str, Entry], root: str, target: Path) -> None:
    deadline = time.monotonic() + MAX_COPY_S
    made, count = {target}, 0
    while (info := archive.next()) is not None:
        archive.members.clear()  # type: ignore[attr-defined]  # would keep all members: 3 KB a file
        entry = entries.get(info.name)
        if entry is None:
            raise Damaged(f"{stored} contains {info.name}, which was not in the tree")
        path = target / info.name
        if path.parent not in made:
            path.parent.mkdir(parents=True, exist_ok=True)
            made.add(path.parent)
        if entry.mode == "120000":
            path.symlink_to(_link_target(root, info.name, info.linkname, target))
        elif (source := archive.extractfile(info)) is not None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            with os.fdopen(os.open(path, flags, 0o755 if entry.mode == "100755" else 0o644), "wb") as stream:
                shutil.copyfileobj(source, stream)
        os.utime(path, (WRITTEN_AT_S, WRITTEN_AT_S), follow_symlinks=False)
        count += 1
        failpoints.reach("copy.unpacking")
        if time.monotonic() > deadline:
            raise OSError(errno.ETIMEDOUT, f"copying its code took more than {MAX_COPY_S:.0f} s")
    if count != len(entries):
        raise Damaged(f"{stored} contains {count:,} of {len(entries):,} files")


def _link_target(root: str, path: str, link: str, target: Path) -> str:
    """Return the target for a link of the copy, so that it points where the original did."""
    original = os.path.normpath(Path(root, path).parent / link)
    inside = _inside(original, root)
    if inside is None:
        return original
    return str(target / inside) if link.startswith("/") else link


def _inside(path: str, root: str) -> str | None:
    """Return `path` relative to `root`; None if it is not below it."""
    relative = os.path.relpath(path, root)
    return None if relative == ".." or relative.startswith("../") else relative


def python_path(value: str, spec: JobSpec, target: Path) -> str:
    """Return a PYTHONPATH whose folders inside of the tree are those of the copy."""
    folders = []
    for folder in value.split(os.pathsep):
        inside = _inside(folder, spec.root) if folder.startswith("/") else None
        folders.append(folder if inside is None else os.path.normpath(target / inside))
    return os.pathsep.join(folders)


def named_folders(spec: JobSpec) -> set[str]:
    """Return the folders of the files that the command names by absolute path."""
    return {str(Path(path).parent) for _, path in map(_split, spec.argv) if path}


def real_folders(spec: JobSpec) -> dict[str, str]:
    """Return the real path of each of these folders, by its name."""
    return {folder: os.path.realpath(folder) for folder in named_folders(spec)}


def command(spec: JobSpec, target: Path, cwd: Path, real: Mapping[str, str]) -> list[str]:
    """Return the command line of a run in a copy: files of the tree named by absolute path are those of the
    copy, a program that is not in the copy (.venv/bin/python) and {cwd} stay the original ones.

    `real` are the `real_folders`: nothing is read here that may not answer."""
    words = [_in_copy(word, spec.root, target, real) for word in spec.argv]
    first = words[0]
    if "/" in first and not first.startswith(("/", "{cwd}")) and not os.path.lexists(cwd / first):
        words[0] = str(Path(spec.cwd, first))
    return [word.replace("{cwd}", spec.cwd) for word in words]


def _in_copy(word: str, root: str, target: Path, real: Mapping[str, str]) -> str:
    """Return `/code/train.py` or `--config=/code/a.yaml` as a path in the copy, where the copy has that file."""
    before, path = _split(word)
    if not path:
        return word
    inside = _inside(str(Path(real[str(Path(path).parent)], Path(path).name)), root)
    return f"{before}{target / inside}" if inside is not None and (target / inside).is_file() else word


def _split(word: str) -> tuple[str, str]:
    """Return the absolute path at the end of a word of a command, "" if none, after the text before it."""
    name, equals, path = ("", "", word) if word.startswith("/") else word.partition("=")
    return (name + equals, path) if path.startswith("/") else (word, "")


def tidy(snapshots: Path, spec: JobSpec, target: Path) -> None:
    """Remove from a copy the files of before the run. Files that the job has written or changed stay; without any,
    nothing stays. Errors of the disk are ignored: a superfluous copy does no harm."""
    if not spec.copy or not spec.tree or target.is_symlink() or not target.is_dir():
        return
    try:
        entries = read_manifest(snapshots, spec.tree).entries
    except Damaged:
        return
    folders = {str(folder) for path in (*entries, f"{spec.inside}/file") for folder in PurePath(path).parents}
    visited = []
    for place, below, files in os.walk(target):  # follows no link
        inside = os.path.relpath(place, target)
        prefix = "" if inside == "." else f"{inside}/"
        for path in (Path(place, name) for name in (*below, *files)):
            is_byte_code = path.parent.name == "__pycache__" and path.suffix in (".pyc", ".pyo")
            with contextlib.suppress(OSError):
                if is_byte_code or (prefix + path.name in entries and _is_untouched(path)):
                    path.unlink()
        below[:] = [name for name in below if prefix + name in folders or name == "__pycache__"]
        visited.append(Path(place))
    for folder in reversed(visited):
        with contextlib.suppress(OSError):  # not empty
            folder.rmdir()


def _is_untouched(path: Path) -> bool:
    status = path.lstat()
    return stat.S_ISLNK(status.st_mode) or (stat.S_ISREG(status.st_mode) and status.st_mtime_ns == WRITTEN_AT_S * 10**9)
