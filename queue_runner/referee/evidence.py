"""What the rounds of a submission show of its candidate: runs that failed, and the gains in time and metric."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from statistics import stdev

from queue_runner import units
from queue_runner.analysis import run_metrics
from queue_runner.analysis.comparison import Family
from queue_runner.analysis.grouping import Arm
from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.analysis.rounds import SAME_WITHIN, Verdict, judge, judge_metric
from queue_runner.model import Outcome, State
from queue_runner.referee.decision import MARGIN_SPREADS, Gain
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
_REMEDIES = {
    Outcome.TIMED_OUT: "--timeout sets the limit",
    Outcome.SPAWN_FAILED: "the command after -- must exist in both trees",
}


def failure(families: Sequence[Family], metric: str) -> tuple[str, str] | None:
    """Return the role whose run failed or has no value of the metric, and a sentence; None if there is none. The
    champion's come first: where that fails, nothing is known of the candidate. The role is "" where it is nobody's
    fault."""
    runs = [row for family in families for arm in family.arms for row in arm.runs if row.state == State.DONE]
    for role in (CHAMPION, CANDIDATE):
        for row in (row for row in runs if row.name == role):
            if row.outcome in OWN_FAILURES:
                remedy = _REMEDIES.get(Outcome(str(row.outcome)), f"mpsq logs {row.run} shows its output")
                return role, f"the {role} did not succeed in round {row.repeat}, {row.ending}: {remedy}"
            if row.outcome in _STAYS:
                return "", f"the {role} did not run in round {row.repeat}, {row.ending}: mpsq why {row.run}"
            if metric and row.outcome == Outcome.SUCCEEDED and run_metrics.value(row, metric) is None:
                remedy = f"--metric '{metric}=REGEX' must match a line of mpsq logs {row.run}"
                return role, f"the {role} printed no number for {metric} in round {row.repeat}: {remedy}"
    return None


def pair(families: Sequence[Family]) -> tuple[Family, Arm, Arm] | None:
    """Return the family that compares candidate and champion, and these two; None while there is nothing to compare."""
    for family in families:
        for each in family.pairs:
            if (each.arm.runs[0].name, each.baseline.runs[0].name) == (CANDIDATE, CHAMPION):
                return family, each.arm, each.baseline
    return None


def of_time(family: Family, candidate: Arm, champion: Arm, least: float) -> tuple[Verdict, Gain] | None:
    """Return the answer on the time, and the gain as the logarithm of the speedup. `least` is a share."""
    compared = (candidate, champion)
    same_within = family.aim.margins.get(OF_TIME)
    if same_within is None:
        same_within = max(SAME_WITHIN, math.expm1(MARGIN_SPREADS * _spread([*map(math.log, champion.times)])))
    answer = judge([compared], 1, family.per_work, same_within).get(compared)
    if answer is None:
        return None
    gain, low, high = (
        math.log(x) if x else infinite
        for x, infinite in ((answer.change, math.nan), (answer.low, -math.inf), (answer.high, math.inf))
    )
    words = {"subject": "the candidate", "better": "faster", "worse": "slower", "size": answer.size}
    texts = {"margin_text": units.percent(same_within), "least_text": units.percent(least)}
    return answer, Gain(
        gain=gain, low=low, high=high, margin=math.log1p(same_within), least=math.log1p(least), **words, **texts
    )


def of_metric(
    family: Family, candidate: Arm, champion: Arm, name: str, higher: bool, least: float | None
) -> tuple[Verdict, Gain] | None:
    """Return the answer on the metric, and the gain in its unit; None if no run has it. Without `least`, the margin is
    the least gain."""
    compared = (candidate, champion)
    value: Callable[[ReportedRun], float | None] = partial(run_metrics.value, name=name)
    margin = family.aim.margins.get(name)
    if margin is None:
        margin = MARGIN_SPREADS * _spread([x for row in champion.used if (x := value(row)) is not None])
    obstacle = family.metrics.get(name, "")
    answer = judge_metric([compared], value, 1, margin or None, obstacle).get(compared)
    if answer is None:
        return None
    low = -math.inf if answer.low is None else answer.low
    high = math.inf if answer.high is None else answer.high
    ends = (answer.change, low, high) if higher else (-answer.change, -high, -low)
    better, worse = ("higher", "lower") if higher else ("lower", "higher")
    words = {"subject": f"its {name}", "better": better, "worse": worse, "size": answer.size}
    least = margin if least is None else least
    texts = {"margin_text": units.number(margin), "least_text": units.number(least)}
    return answer, Gain(gain=ends[0], low=ends[1], high=ends[2], margin=margin, least=least, **words, **texts)


def _spread(values: Sequence[float]) -> float:
    """Return the standard deviation; 0 while there are too few values, when no interval is finite either."""
    return stdev(values) if len(values) > 1 else 0.0
