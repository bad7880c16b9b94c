"""The answer to a judgement, as its submission has it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from queue_runner import units
from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.analysis.rounds import Verdict
from queue_runner.errors import MpsqError
from queue_runner.monitor import answers
from queue_runner.paths import Layout
from queue_runner.referee import goal
from queue_runner.referee.decision import Choice, Ruling
from queue_runner.spec import FIRST_ROUNDS
from queue_runner.store import read


@dataclass(frozen=True, slots=True)
class JudgedGroup:
    """The ruling on a candidate after `rounds`, with the answers on the time and on the metric that it stands on."""

    group: int
    rounds: int
    ruling: Ruling
    metric: str
    time: Verdict | None
    quality: Verdict | None

    def text(self) -> str:
        """Return the answer and its reasons, a line each."""
        lines = [f"{self.ruling.choice} after {units.counted(self.rounds, 'round')} (g{self.group})"]
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


def _why_it_ended(runs: Sequence[ReportedRun], rounds: int, budget_s: float) -> str:
    """Return that the budget is over, and what would help; "" if it is not."""
    began = min((row.started_at for row in runs if row.started_at is not None), default=math.nan)
    elapsed_s = max((row.ended_at for row in runs if row.ended_at is not None), default=math.nan) - began
    if not elapsed_s >= budget_s:
        return ""
    over = f"the budget of {units.duration(budget_s)} ended after {units.counted(rounds, 'round')}"
    if rounds >= FIRST_ROUNDS:
        return f"{over}: a larger --budget adds rounds"
    least = units.duration(FIRST_ROUNDS * elapsed_s / rounds)
    return f"{over}, and no answer takes less than {FIRST_ROUNDS}: give --budget {least} or more"


def of_group(layout: Layout, group: int) -> JudgedGroup:
    """Return the answer of a submission of mpsq judge. Raises: MpsqError (store)."""
    with read.reading(layout.db) as connection:
        sql = "SELECT until, budget_s, closed_why FROM groups WHERE id = ?"
        until, budget_s, closed_why = read.tuples(connection, sql, [group]).fetchone() or ("", None, "")
        families = answers.of_group(connection, group)
    word, _, text = str(until or "").partition(" ")
    if word != goal.NAME:
        raise MpsqError(f"g{group} is not a submission of mpsq judge", "mpsq report shows other answers")
    rule = goal.Rule.from_json(text)
    ruling, is_final, time, quality = goal.judged(families, rule)
    runs = [row for family in families for arm in family.arms for row in arm.ended]
    rounds = max((row.repeat or 0 for row in runs), default=0)
    if ruling.choice is Choice.UNDECIDED and not is_final:
        ended = _why_it_ended(runs, rounds, budget_s or math.inf) or str(closed_why or "").partition(":")[0]
        shown = ruling.reasons if rounds >= FIRST_ROUNDS else ()
        ruling = Ruling(ruling.choice, (ended, *shown) if ended else shown)
    return JudgedGroup(group, rounds, ruling, rule.metric, time, quality)
