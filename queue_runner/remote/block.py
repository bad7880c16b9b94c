"""A block: all that one allocation runs, as a folder that the front writes and a node reads (docs/remote.md).

- block.json: the jobs, their runs in order, settings. It is written whole before the block is sent.
- snapshots/: the code of the jobs
- fence: created by the one start that runs the block, or by the front to keep every start out (fence.py)
- beat.json: the state of the node; its count grows while it lives
- origins/12.1/: the checkpoint of a run from which another resumes
- permitted.json: the runs that the node may begin: written before it may
- runs/12.3/: the files of a run. began.json says when it began, streams grow by appending, and result.mpsq, a bundle
  that is renamed into place (bundles/run_result.py), is how it ended.
- cancel/12.3: request of the front to cancel a run
- stop: request of the front to end the block
- ended.json: the node is done: nothing more comes
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Container, Mapping
from pathlib import Path

from msgspec import Struct, ValidationError

from queue_runner.atomic_file import replacing
from queue_runner.config_file import KEYS, Config
from queue_runner.decoding import convert
from queue_runner.host.filesystem import open_regular
from queue_runner.host.run_dir import RunDir, read_regular
from queue_runner.host.warden_records import Time
from queue_runner.paths import Below
from queue_runner.remote import outputs
from queue_runner.remote.json_files import read_json, write_json
from queue_runner.source import archive

RESULT = "result.mpsq"
TAKEN = "taken: the scheduler asked the block to end"
"""Why a node has ended a block that had SIGTERM."""
TAKEN_NOTE = "taken"
"""Kind of the note of a run that failed after that: the scheduler's answer says how it ended, its result does not."""
STREAMS = ("events.jsonl", "stdout.log", "stderr.log")
_RUN_FILES = ("spec.json", "warden/started", "warden/prepared", "warden/stop", "warden/exit.json", "warden/warden.log")
_UNREADABLE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.EINVAL)
"""Errors of a file that is missing, or in whose place a job has put something else. After any other error, as of a
shared folder that does not answer, the file is read again later: its content must not be lost."""
_MARK = ".mpsq-blocks"
_FRONT_KEYS = ("on", "lanes", "hook_done", "hook_failed", "hook_idle", "backup_every_s", "keep_log_bytes", "poll_s")
"""Settings of the front that a node does not take over."""


class PlannedJob(Struct):
    """A job as a node stores it: columns of the table jobs."""

    id: int
    group_id: int
    created_at: float
    name: str
    kind: str
    workload: str | None
    framework: str | None
    device: str | None
    compile: int | None
    dtype: str | None
    config: str | None
    spec_json: str
    spec_hash: str
    priority: int
    deadline_at: float | None


class PlannedRun(Struct):
    """A run as a node stores it: columns of the table runs."""

    job_id: int
    number: int
    repeat: int
    attempt: int
    position: int
    created_at: float

    @property
    def name(self) -> str:
        """Its name, 12.3."""
        return f"{self.job_id}.{self.number}"


class Instructions(Struct):
    """The content of block.json. `settings` is the node's config.toml, `environments` are those of the jobs by the
    names of their files. `box` and `local` are those of the target; `whole`: the block has its machine alone.
    `origins` are the runs from which others resume, by the names of these."""

    group: int
    title: str
    seed: int
    jobs: list[PlannedJob]
    runs: list[PlannedRun]
    environments: dict[str, dict[str, str]]
    token: str
    to: str
    settings: str
    box: bool = False
    local: str = ""
    whole: bool = True
    origins: dict[str, str] = {}


class Beginning(Struct, frozen=True):
    """When the node claimed a run and started it. Without `at`, it ended before it began."""

    at: Time | None = None
    started: Time | None = None


class Folder(Struct, frozen=True):
    """Paths in the folder of a block."""

    path: Path

    instructions = Below("path", "block.json")
    snapshots = Below("path", "snapshots")
    fence = Below("path", "fence")
    beat = Below("path", "beat.json")
    origins = Below("path", "origins")
    permitted = Below("path", "permitted.json")
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

    def result(self, name: str) -> Path:
        """Return the path of a run's result."""
        return self.runs / name / RESULT

    def beginning(self, name: str) -> Beginning | None:
        """Return when the node began a run; None where nothing has come of it."""
        data = read_json(self.runs / name / "began.json")
        try:
            return None if data is None else convert(data, Beginning)
        except (ValidationError, UnicodeEncodeError):
            return Beginning(at=0.0)  # it has begun, nobody knows when

    def beginnings(self, among: Container[str] | None = None) -> dict[str, Beginning]:
        """Return the runs of which something has come (of those in `among`, if given), in the order of their starts."""
        come: dict[str, Beginning] = {}
        with contextlib.suppress(OSError):
            for path in self.runs.iterdir():
                is_ours = among is None or path.name in among
                if is_ours and (times := self.beginning(path.name)) is not None:
                    come[path.name] = times
        return dict(sorted(come.items(), key=lambda item: (item[1].at or float("inf"), item[0])))

    def may_have_begun(self) -> set[str] | None:
        """Return the runs that the node may have begun, of which nothing needs to have come; None if the folder is
        gone: all may."""
        if is_missing(self.path):
            return None
        return {str(name) for name in (read_json(self.permitted) or {}).get("runs", ())}


def create(folder: Folder, instructions: Instructions, snapshots: Path, codes: set[str]) -> None:
    """Write a block into its folder. Raises: OSError."""
    (folder.path.parent / _MARK).touch()
    for path in (folder.snapshots, folder.runs, folder.cancels):
        path.mkdir(mode=0o700)
    for code in sorted(archive.needed(snapshots, codes)):
        if (snapshots / code).is_dir():
            shutil.copytree(snapshots / code, folder.snapshots / code, dirs_exist_ok=True)
    write_json(folder.instructions, instructions)


def settings_of_a_node(settings: Config) -> str:
    """Return the config.toml of a node: as here, without hooks. Logs are cut by the front, which reads them whole."""
    lines = ["backup_every_s = 0", "poll_s = 1.0", f"keep_log_bytes = {2**62}"]
    for name, key in KEYS.items():
        value = getattr(settings, name)
        if name not in _FRONT_KEYS and value != key.default and not isinstance(value, Mapping):
            lines.append(f"{name} = {json.dumps(value)}")
    return "\n".join(lines) + "\n"


def is_removed(folder: Folder) -> bool:
    """Return whether the block is missing from the folder of all blocks. A folder that is not mounted, or has not
    answered, lacks its mark as well."""
    return (folder.path.parent / _MARK).exists() and is_missing(folder.path) is True


def is_missing(path: Path) -> bool | None:
    """Return whether there is nothing of this name; None while that is unknown, as of a shared folder that does not
    answer."""
    try:
        path.lstat()
    except FileNotFoundError:
        return True
    except OSError:
        return None
    return False


def fetch(source: RunDir, target: RunDir, *, whole: bool) -> list[str]:
    """Bring the folder of a run up to date; `whole` also with the files of its end, of which `out` takes the place of
    the checkpoints that were there. Return the names of files in `out` that could not be copied. Raises: OSError; then
    call again."""
    for path in (target.path, target.path / "warden"):  # not its parents: a block that was removed stays so
        path.mkdir(mode=0o700, exist_ok=True)
    for stream in STREAMS:
        _append_new(source.path / stream, target.path / stream)
    if not whole:
        return []
    for file in _RUN_FILES:
        try:
            data = read_regular(source.path / file)
        except OSError as error:
            if error.errno in _UNREADABLE:
                continue
            raise
        with replacing(target.path / file, durable=True) as partial:
            partial.write_bytes(data)
    with outputs.replacing_folder(target.out) as out:
        return outputs.copy(outputs.or_before(source.out), out)


def _append_new(source: Path, target: Path) -> None:
    """Append to `target` the bytes of `source` beyond its size, if it can be read. Raises: OSError."""
    try:
        stream = os.fdopen(open_regular(source), "rb")
    except OSError as error:
        if error.errno in _UNREADABLE:
            return
        raise
    with stream, target.open("ab") as out:
        stream.seek(out.tell())
        shutil.copyfileobj(stream, out, 1 << 20)
