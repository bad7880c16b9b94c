"""What comes back from a node: the files of a run grow here as they do there, and its record completes them."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Container
from pathlib import Path
from typing import Any

from queue_runner.atomic_file import replacing
from queue_runner.model import Ending, Outcome
from queue_runner.remote import block, outputs, records
from queue_runner.remote.read_json import read_json
from queue_runner.run_dir import RunDir

_FILES = ("spec.json", "warden/started", "warden/prepared", "warden/stop", "warden/exit.json", "warden/warden.log")


def beginning(folder: block.Folder, name: str) -> dict[str, float | None] | None:
    """Return when the node claimed a run (`at`) and started it (`started`), Unix seconds, each None where that is not
    known; None where nothing has come of it."""
    told = read_json(folder.run(name).path / "began.json")
    if told is None:
        return None
    return {key: told[key] if records.is_time(told.get(key)) else None for key in ("at", "started")}


def began(folder: block.Folder, among: Container[str] | None = None) -> list[str]:
    """Return the runs of which something has come (of those in `among`, if given), in the order of their starts."""
    found = []
    with contextlib.suppress(OSError):
        for path in folder.runs.iterdir():
            if among is not None and path.name not in among:
                continue
            told = beginning(folder, path.name)
            if told is not None:
                found.append((told["at"] or float("inf"), path.name))
    return [name for _, name in sorted(found)]


def fetch(source: RunDir, target: RunDir, *, whole: bool) -> list[str]:
    """Bring the folder of a run up to date; `whole` also what is written at its end. Return the names of files in `out`
    that could not be copied. Raises: OSError."""
    (target.path / "warden").mkdir(mode=0o700, parents=True, exist_ok=True)
    for stream in block.STREAMS:
        if (source.path / stream).exists():
            block.append_new(source.path / stream, target.path / stream)
    if not whole:
        return []
    for file in _FILES:
        if (source.path / file).is_file():
            _copy(source.path / file, target.path / file)
    return outputs.copy(source.out, target.out)


def _copy(source: Path, target: Path) -> None:
    with replacing(target, durable=True) as partial:
        shutil.copyfile(source, partial)


def ended(folder: block.Folder, name: str) -> tuple[Ending, dict[str, Any]] | None:
    """Return how the node's worker judged a run's exit.json, and the record of it, checked; None before that, and for a
    record that is not one: it is waited for as if it were late."""
    record = records.checked(folder.record(name))
    if record is None:
        return None
    return Ending(Outcome(record["outcome"]), record["exit_code"], record["signal"], record["reason"] or ""), record


def is_bad(folder: block.Folder, name: str) -> bool:
    """Return whether there is a record of a run that is none."""
    return (folder.run(name).path / "record.json").exists() and ended(folder, name) is None
