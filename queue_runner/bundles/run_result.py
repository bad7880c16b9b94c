"""The result of one run as a bundle: from the machine that ran it to the queue that sent it there.

The node writes it once the run has ended. The queue knows the job: of the bundle it takes how the run ended, what it
measured and where. Summary and marks are computed here.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from queue_runner.bundles import collect, reading
from queue_runner.bundles.batches import Batches
from queue_runner.bundles.reading import Content, Frames, RunContent
from queue_runner.bundles.rows import BadBundle
from queue_runner.decoding import from_json
from queue_runner.host.warden_records import RunEnd
from queue_runner.model import Ending, Outcome, RunId
from queue_runner.paths import Layout
from queue_runner.store import merges, results
from queue_runner.store.engine import Engine
from queue_runner.store.read import reading as reading_store
from queue_runner.text import one_line

REFUSED = "results_refused"
"""Kind of the note of a run whose measurements no bundle can hold."""
_MOST_REASON = 2000


class RunResult(Struct, frozen=True):
    """A checked result. `machine` and `system`, the versions of its system, are empty where they are not known."""

    content: RunContent
    exit: RunEnd | None
    machine: dict[str, Any]
    system: dict[str, Any]

    @property
    def began_at(self) -> float | None:
        """When its machine claimed the run; None for one that was never started there."""
        return self.content.run.claimed_at

    @property
    def ending(self) -> Ending:
        run = self.content.run
        return Ending(Outcome(run.outcome), run.exit_code, run.signal, one_line(run.reason or "")[:_MOST_REASON])

    def has_note(self, kind: str) -> bool:
        """Return whether its queue, not its job, has left a note of this kind."""
        place = results.note_place(kind)
        return any((note.offset, note.kind) == (place, kind) for note in self.content.rows["notes"])


def publish(layout: Layout, run_id: int, notes: Iterable[tuple[str, str]], path: Path) -> None:
    """Write the result of an ended run of this queue, with further `notes` of (kind, text), into a new file. Where no
    bundle can hold what it measured, its end alone is written.

    Raises: MpsqError, also for a full disk.
    """
    with reading_store(layout.db) as connection:
        path.unlink(missing_ok=True)
        try:
            collect.export_run(connection, run_id, notes, path)
        except BadBundle as error:
            path.unlink(missing_ok=True)
            collect.export_run(connection, run_id, [*notes, (REFUSED, error.reason)], path, measured=False)


def read(frames: Frames, id: RunId) -> RunResult:
    """Return the result of a run. Raises: BadBundle for anything else."""
    contents: list[RunContent] = []

    def take(_: Content, content: RunContent) -> None:
        if contents or (content.run.job_id, content.run.number) != (id.job, id.number):
            raise BadBundle(f"it is not the result of run {id}")
        contents.append(content)

    bundle = reading.checked(frames, take)
    if not contents:
        raise BadBundle(f"it is not the result of run {id}")
    run = contents[0].run
    facts = [bundle.fingerprints.get(digest or "", ("", {}))[1] for digest in (run.machine_hash, run.software_hash)]
    return RunResult(contents[0], _end(contents[0]), facts[0], facts[1].get("system") or {})


def _end(content: RunContent) -> RunEnd | None:
    if not content.rows["exits"]:
        return None
    try:
        end = from_json(content.rows["exits"][0].exit_json, RunEnd)
    except msgspec.DecodeError as error:
        raise BadBundle("the record of an exit is invalid") from error
    if not end.says_how:
        raise BadBundle("the record of an exit does not say how the run ended")
    return end


def store(engine: Engine, run_id: int, result: RunResult, *, is_mirrored: bool) -> None:
    """Store what a run measured, in place of the rows mirrored while it ran, in small transactions. After a crash
    it is stored again. The caller stores its end."""
    if is_mirrored:
        merges.remove(engine, run_id, run_id)
    measured = Batches(engine)
    measured.add(run_id, {table: rows for table, rows in result.content.rows.items() if table != "exits"})
    measured.write()
