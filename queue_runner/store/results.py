"""Results of runs: events, endings, summaries, conditions. Nothing in here changes a state."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update
from sqlalchemy.dialects.sqlite import insert as upsert

from queue_runner.events import FIELD_DROPPED, Eval, Event, Hello, Iter, LogEvent, Metric, Note, Phase, Unknown
from queue_runner.model import PHASES, SYNC_UNKNOWN
from queue_runner.store import schema

_PHASE_NUMBER = {name: number for number, name in enumerate(PHASES)}

_INSERT_ITERATION = (
    "INSERT INTO iterations (run_id, offset, i, dur_s, loss, phase, synced, allocated_bytes, reserved_bytes)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


@dataclass(frozen=True)
class IngestState:
    """How far a file of a run has been read. `tail_hash` is of the last 4 KiB before `offset`."""

    offset: int = 0
    device: int | None = None
    inode: int | None = None
    tail_hash: str = ""
    parser_state: str | None = None
    unknown: int = 0
    bad: int = 0
    forged: int = 0
    torn: int = 0
    rewritten: int = 0


CPU_AT_BORDER = "cpu_s"
"""The metric beside a border of a phase, at the same offset: CPU seconds of the job until then."""
OWN_NOTE = (1 << 62) - 1
"""The place of the queue's own notes: after all those of a trainer."""


def ingest_state(connection: Connection, run_id: int, source: str) -> IngestState:
    """Return how far `source` (events or stdout) of this run has been read; the beginning if it never was."""
    table = schema.ingests
    row = connection.execute(select(table).where(table.c.run_id == run_id, table.c.source == source)).mappings().first()
    return IngestState(**{k: v for k, v in row.items() if k not in ("run_id", "source")}) if row else IngestState()


def save_ingest_state(connection: Connection, run_id: int, source: str, state: IngestState) -> None:
    values = asdict(state)
    connection.execute(
        upsert(schema.ingests)
        .values(run_id=run_id, source=source, **values)
        .on_conflict_do_update(index_elements=["run_id", "source"], set_=values)
    )


def save_events(connection: Connection, run_id: int, events: Sequence[Event | LogEvent]) -> None:
    """Store events under (run, byte offset). NaN is stored as NULL, with a note of the first one."""
    iterations = [
        (
            run_id,
            e.offset,
            e.i,
            e.dur_s,
            e.loss,
            _PHASE_NUMBER[e.phase],
            SYNC_UNKNOWN if e.synced is None else int(e.synced),
            e.allocated_bytes,
            e.reserved_bytes,
        )
        for e in events
        if type(e) is Iter
    ]
    if iterations:
        connection.exec_driver_sql(_INSERT_ITERATION, iterations)
        _note_first_nan(connection, run_id, events)
    if len(iterations) == len(events):
        return
    for event in events:
        if type(event) is Hello:
            _save_hello(connection, run_id, event)
    _many(connection, schema.phases, [_phase(run_id, e) for e in events if type(e) is Phase])
    _many(connection, schema.evals, [row for e in events if type(e) is Eval for row in _evals(run_id, e)])
    metrics = [e for e in events if type(e) is Metric]
    metrics += [
        Metric(e.offset, e.t, CPU_AT_BORDER, e.cpu_s, "s") for e in events if type(e) is Phase and e.cpu_s is not None
    ]
    _many(connection, schema.metrics, [_metric(run_id, e) for e in metrics])
    _many(connection, schema.notes, [_note(run_id, e) for e in _new_notes(connection, run_id, events)])


def _new_notes(connection: Connection, run_id: int, events: Sequence[Event | LogEvent]) -> Iterable[Note | Unknown]:
    """Return the notes among the events, but that of a dropped field only if the run has none with its text."""
    notes = [e for e in events if isinstance(e, Note | Unknown)]
    known = set(notes_of(connection, run_id, FIELD_DROPPED)) if any(_is_dropped(e) for e in notes) else set()
    return [e for e in notes if not (_is_dropped(e) and isinstance(e, Note) and e.text in known)]


def _is_dropped(event: Note | Unknown) -> bool:
    return isinstance(event, Note) and event.kind == FIELD_DROPPED


def _many(connection: Connection, table: Any, rows: list[dict[str, Any]]) -> None:
    if rows:
        connection.execute(insert(table), rows)


def _note_first_nan(connection: Connection, run_id: int, events: Sequence[Event | LogEvent]) -> None:
    first = next((e for e in events if type(e) is Iter and e.loss is not None and math.isnan(e.loss)), None)
    if first is None or "nan_loss" in note_texts(connection, run_id):
        return
    text = f"the loss is not a number from iteration {first.i} on"
    values = {"run_id": run_id, "offset": first.offset, "kind": "nan_loss", "text": text}
    connection.execute(upsert(schema.notes).values(values).on_conflict_do_nothing())


def _phase(run_id: int, e: Phase) -> dict[str, Any]:
    return {"run_id": run_id, "offset": e.offset, "t_s": e.t, "name": e.name, "edge": e.edge}


def _evals(run_id: int, e: Eval) -> Iterable[dict[str, Any]]:
    for name, value in e.metrics.items():
        yield {
            "run_id": run_id,
            "offset": e.offset,
            "metric": name,
            "i": e.i,
            "split": e.split,
            "value": value,
            "dur_s": e.dur_s,
        }


def _metric(run_id: int, e: Metric) -> dict[str, Any]:
    return {"run_id": run_id, "offset": e.offset, "name": e.name, "i": e.i, "value": e.value, "unit": e.unit}


def _note(run_id: int, e: Note | Unknown) -> dict[str, Any]:
    kind, text = (e.kind, e.text) if isinstance(e, Note) else ("unknown_event", e.raw)
    return {"run_id": run_id, "offset": e.offset, "kind": kind, "text": text}


def _save_hello(connection: Connection, run_id: int, hello: Hello) -> None:
    """Merge a hello over the previous ones: a log's header comes in several lines."""
    table = schema.hellos
    before = connection.execute(select(table.c.hello_json).where(table.c.run_id == run_id)).scalar_one_or_none()
    said = {**(json.loads(before) if before else {}), **hello.said()}
    values = {
        column.name: said.get(column.name) for column in table.c if column.name in said and column.name != "run_id"
    }
    data, framework = said.get("data") or {}, said.get("framework")
    values |= {
        "framework_version": (said.get("versions") or {}).get(framework) if framework else None,
        "data_name": _text_or_none(data.get("name")),
        "data_sha256": _text_or_none(data.get("sha256")),
        "hello_json": json.dumps(said, sort_keys=True),
    }
    connection.execute(
        upsert(table).values(run_id=run_id, **values).on_conflict_do_update(index_elements=["run_id"], set_=values)
    )


def _text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) else None


def save_note(connection: Connection, run_id: int, kind: str, text: str) -> None:
    """Store a note of the queue's own beside those of the trainer; of each kind, the trainer's comes first."""
    values = {"run_id": run_id, "offset": OWN_NOTE, "kind": kind, "text": text}
    connection.execute(upsert(schema.notes).values(values).on_conflict_do_nothing())


def save_metric(connection: Connection, run_id: int, name: str, value: float, unit: str) -> None:
    """Store a metric of the queue's own, of the whole run, beside those of the trainer."""
    values = {"run_id": run_id, "offset": OWN_NOTE, "name": name, "i": None, "value": value, "unit": unit}
    connection.execute(upsert(schema.metrics).values(values).on_conflict_do_nothing())


def note_texts(connection: Connection, run_id: int) -> dict[str, str]:
    """Return the first text of each kind of note that the run has."""
    table = schema.notes
    rows = connection.execute(
        select(table.c.kind, table.c.text).where(table.c.run_id == run_id).order_by(table.c.offset.desc())
    )
    return {row.kind: row.text for row in rows}


def notes_of(connection: Connection, run_id: int, kind: str) -> list[str]:
    """Return the texts of all notes of this kind that the run has."""
    table = schema.notes
    rows = connection.execute(
        select(table.c.text).where(table.c.run_id == run_id, table.c.kind == kind).order_by(table.c.offset)
    )
    return list(rows.scalars())


def metric_values(connection: Connection, run_id: int, name: str) -> list[tuple[int, float]]:
    """Return (iteration, value) of a metric, where it has both and the value is finite."""
    table = schema.metrics
    rows = connection.execute(select(table.c.i, table.c.value).where(table.c.run_id == run_id, table.c.name == name))
    return [(i, value) for i, value in rows if i is not None and value is not None and math.isfinite(value)]


def forget_start(connection: Connection, run_id: int) -> None:
    """Remove what was noted for a start that did not come about: the next one has conditions of its own."""
    for table in (schema.conditions, schema.notes):
        connection.execute(delete(table).where(table.c.run_id == run_id))


def mark_started(connection: Connection, run_id: int, at: float) -> None:
    """Record when the warden wrote the fence, or later when the run was prepared; the state is RUNNING since the
    claim."""
    earlier = schema.runs.c.started_at.is_(None) | (schema.runs.c.started_at < at)
    connection.execute(update(schema.runs).where(schema.runs.c.id == run_id, earlier).values(started_at=at))


def save_exit(connection: Connection, run_id: int, exit_: Mapping[str, Any]) -> None:
    """Store the warden's report (or the times of an imported log) of how the run ended."""
    names = ("real_s", "slept_s", "paused_s", "user_s", "sys_s", "max_rss_bytes")
    values = {name: exit_.get(name) for name in names} | {"exit_json": json.dumps(exit_, sort_keys=True)}
    connection.execute(upsert(schema.exits).values(run_id=run_id, **values).on_conflict_do_nothing())


def save_summary(connection: Connection, run_id: int, summary: Mapping[str, Any]) -> None:
    """Store the summary that reports read; written once, at the run's end."""
    known = {column.name for column in schema.summaries.c}
    values = {key: value for key, value in summary.items() if key in known}
    connection.execute(
        upsert(schema.summaries)
        .values(run_id=run_id, **values)
        .on_conflict_do_update(index_elements=["run_id"], set_=values)
    )


def save_taints(connection: Connection, run_id: int, found: Iterable[tuple[str, str, str]]) -> None:
    """Store (kind, severity, detail) triples."""
    rows = [{"run_id": run_id, "kind": k, "severity": s, "detail": d} for k, s, d in found]
    if rows:
        connection.execute(upsert(schema.taints).on_conflict_do_nothing(), rows)


def save_condition(connection: Connection, run_id: int, at: float, data: Mapping[str, Any]) -> None:
    """Store one sample of the conditions under which the run was measured."""
    text = json.dumps(data, sort_keys=True)
    connection.execute(upsert(schema.conditions).values(run_id=run_id, at=at, data_json=text).on_conflict_do_nothing())


def save_fingerprint(connection: Connection, kind: str, data: Mapping[str, Any]) -> str:
    """Store a part of a run's fingerprint once; return its hash."""
    text, digest = json.dumps(data, sort_keys=True), fingerprint_hash(kind, data)
    connection.execute(
        upsert(schema.fingerprints).values(hash=digest, kind=kind, data_json=text).on_conflict_do_nothing()
    )
    return digest


def fingerprint_hash(kind: str, data: Mapping[str, Any]) -> str:
    """Return the sha256 (hex) of a part of a run's fingerprint."""
    return hashlib.sha256(f"{kind}\0{json.dumps(data, sort_keys=True)}".encode()).hexdigest()


def mark_fingerprint(connection: Connection, run_id: int, machine_hash: str, software_hash: str) -> None:
    connection.execute(
        update(schema.runs)
        .where(schema.runs.c.id == run_id)
        .values(machine_hash=machine_hash, software_hash=software_hash)
    )


def rows_of(connection: Connection, table: str, run_id: int) -> list[dict[str, Any]]:
    """Return all rows of one run in one table, in the order of its file."""
    source = schema.metadata.tables[table]
    order = source.c.offset if "offset" in source.c else source.c.run_id
    return [
        dict(r) for r in connection.execute(select(source).where(source.c.run_id == run_id).order_by(order)).mappings()
    ]
