"""The typed view of runs and jobs that `status`, `show`, `list`, `wait`, the dashboard and the web pages draw."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby, starmap
from pathlib import Path
from typing import Any, Generic, TypeVar

from msgspec import Struct
from msgspec.structs import asdict, replace

from queue_runner.analysis import stats
from queue_runner.host import locks, redact
from queue_runner.host.run_dir import RunDir, read_end
from queue_runner.model import FAILURES_SQL, NOT_FAILED, PREFLIGHT, Ending, Outcome, Selector, State
from queue_runner.paths import Layout
from queue_runner.spec import JobSpec, Value, mode_word
from queue_runner.store import read
from queue_runner.text import last_line

MARK = "!"
"""Marks the times of jobs and runs that are not valid: they are in no comparison."""


@lru_cache(maxsize=64)
def stored_spec(spec_json: str) -> JobSpec:
    """Return a stored specification. The runs of a job share one: it is parsed once."""
    return JobSpec.from_json(spec_json)


class JobQuestion(Struct, frozen=True):
    """The question that a job asks: as its run reported it, else as requested, with the settings of `spec`."""

    framework: str | None
    device: str | None
    compile: bool | None
    dtype: str | None
    config: str | None
    spec: JobSpec

    @classmethod
    def of_spec(cls, spec: JobSpec) -> JobQuestion:
        """Return the question of a job that is not stored yet."""
        return cls(spec.framework, spec.device, spec.compile, spec.dtype, spec.config, spec)

    @property
    def sets(self) -> dict[str, Value]:
        """The values of --set by name; the one that a search varies is last, since lists leave out the middle."""
        searched = self.spec.find_max.partition("=")[0]
        return dict(sorted(self.spec.params.items(), key=lambda item: (item[0] == searched, item[0])))

    def words(self) -> dict[str, str]:
        """Return the words of the question by setting; defaults are left out."""
        spec = self.spec
        words = {
            "framework": None if self.framework == "torch" else self.framework,
            "device": self.device,
            "compile": mode_word(spec.compile_mode or self.compile),
            "dtype": None if self.dtype == "fp32" else self.dtype,
            "config": self.config,
            **{f"set {name}": f"{name}={value}" for name, value in self.sets.items()},
            "gpus": f"gpus={spec.gpus}" if spec.gpus > 1 else "",
            "cores": f"cores={spec.cores}" if spec.cores else "",
            "threads": f"threads={spec.threads}" if spec.threads != spec.cores else "",
            "env": f"env={spec.env_name}" if spec.env_name else "",
            **{f"mps {name}": f"mps_{name}={value}" for name, value in spec.mps.items()},
            **{f"variable {name}": f"{name}={value}" for name, value in spec.variables.items()},
        }
        return {name: word for name, word in words.items() if word}

    def options(self) -> dict[str, Any]:
        """Return the settings that docs/json.md lists as the options of a job."""
        spec = self.spec
        optional = {name: getattr(spec, name) or None for name in ("env_name", "compile_mode", "cores", "threads")}
        return {"sets": self.sets, "mps": spec.mps, "variables": spec.variables, "gpus": spec.gpus, **optional}

    def __str__(self) -> str:
        """Return it in a few words: "cpu, compiled, tiny, max_iters=20"."""
        return ", ".join(self.words().values())


class QueuedRun(Struct, frozen=True):
    """The columns of v_run that decide what a run waits for. Times are Unix seconds; None is unknown."""

    run_id: int
    run: str
    job_id: int
    attempt: int
    state: str
    lane: str
    blocked_reason: str | None
    cancel_requested_at: float | None
    not_before_at: float | None
    deadline_at: float | None


class RunLine(QueuedRun, frozen=True):
    """The columns of v_run that a list shows."""

    number: int
    repeat: int
    group_id: int
    name: str
    kind: str
    framework: str | None
    device: str | None
    compile: bool | None
    dtype: str | None
    config: str | None
    outcome: str | None
    exit_code: int | None
    signal: int | None
    reason: str | None
    created_at: float
    started_at: float | None
    ended_at: float | None
    paused_at: float | None
    real_s: float | None
    median_s: float | None
    taints: tuple[str, ...]
    valid: bool
    spec_json: str

    @property
    def is_preflight(self) -> bool:
        """Whether this only tries the job before its first repeat."""
        return self.number == PREFLIGHT

    @property
    def succeeded(self) -> bool:
        """Whether it ended in SUCCEEDED."""
        return self.outcome == Outcome.SUCCEEDED

    @property
    def is_beyond_budget(self) -> bool:
        """Whether it did not start because the --budget of its submission was over."""
        return self.outcome == Outcome.SKIPPED and (self.reason or "").startswith("budget:")

    @property
    def is_unneeded(self) -> bool:
        """Whether it did not start because it should do so only after a failure, and there was none."""
        return self.outcome == Outcome.SKIPPED and NOT_FAILED in (self.reason or "")

    @property
    def spec(self) -> JobSpec:
        """The specification of its job."""
        return stored_spec(self.spec_json)

    @property
    def command(self) -> list[str]:
        """The words of a command, without secrets; empty for a workload."""
        return redact.redact(self.spec.argv)

    @property
    def is_probe(self) -> bool:
        """Whether its job is a probe of a search (--find-max)."""
        return bool(self.spec.find_max)

    @property
    def question(self) -> JobQuestion:
        """The question that its job asks."""
        return JobQuestion(self.framework, self.device, self.compile, self.dtype, self.config, self.spec)

    @property
    def is_unstored(self) -> bool:
        """Whether it has ended and no worker lives to store that: its outcome is that of the warden's record."""
        return self.state == State.RUNNING and self.outcome is not None

    @property
    def took_s(self) -> float | None:
        """Its real time; while it runs, the time since its start."""
        running = self.state == State.RUNNING and self.outcome is None and self.started_at
        return max(time.time() - running, 0.0) if running else self.real_s

    @property
    def ending(self) -> str:
        """Its state or how it ended: RUNNING (suspended), FAILED(1), KILLED(9), SUCCEEDED (unsaved)."""
        if self.outcome is None:
            suspended = self.state == State.RUNNING and self.paused_at is not None
            return f"{self.state} (suspended)" if suspended else self.state
        return f"{self._end} (unsaved)" if self.is_unstored else str(self._end)

    @property
    def _end(self) -> Ending:
        return Ending(Outcome(self.outcome or ""), self.exit_code, self.signal, self.reason or "")

    @property
    def mark(self) -> str:
        """MARK for a run that succeeded and whose numbers are not valid, else empty."""
        return MARK if self.succeeded and not self.valid else ""

    @property
    def style(self) -> str:
        """The colour of how it ended (tables.STYLES)."""
        return outcome_style(self.outcome)

    @property
    def settings_line(self) -> str:
        """Its question on one line, after `preflight: ` for a preflight."""
        return f"{'preflight: ' if self.is_preflight else ''}{self.question}"


_UNPRINTED = frozenset(
    {
        *("run_id", "position", "lane", "claimed_at", "planned_iters", "deleted_at", "spec_hash", "spec_json"),
        *("snapshot_hash", "machine_hash", "flops_per_iter", "backoff_s", "retry_on"),
        *("setup_s", "compile_s", "warmup_s", "measure_s", "eval_s", "checkpoint_s", "other_s"),
    }
)
"""Columns that are not part of the run object of docs/json.md."""


class RunView(RunLine, frozen=True):
    """One run: the columns of v_run that people see."""

    workload: str | None
    framework_version: str | None
    device_name: str | None
    priority: int
    retries: int
    note: str | None
    rerun_of: int | None
    resumed_from: int | None
    schedule_id: int | None
    user_s: float | None
    sys_s: float | None
    slept_s: float | None
    max_rss_bytes: int | None
    peak_reserved_bytes: int | None
    peak_allocated_bytes: int | None
    n_iters: int | None
    n_measure: int | None
    mad_s: float | None
    loss_first: float | None
    loss_last: float | None
    val_loss_last: float | None
    tags: tuple[str, ...]
    position: float
    claimed_at: float | None
    planned_iters: int | None
    deleted_at: float | None
    spec_hash: str
    snapshot_hash: str | None
    machine_hash: str | None
    flops_per_iter: float | None
    backoff_s: float
    retry_on: str | None
    setup_s: float | None
    compile_s: float | None
    warmup_s: float | None
    measure_s: float | None
    eval_s: float | None
    checkpoint_s: float | None
    other_s: float | None

    @property
    def flaw(self) -> str:
        """The kind of the first mark that makes its numbers invalid; the view sorts these first."""
        return "" if self.valid else self.taints[0]

    def fate(self, after: str = "") -> str:
        """Return how it ended and why, as Ending.fate; of a run that waits for something, what that is."""
        if self.outcome is None:
            return f"{self.ending}: {self.blocked_reason}" if self.blocked_reason else self.ending
        unsaved = " (unsaved)" if self.is_unstored else ""
        invalid = f", not valid ({self.flaw})" if self.mark else ""
        return self._end.fate(f"{unsaved}{after}{invalid}")

    def as_json(self) -> dict[str, Any]:
        """Return the run object of docs/json.md."""
        columns = {name: column for name, column in asdict(self).items() if name not in _UNPRINTED}
        return columns | self.question.options() | {"taints": list(self.taints), "tags": list(self.tags)}


def _mean(times_s: Iterable[float]) -> float | None:
    known = [time_s for time_s in times_s if time_s > 0]
    return stats.geometric_mean(known) if known else None


Q = TypeVar("Q", bound=QueuedRun)
R = TypeVar("R", bound=RunLine)


def flag(value: int | None) -> bool | None:
    """Convert a flag as SQLite stores it."""
    return None if value is None else bool(value)


def _split(value: str | None) -> tuple[str, ...]:
    return tuple(value.split(",")) if value else ()


_CONVERSIONS: Mapping[str, Callable[[Any], Any]] = {
    "compile": flag,
    "valid": bool,
    "taints": _split,
    "tags": _split,
}
"""From a column as SQLite has it."""


def each_run(
    connection: sqlite3.Connection,
    kind: type[Q],
    condition: str = "1",
    values: Sequence[Any] = (),
    order: str = "job_id, number",
) -> Iterator[Q]:
    """Yield runs, reading only the columns of `kind`. `condition` and `order` are trusted SQL."""
    names = kind.__struct_fields__
    conversions = [(names.index(name), convert) for name, convert in _CONVERSIONS.items() if name in names]
    rows = read.tuples(connection, f"SELECT {', '.join(names)} FROM v_run WHERE {condition} ORDER BY {order}", values)
    if not conversions:
        yield from starmap(kind, rows)
        return
    for row in rows:
        columns = list(row)
        for index, convert in conversions:
            columns[index] = convert(columns[index])
        run = kind(*columns)
        yield _as_recorded(connection, run) if isinstance(run, RunLine) and run.state == State.RUNNING else run


_RECORDED = ("ended_at", "real_s", "user_s", "sys_s", "slept_s", "max_rss_bytes")
"""Columns that come from the warden's record."""


def _as_recorded(connection: sqlite3.Connection, run: R) -> R:
    """Return a RUNNING run with the end that its warden has recorded, if no worker lives to store it."""
    _, _, db = read.tuples(connection, "PRAGMA database_list").fetchone()
    layout = Layout(Path(db).parent)
    folder = RunDir(layout.run_dir(run.run))
    record = folder.exit()
    if record is None or locks.worker(layout.home)[0]:
        return run
    from queue_runner.ingest.outcome import of_exit, with_last_words  # not above: a run hardly ever needs it

    notes = dict(read.tuples(connection, "SELECT kind, text FROM notes WHERE run_id = ?", [run.run_id]))
    stderr = read_end(folder.stderr)
    ending = with_last_words(of_exit(record, notes), last_line(stderr), stderr)
    columns: dict[str, Any] = {name: getattr(record, name) for name in _RECORDED}
    columns |= {"outcome": ending.outcome.value, "exit_code": ending.exit_code, "signal": ending.signal}
    columns["reason"] = ending.reason or None
    return replace(run, **{name: columns[name] for name in run.__struct_fields__ if name in columns})


def runs(
    connection: sqlite3.Connection, condition: str = "1", values: Sequence[Any] = (), order: str = "job_id, number"
) -> list[RunView]:
    """Return whole runs. `condition` and `order` are trusted SQL."""
    return list(each_run(connection, RunView, condition, values, order))


def select(connection: sqlite3.Connection, selectors: Sequence[Selector]) -> list[RunView]:
    """Return every run that a selector names, each once, by job and number. Raises: UsageError (no match)."""
    selected: dict[int, RunView] = {}
    for selector in selectors:
        condition, values = read.where(selector, connection)
        selected.update((run.run_id, run) for run in runs(connection, condition, values))
    return sorted(selected.values(), key=lambda run: (run.job_id, run.number))


QUEUE_ORDER = "state <> 'RUNNING', state = 'HELD', priority DESC, position, run_id"
"""SQL: the runs that have not ended, as they will run."""


def queue(connection: sqlite3.Connection, first: int = -1) -> list[RunView]:
    """Return the runs that have not ended, in the order in which they will run; at most `first` unless negative."""
    # the view is evaluated only for the runs that are returned
    ids = "SELECT r.id AS run_id FROM runs r JOIN jobs j ON j.id = r.job_id WHERE state <> 'DONE'"
    return runs(connection, f"run_id IN ({ids} ORDER BY {QUEUE_ORDER} LIMIT ?)", [first], QUEUE_ORDER)


def queue_outline(connection: sqlite3.Connection) -> Iterator[QueuedRun]:
    """Yield the runs that `queue` returns, with only the columns that decide what each waits for."""
    return each_run(connection, QueuedRun, "state <> 'DONE'", order=QUEUE_ORDER)


def last_ended(connection: sqlite3.Connection, count: int) -> list[RunView]:
    """Return the runs that ended last, the newest first; without imported ones, and those cancelled before a start."""
    ids = (
        "SELECT r.id FROM runs r JOIN jobs j ON j.id = r.job_id"
        " WHERE r.state = 'DONE' AND j.kind <> 'import' AND j.deleted_at IS NULL"
        " AND NOT (r.outcome = 'CANCELLED' AND r.started_at IS NULL)"
    )
    newest = f"run_id IN ({ids} ORDER BY r.ended_at DESC, r.id DESC LIMIT ?)"
    return runs(connection, newest, [count], "ended_at DESC, run_id DESC")


_FAILED = f"""
SELECT r.id FROM runs r JOIN jobs j ON j.id = r.job_id
WHERE r.ended_at >= ? AND r.state = 'DONE' AND j.kind <> 'import' AND j.deleted_at IS NULL
AND COALESCE(json_extract(j.spec_json, '$.find_max'), '') = ''
AND (r.outcome IN {FAILURES_SQL}
    OR EXISTS (SELECT 1 FROM taints t WHERE t.run_id = r.id AND t.severity = 'invalid' AND r.outcome = 'SUCCEEDED'))
AND NOT EXISTS (
    SELECT 1 FROM runs later WHERE later.job_id = r.job_id AND later.repeat = r.repeat AND later.attempt > r.attempt
    AND later.state = 'DONE')
ORDER BY r.ended_at DESC, r.id DESC LIMIT ?
"""
"""Not the probes of a search, which look for a failure, nor runs whose retry has ended."""


def last_failed(connection: sqlite3.Connection, since: float, count: int) -> list[RunView]:
    """Return the runs that ended since then, in Unix seconds, and failed or are not valid, the newest first."""
    return runs(connection, f"run_id IN ({_FAILED})", [since, count], "ended_at DESC, run_id DESC")


def retried(connection: sqlite3.Connection, failed: Iterable[RunView]) -> set[int]:
    """Return the ids of those of these runs that have a later attempt."""
    ids = ", ".join(str(run.run_id) for run in failed)
    later = "later.job_id = r.job_id AND later.repeat = r.repeat AND later.attempt > r.attempt"
    sql = f"SELECT DISTINCT r.id FROM runs r JOIN runs later ON {later} WHERE r.id IN ({ids})"
    return {run_id for (run_id,) in read.tuples(connection, sql)}


def last_attempts(runs: Iterable[R]) -> list[R]:
    """Return the last attempt, the one that counts, of each repeat of each job. A preflight is attempt 0 of repeat 1.
    Every count of a submission's runs is that of these."""
    last: dict[tuple[int, int], R] = {}
    for run in runs:
        key = (run.job_id, run.repeat)
        if key not in last or run.attempt > last[key].attempt:
            last[key] = run
    return list(last.values())


class JobView(Struct, Generic[R], frozen=True):
    """One job with all its runs, `every_run` with the preflight. Its state is derived from them."""

    every_run: Sequence[R]

    @property
    def runs(self) -> list[R]:
        """Its runs without the preflight."""
        return [run for run in self.every_run if not run.is_preflight]

    @property
    def first(self) -> R:
        """Its first run, for the columns that all share."""
        return self.runs[0]

    @property
    def state(self) -> str:
        """RUNNING while one runs, DONE once all are, HELD if none can start, else QUEUED."""
        states = {run.state for run in self.every_run}
        if State.RUNNING in states or len(states) == 1:
            return State.RUNNING.value if State.RUNNING in states else states.pop()
        return State.QUEUED.value if State.QUEUED in states else State.HELD.value

    @property
    def ok(self) -> bool | None:
        """Whether the last attempt of every repeat succeeded; None while undecided."""
        last = last_attempts(self.runs)
        if any(run.state == State.DONE and not run.succeeded for run in last):
            return False
        return True if all(run.state == State.DONE for run in last) else None

    @property
    def median_s(self) -> float | None:
        """The geometric mean of the runs' medians, as reports have it."""
        return _mean([run.median_s or 0.0 for run in self._counted])

    @property
    def _counted(self) -> list[R]:
        """The runs whose numbers a report shows: the valid ones; without any, those that succeeded."""
        succeeded = [run for run in last_attempts(self.runs) if run.succeeded]
        return [run for run in succeeded if run.valid] or succeeded

    @property
    def _not_succeeded(self) -> list[R]:
        """The runs that count and did not succeed; before them those that are to be stored."""
        ended = [run for run in last_attempts(self.runs) if run.state == State.DONE and not run.succeeded]
        return [*(run for run in self.runs if run.is_unstored), *ended]

    @property
    def ending(self) -> str:
        """Its state unless DONE, and how runs that did not succeed ended, each way once; else SUCCEEDED."""
        endings = list(dict.fromkeys(run.ending for run in self._not_succeeded))
        goes_on = self.state != State.DONE and not any(run.is_unstored for run in self.runs)
        now = next((run.ending for run in self.every_run if run.state == State.RUNNING), self.state)
        return ", ".join([now, *endings] if goes_on else endings or [Outcome.SUCCEEDED])

    @property
    def style(self) -> str:
        """The colour of its ending."""
        styles = [run.style for run in self._not_succeeded]
        return max(styles, key=bool) if styles else "" if self.state != State.DONE else "good"

    @property
    def succeeded(self) -> int:
        """Number of repeats whose last attempt succeeded."""
        return sum(run.succeeded for run in last_attempts(self.runs))

    @property
    def n_valid(self) -> int:
        """Number of repeats whose last attempt succeeded and is valid."""
        return sum(run.succeeded and run.valid for run in last_attempts(self.runs))

    @property
    def mark(self) -> str:
        """MARK if a run that counts succeeded and is not valid, else empty."""
        return MARK if any(run.mark for run in last_attempts(self.runs)) else ""

    @property
    def took_s(self) -> float | None:
        """The geometric mean of the times of its runs that succeeded; without one, the time of the run that is running
        or ended last."""
        mean_s = _mean([run.real_s or 0.0 for run in self._counted])
        timed = [run for run in reversed(self.runs) if run.took_s is not None]
        last_s = max(timed, key=lambda run: run.state == State.RUNNING).took_s if timed else None
        return last_s if mean_s is None else mean_s

    @property
    def repeats(self) -> int:
        """Number of repeats."""
        return len(last_attempts(self.runs))

    def as_json(self: JobView[RunView]) -> dict[str, Any]:
        """Return the job object of docs/json.md."""
        first = self.first.as_json()
        names = (*_OF_JOB, "compile", *self.first.question.options(), "tags")
        derived = {name: getattr(self, name) for name in ("state", "ok", "succeeded", "repeats", "median_s")}
        command = {"command": self.first.command or None, "runs": self.runs}
        return {"job": self.first.job_id} | {name: first[name] for name in names} | derived | command


def jobs(runs: Iterable[R]) -> Iterator[JobView[R]]:
    """Yield the jobs of runs that are ordered by job."""
    for _, members in groupby(runs, key=lambda run: run.job_id):
        yield JobView(list(members))


_OF_JOB = ("group_id", "name", "kind", "workload", "framework", "device", "dtype", "config", "priority", "created_at")


def outcome_style(outcome: str | None) -> str:
    """Return the colour of an outcome (tables.STYLES); none without one, or if a user stopped the run."""
    if outcome in (None, Outcome.CANCELLED, Outcome.SKIPPED):
        return ""
    return "good" if outcome == Outcome.SUCCEEDED else "bad"
