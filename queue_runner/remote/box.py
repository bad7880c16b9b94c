"""On a box, at the end of an ssh connection: `python -m queue_runner.remote.box VERB VERSION BASE TOKEN`. A node of a
cluster answers to hello alone, on a shared folder.

- receive: a tar archive of the block's folder becomes BASE/TOKEN, whole or not at all
- start: start the block, detached from the connection; its fence decides whether it runs
- sync: take in requests, restart a supervisor that has died, report the state, send new files
- void: keep the block from ever being started
- remove: remove the folder of the block
- hello: report the conditions for a block here

The answer is a line MARK, since a login may print before, a line of JSON, and for sync the bytes of its `files`, one
after the other. Each verb may be repeated: a link that is cut after the deed and before the answer changes nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct, to_builtins

from queue_runner import __version__
from queue_runner.decoding import convert
from queue_runner.host import locks
from queue_runner.host.home import MIN_FREE_BYTES
from queue_runner.remote.fence import FenceHolder, make_void
from queue_runner.remote.json_files import read_json, read_struct

MARK = b"mpsq-answer-1\n"
WHOLE = ".whole"
"""The last member of an archive: one that was cut lacks it."""
MOST_STARTS = 5
"""Starts of the supervisor of a block. It goes on where one has died, as by a reboot."""
MOST_ENDS = 5
"""Further starts, which only end the rest of the block and pass on its results."""
START_S = 60.0
BEGAN = "began.json"
"""The file of a run whose content is in the answer."""
RESULT = "result.mpsq"
"""A file of a run that comes after all others of it."""
_WHILE_IT_RUNS = ("events.jsonl", "stdout.log", "stderr.log")
CHUNK = 1 << 20
TOKEN = re.compile(r"[0-9a-f]{32}")
REQUEST = re.compile(r"stop|cancel/\d+\.\d+")
RUN = re.compile(r"\d+\.\d+")
_LOG_END = 4096
_IN = ".in-"
"""How the name of an incomplete upload begins; the token follows."""
_OLD_S = 86400.0
"""Age of an incomplete upload that is removed."""
Count = Annotated[int, Meta(ge=0)]


class SyncRequest(Struct):
    """The input of sync: at the front are the files of `have`, with their sizes, and all files of the runs in `done`.
    It has new `requests`, and takes `limit` bytes at once."""

    have: dict[str, int]
    done: set[str]
    requests: list[str]
    limit: int


class BoxState(Struct):
    """The answer to sync. `begun` has the times of runs that have begun and are not complete at the front. `files` are
    (path, offset, count); their bytes follow. `fenced`: somebody has the fence, even if it cannot be read. `left`: a
    worker or a warden lives without its supervisor. `full`: its disk takes no results."""

    folder: bool = True
    fence: FenceHolder | None = None
    fenced: bool = False
    alive: bool = False
    starts: int = 0
    left: bool = False
    full: bool = False
    boot: str = ""
    ended: dict[str, Any] | None = None
    beat: dict[str, Any] | None = None
    log: str | None = None
    begun: dict[str, dict[str, Any]] = {}
    files: list[tuple[str, Count, Count]] = []
    more: bool = False


class Place(Struct):
    """The answer to hello: the Python there, the disk of its blocks, and on a node of Slurm the devices that it has.
    `kind` is that of a network file system."""

    host: str
    python: str
    place: str
    free_bytes: int
    kind: str | None
    writable: bool
    devices: str | None

    @property
    def problem(self) -> str:
        """Why no block can have its home there; "" if one can."""
        if self.kind:
            return f"{self.place} is on a network file system ({self.kind})"
        if not self.writable:
            return f"{self.place} cannot be written"
        return f"{self.place} is full" if self.free_bytes < MIN_FREE_BYTES else ""


Answer = dict[str, Any] | Struct


def receive(folder: Path) -> Answer:
    """Unpack standard input beside `folder`, then give it its name, if there is none of that name."""
    import tarfile

    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    for old in folder.parent.glob(f"{_IN}*"):
        if time.time() - old.stat().st_mtime > _OLD_S:
            shutil.rmtree(old, ignore_errors=True)
    part = Path(tempfile.mkdtemp(prefix=f"{_IN}{folder.name}-", dir=folder.parent))
    try:
        with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as archive:
            # the front may run anything here as it is; Python 3.11.0 to 3.11.3 has no filters
            archive.extraction_filter = getattr(tarfile, "fully_trusted_filter", None)
            for member in archive:
                archive.extract(member, part)
        (part / WHOLE).unlink()
        if not folder.exists():
            part.rename(folder)
    except (tarfile.TarError, EOFError, FileNotFoundError) as error:
        return {"error": f"the block did not arrive whole: {error}"}
    except OSError as error:
        if not folder.is_dir():
            raise
        print(error, file=sys.stderr)  # it has come before
    finally:
        shutil.rmtree(part, ignore_errors=True)
        _leave(folder.parent)
    return {}


def start(folder: Path, *arguments: str) -> Answer:
    """Start the supervisor of the block, and wait until it holds its lock or has ended."""
    with (folder / "starts").open("ab") as starts, (folder / "node.log").open("ab") as log:
        starts.write(b".")
        process = subprocess.Popen(
            [sys.executable, "-m", "queue_runner.remote", str(folder), *arguments],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder, start_new_session=True,
        )  # fmt: skip
    deadline = time.monotonic() + START_S
    while not is_alive(folder) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    return {"pid": process.pid}


def is_alive(folder: Path) -> bool:
    """Return whether a supervisor of the block lives: it holds this lock until its end."""
    return locks.is_held(folder / "home.lock")


def is_left(folder: Path) -> bool:
    """Return whether a worker or a warden of the block lives, as after the death of its supervisor."""
    home = folder / "home"
    if not home.is_dir():
        return False
    wardens = home.glob("runs/*/warden.lock")
    return locks.worker(home)[0] or any(map(locks.is_held, wardens))


def void(folder: Path) -> Answer:
    """Take the fence in the place of a start; `void` says whether no start has."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return {"void": make_void(folder / "fence")}


def remove(folder: Path) -> Answer:
    """Remove the folder of a block of which nothing lives."""
    if is_alive(folder) or is_left(folder):
        return {"error": "the block is running"}
    for part in folder.parent.glob(f"{_IN}{folder.name}-*"):
        shutil.rmtree(part, ignore_errors=True)  # of an upload that was cut: one that goes on fails without it
    if not folder.is_dir() or folder.is_symlink():
        _leave(folder.parent)
        return {}
    instructions = read_json(folder / "block.json")
    if instructions is not None and instructions.get("token") != folder.name:
        return {"error": f"{folder} does not belong to this block"}
    gone = folder.with_name(f".out-{folder.name}")
    shutil.rmtree(gone, ignore_errors=True)
    folder.rename(gone)
    shutil.rmtree(gone)
    _leave(folder.parent)
    return {}


def _leave(base: Path) -> None:
    """Remove the folder of all blocks once there is nothing in it."""
    with contextlib.suppress(OSError):
        base.rmdir()


def sync(folder: Path) -> tuple[Answer, Callable[[], Iterator[bytes]]]:
    """Return the state of a block and an iterator over the bytes of its files. Standard input is a SyncRequest."""
    request = convert(json.load(sys.stdin), SyncRequest)
    if not folder.is_dir():
        return BoxState(folder=False), lambda: iter(())
    for name in filter(REQUEST.fullmatch, request.requests):
        (folder / name).parent.mkdir(mode=0o700, exist_ok=True)
        (folder / name).touch()
    fence, starts = read_struct(folder / "fence", FenceHolder), 0
    with contextlib.suppress(FileNotFoundError):
        starts = (folder / "starts").stat().st_size
    alive, ended = is_alive(folder), (folder / "ended.json").exists()
    may_continue = not alive and not ended and fence is not None and fence.void is None
    if may_continue and starts < MOST_STARTS + MOST_ENDS:
        start(folder, *(["died"] if starts >= MOST_STARTS else []))
        alive, starts = is_alive(folder), starts + 1
    from queue_runner.host.processes import boot_id

    state = BoxState(
        fence=fence,
        fenced=(folder / "fence").exists(),
        alive=alive,
        starts=starts,
        left=not alive and is_left(folder),
        full=shutil.disk_usage(folder).free < MIN_FREE_BYTES,
        boot=boot_id(),
        ended=read_json(folder / "ended.json"),
        beat=read_json(folder / "beat.json"),
    )  # before the runs: they are complete by then
    begun = [run for run in sorted(folder.glob("runs/*")) if RUN.fullmatch(run.name) and (run / BEGAN).exists()]
    begun = [run for run in begun if run.name not in request.done]
    state.begun = {run.name: read_json(run / BEGAN) or {} for run in begun}
    state.files, state.more = _new(begun, request)
    with contextlib.suppress(OSError), (folder / "node.log").open("rb") as log:
        log.seek(max(0, os.fstat(log.fileno()).st_size - _LOG_END))
        state.log = log.read(_LOG_END).decode(errors="replace")
    return state, lambda: _bytes(folder, state.files)


def _new(runs: Sequence[Path], request: SyncRequest) -> tuple[list[tuple[str, int, int]], bool]:
    """Return the parts of files of these runs that the front lacks, each run's result after all else of it, and whether
    there is more than the limit: then only a part of the last file is among them.

    A result of which the front has all bytes gets an empty part: it may not know that it is whole."""
    limit = request.limit
    files: list[tuple[str, int, int]] = []
    for run in runs:
        result = run / RESULT
        paths = [run / name for name in _WHILE_IT_RUNS]
        if result.exists():
            paths = [*sorted(path for path in run.rglob("*") if path not in (result, run / BEGAN)), result]
        for path in paths:
            if path.is_symlink() or not path.is_file():
                continue
            name = f"runs/{path.relative_to(run.parent).as_posix()}"
            known, size = request.have.get(name, -1), path.stat().st_size
            if size < known or (size == known and path != result):
                continue
            offset = max(known, 0)
            count = min(size - offset, max(limit, 0))
            files.append((name, offset, count))
            limit -= count
            if offset + count < size:
                return files, True
    return files, False


def _bytes(folder: Path, files: list[tuple[str, int, int]]) -> Iterator[bytes]:
    for name, offset, count in files:
        with (folder / name).open("rb") as stream:
            stream.seek(offset)
            while count > 0:
                data = stream.read(min(count, CHUNK))
                if not data:
                    return  # it has shrunk: the answer ends early, and the front asks again
                count -= len(data)
                yield data


def hello(folder: Path) -> Answer:
    """Return the conditions for a block here."""
    import platform

    from queue_runner.host.filesystem import nearest_existing, network_kind

    place = nearest_existing(folder.parent)
    return Place(
        host=os.environ.get("SLURMD_NODENAME") or socket.gethostname(),
        python=platform.python_version(),
        place=str(place),
        free_bytes=shutil.disk_usage(place).free,
        kind=network_kind(place),
        writable=os.access(place, os.W_OK | os.X_OK),
        devices=os.environ.get("CUDA_VISIBLE_DEVICES") or os.environ.get("ROCR_VISIBLE_DEVICES"),
    )


_VERBS = {"receive": receive, "start": start, "void": void, "remove": remove, "hello": hello}


def main(arguments: list[str]) -> int:
    """Do what the front asks. Return 0 whenever there is an answer."""
    verb, version, base, token = arguments
    folder = Path(os.path.expanduser(base or tempfile.gettempdir())) / token  # noqa: PTH111 - as it is without a home
    answer: Answer
    send: Callable[[], Iterator[bytes]] = lambda: iter(())  # noqa: E731
    if version != __version__ and verb in ("receive", "start", "hello"):
        answer = {"error": f"it has mpsq {__version__}, this machine {version}", "version": __version__}
    elif not TOKEN.fullmatch(token) or not folder.is_absolute():
        answer = {"error": f"{folder} is not the folder of a block"}
    else:
        try:
            if verb == "sync":
                answer, send = sync(folder)
            else:
                answer = _VERBS[verb](folder)
        except OSError as error:
            answer = {"error": f"{error.strerror or error}: {error.filename or folder}"}
    out = sys.stdout.buffer
    out.write(b"\n" + MARK + json.dumps(answer, default=to_builtins).encode() + b"\n")
    for data in send():
        out.write(data)
    out.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
