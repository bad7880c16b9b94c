"""Grid cells without a valid result, the repeats they lack, and the outcome of their last attempt."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from queue_runner import units
from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.lanes import listed
from queue_runner.model import Outcome
from queue_runner.monitor.answers import select_runs
from queue_runner.monitor.answers.run_query import Context, Options
from queue_runner.monitor.run_view import JobQuestion, stored_spec
from queue_runner.reports._common.document import Result, Section
from queue_runner.spec import more_time
from queue_runner.store import read
from queue_runner.submit.missing_runs import OF_A_GRID, Gap, look
from queue_runner.tables import Column

NAME = "missing"
HELP = "rows without a valid result, and why; mpsq rerun --missing queues them"
_OF_A_GRID = f"{{chosen}} AND {OF_A_GRID}"
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


COLUMNS = (
    Column("label", "row", flexible=True, value=lambda gap: _label(gap)),
    Column("jobs", "jobs", lambda jobs: listed(jobs).replace(",", " "), flexible=True, value=lambda gap: gap.jobs),
    Column("wanted", "requested", units.count, True, value=lambda gap: gap.repeats),
    Column("valid", "valid", units.count, True),
    Column("coming", "queued", units.count, True),
    Column("missing", "missing", units.count, True),
    Column("run", "last run", value=lambda gap: gap.last and gap.last.run),
    Column("ending", "outcome", value=lambda gap: gap.last and gap.last.ending),
    Column("reason", "reason", value=lambda gap: gap.last and _reason(gap.last)),
)
SHOWN = COLUMNS[:6]
MOST_REASONS = 10
"""Maximum number of last attempts listed below the table; csv and json have all."""


def finish(rows: list[ReportedRun], context: Context) -> Result:
    """Return a row for each incomplete cell, of the newest group if nothing was chosen."""
    lines, notes = [], []
    if rows and not context.options.chosen:
        newest, *others = [group for (group,) in context.tuples(f"{_NEWEST_GROUPS} 2")]
        if others:
            lines.append(f"newest group only, g{newest}: mpsq report missing g{others[0]} shows the one before")
    if not rows:
        return Result(COLUMNS, [], lines=[select_runs.nothing(context, "that was submitted")])
    incomplete = look(context.connection, rows)
    gaps = incomplete.gaps
    lacks = sum(gap.repeats - gap.valid for gap in gaps)
    if not gaps and not incomplete.repeats:
        lines.append("nothing is missing")
    elif not gaps:
        n = incomplete.repeats
        runs = f"all {units.count(n)} requested runs have" if n > 1 else "the requested run has"
        lines.append(f"nothing is missing: {runs} a valid result")
    else:
        runs = f"{units.count(lacks)} of {units.counted(incomplete.repeats, 'run')} {'lacks' if lacks == 1 else 'lack'}"
        where = f"{units.count(len(gaps))} of {units.counted(incomplete.cells, 'row')}"
        lines.append(f"{runs} a valid result, in {where}")
        if any(gap.missing for gap in gaps):
            command = f"mpsq rerun {' '.join(_ids(context.options, rows, gaps))} --missing"
            notes.append(f"{command} queues the missing runs")
            late = [gap.jobs[-1] for gap in gaps if gap.missing and gap.last and gap.last.outcome == Outcome.TIMED_OUT]
            if timeout_s := read.longest_timeout_s(context.connection, late):
                jobs = " ".join(map(str, late[:MOST_REASONS]))
                notes.append(f"{more_time(jobs, timeout_s)} gives more time to runs that timed out")
    if incomplete.cancelled:
        lines.append(f"not counted: {units.counted(incomplete.cancelled, 'run')} that you cancelled")
    if skipped := incomplete.beyond_budget:
        runs = f"{units.counted(len(skipped), 'run')} that did not start within the budget"
        lines.append(f"not counted: {runs}; mpsq why {skipped[0]} says how to add rounds")
    if incomplete.resumed:
        which = "result comes from a resumed run" if incomplete.resumed == 1 else "results come from resumed runs"
        lines.append(f"{units.count(incomplete.resumed)} valid {which}, which reports do not pool with complete runs")
    sections = [Section("", SHOWN, gaps, _reasons([gap.last for gap in gaps if gap.last]))] if gaps else []
    return Result(COLUMNS, gaps, sections, lines, notes=notes)


def _ids(options: Options, rows: Sequence[ReportedRun], gaps: Sequence[Gap]) -> list[str]:
    """Return what selects these jobs in a command without --where, --since and --tag."""
    if not options.chosen:
        return [f"g{rows[-1].group_id}"]
    odd = any(each.tags or each.text.startswith("-") for each in options.selectors)
    if odd or options.where or options.since is not None:
        return [str(job) for gap in gaps if gap.missing for job in gap.jobs]
    return [shlex.quote(each.text) if each.name else each.text for each in options.selectors]


def _label(gap: Gap) -> str:
    first = gap.first
    compiled = None if first.compile is None else bool(first.compile)
    columns = (first.framework, first.device, compiled, first.dtype, first.config)
    question = JobQuestion(*columns, stored_spec(first.spec_json))
    return " ".join(filter(None, [select_runs.subject(first), str(question)]))


def _reasons(attempts: Sequence[ReportedRun]) -> list[str]:
    """Return the outcomes of the last attempts, one line each."""
    outcomes = [f"{run.run} {_fate(run)}" for run in attempts]
    if (n_more := len(outcomes) - MOST_REASONS) > 0:
        outcomes[MOST_REASONS:] = [f"... and {units.count(n_more)} more (--json lists all)"]
    return outcomes


def _fate(last: ReportedRun) -> str:
    return f"{last.ending}, but {_reason(last)}" if last.outcome == "SUCCEEDED" else last.fate


def _reason(last: ReportedRun) -> str | None:
    if last.outcome == "SUCCEEDED":
        return f"not valid: {(last.taints or '').partition(',')[0]}"
    return last.reason or None
