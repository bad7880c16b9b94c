"""Ingest: each line that a job appends becomes rows exactly once, whatever the job does to its file.

The file is hostile input. Inode, offset and a hash of the 4 KiB before the offset are stored with the rows; when they
no longer match, the file was rewritten: reading stops permanently and the run is tainted.
"""

from __future__ import annotations

import gc
import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from queue_runner.errors import MpsqError
from queue_runner.events import Counts, Event, LogEvent, Note, Phase
from queue_runner.host.run_dir import RunDir
from queue_runner.ingest import event_lines, parsers
from queue_runner.ingest.clock import Clock
from queue_runner.store import results
from queue_runner.store.engine import Connection, Engine, looking, writing
from queue_runner.store.jobs import Claimed
from queue_runner.store.results import IngestState

CHUNK_BYTES = 8 << 20
TAIL_BYTES = 4096

_Found = tuple[Sequence[Event | LogEvent], int, Counts]


class Chunk(Struct, frozen=True):
    """Events of complete lines that were read, and the state of the file once they are stored."""

    events: Sequence[Event | LogEvent]
    state: IngestState

    @property
    def enters_phase(self) -> bool:
        """Whether a phase begins or ends in it."""
        return any(type(event) is Phase for event in self.events)


class Ingest:
    """A reader of one file of a run: its events, or its stdout if the job was submitted with a parser."""

    def __init__(self, engine: Engine, run: Claimed, folder: RunDir) -> None:
        self._engine = engine
        self._run_id = run.run_id
        known = ("compile", run.spec.compile), ("device", run.spec.device)
        self._known = {name: value for name, value in known if value is not None}
        self._parser = run.spec.parser
        self._source = "stdout" if self._parser else "events"
        self._path: Path = folder.stdout if self._parser else folder.events
        self._seen_bytes = 0
        with looking(engine) as connection:
            self._state = results.ingest_state(connection, self._run_id, self._source)

    def has_grown(self) -> bool:
        """Return whether the file has another size than when it was last read; any thread may ask."""
        try:
            return not self._state.rewritten and self._path.lstat().st_size != self._seen_bytes
        except OSError:
            return self._state.offset > 0

    def step(self) -> bool:
        """Store the next chunk of complete lines and return whether there was one."""
        return (chunk := self.read()) is not None and self.store(chunk)

    def finish(self, also: Callable[[Connection], None] | None = None) -> None:
        """Store the rest once all writers have ended, and determine whether the last line is torn; with the first
        chunk `also` writes."""
        while (chunk := self.read()) is not None:
            self.store(chunk, also)
            also = None
        if (chunk := self.read(final=True)) is not None:
            self.store(chunk, also)
        elif also is not None:
            with writing(self._engine) as connection:
                also(connection)

    def read(self, *, final: bool = False) -> Chunk | None:
        """Return the next chunk of complete lines, with `final` the torn last line too; None if there is none."""
        if self._state.rewritten:
            return None
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return self._give_up("the file is gone") if self._state.offset else None
        except OSError as error:
            return self._give_up(f"it cannot be read: {error.strerror}")
        try:
            with _without_collector():
                return self._read(descriptor, final=final)
        finally:
            os.close(descriptor)

    def _read(self, descriptor: int, *, final: bool) -> Chunk | None:
        status = os.fstat(descriptor)
        before, self._seen_bytes = self._state, status.st_size
        if not stat.S_ISREG(status.st_mode):
            return self._give_up("it is not a regular file")
        if before.inode not in (None, status.st_ino):  # the number of its device changes at a reboot
            return self._give_up("it was replaced by another file")
        if status.st_size < before.offset or (before.offset and _tail(descriptor, before.offset) != before.tail_hash):
            return self._give_up("lines that had been read were changed")
        data = os.pread(descriptor, CHUNK_BYTES, before.offset)
        if not data:
            return None
        try:
            (events, consumed, counts), parser_state = self._understand(data, before, final=final)
        except event_lines.ProtocolVersionError as error:
            return self._give_up(error.with_remedy)
        except Exception as error:  # a parser that is gone, or its bug, stops the reading of this log, not the queue
            return self._give_up(f"it cannot be parsed: {error!r}")
        torn = int(final and consumed < len(data))
        if not consumed and not torn:
            return None
        offset = before.offset + consumed
        state = replace(
            before,
            device=status.st_dev,
            inode=status.st_ino,
            offset=offset,
            tail_hash=_tail(descriptor, offset),
            parser_state=parser_state,
            unknown=before.unknown + counts.unknown,
            bad=before.bad + counts.bad,
            forged=before.forged + counts.forged,
            torn=before.torn or torn,  # a worker that dies before the run is DONE looks at its last line again
        )
        return Chunk(events, state)

    def store(self, chunk: Chunk, also: Callable[[Connection], None] | None = None) -> bool:
        """Store a chunk, and in the same transaction what `also` writes. Return whether reading goes on."""
        try:
            self._write(chunk, also)
        except MpsqError:
            raise
        except Exception as error:  # data that no table accepts: a retry would not help
            self._write(self._give_up(f"it cannot be stored: {error!r}"[:500]), also)
        return not self._state.rewritten

    def _write(self, chunk: Chunk, also: Callable[[Connection], None] | None) -> None:
        with writing(self._engine) as connection:
            results.save_events(connection, self._run_id, chunk.events)
            results.save_ingest_state(connection, self._run_id, self._source, chunk.state)
            if also is not None:
                also(connection)
        self._state = chunk.state

    def _understand(self, data: bytes, before: IngestState, *, final: bool) -> tuple[_Found, str]:
        """Return the events after the stored ones, with their counts, and the state after them. It begins with the
        stored state each time: a chunk that the store refused is read again."""
        if not self._parser:
            chunk, clock = event_lines.read_chunk(data, before.offset), Clock.from_state(before.parser_state)
            clock.see(chunk[0])
            return chunk, clock.state()
        parser = parsers.load(self._parser, self._known)
        if before.parser_state:
            parser.restore(before.parser_state)
        return parser.read_chunk(data, before.offset, final=final), parser.state()

    def _give_up(self, why: str) -> Chunk:
        note = Note(
            self._state.offset,
            None,
            "log_rewritten",
            f"{self._path.name}: {why}; reading stopped at byte {self._state.offset}",
        )
        return Chunk([note], replace(self._state, rewritten=1))


@contextmanager
def _without_collector() -> Iterator[None]:
    """Disable the garbage collector: a chunk makes 100,000 objects and no cycle, yet scanning them repeatedly would
    take a tenth of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _tail(descriptor: int, offset: int) -> str:
    start = max(0, offset - TAIL_BYTES)
    return hashlib.sha256(os.pread(descriptor, offset - start, start)).hexdigest()
