"""Selection of a report's runs: --where, --since and selectors as one condition on v_run.

Names come from a list or are settings of stored runs; values are always parameters, never SQL.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from queue_runner import units
from queue_runner.analysis.grouping import word
from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.analysis.stats import by_key
from queue_runner.errors import UsageError, did_you_mean
from queue_runner.model import PREFLIGHT, Ending, Outcome, State
from queue_runner.monitor.answers.run_query import Context, Options
from queue_runner.monitor.run_view import MARK as INVALID_MARK
from queue_runner.spec import COMPILE_MODES
from queue_runner.store import read
from queue_runner.tables import Column

COLUMNS = (
    "workload",
    "framework",
    "framework_version",
    "config",
    "dtype",
    "device",
    "device_name",
    "compile",
    "name",
    "kind",
    "run",
    "repeat",
    "seed",
    "optimizer",
    "data_name",
    "compile_cache",
    "outcome",
)
"""Columns of v_run that select and group runs, in addition to settings (--set)."""
_ALIASES = {"group": "group_id", "job": "job_id", "machine": "machine_hash", "software": "software_hash"}


def condition(connection: sqlite3.Connection, options: Options) -> tuple[str, list[Any]]:
    """Return a condition on v_run and its values. Raises: UsageError when a name or selector does not exist."""
    terms: list[str] = [f"number <> {PREFLIGHT}"]
    values: list[Any] = []
    if options.sides:
        conditions = [condition(connection, side) for side in options.sides]
        terms.append(" OR ".join(f"({term})" for term, _ in conditions).join("()"))
        values += [value for _, more in conditions for value in more]
    if options.selectors:
        parts = []
        for selector in options.selectors:
            part, more = read.where(selector, connection)
            parts.append(part)
            values += more
        terms.append("(" + " OR ".join(f"({part})" for part in parts) + ")")
    if options.since is not None:
        terms.append("COALESCE(ended_at, created_at) >= ?")
        values.append(options.since)
    for name, texts in options.where.items():
        term, more = _is_one_of(connection, name, texts)
        terms.append(term)
        values += more
    return " AND ".join(terms), values


def _is_one_of(connection: sqlite3.Connection, name: str, texts: Sequence[str]) -> tuple[str, list[Any]]:
    marks = ", ".join("?" for _ in texts)
    if name == "tag":
        tagged = " OR ".join("instr(',' || tags || ',', ',' || ? || ',')" for _ in texts)
        return f"({tagged})", list(texts)
    if name == "compile" and {*texts} & {*COMPILE_MODES}:
        return f"COALESCE(NULLIF(json_extract(spec_json, '$.compile_mode'), ''), compile) IN ({marks})", [
            int(value) if value in "01" else value for value in texts
        ]
    if name == "gpus":
        return f"CAST({GPUS} AS TEXT) IN ({marks})", list(texts)
    column, setting = resolve(connection, name, "--where")
    if column == "group_id":
        texts = [value.removeprefix("g") for value in texts]
    if column in ("machine_hash", "software_hash"):  # reports show their first digits
        return f"({' OR '.join(f'substr({column}, 1, length(?)) = ?' for _ in texts)})", [
            v for v in texts for _ in "12"
        ]
    if column is not None:
        return f"CAST({column} AS TEXT) COLLATE NOCASE IN ({marks})", list(texts)
    path = f'$.params."{setting}"'
    numbers = [number for value in texts if (number := _number(value)) is not None]
    equal = f" OR json_extract(spec_json, ?) IN ({', '.join('?' for _ in numbers)})" if numbers else ""
    text = f"(CAST(json_extract(spec_json, ?) AS TEXT) IN ({marks}){equal})"
    return text, [path, *texts, *([path, *numbers] if numbers else [])]


def _number(text: str) -> float | None:
    """Return the number a setting is stored as; true and false are 1 and 0 in SQLite's JSON."""
    try:
        return {"true": 1.0, "false": 0.0}.get(text.lower()) if text.lower() in ("true", "false") else float(text)
    except ValueError:
        return None


def resolve(connection: sqlite3.Connection, name: str, option: str) -> tuple[str | None, str]:
    """Return the column of v_run for `name`, or None and the setting. Raises: UsageError when it is neither."""
    if name in COLUMNS:
        return name, ""
    if name in _ALIASES:
        return _ALIASES[name], ""
    known = settings(connection)
    setting = spelled(name, known)
    if setting in known and '"' not in setting:
        return None, setting
    names = sorted({*COLUMNS, *known, *_ALIASES, *(["tag"] if option == "--where" else [])})
    hint = did_you_mean(name, names, f"use one of {', '.join(names)}")
    raise UsageError(f'no column or setting "{name}"', hint)


def spelled(name: str, known: Sequence[str]) -> str:
    """Return a name as a setting spells it: to the options, weight-decay is weight_decay."""
    return name if name in known else next((other for other in known if other.replace("-", "_") == name), name)


def settings(connection: sqlite3.Connection) -> list[str]:
    """Return every setting (--set) that some run has."""
    sql = "SELECT DISTINCT key FROM v_run, json_each(v_run.spec_json, '$.params') ORDER BY key"
    return [key for (key,) in read.tuples(connection, sql)]


MERGED = "merged:"
"""What the name of a machine begins with where its runs were brought by a bundle."""
KIND = "COALESCE(json_extract(spec_json,'$.merged.kind'),kind) AS kind"
"""The kind of a job where it ran: the queue itself has a merged job as imported, which it can never run."""
ASKED = (
    f"{KIND}, json_extract(spec_json, '$.merged.kind') IS NOT NULL AS merged,"
    " json_extract(spec_json, '$.workload') AS asked_workload, CASE kind WHEN 'import' THEN"
    " (SELECT json_extract(hello_json, '$.log_name') FROM hellos h WHERE h.run_id = v_run.run_id) END AS log_name"
)
"""Columns that `subject` needs beside name and workload."""
GPUS = "COALESCE(json_extract(spec_json, '$.gpus'), 1)"
"""The number of GPUs of a run: specifications before version 0.3 do not name it."""


GPU_MEMORY = "CASE WHEN device <> 'cpu' THEN peak_reserved_bytes END AS peak_reserved_bytes"
"""A column: the most memory of the GPU that a run had reserved. On the CPU the stored value is its resident memory."""
INVALID = (
    "(SELECT group_concat(t.kind || ': ' || t.detail, '; ') FROM taints t"
    " WHERE t.run_id = v_run.run_id AND t.severity = 'invalid') AS invalid"
)
"""A column: why the numbers of a run are not valid; NULL where they are."""
MARK = Column("mark", "", value=lambda row: INVALID_MARK if row.invalid else "", style=lambda _row: "doubt")
"""The column of run_view.MARK beside the numbers of runs that are not valid."""


def subject(run: ReportedRun) -> str:
    """Return what a run is called: the name that the user gave, else the workload that ran; of a command its script.

    A workload in another mode than training says in its hello that it is another one, "nanogpt-eval"; so does a named
    one, "mine-eval". An imported log is called as the log says, unless the user named it.
    """
    name, ran = run.name, run.workload
    requested = PurePath(run.log_name or "").stem if run.kind == "import" else run.asked_workload
    if run.kind == "command" or not ran:
        return name
    if name == requested:
        return str(ran)
    return name + (str(ran).removeprefix(requested) if requested and str(ran).startswith(f"{requested}-") else "")


def label(row: ReportedRun) -> str:
    """Return a short description of a run: "nanogpt tiny cpu eager fp32"."""
    mode = word("compile", row.compile_mode or row.compile)
    words = [subject(row), row.config, row.device, mode, row.dtype]
    return " ".join(str(part) for part in words if part)


def labels(
    runs: Iterable[ReportedRun], values_of: Callable[[ReportedRun], Mapping[str, Any]] | None = None
) -> dict[int, str]:
    """Return the labels of runs by run_id, with the values, by default the settings, in which runs of one label
    differ."""
    made = {}
    for text, same in by_key(runs, label).items():
        values = {run.run_id: values_of(run) if values_of else json.loads(run.params_json) for run in same}
        names = sorted({name for by_name in values.values() for name in by_name})
        differ = [name for name in names if len({str(by_name.get(name)) for by_name in values.values()}) > 1]
        for run_id, by_name in values.items():
            words = [f"{name}={by_name[name]}" for name in differ if by_name.get(name) is not None]
            made[run_id] = " ".join([text, *words])
    return made


MOST_LISTED = 8
"""Maximum number of runs of which a report says something each."""


def not_valid(rows: Sequence[ReportedRun]) -> list[str]:
    """Return why each of these runs is not valid, from INVALID: at most MOST_LISTED; the rest is counted."""
    lines = [f"{INVALID_MARK} {row.run} is invalid: {row.invalid}" for row in rows if row.invalid]
    n_more = len(lines) - MOST_LISTED
    more = [f"... and {units.counted(n_more, 'more run')} (--format json has all)"] if n_more > 0 else []
    return [*lines[:MOST_LISTED], *more]


def nothing(context: Context, which: str = "that ended") -> str:
    """Return why a report has no rows, and which values are stored."""
    options = context.options
    n_runs, state = _state_of_runs(context)
    if not options.where and options.since is None:
        return f"there is no run {which}{state}"
    terms = [f"{name}={','.join(values)}" for name, values in options.where.items()]
    hints = []
    for name in options.where if not n_runs else ():
        setting = spelled(name, known := settings(context.connection))
        if name in COLUMNS or setting in known:
            value = "json_extract(spec_json, ?)" if setting in known else name
            sql = f"SELECT DISTINCT {value} AS stored FROM v_run WHERE stored IS NOT NULL ORDER BY 1 LIMIT 9"
            stored = context.tuples(sql, [f'$.params."{setting}"'] if setting in known else [])
            hints.append(f"stored values of {name}: {', '.join(str(value) for (value,) in stored) or 'none'}")
    since = ["--since"] if options.since is not None else []
    text = f"no run {which} matches {' '.join([*terms, *since])}"
    return f"{text} ({'; '.join(hints)})" if hints else text + (state if n_runs else "")


def _state_of_runs(context: Context) -> tuple[int, str]:
    """Return the number of selected runs, and their states or outcomes as the reason for an empty report."""
    columns = "run_id, run, state, outcome, exit_code, signal, reason"
    rows = context.runs(f"SELECT {columns} FROM v_run WHERE {{chosen}} ORDER BY run_id DESC")
    failed = [row for row in rows if row.state == State.DONE and row.outcome != Outcome.SUCCEEDED]
    n_waiting = sum(row.state != State.DONE for row in rows)
    if not rows:
        return 0, " yet: mpsq submit adds runs, mpsq worker executes them"
    parts = []
    if failed:
        ending = Ending(Outcome(failed[0].outcome or ""), failed[0].exit_code, failed[0].signal, "")
        which, run = f"{len(failed)} of {units.counted(len(rows) - n_waiting, 'ended run')}", failed[0].run
        parts.append(f"{which} did not succeed (newest: {run} {ending}, see mpsq why {run})")
    if n_waiting:
        parts.append(f"{n_waiting} {'has' if n_waiting == 1 else 'have'} not ended (see mpsq status)")
    return len(rows), (" yet" if n_waiting else "") + (f": {'; '.join(parts)}" if parts else "")
