"""The page of a report: question, verdict, tables, charts, provenance, from the Result that a terminal shows."""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from queue_runner import atomic_file, reports, units
from queue_runner.analysis import run_metrics
from queue_runner.analysis.comparison import SELECTS_ANOTHER, Family
from queue_runner.analysis.finding import Finding, NextStep
from queue_runner.analysis.grouping import MAIN, factor_name, last_attempts, word
from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.analysis.stats import by_key
from queue_runner.errors import MpsqError
from queue_runner.model import Outcome, State
from queue_runner.monitor import group_summary
from queue_runner.monitor.answers.run_query import Options
from queue_runner.pages import dots, histories, iteration_plots, provenance, render, timeline, trust
from queue_runner.pages.run_records import RunRecords, gather
from queue_runner.paths import Layout
from queue_runner.reports._common import arm_tables
from queue_runner.reports._common.document import Result, Section, whole_steps
from queue_runner.tables import of_any_width

MOST_ROWS = 300
"""Rows of one table; the rest is counted, and in csv."""
MOST_FAILURES = 3
"""Runs without success that the top of a page names."""
MOST_NAMED, MOST_CHARS = 4, 120
"""Rows that the title names, and characters of their names."""

_USED = ("user_s", "sys_s", "max_rss_bytes")
_LETTER = re.compile(r"([A-Z]{1,2}): ")
_MARK = re.compile(r"[a-z!] ")
"""The mark of a caveat, before its text in a note."""


class PageTable(Struct, frozen=True):
    """A table of the report, with its letter, and the tables of the same rows that --explain adds."""

    name: str
    title: str
    section: Section
    more: list[Section]


class PageCharts(Struct, frozen=True):
    """The ratios or differences of a family, and its runs; `other` is the quantity if it is not the one that comes
    first."""

    caption: str
    forest: dots.Chart | None
    runs: dots.Chart | None
    other: str


class PageQuestion(Struct, frozen=True):
    """The question about a family of runs: shared settings, varied ones, the baseline."""

    shared: str
    varied: Sequence[tuple[str, str]]
    rows: int
    baseline: str


def build(
    name: str,
    layout: Layout,
    connection: sqlite3.Connection,
    options: Options,
    *,
    command: str,
    now: float | None = None,
    static: str | None = None,
    **more: Any,
) -> str:
    """Return the page of the report `name`; `command` is the command line that asks for it, `static` as in render.page.

    `more` are values of another layout than "base.html.j2": a template that extends that one, named by `layout_name`.
    Where that says `whys` no run has ended yet, the report does not.
    Raises: UsageError as the report itself.
    """
    with of_any_width():
        result = reports.run(name, connection, options)
    evidence = gather(name, result, connection, options)
    alone = len(evidence.families) == 1 and not result.histories
    compared = evidence.families if evidence.compared or alone else []
    charts = [
        PageCharts(
            arm_tables.caption(family) if len(compared) > 1 else "",
            dots.forest(drawn),
            dots.chart(drawn, evidence.taints),
            "" if drawn is family else drawn.by or "time",
        )
        for family in compared
        for drawn in dots.quantities(family)
    ]
    plots = iteration_plots.Plots([], []) if result.histories else iteration_plots.plots(evidence)
    history_lines, history_ticks = histories.lines(result.histories)
    courses, n_courses_left = timeline.courses(evidence)
    bars, bar_ticks = timeline.bars(evidence) if evidence.marks else ([], [])
    submissions, n_submissions_left = provenance.submissions(evidence)
    programs, n_programs_left = provenance.programs(evidence, layout)
    so_far = group_summary.progress(connection, {row.group_id or 0 for row in evidence.runs})
    goes_on = any(row.state != State.DONE for row in evidence.runs) or any(x.more_follow for x in so_far.values())
    reasons, status = trust.reasons(evidence), trust.status(compared, goes_on=goes_on)
    if status is None and evidence.compared and len(evidence.families) > 1 < len(reasons):
        status = reasons.pop(0)  # that nothing was compared is the answer
    answers = [] if result.text == "" and more.get("whys") else _answers(result, evidence, status)
    behind = [without_option(line) for line in result.lines if isinstance(line, Finding) and line not in answers]
    failures, tables, notes = _failures(evidence), _lettered(result), result.notes
    is_here = bool(static and failures)  # the page has its next step, and leads to the run
    if failures and evidence.compared and not any(row.outcome == Outcome.SUCCEEDED for row in evidence.runs):
        reasons, answers, behind, tables = [], [], [], []  # they have no number
        notes = [note for note in notes if not _MARK.match(note)]
    open_notes = [note for note in notes if evidence.compared and not isinstance(note, Finding)]  # as in a terminal
    made = time.strftime("%Y-%m-%d %H:%M", time.localtime(now))
    labels = {row.run: arm.label for arm in compared[0].arms for row in arm.runs} if len(compared) == 1 else {}
    values = {"layout": more.pop("layout_name", "base.html.j2"), **more}
    return render.page(
        "report.html.j2",
        static=static,
        name=name,
        help="" if name == reports.DEFAULT else reports.load(name).HELP,
        title=headline(name, evidence.families if evidence.compared else []),
        made=made,
        labels=labels,
        asked=[_asked(family) for family in compared if family.pairs or len(compared) == 1],
        ran=_ran(evidence),
        all_open=bool(evidence.runs) and not any(row.state == State.DONE for row in evidence.runs),
        reasons=reasons,
        status=status,
        failures=failures,
        answers=answers,
        behind=behind,
        next_steps=whole_steps(result.next_steps, command),
        most_rows=MOST_ROWS,
        tables=tables,
        caveats=[(note[0], note) for note in notes if _MARK.match(note)],
        open_notes=open_notes,
        notes=[
            note
            for note in notes
            if not (note in open_notes or _MARK.match(note) or (is_here and isinstance(note, NextStep)))
        ],
        charts=charts,
        plots=plots,
        histories=history_lines,
        history_ticks=history_ticks,
        courses=courses,
        n_courses_left=n_courses_left,
        bars=bars,
        bar_ticks=bar_ticks,
        machines=provenance.fingerprints(evidence, "machine"),
        software=provenance.fingerprints(evidence, "software"),
        submissions=submissions,
        n_submissions_left=n_submissions_left,
        programs=programs,
        n_programs_left=n_programs_left,
        command=command,
        **values,
    )


def headline(name: str, families: Sequence[Family]) -> str:
    """Return the question of the page; the name of a report that compares several families or none."""
    several = [family for family in families if len(family.arms) > 1]
    compared = [family for family in several if family.pairs] or several
    if len(compared) != 1:
        if name == reports.DEFAULT:
            return arm_tables.caption(families[0]) if len(families) == 1 else "Comparisons"
        title = name.replace("-", " ")
        return title[:1].upper() + title[1:]
    labels = [arm.label for arm in compared[0].arms]
    by = compared[0].by if compared[0].pairs else compared[0].aim.by  # before results arrive, the aim says it
    if by:
        return f"Which has the lowest {by}?" if run_metrics.is_loss(by) else f"How does {by} differ?"
    which, named = "faster" if len(labels) == 2 else "fastest", f"{', '.join(labels[:-1])} or {labels[-1]}"
    if len(labels) > MOST_NAMED or len(named) > MOST_CHARS:
        return f"Which of these {len(labels)} is {which}?"
    return f"Which is {which}: {named}?"


def _failures(evidence: RunRecords) -> list[tuple[ReportedRun, int]]:
    """Return the runs that tell why there are no numbers: of those that ended alike the first, and how many more there
    are; none where a run counts."""
    if any(arm.used for family in evidence.families for arm in family.arms):
        return []
    failed = [
        row for row in last_attempts(evidence.runs) if row.state == State.DONE and row.outcome != Outcome.SUCCEEDED
    ]
    return [(alike[0], len(alike) - 1) for alike in by_key(failed, lambda row: row.fate).values()][:MOST_FAILURES]


def _answers(result: Result, evidence: RunRecords, status: trust.TrustReason | None) -> list[str]:
    return [*(_time(evidence.families) if evidence.compared else []), *trust.below(status, result.lines)]


def _time(families: Sequence[Family]) -> list[str]:
    """Return the time of the only row in a sentence; nothing where there are several, or it has none."""
    arms = [arm for family in families for arm in family.arms]
    if len(arms) != 1 or not arms[0].times:
        return []
    (arm,) = arms
    spread_s, over = arm.spread_s
    unit, scale = ("s", 1.0) if families[0].wall else ("ms/iter", 1e-3)
    wide = arm_tables.wide_range(arm.times, arm.median_s, spread_s, over, scale)
    near = units.plus_minus(arm.median_s, spread_s if over == "runs" else None, unit, scale)
    time = f"{wide} {unit}" if wide else near
    return [f"{arm.label}: {time}, {units.counted(len(arm.timed), 'run')}"]


def _asked(family: Family) -> PageQuestion:
    names = _independent(family)
    varied = [(factor_name(name, family.arms), _values(name, family)) for name in names]
    baseline = without_option(f"{family.baseline.label} ({family.why})") if family.baseline is not None else ""
    return PageQuestion(arm_tables.caption(family), varied, len(family.arms), baseline)


def without_option(text: str) -> str:
    """Return a sentence without the option that selects another baseline: a page of mpsq web has a field for that."""
    return text.replace(f" ({SELECTS_ANOTHER})", "").replace(f"; {SELECTS_ANOTHER}", "")


def _independent(family: Family) -> list[str]:
    """Return the names that distinguish the arms, without those that follow from others: the name of a device."""
    differ = [name for name in family.arms[0].key if len({str(arm.key[name]) for arm in family.arms}) > 1]
    names: list[str] = []
    for name in sorted(differ, key=lambda name: name not in MAIN):
        before = {tuple(str(arm.key[other]) for other in names) for arm in family.arms}
        if len({tuple(str(arm.key[other]) for other in (*names, name)) for arm in family.arms}) > len(before):
            names.append(name)
    return names


def _values(name: str, family: Family) -> str:
    values = dict.fromkeys(arm.key[name] for arm in family.arms)
    texts = ["unset" if value is None else word(name, value).removeprefix(f"{name}=") for value in values]
    return units.listed(texts, 12)


def _ran(evidence: RunRecords) -> str:
    """Return how many runs have ended and when, and how many have not."""
    runs = last_attempts(evidence.runs)
    ended = [row for row in runs if row.state == State.DONE]
    parts = [units.counted(len(ended), "run")]
    if times := [at for row in ended if (at := row.ended_at or row.started_at)]:
        first, last = (time.strftime("%Y-%m-%d %H:%M", time.localtime(at)) for at in (min(times), max(times)))
        parts.append(f"ended {first}" + (f" to {last}" if last != first else ""))
    if n_open := len(runs) - len(ended):
        parts.append(f"{units.count(n_open)} not ended yet")
    return ", ".join(parts)


def _lettered(result: Result) -> list[PageTable]:
    """Return the tables as a terminal shows them, with its letters; below each those that only --explain prints."""
    whole = Section("", result.columns, result.items)
    is_empty = not result.items or result.text == ""
    sections = result.sections or ([] if is_empty else [arm_tables.without_empty(whole)])
    made: list[PageTable] = []
    for section in sections:
        if section.explained and made:
            made[-1].more.append(section)
            continue
        if not section.title and made and section.rows is made[-1].section.rows:  # a terminal had no room for it beside
            first = made[-1].section
            more = [column for column in section.columns if column not in first.columns]
            made[-1] = replace(made[-1], section=replace(first, columns=[*first.columns, *more]))
            continue
        lettered = _LETTER.match(section.title)
        name = lettered[1] if lettered else ascii_uppercase[len(made)] if len(made) < len(ascii_uppercase) else ""
        made.append(PageTable(name, section.title[lettered.end() :] if lettered else section.title, section, []))
    return [replace(table, section=_answer_first(table.section)) for table in made]


def _answer_first(section: Section) -> Section:
    """Return the table with what commands used after their times and verdicts, for screens that show its left part."""
    lines = [without_option(line) for line in section.lines]
    return replace(section, columns=sorted(section.columns, key=lambda column: column.key in _USED), lines=lines)


def write(path: Path, page: str) -> None:
    """Write a page to a file, which others may read. Raises: MpsqError when that is not possible."""
    try:
        with atomic_file.replacing(path, durable=False, mode=0o644) as partial:
            partial.write_text(page, "utf-8", "replace")
    except OSError as error:
        reason = error.strerror or str(error)
        raise MpsqError(
            f"{path} cannot be written: {reason}", "--html needs a file name in an existing folder"
        ) from error
