"""CPU time of runs by phase, and of their preparation, for the reports of time."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from queue_runner import units
from queue_runner.analysis.grouping import Arm
from queue_runner.analysis.phases import RUN_PHASES, phase_seconds
from queue_runner.analysis.points import PhaseMark
from queue_runner.monitor.answers.run_query import Context, OfRun
from queue_runner.reports._common.document import Section
from queue_runner.tables import Column

_BORDERS = """
SELECT p.run_id, m.value, p.name, p.edge FROM phases p
JOIN metrics m ON m.run_id = p.run_id AND m.offset = p.offset AND m.name = 'cpu_s'
WHERE p.run_id IN ({runs}) ORDER BY p.run_id, p.offset
"""
PARTS = (*RUN_PHASES, "other")
_EXITS = "SELECT run_id, user_s, sys_s, exit_json FROM exits WHERE run_id IN ({runs})"


@dataclass(frozen=True)
class CpuUse:
    """CPU seconds, user and system, of a run by part: the phases, `other`, and `real` for all of it; and its
    preparation, {} where it had none."""

    seconds: Mapping[str, float]
    prepared: Mapping[str, float]

    @property
    def prepared_cpu_s(self) -> float | None:
        """User and system seconds of the preparation."""
        return sum(self.prepared.get(name, 0.0) for name in ("user_s", "sys_s")) if self.prepared else None

    def phases(self) -> str:
        """Return the phases that used any, in words; empty if the run reported none."""
        named = ((name, self.seconds.get(name, 0.0)) for name in PARTS)
        return ", ".join(f"{name} {units.seconds(cpu_s)}" for name, cpu_s in named if cpu_s >= 0.005)


class ArmCpu(NamedTuple):
    """Mean CPU seconds of the runs of an arm by part."""

    label: str
    seconds: Mapping[str, float]


def read(rows: Iterable[OfRun], context: Context) -> dict[int, CpuUse]:
    """Return the CPU time of the runs by run_id."""
    rows = list(rows)
    borders = context.tuples_by_run(_BORDERS, rows)
    return {
        run_id: CpuUse(_by_part(borders.get(run_id, []), user_s, sys_s), _prepared(exit_json))
        for run_id, ((user_s, sys_s, exit_json),) in context.tuples_by_run(_EXITS, rows).items()
    }


def _by_part(borders: Sequence[tuple[float, str, str]], user_s: float | None, sys_s: float | None) -> dict[str, float]:
    """Return seconds by part; {} if the job reported none: the phases nest in CPU time as they do in real time."""
    if not borders or user_s is None or sys_s is None:
        return {}
    total_s = user_s + sys_s
    spent = phase_seconds([PhaseMark(*mark) for mark in borders], total_s)
    return {**spent, "other": total_s - math.fsum(spent.values()), "real": total_s}


def _prepared(text: str) -> dict[str, float]:
    prepared = json.loads(text).get("prepared")
    if not isinstance(prepared, dict):
        return {}
    times = {name: prepared.get(name) for name in ("real_s", "user_s", "sys_s")}
    return {name: float(value) for name, value in times.items() if isinstance(value, int | float)}


def section(arms: Iterable[Arm], context: Context) -> list[Section]:
    """Return the table of mean CPU seconds by phase, a row for each arm; none where no run reported them."""
    arms = list(arms)
    known = read([row for arm in arms for row in arm.shown], context)
    uses = [(arm, [cpu.seconds for row in arm.shown if (cpu := known.get(row.run_id)) and cpu.seconds]) for arm in arms]
    titles = {**dict(zip(PARTS, PARTS, strict=True)), "real": "user + sys"}
    rows = [
        ArmCpu(arm.label, {part: fmean(seconds.get(part, 0.0) for seconds in used) for part in titles})
        for arm, used in uses
        if used
    ]
    shown = [_column(part, titles[part]) for part in titles if any(row.seconds[part] >= 0.005 for row in rows)]
    return [Section("CPU seconds by phase", [Column("label", ""), *shown], rows)] if rows else []


def _column(part: str, title: str) -> Column:
    return Column(part, title, units.seconds, True, value=lambda row: row.seconds[part])
