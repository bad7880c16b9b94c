"""The rule by which a candidate is judged: the goal of the rounds of its submission, and the look after each round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from msgspec import Struct, field, json

from queue_runner.analysis.comparison import Family
from queue_runner.analysis.rounds import Verdict
from queue_runner.decoding import from_json
from queue_runner.referee import evidence
from queue_runner.referee.decision import LEAST_GAIN, Choice, Gain, Ruling, Way, decide

NAME = "judge"
CONFIRM = "confirm"
"""The same rule for a fixed number of rounds, so that when they end does not depend on what they show."""
Answer = tuple[Verdict, Gain]


class Goal(Struct, frozen=True):
    """What the rounds of a submission are for. It is stored with the submission: a word, and this as JSON."""

    def to_goal(self, word: str) -> str:
        """Return the goal that is stored."""
        return f"{word} {json.encode(self, order='deterministic').decode()}"

    @classmethod
    def from_goal(cls, goal: str) -> Self:
        """Read a stored goal."""
        return from_json(goal[goal.index("{") :], cls)


class Rule(Goal, frozen=True):
    """What a candidate is kept for, by which metric, and from which gain. Margins are those of the submission's aim.

    `least` has the least gains: in the metric by its name, and of the time under "" as a share. `evaluate` is the
    command by which the champion's code computes the metric. The intervals are corrected for `n_words`. A candidate of
    a contest has the contest's submission, its number there, from 1, and a name that people know.
    """

    ways: tuple[Way, ...] = tuple(Way)
    metric: str = ""
    higher: bool = False
    timed: bool = True
    least: dict[str, float] = field(default_factory=lambda: {"": LEAST_GAIN})
    evaluate: str = ""
    n_words: int = 1
    contest: int = 0
    number: int = 0
    label: str = ""


def look(families: Sequence[Family], rule: str) -> str:
    """Return the ruling in a line, "" while another round may change it."""
    ruling, *_ = judged(families, Rule.from_goal(rule))
    if ruling.choice is Choice.UNDECIDED and not ruling.is_final:
        return ""
    return f"{ruling.choice}: {'; '.join(ruling.reasons)}"


def stored_answer(why: str | None) -> tuple[Choice, str] | None:
    """Return the answer that the end of its rounds was, and the reasons; None while there is none. A budget that ended,
    or a cancelled run, decides nothing."""
    word, _, reasons = (why or "").partition(": ")
    return None if why is None else (Choice(word), reasons) if word in tuple(Choice) else (Choice.UNDECIDED, word)


def look_at_end(_families: Sequence[Family], _rule: str) -> str:
    """Return that the rounds of a submission, whose number was fixed, are over."""
    return "all its rounds have run"


def judged(families: Sequence[Family], rule: Rule) -> tuple[Ruling, Verdict | None, Verdict | None]:
    """Return the ruling of a rule on these rounds, and the answers on time and metric that it stands on."""
    time = quality = None
    if pair := evidence.pair(families):
        time = evidence.of_time(*pair, rule.least[""], rule.n_words)
        if rule.metric:
            least = rule.least.get(rule.metric)
            quality = evidence.of_metric(*pair, rule.metric, rule.higher, least, rule.n_words)
    if broken := evidence.failure(families, rule.metric):
        role, reason = broken
        choice = Choice.DISCARD if role == evidence.CANDIDATE else Choice.UNDECIDED
        ruling = Ruling(choice, (reason,), is_final=True)
    elif trick := evidence.trick(families, rule.metric):
        ruling = Ruling(Choice.DISCARD, (trick,))
    elif pair is None:
        ruling = Ruling(Choice.UNDECIDED, ("the rows cannot be compared: mpsq report --explain says why",))
    else:
        ruling = _ruling(rule, time, quality)
    return ruling, time and time[0], quality and quality[0]


def _ruling(rule: Rule, time: Answer | None, quality: Answer | None) -> Ruling:
    for answer, _ in filter(None, (time if rule.timed else None, quality)):
        if answer.is_final and not answer.decided:
            return Ruling(Choice.UNDECIDED, (f"no further round helps: {answer.why}",), is_final=True)
    gains = (time[1] if rule.timed and time else None, quality[1] if quality else None)
    n = min(x[0].n for x in (time, quality) if x is not None)
    if rule.metric and quality is None:
        return Ruling(Choice.UNDECIDED, (f"no round has {rule.metric} of both rows",))
    return decide(n, rule.ways, *gains)
