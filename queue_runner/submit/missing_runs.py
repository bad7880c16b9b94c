"""Missing repeats of a grid: those without a successful, valid run.

A later result counts wherever it came from: a job of g4 that g7 has completed is no longer missing in g4. A run that
the user has cancelled is not missing, until it is retried; nor is one that the end of a --budget skipped. A result
resumed from a checkpoint counts too, although comparisons keep it apart: the report gives their number.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence

from msgspec import Struct

from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.analysis.stats import by_key
from queue_runner.model import Outcome, State
from queue_runner.store import read


class Gap(Struct, frozen=True):
    """An incomplete cell of a grid. The user has `cancelled` some of its repeats; the end of the budget skipped the
    runs `beyond_budget`. Of the other `repeats`, `coming` wait or run, and `resumed` counts the valid ones whose only
    result began from a checkpoint. `last` is the newest attempt without a valid result, None if none has ended."""

    jobs: tuple[int, ...]
    first: ReportedRun
    repeats: int
    cancelled: int
    beyond_budget: Sequence[str]
    valid: int
    coming: int
    resumed: int
    last: ReportedRun | None

    @property
    def missing(self) -> int:
        """Number of repeats that have not been submitted again."""
        return max(self.repeats - self.valid - self.coming, 0)


class MissingRuns(Struct, frozen=True):
    """The incomplete cells, `gaps`, of a total of `cells` with `repeats`; `cancelled`, `beyond_budget` and `resumed` as
    in Gap, over all cells."""

    gaps: Sequence[Gap]
    cells: int
    repeats: int
    cancelled: int
    beyond_budget: Sequence[str]
    resumed: int


OF_A_GRID = "kind <> 'import' AND COALESCE(json_extract(spec_json, '$.find_max'), '') = ''"
"""The runs whose results may be missing."""


def lacking(connection: sqlite3.Connection, groups: Sequence[int]) -> list[int]:
    """Return those of the submissions that lack runs which nobody has submitted again."""
    return [group for group in groups if _missing_cells(connection, _grid_runs(connection, "group_id = ?", group))]


def lacking_jobs(connection: sqlite3.Connection, jobs: Sequence[int]) -> set[int]:
    """Return those of the jobs that lack runs which nobody has submitted again."""
    runs = _grid_runs(connection, "job_id IN (SELECT value FROM json_each(?))", json.dumps(jobs)) if jobs else []
    cells = _missing_cells(connection, runs)
    return {run.job_id for run in runs if run.spec_hash in cells}


def _grid_runs(connection: sqlite3.Connection, condition: str, value: object) -> list[ReportedRun]:
    names = ("spec_hash", "group_id", "job_id", "repeat", "run_id", "run")
    sql = f"SELECT {', '.join(names)} FROM v_run WHERE {condition} AND {OF_A_GRID} ORDER BY job_id, number"
    return [ReportedRun(**dict(zip(names, row, strict=True))) for row in read.tuples(connection, sql, [value])]


def _missing_cells(connection: sqlite3.Connection, runs: Sequence[ReportedRun]) -> set[str]:
    """Return the cells of these runs, by hash, that lack some."""
    return {gap.first.spec_hash for gap in look(connection, runs).gaps if gap.missing}


def look(connection: sqlite3.Connection, chosen: Sequence[ReportedRun]) -> MissingRuns:
    """Return the missing runs in the cells of these runs. Jobs that repeat another one of them only fill its cell."""
    ids = {run.job_id for run in chosen}
    sql = "SELECT id, rerun_of FROM jobs WHERE rerun_of IS NOT NULL AND id IN (SELECT value FROM json_each(?))"
    repeated = {job for job, old in read.tuples(connection, sql, [json.dumps([*ids])]) if old in ids}
    chosen = [run for run in chosen if run.job_id not in repeated]
    cells = by_key(chosen, lambda run: run.spec_hash)
    since = min((run.job_id for run in chosen), default=0)
    jobs = _cells_of_jobs(connection, [*cells], since)
    sql = (
        f"SELECT {', '.join(_COLUMNS)} FROM v_run WHERE kind <> 'import' AND job_id IN (SELECT value FROM json_each(?))"
        " ORDER BY job_id, number"
    )
    later: dict[str, list[ReportedRun]] = {digest: [] for digest in cells}
    for row in read.tuples(connection, sql, [json.dumps([*jobs])]):
        run = ReportedRun(**dict(zip(_COLUMNS, row, strict=True)))
        for digest in jobs[run.job_id]:
            later[digest].append(run)
    gaps = [_gap(runs, later[digest]) for digest, runs in cells.items()]
    return MissingRuns(
        gaps=[gap for gap in gaps if gap.valid < gap.repeats],
        cells=len(gaps),
        repeats=sum(gap.repeats for gap in gaps),
        cancelled=sum(gap.cancelled for gap in gaps),
        beyond_budget=[run for gap in gaps for run in gap.beyond_budget],
        resumed=sum(gap.resumed for gap in gaps),
    )


def _cells_of_jobs(connection: sqlite3.Connection, cells: Sequence[str], since: int) -> dict[int, set[str]]:
    """Return the cells, by hash, that each job from `since` on answers: its own, and those of the job that it repeats,
    even if it has another time limit."""
    sql = (
        "SELECT id, spec_hash, rerun_of FROM jobs WHERE id >= ?"
        " AND (rerun_of IS NOT NULL OR spec_hash IN (SELECT value FROM json_each(?))) ORDER BY id"
    )
    jobs: dict[int, set[str]] = {}
    for job, digest, old in read.tuples(connection, sql, [since, json.dumps(cells)]):
        jobs[job] = {digest}.intersection(cells) | jobs.get(old, set())
    return {job: digests for job, digests in jobs.items() if digests}


_COLUMNS = (
    *("spec_hash", "job_id", "repeat", "attempt", "run_id", "run", "state", "outcome", "exit_code", "signal", "reason"),
    *("valid", "taints", "resumed_from"),
)


def _gap(runs: Sequence[ReportedRun], known: Sequence[ReportedRun]) -> Gap:
    first = min(run.job_id for run in runs)
    repeats: dict[tuple[int, int | None], list[ReportedRun]] = {}
    for row in known:
        if row.job_id >= first:
            repeats.setdefault((row.job_id, row.repeat), []).append(row)
    good = {key for key, runs in repeats.items() if any(_is_valid(row) for row in runs)}
    whole = {key for key, runs in repeats.items() if any(_is_valid(row) and not row.resumed_from for row in runs)}
    open_ = {key for key, runs in repeats.items() if any(row.state != State.DONE for row in runs)}
    bad = [row for runs in repeats.values() for row in runs if row.state == State.DONE and not _is_valid(row)]
    requested = {(run.job_id, run.repeat) for run in runs}
    last = {(row.job_id, row.repeat): row for row in sorted(known, key=lambda row: row.run_id)}
    cancelled = {key for key in requested - good if last[key].outcome == Outcome.CANCELLED}
    late = {key: last[key].run for key in sorted(requested - good) if _is_beyond_budget(last[key])}
    bad = [row for row in bad if (row.job_id, row.repeat) not in {*cancelled, *late}]
    return Gap(
        jobs=tuple(sorted({run.job_id for run in runs})),
        first=runs[0],
        repeats=len(requested - cancelled - late.keys()),
        cancelled=len(cancelled),
        beyond_budget=[*late.values()],
        valid=len(good),
        coming=len(open_ - good),
        resumed=len(good - whole),
        last=max(bad, key=lambda row: row.run_id, default=None),
    )


def _is_beyond_budget(row: ReportedRun) -> bool:
    """Return whether the end of the --budget skipped the run."""
    return row.ending == f"{Outcome.SKIPPED}(budget)"


def _is_valid(row: ReportedRun) -> bool:
    return row.outcome == Outcome.SUCCEEDED and bool(row.valid)
