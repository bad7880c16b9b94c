"""The statements of the hot path (submit, claim, events, the end of a run), written once, in SQLAlchemy Core.

`python -m queue_runner.store.statements` writes their texts to hot_sql.py, which needs no import of SQLAlchemy; a test
holds the two equal. The values of a statement are bound by name: `:run_id`. A statement that shares no condition and no
list of columns with another one is SQL in the module that uses it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sqlalchemy import (
    ClauseElement,
    Column,
    ColumnElement,
    Insert,
    Select,
    Table,
    Update,
    bindparam,
    exists,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.dialects.sqlite import insert as sqlite_insert
from sqlalchemy.dialects.sqlite.base import SQLiteCompiler, SQLiteDialect

from queue_runner.lanes import REMOTE_GLOB
from queue_runner.model import Outcome, State
from queue_runner.store import schema
from queue_runner.store.schema import dependencies, groups, job_events, jobs, lanes, metrics, notes, runs


def _bound(columns: Any) -> dict[str, ColumnElement[Any]]:
    """Return columns, given by name or as columns, with the values that are bound under their names."""
    names = [one if isinstance(one, str) else one.name for one in columns]
    return {name: bindparam(name) for name in names}


def _add(target: Table, *names: str) -> Insert:
    return insert(target).values(_bound(names or target.c))


def _add_once(target: Table) -> Insert:
    return sqlite_insert(target).values(_bound(target.c)).on_conflict_do_nothing()


def _put(target: Table, *keys: str) -> Insert:
    """Insert a row, or replace the one with the same `keys`."""
    values = _bound(target.c)
    others = {name: value for name, value in values.items() if name not in keys}
    return sqlite_insert(target).values(values).on_conflict_do_update(index_elements=keys, set_=others)


def _without_id(target: Table) -> list[str]:
    return [one.name for one in target.c if one.name != "id"]


_RUN_ID: ColumnElement[int] = bindparam("run_id")
_JOB_ID: ColumnElement[int] = bindparam("job_id")
_LANE: ColumnElement[str] = bindparam("this_lane")
_NOW: ColumnElement[float] = bindparam("now")
_IDS = select(func.json_each(bindparam("ids")).table_valued("value").c.value)
"""The values of a list that is bound as JSON."""
_IS_THE_RUN = runs.c.id == _RUN_ID
_RUNS_OF_JOBS = runs.join(jobs, jobs.c.id == runs.c.job_id)
_UNENDED = runs.c.state != State.DONE


def _run(*columns: Column[Any]) -> Select[Any]:
    return select(*columns).where(_IS_THE_RUN)


def _change_run(*conditions: ColumnElement[bool], **values: Any) -> Update:
    return update(runs).where(_IS_THE_RUN, *conditions).values(values)


# -- submit ------------------------------------------------------------------------------------------------------------

ADD_GROUP = _add(groups, "created_at", "title", "seed").returning(groups.c.id)
ADD_SNAPSHOT = _add_once(schema.snapshots)
ADD_JOB = _add(jobs, *(one.name for one in jobs.c if one.name != "deleted_at"))
ADD_TAG = _add(schema.job_tags)
ADD_DEPENDENCY = _add(dependencies)
ADD_EVENT = _add(job_events, *_without_id(job_events))
PLACES = select(
    *(select(end(runs.c.position)).where(_UNENDED).scalar_subquery() for end in (func.min, func.max)),
)
"""The first and the last position of the queue."""
_AS_ITS_JOB = {"job_priority": select(jobs.c.priority).where(jobs.c.id == _JOB_ID).scalar_subquery()}
ADD_FIRST_RUN = _add(
    runs, "job_id", "number", "repeat", "attempt", "lane", "position", "state", "created_at", "not_before_at"
).values(_AS_ITS_JOB)
_GIVEN = [name for name in _without_id(runs) if name not in _AS_ITS_JOB]
ADD_RUN = _add(runs, *_GIVEN).values(_AS_ITS_JOB).returning(runs.c.id)

# -- claim, and the state of a run -------------------------------------------------------------------------------------

CLAIM = _change_run(
    runs.c.state == State.QUEUED,
    state=State.RUNNING,
    blocked_reason=None,
    **_bound(["claimed_at", "lane", "token", "boot_id"]),
).returning(runs.c.job_id, runs.c.number, runs.c.repeat)
SPEC_OF_JOB = select(jobs.c.spec_json).where(jobs.c.id == _JOB_ID)
NAME_OF_RUN = _run(runs.c.job_id, runs.c.number)
RUNNING = (
    select(runs.c.id, runs.c.job_id, runs.c.number, runs.c.token, runs.c.boot_id, jobs.c.spec_json)
    .select_from(_RUNS_OF_JOBS)
    .where(runs.c.state == State.RUNNING, runs.c.lane == _LANE)
)
LANES_IN_USE = select(runs.c.lane).where(runs.c.state == State.RUNNING, runs.c.lane.op("NOT GLOB")(REMOTE_GLOB))
LAST_EVENT = select(func.max(job_events.c.id))
LANE_OF_RUN = _run(runs.c.lane)
STARTED_AT, CANCEL_REQUESTED_AT, PAUSED_AT = (
    _run(moment) for moment in (runs.c.started_at, runs.c.cancel_requested_at, runs.c.paused_at)
)
_ENDING = (runs.c.outcome, runs.c.exit_code, runs.c.signal, runs.c.reason)
_MOVED = (
    *(*_ENDING, runs.c.ended_at, runs.c.cancel_requested_at, runs.c.blocked_reason),
    *(runs.c.lane, runs.c.claimed_at, runs.c.paused_at, runs.c.token, runs.c.boot_id),
)
"""The columns that a transition may set, beside the state."""
RUN_TO_MOVE = _run(runs.c.job_id, runs.c.state, *_MOVED)
MOVE = _change_run(runs.c.state == bindparam("source"), **_bound([runs.c.state, *_MOVED]))
_SOURCES = select(func.json_each(bindparam("sources")).table_valued("value").c.value)
_FITTING = runs.c.id.in_(_IDS) & runs.c.state.in_(_SOURCES)
MOVE_ALL = update(runs).where(_FITTING).values(_bound([runs.c.state, *_ENDING, runs.c.ended_at, runs.c.blocked_reason]))
_ENTRY = ("at", "actor", "verb", "to_state", "outcome", "reason")
ADD_EVENTS = insert(job_events).from_select(
    ["job_id", "run_id", "from_state", *_ENTRY],
    select(runs.c.job_id, runs.c.id, runs.c.state, *(bindparam(name).label(name) for name in _ENTRY)).where(_FITTING),
)
UNENDED = select(runs.c.id, runs.c.job_id, runs.c.number, runs.c.state, runs.c.token).where(
    runs.c.id.in_(_IDS), _UNENDED
)
REQUEST_CANCEL = _change_run(runs.c.cancel_requested_at.is_(None), cancel_requested_at=_NOW)
TAKE_OVER_HOLD = _change_run(runs.c.state == State.HELD, runs.c.blocked_reason.is_not(None), blocked_reason=None)
SUSPEND = _change_run(runs.c.paused_at.is_(None), runs.c.state == State.RUNNING, paused_at=_NOW)
CONTINUE = _change_run(runs.c.paused_at.is_not(None), runs.c.state != State.DONE, paused_at=None)
NEWEST_EVENT_OF_RUN = (
    select(job_events.c.verb, job_events.c.at)
    .where(job_events.c.run_id == _RUN_ID)
    .order_by(job_events.c.id.desc())
    .limit(1)
)

# -- lanes -------------------------------------------------------------------------------------------------------------

PUT_LANE = _put(lanes, "name")

# -- events and results ------------------------------------------------------------------------------------------------

PUT_INGEST_STATE = _put(schema.ingests, "run_id", "source")
ADD_ITERATION = _add(schema.iterations)
ADD_PHASE = _add(schema.phases)
ADD_EVAL = _add(schema.evals)
ADD_METRIC = _add(schema.metrics)
ADD_METRIC_ONCE = _add_once(schema.metrics)
ADD_NOTE = _add(notes)
ADD_NOTE_ONCE = _add_once(notes)
PUT_HELLO = _put(schema.hellos, "run_id")
ADD_EXIT = _add_once(schema.exits)
PUT_SUMMARY = _put(schema.summaries, "run_id")
ADD_TAINT = _add_once(schema.taints)
ADD_CONDITION = _add_once(schema.conditions)
ADD_FINGERPRINT = _add_once(schema.fingerprints)

# -- the end of a run --------------------------------------------------------------------------------------------------

LAST_NUMBER = select(func.max(runs.c.number)).where(runs.c.job_id == _JOB_ID)
_WRONG_LOSS = exists().where(notes.c.run_id == runs.c.id, notes.c.kind == "wrong_loss")
CHECKED_RUN = (
    select(runs.c.id)
    .join(metrics, metrics.c.run_id == runs.c.id)
    .where(runs.c.job_id == _JOB_ID, runs.c.lane == _LANE, runs.c.outcome == Outcome.SUCCEEDED)
    .where(metrics.c.name == "reference_loss_cpu")
    .where(~_WRONG_LOSS)
    .limit(1)
)
TERMS_OF_JOB = select(
    *(jobs.c.group_id, jobs.c.priority, jobs.c.note, jobs.c.deadline_at, jobs.c.retries, jobs.c.backoff_s),
    *(jobs.c.retry_on, jobs.c.schedule_id),
).where(jobs.c.id == _JOB_ID)
TAGS_OF_JOB = select(schema.job_tags.c.tag).where(schema.job_tags.c.job_id == _JOB_ID)

# -- their texts -------------------------------------------------------------------------------------------------------


class _Compiler(SQLiteCompiler):
    """Writes the values that a statement has as literals; those that it takes stay bound by name."""

    def visit_bindparam(self, bindparam: Any, *args: Any, **options: Any) -> str:
        if not bindparam.required:
            options["literal_binds"] = True
        return str(super().visit_bindparam(bindparam, *args, **options))  # type: ignore[no-untyped-call]


class _Dialect(SQLiteDialect):
    statement_compiler = _Compiler
    supports_statement_cache = True


def generated() -> str:
    """Return the content of hot_sql.py."""
    dialect = _Dialect(paramstyle="named")
    lines = [_HEAD]
    for name, statement in globals().items():
        if isinstance(statement, ClauseElement) and name.isupper() and not name.startswith("_"):
            text = "\n".join(line.strip() for line in str(statement.compile(dialect=dialect)).splitlines())
            text = f'"""\n{text}\n"""' if "\n" in text else json.dumps(text)
            lines.append(f"{name} = {text}\n")
    return "".join(lines)


_HEAD = '''"""The texts of statements.py. Do not edit: `python -m queue_runner.store.statements` writes this file."""

# fmt: off
# ruff: noqa: E501
'''

if __name__ == "__main__":
    Path(__file__).with_name("hot_sql.py").write_text(generated(), encoding="utf-8")
