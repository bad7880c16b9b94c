"""On a box, at the end of an ssh connection: `python -m queue_runner.remote.box VERB VERSION BASE TOKEN`.

    receive   a tar archive of the block's folder becomes BASE/TOKEN, whole or not at all
    start     start the block, detached from the connection; its fence decides whether it runs
    sync      take in requests, start a supervisor again that has died, tell the state, send what is new
    void      keep the block from ever being started
    remove    remove the folder of the block
    hello     tell what a block would find here

The answer is a line MARK, since a login may print before, a line of JSON, and for sync the bytes of its `files`, one
after the other. Each verb may be repeated: a link that is cut after the deed and before the answer changes nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from queue_runner import __version__
from queue_runner.host import locks
from queue_runner.remote.fence import make_void
from queue_runner.remote.read_json import read_json

MARK = b"mpsq-answer-1\n"
WHOLE = ".whole"
"""The last member of an archive: one that was cut lacks it."""
MOST_STARTS = 5
"""Starts of the supervisor of a block. It goes on where one has died, as by a reboot."""
MOST_ENDS = 5
"""Further starts, which only end what is left of the block and pass on what it has done."""
START_S = 60.0
AT_ONCE = ("began.json", "record.json")
"""Files of a run that are never sent in parts."""
CHUNK = 1 << 20
TOKEN = re.compile(r"[0-9a-f]{32}")
REQUEST = re.compile(r"stop|cancel/\d+\.\d+")
RUN = re.compile(r"\d+\.\d+")
_LOG_END = 4096
_IN = ".in-"
"""How the name of an incomplete upload begins; the token follows."""
_OLD_S = 86400.0
"""Age of an incomplete upload that is removed."""
Answer = dict[str, Any]


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
    return locks.is_held(locks.worker_lock_path(home)) or any(map(locks.is_held, wardens))


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
    told = read_json(folder / "block.json")
    if told is not None and told.get("token") != folder.name:
        return {"error": f"{folder} is no folder of this block"}
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
    """Return the state of a block, and what sends the bytes of its `files`: [path, offset, count].

    Standard input is JSON: `have` (sizes by path) and `done` (runs of which nothing is missing) at the front,
    `requests` of the front, and the most bytes that it takes at once, `limit`.
    """
    asked = json.load(sys.stdin)
    if not folder.is_dir():
        return {"folder": False}, lambda: iter(())
    for request in filter(REQUEST.fullmatch, asked["requests"]):
        (folder / request).parent.mkdir(mode=0o700, exist_ok=True)
        (folder / request).touch()
    fence, starts = read_json(folder / "fence"), _size(folder / "starts")
    alive, ended = is_alive(folder), (folder / "ended.json").exists()
    may_go_on = not alive and not ended and fence is not None and "void" not in fence
    if may_go_on and starts < MOST_STARTS + MOST_ENDS:
        start(folder, *(["died"] if starts >= MOST_STARTS else []))
        alive, starts = is_alive(folder), starts + 1
    state = {
        **{
            "folder": True,
            "fence": fence,
            "fenced": (folder / "fence").exists(),
            "alive": alive,
            "starts": starts,
            "left": not alive and is_left(folder),
        },
        **{"boot": _boot(), "ended": read_json(folder / "ended.json"), "beat": read_json(folder / "beat.json")},
    }  # before the runs: what had been written by then is complete
    files, more = _new(folder, asked["have"], set(asked["done"]), int(asked["limit"]))
    with contextlib.suppress(OSError), (folder / "node.log").open("rb") as log:
        log.seek(max(0, os.fstat(log.fileno()).st_size - _LOG_END))
        state["log"] = log.read(_LOG_END).decode(errors="replace")
    return {**state, "files": files, "more": more}, lambda: _bytes(folder, files)


def _new(folder: Path, have: Mapping[str, int], done: set[str], limit: int) -> tuple[list[tuple[str, int, int]], bool]:
    """Return the parts of files that the front lacks, each run's record.json after all else of it, and whether there
    is more than the limit."""
    found: list[tuple[str, int, int]] = []
    for run in sorted(folder.glob("runs/*")):
        if not RUN.fullmatch(run.name) or run.name in done or not (run / "began.json").exists():
            continue
        record = run / "record.json"
        has_ended = record.exists()
        whole = sorted(path for path in run.rglob("*") if path != record) if has_ended else _while_it_runs(run)
        for path in (*whole, *([record] if has_ended else [])):
            if path.is_symlink() or not path.is_file():
                continue
            name = path.relative_to(folder).as_posix()
            known, size = have.get(name, -1), path.stat().st_size
            if size <= known:
                continue
            if path.parent == run and path.name in AT_ONCE:
                offset, count = 0, size
            else:
                offset = max(known, 0)
                count = min(size - offset, max(limit, 0))
            found.append((name, offset, count))
            limit -= count
            if offset + count < size:
                return found, True
    return found, False


def _while_it_runs(run: Path) -> list[Path]:
    return [run / name for name in ("began.json", "events.jsonl", "stdout.log", "stderr.log")]


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
    """Return what a block would find here: Python, the disk of its folder, and whether that can be written."""
    import platform

    from queue_runner.host.filesystem import nearest_existing, network_kind

    place = nearest_existing(folder.parent)
    return {
        **{"python": platform.python_version(), "place": str(place), "free_bytes": shutil.disk_usage(place).free},
        **{"kind": network_kind(place), "writable": os.access(place, os.W_OK | os.X_OK)},
    }


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _boot() -> str:
    from queue_runner.host.boot import boot_id

    return boot_id()


_VERBS = {"receive": receive, "start": start, "void": void, "remove": remove, "hello": hello}


def main(arguments: list[str]) -> int:
    """Do what the front asks. Return 0 whenever there is an answer."""
    verb, version, base, token = arguments
    folder = Path(base).expanduser() / token
    answer: Answer
    send: Callable[[], Iterator[bytes]] = lambda: iter(())  # noqa: E731
    if version != __version__ and verb in ("receive", "start", "hello"):
        answer = {"error": f"it has mpsq {__version__}, this machine {version}", "version": __version__}
    elif not TOKEN.fullmatch(token) or not folder.is_absolute():
        answer = {"error": f"{folder} is no folder of a block"}
    else:
        try:
            if verb == "sync":
                answer, send = sync(folder)
            else:
                answer = _VERBS[verb](folder)
        except OSError as error:
            answer = {"error": f"{error.strerror or error}: {error.filename or folder}"}
    out = sys.stdout.buffer
    out.write(b"\n" + MARK + json.dumps(answer).encode() + b"\n")
    for data in send():
        out.write(data)
    out.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
