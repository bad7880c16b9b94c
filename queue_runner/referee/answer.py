"""The answer to a judgement, as its submission has it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from queue_runner import units
from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.analysis.rounds import Verdict
from queue_runner.errors import MpsqError
from queue_runner.model import parse_selector
from queue_runner.monitor import answers, run_view
from queue_runner.paths import Layout
from queue_runner.referee import goal
from queue_runner.referee.decision import Choice, Ruling
from queue_runner.spec import FIRST_ROUNDS, Until, more_rounds
from queue_runner.store import read


class JudgedGroup(Struct, frozen=True):
    """The ruling on a candidate after `rounds`, with the answers on the time and on the metric that it stands on."""

    group: int
    rounds: int
    ruling: Ruling
    metric: str
    time: Verdict | None
    quality: Verdict | None
    confirms: bool = False
    """whether the candidate is the last champion of a contest, against the first"""

    def text(self) -> str:
        """Return the answer and its reasons, a line each; of a confirmation also the gains."""
        lines = [f"{self.ruling.choice} after {units.counted(self.rounds, 'round')} (g{self.group})"]
        if self.confirms:
            after = f"{units.counted(self.rounds, 'fresh round')} (g{self.group})"
            sizes = {"time": self.time, self.metric: self.quality}
            gains = [f"  {name} {verdict.size}" for name, verdict in sizes.items() if verdict is not None]
            lines = [f"the last champion against the first, in {after}:", *gains, _CONFIRMED[self.ruling.choice]]
        return "\n".join([*lines, *(f"  {reason}" for reason in self.ruling.reasons)])

    def as_json(self) -> dict[str, Any]:
        """Return it as docs/json.md describes."""
        return {
            "group": self.group,
            "answer": str(self.ruling.choice),
            "rounds": self.rounds,
            "reasons": list(self.ruling.reasons),
            "metric": self.metric or None,
            "speedup": _change(self.time),
            "difference": _change(self.quality),
        }


_CONFIRMED = {
    Choice.KEEP: "the gain is confirmed",
    Choice.DISCARD: "the gain is not confirmed",
    Choice.UNDECIDED: "undecided",
}


def _change(answer: Verdict | None) -> dict[str, Any] | None:
    if answer is None:
        return None
    return {
        "candidate": answer.value,
        "champion": answer.baseline,
        "change": answer.change,
        "low": answer.low,
        "high": answer.high,
    }


def _why_it_ended(group: int, runs: Sequence[ReportedRun], rounds: int, budget_s: float, *, in_contest: bool) -> str:
    """Return that the budget is over, and what would help; "" if it is not."""
    began = min((row.started_at for row in runs if row.started_at is not None), default=math.nan)
    elapsed_s = max((row.ended_at for row in runs if row.ended_at is not None), default=math.nan) - began
    if not elapsed_s >= budget_s:
        return ""
    too_few = f", and no answer takes less than {FIRST_ROUNDS}" if rounds < FIRST_ROUNDS else ""
    after = f"ended after {units.counted(rounds, 'round')}{too_few}"
    if not in_contest:
        return f"the budget of {units.duration(budget_s)} {after}: {_go_on(group)}"
    over = f"the budget of {units.duration(budget_s)}, fixed by mpsq contest new, {after}"
    return f"{over}: it takes --budget {units.duration(FIRST_ROUNDS * elapsed_s / rounds)} or more" if too_few else over


def _go_on(group: int) -> str:
    return f"{more_rounds(group)}, then mpsq judge --again g{group}"


def group_named(layout: Layout, text: str) -> int:
    """Return the submission that a user names: g4, @last or a job of it. Raises: UsageError."""
    with read.reading(layout.db) as connection:
        return run_view.select(connection, [parse_selector(text)])[0].group_id


_UNTIL = """
SELECT until, budget_s, (SELECT max(repeat) FROM runs JOIN jobs ON jobs.id = job_id WHERE group_id = groups.id)
FROM groups WHERE id = ?
"""


def until_of(layout: Layout, group: int) -> tuple[Until, int | None]:
    """Return when the rounds of a judgement end, and their number where it is fixed. Raises: MpsqError for another
    submission."""
    with read.reading(layout.db) as connection:
        until, budget_s, rounds = read.tuples(connection, _UNTIL, [group]).fetchone()
    word = str(until or "").partition(" ")[0]
    if word not in (goal.NAME, goal.CONFIRM):
        raise MpsqError(f"g{group} is not a submission of mpsq judge", "mpsq report shows other answers")
    return Until(until, budget_s), rounds if word == goal.CONFIRM else None


def of_group(layout: Layout, group: int) -> JudgedGroup:
    """Return the answer of a submission of mpsq judge. A contest keeps the answer with which the rounds ended, whatever
    its runs say later. Raises: MpsqError (store)."""
    until, fixed = until_of(layout, group)
    with read.reading(layout.db) as connection:
        (closed_why,) = read.tuples(connection, "SELECT closed_why FROM groups WHERE id = ?", [group]).fetchone()
        families = answers.of_group(connection, group)
    rule, budget_s = goal.Rule.from_goal(until.goal), until.budget_s
    ruling, time, quality = goal.judged(families, rule)
    runs = [row for family in families for arm in family.arms for row in arm.ended]
    rounds = len({row.repeat for row in runs if row.started_at is not None})
    choice, why = goal.stored_answer(closed_why) or (Choice.UNDECIDED, "")
    if rule.number and closed_why is not None and choice is not ruling.choice:
        changed = f"its evidence has changed since, and says {ruling.choice} now: the contest keeps its first answer"
        ruling = Ruling(choice, (changed, why))
    elif ruling.choice is Choice.UNDECIDED and not ruling.is_final:
        over = _why_it_ended(group, runs, rounds, budget_s or math.inf, in_contest=rule.contest > 0)
        is_answer = closed_why is not None and closed_why.startswith(choice)
        ended = over or (f"its rounds have ended: {_go_on(group)}" if is_answer else why)
        shown = ruling.reasons if rounds >= FIRST_ROUNDS else ()
        ruling = Ruling(ruling.choice, (ended, *shown) if ended else shown)
    return JudgedGroup(group, rounds, ruling, rule.metric, time, quality, confirms=fixed is not None)
