"""The result of a report that compares rows: tables, sentences and notes of its families, the newest first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from queue_runner.analysis.comparison import Family
from queue_runner.analysis.finding import NextStep
from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.monitor.answers.run_query import Context
from queue_runner.reports._common import arm_tables, footnotes, panels
from queue_runner.reports._common.arm_rows import newest_first, row_of
from queue_runner.reports._common.device_peaks import Peaks
from queue_runner.reports._common.document import Result
from queue_runner.tables import Column

NEWEST = 4
"""Maximum number of comparisons shown when no runs were chosen."""


def compared(
    command: str,
    columns: Sequence[Column],
    rows: Sequence[ReportedRun],
    families: Iterable[Family],
    sentences: Callable[[Family], Iterable[str]],
    context: Context,
) -> Result:
    """Return the result of the report that `command` asks for; `sentences` describes a family that is shown."""
    families = newest_first(families)
    visible = families if context.options.chosen else families[:NEWEST]
    marks = footnotes.CaveatMarks(rows, (row for family in visible for row in family.shown), context)
    peaks = Peaks(context)
    tables = [[row_of(family, arm, peaks) for arm in family.arms] for family in families]
    blocks = [
        (arm_tables.sections(family, table, marks), [*sentences(family)])
        for family, table in zip(visible, tables, strict=False)
    ]
    sections, lines = panels.together(blocks)
    shown_rows = [row for table in tables[: len(visible)] for row in table]
    notes = [*footnotes.notes(visible, shown_rows, marks, context), *footnotes.few(shown_rows)]
    if n_older := len(families) - len(visible) + context.n_older:
        older = f"{n_older} older comparison{'s' * (n_older > 1)} not shown"
        text = f"{older}: select with {command} g4, --since 2d or --where config=NAME; csv and json have all"
        notes.append(NextStep(text, f"{command} g4 ({n_older} older)"))
    raw = [row for table in tables for row in table]
    newest_runs = [family.newest_run for family in visible]
    return Result(columns, raw, sections, lines, notes, families=visible, newest_runs=newest_runs)
