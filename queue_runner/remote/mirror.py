"""The local copy of a block on a box, which shares no folder with this machine.

Everything that a box sends is checked: its files belong to runs of this block, lie below their folders, have a limited
size, and only grow. It cannot name another place, a link or a device.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from msgspec import ValidationError

from queue_runner.atomic_file import flush
from queue_runner.decoding import convert
from queue_runner.remote.block import Folder
from queue_runner.remote.box import BEGAN, CHUNK, RESULT, BoxState
from queue_runner.remote.json_files import read_json, write_json
from queue_runner.remote.outputs import UNFIT
from queue_runner.remote.target import Refused

LIMIT = 8 << 20
"""Bytes that are brought back at once."""
MOST_BYTES = 64 << 30
"""Bytes of the output of a run that are taken at most, and of its other files; it has a limit where it runs, too."""
_PART = ".result"
"""The name of a result that has not come whole."""
_PARTS_MOST = 64
_LEFT_OUT = "left-out-{run}.json"


class Mirror:
    """The local copy of a block. Only the thread of its target uses it."""

    def __init__(self, folder: Folder, runs: Iterable[str]) -> None:
        self._folder = folder
        self._runs = frozenset(runs)
        self._sizes: Counter[tuple[str, bool]] = Counter()

    def have(self) -> tuple[dict[str, int], list[str]]:
        """Return the sizes of the files of runs that are not complete, by path, and the runs that are. A file that is
        left out counts as longer than any file, so that no box sends it again."""
        sizes, done = {}, []
        self._sizes.clear()
        for run in sorted(self._runs):
            place = self._folder.run(run).path
            if (place / RESULT).exists():
                done.append(run)
                continue
            for parent, _, files in os.walk(place):
                for name in files:
                    path = Path(parent, name)
                    size = path.stat().st_size
                    known = path.with_name(RESULT) if path == place / _PART else path
                    below = known.relative_to(self._folder.path).as_posix()
                    sizes[below] = size
                    self._sizes[_budget(below)] += size
            sizes |= {f"runs/{run}/out/{name}": 1 << 62 for name in left_out(self._folder, run)}
        return sizes, done

    def take(self, answer: Any, read: Callable[[int], bytes]) -> BoxState:
        """Store the answer of a box, and return it: `read` returns so many of the bytes of its files.

        A file of a run's output that cannot be here is left out (`left_out`). Raises: Refused for anything else than
        files of runs, and for more than was requested; Unreachable when the link ends; OSError.
        """
        try:
            state = convert(answer, BoxState)
        except ValidationError as error:
            raise Refused(f"its answer is not one of mpsq: {error}") from error
        if not self._folder.path.is_dir():
            state.more = False  # it was removed here, and takes nothing
            return state
        for run, times in state.begun.items():
            if run not in self._runs:
                raise Refused(f"it sent the times of a run that it was not given: {run[:80]!r}")
            place = self._folder.run(run).path
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            if read_json(place / BEGAN) != times:
                write_json(place / BEGAN, times)
        limit = LIMIT
        for number, (name, offset, count) in enumerate(state.files, start=1):
            limit -= count
            if limit < 0:
                raise Refused(f"the box sent more than the {LIMIT:,} bytes that it was asked for")
            taken = self._place(name, offset, count)
            self._append(taken, count, read)
            is_whole = not state.more or number < len(state.files)
            if taken is not None and taken.name == _PART and is_whole:
                taken.replace(taken.with_name(RESULT))
                flush(taken.parent)
        if state.fenced and not self._folder.fence.exists():
            write_json(self._folder.fence, state.fence)
        if state.log is not None:
            self._folder.log.write_text(state.log)
        if state.beat is not None:
            write_json(self._folder.beat, state.beat, durable=False)
        if state.ended is not None and not state.more:
            write_json(self._folder.ended, state.ended)
        return state

    def _append(self, path: Path | None, count: int, read: Callable[[int], bytes]) -> None:
        with path.open("ab") if path is not None else open(os.devnull, "wb") as stream:
            while count > 0:
                data = read(min(count, CHUNK))
                stream.write(data)
                count -= len(data)
        if path is not None:
            flush(path)

    def _place(self, name: str, offset: int, count: int) -> Path | None:
        """Return the path of a file here that takes these bytes, whose folder exists then. When it cannot take them, a
        file of a run's output is left out: None. Raises: Refused for another one, or one of no run; OSError."""
        parts = name.split("/")
        ours = len(parts) > 2 and parts[0] == "runs" and parts[1] in self._runs and parts[2:] != [BEGAN]
        if not ours or any(part in ("", ".", "..") or "\0" in part for part in parts):
            raise Refused(f"the box sent a file that belongs to no run of the block: {name[:80]!r}")
        budget = _, of_job = _budget(name)
        path = self._folder.path / name
        path = path.with_name(_PART) if parts[2:] == [RESULT] else path
        why = f"no file can have its name: {name[:80]!r}"
        try:
            if len(parts) <= _PARTS_MOST:
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                try:
                    size = path.stat().st_size
                except FileNotFoundError:
                    size = 0
                if path.is_dir() or size != offset:
                    why = f"{name[:80]!r} came from byte {offset:,}, here are {size:,}"
                elif self._sizes[budget] + count > MOST_BYTES:
                    why = f"{name[:80]!r} is more than the {MOST_BYTES:,} bytes of a run"
                    if of_job:
                        path.unlink(missing_ok=True)  # its beginning alone is useless
                        self._sizes[budget] -= size
                else:
                    self._sizes[budget] += count
                    return path
        except UnicodeEncodeError:
            pass
        except OSError as error:
            if error.errno not in UNFIT:
                raise
        if not of_job:
            raise Refused(f"the box sent what cannot be here: {why}")
        _, run, _, below = name.split("/", 3)
        files = sorted({*left_out(self._folder, run), below})
        write_json(self._folder.path / _LEFT_OUT.format(run=run), {"files": files})
        return None


def _budget(name: str) -> tuple[str, bool]:
    """Return the run of a file, and whether it belongs to the output, which has a limit of its own."""
    parts = name.split("/")
    return parts[1], len(parts) > 3 and parts[2] == "out"


def left_out(folder: Folder, run: str) -> list[str]:
    """Return the files of a run's output that were not taken, as paths below `out`."""
    return list((read_json(folder.path / _LEFT_OUT.format(run=run)) or {}).get("files", ()))
