"""The working copy of a run, runs/ID/tree: made before its start, and reduced to the run's own files after its end."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path, PurePath
from typing import IO

from msgspec import Struct, field

from queue_runner.errors import is_shortage
from queue_runner.host import failpoints
from queue_runner.source import git_commands, rules
from queue_runner.source.archive import Damaged, Manifest, check, read_manifest
from queue_runner.spec import JobSpec

MAX_COPY_S = 120.0
"""The lane is held, and nothing is measured, while a copy is made: a longer time counts as a failure of the machine."""
WRITTEN_AT_S = 946_684_800
"""The modification time of every file of a copy (2000-01-01 UTC): a file with another one was written by the job."""
_CHUNK_BYTES = 1 << 20


class CopyPlan(Struct, frozen=True):
    """The needs of a copy, read before it is made. `links` are the entries of the user's folder to which it links.
    `real` has the real paths of the folders that the command names. `imports` are the folders, relative to the tree,
    from which an editable install imports."""

    links: tuple[str, ...] = ()
    real: Mapping[str, str] = field(default_factory=dict)
    imports: tuple[str, ...] = ()


def make(snapshots: Path, spec: JobSpec, target: Path, plan: CopyPlan) -> Path:
    """Write the job's tree to `target`, which must not exist; return the folder that the job starts in.

    Links that point out of the tree keep their targets; links into the tree point into the copy. No file of the user's
    is read.

    Raises: Damaged when the stored tree is missing or torn, or no copy can be made here, as where two names are one;
    OSError when the machine is short of a resource, or takes too long.
    """
    manifest = read_manifest(snapshots, spec.tree)
    target.mkdir(mode=0o700)
    try:
        _unpack(snapshots, manifest, spec.root, target)
        linked = _link(manifest, plan.links, spec.root, target)
        inside = PurePath(spec.inside)
        if linked.intersection(map(str, (inside, *inside.parents))):
            return Path(spec.cwd)
        cwd = target / inside
        cwd.mkdir(parents=True, exist_ok=True)  # git stores no empty folder
        return cwd
    except BaseException as error:
        shutil.rmtree(target, ignore_errors=True)
        if isinstance(error, OSError) and not is_shortage(error):
            raise Damaged(f"no copy of it can be made here: {error.strerror}: {error.filename}") from error
        raise


def _unpack(snapshots: Path, manifest: Manifest, root: str, target: Path) -> None:
    deadline = time.monotonic() + MAX_COPY_S
    made = {target}
    with contextlib.ExitStack() as files:
        check(snapshots, manifest)
        streams = {file: files.enter_context((snapshots / file).open("rb")) for file in manifest.files}
        for name, place in manifest.places.items():
            path, mode = target / name, manifest.entries[name].mode
            if path.parent not in made:
                path.parent.mkdir(parents=True, exist_ok=True)
                made.add(path.parent)
            stream = streams[place.file]
            stream.seek(place.offset)
            if mode == "120000":
                path.symlink_to(_link_target(root, name, os.fsdecode(stream.read(place.size)), target))
            else:
                _write(path, 0o755 if mode == "100755" else 0o644, stream, place.size)
            os.utime(path, (WRITTEN_AT_S, WRITTEN_AT_S), follow_symlinks=False)
            failpoints.reach("copy.unpacking")
            if time.monotonic() > deadline:
                raise OSError(errno.ETIMEDOUT, f"copying its code took more than {MAX_COPY_S:.0f} s")


def _write(path: Path, mode: int, source: IO[bytes], size: int) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, mode), "wb") as stream:
        while size:
            data = source.read(min(size, _CHUNK_BYTES))
            if not data:
                raise Damaged(f"the content of {path.name} is torn")
            stream.write(data)
            size -= len(data)


def _link(manifest: Manifest, names: Iterable[str], root: str, target: Path) -> set[str]:
    """Link to the files of the folder that are too large to be stored, and to the entries of these names; return them
    all. Files of the copy stay: nothing is linked in the place of one, or below it."""
    taken = {*manifest.places}
    for name in sorted({*names, *(manifest.entries.keys() - taken)}):
        path = target / name
        if not taken.intersection(map(str, PurePath(name).parents)) and not os.path.lexists(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(Path(root, name))
            taken.add(name)
    return taken - manifest.places.keys()


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


def python_path(value: str, spec: JobSpec, plan: CopyPlan, target: Path) -> str:
    """Return a PYTHONPATH whose folders inside of the tree are those of the copy, after those of `plan.imports`."""
    folders = [os.path.normpath(target / inside) for inside in plan.imports]
    for folder in value.split(os.pathsep) if value else ():
        inside = _inside(folder, spec.root) if folder.startswith("/") else None
        folders.append(folder if inside is None else os.path.normpath(target / inside))
    return os.pathsep.join(folders)


def real_folders(spec: JobSpec) -> dict[str, str]:
    """Return the real paths of the folders of the files that the command names by absolute path, by their names."""
    folders = {str(Path(path).parent) for _, path in map(_split, spec.argv) if path}
    return {folder: os.path.realpath(folder) for folder in folders}


def command(snapshots: Path, spec: JobSpec, target: Path, plan: CopyPlan) -> list[str]:
    """Return the command line of a run in a copy: files of the tree named by absolute path are those of the copy, a
    program that is not stored (.venv/bin/python) and {cwd} stay the original ones. No file of the user's is read."""
    places = read_manifest(snapshots, spec.tree).places
    words = [_in_copy(word, spec.root, target, plan.real, places) for word in spec.argv]
    program = words[0]
    is_relative = "/" in program and not program.startswith(("/", "{cwd}"))
    if is_relative and os.path.normpath(f"{spec.inside}/{program}") not in places:
        words[0] = str(Path(spec.cwd, program))
    return [word.replace("{cwd}", spec.cwd) for word in words]


def _in_copy(word: str, root: str, target: Path, real: Mapping[str, str], places: Collection[str]) -> str:
    """Return `/code/train.py` or `--config=/code/a.yaml` as a path in the copy, if that file is stored."""
    before, path = _split(word)
    if not path:
        return word
    inside = _inside(str(Path(real[str(Path(path).parent)], Path(path).name)), root)
    return f"{before}{target / inside}" if inside is not None and inside in places else word


def _split(word: str) -> tuple[str, str]:
    """Return the absolute path at the end of a word of a command, "" if none, after the text before it."""
    name, equals, path = ("", "", word) if word.startswith("/") else word.partition("=")
    return (name + equals, path) if path.startswith("/") else (word, "")


def tidy(snapshots: Path, spec: JobSpec, target: Path) -> None:
    """Remove from a copy the files of before the run, and its links to the folder. Files that the job has written or
    changed stay; without any, nothing stays. Errors of the disk are ignored: a superfluous copy does no harm."""
    if spec.kind != "command" or not spec.tree or target.is_symlink() or not target.is_dir():
        return
    try:
        entries = read_manifest(snapshots, spec.tree).entries
    except Damaged:
        return
    folders = {str(folder) for path in (*entries, f"{spec.inside}/file") for folder in PurePath(path).parents}
    emptied: set[Path] = set()
    for place, below, files in os.walk(target):  # follows no link
        inside = os.path.relpath(place, target)
        prefix = "" if inside == "." else f"{inside}/"
        of_copy = inside in folders
        folder = Path(place)
        for path in (folder / name for name in (*below, *files)):
            name = prefix + path.name
            is_byte_code = path.parent.name == "__pycache__" and path.suffix in (".pyc", ".pyo")
            with contextlib.suppress(OSError):
                if is_byte_code or _links_to(path, spec.root, name) or (name in entries and _is_untouched(path)):
                    path.unlink()
                    of_copy = True
        if of_copy:
            emptied |= {folder, *(parent for parent in folder.parents if parent.is_relative_to(target))}
    for folder in sorted(emptied, reverse=True):
        with contextlib.suppress(OSError):  # not empty
            folder.rmdir()


def return_ignored(snapshots: Path, spec: JobSpec, target: Path) -> None:
    """Move files from a copy to their places in the folder, if git ignores them and the folder lacks them. The next run
    finds the data and checkpoints of this one there. Errors are ignored: what cannot be moved stays."""
    root, names = Path(spec.root), []
    for place, below, files in os.walk(target):
        inside = os.path.relpath(place, target)
        prefix = "" if inside == "." else f"{inside}/"
        names += [*(f"{prefix}{name}/" for name in below), *(prefix + name for name in files)]
        if len(names) > rules.MAX_FILES:
            return
    with contextlib.suppress(git_commands.GitFailed, Damaged):
        if not git_commands.lists(root, read_manifest(snapshots, spec.tree).in_git):
            return
        for name in sorted(git_commands.are_ignored(root, names)):  # a folder comes before its content
            source, goal = target / name, root / name
            if os.path.lexists(source) and not os.path.lexists(goal):
                with contextlib.suppress(OSError):  # another disk
                    os.renames(source, goal)  # also makes the folders above, and removes those left empty


def _links_to(path: Path, root: str, name: str) -> bool:
    return path.is_symlink() and str(path.readlink()) == str(Path(root, name))


def _is_untouched(path: Path) -> bool:
    status = path.lstat()
    return stat.S_ISLNK(status.st_mode) or (stat.S_ISREG(status.st_mode) and status.st_mtime_ns == WRITTEN_AT_S * 10**9)
