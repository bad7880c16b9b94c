"""What the rounds of a submission show of its candidate: runs that failed, and the gains in time and metric."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from statistics import stdev

from msgspec.structs import replace

from queue_runner import units
from queue_runner.analysis import run_metrics
from queue_runner.analysis.comparison import Family, Question, compare_each
from queue_runner.analysis.grouping import Arm, group, taints
from queue_runner.analysis.intervals import FIRST_LOOK
from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.analysis.rounds import SAME_WITHIN, Verdict, judge, judge_metric
from queue_runner.model import WROTE_OUTSIDE, Outcome, State
from queue_runner.referee.decision import MARGIN_SPREADS, MOST_SLOWER, NO_LOSS_SD, Gain
from queue_runner.spec import OF_TIME

CHAMPION, CANDIDATE = "champion", "candidate"
"""The names of the two rows."""
OWN_FAILURES = frozenset(
    {
        *(Outcome.FAILED, Outcome.KILLED, Outcome.SPAWN_FAILED, Outcome.TIMED_OUT, Outcome.STALLED),
        *(Outcome.OUT_OF_MEMORY, Outcome.OUTPUT_LIMIT, Outcome.DEVICE_UNAVAILABLE),
    }
)
"""Outcomes that a program causes."""
_STAYS = frozenset({Outcome.CODE_CHANGED, Outcome.DISK_FULL})
"""Outcomes that a further round would have, too; others, such as LOST, only cost the round."""
_INVALID = {
    **{"wrong_loss": "computed a wrong loss", "wrong_result": "computed a wrong result"},
    **{"diverged": "diverged", "unobserved": "reported no iteration"},
}
"""Marks of a run that succeeded and never counts, because of what the program computed."""
_REMEDIES = {
    Outcome.TIMED_OUT: "--timeout sets the limit",
    Outcome.SPAWN_FAILED: "the command after -- must exist in both trees",
}


def failure(
    families: Sequence[Family], metric: str, roles: tuple[str, str] = (CHAMPION, CANDIDATE)
) -> tuple[str, str] | None:
    """Return the role whose run failed or has no value of the metric, and a sentence; None if there is none. The
    champion's come first: where that fails, nothing is known of the candidate. The role is "" where it is nobody's
    fault. `roles` are the names of the two rows. Of each round the last attempt counts."""
    runs = (row for family in families for arm in family.arms for row in arm.runs if row.state == State.DONE)
    last = {(row.name, row.repeat): row for row in sorted(runs, key=lambda row: row.run_id)}
    for role in roles:
        subject = f"the {role}" if role in (CHAMPION, CANDIDATE) else role
        for row in (row for row in last.values() if row.name == role):
            if row.outcome in OWN_FAILURES:
                remedy = _REMEDIES.get(Outcome(str(row.outcome)), f"mpsq logs {row.run} shows its output")
                return role, f"{subject} did not succeed in round {row.repeat}, {row.ending}: {remedy}"
            if row.outcome in _STAYS:
                return "", f"{subject} did not run in round {row.repeat}, {row.ending}: mpsq why {row.run}"
            if kind := next((kind for kind in taints(row) if kind in _INVALID), ""):
                return role, f"{subject} {_INVALID[kind]} in round {row.repeat}: mpsq show {row.run}"
            if metric and row.outcome == Outcome.SUCCEEDED and run_metrics.value(row, metric) is None:
                remedy = f"--metric '{metric}=REGEX' must match a line of mpsq logs {row.run}"
                return role, f"{subject} printed no number for {metric} in round {row.repeat}: {remedy}"
    return None


def trick(families: Sequence[Family], metric: str) -> str:
    """Return why the candidate's numbers are not believed; "" where nothing speaks against them. A trick is only what
    the champion does not do, too."""
    runs = [row for family in families for arm in family.arms for row in arm.ended if row.outcome == Outcome.SUCCEEDED]
    champion, candidate = ([row for row in runs if row.name == role] for role in (CHAMPION, CANDIDATE))
    usual = {kind for row in champion for kind in taints(row)}
    seeds = {row.repeat: row.seed for row in champion if row.seed is not None}
    data = {row.data_sha256 for row in champion} - {None}
    for row in candidate if champion else ():
        reasons = [why for kind, why in _SUSPECT.items() if kind in taints(row) and kind not in usual]
        if _is_short(row) and not any(map(_is_short, champion)):
            reasons.append(f"it announced {row.planned_iters} iterations and reported {row.n_iters or 0}")
        if data and row.data_sha256 not in data:
            reasons.append("it reports other data than the champion")
        if row.seed is not None and row.seed != seeds.get(row.repeat, row.seed):
            reasons.append("it reports another seed than the champion")
        if reasons:
            return f"the candidate is refused, because in round {row.repeat} {reasons[0]}: mpsq show {row.run}"
    values, others = ([run_metrics.value(row, metric) for row in rows] for rows in (candidate, champion))
    if metric and len(values) >= FIRST_LOOK and len({*values}) == 1 < len({*others}):
        return f"the candidate is refused, because its {metric} is the same in all rounds: it ignores MPSQ_SEED"
    return ""


_SUSPECT = {
    "wrong_clock": "its times contradict the clock",
    "unsynced": "its clock did not wait for the device",
    "iterations_missing": "it left out iterations",
    "log_rewritten": "it rewrote what it had reported",
    WROTE_OUTSIDE: "it changed files that both rows read",
}
"""Marks of a run that make its numbers look better than they are."""


def _is_short(row: ReportedRun) -> bool:
    return row.planned_iters is not None and (row.n_iters or 0) < row.planned_iters


def of_two(families: Sequence[Family], names: tuple[str, str]) -> Family | None:
    """Return the rows of these names, compared with the first; None if they cannot be.

    All runs of a name are one row, whatever they say of themselves: a program that called itself something else in its
    slow rounds would leave these out."""
    for family in families:
        runs = [row.changed(config=None) for arm in family.arms for row in arm.runs if row.name in names]
        rows = {arm.runs[0].name: replace(arm, label=arm.runs[0].name) for arm in group(runs, ())}
        if len(rows) == len(names):
            first, second = (rows[name] for name in names)
            return compare_each([(second, first)], (first, second), Question((), aim=family.aim))
    return None


def pair(families: Sequence[Family]) -> tuple[Family, Arm, Arm] | None:
    """Return the family of candidate and champion, and these two; None while there is nothing to compare."""
    family = of_two(families, (CHAMPION, CANDIDATE))
    return None if family is None or not family.pairs else (family, family.pairs[0].arm, family.pairs[0].baseline)


def of_time(family: Family, candidate: Arm, champion: Arm, least: float, n_words: int) -> tuple[Verdict, Gain] | None:
    """Return the answer on the time, and the gain as the logarithm of the speedup. `least` is a share."""
    compared = (candidate, champion)
    same_within = family.aim.margins.get(OF_TIME)
    if same_within is None:
        spread = MARGIN_SPREADS * _spread([*map(math.log, champion.times)])
        same_within = max(SAME_WITHIN, min(math.expm1(spread), MOST_SLOWER))
    answer = judge([compared], n_words, family.per_work, same_within).get(compared)
    alone = judge([compared], 1, family.per_work, same_within, NO_LOSS_SD).get(compared)
    if answer is None or alone is None:
        return None
    words = {"subject": "the candidate", "better": "faster", "worse": "slower", "size": answer.size}
    texts = {"margin_text": units.percent(same_within), "least_text": units.percent(least)}
    return answer, _gain(answer, alone, math.log1p(same_within), math.log1p(least), **words, **texts)


def of_metric(
    family: Family, candidate: Arm, champion: Arm, name: str, higher: bool, least: float | None, n_words: int
) -> tuple[Verdict, Gain] | None:
    """Return the answer on the metric, and the gain in its unit; None if no run has it. Without `least`, the margin is
    the least gain."""
    compared = (candidate, champion)
    value: Callable[[ReportedRun], float | None] = partial(run_metrics.value, name=name)
    margin = family.aim.margins.get(name)
    if margin is None:
        margin = MARGIN_SPREADS * _spread([x for row in champion.used if (x := value(row)) is not None])
    obstacle = family.metrics.get(name, "")
    answer = judge_metric([compared], value, n_words, margin or None, obstacle).get(compared)
    alone = judge_metric([compared], value, 1, margin or None, obstacle, NO_LOSS_SD).get(compared)
    if answer is None or alone is None:
        return None
    better, worse = ("higher", "lower") if higher else ("lower", "higher")
    words = {"subject": f"its {name}", "better": better, "worse": worse, "size": answer.size}
    least = margin if least is None else least
    texts = {"margin_text": units.number(margin), "least_text": units.number(least)}
    gained, gained_alone = (answer, alone) if higher else (answer.mirrored(), alone.mirrored())
    return answer, _gain(gained, gained_alone, margin, least, **words, **texts)


def _gain(answer: Verdict, alone: Verdict, margin: float, least: float, **texts: str) -> Gain:
    (low, high), (low_alone, high_alone) = map(_ends, (answer, alone))
    return Gain(
        gain=answer.on_scale[0],
        low=low,
        high=high,
        low_alone=low_alone,
        high_alone=high_alone,
        margin=margin,
        least=least,
        **texts,
    )


def _ends(answer: Verdict) -> tuple[float, float]:
    """Return the ends of the interval on a scale whose 0 means no gain; infinite where nothing is excluded."""
    scale = math.log if answer.of_time else float
    low, high = answer.low, answer.high
    return -math.inf if low is None else scale(low), math.inf if high is None else scale(high)


def _spread(values: Sequence[float]) -> float:
    """Return the standard deviation; 0 while there are too few values, when no interval is finite either."""
    return stdev(values) if len(values) > 1 else 0.0
