"""Comparison of arms: baselines, eager twins, ratios and verdicts. Pure.

A family is a set of arms that may be compared: same machine, workload, config and settings. Ratios compare run medians;
verdicts compare them round by round.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache, cached_property, partial
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from queue_runner.analysis import run_metrics
from queue_runner.analysis.grouping import NAMES, SUBJECT, WORK, Arm, group, labelled, order, round_of, taints
from queue_runner.analysis.intervals import all_pairs
from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.analysis.rounds import Verdict, Word, judge, judge_metric
from queue_runner.analysis.stats import by_key
from queue_runner.errors import UsageError
from queue_runner.model import NEIGHBOUR_BUSY
from queue_runner.spec import OF_TIME, Aim
from queue_runner.units import BOOLEANS

WALL = "run"
"""The `time_of` of a row whose time is that of the whole run; others have that of an iteration."""
PHASE = "phase"
"""The `time_of` of a row whose time is the wall time of its measured phase, divided by the iterations."""
TIME = ("time_of",)
"""Times of runs and times of iterations are never compared."""
CHOSEN = "chosen by --vs"
"""Why the user's baseline is one."""
SELECTS_ANOTHER = "--vs selects another"
"""How a user chooses another baseline."""
DISTURBANCES = frozenset(
    [
        *("contended", "gpu_contended", "gpu_busy", NEIGHBOUR_BUSY),
        *("not_quiet", "stolen", "battery", "low_power", "throttled"),
    ]
)
"""Caveats by which something outside of the run disturbed it."""
SWEPT = "(swept)"
UNSET = "unset"
"""The value in labels and for --vs of a setting that an arm does not have."""


class Question(Struct, frozen=True):
    """How to compare: the names that distinguish arms, those fixed within a family, the baseline."""

    names: Sequence[str]
    settings: Sequence[str] = ()
    vs: Mapping[str, Any] = field(default_factory=dict)
    declared: bool = False
    """whether the user named the baseline (--vs name=train.py): rows of any name, config and settings are compared"""
    include_invalid: bool = False
    sweeps: bool = False
    """whether what a submission swept (the rows' `swept`) distinguishes arms, although SUBJECT or `settings` has it;
    what another one swept is another family"""
    aim: Aim = field(default_factory=Aim)
    """what it is about, where that is not what the submission says"""


class Pair(Struct, frozen=True):
    """An arm, its baseline, the verdict and the answers on metrics, corrected for all words of the family."""

    arm: Arm
    baseline: Arm
    verdict: Verdict
    metrics: Mapping[str, Verdict] = field(default_factory=dict)

    @property
    def pays_off(self) -> bool:
        """Whether the arm is shown to be faster: without that, nothing says when its costs are repaid."""
        return self.verdict.word is Word.FASTER

    @property
    def ratio(self) -> float:
        """Speedup over the baseline: above 1 the arm takes less time."""
        return self.verdict.change


class Family(Struct, frozen=True, eq=False, dict=True):
    """Comparable arms and their comparison. `per_work` is "token" or "sample" if ratios compare the time per token or
    sample, "" if they compare the time per iteration."""

    common: Mapping[str, Any]
    arms: Sequence[Arm]
    baseline: Arm | None = None
    why: str = ""
    pairs: Sequence[Pair] = ()
    twins: Sequence[Pair] = ()
    per_work: str = ""
    metrics: Mapping[str, str] = field(default_factory=dict)
    """the metrics compared, the one that comes first before the others, and what stands against words on each; empty if
    nothing does"""
    aim: Aim = field(default_factory=Aim)
    key: Sequence[Any] = ()
    """what tells it from the other families of a question, whichever of them have runs"""
    others: Sequence[tuple[Arm, Arm]] = ()
    """pairs of the question that are not shown, and tell the noise, too"""
    is_chosen: bool = False
    """whether the user chose another baseline than the default, or may have hidden that"""
    contest: Pair | None = None
    """the two rows that may have the lowest value of the loss that comes first, judged like a pair that a user chose"""

    @cached_property
    def wall(self) -> bool:
        """Whether the times are those of whole runs, because some of them report no iterations."""
        return any(row.time_of == WALL for arm in self.arms for row in arm.runs)

    @property
    def by(self) -> str:
        """The metric that comes first; "" for the time."""
        return self.aim.by if self.aim.by and any(self.aim.by in pair.metrics for pair in self.pairs) else ""

    @cached_property
    def named(self) -> set[str]:
        """The metrics that somebody asks about, with --metric, --by or --same-within."""
        texts = {row.log_metrics_json or "{}" for arm in self.arms for row in arm.runs}
        return self.aim.metrics.union(*map(json.loads, texts))

    def answers(self, pair: Pair) -> dict[str, Verdict]:
        """Return the answers that the question needs: on the time, under OF_TIME, and on named metrics. The
        one that comes first leads."""
        answers = {OF_TIME: pair.verdict, **{name: x for name, x in pair.metrics.items() if name in self.named}}
        return dict(sorted(answers.items(), key=lambda item: item[0] != self.by))

    def contest_of(self, name: str) -> Pair | None:
        """Return the contest if it is about this metric."""
        return self.contest if self.contest is not None and name in self.contest.metrics and name == self.by else None

    def lowest(self, name: str) -> list[str]:
        """Return the rows that may have the lowest value of a loss: no interval of another is wholly below theirs, nor
        is it decided that they lose the contest. Empty if that leaves out no row, and where a row has no interval;
        other metrics have no better side."""
        if self.baseline is None or not run_metrics.is_loss(name):
            return []
        contest = self.contest_of(name)
        if contest is not None and contest.metrics[name].word in (Word.LOWER, Word.HIGHER):
            return [(contest.arm if contest.metrics[name].word is Word.LOWER else contest.baseline).label]
        limits = {self.baseline.label: (0.0, 0.0)}
        for pair in self.pairs:
            answer = pair.metrics.get(name) if pair.baseline is self.baseline else None
            if answer is not None and not answer.why and answer.low is not None and answer.high is not None:
                limits[pair.arm.label] = answer.low, answer.high
        if len(limits) < len(self.arms):
            return []
        least = min(high for _, high in limits.values())
        rows = [label for label, (low, _) in limits.items() if low <= least]
        return rows if len(rows) < len(limits) else []

    @property
    def unit(self) -> str:
        """The unit of the compared times: WALL, a token or sample, or "" for an iteration."""
        return WALL if self.wall else self.per_work

    @property
    def shown(self) -> list[ReportedRun]:
        """Runs whose numbers are shown."""
        return [row for arm in self.arms for row in arm.shown]

    @property
    def newest_run(self) -> int:
        """The run_id of its newest run."""
        return max(int(row.run_id) for arm in self.arms for row in arm.runs)

    def pair(self, arm: Arm) -> Pair | None:
        """Return the pair of the arm and the baseline; None for the baseline, or if there is nothing to compare."""
        return self._pairs.get(arm)

    def twin_pair(self, arm: Arm) -> Pair | None:
        """Return the pair of a compiled arm and its eager twin; None if there is nothing to compare."""
        return self._twins.get(arm)

    def twin(self, arm: Arm) -> Arm | None:
        """Return the eager twin of a compiled arm: the same without compilation; None if there is none."""
        if not arm.key.get("compile"):
            return None
        return self._arms.get(frozenset({**arm.key, "compile": 0}.items()))

    @cached_property
    def _pairs(self) -> dict[Arm, Pair]:
        return {pair.arm: pair for pair in reversed(self.pairs)}

    @cached_property
    def _twins(self) -> dict[Arm, Pair]:
        return {pair.arm: pair for pair in self.twins}

    @cached_property
    def _arms(self) -> dict[frozenset[tuple[str, Any]], Arm]:
        return {frozenset(arm.key.items()): arm for arm in reversed(self.arms)}


def compare(rows: Iterable[ReportedRun], question: Question, whole: Sequence[Family] = ()) -> list[Family]:
    """Group runs into arms and families; judge each arm against its family's baseline and its eager twin. `whole` are
    the families, not compared, of all that the submissions of these rows ask: rows that are not shown tell the noise,
    too.

    Raises: UsageError as `with_baselines`.
    """
    judged = (_judged(_within(family, whole)) for family in with_baselines(rows, question))
    return [_contested(family, question, whole) for family in judged]


def _contested(family: Family, question: Question, whole: Sequence[Family]) -> Family:
    """Return the family with the contest of the two rows that may have the lowest loss, if that has not judged them."""
    rows = family.lowest(family.by)
    arms = [arm for arm in family.arms if arm.label in rows]
    if len(arms) != 2 or family.baseline in arms:
        return family
    pairs = compare_each([(arms[0], arms[1])], family.arms, question, whole).pairs
    return replace(family, contest=next(iter(pairs), None))


def with_baselines(rows: Iterable[ReportedRun], question: Question) -> list[Family]:
    """Group runs into arms and families, each with its baseline, but not yet compared.

    Raises: UsageError when the requested baseline matches no arm, or several of a family.
    """
    made = [replace(family, aim=_aim(family.arms, question)) for family in families(rows, question)]
    return _with_chosen(made, question.vs) if question.vs else [_default_baseline(family) for family in made]


def _aim(arms: Iterable[Arm], question: Question) -> Aim:
    """Return what the question is about, completed by what the newest of its submissions says."""
    newest = max((row for arm in arms for row in arm.runs), key=lambda row: row.run_id)
    return question.aim.over(newest.aim)


def families(rows: Iterable[ReportedRun], question: Question) -> list[Family]:
    """Group runs into arms and arms into families, sorted and labelled, but not yet compared.

    Arms of two workloads are compared only if they do the same work and the baseline names a workload: nanogpt and the
    same model under another trainer.
    """
    declared = question.declared
    across = "subject" in question.vs and not declared
    free = {*question.vs, *(SUBJECT[1:] if declared else ())}
    fixed = [name for name in (*SUBJECT, *TIME) if not (name in free and name in NAMES)]
    fixed += [name for name in question.settings if name not in free and not declared]
    apart = question.sweeps and not declared and not across
    members: dict[tuple[Any, ...], list[Arm]] = {}
    for sweep, rows_of_sweep in by_key(rows, lambda row: row.sweep if apart else None).items():
        for arm in group(rows_of_sweep, [*question.names, *TIME], question.include_invalid):
            work = (arm.median("flops_per_iter"), *map(arm.work, WORK)) if across else ()
            swept = {name for row in arm.runs for name in row.swept} if question.sweeps else set()
            shared = (SWEPT if name in swept else arm.key.get(name) for name in fixed)
            members.setdefault((*shared, *work, sweep), []).append(arm)
    made = []
    for key in sorted(members, key=lambda key: [(value is not None, str(value)) for value in key]):
        common = {name: value for name, value in zip(fixed, key, strict=False) if value is not SWEPT}
        arms = labelled(sorted(members[key], key=order), common, short=question.sweeps)
        made.append(Family(common, arms, key=key))
    return made


def _with_chosen(families: Sequence[Family], vs: Mapping[str, Any]) -> list[Family]:
    requested = ",".join(_asked(name, value) for name, value in vs.items())
    chosen = []
    named = {arm.key["subject"] for family in families for arm in family.arms}

    def is_chosen(arm: Arm, is_same: Callable[[Any, Any], bool]) -> bool:
        """Return whether the arm has the values; they may name a workload even if its runs have custom names."""
        return all(
            any(row.workload == value for row in arm.runs)
            if name == "subject" and value not in named
            else is_same(arm.key.get(name), value)
            for name, value in vs.items()
        )

    for family in families:
        match = [arm for arm in family.arms if is_chosen(arm, _same)]
        match = match or [arm for arm in family.arms if is_chosen(arm, _equal)]
        if "resumed" not in vs:
            match = [arm for arm in match if not arm.key.get("resumed")] or match
        if len(match) > 1:
            apart = [name for name in match[0].key if len({arm.key[name] for arm in match}) > 1]
            raise UsageError(
                f"--vs {requested} matches {len(match)} rows: {', '.join(arm.label for arm in match[:6])}",
                "add what distinguishes them, as in --vs "
                + ",".join([requested, *(_asked(name, match[0].key[name]) for name in apart)]),
            )
        base = match[0] if match else None
        differs = base is not _default_baseline(family).baseline
        chosen.append(replace(family, baseline=base, why=CHOSEN, is_chosen=differs))
    if families and not any(family.baseline for family in chosen):
        rows = list(dict.fromkeys(arm.label for family in families for arm in family.arms))
        raise UsageError(f"--vs {requested} matches none of the rows", f"the rows: {', '.join(rows[:8])}")
    return chosen


def _same(value: Any, requested: Any) -> bool:
    return requested == UNSET if value is None else value == requested or str(value) == str(requested)


def _equal(value: Any, requested: Any) -> bool:
    """Return whether a value is the requested one in another spelling, as --where has it: 1e-3 is 0.001."""
    if isinstance(value, bool):
        return BOOLEANS.get(str(requested).lower()) is value
    try:
        return _same(value, requested) or float(value) == float(requested)
    except (TypeError, ValueError):
        return False


def _asked(name: str, value: Any) -> str:
    """Return a setting in the syntax of --vs."""
    shown = {True: "on", False: "off"}.get(value, value) if name == "compile" else value
    shown = UNSET if value is None else str(shown)
    return f"{'workload' if name == 'subject' else name}={shown}"


def _default_baseline(family: Family) -> Family:
    """Choose eager on the CPU; else the first eager arm that was submitted; else the first; of each kind fp32 and torch
    before others. Never by its time: the slowest of equal rows seems slow (docs/decisions/verdicts.md)."""
    able = [arm for arm in family.arms if arm.times]
    if len(able) < 2:
        return family
    best = min(able, key=lambda arm: (_distance(arm), min((row.job_id or 0, row.run_id) for row in arm.runs)))
    return replace(family, baseline=best, why="; ".join(filter(None, (_why(best, able), SELECTS_ANOTHER))))


def _why(best: Arm, able: Sequence[Arm]) -> str:
    """Return how the baseline was chosen; "" for eager on the CPU, which its label or the caption names."""
    away, compiled, *chosen = _distance(best)
    if not away:
        return ""
    others = [rest for arm in able for a, b, *rest in [_distance(arm)] if (a, b) == (away, compiled)]
    names = " in fp32", " of torch"
    suffixes = [name for at, name in enumerate(names) if not chosen[at] and any(other[at] for other in others)]
    has_modes = any(arm.key.get("compile") is not None for arm in able)  # a command has none
    return f"the first {'eager row' if has_modes and not compiled else 'row'}{''.join(suffixes)} submitted"


def _distance(arm: Arm) -> tuple[bool, ...]:
    device, compile, dtype, framework = (arm.key.get(name) for name in ("device", "compile", "dtype", "framework"))
    return (
        device != "cpu" or bool(compile),
        bool(compile),
        dtype not in ("fp32", None),
        framework not in ("torch", None),
        bool(arm.key.get("resumed")),
    )


def compare_each(
    requested: Sequence[tuple[Arm, Arm]], arms: Sequence[Arm], question: Question, whole: Sequence[Family] = ()
) -> Family:
    """Judge chosen pairs of these arms, each of them against its own baseline, all per the same unit of work. The
    choice counts all pairs. `whole` is as in `compare`."""
    per_work = next(filter(None, map(differing_work, requested)), "")
    pairs = [pair for pair in requested if all(arm.times and (not per_work or arm.work(per_work)) for arm in pair)]
    aim = _aim(arms, question) if arms else question.aim
    parts = (_within(Family({}, pair, baseline=pair[1]), whole).others for pair in pairs)
    others = {(_runs(arm), _runs(base)): (arm, base) for part in parts for arm, base in part}
    shown = {(_runs(arm), _runs(base)) for arm, base in pairs}
    hidden = [pair for runs, pair in others.items() if runs not in shown]
    family = Family({}, arms, why=CHOSEN, per_work=per_work, aim=aim, others=hidden, is_chosen=True)
    return _answered(family, pairs, [])


def differing_work(arms: Sequence[Arm]) -> str:
    """Return the unit of work in which the iterations of these arms differ; "" if in none."""
    return next((unit for unit in WORK if len({arm.work(unit) for arm in arms} - {None}) > 1), "")


def _able(arms: Sequence[Arm]) -> tuple[str, list[Arm]]:
    """Return the unit of work, if iterations differ in size, and the arms that have a time, of that unit."""
    able = [arm for arm in arms if arm.times]
    per_work = differing_work(able)
    return per_work, [arm for arm in able if not per_work or arm.work(per_work)]


def _judged(family: Family) -> Family:
    """Return the family with its pairs; if iterations differ in size, time per token or sample is compared."""
    per_work, able = _able(family.arms)
    return _answered(replace(family, per_work=per_work), *_pairs(family, able))


ArmPairs = list[tuple[Arm, Arm]]


def _pairs(family: Family, able: Sequence[Arm]) -> tuple[ArmPairs, ArmPairs]:
    """Return the pairs of these arms that are compared: with the family's baseline, and with their eager twins."""
    base = family.baseline
    pairs = [(arm, base) for arm in able if base is not None and base in able and arm is not base]
    return pairs, [(arm, twin) for arm in able if (twin := family.twin(arm)) is not None and twin in able]


def _answered(family: Family, pairs: Sequence[tuple[Arm, Arm]], twins: Sequence[tuple[Arm, Arm]]) -> Family:
    """Return the family with the answers on these pairs."""
    obstacles = run_metrics.obstacles(family.arms, family.named)
    names = sorted(obstacles, key=lambda name: name != family.aim.by)
    family = replace(family, metrics={name: obstacles[name] for name in names})
    both, words, margins = [*pairs, *twins, *family.others], n_words(family), family.aim.margins
    verdicts = judge(both, words, family.per_work, margins.get(OF_TIME))
    metrics = {
        name: judge_metric(both, partial(run_metrics.value, name=name), words, margins.get(name), obstacle)
        for name, obstacle in family.metrics.items()
    }

    def judged(some: Sequence[tuple[Arm, Arm]]) -> list[Pair]:
        return [
            Pair(*pair, verdicts[pair], {name: of[pair] for name, of in metrics.items() if pair in of}) for pair in some
        ]

    return replace(family, pairs=judged(pairs), twins=judged(twins))


def _within(shown: Family, whole: Sequence[Family]) -> Family:
    """Return a family with the pairs of the whole question that it does not show. If none of the families has all of
    its rows, measured as they are, its own pairs are all, and its baseline counts as the user's choice."""
    if shown.baseline is None or not whole:
        return shown
    ours = {_runs(arm): arm for arm in shown.arms}
    for family in whole:
        all_arms = {_runs(arm): arm for arm in family.arms}
        if not ours.keys() <= all_arms.keys() or _measured(family) != _measured(shown):
            continue
        baseline = all_arms[_runs(shown.baseline)]
        pairs, twins = _pairs(replace(family, baseline=baseline), _able(family.arms)[1])
        every = ((ours.get(_runs(arm), arm) for arm in pair) for pair in [*pairs, *twins])
        others = [(arm, base) for arm, base in every if not {arm, base} <= {*shown.arms}]
        return replace(shown, others=others, is_chosen=baseline is not _default_baseline(family).baseline)
    return replace(shown, is_chosen=True)


def _runs(arm: Arm) -> frozenset[int]:
    return frozenset(row.run_id for row in arm.runs)


def _measured(family: Family) -> set[Any]:
    """Return what the times of its rows are those of."""
    return {row.time_of for arm in family.arms for row in arm.runs}


def disturbed_rounds(family: Family) -> set[Any]:
    """Return the rounds in which something disturbed a run."""
    runs = [row for arm in family.arms for row in arm.runs]
    return {round_of(row) for row in runs if DISTURBANCES.intersection(taints(row))} - {None}


def without(family: Family, rounds: Collection[Any]) -> Family:
    """Return the family without these rounds, judged anew."""

    @cache
    def left(arm: Arm) -> Arm:
        runs, used = ([row for row in some if round_of(row) not in rounds] for some in (arm.runs, arm.used))
        return replace(arm, runs=runs, used=used)

    others = [(left(arm), left(base)) for arm, base in family.others]
    baseline = family.baseline and left(family.baseline)
    return _judged(replace(family, arms=[*map(left, family.arms)], baseline=baseline, others=others))


def n_words(family: Family, each_with_each: bool = False) -> int:
    """Return how many verdicts the family's question declares, whatever the report shows of it: its pairs, for the time
    and for each metric that gets words.

    The pairs are each row with the default baseline, and each compiled row with its eager twin. With a baseline of the
    user's choice, or for the two fastest, it is each row with each."""
    return _n_pairs(family, each_with_each) * (1 + sum(not obstacle for obstacle in family.metrics.values()))


def _n_pairs(family: Family, each_with_each: bool) -> int:
    rows = [row for arm in family.arms for row in arm.runs]
    n_rows = max([len(family.arms), *(row.planned_rows for row in rows)])
    if each_with_each or family.is_chosen:
        return all_pairs(n_rows)
    n_compiled = sum(bool(arm.key.get("compile")) for arm in family.arms)
    n_compiled = max([n_compiled, *(row.planned_compiled for row in rows)])
    both = any(family.twin(arm) is family.baseline for arm in family.arms)  # its twin is compared with it anyway
    return n_rows - 1 + max(0, n_compiled - both)
