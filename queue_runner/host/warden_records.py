"""The records that a warden writes into the folder of its run, checked as they are read.

A job can write there too, so a record with content that no warden writes counts as missing. docs/supervision.md says
what each record means.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from queue_runner.decoding import from_json, prepared

Number = Annotated[float, Meta(gt=-1e18, lt=1e18)]
Time = Annotated[float, Meta(ge=0, le=1e11)]
"""Unix seconds, until the year 5138, which every calendar of Python can show."""
Pid = Annotated[int, Meta(gt=0, lt=2**31)]


class Fence(Struct, frozen=True):
    """`started`: the trainer may have been started. All fields are None in a torn fence, which counts as one."""

    at: Number | None = None
    warden_pid: Pid | None = None
    warden_start: float | None = None


class Preparation(Struct, frozen=True):
    """`prepared`: the preparation has ended. `noted` processes had been seen by then; they are not the trainer's."""

    at: Number | None = None
    noted: Annotated[int, Meta(ge=0, lt=2**31)] = 0


class Suspension(Struct, frozen=True):
    """`suspended`: since when the tree is stopped, and how many processes."""

    at: Number
    processes: Pid


class SpawnError(Struct, frozen=True):
    """Why the trainer could not be started."""

    text: str = "it could not be started"
    errno: int | None = None


class Stop(Struct, frozen=True):
    """Why the warden ended the run."""

    cause: Literal["cancel", "timeout", "stall", "output", "disk"]
    detail: str = ""
    at: Number | None = None


class RunEnd(Struct, frozen=True):
    """`exit.json`: how the run ended. A time is None if it is not known, and all are if nothing ran."""

    run: str | None = None
    exit_code: Annotated[int, Meta(ge=0, lt=256)] | None = None
    signal: Annotated[int, Meta(gt=0, lt=128)] | None = None
    spawn_error: SpawnError | None = None
    stop: Stop | None = None
    stopped: bool = False
    oom_killed: bool = False
    real_s: Number | None = None
    start_s: Number | None = None
    slept_s: Number | None = None
    paused_s: Number | None = None
    user_s: Number | None = None
    sys_s: Number | None = None
    max_rss_bytes: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    started_at: Time | None = None
    ended_at: Time | None = None
    boot_id: str | None = None
    output_bytes: int | None = None
    prepared: dict[str, Any] | None = None

    @property
    def says_how(self) -> bool:
        """Whether it has the exit code, the signal, the stop or the error that every warden writes."""
        return any(field is not None for field in (self.exit_code, self.signal, self.stop, self.spawn_error))

    def to_json(self) -> str:
        """Return the record as JSON to store."""
        return msgspec.json.encode(self, order="sorted").decode()


class NotedProcess(Struct, frozen=True):
    """A line of `pids.jsonl`: a process that the warden has seen below the trainer, or below the preparation."""

    pid: Pid
    start: Number
    sid: int | None = None
    pgid: int | None = None


_KINDS: dict[str, type[Struct]] = {
    "started": Fence,
    "prepared": Preparation,
    "suspended": Suspension,
    "exit.json": RunEnd,
}


def decode(name: str, data: bytes) -> Any:
    """Return the record in a file of this name; None for content that no warden writes."""
    try:
        return from_json(data, _KINDS[name])
    except (ValueError, RecursionError):
        return None


def decode_noted(data: bytes) -> Iterator[NotedProcess]:
    """Yield the processes in pids.jsonl. The last line may be torn, where the warden was killed."""
    decoder = msgspec.json.Decoder(prepared(NotedProcess))
    for line in data.splitlines():
        try:
            yield decoder.decode(line)
        except (ValueError, RecursionError):
            continue
