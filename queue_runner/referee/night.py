"""The evidence of a contest: what each candidate showed, and how its champion improved over the night."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from msgspec import Struct

from queue_runner import tables, units
from queue_runner.analysis.rounds import Verdict
from queue_runner.paths import Layout
from queue_runner.referee import answer, contest
from queue_runner.referee.answer import JudgedGroup
from queue_runner.referee.contest import Contest, Proposal
from queue_runner.referee.decision import Choice


class Standing(Struct, frozen=True):
    """A proposal, what its rounds showed, and the champion after it: its speedup over the first champion, and the sum
    of the differences of the metric, as they were when each was kept."""

    proposal: Proposal
    judged: JudgedGroup
    speedup: float
    difference: float

    def as_json(self) -> dict[str, Any]:
        """Return it as docs/json.md describes."""
        shown = self.judged.as_json()
        return {
            "number": self.proposal.number,
            "label": self.proposal.label,
            "group": self.proposal.group,
            "answer": self.proposal.answer and str(self.proposal.answer),
            "rounds": self.proposal.rounds,
            "reasons": shown["reasons"],
            "speedup": shown["speedup"],
            "difference": shown["difference"],
            "champion_speedup": self.speedup,
            "champion_difference": self.difference,
        }


def read(layout: Layout, name: str) -> tuple[Contest, list[Standing]]:
    """Return a contest and what its candidates showed. Raises: UsageError where there is none of this name."""
    night = contest.find(layout, name)
    standings: list[Standing] = []
    speedup, difference = 1.0, 0.0
    for proposal in night.proposals:
        judged = answer.of_group(layout, proposal.group)
        if proposal.answer is Choice.KEEP:
            speedup *= judged.time.change if judged.time else 1.0
            difference += judged.quality.change if judged.quality else 0.0
        standings.append(Standing(proposal, judged, speedup, difference))
    return night, standings


def as_json(night: Contest, standings: Sequence[Standing]) -> dict[str, Any]:
    """Return the contest as docs/json.md describes."""
    conditions = night.conditions
    return {
        "name": conditions.name,
        "group": night.group,
        "champion": conditions.champion,
        "planned": conditions.planned,
        "metric": conditions.rule.metric or None,
        "left_s": night.left_s,
        "candidates": [standing.as_json() for standing in standings],
    }


def text(night: Contest, standings: Sequence[Standing]) -> str:
    """Return a line for each candidate, with the champion after it, and how far the contest is."""
    rule = night.conditions.rule
    columns = [
        tables.Column("number", "#", right=True, value=lambda standing: standing.proposal.number),
        tables.Column("label", "candidate", value=lambda standing: standing.proposal.label, flexible=True),
        tables.Column("answer", "answer", value=lambda standing: standing.proposal.answer or "judging"),
        tables.Column("rounds", "rounds", right=True, value=lambda standing: standing.proposal.rounds),
    ]
    if rule.timed:
        columns += [
            tables.Column("time", "speed", value=lambda standing: standing.judged.time and standing.judged.time.ratio),
            tables.Column("speedup", "champion", words=units.ratio),
        ]
    if rule.metric:
        columns += [
            tables.Column("metric", rule.metric, value=lambda standing: _change(standing.judged.quality)),
            tables.Column("difference", "champion", words=partial(units.measured, sign=True)),
        ]
    lines = [f"{night.conditions.name}: {contest.standing(night)}"]
    if standings:
        lines += ["", tables.table(standings, columns), ""]
        lines += [f"{x.proposal.number}: {reason}" for x in standings for reason in x.judged.ruling.reasons[:1]]
    if night.won:
        confirm = f"mpsq contest confirm {night.conditions.name} measures it anew"
        lines += ["", f"the champion's gain is too large, as each step was chosen for it: {confirm}"]
    return "\n".join(lines)


def _change(verdict: Verdict | None) -> str | None:
    return None if verdict is None else units.measured(verdict.change, verdict.low, verdict.high, sign=True)
