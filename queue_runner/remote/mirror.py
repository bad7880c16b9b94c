"""The folder of a block as far as it has come back from a box, which shares no folder with this machine.

What a box sends is checked: its files are files of the runs of this block, below their folders, of a limited size, and
grow by what is appended. It cannot name another place, a link or a device.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from queue_runner.atomic_file import replacing
from queue_runner.remote.answers import Refused
from queue_runner.remote.block import Folder, write_json
from queue_runner.remote.box import AT_ONCE, CHUNK

LIMIT = 8 << 20
"""Bytes that are brought back at once."""
MOST_BYTES = 64 << 30
"""Bytes of a run that are taken at most; the limit of its output is checked where it runs."""
_AT_ONCE_MOST = 16 << 20
_PART = re.compile(r"(?!\.{1,2}$)[^/\x00]{1,255}")


class Mirror:
    """What is here of a block. Only the thread that follows the blocks uses it."""

    def __init__(self, folder: Folder, runs: Iterable[str]) -> None:
        self._folder = folder
        self._runs = frozenset(runs)

    def have(self) -> tuple[dict[str, int], list[str]]:
        """Return the sizes of the files of runs that are not complete, by path, and the runs that are."""
        sizes, done = {}, []
        for run in sorted(self._runs):
            place = self._folder.run(run).path
            if (place / "record.json").exists():
                done.append(run)
                continue
            for parent, _, files in os.walk(place):
                for name in files:
                    path = Path(parent, name)
                    if not name.startswith(".partial-"):
                        sizes[path.relative_to(self._folder.path).as_posix()] = path.stat().st_size
        return sizes, done

    def take(self, state: dict[str, Any], read: Callable[[int], bytes]) -> None:
        """Store what a box has sent: `read` returns so many of the bytes of its files.

        Raises: Refused for anything that is no file of a run, Unreachable when the link ends, OSError.
        """
        for entry in _list_of(state.get("files")):
            path, offset, count, at_once = self._checked(entry)
            if at_once:
                data = read(count)
                with replacing(path, durable=True) as partial:
                    partial.write_bytes(data)
                continue
            with path.open("ab") as stream:
                if stream.tell() != offset:
                    raise Refused(f"the box sent {path.name} from byte {offset:,}, here are {stream.tell():,}")
                while count > 0:
                    data = read(min(count, CHUNK))
                    stream.write(data)
                    count -= len(data)
                stream.flush()
                os.fsync(stream.fileno())
        if state.get("fenced") and not self._folder.fence.exists():
            write_json(self._folder.fence, state.get("fence"))
        if isinstance(state.get("log"), str):
            self._folder.log.write_text(state["log"])
        if isinstance(state.get("beat"), dict):
            write_json(self._folder.beat, state["beat"], durable=False)
        if isinstance(state.get("ended"), dict) and not state.get("more"):
            write_json(self._folder.ended, state["ended"])

    def _checked(self, entry: Any) -> tuple[Path, int, int, bool]:
        """Return the path here, the offset, the count and whether it comes whole. Its folder exists then."""
        if not isinstance(entry, list) or [type(one) for one in entry] != [str, int, int]:
            raise Refused("the box sent a list of files that mpsq does not write")
        name, offset, count = entry
        parts = name.split("/")
        ours = len(parts) > 2 and parts[0] == "runs" and parts[1] in self._runs and len(parts) <= 64
        if not ours or not all(_PART.fullmatch(part) for part in parts) or str(PurePosixPath(name)) != name:
            raise Refused(f"the box sent a file that is of no run of the block: {name[:80]!r}")
        at_once = len(parts) == 3 and parts[2] in AT_ONCE and offset == 0
        most = _AT_ONCE_MOST if at_once else MOST_BYTES
        if not offset >= 0 or not count >= 0 or offset + count > most:
            raise Refused(f"the box sent {name[:80]!r} with {offset + count:,} bytes, {most:,} is the most")
        path = self._folder.path / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path, offset, count, at_once


def _list_of(found: Any) -> Sequence[Any]:
    return found if isinstance(found, list) else []
