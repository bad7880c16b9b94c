"""A contest: its champion, the candidates that were judged against it, and their answers.

Its submissions are all that is stored. `mpsq contest new` submits one run of the champion, whose goal has the
conditions. The goal of each judgement names the contest and its place in it, and why its rounds ended is its answer. So
whatever is killed, each of these is there or not, and two shells cannot both enter the next candidate.
"""

from __future__ import annotations

import math
import re
import sqlite3
from collections.abc import Collection, Sequence
from functools import cached_property

from msgspec import Struct, json

from queue_runner import units
from queue_runner.analysis.comparison import Family
from queue_runner.analysis.intervals import ALPHA
from queue_runner.errors import MpsqError, UsageError, did_you_mean
from queue_runner.model import Outcome
from queue_runner.monitor import answers
from queue_runner.paths import Layout
from queue_runner.referee.decision import Choice
from queue_runner.referee.evidence import CANDIDATE, CHAMPION, failure
from queue_runner.referee.goal import Goal, Rule, stored_answer
from queue_runner.spec import FIRST_ROUNDS, Aim, JobSpec
from queue_runner.store import read
from queue_runner.store.engine import Connection

GOAL = "contest"
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
MOST_PLANNED = 10_000
SLOWEST, SLOWEST_S = 3.0, 60.0
"""A candidate that runs this many times as long as the champion did, and so many seconds, is stopped: it may hang."""

_NAMED = """
SELECT id FROM groups WHERE CASE WHEN until LIKE 'contest {%' THEN json_extract(substr(until, 9), '$.name') END = :name
"""
_ENTERED = """
SELECT id FROM groups WHERE id > :contest
AND CASE WHEN until LIKE 'judge {%' THEN json_extract(substr(until, 7), '$.contest') END = :contest
"""
_COUNTED = """
SELECT g.id, (SELECT json_extract(substr(until, 9), '$.name') FROM groups WHERE id = contest) FROM (
    SELECT id, CASE WHEN until LIKE 'judge {%' THEN json_extract(substr(until, 7), '$.contest') END AS contest
    FROM groups
) g JOIN jobs j ON j.group_id = g.id WHERE j.id IN (SELECT value FROM json_each(:erased))
AND contest IN (SELECT group_id FROM jobs WHERE id NOT IN (SELECT value FROM json_each(:erased))) LIMIT 1
"""
"""A candidate of which jobs are to be erased, and its contest, if that stays."""
_FIRST = """
SELECT g.until, g.aim, j.id, j.spec_json, j.priority, r.outcome, e.real_s
FROM groups g JOIN jobs j ON j.group_id = g.id JOIN runs r ON r.job_id = j.id LEFT JOIN exits e ON e.run_id = r.id
WHERE g.id = ? ORDER BY r.attempt DESC LIMIT 1
"""
_PROPOSALS = f"""
SELECT g.id, substr(g.until, 7), g.closed_why, g.created_at, COALESCE(g.closed_at, 0),
    (SELECT max(id) FROM jobs WHERE group_id = g.id AND name = '{CANDIDATE}'),
    (SELECT count(DISTINCT r.repeat) FROM runs r JOIN jobs j ON j.id = r.job_id WHERE j.group_id = g.id
        AND r.state = 'DONE' AND r.started_at IS NOT NULL)
FROM groups g WHERE g.id IN ({_ENTERED}) ORDER BY g.id
"""


class Conditions(Goal, frozen=True):
    """The conditions of a contest, which hold for each candidate. `champion` is the name by which it was given."""

    name: str
    planned: int
    budget_s: float
    time_budget_s: float | None
    rule: Rule
    champion: str = CHAMPION


class Entrant(Struct, frozen=True):
    """A job whose code is the champion's."""

    job: int
    spec: JobSpec
    priority: int = 0


class Proposal(Struct, frozen=True):
    """A candidate of a contest, by its submission: its name, and its answer, None until there is one."""

    group: int
    number: int
    label: str
    job: int
    rounds: int
    answer: Choice | None
    began_at: float
    ended_at: float

    @property
    def took_s(self) -> float | None:
        """How long it was judged, never below 0 although clocks are set back; None while it is."""
        return None if self.answer is None else max(self.ended_at - self.began_at, 0.0)


class Contest(Struct, frozen=True, dict=True):
    """A contest as it stands. `outcome` and `run_s` are those of the champion's first run."""

    group: int
    conditions: Conditions
    aim: Aim
    first: Entrant
    outcome: str | None
    run_s: float | None
    proposals: Sequence[Proposal] = ()

    @cached_property
    def won(self) -> list[Proposal]:
        """The proposals that were kept."""
        return [proposal for proposal in self.proposals if proposal.answer is Choice.KEEP]

    @property
    def pending(self) -> Proposal | None:
        """The proposal that is being judged, if any."""
        return next((proposal for proposal in self.proposals if proposal.answer is None), None)

    @property
    def left(self) -> int:
        """The number of planned candidates that have no answer."""
        return self.conditions.planned - sum(proposal.answer is not None for proposal in self.proposals)

    @property
    def left_s(self) -> float | None:
        """About how long these will take; None if nobody can tell."""
        took = [proposal.took_s for proposal in self.proposals if proposal.took_s is not None]
        usual_s = sum(took) / len(took) if took else self.run_s and 2 * _USUAL_ROUNDS * self.run_s
        return usual_s and usual_s * self.left

    @property
    def limit_s(self) -> float | None:
        """The time limit of a run: that which was given, and never much longer than the champion took."""
        limit_s = self.first.spec.timeout_s
        return limit_s if self.run_s is None or limit_s is None else min(limit_s, SLOWEST * self.run_s + SLOWEST_S)

    def champion(self, layout: Layout) -> Entrant:
        """Return the champion of now: the candidate that was kept last, else the first champion."""
        return _entrant(layout, self.won[-1]) if self.won else self.first

    def refuse_without_metric(self, layout: Layout) -> None:
        """Raise MpsqError if the champion's run has no value of the metric."""
        with read.reading(layout.db) as connection:
            broken = failure(answers.of_group(connection, self.group), self.conditions.rule.metric)
        if broken:
            raise MpsqError(broken[1], f"mpsq contest new {self.conditions.name} starts it again")

    def refuse_next(self) -> None:
        """Raise UsageError where no candidate can be judged."""
        name = self.conditions.name
        if self.outcome is None:
            raise UsageError(f"the champion of {name} has not run yet", f"mpsq wait g{self.group} waits for it")
        if self.outcome != Outcome.SUCCEEDED:
            again = f"mpsq why g{self.group} explains it; mpsq contest new {name} starts it again"
            raise UsageError(f"the champion of {name} did not succeed: {self.outcome}", again)
        least_s = 2 * FIRST_ROUNDS * (self.run_s or 0.0)
        if least_s > self.conditions.budget_s:
            raise UsageError(
                f"{FIRST_ROUNDS} rounds take about {units.duration(least_s)}, more than the --budget of {name}",
                f"start another contest with --budget {units.duration(2 * least_s)}",
            )

    def refuse_code(self, layout: Layout, candidate: str, code: JobSpec) -> None:
        """Raise AlreadyEntered if this candidate has no answer yet; UsageError if it is the champion, or no further
        candidate can be judged now."""
        name, planned = self.conditions.name, self.conditions.planned
        if self.pending is not None:
            number, group = self.pending.number, self.pending.group
            if _is_same(_entrant(layout, self.pending).spec, code):
                raise AlreadyEntered(f"this is candidate {number} of {name}, g{group}", group)
            raise UsageError(
                f"candidate {number} of {name} (g{group}) has no answer yet",
                f"mpsq judge --again g{group} follows it, mpsq cancel g{group} abandons it",
            )
        if len(self.proposals) >= planned:
            raise UsageError(
                f"all {planned} planned candidates of {name} have been judged",
                f"mpsq contest confirm {name} measures what they gained; a new contest takes a larger --plan",
            )
        if _is_same(self.champion(layout).spec, code):
            raise UsageError(
                f"{candidate} has the same code as the champion", "commit the change, or name the folder that has it"
            )

    def refuse_confirmation(self) -> None:
        """Raise UsageError where nothing can be confirmed now."""
        name = self.conditions.name
        if self.pending is not None:
            raise UsageError(
                f"candidate {self.pending.number} of {name} has no answer yet", f"mpsq contest show {name}"
            )
        if not self.won:
            raise UsageError(f"{name} kept no candidate, so there is no gain to confirm", f"mpsq contest show {name}")

    def refuse_change(self, connection: Connection) -> None:
        """Raise UsageError if another candidate has been entered since this was read."""
        groups = connection.column(f"{_ENTERED} ORDER BY id", {"contest": self.group})
        if groups != [proposal.group for proposal in self.proposals]:
            raise UsageError(
                f"another candidate of {self.conditions.name} was entered at the same time (g{groups[-1]})",
                "wait for its answer, then enter this one",
            )


class AlreadyEntered(UsageError):
    """The candidate is that of `group`, entered by a program that was killed since, or by another one."""

    def __init__(self, message: str, group: int) -> None:
        super().__init__(message, f"mpsq judge --again g{group} follows it")
        self.group = group


def _entrant(layout: Layout, proposal: Proposal) -> Entrant:
    with read.reading(layout.db) as connection:
        (spec_json,) = read.tuples(connection, "SELECT spec_json FROM jobs WHERE id = ?", [proposal.job]).fetchone()
    return Entrant(proposal.job, JobSpec.from_json(spec_json))


def _is_same(code: JobSpec, other: JobSpec) -> bool:
    return bool(code.tree) and (code.tree, code.inside) == (other.tree, other.inside)


_USUAL_ROUNDS = 5.7
"""The mean number of rounds of a simulated proposal (docs/simulations.md)."""
FALSE_SHARE = 0.1
"""The share of the changes that are kept which gain nothing, at most, in expectation: by e-LOND (Xu & Ramdas 2024,
"Online multiple testing with e-values", AISTATS), which judges each proposal at its own level. It holds although
proposals depend on earlier answers: the evidence of analysis/intervals.py, at the round of the answer, is one."""


def level(planned: int, n_kept: int, number: int) -> float:
    """Return the level of proposal `number`, from 1, of so many planned ones, after `n_kept` were kept before it.

    The planned ones share FALSE_SHARE equally. Each kept change makes room for the later ones. A proposal beyond the
    plan has none.
    """
    return FALSE_SHARE * (n_kept + 1) / planned if number <= planned else 0.0


def n_words(planned: int, n_kept: int, number: int) -> int:
    """Return the number of words by which the intervals of a planned proposal are corrected."""
    return max(1, math.ceil(ALPHA / level(planned, n_kept, number)))


def find(layout: Layout, name: str) -> Contest:
    """Return the newest contest of this name. Raises: UsageError where there is none."""
    with read.reading(layout.db) as connection:
        ids = read.tuples(connection, f"{_NAMED} ORDER BY id DESC", {"name": name}).fetchone()
        if ids is None:
            goals = read.tuples(connection, "SELECT until FROM groups WHERE until LIKE 'contest {%'")
            names = [Conditions.from_goal(goal).name for (goal,) in goals]
            start = f"mpsq contest new {name if NAME.fullmatch(name) else 'night'} starts one"
            raise UsageError(f'no contest "{name}"', did_you_mean(name, names, start))
        return of_group(connection, ids[0])


def of_group(connection: sqlite3.Connection, group: int) -> Contest:
    """Return the contest of a submission. Raises: UsageError where its champion was deleted."""
    first = read.tuples(connection, _FIRST, [group]).fetchone()
    if first is None:
        raise UsageError(f"the champion of the contest g{group} was deleted", "mpsq contest new starts another one")
    until, aim, job, spec_json, priority, outcome, run_s = first
    proposals = [
        Proposal(id, rule.number, rule.label, job_id, rounds, answer and answer[0], began_at, ended_at)
        for id, rule_json, why, began_at, ended_at, job_id, rounds in read.tuples(
            connection, _PROPOSALS, {"contest": group}
        )
        for rule, answer in [(Rule.from_goal(rule_json), stored_answer(why))]
    ]
    conditions = Conditions.from_goal(until)
    entrant = Entrant(job, JobSpec.from_json(spec_json), priority)
    return Contest(group, conditions, Aim.from_json(aim) if aim else Aim(), entrant, outcome, run_s, proposals)


def refuse_name(name: str, connection: Connection) -> None:
    """Raise UsageError if there is a contest of this name that has candidates, or whose champion is yet to run."""
    runs = "SELECT 1 FROM runs r JOIN jobs j ON j.id = r.job_id WHERE j.group_id = :contest AND r.state <> 'DONE'"
    for group in connection.column(_NAMED, {"name": name}):
        if connection.rows(f"SELECT 1 WHERE EXISTS ({runs}) OR EXISTS ({_ENTERED})", {"contest": group}):
            raise UsageError(f"contest {name} already exists", f"mpsq contest show {name}, or choose another name")


def look(_families: Sequence[Family], _conditions: str) -> str:
    """Return that no second run of the champion alone follows the first."""
    return "the champion has run"


def status_lines(connection: sqlite3.Connection) -> list[tuple[str, str]]:
    """Return a line of `mpsq status` for the newest contest, while planned candidates are left."""
    newest = read.tuples(connection, "SELECT max(id) FROM groups WHERE until LIKE 'contest {%'").fetchone()[0]
    if newest is None:
        return []
    try:
        contest = of_group(connection, newest)
    except UsageError:
        return []
    is_open = contest.outcome == Outcome.SUCCEEDED and (contest.pending or contest.left)
    return [(GOAL, f"{contest.conditions.name}: {standing(contest)}")] if is_open else []


def refuse_erasure(connection: Connection, job_ids: Collection[int]) -> None:
    """Raise UsageError if a candidate would be erased whose contest stays: its answer counts for the later ones."""
    for group, name in connection.rows(_COUNTED, {"erased": json.encode(job_ids).decode()}):
        raise UsageError(
            f"nothing was deleted: g{group} counts in the contest {name}",
            f"mpsq delete g{group} without --results removes its files",
        )


def standing(contest: Contest) -> str:
    """Return how far it is: "18 of 50 judged, 3 kept, about 6 h 20 min left"."""
    planned = contest.conditions.planned
    left = f", about {units.duration(contest.left_s)} left" if contest.left_s else ""
    return f"{planned - contest.left} of {planned} judged, {len(contest.won)} kept{left}"
