"""What the log of a foreign trainer tells of its real time, where no phases were reported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from queue_runner import units
from queue_runner.analysis.grouping import Arm
from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.monitor.answers.run_query import Context

FIRST, WITH_EVAL, OTHERS, REST = "1st iter", "with eval", "other iters", "not in log"
EXPLAINED = (
    f"{FIRST}: the first iteration in the log, with compilation and any evaluation; {WITH_EVAL}: later iterations with "
    f"an evaluation; {OTHERS}: all others in the log; {REST}: the rest of the real time"
)

_SQL = (
    "SELECT run_id, phase, COUNT(*), SUM(dur_s), MIN(i), MAX(i) FROM v_iteration WHERE run_id IN ({runs})"
    " GROUP BY run_id, phase"
)
_PART = {"eval_iter": WITH_EVAL, "measure": OTHERS}


class LoggedPhase(NamedTuple):
    """The iterations of one phase that a log shows: their number, their sum, the first and the last."""

    phase: str
    n: int
    sum_s: float
    first_i: int
    last_i: int


Logs = Mapping[int, Sequence[LoggedPhase]]


@dataclass(frozen=True)
class LoggedTimes:
    """Mean seconds by part over the `runs` of an arm, `real` last; None is unknown."""

    runs: Sequence[str]
    seconds: Mapping[str, float | None]
    notes: Sequence[str]


def read(rows: Sequence[ReportedRun], context: Context) -> Logs:
    """Return by run the iterations that its log shows, counted and summed by phase; of runs without phases only."""
    without = [row for row in rows if row.other_s is None and row.n_iters]
    phases = context.tuples_by_run(_SQL, without) if without else {}
    return {run_id: [LoggedPhase(*values) for values in rows] for run_id, rows in phases.items()}


def of(arm: Arm, logs: Logs) -> LoggedTimes | None:
    """Return what the logs tell of an arm; None if it has runs that reported phases, or none with iterations.

    Runs whose real time is known come first: of the others the rest is unknown.
    """
    if any(row.other_s is not None for row in arm.shown):
        return None
    runs = [row for row in arm.shown if row.run_id in logs]
    runs = [row for row in runs if row.real_s is not None] or runs
    if not runs:
        return None
    sums = [_sums(logs[row.run_id]) for row in runs]
    parts: dict[str, float | None] = {part: _mean([by_part[part] for by_part in sums]) for part in sums[0]}
    times = [row.real_s for row in runs if row.real_s is not None]
    real_s = _mean(times) if len(times) == len(runs) else None
    parts[REST] = None if real_s is None else real_s - sum(x for x in parts.values() if x is not None)
    notes = [note for row in runs[:5] for note in _notes(row, logs[row.run_id])]
    return LoggedTimes([row.run for row in runs], {**parts, "real": real_s}, notes)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _sums(phases: Sequence[LoggedPhase]) -> dict[str, float]:
    sums = dict.fromkeys((FIRST, WITH_EVAL, OTHERS), 0.0)
    for phase in phases:
        sums[_PART.get(phase.phase, FIRST)] += phase.sum_s
    return sums


def _notes(row: ReportedRun, phases: Sequence[LoggedPhase]) -> list[str]:
    """Say how many iterations the log does not show, and what they would take at the median of those that it does."""
    n_logged = sum(phase.n for phase in phases)
    n_passed = max(phase.last_i for phase in phases) - min(phase.first_i for phase in phases) + 1
    notes = [f"{row.run}: real time unknown"] if row.real_s is None else []
    if n_passed <= n_logged:
        return notes
    text = f"{row.run}: its log shows {units.count(n_logged)} of {units.count(n_passed)} iterations"
    if row.median_s is not None:
        rest = units.number((n_passed - n_logged) * row.median_s)
        text += f"; at its median of {units.ms(row.median_s)} ms the others would take {rest} s"
    return [*notes, text]
