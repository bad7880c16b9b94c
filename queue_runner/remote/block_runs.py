"""The runs of a block as they come back: they begin, grow and end here as they do on their node."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from queue_runner.config_file import Config
from queue_runner.host import failpoints
from queue_runner.host.run_dir import RunDir
from queue_runner.ingest.ingest import Ingest
from queue_runner.model import Ending, Outcome, State, Verb
from queue_runner.paths import Layout
from queue_runner.remote import block, block_store, mirror, outputs, records
from queue_runner.remote.block import Folder
from queue_runner.remote.block_store import BlockRun
from queue_runner.remote.records import Beginning, NodeRecord
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
        self._readers: dict[int, Ingest] = {}

    def take_in(self, folder: Folder, rows: Sequence[BlockRun], cause: Ending | None = None) -> bool:
        """Store the news of these runs; return whether one of them has begun or ended. A run whose block the scheduler
        has ended waits for `cause`, which says how.

        A node runs jobs in order. A run that started after one whose record is missing waits until that record arrives;
        runs cancelled before they started do not. A shared folder may show a later run first: it is RUNNING here and
        ends here first. Raises: OSError, MpsqError.
        """
        changed = occupied = False
        by_name = {row.name: row for row in rows}
        for name in sorted(records.began(folder, by_name), key=lambda name: by_name[name].state != State.RUNNING):
            row, ended = by_name[name], records.ended(folder, name)
            waits = ended is not None and ended.taken and cause is None
            if waits:
                ended = None
            if occupied and (ended is None or ended.claimed_at):
                continue
            local = RunDir(self._layout.run_dir(name))
            missed = block.fetch(folder.run(name), local, whole=ended is not None)
            if ended is not None:
                notes = [*ended.notes, *outputs.note({*missed, *mirror.left_out(folder, name)})]
                self._end(row, cause if ended.taken and cause else ended.ending, replace(ended, notes=notes))
                changed = True
            else:
                changed |= self._begin(row, records.beginning(folder, name) or Beginning())
                self._reader(row.run_id, local).step()
                occupied = True
        return changed

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
        ending = Ending(outcome, reason=cause.reason)
        if row.cancel_requested_at is not None:
            ending = Ending(Outcome.CANCELLED, reason="cancelled before it started")
        self._never_ran(row, ending, time.time())

    def _never_ran(self, row: BlockRun, ending: Ending, ended_at: float) -> None:
        verb = Verb.CANCEL if ending.outcome is Outcome.CANCELLED else Verb.SKIP
        with writing(self._engine) as connection:
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

    def _end(self, row: BlockRun, ending: Ending, record: NodeRecord | None = None) -> None:
        """Store the end of a run under the fingerprint of its node."""
        if record is not None and not record.claimed_at:  # the node never started it
            self._never_ran(row, ending, record.ended_at or time.time())
            return
        beginning = Beginning() if record is None else Beginning(record.claimed_at, record.started_at, record.boot_id)
        local = RunDir(self._layout.run_dir(row.name))
        with writing(self._engine) as connection:
            _mark_begun(connection, row, beginning)
            for at, data in record.conditions if record is not None else ():
                results.save_condition(connection, row.run_id, at, data)
            for kind, text in record.notes if record is not None else ():
                results.save_note(connection, row.run_id, kind, text)
            run = block_store.claimed(connection, row.run_id)
        self._reader(row.run_id, local).finish()
        del self._readers[row.run_id]
        failpoints.reach("blocks.ingested")
        finish(
            self._engine,
            run,
            local,
            ending,
            None if record is None else record.exit,
            self._config.hold_after_failures,
            node=({}, {}) if record is None else (record.machine, record.system),
        )
        local.shorten_logs(self._config.keep_log_bytes)
        self._log(f"run {row.name}: {ending}" + (f": {ending.reason}" if ending.reason else ""))


def _mark_begun(connection: Connection, row: BlockRun, beginning: Beginning) -> None:
    """Move a run to RUNNING, where it is not, as of when its node claimed it and started it."""
    state = block_store.state(connection, row.run_id)
    if state == State.HELD:
        jobs.move(connection, row.run_id, Verb.RELEASE, actor="worker", reason="it has started on its node")
    if state != State.RUNNING:
        at = beginning.at or time.time()
        boot = beginning.boot_id
        jobs.move(connection, row.run_id, Verb.CLAIM, actor="worker", claimed_at=at, token=row.token, boot_id=boot)
    if beginning.started:
        results.mark_started(connection, row.run_id, beginning.started)
