"""Resume from a checkpoint: find the one that an attempt has left, and copy it for the next attempt.

The new run is a segment of its own (runs.resumed_from). It works on a copy, runs/ID/resume/: the files of the old run
stay unchanged, whatever the job does with its copy (docs/decisions/runs.md).
"""

from __future__ import annotations

import os
import shutil
import stat
import zipfile
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from queue_runner.errors import UsageError, is_shortage
from queue_runner.host import failpoints
from queue_runner.model import Ending, Outcome, RunId
from queue_runner.paths import Layout
from queue_runner.store import retries
from queue_runner.store.engine import Connection

STEMS = ("checkpoint", "ckpt", "last")
SUFFIXES = (".pt", ".pth", ".ckpt", ".npz", ".safetensors", ".pkl", ".bin")
"""File types of checkpoints of nanoGPT (ckpt.pt), Hugging Face (checkpoint-500/), Lightning (last.ckpt), and ours."""
_ZIPS = (".pt", ".pth", ".npz")  # torch.save and numpy.savez write zip files, whose directory comes last


class Gone(Exception):
    """A checkpoint to resume from that no longer exists."""

    def ending(self) -> Ending:
        return Ending(Outcome.SPAWN_FAILED, reason=str(self))


class Checkpoint(Struct, frozen=True):
    """A file or folder that a run left. `run` is its name, 12.3."""

    run_id: int
    run: RunId
    path: Path


def find(connection: Connection, layout: Layout, run_id: int) -> Checkpoint:
    """Find the newest usable checkpoint of a run; if it wrote none, of the run that it was resumed from.

    Raises: UsageError when there is none, with the remedy.
    """
    chain = retries.segments(connection, run_id)
    checkpoint = newest(layout.runs, chain)
    if checkpoint is None:
        name = chain[0][1]
        raise UsageError(
            f"run {name} left no checkpoint to resume from",
            f"mpsq retry {name} starts over; jobs write checkpoints to $MPSQ_OUT"
            " (nanogpt: --set checkpoint_interval=100)",
        )
    return checkpoint


def newest(runs: Path, chain: Sequence[tuple[int, RunId]]) -> Checkpoint | None:
    """Return the newest usable checkpoint of the first run in `chain` that has one."""
    for run_id, name in chain:
        if (path := in_folder(runs / str(name) / "out")) is not None:
            return Checkpoint(run_id, name, path)
    return None


def in_folder(out: Path) -> Path | None:
    """Find the newest complete checkpoint in a job's folder: one of ours, else by common names, else by common
    types."""
    checkpoints: list[tuple[bool, int, str]] = []
    try:
        with os.scandir(out) as entries:
            for entry in entries:
                named = entry.name.lower().startswith(STEMS)
                if not entry.name.startswith(".") and (named or entry.name.lower().endswith(SUFFIXES)):
                    checkpoints.append((named, entry.stat(follow_symlinks=False).st_mtime_ns, entry.name))
    except OSError:
        return None
    paths = (out / name for _, _, name in sorted(checkpoints, reverse=True))
    return next((path for path in paths if is_usable(path)), None)


def is_usable(path: Path) -> bool:
    """Return whether it looks like a complete checkpoint: no link, not empty, and a zip if so named."""
    try:
        mode = path.lstat().st_mode
        if stat.S_ISDIR(mode):
            return any(path.iterdir())
        if not stat.S_ISREG(mode) or path.lstat().st_size == 0:
            return False
        return path.suffix not in _ZIPS or zipfile.is_zipfile(path)
    except (OSError, zipfile.BadZipFile):  # the latter of one that claims to span several disks
        return False


def copy(layout: Layout, origin: RunId, folder: Path) -> Path:
    """Copy the checkpoint of run `origin` to `folder`. Returns the copy.

    Sockets and the like are left out: they have no content.

    Raises: Gone when the checkpoint no longer exists or cannot be read; OSError when the machine is short of a
    resource.
    """
    source = in_folder(layout.run_dir(origin) / "out")
    if source is None:
        raise Gone(f"the checkpoint of run {origin}, which this run needs, was removed: mpsq retry starts over")
    folder.mkdir(mode=0o700)
    target = folder / source.name
    failpoints.reach("resume.copying")
    short: list[OSError] = []  # copytree turns every error into a text

    def copy_one(old: str, new: str) -> None:
        try:
            shutil.copyfile(old, new, follow_symlinks=False)
        except OSError as error:
            if is_shortage(error):
                short.append(error)
            raise

    try:
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True, ignore=_special, copy_function=copy_one)
        else:
            copy_one(str(source), str(target))
    except OSError as error:  # includes shutil.Error
        if short or is_shortage(error):
            raise short[0] if short else error from error
        raise Gone(
            f"the checkpoint of run {origin}, which this run needs, cannot be read: mpsq retry starts over"
        ) from error
    return target


def _special(folder: str, names: list[str]) -> list[str]:
    """Return the names of everything but files, folders and links."""
    modes = {name: Path(folder, name).lstat().st_mode for name in names}
    return [
        name for name, mode in modes.items() if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode))
    ]
