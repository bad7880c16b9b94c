"""Divergence of losses: the loss of each iteration against a baseline of the same seed, data and settings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple

from msgspec import Struct

from queue_runner import units
from queue_runner.analysis.comparison import Family, with_baselines
from queue_runner.analysis.grouping import Arm, taints
from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.analysis.stats import by_key
from queue_runner.model import Outcome
from queue_runner.monitor.answers import prepare, select_runs
from queue_runner.monitor.answers.run_query import Context
from queue_runner.reports._common import arm_tables, footnotes, losses
from queue_runner.reports._common.arm_rows import newest_first
from queue_runner.reports._common.columns import columns, through
from queue_runner.reports._common.document import Block, Result, Section, together
from queue_runner.reports._common.losses import LEVELS, format_difference, relative
from queue_runner.tables import Column

NAME = "numerics"
HELP = "where losses diverge from a baseline's, by iteration: device, dtype, framework"
READS = ("vs", "iters")
SQL = (
    f"SELECT {prepare.RUN}, data_sha256 FROM v_run WHERE {{chosen}} AND state = 'DONE' AND n_iters > 0"
    " ORDER BY job_id, number"
)


class Divergence(Struct, frozen=True, eq=False):
    """A run against the baseline run of the same seed. `points`: i, loss, baseline loss, relative difference as of
    `losses.relative`."""

    arm: Arm
    run: ReportedRun
    baseline: ReportedRun
    points: Sequence[tuple[int, float, float, float | None]]

    def first(self, level: float) -> int | None:
        """Return the first iteration whose difference exceeds the level."""
        return next((i for i, _, _, off in self.points if off is not None and off > level), None)

    @property
    def greatest(self) -> tuple[int, float | None]:
        """The iteration with the greatest difference; None if no difference is known."""
        known = [(i, off) for i, _, _, off in self.points if off is not None]
        return max(known, key=lambda point: point[1], default=(self.points[0][0], None))

    def first_finite(self, ours: bool) -> int | None:
        """Return the first iteration with one finite loss: the run's, or else the baseline's."""
        finite = ((i, math.isfinite(a), math.isfinite(b)) for i, a, b, _ in self.points)
        return next((i for i, a, b in finite if (a, b) == (ours, not ours)), None)


class LossPair(NamedTuple):
    """The losses of one iteration in a run and in its baseline."""

    divergence: Divergence
    i: int
    loss: float
    baseline_loss: float
    relative: float | None


class WorstRun(NamedTuple):
    """The run of an arm with the largest difference, of `n_runs`."""

    label: str
    n_runs: int
    worst: Divergence


COLUMNS = columns(
    Column("workload", "workload", value=attrgetter("divergence.run.subject")),
    *through("divergence.run", "config"),
    *through("divergence.arm", "label"),
    *through("divergence.run", "framework framework_version device compile dtype"),
    Column("seed", "seed", units.count, True, value=attrgetter("divergence.run.seed")),
    *through("divergence.run", "run"),
    Column("baseline_run", "baseline", value=attrgetter("divergence.baseline.run")),
    "i loss",
    Column("baseline_loss", "baseline loss", units.loss, True),
    Column("relative", "relative difference", units.number, True),
)


def _above(level: float) -> Column:
    title = f"> {units.percent(level, 1)}"
    return Column(f"above{level:g}", title, right=True, value=lambda row: _first(row.worst, level))


_SHOWN = (
    arm_tables.LABEL,
    Column("n_runs", "runs", units.count, True),
    Column("n_iters", "iters", units.count, True, value=lambda row: len(row.worst.points)),
    *map(_above, LEVELS),
    Column("greatest", "max", format_difference, True, value=lambda row: row.worst.greatest[1]),
    Column("last", "last", format_difference, True, value=lambda row: row.worst.points[-1][3]),
)
_UNUSABLE = "log_rewritten"
"""The only taint that invalidates losses."""
_OF_TIMES = {"contended", "slept", "suspended", "swapping"}
"""Taints that make the times of a run invalid, contended in earlier versions; the losses are valid."""
NEWEST = 4
"""Maximum number of comparisons made when no runs were chosen."""


def finish(stored: list[ReportedRun], context: Context) -> Result:
    """Build a table for each comparison, and rows of all iterations for csv and json.

    Raises: UsageError when --vs is invalid.
    """
    runs = prepare.prepare(stored, context)
    known = {run.run_id: run for run in runs}
    # losses of a failed run are usable up to its end
    rows = [run.changed(valid=_UNUSABLE not in taints(run), outcome=Outcome.SUCCEEDED) for run in runs]
    families = newest_first(with_baselines(rows, prepare.question(rows, context))) if rows else []
    blocks: list[Block] = []
    raw: list[LossPair] = []
    made: list[Divergence] = []
    newest_runs: list[int] = []
    n_older = context.n_older
    for family in families:
        if len(blocks) >= NEWEST and not context.options.chosen:
            n_older += len(family.arms) > 1
            continue
        base = family.baseline or (None if family.why else family.arms[0])  # there may be no times to choose one by
        divergences = _divergences(family, base, context) if base is not None else []
        if base is None or not divergences:
            continue
        raw += [LossPair(divergence, *point) for divergence in divergences for point in divergence.points]
        made += divergences
        newest_runs.append(family.newest_run)
        blocks.append(([_section(family, base, divergences)], [*_findings(base, divergences)]))
    sections, lines = together(blocks)
    if not raw:
        which = "with comparable losses (two rows of the same settings, seed and data)"
        return Result(COLUMNS, [], lines=[select_runs.nothing(context, which)])
    older = [f"{n_older} older comparisons not made: select with mpsq report numerics g4"] if n_older else []
    return Result(COLUMNS, raw, sections, lines, [*_notes(made, known), *older], newest_runs=newest_runs)


def _divergences(family: Family, base: Arm, context: Context) -> list[Divergence]:
    """Compare each run, also further ones of the baseline, with the baseline's first run of the same seed and data."""
    known: dict[tuple[Any, ...], ReportedRun] = {}
    for row in base.used:
        known.setdefault((row.seed, row.data_sha256), row)
    read = cache(lambda run_id: losses.by_iteration(run_id, context))
    divergences = []
    for arm in [base, *(arm for arm in family.arms if arm is not base)]:
        for row in arm.used:
            against = known.get((row.seed, row.data_sha256))
            if against is None or against.run_id == row.run_id:
                continue
            a, b = read(row.run_id), read(against.run_id)
            points = [(i, a[i], b[i], relative(a[i], b[i])) for i in sorted(a.keys() & b.keys())]
            if points:
                divergences.append(Divergence(arm, row, against, points))
    return divergences


def _section(family: Family, base: Arm, divergences: Sequence[Divergence]) -> Section:
    """Build a row for each arm, from its run with the largest difference, with the number of runs."""
    rows = []
    for arm, group in by_key(divergences, lambda divergence: divergence.arm).items():
        label = f"{arm.label}, rerun" if arm is base else arm.label
        rows.append(WorstRun(label, len(group), _worst(group)))
    why = f" ({family.why})" if family.why else ""
    return Section(arm_tables.caption(family), _SHOWN, rows, [f"relative to {base.label}{why}"])


def _worst(group: Sequence[Divergence]) -> Divergence:
    known = [divergence for divergence in group if divergence.greatest[1] is not None]
    return max(known or group, key=lambda divergence: divergence.greatest[1] or 0.0)


def _first(divergence: Divergence, level: float) -> str:
    first = divergence.first(level)
    return "never" if first is None else units.count(first)


def _findings(base: Arm, divergences: Sequence[Divergence]) -> Iterable[str]:
    floor = [divergence for divergence in divergences if divergence.arm is base]
    if floor:
        most = _worst(floor).greatest[1] or 0.0
        same = "is bitwise reproducible" if most == 0 else f"differs from itself by up to {format_difference(most)}"
        n_runs = len({run.run_id for divergence in floor for run in (divergence.run, divergence.baseline)})
        yield f"{base.label} {same} ({n_runs} runs)"
    for arm in dict.fromkeys(divergence.arm for divergence in divergences if divergence.arm is not base):
        worst = _worst([divergence for divergence in divergences if divergence.arm is arm])
        yield f"{arm.label} {_finding(worst)}"


def _finding(worst: Divergence) -> str:
    if (i := worst.first_finite(ours=False)) is not None:
        return f"has a NaN or infinite loss from iteration {units.count(i)} on, where the baseline's is finite"
    if (i := worst.first_finite(ours=True)) is not None:
        return f"has a finite loss from iteration {units.count(i)} on, where the baseline's is NaN or infinite"
    both = [i for i, _, _, difference in worst.points if difference is None]
    n = len(worst.points) - len(both)
    if not n:
        return "has no finite loss, and neither has the baseline"
    at, most = worst.greatest
    most = most or 0.0
    if most <= LEVELS[0]:
        over = f"over {units.count(n)} iteration{'s' if n > 1 else ''}"
        over += f"; both are NaN or infinite from {units.count(both[0])} on" if both else ""
        same = f"stays within {format_difference(most)} of" if most else "equals"
        return f"{same} the baseline {over}"
    levels = [f"{units.percent(level, 1)} at iteration {_first(worst, level)}" for level in LEVELS if most > level]
    off = worst.points[-1][3]
    last = f"{format_difference(off)} at the end" if off is not None else "no finite loss at the end"
    highest = f"maximum {format_difference(most)} (at {units.count(at)})"
    return f"diverges from the baseline by more than {', '.join(levels)}; {highest}, {last}"


def _notes(divergences: Sequence[Divergence], stored: Mapping[int, ReportedRun]) -> Iterable[str]:
    levels = " and ".join(f"> {units.percent(level, 1)}" for level in LEVELS)
    yield f"{levels}: first iteration with a larger difference"
    yield "difference: |loss - baseline's| / |baseline's|, same iteration, seed and data; of several runs the worst"
    if any(divergence.run.dtype != divergence.baseline.dtype for divergence in divergences):
        yield "reduced precision diverges by rounding alone: eps is 0.78 % in bf16, 0.098 % in fp16"
    frameworks = {row.framework for divergence in divergences for row in (divergence.run, divergence.baseline)}
    if len(frameworks) > 1:
        yield "dropout masks differ between frameworks: compare the arithmetic alone with --set dropout=0"
    used = dict.fromkeys(row.run_id for divergence in divergences for row in (divergence.run, divergence.baseline))
    rows = [stored[run_id] for run_id in used]
    if failed := [f"{row.run} {row.outcome}" for row in rows if row.outcome != Outcome.SUCCEEDED]:
        yield f"losses up to their end: {footnotes.named(failed)}"
    if invalid := sorted({kind for row in rows if not row.valid for kind in taints(row)} & _OF_TIMES):
        yield f"runs with invalid times ({', '.join(invalid)}) are included: their losses are valid"
