"""Where an export goes: a new folder, which appears under its name when it is whole."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from queue_runner.atomic_file import flush
from queue_runner.errors import UsageError

MANIFEST = "mpsq-export.json"
"""The file by which an earlier export is known: --force removes no other folder."""


@contextmanager
def new_folder(out: Path, *, force: bool) -> Iterator[Path]:
    """Yield an empty folder beside `out`, which takes its name when the block ends; after an error `out` is as it was.

    Raises: UsageError where `out` exists, unless it is empty or `force` may replace it; OSError.
    """
    _check(out, force)
    partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=out.parent))
    try:
        yield partial
        for path in partial.rglob("*"):
            flush(path)
        flush(partial)
        _rename(partial, out)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    flush(out.parent)


def _check(out: Path, force: bool) -> None:
    if not out.parent.is_dir():
        raise UsageError(f"the folder {out.parent} does not exist", "create it, or name another place")
    if out.is_symlink():
        raise UsageError(f"{out} is a link", "name the folder itself, or a new one")
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not (out / MANIFEST).is_file():
        raise UsageError(f"{out} exists, and mpsq did not write it", "name a new folder: --force replaces exports only")
    if not force:
        raise UsageError(f"{out} already exists", "name a new folder, or replace the earlier export with --force")


def _rename(partial: Path, out: Path) -> None:
    if not (out / MANIFEST).exists():
        partial.rename(out)  # fails where something has come to lie there since
        return
    old = Path(tempfile.mkdtemp(prefix=".replaced-", dir=out.parent))
    try:
        out.rename(old / out.name)
        try:
            partial.rename(out)
        except BaseException:
            (old / out.name).rename(out)
            raise
    finally:
        shutil.rmtree(old, ignore_errors=True)
