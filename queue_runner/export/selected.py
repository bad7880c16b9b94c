"""The exported tables: columns of the views, with types and units, of the runs that the user selected.

The names are those of the views (docs/schema.md). Left out is the whole specification, which holds the environment and
folders; in its place are the words of a command (`argv`) and all settings that tell runs apart. Texts are searched for
secrets.
"""

from __future__ import annotations

import json
import shlex
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from queue_runner.errors import UsageError
from queue_runner.host import redact
from queue_runner.model import OWN_NOTE, Outcome
from queue_runner.monitor.answers import select_runs
from queue_runner.monitor.answers.run_query import Options
from queue_runner.spec import JobSpec
from queue_runner.store.read import tuples


class Field(Struct, frozen=True):
    """A column: `kind` is int, float, text or bool; `unit` is empty for texts and plain numbers."""

    name: str
    kind: str
    unit: str = ""


class ExportTable(Struct, frozen=True):
    name: str
    view: str
    fields: Sequence[Field]


_MAKE = {"int": int, "float": float, "text": str, "bool": bool}
_UNITS = {"_s": "s", "_at": "Unix s", "_bytes": "B"}
_BY_END = {"_s": "float", "_at": "float", "_bytes": "int", "_id": "int"}
_LOSSES = frozenset({"loss", "loss_first", "loss_last", "loss_min", "val_loss_last"})


def _table(name: str, view: str, *lines: str) -> ExportTable:
    """Read columns as `name:kind`; without a kind the end of the name says it, and otherwise it is text."""
    fields = []
    for column, _, kind in (word.partition(":") for line in lines for word in line.split()):
        unit = next((unit for end, unit in _UNITS.items() if column.endswith(end)), "nats" if column in _LOSSES else "")
        ending = next((kind for end, kind in _BY_END.items() if column.endswith(end)), "text")
        fields.append(Field(column, kind or ending, "FLOP" if column == "flops_per_iter" else unit))
    return ExportTable(name, view, fields)


def _typed(fields: Sequence[Field], values: Sequence[Any]) -> list[Any]:
    pairs = zip(fields, values, strict=True)
    return [None if value is None else _MAKE[field.kind](value) for field, value in pairs]


RUNS = _table(
    "runs",
    "v_run",
    "run_id run job_id number:int group_id name kind workload framework framework_version config device asked_device",
    "device_name compile:bool compile_mode dtype argv params_json variables_json mps_json env_name gpus:int cores:int",
    "threads:int warmup:int prepare spec_hash snapshot_hash priority:int tags",
    "repeat:int attempt:int lane position:int state outcome exit_code:int signal:int reason blocked_reason valid:bool",
    "taints created_at claimed_at started_at ended_at cancel_requested_at paused_at machine_hash software_hash",
    "params:int flops_per_iter:float tokens_per_iter:float samples_per_iter:float optimizer seed:int",
    "planned_iters:int compile_cache data_name data_sha256 real_s slept_s paused_s user_s sys_s max_rss_bytes",
    "n_iters:int n_measure:int median_s mad_s q1_s q3_s mean_s min_s max_s first_iter_s first_iter_excess_s",
    "first_third_median_s last_third_median_s drift_ratio:float loss_first:float loss_last:float loss_min:float",
    "val_loss_last:float setup_s compile_s warmup_s measure_s eval_s checkpoint_s other_s projected_real_s",
    "peak_allocated_bytes peak_reserved_bytes note deadline_at not_before_at retries:int backoff_s retry_on",
    "rerun_of:int resumed_from:int schedule_id deleted_at",
)
ITERATIONS = _table(
    "iterations",
    "v_iteration",
    "run_id run offset:int i:int dur_s loss:float phase synced:bool allocated_bytes reserved_bytes",
)
EVALS = _table("evals", "v_eval", "run_id run offset:int i:int split metric value:float dur_s")
METRICS = _table("metrics", "v_metric", "run_id run offset:int i:int name value:float unit")
TABLES = (RUNS, ITERATIONS, EVALS, METRICS)
FROM_SPEC = (
    *("compile_mode", "argv", "params_json", "variables_json", "mps_json", "env_name"),
    *("gpus", "cores", "threads", "warmup", "prepare"),
)
"""Columns of RUNS that are parts of the specification and not columns of v_run."""
_OFFSET = f"CASE WHEN offset < {OWN_NOTE} THEN offset END"
"""Notes and metrics of the queue itself have no line in a file."""
_FREE_TEXT = frozenset({"name", "tags", "reason", "blocked_reason", "note", "log_name"})


class SelectedRun(NamedTuple):
    """A run: whether reports use its numbers, its name and settings in words ("12.1 nanogpt tiny cpu"), and its values
    in the order of the columns of RUNS."""

    id: int
    valid: bool
    title: str
    values: Sequence[Any]


class Selected:
    """The selected runs, and their other rows on demand, all as they were when this was made."""

    def __init__(self, connection: sqlite3.Connection, runs: Sequence[SelectedRun]) -> None:
        self._connection = connection
        self.runs = runs

    def rows(self, table: ExportTable) -> Iterator[Sequence[Any]]:
        """Yield the values of each row of a table, by job and run, in the order of each run's file."""
        for selected in self.runs:
            if table is RUNS:
                yield selected.values
            else:
                yield from self.of_run(table, selected.id)

    def of_run(self, table: ExportTable, run_id: int, *names: str) -> Iterator[Sequence[Any]]:
        """Yield these columns, or all, of one run in a table other than RUNS, in the order of its file."""
        fields = [field for name in names for field in table.fields if field.name == name] or table.fields
        columns = ", ".join(_OFFSET if field.name == "offset" else field.name for field in fields)
        sql = f"SELECT {columns} FROM {table.view} WHERE run_id = ? ORDER BY {table.view}.offset"
        yield from (_typed(fields, row) for row in tuples(self._connection, sql, [run_id]))

    @cached_property
    def counts(self) -> dict[str, int]:
        """The number of rows by table."""
        counts = {RUNS.name: len(self.runs)}
        for table in TABLES[1:]:
            sql = f"SELECT count(*) FROM {table.name} WHERE run_id = ?"
            counts[table.name] = sum(n for run in self.runs for (n,) in tuples(self._connection, sql, [run.id]))
        return counts

    @property
    def n_not_valid(self) -> int:
        """How many of the runs did not succeed, have not ended or are invalid."""
        return sum(not run.valid for run in self.runs)


def select(connection: sqlite3.Connection, options: Options) -> Selected:
    """Return what `options` select; the connection reads the state of this moment until it is closed.

    Raises: UsageError when nothing is selected, or a name or selector does not exist.
    """
    connection.execute("BEGIN")
    chosen, values = select_runs.condition(connection, replace(options, include_invalid=True))
    names = [field.name for field in RUNS.fields if field.name not in FROM_SPEC]
    head = f"run_id, run, outcome IS '{Outcome.SUCCEEDED}' AND valid, spec_json"
    sql = f"SELECT {head}, {', '.join(names)} FROM v_run WHERE {chosen} ORDER BY job_id, number"
    runs = []
    for run_id, run, valid, spec_json, *stored in tuples(connection, sql, values):
        spec = JobSpec.from_json(spec_json)
        (title,) = redact.redact([f"{run} {spec.label()}"])
        runs.append(SelectedRun(run_id, bool(valid), title, _values(dict(zip(names, stored, strict=True)), spec)))
    if not runs:
        raise UsageError("no run matches: nothing was exported", "mpsq list --all shows every job")
    return Selected(connection, runs)


def _values(stored: Mapping[str, Any], spec: JobSpec) -> list[Any]:
    """Return the values of a run in the order of the columns of RUNS, without secrets."""
    texts = {name: redact.redact([text])[0] for name, text in stored.items() if name in _FREE_TEXT and text}
    from_spec = {
        "argv": shlex.join(redact.redact(spec.argv)) or None,
        "params_json": json.dumps(spec.params, sort_keys=True),
        "variables_json": json.dumps(
            dict(zip(spec.variables, redact.redact(spec.variables.values()), strict=True)), sort_keys=True
        ),
        "mps_json": json.dumps(spec.mps, sort_keys=True),
        "env_name": spec.env_name or None,
        "compile_mode": spec.compile_mode or None,
        "gpus": spec.gpus,
        "cores": spec.cores or None,
        "threads": spec.threads or None,
        "warmup": spec.warmup,
        "prepare": redact.redact([spec.prepare])[0] or None,
    }
    values = {**stored, **texts, **from_spec}
    return _typed(RUNS.fields, [values[field.name] for field in RUNS.fields])
