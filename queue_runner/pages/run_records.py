"""What the page knows of the runs of a report, read at once: rows, taints, phases, samples, code, fingerprints."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from queue_runner.analysis import comparison
from queue_runner.analysis.comparison import Family
from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.reports import contexts
from queue_runner.reports._common import prepare, select_runs
from queue_runner.reports._common.arm_rows import newest_first
from queue_runner.reports._common.document import Context, Options, Result, Row
from queue_runner.reports.devices import NEWEST


@dataclass(frozen=True)
class RunRecords:
    """The arms of a report and what is stored of their runs, by run_id."""

    context: Context
    families: Sequence[Family]
    taints: Mapping[int, Sequence[Row]]
    marks: Mapping[int, Sequence[Row]]
    samples: Mapping[int, Sequence[tuple[float, Mapping[str, Any]]]]

    @property
    def runs(self) -> list[ReportedRun]:
        """All runs of the arms, each once."""
        return [*{row.run_id: row for family in self.families for arm in family.arms for row in arm.runs}.values()]

    def details(self) -> dict[int, list[str]]:
        """Return the taints of each run in words."""
        return {run_id: [f"{one['kind']}: {one['detail']}" for one in found] for run_id, found in self.taints.items()}


def gather(result: Result, connection: Any, options: Options) -> RunRecords:
    """Read what is stored of the runs of a report. Raises: UsageError as the report itself."""
    condition, values = select_runs.condition(connection, options)
    context = Context(options, connection, condition, values)
    families = list(result.families) or _families(connection, options)
    runs = [row for family in families for arm in family.arms for row in arm.runs]
    if not runs:
        return RunRecords(context, [], {}, {}, {})
    samples = context.by_run("SELECT run_id, at, data_json FROM conditions WHERE run_id IN ({runs}) ORDER BY at", runs)
    return RunRecords(
        context,
        families,
        context.by_run("SELECT run_id, kind, severity, detail FROM taints WHERE run_id IN ({runs})", runs),
        context.by_run("SELECT run_id, t_s, name, edge FROM phases WHERE run_id IN ({runs}) ORDER BY offset", runs),
        {run_id: [(row["at"], json.loads(row["data_json"])) for row in rows] for run_id, rows in samples.items()},
    )


def _families(connection: Any, options: Options) -> list[Family]:
    """Return the chosen runs as arms, for a report that compares none itself."""
    families: list[Family] = []
    for context in contexts(connection, replace(options, vs={}, group_by=()), NEWEST):
        sql = f"SELECT {prepare.RUN} FROM v_run WHERE {{chosen}} ORDER BY job_id, number"
        rows = prepare.prepare(context.runs(sql), context)
        families = newest_first(comparison.families(rows, prepare.question(rows, context))) if rows else []
        if sum(family.newest_run >= context.since_run for family in families) >= NEWEST:
            break
    return families if options.chosen else families[:NEWEST]
