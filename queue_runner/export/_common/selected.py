"""What is exported: the columns of the views, with types and units, of the runs that the user selected.

The names are those of the views (docs/schema.md). Left out is the whole specification, which holds the environment and
folders; in its place are the words of a command (`argv`) and the settings (`params_json`). Texts are searched for
secrets.
"""

from __future__ import annotations

import json
import shlex
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

from queue_runner import redact
from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.errors import UsageError
from queue_runner.model import Outcome
from queue_runner.reports._common import select_runs
from queue_runner.reports._common.document import Options

Row = dict[str, Any]


@dataclass(frozen=True)
class Field:
    """A column: `kind` is int, float, text or bool; `unit` is empty for texts and plain numbers."""

    name: str
    kind: str
    unit: str = ""


@dataclass(frozen=True)
class ExportTable:
    name: str
    view: str
    fields: Sequence[Field]


_UNITS = {"_s": "s", "_at": "Unix s", "_bytes": "B"}
_BY_END = {"_s": "float", "_at": "float", "_bytes": "int", "_id": "int"}
_LOSSES = frozenset({"loss", "loss_first", "loss_last", "loss_min", "val_loss_last"})


def _field(word: str) -> Field:
    """Read `name:kind`; without a kind the end of the name says it, and otherwise it is text."""
    name, _, kind = word.partition(":")
    unit = next((unit for end, unit in _UNITS.items() if name.endswith(end)), "nats" if name in _LOSSES else "")
    ending = next((kind for end, kind in _BY_END.items() if name.endswith(end)), "text")
    return Field(name, kind or ending, "FLOP" if name == "flops_per_iter" else unit)


def _table(name: str, view: str, *lines: str) -> ExportTable:
    return ExportTable(name, view, [_field(word) for line in lines for word in line.split()])


RUNS = _table(
    "runs",
    "v_run",
    "run_id run job_id number:int group_id name kind workload framework framework_version config device asked_device",
    "device_name compile:bool dtype argv params_json env_name gpus:int spec_hash snapshot_hash priority:int tags",
    "repeat:int attempt:int lane position:int state outcome exit_code:int signal:int reason blocked_reason valid:bool",
    "taints created_at claimed_at started_at ended_at cancel_requested_at paused_at machine_hash software_hash",
    "params:int flops_per_iter:float tokens_per_iter:float samples_per_iter:float optimizer seed:int",
    "planned_iters:int compile_cache data_name data_sha256 real_s slept_s paused_s user_s sys_s max_rss_bytes",
    "n_iters:int n_measure:int median_s mad_s q1_s q3_s mean_s min_s max_s first_iter_s first_iter_excess_s",
    "first_third_median_s last_third_median_s drift_ratio:float loss_first:float loss_last:float loss_min:float",
    "val_loss_last:float setup_s compile_s warmup_s measure_s eval_s checkpoint_s other_s projected_real_s",
    "peak_allocated_bytes peak_reserved_bytes note deadline_at not_before_at retries:int backoff_s retry_on",
    "rerun_of:int resumed_from:int replaces:int replaced:bool schedule_id deleted_at",
)
ITERATIONS = _table(
    "iterations",
    "v_iteration",
    "run_id run offset:int i:int dur_s loss:float phase synced:bool allocated_bytes reserved_bytes",
)
EVALS = _table("evals", "v_eval", "run_id run offset:int i:int split metric value:float dur_s")
METRICS = _table("metrics", "v_metric", "run_id run offset:int i:int name value:float unit")
TABLES = (RUNS, ITERATIONS, EVALS, METRICS)
FROM_SPEC = ("argv", "params_json", "env_name", "gpus")
"""Columns of RUNS that are parts of the specification and no columns of v_run."""
NOT_EXPORTED = ("spec_json",)
_ASKED = select_runs.ASKED.partition(", ")[2]
"""`kind` is a column of RUNS."""
_FREE_TEXT = ("name", "tags", "reason", "blocked_reason", "note")
_MAKE = {"int": int, "float": float, "text": str, "bool": bool}


class Selected:
    """The selected runs, and their other rows on demand, all as they were when this was made."""

    def __init__(self, connection: sqlite3.Connection, runs: Sequence[Row], labels: Mapping[int, str]) -> None:
        self._connection = connection
        self.runs = runs
        self._labels = labels

    def title(self, run: Row) -> str:
        """Return "12.1 nanogpt tiny cpu eager", with " (not valid)" where reports leave the run out."""
        return f"{run['run']} {self._labels[run['run_id']]}{'' if is_valid(run) else ' (not valid)'}"

    def rows(self, table: ExportTable) -> Iterator[Row]:
        """Yield the rows of a table for all runs, by job and run, in the order of each run's file."""
        if table is RUNS:
            yield from self.runs
        else:
            for run in self.runs:
                yield from self.of_run(table, run["run_id"])

    def of_run(self, table: ExportTable, run_id: int) -> Iterator[Row]:
        """Yield the rows of one run in a table other than RUNS, in the order of its file."""
        sql = f"SELECT {_columns(table.fields)} FROM {table.view} WHERE run_id = ? ORDER BY offset"
        for row in self._connection.execute(sql, [run_id]):
            yield _typed(row, table.fields)

    def counts(self) -> dict[str, int]:
        """Return the number of rows by table."""
        return dict(self._counts)

    @cached_property
    def _counts(self) -> dict[str, int]:
        counts = {RUNS.name: len(self.runs)}
        for table in TABLES[1:]:
            sql = f"SELECT count(*) AS n FROM {table.name} WHERE run_id = ?"
            counts[table.name] = sum(
                self._connection.execute(sql, [run["run_id"]]).fetchone()["n"] for run in self.runs
            )
        return counts

    @property
    def n_not_valid(self) -> int:
        """How many of the runs did not succeed, have not ended or are invalid."""
        return sum(not is_valid(run) for run in self.runs)


def is_valid(run: Row) -> bool:
    """Return whether reports use the numbers of a run."""
    return bool(run["outcome"] == Outcome.SUCCEEDED and run["valid"] and not run["replaced"])


def select(connection: sqlite3.Connection, options: Options) -> Selected:
    """Return what `options` select; the connection reads the state of this moment until it is closed.

    Raises: UsageError when nothing is selected, or a name or selector does not exist.
    """
    connection.execute("BEGIN")
    chosen, values = select_runs.condition(connection, replace(options, include_invalid=True))
    columns = _columns([field for field in RUNS.fields if field.name not in FROM_SPEC])
    sql = f"SELECT {columns}, spec_json, {_ASKED} FROM v_run WHERE {chosen} ORDER BY job_id, number"
    rows = [{**row, **_of_spec(row["spec_json"])} for row in connection.execute(sql, values)]
    for row in rows:
        row.update({name: redact.redact([row[name]])[0] for name in (*_FREE_TEXT, "log_name") if row[name]})
    runs = [_typed(row, RUNS.fields) for row in rows]
    if not runs:
        raise UsageError("no run matches: nothing was exported", "mpsq list --all shows every job")
    names = [field.name for field in fields(ReportedRun) if field.name in rows[0]]
    reported = [ReportedRun(**{name: row[name] for name in names}) for row in rows]
    return Selected(connection, runs, {run.run_id: select_runs.label(run) for run in reported})


def _of_spec(text: str) -> Row:
    spec = json.loads(text)
    return {
        "argv": shlex.join(redact.redact(spec.get("argv") or ())) or None,
        "params_json": json.dumps(spec.get("params") or {}, sort_keys=True),
        "env_name": spec.get("env_name") or None,
        "gpus": spec.get("gpus", 1),
    }


def _columns(fields: Sequence[Field]) -> str:
    return ", ".join(f'"{field.name}"' for field in fields)


def _typed(row: Row, fields: Sequence[Field]) -> Row:
    return {f.name: None if (value := row[f.name]) is None else _MAKE[f.kind](value) for f in fields}
