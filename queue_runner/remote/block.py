"""A block: all that one allocation runs, as a folder that the front writes and a node reads (docs/remote.md).

block.json     the jobs, their runs in order, settings; written whole before the block is sent
snapshots/     the code of the jobs
fence          created by the one start that runs the block, or by the front to keep every start out (fence.py)
beat.json      what the node does now; its count grows while it lives
runs/12.3/     what a run wrote: streams grow by appending, record.json (renamed into place) says that it has ended
cancel/12.3    request of the front to cancel a run
stop           request of the front to end the block
ended.json     the node is done: nothing more comes
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from queue_runner.atomic_file import replacing
from queue_runner.config import KEYS, Config
from queue_runner.paths import Below
from queue_runner.remote.read_json import read_json
from queue_runner.run_dir import RunDir

VERSION = 1
STREAMS = ("events.jsonl", "stdout.log", "stderr.log")
_MARK = ".mpsq-blocks"
_OWN_KEYS = ("on", "hook_done", "hook_failed", "hook_idle", "notify", "backup_every_s", "keep_log_bytes", "poll_s")
"""Settings of the front that a node does not take over."""


@dataclass(frozen=True)
class Folder:
    """Paths in the folder of a block."""

    path: Path

    instructions = Below("path", "block.json")
    snapshots = Below("path", "snapshots")
    fence = Below("path", "fence")
    beat = Below("path", "beat.json")
    runs = Below("path", "runs")
    cancels = Below("path", "cancel")
    stop = Below("path", "stop")
    ended = Below("path", "ended.json")
    log = Below("path", "node.log")
    home = Below("path", "home")
    """Path of the home of the block on a box; a node of a cluster has it on a local disk."""

    def run(self, name: str) -> RunDir:
        """Return the folder of a run by its name, `12.3`."""
        return RunDir(self.runs / name)

    def record(self, name: str) -> dict[str, Any] | None:
        """Return how a run ended, with what was measured around it; None before that."""
        return read_json(self.runs / name / "record.json")


def create(folder: Folder, instructions: Mapping[str, Any], snapshots: Path, codes: set[str], settings: Config) -> None:
    """Write a block. A folder left by an incomplete try is completed. Raises: OSError."""
    folder.path.mkdir(mode=0o700, parents=True, exist_ok=True)
    (folder.path.parent / _MARK).touch()
    for path in (folder.snapshots, folder.runs, folder.cancels):
        path.mkdir(mode=0o700, exist_ok=True)
    for code in sorted(codes):
        if (snapshots / code).is_dir():
            shutil.copytree(snapshots / code, folder.snapshots / code, dirs_exist_ok=True)
    write_json(folder.instructions, {"v": VERSION, **instructions, "settings": settings_of_a_node(settings)})


def settings_of_a_node(settings: Config) -> str:
    """Return the config.toml of a node: as here, without hooks. Logs are cut by the front, which reads them whole."""
    lines = ["backup_every_s = 0", "poll_s = 1.0", f"keep_log_bytes = {2**62}"]
    for name, key in KEYS.items():
        value = getattr(settings, name)
        if name not in _OWN_KEYS and value != key.default and not isinstance(value, Mapping):
            lines.append(f"{name} = {json.dumps(value)}")
    return "\n".join(lines) + "\n"


def is_removed(folder: Folder) -> bool:
    """Return whether there is no such block in the folder of all blocks, which is there itself: one that is not
    mounted, or has not answered, has no mark either."""
    return (folder.path.parent / _MARK).exists() and not folder.path.exists()


def write_json(path: Path, data: Any, *, durable: bool = True) -> None:
    """Write a file at once: temporary file, fsync, rename, fsync of the folder. Raises: OSError."""
    with replacing(path, durable=durable) as partial:
        partial.write_text(json.dumps(data))


def append_new(source: Path, target: Path) -> int:
    """Append to `target` what `source` holds beyond its size; return the size of `target`. Raises: OSError."""
    try:
        stream = os.fdopen(os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC), "rb")
    except OSError:
        return target.stat().st_size if target.exists() else 0
    with stream, target.open("ab") as out:
        stream.seek(out.tell())
        shutil.copyfileobj(stream, out, 1 << 20)
        out.flush()
        return out.tell()
