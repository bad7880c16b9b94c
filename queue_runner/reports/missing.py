"""Grid cells without a valid result, the repeats they lack, and the outcome of their last attempt."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from queue_runner import units
from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.monitor.run_view import JobQuestion, stored_spec
from queue_runner.reports._common import select_runs
from queue_runner.reports._common.document import Context, Result, Row, Section
from queue_runner.submit.missing_runs import Gap, look
from queue_runner.tables import Column

NAME = "missing"
HELP = "grid cells without a valid result, and why; --submit queues them again"
_OF_A_GRID = "{chosen} AND kind <> 'import' AND COALESCE(json_extract(spec_json, '$.find_max'), '') = ''"
SQL = (
    f"SELECT {select_runs.ASKED}, run_id, run, job_id, group_id, repeat, spec_hash, name,"
    f" workload, framework, device, compile, dtype, config, spec_json FROM v_run WHERE {_OF_A_GRID}"
    " ORDER BY job_id, number"
)
_NEWEST_GROUPS = (
    f"SELECT id FROM groups g WHERE EXISTS (SELECT 1 FROM v_run WHERE group_id = g.id AND {_OF_A_GRID})"
    " ORDER BY id DESC LIMIT "
)
ONLY = f"group_id = ({_NEWEST_GROUPS} 1)"


def _ranges(jobs: Sequence[int]) -> str:
    """Return ascending numbers with those in a row as one: "1-480 512"."""
    steps = [k for k in range(1, len(jobs)) if jobs[k] != jobs[k - 1] + 1]
    parts = [jobs[a:b] for a, b in pairwise([0, *steps, len(jobs)])]
    return " ".join(f"{part[0]}-{part[-1]}" if len(part) > 2 else " ".join(map(str, part)) for part in parts)


COLUMNS = (
    Column("label", "cell", flexible=True),
    Column("jobs", "jobs", _ranges, flexible=True),
    Column("wanted", "requested", units.count, True),
    Column("valid", "valid", units.count, True),
    Column("coming", "queued", units.count, True),
    Column("missing", "missing", units.count, True),
    Column("run", "last run"),
    Column("ending", "outcome"),
    Column("reason", "reason"),
)
SHOWN = COLUMNS[:6]
MOST_REASONS = 10
"""Maximum number of last attempts listed below the table; csv and json have all."""


def finish(rows: list[ReportedRun], context: Context) -> Result:
    """Return a row for each incomplete cell, of the newest group if nothing was chosen."""
    lines = []
    if rows and not context.options.chosen:
        newest, *others = [row["id"] for row in context.read(f"{_NEWEST_GROUPS} 2")]
        if others:
            lines.append(f"newest group only, g{newest}: select others by ID (g4 g5)")
    if not rows:
        return Result(COLUMNS, [], lines=[select_runs.nothing(context, "of a grid")])
    incomplete = look(context.connection, rows)
    raw = [_row(gap) for gap in incomplete.gaps]
    lacks = sum(gap.repeats - gap.valid for gap in incomplete.gaps)
    if not incomplete.gaps:
        runs = (
            "the requested run has"
            if incomplete.repeats == 1
            else f"{units.count(incomplete.repeats)} requested runs have"
        )
        lines.append(f"nothing is missing: {'all ' * (incomplete.repeats > 1)}{runs} a valid result")
    else:
        cells = (
            f"{units.count(len(incomplete.gaps))} of {units.count(incomplete.cells)} cell{'s' * (incomplete.cells > 1)}"
        )
        lines.append(f"{units.count(lacks)} of {units.count(incomplete.repeats)} runs lack a valid result, in {cells}")
        if any(row["missing"] for row in raw):
            ids = " ".join(["missing", *(selector.text for selector in context.options.selectors)])
            lines.append(f"mpsq report {ids} --submit queues the missing runs")
    if incomplete.resumed:
        which = "valid result is of a resumed run" if incomplete.resumed == 1 else "valid results are of resumed runs"
        lines.append(f"{units.count(incomplete.resumed)} {which}, which reports do not pool with complete runs")
    sections = [Section("", SHOWN, raw, _reasons(raw))] if raw else []
    return Result(COLUMNS, raw, sections, lines)


def _row(gap: Gap) -> Row:
    last = gap.last
    first = gap.first
    compiled = None if first.compile is None else bool(first.compile)
    columns = (first.framework, first.device, compiled, first.dtype, first.config)
    question = JobQuestion(*columns, stored_spec(first.spec_json))
    return {
        "label": " ".join(filter(None, [select_runs.subject(first), str(question)])),
        "jobs": list(gap.jobs),
        "wanted": gap.repeats,
        "valid": gap.valid,
        "coming": gap.coming,
        "missing": gap.missing,
        "run": last.run if last else None,
        "ending": last.ending if last else None,
        "reason": _reason(last) if last else None,
    }


def _reasons(raw: Sequence[Row]) -> list[str]:
    """Return the outcomes of the last attempts, one line each."""
    outcomes = [
        f"{row['run']} {row['ending']}" + (f": {row['reason']}" if row["reason"] else "") for row in raw if row["run"]
    ]
    if (n_more := len(outcomes) - MOST_REASONS) > 0:
        outcomes[MOST_REASONS:] = [f"... and {units.count(n_more)} more (--json lists all)"]
    return outcomes


def _reason(last: ReportedRun) -> str | None:
    if last.outcome == "SUCCEEDED":
        return f"not valid: {(last.taints or '').replace(',', ', ')}"
    return last.reason or None
