"""Results of runs: events, endings, summaries, conditions. Nothing in here changes a state."""

from __future__ import annotations

import hashlib
import json
import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from msgspec import Struct, structs

from queue_runner.analysis.summary import Summary
from queue_runner.events import FIELD_DROPPED, Eval, Event, Hello, Iter, LogEvent, Metric, Note, Phase, Unknown
from queue_runner.host.warden_records import RunEnd
from queue_runner.model import IN_COPY, OWN_NOTE, PHASES, SYNC_UNKNOWN, Taint
from queue_runner.store import hot_sql
from queue_runner.store.engine import Connection

_PHASE_NUMBER = {name: number for number, name in enumerate(PHASES)}


class IngestState(Struct, frozen=True):
    """How far a file of a run has been read. `tail_hash` covers the last 4 KiB before `offset`."""

    device: int | None = None
    inode: int | None = None
    offset: int = 0
    tail_hash: str = ""
    parser_state: str | None = None
    unknown: int = 0
    bad: int = 0
    forged: int = 0
    torn: int = 0
    rewritten: int = 0


CPU_AT_BORDER = "cpu_s"
"""The metric beside a border of a phase, at the same offset: CPU seconds of the job until then."""


def ingest_state(connection: Connection, run_id: int, source: str) -> IngestState:
    """Return how far `source` (events or stdout) of this run has been read; the beginning if it never was."""
    columns = ", ".join(IngestState.__struct_fields__)
    row = connection.row(f"SELECT {columns} FROM ingests WHERE run_id = ? AND source = ?", [run_id, source])
    return IngestState(*row) if row else IngestState()


def save_ingest_state(connection: Connection, run_id: int, source: str, state: IngestState) -> None:
    connection.change(hot_sql.PUT_INGEST_STATE, {**structs.asdict(state), "run_id": run_id, "source": source})


def save_events(connection: Connection, run_id: int, events: Sequence[Event | LogEvent]) -> None:
    """Store events under (run, byte offset). NaN is stored as NULL, with a note of the first one."""
    iterations = [
        structs.asdict(e)
        | {
            "run_id": run_id,
            "phase": _PHASE_NUMBER[e.phase],
            "synced": SYNC_UNKNOWN if e.synced is None else int(e.synced),
        }
        for e in events
        if type(e) is Iter
    ]
    if iterations:
        connection.change_all(hot_sql.ADD_ITERATION, iterations)
        _note_first_nan(connection, run_id, events)
    if len(iterations) == len(events):
        return
    for event in events:
        if type(event) is Hello:
            _save_hello(connection, run_id, event)
    phases = [e for e in events if type(e) is Phase]
    evals = ((e, name, value) for e in events if type(e) is Eval for name, value in e.metrics.items())
    metrics = [e for e in events if type(e) is Metric]
    metrics += [Metric(e.offset, e.t, CPU_AT_BORDER, e.cpu_s, "s") for e in phases if e.cpu_s is not None]
    run = {"run_id": run_id}
    connection.change_all(hot_sql.ADD_PHASE, (structs.asdict(e) | run | {"t_s": e.t} for e in phases))
    connection.change_all(
        hot_sql.ADD_EVAL, (structs.asdict(e) | run | {"metric": name, "value": value} for e, name, value in evals)
    )
    connection.change_all(hot_sql.ADD_METRIC, (structs.asdict(e) | run for e in metrics))
    connection.change_all(hot_sql.ADD_NOTE, [_note(run_id, e) for e in _new_notes(connection, run_id, events)])


def _new_notes(connection: Connection, run_id: int, events: Sequence[Event | LogEvent]) -> Iterable[Note | Unknown]:
    """Return the notes among the events, but that of a dropped field only if the run has none with its text."""
    notes = [e for e in events if isinstance(e, Note | Unknown)]
    if not any(isinstance(e, Note) and e.kind == FIELD_DROPPED for e in notes):
        return notes
    known = {(FIELD_DROPPED, text) for text in notes_of(connection, run_id, FIELD_DROPPED)}
    return [e for e in notes if not (isinstance(e, Note) and (e.kind, e.text) in known)]


def _note_first_nan(connection: Connection, run_id: int, events: Sequence[Event | LogEvent]) -> None:
    first = next((e for e in events if type(e) is Iter and e.loss is not None and math.isnan(e.loss)), None)
    if first is None or "nan_loss" in note_texts(connection, run_id):
        return
    text = f"the loss is not a number from iteration {first.i} on"
    values = {"run_id": run_id, "offset": first.offset, "kind": "nan_loss", "text": text}
    connection.change(hot_sql.ADD_NOTE_ONCE, values)


def _note(run_id: int, e: Note | Unknown) -> dict[str, Any]:
    kind, text = (e.kind, e.text) if isinstance(e, Note) else ("unknown_event", e.raw)
    return {"run_id": run_id, "offset": e.offset, "kind": kind, "text": text}


def _save_hello(connection: Connection, run_id: int, hello: Hello) -> None:
    """Merge a hello over the previous ones: a log's header comes in several lines."""
    before = connection.value("SELECT hello_json FROM hellos WHERE run_id = ?", [run_id])
    fields = {**(json.loads(before) if before else {}), **hello.to_json()}
    data, framework = fields.get("data") or {}, fields.get("framework")
    values = {name: fields.get(name) for name in _HELLO} | {
        "run_id": run_id,
        "framework_version": (fields.get("versions") or {}).get(framework) if framework else None,
        "data_name": _text_or_none(data.get("name")),
        "data_sha256": _text_or_none(data.get("sha256")),
        "hello_json": json.dumps(fields, sort_keys=True),
    }
    connection.change(hot_sql.PUT_HELLO, values)


_HELLO = (
    *("workload", "framework", "device", "device_name", "dtype", "compile", "config", "params", "flops_per_iter"),
    *("tokens_per_iter", "samples_per_iter", "optimizer", "seed", "planned_iters", "compile_cache"),
)
"""Fields of a hello with a column of their own."""


def _text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) else None


def save_note(connection: Connection, run_id: int, kind: str, text: str) -> None:
    """Store a note of the queue's own beside those of the trainer; of each kind, the trainer's comes first."""
    values = {"run_id": run_id, "offset": note_place(kind), "kind": kind, "text": text}
    connection.change(hot_sql.ADD_NOTE_ONCE, values)


def note_place(kind: str) -> int:
    """Return the place of a note of the queue's own: a run may have one of each kind."""
    return OWN_NOTE + zlib.crc32(kind.encode())


def save_metric(connection: Connection, run_id: int, name: str, value: float, unit: str) -> None:
    """Store a metric of the queue's own, of the whole run, beside those of the trainer."""
    values = {"run_id": run_id, "offset": OWN_NOTE, "name": name, "i": None, "value": value, "unit": unit}
    connection.change(hot_sql.ADD_METRIC_ONCE, values)


def note_texts(connection: Connection, run_id: int) -> dict[str, str]:
    """Return the first text of each kind of note that the run has."""
    return dict(connection.rows("SELECT kind, text FROM notes WHERE run_id = ? ORDER BY offset DESC", [run_id]))


def notes_of(connection: Connection, run_id: int, kind: str) -> list[str]:
    """Return the texts of all notes of this kind that the run has."""
    return connection.column("SELECT text FROM notes WHERE run_id = ? AND kind = ? ORDER BY offset", [run_id, kind])


def was_copied(connection: Connection, run_id: int) -> bool:
    """Return whether another run of this submission with the same code has a note that it was copied."""
    return bool(connection.value(_WAS_COPIED, {"run_id": run_id, "kind": IN_COPY, "offset": OWN_NOTE}))


_WAS_COPIED = """
SELECT EXISTS (
    SELECT 1 FROM runs AS r JOIN jobs AS j ON j.id = r.job_id
    JOIN jobs AS other ON other.group_id = j.group_id AND other.snapshot_hash IS j.snapshot_hash
    JOIN runs AS s ON s.job_id = other.id AND s.id <> r.id
    JOIN notes AS n ON n.run_id = s.id AND n.kind = :kind AND n.offset >= :offset
    WHERE r.id = :run_id AND j.kind = 'command'
)
"""


def forget_start(connection: Connection, run_id: int) -> None:
    """Remove the notes of a start that did not happen: the next one has its own conditions."""
    for table in ("conditions", "notes"):
        connection.change(f"DELETE FROM {table} WHERE run_id = ?", [run_id])


def mark_started(connection: Connection, run_id: int, at: float) -> None:
    """Record when the warden wrote the fence, or later when the run was prepared; the state is RUNNING since the
    claim."""
    sql = "UPDATE runs SET started_at = :at WHERE id = :run_id AND (started_at IS NULL OR started_at < :at)"
    connection.change(sql, {"at": at, "run_id": run_id})


def save_exit(connection: Connection, run_id: int, exit_: RunEnd) -> None:
    """Store the warden's report (or the times of an imported log) of how the run ended."""
    names = ("real_s", "slept_s", "paused_s", "user_s", "sys_s", "max_rss_bytes")
    values = {name: getattr(exit_, name) for name in names} | {"exit_json": exit_.to_json()}
    connection.change(hot_sql.ADD_EXIT, {**values, "run_id": run_id})


def save_summary(connection: Connection, run_id: int, summary: Mapping[str, Any]) -> None:
    """Store the summary that reports read; written once, at the run's end."""
    connection.change(hot_sql.PUT_SUMMARY, {**asdict(Summary()), **summary, "run_id": run_id})


def save_taints(connection: Connection, run_id: int, taints: Iterable[Taint]) -> None:
    """Store the marks of a run."""
    connection.change_all(hot_sql.ADD_TAINT, (structs.asdict(taint) | {"run_id": run_id} for taint in taints))


def save_condition(connection: Connection, run_id: int, at: float, data: Mapping[str, Any]) -> None:
    """Store one sample of the conditions under which the run was measured."""
    values = {"run_id": run_id, "at": at, "data_json": json.dumps(data, sort_keys=True)}
    connection.change(hot_sql.ADD_CONDITION, values)


def save_fingerprint(connection: Connection, kind: str, data: Mapping[str, Any]) -> str:
    """Store a part of a run's fingerprint once; return its hash."""
    text, digest = json.dumps(data, sort_keys=True), fingerprint_hash(kind, data)
    connection.change(hot_sql.ADD_FINGERPRINT, {"hash": digest, "kind": kind, "data_json": text})
    return digest


def fingerprint_hash(kind: str, data: Mapping[str, Any]) -> str:
    """Return the sha256 (hex) of a part of a run's fingerprint."""
    return hashlib.sha256(f"{kind}\0{json.dumps(data, sort_keys=True)}".encode()).hexdigest()


def mark_fingerprint(connection: Connection, run_id: int, machine_hash: str, software_hash: str) -> None:
    sql = "UPDATE runs SET machine_hash = ?, software_hash = ? WHERE id = ?"
    connection.change(sql, [machine_hash, software_hash, run_id])


def rows_of(connection: Connection, table: str, columns: Sequence[str], run_id: int) -> list[tuple[Any, ...]]:
    """Return these columns of all rows of one run in one table, in the order of its file."""
    order = {"conditions": "at", "ingests": "source", "hellos": "run_id"}.get(table, "offset")
    return connection.rows(f"SELECT {', '.join(columns)} FROM {table} WHERE run_id = ? ORDER BY {order}", [run_id])
