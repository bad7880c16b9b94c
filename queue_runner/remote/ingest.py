"""What comes back from a node: the files of a run grow here as they do there, and its record completes them."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Container
from pathlib import Path

from msgspec import Struct, ValidationError, convert

from queue_runner.atomic_file import replacing
from queue_runner.remote import block, outputs, records
from queue_runner.remote.read_json import read_json
from queue_runner.run_dir import RunDir
from queue_runner.warden_records import Time

_FILES = ("spec.json", "warden/started", "warden/prepared", "warden/stop", "warden/exit.json", "warden/warden.log")


class Beginning(Struct, frozen=True):
    """When the node claimed a run and started it; None where that is not known."""

    at: Time | None = None
    started: Time | None = None
    boot_id: str | None = None


def beginning(folder: block.Folder, name: str) -> Beginning | None:
    """Return when the node began a run; None where nothing has come of it."""
    data = read_json(folder.run(name).path / "began.json")
    if data is None:
        return None
    try:
        return convert(data, Beginning)
    except ValidationError:
        return Beginning()


def began(folder: block.Folder, among: Container[str] | None = None) -> list[str]:
    """Return the runs of which something has come (of those in `among`, if given), in the order of their starts."""
    begun = []
    with contextlib.suppress(OSError):
        for path in folder.runs.iterdir():
            if among is not None and path.name not in among:
                continue
            if (times := beginning(folder, path.name)) is not None:
                begun.append((times.at or float("inf"), path.name))
    return [name for _, name in sorted(begun)]


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


def ended(folder: block.Folder, name: str) -> records.NodeRecord | None:
    """Return the checked record of a run's end; None before that, and for an invalid record: it is waited for as if it
    were late."""
    return records.checked(folder.record(name))


def is_bad(folder: block.Folder, name: str) -> bool:
    """Return whether there is a record of a run that is none."""
    return (folder.run(name).path / "record.json").exists() and ended(folder, name) is None
