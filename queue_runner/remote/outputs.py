"""The files that a job has left in its folder `out`, copied to another folder: what cannot be copied is left out and
named, so that it keeps nothing else from coming back."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO

from queue_runner.host.filesystem import open_regular
from queue_runner.text import cut, one_line

NOTE = "output_left_out"
_SHOWN = 3
_OLD = ".old"
UNFIT = {
    *(errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ, errno.EFBIG),
    *(errno.ELOOP, errno.EISDIR, errno.ENOTDIR, errno.EEXIST),
}
"""Errors of a folder for a file that it can never take. EEXIST: it is case-insensitive, and has another one."""
_NO_LINKS = {errno.EPERM, errno.EACCES, errno.ENOTSUP}


_PASSING = {errno.ESTALE, errno.ETIMEDOUT, errno.EMFILE, errno.ENFILE, errno.ENOMEM}
"""Errors after which the same file can be read later, as of a shared folder that does not answer. EIO, also of a local
disk, is not one."""


class _Unreadable(Exception):
    """A file that the disk cannot read."""


def copy(source: Path, target: Path) -> list[str]:
    """Copy `source`, if it is a folder, to `target`, a new one. Return the names of the files that were left out.

    Links are copied as links, which may lead nowhere in the copy. FIFOs, sockets and devices, which have no content,
    and files that cannot be read here or cannot exist there are left out.

    Raises: OSError when `target` takes nothing, as on a full disk, or `source` does not answer.
    """
    left_out: list[str] = []
    if source.is_symlink() or not source.is_dir():
        return left_out

    def unreadable(error: OSError) -> None:
        _raise_passing(error)
        left_out.append(os.path.relpath(error.filename, source))

    for folder, names, files in os.walk(source, onerror=unreadable):
        place = Path(os.path.normpath(target / os.path.relpath(folder, source)))
        try:
            place.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            if error.errno not in UNFIT:
                raise
            left_out.append(os.path.relpath(folder, source))
            names.clear()
            continue
        for name in sorted((*files, *(name for name in names if Path(folder, name).is_symlink()))):
            if not _copy_one(Path(folder, name), place / name):
                left_out.append(os.path.relpath(Path(folder, name), source))
    return left_out


@contextlib.contextmanager
def replacing_folder(target: Path) -> Iterator[Path]:
    """Yield the path of a new folder, which takes the place of `target` when the block ends; without it, `target` is
    removed. After an error `target` is as it was, and after a kill what `or_before` says. Raises: OSError."""
    new, old = target.with_name(f"{target.name}.new"), target.with_name(f"{target.name}{_OLD}")
    shutil.rmtree(new, ignore_errors=True)
    yield new
    if target.exists():
        shutil.rmtree(old, ignore_errors=True)
        target.rename(old)
    with contextlib.suppress(FileNotFoundError):
        new.rename(target)
    shutil.rmtree(old, ignore_errors=True)


def or_before(folder: Path) -> Path:
    """Return a folder, or the one that was there before where it is missing: between two names (replacing_folder)."""
    return folder if folder.exists() else folder.with_name(f"{folder.name}{_OLD}")


def note(left_out: Collection[str]) -> list[tuple[str, str]]:
    """Return a note of (kind, text) about files of a run's output that have not come back; none for none."""
    if not left_out:
        return []
    names = ", ".join(cut(one_line(name), 80) for name in sorted(left_out)[:_SHOWN])
    more = f" and {len(left_out) - _SHOWN:,} more" if len(left_out) > _SHOWN else ""
    return [(NOTE, f"did not come back from its node: {names}{more}")]


def _copy_one(source: Path, target: Path) -> bool:
    """Copy a file or a link; return False where that is not possible. Raises: OSError of `target`."""
    try:
        mode = source.lstat().st_mode
        link = source.readlink() if stat.S_ISLNK(mode) else None
        if link is None and not stat.S_ISREG(mode):
            return False
        stream = None if link is not None else os.fdopen(open_regular(source), "rb")
    except OSError as error:
        _raise_passing(error)
        return False
    with stream or contextlib.nullcontext():
        try:
            if link is not None:
                target.symlink_to(link)
                return True
            assert stream is not None
            with target.open("xb") as out:
                while data := _read(stream):
                    out.write(data)
        except _Unreadable:
            target.unlink(missing_ok=True)
            return False
        except OSError as error:
            if error.errno not in UNFIT | (_NO_LINKS if stream is None else set()):
                raise
            return False
    with contextlib.suppress(OSError):
        shutil.copystat(source, target)
    return True


def _read(stream: IO[bytes]) -> bytes:
    try:
        return stream.read(1 << 20)
    except OSError as error:
        _raise_passing(error)
        raise _Unreadable from error


def _raise_passing(error: OSError) -> None:
    """Raise the error if it is one of _PASSING."""
    if error.errno in _PASSING:
        raise error
