"""The report of `mpsq compare`: two selections of runs side by side."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from queue_runner import units
from queue_runner.analysis import findings, run_metrics
from queue_runner.analysis.comparison import WALL, Family, compare_each, differing_work
from queue_runner.analysis.grouping import Arm, group, kinds_of_taint, seed_of, seeds_in_common, word
from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.analysis.rounds import Verdict
from queue_runner.analysis.stats import by_key
from queue_runner.errors import UsageError
from queue_runner.model import Selector, State
from queue_runner.monitor import answers
from queue_runner.monitor.answers import prepare, select_runs, sweeps
from queue_runner.monitor.answers.run_query import Context, Options
from queue_runner.reports._common import losses
from queue_runner.reports._common.columns import columns, of_answer
from queue_runner.reports._common.document import Result, Section
from queue_runner.store import read
from queue_runner.tables import Column, elide

NAME = "compare"
HELP = "two selections of runs side by side: their differences and results"
SQL = f"SELECT {prepare.RUN} FROM v_run WHERE {{chosen}} ORDER BY job_id, number"
MOST_TEXT = 300
"""Columns of a value beyond which a table leaves out its middle."""
MOST_TITLE = 12
"""The same for the name of a side in a heading."""
LOSSES = ("loss_last", "eval_train_loss", "eval_val_loss")
"""Columns of v_run that depend on the seed."""
_USED: dict[str, tuple[str, Callable[[Any], str]]] = {
    "real_s": ("real, s", units.seconds),
    "user_s": ("user, s", units.seconds),
    "sys_s": ("sys, s", units.seconds),
    "max_rss_bytes": ("RSS", units.size),
    "peak_reserved_bytes": ("GPU memory", units.size),
    "first_iter_s": ("1st iteration", units.short_duration),
    "loss_last": ("batch loss", units.loss),
    "eval_train_loss": ("eval train", units.loss),
    "eval_val_loss": ("eval val", units.loss),
}
"""Medians that get no word: title and format, by the column of v_run."""


class SideBySide(Struct, frozen=True, kw_only=True):
    """A line of both tables: the values of both sides under one name, and as `texts`.

    `kind` is "differs" for a line of the question and "measured" for one of the results. `row` names the rows where a
    side has several.
    """

    kind: str
    name: str
    first: Any
    second: Any
    texts: Sequence[str]
    row: str = ""
    answer: Verdict | None = None
    change: str = units.MISSING


class Match(Struct, frozen=True):
    """A row of each side that have in common what both sides have in several values, and these in words."""

    first: Arm
    second: Arm
    label: str


COLUMNS = (
    *(Column(name, name) for name in ("kind", "row", "name", "first", "second")),
    Column(
        "speedup", "speedup", value=lambda line: line.answer.change if line.answer and line.answer.of_time else None
    ),
    Column(
        "difference",
        "difference",
        value=lambda line: None if not line.answer or line.answer.of_time else line.answer.change,
    ),
    *map(of_answer, ("low", "high")),
    *columns("verdict undecided_because n_rounds given_after more_rounds"),
)


def finish(stored: list[ReportedRun], context: Context) -> Result:
    """Match the rows of both sides and compare them. Raises: UsageError when a side has no run, or both have one."""
    if len(context.options.sides) != 2:
        raise UsageError("the report compare needs two sides", "for example mpsq compare 12 14")
    rows = sweeps.add(losses.add(prepare.prepare(stored, context), context), context, declared=True)
    names = [_name(side) for side in context.options.sides]
    question = prepare.question(rows, context)
    sides = [group(side, [*question.names, "time_of"]) for side in _sides(rows, context)]
    matches = [
        replace(
            match,
            first=replace(match.first, label=f"{names[0]} {match.label}".strip()),
            second=replace(match.second, label=f"{names[1]} {match.label}".strip()),
        )
        for match in _matches(*sides)
    ]
    every = [arm for match in matches for arm in (match.first, match.second)]
    whole = answers.whole(rows, context)
    by_unit = {
        unit: compare_each([(m.second, m.first) for m in same if not _obstacle(m)], every, question, whole)
        for unit, same in by_key(matches, _unit).items()
    }
    families = []
    for match in matches:
        compared = by_unit[_unit(match)]
        pairs = [pair for pair in compared.pairs if pair.arm is match.second]
        arms = [match.first, match.second]
        families.append(replace(compared, arms=arms, baseline=match.first, why="the first side", pairs=pairs))
    differ = [*_differences(sides), *_facts(sides, context)]
    measured = [line for match, family in zip(matches, families, strict=True) for line in _measured(match, family)]
    titles = [elide(name, MOST_TITLE) for name in names]

    def side(n: int, right: bool) -> Column:
        return Column(
            f"text{n}", titles[n], right=right, flexible=not right, value=lambda line: elide(line.texts[n], MOST_TEXT)
        )

    row = [Column("row", "", flexible=True)] if any(match.label for match in matches) else []
    second = names[1] if len(names[1]) <= MOST_TITLE else "2nd"
    has_metrics = any(line.answer and not line.answer.of_time for line in measured)
    title = f"{'speedup, difference' if has_metrics else f'speedup of {second}'} (95 % CI)"
    change = Column("change", title, flexible=True)
    verdict = Column("verdict", "verdict", value=lambda line: str(line.answer.word) if line.answer else units.MISSING)
    results = [*row, Column("name", "measured"), side(0, right=True), side(1, right=True), change, verdict]
    sections = [
        Section(_shared(sides), [Column("name", "differs"), side(0, right=False), side(1, right=False)], differ),
        Section("", results, measured),
    ]
    sentences = [line for family in families for line in _sentences(family)]
    sentences += map(_other_seeds, matches, families)
    lines = [*dict.fromkeys(filter(None, [*sentences, *map(_obstacle, matches)]))]
    lines += _unmatched(sides, names, {row.run_id for arm in every for row in arm.runs})
    return Result(COLUMNS, [*differ, *measured], sections, lines, families=families)


def _unit(match: Match) -> str:
    return differing_work((match.first, match.second))


def _name(side: Options) -> str:
    where = (f"{name}={','.join(values)}" for name, values in side.where.items())
    return ",".join([*map(_words, side.selectors), *where])


def _words(selector: Selector) -> str:
    """Return a side as a sentence names it: a bare number reads as a value."""
    kind = "run " if selector.number is not None else "job " if selector.job is not None else ""
    return f"{kind}{selector.text}"


def _sides(rows: Sequence[ReportedRun], context: Context) -> list[list[ReportedRun]]:
    """Return the runs of each side. A side that is given by values has those of the newest submission with both."""
    sides = []
    for side in context.options.sides:
        chosen, values = select_runs.condition(context.connection, side)
        sql = f"SELECT run_id FROM v_run WHERE {chosen}"
        ids = {run_id for (run_id,) in read.tuples(context.connection, sql, values)}
        sides.append([row for row in rows if row.run_id in ids])
        if not sides[-1]:
            raise UsageError(f"{_name(side)} has no run", "mpsq list shows the jobs")
    groups = set.intersection(*({row.group_id for row in side if row.group_id is not None} for side in sides))
    if groups:
        sides = [
            [row for row in side if row.group_id == max(groups)] if options.where else side
            for side, options in zip(sides, context.options.sides, strict=True)
        ]
    if both := {row.run for row in sides[0]} & {row.run for row in sides[1]}:
        raise UsageError(f"run {min(both)} is on both sides", "name two different jobs; mpsq list shows them")
    return sides


def _values(arms: Iterable[Arm], name: str) -> list[Any]:
    """Return the distinct values that distinguish the arms, in order."""
    return list(dict.fromkeys(arm.key.get(name) for arm in arms))


def _text(name: str, values: Sequence[Any]) -> str:
    if name == "machine":
        return ", ".join(prepare.where(value) for value in values)
    texts = ("unset" if value is None else word(name, value).removeprefix(f"{name}=") for value in values)
    return ", ".join(text or str(value) for text, value in zip(texts, values, strict=True))


def _differences(sides: Sequence[Sequence[Arm]]) -> Iterable[SideBySide]:
    """Return the settings, versions and other factors in which the sides differ."""
    subject = "workload" if all(row.kind == "workload" for row in _runs(*sides)) else "name"  # a command has only that
    for name in sides[0][0].key:
        first, second = (_values(side, name) for side in sides)
        if {*map(str, first)} != {*map(str, second)}:
            title = {"subject": subject, "compile": "mode", "time_of": "time of"}.get(name, name.replace("_", " "))
            values = [some[0] if len(some) == 1 else some for some in (first, second)]
            texts = [_text(name, some) for some in (first, second)]
            yield SideBySide(kind="differs", name=title, first=values[0], second=values[1], texts=texts)


def _facts(sides: Sequence[Sequence[Arm]], context: Context) -> Iterable[SideBySide]:
    """Return what else differs: the submissions, the runs that count, and their caveats."""
    titles = dict(context.by_groups("SELECT id, title FROM groups WHERE id IN ({groups})", _runs(*sides)))
    by_name: dict[str, list[list[str]]] = {
        "submission": [_distinct(f"g{row.group_id}" for row in _runs(side)) for side in sides],
        "command": [_distinct(str(titles.get(row.group_id, "")) for row in _runs(side)) for side in sides],
        "valid runs": [[f"{sum(a.n_valid for a in side)}/{sum(a.n_ended for a in side)}"] for side in sides],
        "caveats": [kinds_of_taint(row for arm in side for row in arm.shown) for side in sides],
    }
    for name, (first, second) in by_name.items():
        if first != second:
            texts = [", ".join(some) or "none" for some in (first, second)]
            yield SideBySide(kind="differs", name=name, first=texts[0], second=texts[1], texts=texts)


def _runs(*sides: Iterable[Arm]) -> list[ReportedRun]:
    return [row for side in sides for arm in side for row in arm.runs]


def _distinct(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))


def _shared(sides: Sequence[Sequence[Arm]]) -> str:
    """Return what all rows have in common, in words."""
    arms = [arm for side in sides for arm in side]
    by_name = {name: _values(arms, name) for name in arms[0].key if name not in ("machine", "time_of")}
    words = [word(name, values[0]) for name, values in by_name.items() if len(values) == 1 and values[0] is not None]
    groups = _distinct(f"g{row.group_id}" for row in _runs(*sides))
    shared = ", ".join(filter(None, [*words, *(groups if len(groups) == 1 else ())]))
    return f"both: {shared}" if shared else ""


def _matches(firsts: Sequence[Arm], seconds: Sequence[Arm]) -> list[Match]:
    """Match the only row of each side, else those with equal values of all names whose values the sides share."""
    if len(firsts) == len(seconds) == 1:
        return [Match(firsts[0], seconds[0], "")]
    names = [name for name in firsts[0].key if {*_values(firsts, name)} & {*_values(seconds, name)}]
    several = [name for name in names if len(_values([*firsts, *seconds], name)) > 1]

    def place(arm: Arm) -> tuple[Any, ...]:
        return tuple(arm.key.get(name) for name in names)

    matches = []
    for first in firsts:
        others = [second for second in seconds if place(second) == place(first)]
        if len(others) == 1 and sum(place(arm) == place(first) for arm in firsts) == 1:
            label = " ".join(filter(None, (word(name, first.key.get(name)) for name in several)))
            matches.append(Match(first, others[0], label))
    return matches


def _unmatched(sides: Sequence[Sequence[Arm]], names: Sequence[str], matched: Collection[int]) -> Iterable[str]:
    """Say how many rows have no counterpart, and how to compare the first of them; others have the `matched` runs."""
    without = [[arm for arm in side if arm.runs[0].run_id not in matched] for side in sides]
    if counts := [
        f"{units.counted(len(arms), 'row')} of {name}" for arms, name in zip(without, names, strict=True) if arms
    ]:
        jobs = (str((arms or side)[0].runs[0].job_id) for arms, side in zip(without, sides, strict=True))
        command = f"mpsq compare {' '.join(jobs)}"
        yield f"on one side only: {', '.join(counts)}; {command} compares two jobs anyway"


def _obstacle(match: Match) -> str:
    """Return why two rows are not compared; empty if they are."""
    first, second = match.first, match.second
    if first.key["machine"] != second.key["machine"]:
        return f"{first.label} and {second.label} ran on two machines, whose times are not compared"
    if first.key.get("time_of") != second.key.get("time_of"):
        times = (f"{arm.label} (of one {arm.key.get('time_of') or 'iteration'})" for arm in (first, second))
        return f"the times of {' and '.join(times)} are not compared"
    for arm in (first, second):
        if not arm.times:
            pending = [row for row in arm.runs if row.state != State.DONE]
            run = (pending or arm.runs)[-1].run
            return f"{arm.label} has no valid run{' yet' if pending else ''}: mpsq why {run} explains it"
    return ""


def _of_seeds_in_common(match: Match) -> list[Arm]:
    """Return both rows with only the runs whose seeds both have: a loss over other seeds is another loss."""
    arms = match.first, match.second
    seeds = seeds_in_common(*(arm.shown for arm in arms))
    return [replace(arm, used=[row for row in arm.used if seed_of(row) in seeds]) for arm in arms]


def _other_seeds(match: Match, compared: Family) -> str:
    """Say where losses and metrics have fewer runs than the times; "" if they do not."""
    arms = match.first, match.second
    with_losses = [name for name in LOSSES if any(arm.median(name) is not None for arm in arms)]
    known = [*compared.metrics, *(_USED[name][0] for name in with_losses)]
    of_seeds = _of_seeds_in_common(match)
    if not known or [len(arm.used) for arm in of_seeds] == [len(arm.used) for arm in arms]:
        return ""
    n_seeds = len({seed_of(row) for row in of_seeds[0].used})
    return f"{', '.join(known)}: over the {units.counted(n_seeds, 'seed')} that both sides have"


def _measured(match: Match, compared: Family) -> Iterable[SideBySide]:
    """Return the results of two rows: the time and the metrics with their answers, then what the runs used."""
    arms = match.first, match.second
    of_seeds = _of_seeds_in_common(match)
    pair = compared.pair(match.second)

    def line(name: str, values: Sequence[Any], format: Callable[[Any], str], **more: Any) -> SideBySide:
        texts = [format(value) for value in values]
        return SideBySide(
            kind="measured", name=name, row=match.label, first=values[0], second=values[1], texts=texts, **more
        )

    times = [arm.median_s for arm in arms]
    wall = any(arm.key.get("time_of") == WALL for arm in arms)
    if any(times):
        verdict = pair.verdict if pair else None
        answered: dict[str, Any] = {"answer": verdict, "change": verdict.size if verdict else units.MISSING}
        if unit := compared.per_work:  # the answer is on the time of a token or sample
            rates = [work / arm.median_s if arm.median_s and (work := arm.work(unit)) else None for arm in arms]
            yield line(f"{unit}s/s", rates, units.number, **answered)
            answered = {}
        scale = 1.0 if wall else 1e-3
        texts = [units.without_spread(arm.median_s, arm.spread_s[0], scale) for arm in arms]
        yield replace(line("wall s" if wall else "ms/iter", times, str, **answered), texts=texts)
    for name in compared.metrics:
        answer = pair.metrics.get(name) if pair else None
        low, high = (answer.low, answer.high) if answer else (None, None)
        change = answer.size if answer else units.MISSING
        means = [run_metrics.mean(arm, name) for arm in of_seeds]
        values = [answer.baseline, answer.value] if answer else means
        yield line(
            name,
            values,
            partial(units.measured, low=low, high=high, least=units.VALUE_DIGITS),
            answer=answer,
            change=change,
        )
    for column, (title, format) in _USED.items():
        medians = [arm.median(column) for arm in (of_seeds if column in LOSSES else arms)]
        if any(value is not None for value in medians) and not (wall and column == "real_s"):
            yield line(title, medians, format)


def _sentences(family: Family) -> Iterable[str]:
    """Return the answers in words, and what would decide the open ones."""
    for pair in family.pairs:
        yield findings.ratio(pair, family.unit)
        if not pair.verdict.decided:
            groups = ({row.group_id for row in arm.runs} for arm in (pair.arm, pair.baseline))
            apart = not (pair.verdict.why or set.intersection(*groups))
            yield f"{pair.verdict.next_step}{', of both submitted together' if apart else ''}"
        yield from (line for name in family.metrics for line in findings.metric_answer(family, name))
    yield from findings.incomplete([replace(pair, metrics={}) for pair in family.pairs])
    yield from findings.without_words(family)
