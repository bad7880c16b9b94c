"""The result of a report that compares rows: tables, sentences and notes of its families, the newest first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from queue_runner import units
from queue_runner.analysis.comparison import Family
from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.monitor.answers.run_query import Context
from queue_runner.reports._common import arm_tables, footnotes
from queue_runner.reports._common.arm_rows import newest_first, row_of
from queue_runner.reports._common.device_peaks import Peaks
from queue_runner.reports._common.document import Result, together
from queue_runner.tables import Column, elide

NEWEST = 4
"""Maximum number of comparisons shown when no runs were chosen."""
MOST_NAMED = 3
"""Maximum number of submissions that a title or a note names."""

MOST_COMMAND = 30
"""Columns of a command line in a note, beyond which its middle is left out."""


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
    tables = [[row_of(family, arm, peaks, at) for arm in family.arms] for at, family in enumerate(families, 1)]
    blocks = [
        (arm_tables.sections(family, table, marks), [*sentences(family)])
        for family, table in zip(visible, tables, strict=False)
    ]
    if sum(bool(sections) for sections, _ in blocks) > 1:
        blocks = [
            (
                [replace(table, title=f"{table.title} ({_submissions(family)})") for table in sections[:1]]
                + sections[1:],
                lines,
            )
            for family, (sections, lines) in zip(visible, blocks, strict=True)
        ]
    sections, lines = together(blocks)
    shown_rows = [row for table in tables[: len(visible)] for row in table]
    notes = [*footnotes.notes(visible, shown_rows, marks, context), *footnotes.few(shown_rows, visible)]
    if older := _older(rows, families[len(visible) :], context):
        named = units.listed([*_named(older[:MOST_NAMED], context), *map(str, older[MOST_NAMED:])], MOST_NAMED)
        what = f"older submission{'s' * (len(older) > 1)} not shown"
        notes.append(f"{what}: {named}; {command} g{older[0]} shows {'one' if len(older) > 1 else 'it'}")
    raw = [row for table in tables for row in table]
    newest_runs = [family.newest_run for family in visible]
    return Result(columns, raw, sections, lines, notes, families=visible, newest_runs=newest_runs)


def _groups(families: Iterable[Family]) -> set[int]:
    runs = (row for family in families for arm in family.arms for row in arm.runs)
    return {row.group_id for row in runs if row.group_id is not None}


def _submissions(family: Family) -> str:
    """Return the submissions of a family in short: "g1, g5"."""
    groups = sorted(_groups([family]))
    more = [f"{len(groups) - MOST_NAMED} more"] if len(groups) > MOST_NAMED else []
    return ", ".join([*(f"g{group}" for group in groups[:MOST_NAMED]), *more])


def _named(groups: Sequence[int], context: Context) -> list[str]:
    """Return submissions with the command lines that made them: "g5 (bench nanogpt)"."""
    titles = dict(context.tuples(f"SELECT id, title FROM groups WHERE id IN ({', '.join(map(str, groups))})"))
    return [f"g{group} ({elide(titles[group].removeprefix('mpsq '), MOST_COMMAND)})" for group in groups]


def _older(rows: Iterable[ReportedRun], hidden: Iterable[Family], context: Context) -> list[int]:
    """Return the submissions of which a comparison is not shown, or whose runs were not read, the newest first."""
    groups = context.tuples("SELECT DISTINCT group_id FROM jobs") if context.n_older else []
    unread = {group for (group,) in groups} - {row.group_id for row in rows}
    return sorted(_groups(hidden) | unread, reverse=True)
