"""A judgement as a submission: two rows of one command, in the code of the champion and in that of the candidate. A
contest as submissions: the champion alone, then a judgement for each candidate, then one of what all of them gained."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from queue_runner import units
from queue_runner.control import resubmission
from queue_runner.errors import UsageError
from queue_runner.paths import Layout, expanded
from queue_runner.referee import contest, trees, tricks
from queue_runner.referee.contest import Contest
from queue_runner.referee.decision import LEAST_GAIN, Way
from queue_runner.referee.evidence import CANDIDATE, CHAMPION
from queue_runner.referee.goal import CONFIRM, NAME, Rule
from queue_runner.referee.trees import Tree
from queue_runner.spec import FIRST_ROUNDS, MOST_ROUNDS, OF_TIME, JobSpec, NewJob, Terms, Until
from queue_runner.submit import from_file
from queue_runner.submit import plan as submit
from queue_runner.submit.from_file import Line
from queue_runner.submit.plan import Plan
from queue_runner.submit.submit_options import OPTIONS

BUDGET_S = 2 * 3600.0
"""The default of --budget: 12 rounds of two trainings of five minutes."""
SLACK = 2.0
"""A run with --time-budget is stopped after this many times its budget: it also starts, compiles and evaluates."""
TIME_BUDGET = "MPSQ_TIME_BUDGET_S"
"""The variable in which a program reads the seconds that it may train."""
_SEEDS = 2**31 - 2**16
"""Seeds are drawn below this: the last round's still fits into 32 bits with a sign."""
REFUSED = {
    **dict.fromkeys(("repeats", "until"), "rounds are added until there is an answer, within --budget"),
    **dict.fromkeys(("seed", "snapshot", "name"), "it is chosen for both rows"),
    **dict.fromkeys(
        ("find_max", "on", "hold", "at", "deadline", "retries", "resume"), "the command waits for its rounds here"
    ),
}
"""Fields of a submission that a judgement cannot have, and why."""


class JudgeOptions(Struct, frozen=True):
    """The words of the command line by which candidates are judged."""

    keep_if: str | None = None
    higher: bool = False
    gain: str | None = None
    time_budget: str | None = None
    evaluate: str | None = None

    @property
    def time_budget_s(self) -> float | None:
        """Seconds for which the program trains. Raises: UsageError."""
        return None if self.time_budget is None else units.parse_duration(self.time_budget, "--time-budget")


def rule_of(options: JudgeOptions, fields: Mapping[str, Any]) -> Rule:
    """Return the rule. Raises: UsageError for one that cannot be applied."""
    refuse(fields, "judge")
    metric = metric_of(fields)
    ways = _ways(options.keep_if, metric)
    timed = options.time_budget_s is None
    if not timed and Way.BETTER not in ways:
        raise UsageError("--time-budget fixes the time, so no candidate is faster", "judge by a --metric")
    if options.higher and not metric:
        raise UsageError("--higher needs a metric", "name it with --metric or --by")
    least = {"": LEAST_GAIN} | ({} if options.gain is None else units.parse_margins(options.gain, "--gain"))
    if unknown := sorted(least.keys() - {"", metric}):
        raise UsageError(
            f"--gain names {unknown[0]}, but candidates are not judged by it", "name it with --metric or --by, too"
        )
    if options.evaluate and (metric not in fields.get("metrics", {}) or ":" in metric):
        raise UsageError("--evaluate prints a metric", f"--metric '{metric or 'loss'}=loss ([0-9.]+)' finds it there")
    return Rule(ways if timed else (Way.BETTER,), metric, options.higher, timed, least, options.evaluate or "")


def refuse(fields: Mapping[str, Any], command: str) -> None:
    """Raise UsageError for options of a submission that a command with rounds of two versions cannot have."""
    for name, why in REFUSED.items():
        if name in fields:
            raise UsageError(f"mpsq {command} has no {OPTIONS[name].flag}: {why}", "leave it out")
    if not fields.get("argv"):
        raise UsageError(f"mpsq {command} needs a command to run in each version", "as in -- python train.py")


def metric_of(fields: Mapping[str, Any]) -> str:
    """Return the metric that decides, "" for the time. Raises: UsageError where several could."""
    metrics = list(fields.get("metrics", {}))
    if (by := fields.get("by")) is not None:
        return str(by)
    if len(metrics) > 1:
        raise UsageError(f"{len(metrics)} metrics are given, and only one can decide", f"add --by {metrics[0]}")
    return metrics[0] if metrics else OF_TIME


def folder_of(fields: Mapping[str, Any]) -> Path:
    """Return the folder in which the command starts. Raises: UsageError where there is none."""
    cwd = Path.cwd() / expanded(fields.get("cwd") or "")
    if not cwd.is_dir():
        raise UsageError(f"there is no folder {cwd}", "--cwd takes the folder in which the command runs")
    return cwd


def _ways(text: str | None, metric: str) -> tuple[Way, ...]:
    words = text.split(",") if text else [way for way in Way if metric or way is Way.FASTER]
    try:
        ways = tuple(way for way in Way if way in {Way(word.strip()) for word in words})
    except ValueError:
        raise UsageError(f'--keep-if: "{text}" is not a rule', "write faster, better, or faster,better") from None
    if Way.BETTER in ways and not metric:
        raise UsageError("--keep-if better needs a metric", "name it with --metric 'loss=loss ([0-9.]+)' or --by loss")
    return ways


def plan(layout: Layout, champion: str, candidate: str, options: JudgeOptions, fields: Mapping[str, Any]) -> Plan:
    """Return the plan of a judgement with its first round. Raises: UsageError."""
    rule, budget_s, cwd = _terms(options, fields)
    both = trees.find(champion, candidate, cwd, layout)
    planned = _of_trees(both, rule, options, budget_s, fields)
    return replace(submit.in_rounds(planned, Until(rule.to_goal(NAME), budget_s), first=1), check_code=tricks.refuse)


def _terms(options: JudgeOptions, fields: Mapping[str, Any]) -> tuple[Rule, float, Path]:
    """Return the rule, the budget, and the folder in which the command starts. Raises: UsageError."""
    rule = rule_of(options, fields)
    budget_s = fields.get("budget_s") or BUDGET_S
    least_s = 2 * FIRST_ROUNDS * (options.time_budget_s or 0.0)
    if budget_s < least_s:
        raise UsageError(
            f"{FIRST_ROUNDS} rounds of two runs take {units.duration(least_s)}, more than --budget",
            f"--budget {units.duration(least_s)} is the least",
        )
    return rule, budget_s, folder_of(fields)


def _of_trees(
    both: tuple[Tree, Tree], rule: Rule, options: JudgeOptions, budget_s: float, fields: Mapping[str, Any]
) -> Plan:
    """Return the plan of one run in each of two trees. Raises: UsageError."""
    rows = {name: {"cwd": str(tree.cwd)} for name, tree in zip((CHAMPION, CANDIDATE), both, strict=True)}
    limit_s = budget_s if options.time_budget_s is None else SLACK * options.time_budget_s
    planned = plan_of_two("judge", rows, [code_of(tree) for tree in both], fields, rule.metric, limit_s)
    spec, given = planned.jobs[0].spec, _given(options.time_budget_s)
    changes = {
        "env": {**spec.env, **given},
        "variables": {**spec.variables, **given},
        "within": _within(rule, spec, 0),
    }
    jobs = tuple(replace(job, spec=job.spec.changed(**changes)) for job in planned.jobs)
    return replace(planned, jobs=jobs, commits=_commits(both))


def plan_of_two(
    command: str,
    rows: Mapping[str, Mapping[str, Any]],
    codes: Sequence[Mapping[str, Any]],
    fields: Mapping[str, Any],
    metric: str,
    limit_s: float,
) -> Plan:
    """Return the plan of one run in each of two rows, given by name with their fields, and with their stored code.

    Each is a copy, has a drawn seed, the same for both, and a limit of its time. Raises: UsageError."""
    lines = [Line(name, name, {"name": name, "command": list(fields["argv"]), **row}) for name, row in rows.items()]
    defaults = {name: value for name, value in fields.items() if name not in ("argv", "cwd", "budget_s")}
    planned = from_file.plan_of(lines, {**defaults, "by": metric})
    if len(planned.jobs) != len(rows):
        raise UsageError(f"an option of mpsq {command} cannot have several values", "give each option one value")
    spec = planned.jobs[0].spec
    shared = {
        "copy": True,
        "seed": drawn(),
        "seed_by_round": True,
        "timeout_s": limit_s if spec.timeout_s is None else spec.timeout_s,
        "within": (*SEALED, "--"),
    }
    jobs = (
        replace(job, spec=job.spec.changed(**shared, **code)) for job, code in zip(planned.jobs, codes, strict=True)
    )
    return replace(planned, jobs=tuple(jobs))


def _commits(both: Sequence[Tree]) -> dict[int, str]:
    return {number: tree.commit for number, tree in enumerate(both) if tree.commit}


def code_of(tree: Tree) -> dict[str, Any]:
    """Return the fields of the stored code that a row runs; {} where it is taken at submit."""
    return {} if tree.job is None else {name: getattr(tree.job, name) for name in _CODE}


_CODE = ("snapshot", "tree", "code", "root", "inside")


def _given(time_budget_s: float | None) -> dict[str, str]:
    return {} if time_budget_s is None else {TIME_BUDGET: f"{time_budget_s:g}"}


def drawn() -> int:
    """Return the seed of a first round, which nobody knows before."""
    return 1 + secrets.randbelow(_SEEDS)


def _within(rule: Rule, spec: JobSpec, evaluator: int) -> tuple[str, ...]:
    """Return the program that starts each run. The code of job `evaluator` computes the metric; 0: the champion's."""
    evaluation = (str(evaluator), rule.evaluate, spec.metrics[rule.metric]) if rule.evaluate else ()
    return (*SEALED, *(("--evaluate", *evaluation) if evaluation else ()), "--")


SEALED = (sys.executable, "-I", "-S", "-B", str(Path(__file__).with_name("sealed.py")))


# -- contests ---------------------------------------------------------------------------------------------------------


def plan_contest(
    layout: Layout, name: str, planned: int, champion: str, options: JudgeOptions, fields: Mapping[str, Any]
) -> Plan:
    """Return the plan of one run of the champion, by which the contest is known. Raises: UsageError."""
    rule, budget_s, cwd = _terms(options, fields)
    if not contest.NAME.fullmatch(name):
        raise UsageError(f'"{name}" is not a name for a contest', "use letters, digits, _ and -")
    if not 1 <= planned <= contest.MOST_PLANNED:
        raise UsageError(f"--plan {planned} is out of range", f"plan 1 to {contest.MOST_PLANNED:,} candidates")
    tree = trees.named("--champion", champion, cwd, layout)
    trees.refuse_left_out([tree], layout)
    alone = _of_trees((tree, tree), rule, options, budget_s, fields)
    conditions = contest.Conditions(name, planned, budget_s, options.time_budget_s, rule, champion)
    until = Until(conditions.to_goal(contest.GOAL))
    return replace(
        submit.in_rounds(replace(alone, jobs=alone.jobs[:1], own_after=alone.own_after[:1]), until, first=1),
        commits=_commits([tree]),
        check_queue=partial(contest.refuse_name, name),
    )


def plan_candidate(layout: Layout, entered: Contest, candidate: str, label: str, title: str) -> Plan:
    """Return the plan of the judgement of the next candidate, with its first round. Raises: UsageError."""
    entered.refuse_next()
    entered.refuse_without_metric(layout)
    cwd = Path(entered.first.spec.cwd)
    if not cwd.is_dir():
        raise UsageError(f"the folder of the contest, {cwd}, is gone", "mpsq contest new starts another one")
    tree = trees.named("candidate", candidate, cwd, layout, here=Path.cwd())
    trees.refuse_left_out([tree], layout)
    number = min(len(entered.proposals) + 1, entered.conditions.planned)  # check_code refuses one beyond the plan
    rule = replace(
        entered.conditions.rule,
        n_words=contest.n_words(entered.conditions.planned, len(entered.won), number),
        contest=entered.group,
        number=number,
        label=label or candidate,
    )
    return replace(
        _again(layout, entered, tree, title, Until(rule.to_goal(NAME), entered.conditions.budget_s), 1),
        check_code=partial(_refuse_code, entered, candidate),
        check_queue=entered.refuse_change,
    )


def _refuse_code(entered: Contest, candidate: str, layout: Layout, specs: Sequence[JobSpec]) -> None:
    """Raise UsageError if the candidate, the last of the jobs, cannot be entered, or plays a trick."""
    entered.refuse_code(layout, candidate, specs[-1])
    tricks.refuse(layout, specs)


def plan_confirmation(layout: Layout, entered: Contest, rounds: int, title: str) -> Plan:
    """Return the plan of fresh rounds of the first champion and of the last one. Raises: UsageError."""
    entered.refuse_confirmation()
    if not FIRST_ROUNDS <= rounds <= MOST_ROUNDS:
        raise UsageError(f"--rounds {rounds} is out of range", f"give {FIRST_ROUNDS} to {MOST_ROUNDS}")
    last = entered.champion(layout)
    tree = Tree("champion", Path(last.spec.cwd), job=last.spec)
    rule = replace(entered.conditions.rule, contest=entered.group, label="the last champion")
    return _again(layout, entered, tree, title, Until(rule.to_goal(CONFIRM)), rounds, of_first=True)


def _again(
    layout: Layout, entered: Contest, tree: Tree, title: str, until: Until, rounds: int, *, of_first: bool = False
) -> Plan:
    """Return the plan of rounds of a tree and of the champion, the newest or the first one, run as the contest says."""
    first, conditions = entered.first, entered.conditions
    rival = first if of_first else entered.champion(layout)
    variables = {name: value for name, value in first.spec.variables.items() if name != TIME_BUDGET}
    spec = resubmission.with_todays_environment(layout, first.spec.changed(variables=variables), first.job)
    given = _given(conditions.time_budget_s)
    shared = spec.changed(
        snapshot=None,
        **dict.fromkeys(_CODE[1:], ""),
        seed=drawn(),
        timeout_s=entered.limit_s,
        env={**spec.env, **given},
        variables={**spec.variables, **given},
        within=_within(conditions.rule, spec, first.job),
    )
    both = Tree("champion", Path(rival.spec.cwd), job=rival.spec), tree
    jobs = tuple(
        NewJob(shared.changed(name=name, cwd=str(each.cwd), **code_of(each)), terms=Terms(priority=first.priority))
        for name, each in zip((CHAMPION, CANDIDATE), both, strict=True)
    )
    planned = Plan(title, submit.drawn(None), jobs, aim=entered.aim, commits=_commits(both))
    return submit.in_rounds(planned, until, first=rounds)
