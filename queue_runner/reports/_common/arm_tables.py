"""Rows of arms as tables for people, at most 80 characters wide."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from shlex import quote
from typing import Any

from msgspec.structs import replace

from queue_runner import units
from queue_runner.analysis import findings
from queue_runner.analysis.comparison import TIME, Family
from queue_runner.analysis.finding import Finding
from queue_runner.analysis.findings import row_answers
from queue_runner.analysis.grouping import MAIN, PLACE, SUBJECT, word
from queue_runner.analysis.rounds import Verdict, Word
from queue_runner.monitor.answers.prepare import DETAILS
from queue_runner.reports._common import losses
from queue_runner.reports._common.arm_rows import ArmRow, JudgedRow
from queue_runner.reports._common.columns import columns, short
from queue_runner.reports._common.document import Section
from queue_runner.reports._common.footnotes import CaveatMarks
from queue_runner.tables import Column, elide, has_room


def spread(x: float | None, x_spread: float | None, over: str | None, scale: float = 1.0) -> str:
    """Format as `220.7 ± 0.3` over runs, or `220.7 (0.3)` over the iterations of one run."""
    text = units.plus_minus(x, x_spread, "", scale)
    value, plus_minus, amount = text.partition(f" {units.PLUS_MINUS} ")
    return f"{value} ({amount})" if plus_minus and over == "iterations" else text


def time(row: Any, scale: float = 1.0) -> str:
    """Format the time of a row with its spread: `220.7 ± 0.3`; from the lowest to the highest run, `40 to 900`, where
    the spread is not less than the time, which cannot be negative."""
    times_s = [run.median_s for run in row.arm.shown if run.median_s is not None]
    wide = wide_range(times_s, row.median_s, row.spread_s, row.spread_over, scale)
    return wide or spread(row.median_s, row.spread_s, row.spread_over, scale)


def wide_range(
    times_s: Sequence[float], median_s: float | None, spread_s: float | None, over: str | None, scale: float
) -> str:
    """Format the lowest and the highest time of runs whose spread is not less than their median: `40 to 900`; "" where
    it is less."""
    if over != "runs" or (spread_s or 0.0) < (median_s or 0.0):
        return ""
    return f"{units.number(min(times_s) / scale, 3)} to {units.number(max(times_s) / scale, 3)}"


MOST_NAME = 60
"""Columns of a name beyond which a title leaves out its middle; the row has as much as fits."""
MOST_METRICS = 2
"""Metrics that have a table in the short report."""
LABEL = Column("label", "", flexible=True)
RUNS = Column("runs", "runs", right=True, value=lambda row: f"{row.n_valid}/{row.n_runs}")
MACHINES = Column("n_machines", "machines", units.count, right=True)
MS = Column("ms", "ms/iter", right=True, value=lambda row: time(row, 1e-3))
STEP = Column("eval_step", "at step", right=True, value=losses.steps)
TFLOPS = Column("flops_per_s", "TFLOP/s", units.tflops, True)
WALL_S = Column("ms", "wall s", right=True, value=lambda row: time(row))
RSS = replace(*columns("max_rss_bytes"), title="RSS")
RATIO = Column("ratio", "speedup (95 % CI)", value=lambda row: _ratio(row))
VERDICT = Column("verdict", "verdict", value=lambda row: _word(row, row.judged), style=lambda row: _style(row))


def sections(family: Family, rows: Sequence[ArmRow], taints: CaveatMarks) -> list[Section]:
    """Return speed and metrics with verdicts, and for --explain cost and outcome; nothing before a run has ended. The
    metric that the family is compared by comes first."""
    if not any(row.n_runs for row in rows):
        return []
    shown = columns(LABEL, "n_iters loss_last eval_train_loss eval_val_loss", STEP, "projected_real_s")
    outcome, hidden = fitted(without_empty(Section("", shown, rows)), ("projected_real_s", "n_iters"))
    texts = {"max_rss_bytes": "RSS: peak", "peak_reserved_bytes": "GPU memory: the most that the process had reserved"}
    memory = "; ".join(text for key, text in texts.items() if any(getattr(row, key) is not None for row in rows))
    versions = {(row.framework, row.framework_version) for row in rows if row.framework_version}
    version = columns("framework_version") if len(versions) > 1 else ()
    work_columns = columns(LABEL, *version, "samples_per_s tokens_per_s", TFLOPS, "mfu", RSS, "peak_reserved_bytes")
    work = Section("", work_columns, rows, [memory] if memory else [])
    outcomes = () if family.wall else (outcome, *beside(hidden, rows, LABEL))
    others = [without_empty(section) for section in (work, _cost(rows, family), *outcomes)]
    explained = [section for section in others if len(section.columns) > 1]
    known = [name for name in family.metrics if any(row.metrics[name].value is not None for row in rows)]
    marks = taints.columns(rows) if family.by else []  # in the table that comes first
    metrics = [without_empty(_metric(name, rows, family, marks if name == family.by else ())) for name in known]
    explained += metrics[MOST_METRICS:]
    answers = [speed(family, rows, taints), *metrics[:MOST_METRICS]]
    if family.by:  # its table takes the place, and the title, of the first one
        answers[:2] = [replace(answers[1], title=answers[0].title), replace(answers[0], title="")]
    return [*answers, *(replace(section, explained=True) for section in explained)]


def without_empty(section: Section) -> Section:
    """Return the section without columns that are empty in all rows, but keep the number of runs."""
    filled = [
        column
        for column in section.columns
        if column.key in ("label", "runs") or any(column.show(row) != units.MISSING for row in section.rows)
    ]
    return replace(section, columns=filled)


def caption(family: Family, rows: Sequence[ArmRow] = ()) -> str:
    """Return what all shown runs of the family, and `rows`, have in common."""

    def values_of(name: str) -> set[Any]:  # --group-by may pool several frameworks
        return {getattr(row, name) for row in rows} | {getattr(run, name) for run in family.shown}

    def only(name: str) -> str | None:
        values = values_of(name) - {None}
        return str(values.pop()) if len(values) == 1 else None

    subjects = {str(arm.key["subject"]) for arm in family.arms}
    if len(subjects) > 1:  # the rows name them, and only what all have is in common
        values = [values_of(name) for name in ("framework", "dtype", "config", "device")]
        common = [str(value) for of in values if len(of) == 1 for value in of if value is not None]
        return ", ".join(filter(None, [*common, family.arms[0].runs[0].where])) or ", ".join(sorted(subjects))
    (subject,) = subjects
    framework, version, device = only("framework"), only("framework_version"), only("device_name")
    named = elide(subject, MOST_NAME)
    words = [_joined(named, only("config")), _joined(framework, framework and version), only("dtype")]
    in_labels = {part for arm in family.arms for part in arm.label.split(" ")}
    shared = [{word(name, arm.key.get(name)) for arm in family.arms if name in arm.key} for name in PLACE]
    words.append(_joined(*(value for of in shared if len(of) == 1 for value in of if value not in in_labels)))
    named_already = (*SUBJECT, *TIME, *MAIN)
    words += [word(n, value) for n, value in family.common.items() if n not in named_already and value is not None]
    for name in sorted(set(family.arms[0].key) - set(family.common) - {*MAIN, *DETAILS, *SUBJECT, "python"}):
        factors = {arm.key[name] for arm in family.arms}
        if len(factors) == 1 and factors != {None}:
            words.append(word(name, *factors))
    return ", ".join(filter(None, [*words, device and f"on {device}", family.arms[0].runs[0].where]))


def _joined(*words: object) -> str:
    return " ".join(str(word) for word in words if word)


def speed(family: Family, rows: Sequence[ArmRow], taints: CaveatMarks) -> Section:
    """Return the table of an answer: time with its spread, ratio, interval and verdict, and the rest if there is room;
    tables of --explain have it all."""
    has = {unit for unit in ("tokens", "samples") if any(getattr(row, f"{unit}_per_s") for row in rows)}
    rate = "samples_per_s" if has == {"samples"} else "tokens_per_s"
    each, runs = counts(rows)
    title = f"speedup per {family.per_work}" if family.per_work else "speedup"
    times = columns(WALL_S, "user_s sys_s", RSS) if family.wall else columns(MS, rate, "mfu")
    shown = columns(LABEL, *runs, times[0], *taints.columns(rows), *times[1:], *judged(rows, title))
    whole = without_empty(Section(caption(family, rows) + each, shown, rows, relative(family, rows)))
    spare = (RSS.key, "sys_s", "user_s") if family.wall else ("mfu", rate, "runs")
    answer, _ = fitted(whole, spare)
    if not has_room(rows, answer.columns):
        answer = replace(answer, columns=[without_spread(column) for column in answer.columns])
    in_order = sorted(rows, key=lambda row: (not row.is_baseline, -(row.speedup or 0.0)))
    return replace(answer, in_order=in_order, instead=findings.answer(family), option="--by time" if family.by else "")


def without_spread(column: Column) -> Column:
    """Return the column of times without their spread, for a narrow terminal; other columns as they are."""
    if column.key != MS.key:
        return column
    scale = 1e-3 if column.title == MS.title else 1.0

    def value(row: ArmRow) -> str:
        return units.without_spread(row.median_s, row.spread_s, scale)

    return replace(column, value=value)


def _metric(name: str, rows: Sequence[ArmRow], family: Family, marks: Sequence[Column]) -> Section:
    """Return the table of a metric: mean, `marks` of caveats, difference from the baseline with its interval, word."""

    def judged(row: ArmRow) -> Verdict | None:
        return row.metrics[name].answer

    def value(row: ArmRow) -> str:
        ends = next(((x.low, x.high) for other in rows if (x := judged(row) or judged(other))), (None, None))
        return units.measured(row.metrics[name].value, *ends, least=units.VALUE_DIGITS)

    def difference(row: ArmRow) -> str:
        return x.size if (x := judged(row)) else units.MISSING

    columns = (
        LABEL,
        Column(f"{name}_value", name, right=True, flexible=True, value=value),
        *marks,
        Column(f"{name}_difference", "difference (95 % CI)", value=difference),
        Column(
            f"{name}_verdict",
            "verdict",
            value=lambda row: _word(row, judged(row)),
            style=lambda row: _doubt(judged(row)),
        ),
    )
    option = "" if family.by else f"--by {quote(name)}"
    return Section("", columns, rows, instead=next(iter(row_answers(family, name)), ""), option=option)


def counts(rows: Sequence[ArmRow]) -> tuple[str, tuple[Column, ...]]:
    """Return the end of a title that says how many runs each row has, and on how many machines of one kind; columns
    for them where some differ."""
    run_counts = {(row.n_valid, row.n_runs, row.n_machines) for row in rows}
    if len(rows) > 1 and len(run_counts) == 1 and rows[0].n_valid == rows[0].n_runs:
        on = f" on {rows[0].n_machines} machines" if rows[0].n_machines > 1 else ""
        return f", {units.counted(rows[0].n_valid, 'run')} each{on}", ()
    return "", (RUNS, MACHINES) if any(row.n_machines > 1 for row in rows) else (RUNS,)


def judged(rows: Sequence[JudgedRow], title: str = "speedup") -> tuple[Column, ...]:
    """Return the columns of the ratio with its interval, and of the verdict; none if nothing is compared."""
    if not any(row.speedup is not None for row in rows):
        return ()
    tested = any(row.has_interval for row in rows)
    return replace(RATIO, title=f"{title} (95 % CI)" if tested else title), VERDICT


def relative(family: Family, rows: Sequence[ArmRow]) -> list[Finding]:
    """Say what the speedups of a family are relative to, if there are any, and why."""
    if family.baseline is None:
        return []
    per = f" per {family.per_work} (iterations differ in size)" if family.per_work else ""
    why = f" ({family.why})" if family.why else ""
    each = "; a row's time is the geometric mean of its runs" if any(row.has_interval for row in rows) else ""
    base = family.baseline.label
    return [
        Finding(
            f"speedup{per}: the time of the baseline, {base}{why},"
            f" divided by the time of the row, so 0.5 is 2 x slower{each}"
        )
    ]


def fitted(section: Section, spare: Sequence[str]) -> tuple[Section, list[Column]]:
    """Return the table without as many columns of `spare` (keys) as have no room, and those; the first of `spare` goes
    first."""
    fitting = list(section.columns)
    for key in spare:
        if not has_room(section.rows, fitting):
            fitting = [column for column in fitting if column.key != key]
    return replace(section, columns=fitting), [column for column in section.columns if column not in fitting]


def beside(hidden: Sequence[Column], rows: Sequence[Any], *keys: Column) -> list[Section]:
    """Return what `fitted` left out as a table of --explain, after the columns `keys` that tell its rows apart."""
    return [Section("", (*keys, *hidden), rows, explained=True)] if hidden else []


def _word(row: JudgedRow, answer: Verdict | None) -> str:
    return "baseline" if row.is_baseline else str(answer.word) if answer else units.MISSING


def _style(row: JudgedRow) -> str:
    colour = {Word.FASTER: "good", Word.SLOWER: "bad"}.get(row.judged.word, "") if row.judged else ""
    return colour or _doubt(row.judged)


def _doubt(answer: Verdict | None) -> str:
    return "doubt" if answer and not answer.decided else ""


def _ratio(row: JudgedRow) -> str:
    """Format a ratio with its interval: "1.024 (1.021 to 1.027)"."""
    if row.is_baseline:
        return "1" if row.speedup is not None else units.MISSING
    return row.judged.size.replace(" x", "") if row.judged else units.MISSING


def _cost(rows: Sequence[ArmRow], family: Family) -> Section:
    """Build the cost table. Cold and warm are states of the compiler's cache; without them there is no cost."""

    def extreme(choose: Callable[[list[float]], float]) -> Callable[[ArmRow], str]:
        return lambda row: units.number(choose(row.arm.times) if family.wall and len(row.arm.times) > 1 else None)

    first = [row for row in rows if row.first_iter_s is not None]
    notes = []
    if any(row.compile_cache == "cold" for row in first):
        notes.append("1st iter of compiled rows: with a cold cache")
    if any(map(_compile, rows)):
        notes.append("compile: extra time of the first iteration, per state of the compiler's cache")
    if any(row.compile and row.compile_cache is None for row in first):
        notes.append("compile cost: unknown, because the trainer does not tell whether the compiler's cache was cold")
    if any(row.device == "mps" for row in first):
        notes.append("1st iter on mps: Metal's own shader cache may be warm, in eager rows too")
    if any(row.real_s is not None for row in rows):
        notes.append(f"{'median, min and max: of wall s; ' if family.wall else 'real, '}user, sys: seconds")
    (real,) = columns("real_s")
    shown = columns(
        LABEL,
        Column("first_iter_s", "1st iter", short, True),
        Column("compile", "compile", right=True, value=lambda row: _compile(row) or units.MISSING),
        *([replace(real, title="median", words=units.number)] if family.wall else [real]),
        Column("min_s", "min", right=True, value=extreme(min)),
        Column("max_s", "max", right=True, value=extreme(max)),
        "user_s sys_s",
    )
    return Section("", shown, rows, notes)


def _compile(row: ArmRow) -> str:
    """Format the cost of compilation by the state of the cache: "20.0 s cold, 3.00 s warm"."""
    costs = (row.compile_cost_s, row.compile_cache), (row.compile_cost_warm_s, "warm")
    return ", ".join(f"{short(cost_s)} {state}" for cost_s, state in costs if cost_s is not None)
