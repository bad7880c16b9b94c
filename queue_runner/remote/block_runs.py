"""The runs of a block as they come back: they begin, grow and end here as they do on their node."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from queue_runner.bundles import reading, run_result
from queue_runner.bundles.reading import ReaderProcess
from queue_runner.bundles.rows import BadBundle
from queue_runner.bundles.run_result import RunResult
from queue_runner.config_file import Config
from queue_runner.host import failpoints
from queue_runner.host.run_dir import RunDir
from queue_runner.ingest.ingest import Ingest
from queue_runner.model import Ending, Outcome, RunId, State, Verb
from queue_runner.paths import Layout
from queue_runner.remote import block, block_store, mirror, outputs
from queue_runner.remote.block import Beginning, Folder
from queue_runner.remote.block_store import BlockRun
from queue_runner.store import jobs, results
from queue_runner.store.engine import Connection, Engine, looking, writing
from queue_runner.store.jobs import Claimed
from queue_runner.worker.finish import finish


class BlockRuns:
    """The runs of blocks, as they are stored here."""

    def __init__(self, layout: Layout, config: Config, engine: Engine, log: Callable[[str], None]) -> None:
        self._layout = layout
        self._config = config
        self._engine = engine
        self._log = log
        self._of_thread = threading.local()
        self._readers: dict[int, Ingest] = {}
        self._waiting: dict[int, tuple[tuple[int, ...], bool]] = {}
        """Results that cannot be stored yet, as they were when that was found out, by run."""

    @contextlib.contextmanager
    def one_reader(self) -> Iterator[None]:
        """Let this thread take in results while the block lasts: one process opens all of them."""
        with ReaderProcess() as self._of_thread.process:
            yield

    def take_in(self, folder: Folder, rows: Sequence[BlockRun]) -> bool:
        """Store the news of these runs; return whether one of them has begun or ended.

        A node runs jobs in order. A run that started after one whose result is missing waits until that result arrives;
        runs cancelled before they started do not. A shared folder may show a later run first: it is RUNNING here and
        ends here first. Raises: OSError, MpsqError.
        """
        changed = occupied = False
        by_name = {row.name: row for row in rows}
        come = folder.beginnings(by_name)
        for name in sorted(come, key=lambda name: by_name[name].state != State.RUNNING):
            row, beginning = by_name[name], come[name]
            if self.take(folder, row, occupied=occupied):
                changed = True
            elif not occupied and beginning.at is not None:
                local = RunDir(self._layout.run_dir(name))
                block.fetch(folder.run(name), local, whole=False)
                changed |= self._begin(row, beginning)
                self._reader(row.run_id, local).step()
                occupied = True
        return changed

    def take(self, folder: Folder, row: BlockRun, cause: Ending | None = None, *, occupied: bool = False) -> bool:
        """Store the result of a run; return whether there is one that can be stored now.

        A run that failed after the scheduler had asked its block to end waits for `cause`, which says how it ended.
        While the lane is `occupied` by another run, only one is stored that never began. An invalid result is waited
        for as if it were late. Raises: OSError, MpsqError.
        """
        source, local = folder.result(row.name), RunDir(self._layout.run_dir(row.name))
        version = None
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            status = source.stat()
            version = (status.st_ino, status.st_size, status.st_mtime_ns)
        if version is None or (cause is None and (version, occupied) == self._waiting.get(row.run_id)):
            return False
        result = self._read(source, local, row)
        is_taken = result is not None and result.has_note(block.TAKEN_NOTE)
        if result is None or (is_taken and cause is None) or (occupied and result.began_at is not None):
            self._waiting[row.run_id] = version, occupied
            return False
        self._waiting.pop(row.run_id, None)
        missed = block.fetch(folder.run(row.name), local, whole=True)
        notes = outputs.note({*missed, *mirror.left_out(folder, row.name)})
        self._end(row, cause if is_taken and cause else result.ending, result, notes)
        return True

    def _read(self, source: Path, local: RunDir, row: BlockRun) -> RunResult | None:
        """Return the result of a run, None for an invalid one. It is read from a copy: a shared folder may fail in the
        middle. Raises: OSError."""
        local.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        copy = local.path / block.RESULT
        try:
            if source.stat().st_size > reading.MOST_FILE_BYTES:
                return None
            shutil.copyfile(source, copy)
            return run_result.read(self._of_thread.process.frames(copy), RunId(row.job_id, row.number))
        except BadBundle as error:
            self._log(f"run {row.name}: its result is not valid: {error.message}")
            return None
        finally:
            copy.unlink(missing_ok=True)

    def lost(self, folder: Folder, row: BlockRun, ending: Ending) -> None:
        """Store that nothing more will come of a run that was started. Raises: MpsqError."""
        with contextlib.suppress(OSError):
            block.fetch(folder.run(row.name), RunDir(self._layout.run_dir(row.name)), whole=True)  # its checkpoint
        self._end(row, ending)

    def refuse(self, run: Claimed, ending: Ending) -> None:
        """Store that a waiting run could not be sent, and why. Raises: MpsqError."""
        row = BlockRun(run.run_id, run.id.job, run.id.number, State.QUEUED, None, None, secrets.token_hex(16), None)
        self._end(row, ending)

    def leave_undone(self, row: BlockRun, cause: Ending) -> None:
        """Store that a run will not be started: CANCELLED where that was asked for, also of the scheduler; else
        SKIPPED. Raises: MpsqError."""
        outcome = Outcome.CANCELLED if cause.outcome is Outcome.CANCELLED else Outcome.SKIPPED
        self._never_ran(row, Ending(outcome, reason=cause.reason), time.time())

    def _never_ran(self, row: BlockRun, ending: Ending, ended_at: float) -> None:
        with writing(self._engine) as connection:
            if jobs.cancel_requested(connection, row.run_id):  # maybe since its block was read
                ending = block_store.CANCELLED
            verb = Verb.CANCEL if ending.outcome is Outcome.CANCELLED else Verb.SKIP
            jobs.move(connection, row.run_id, verb, actor="worker", ending=ending, ended_at=ended_at)

    def _reader(self, run_id: int, local: RunDir) -> Ingest:
        if run_id not in self._readers:
            with looking(self._engine) as connection:
                run = block_store.claimed(connection, run_id)
            self._readers[run_id] = Ingest(self._engine, run, local)
        return self._readers[run_id]

    def _begin(self, row: BlockRun, beginning: Beginning) -> bool:
        """Store that a run has started on its node, and when; False, and nothing is written, where that is known."""
        if row.state == State.RUNNING and beginning.started in (None, row.started_at):
            return False
        with writing(self._engine) as connection:
            _mark_begun(connection, row, beginning)
        return True

    def _end(
        self,
        row: BlockRun,
        ending: Ending,
        result: RunResult | None = None,
        notes: Sequence[tuple[str, str]] = (),
    ) -> None:
        """Store the end of a run under the fingerprint of its node. Without a result, the mirrored events stay."""
        if result is not None and result.began_at is None:
            with looking(self._engine) as connection:
                state = block_store.state(connection, row.run_id)
            if state != State.RUNNING:  # else its node has taken its start back
                self._never_ran(row, ending, result.content.run.ended_at or time.time())
                return
        beginning = Beginning() if result is None else Beginning(result.began_at, result.content.run.started_at)
        local = RunDir(self._layout.run_dir(row.name))
        with writing(self._engine) as connection:
            is_mirrored = _mark_begun(connection, row, beginning)
            run = block_store.claimed(connection, row.run_id)
        if result is None:
            self._reader(row.run_id, local).finish()
        else:
            run_result.store(self._engine, row.run_id, result, is_mirrored=is_mirrored)
        self._readers.pop(row.run_id, None)
        if notes:
            with writing(self._engine) as connection:
                for kind, text in notes:
                    results.save_note(connection, row.run_id, kind, text)
        failpoints.reach("blocks.ingested")
        finish(
            self._engine,
            run,
            local,
            ending,
            None if result is None else result.exit,
            self._config.hold_after_failures,
            node=({}, {}) if result is None else (result.machine, result.system),
        )
        local.shorten_logs(self._config.keep_log_bytes)
        self._log(f"run {row.name}: {ending}" + (f": {ending.reason}" if ending.reason else ""))


def _mark_begun(connection: Connection, row: BlockRun, beginning: Beginning) -> bool:
    """Move a run to RUNNING, as of when its node claimed it and started it; return whether it was RUNNING before."""
    state = block_store.state(connection, row.run_id)
    if state == State.HELD:
        jobs.move(connection, row.run_id, Verb.RELEASE, actor="worker", reason="it has started on its node")
    if state != State.RUNNING:
        at = beginning.at or time.time()
        jobs.move(connection, row.run_id, Verb.CLAIM, actor="worker", claimed_at=at, token=row.token, boot_id=None)
    if beginning.started:
        results.mark_started(connection, row.run_id, beginning.started)
    return state == State.RUNNING
