"""A judgement as a submission: two rows of one command, in the code of the champion and in that of the candidate."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from queue_runner import units
from queue_runner.errors import UsageError
from queue_runner.paths import Layout
from queue_runner.referee import trees
from queue_runner.referee.decision import LEAST_GAIN, Way
from queue_runner.referee.evidence import CANDIDATE, CHAMPION
from queue_runner.referee.goal import Rule
from queue_runner.referee.trees import Tree
from queue_runner.spec import FIRST_ROUNDS, JobSpec, Until
from queue_runner.submit import from_file
from queue_runner.submit import plan as submit
from queue_runner.submit.from_file import Line
from queue_runner.submit.plan import Plan

BUDGET_S = 2 * 3600.0
"""The default of --budget: 12 rounds of two trainings of five minutes."""
SLACK = 2.0
"""A run with --time-budget is stopped after this many times its budget: it also starts, compiles and evaluates."""
TIME_BUDGET = "MPSQ_TIME_BUDGET_S"
"""The variable in which a program reads the seconds that it may train."""
_SEEDS = 2**31 - 2**16
"""Seeds are drawn below this: the last round's still fits into 32 bits with a sign."""
_REFUSED = {
    **dict.fromkeys(("repeats", "until"), "it adds rounds until it can answer, within --budget"),
    **dict.fromkeys(("seed", "snapshot", "name"), "judge chooses it for both rows"),
    **dict.fromkeys(
        ("find_max", "on", "hold", "at", "deadline", "retries", "resume"), "judge waits for its rounds here"
    ),
}
"""Fields of a submission that a judgement cannot have, and why."""


@dataclass(frozen=True, slots=True)
class JudgeOptions:
    """The words of the command line that only a judgement has."""

    champion: str
    candidate: str
    keep_if: str | None = None
    higher: bool = False
    gain: str | None = None
    time_budget_s: float | None = None


def rule_of(options: JudgeOptions, fields: Mapping[str, Any]) -> Rule:
    """Return the rule. Raises: UsageError for one that cannot be applied."""
    for name, why in _REFUSED.items():
        if name in fields:
            raise UsageError(f"mpsq judge has no --{name.replace('_', '-')}: {why}", "leave it out")
    metrics = list(fields.get("metrics", {}))
    metric = fields.get("by") or (metrics[0] if len(metrics) == 1 else "")
    if len(metrics) > 1 and not metric:
        raise UsageError(f"{len(metrics)} metrics cannot decide together", f"--by {metrics[0]} judges by that one")
    ways = _ways(options.keep_if, metric)
    timed = options.time_budget_s is None
    if not timed and Way.BETTER not in ways:
        raise UsageError("--time-budget fixes the time, so no candidate is faster", "judge by a --metric")
    if options.higher and not metric:
        raise UsageError("--higher needs a metric", "name it with --metric or --by")
    least = {"": LEAST_GAIN} | ({} if options.gain is None else units.parse_margins(options.gain, "--gain"))
    if unknown := sorted(least.keys() - {"", metric}):
        raise UsageError(f"--gain: {unknown[0]} is not the metric that is judged", "name it with --metric or --by")
    return Rule(ways if timed else (Way.BETTER,), metric, options.higher, timed, least)


def _ways(text: str | None, metric: str) -> tuple[Way, ...]:
    words = text.split(",") if text else [way for way in Way if metric or way is Way.FASTER]
    try:
        ways = tuple(way for way in Way if way in {Way(word.strip()) for word in words})
    except ValueError:
        raise UsageError(f'--keep-if: "{text}" is not a rule', "write faster, better, or faster,better") from None
    if Way.BETTER in ways and not metric:
        raise UsageError("--keep-if better needs a metric", "name it with --metric 'loss=loss ([0-9.]+)' or --by loss")
    return ways


def plan(layout: Layout, options: JudgeOptions, fields: Mapping[str, Any]) -> Plan:
    """Return the plan of a judgement with its first round. Raises: UsageError."""
    rule = rule_of(options, fields)
    if not fields.get("argv"):
        raise UsageError("mpsq judge takes a command, which runs in both trees", "it goes after --: -- python train.py")
    budget_s = fields.get("budget_s") or BUDGET_S
    _refuse_budget(budget_s, options.time_budget_s)
    cwd = Path.cwd() / Path(fields.get("cwd") or "").expanduser()
    if not cwd.is_dir():
        raise UsageError(f"there is no folder {cwd}", "--cwd takes the folder in which the command runs")
    both = trees.find(options.champion, options.candidate, cwd, layout)
    lines = [
        Line(option, name, {"name": name, "command": list(fields["argv"]), "cwd": str(tree.cwd)})
        for option, name, tree in zip(("--champion", "--candidate"), (CHAMPION, CANDIDATE), both, strict=True)
    ]
    defaults = {name: value for name, value in fields.items() if name not in ("argv", "cwd", "budget_s")}
    planned = from_file.plan_of(lines, {**defaults, "by": rule.metric or None})
    if len(planned.jobs) != len(both):
        raise UsageError(
            "mpsq judge compares two versions of the code, so an option cannot have several values",
            "give each option one value",
        )
    changes = _changes(planned.jobs[0].spec, options.time_budget_s, budget_s)
    jobs = (
        replace(job, spec=job.spec.changed(**changes, **_code(tree)), repeats=1)
        for job, tree in zip(planned.jobs, both, strict=True)
    )
    return replace(
        submit.in_rounds(planned, Until(rule.to_goal(), budget_s), first=1),
        jobs=tuple(jobs),
        commits={number: tree.commit for number, tree in enumerate(both) if tree.commit},
    )


def _code(tree: Tree) -> dict[str, Any]:
    """Return the fields of the stored code that a row runs; {} where it is taken at submit."""
    names = ("snapshot", "tree", "code", "root", "inside")
    return {} if tree.job is None else {name: getattr(tree.job, name) for name in names}


def _changes(spec: JobSpec, time_budget_s: float | None, budget_s: float) -> dict[str, Any]:
    """Return what both rows share: always a copy, drawn seeds, and a limit of each run."""
    limit_s = budget_s if time_budget_s is None else SLACK * time_budget_s
    given = {} if time_budget_s is None else {TIME_BUDGET: f"{time_budget_s:g}"}
    return {
        "copy": True,
        "seed": 1 + secrets.randbelow(_SEEDS),
        "seed_by_round": True,
        "timeout_s": limit_s if spec.timeout_s is None else spec.timeout_s,
        "env": {**spec.env, **given},
        "variables": {**spec.variables, **given},
    }


def _refuse_budget(budget_s: float, time_budget_s: float | None) -> None:
    least_s = 2 * FIRST_ROUNDS * (time_budget_s or 0.0)
    if budget_s < least_s:
        raise UsageError(
            f"{FIRST_ROUNDS} rounds of two runs take {units.duration(least_s)}, more than --budget",
            f"--budget {units.duration(least_s)} is the least",
        )
