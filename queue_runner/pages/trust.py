"""Whether the numbers of a report may be believed, in three lines: the verdicts, the runs that count, their caveats."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from operator import itemgetter

from msgspec import Struct

from queue_runner import units
from queue_runner.analysis import findings
from queue_runner.analysis.comparison import Family
from queue_runner.analysis.finding import Finding, OtherAnswer, Undecided
from queue_runner.analysis.grouping import last_attempts, taints, without_used
from queue_runner.analysis.rounds import Verdict, Word
from queue_runner.analysis.stats import by_key
from queue_runner.model import State
from queue_runner.pages.run_records import RunRecords
from queue_runner.spec import OF_TIME

MOST_NEEDS = 2
"""Obstacles to an answer that one line names."""
MOST_OTHERS = 6
"""Answers on other quantities than the first that stand below it."""


class TrustReason(Struct, frozen=True):
    """A sentence, and whether it speaks for the numbers ("good"), against them ("bad"), or limits them ("warn")."""

    kind: str
    text: str
    undecided: bool = False
    """whether it says that nothing is decided"""


def reasons(evidence: RunRecords) -> list[TrustReason]:
    """Return the three reasons; where no run counts only why, and none before a run has ended."""
    if any(arm.used for family in evidence.families for arm in family.arms):
        return [_verdicts(evidence), _runs(evidence), _caveats(evidence)]
    return [_runs(evidence)] if any(row.state == State.DONE for row in evidence.runs) else []


def status(families: Iterable[Family], *, goes_on: bool = False) -> TrustReason | None:
    """Return how far the answer is decided: "decided, no more rounds needed", "undecided: about 3 more rounds",
    "time: undecided (over 200 more rounds); loss: decided"; None where nothing is compared.

    It is "good" where every comparison has a verdict on the quantity that comes first. `goes_on`: further runs follow.
    """
    families = [*families]
    compared, decided = _answers(families), _decided(families)
    answers = [answer for (_, answer), *_ in compared]
    undecided = [answer for answer in answers if not answer.decided]
    if not undecided:
        first = _first(compared, _open(compared))
        if _lowest_is_open(families):
            return TrustReason("warn", "; ".join([f"{first}: the lowest is undecided", *_open(compared)]))
        needs_more = goes_on or _open(compared)
        text = "decided" if needs_more else "decided, no more rounds needed"
        text = "; ".join([f"{first}: {text}" if first else text, *_open(compared)])
        return TrustReason("good", text) if answers else None
    by_rounds = sorted((answer for answer in undecided if not answer.why), key=lambda x: x.more or math.inf)
    needs = [*dict.fromkeys(answer.next_step for answer in undecided if answer.why)]
    if by_rounds:
        fewest, most = by_rounds[0], by_rounds[-1]
        several = f"about {fewest.more} to {most.next_step.removeprefix('about ')}"
        needs.append(several if fewest.next_step != most.next_step else fewest.next_step)
    share = f"{len(answers) - len(undecided)} of {len(answers)} decided" if len(undecided) < len(answers) else ""
    first, needed = _first(compared, decided), units.listed(needs, MOST_NEEDS)
    text = share or "undecided"
    if needed:
        text += f" ({needed})" if first else f": {needed}"
    text = ": ".join(filter(None, [first, text]))
    return TrustReason("warn", "; ".join([text, *decided]), undecided=not share)


def below(status: TrustReason | None, lines: Iterable[str]) -> list[str]:
    """Return the sentences of a report that answer its question, as they stand below the status, the answers on other
    quantities last: one that says "undecided" is not repeated."""
    repeats = status is not None and status.undecided
    known = [*lines]
    others = [line for line in known if isinstance(line, OtherAnswer)][:MOST_OTHERS]
    first = [line for line in known if not isinstance(line, Finding)]
    return [
        *(line.measured if repeats and isinstance(line, Undecided) else line for line in first),
        *others,
    ]


def _answers(families: Iterable[Family]) -> list[list[tuple[str, Verdict]]]:
    """Return the answers of each comparison with their quantities, the one that comes first before the others; of a
    comparison requested in both directions once."""
    pairs = {
        frozenset((pair.arm, pair.baseline)): (family, pair)
        for family in families
        for pair in (*family.pairs, *family.twins)
    }
    return [[(name or "time", x) for name, x in family.answers(pair).items()] for family, pair in pairs.values()]


def _first(compared: Iterable[Sequence[tuple[str, Verdict]]], others: Sequence[str]) -> str:
    """Return on which quantities the first answers are: "loss"; "" if there are no others."""
    names = dict.fromkeys(answers[0][0] for answers in compared)
    several = bool(others) or any(len(answers) > 1 for answers in compared)
    return ", ".join(names) if several else ""


def _on(compared: Iterable[Sequence[tuple[str, Verdict]]], others: Sequence[str] = ()) -> str:
    first = _first(compared, others)
    return f" on the {first}" if first == "time" else f" on {first}" if first else ""


def _open(compared: Iterable[Sequence[tuple[str, Verdict]]]) -> list[str]:
    """Return which quantities other than the first are undecided, in words; nothing if none is."""
    names = dict.fromkeys(name for _, *others in compared for name, answer in others if not answer.decided)
    return [f"{', '.join(names)}: undecided"] if names else []


def _decided(families: Iterable[Family]) -> list[str]:
    """Return which quantities other than the first are decided in every comparison, in words; nothing if none is."""
    others = [
        (name or "time", answer.decided)
        for family in families
        for pair in (*family.pairs, *family.twins)
        for name, answer in ({OF_TIME: pair.verdict} | {**pair.metrics}).items()
        if name != family.by
    ]
    by_name = by_key(others, itemgetter(0))
    names = [name for name, each in by_name.items() if all(is_decided for _, is_decided in each)]
    return [f"{', '.join(names)}: decided"] if names else []


def _lowest_is_open(families: Iterable[Family]) -> bool:
    """Whether several rows may have the lowest value of the loss that the question is about."""
    return any(len(family.lowest(family.by)) > 1 and not _is_same(family) for family in families)


def _is_same(family: Family) -> bool:
    """Whether the two rows that may have the lowest value are the same within a margin."""
    contest = family.contest_of(family.by)
    return contest is not None and contest.metrics[family.by].word is Word.SAME


def _verdicts(evidence: RunRecords) -> TrustReason:
    if not evidence.compared:
        return TrustReason("warn", "this report compares nothing")
    compared = _answers(evidence.families)
    answers = [answer for (_, answer), *_ in compared]
    if not answers:
        return TrustReason("warn", "nothing was compared: that takes two rows with valid runs")
    rounds = [answer.n for answer in answers if answer.decided]
    if not rounds:
        decided = _decided(evidence.families)
        text = f"no verdict{_on(compared, decided)} yet: a difference may be chance"
        return TrustReason("warn", "; ".join([text, *decided]), undecided=True)
    fewest, most = min(rounds), max(rounds)
    each = f"{fewest} to {most} rounds" if fewest < most else units.counted(most, "round")
    have = "has" if len(rounds) == 1 else "have"
    share = f"{len(rounds)} of {len(answers)} comparisons {have}" if len(answers) > 1 else "it has"
    chance = "the chance of a wrong verdict is at most 5 %, however often you look (for Gaussian noise)"
    doubts = [str(line) for family in evidence.families for line in findings.disturbed(family, only_first=True)]
    if _lowest_is_open(evidence.families):
        doubts.append("which row has the lowest is undecided")
    kind = "good" if len(rounds) == len(answers) and not doubts else "warn"
    return TrustReason(kind, "; ".join([f"{share} a verdict{_on(compared)}, after {each}", *doubts, chance]))


def _runs(evidence: RunRecords) -> TrustReason:
    all_ended = [row for row in evidence.runs if row.state == State.DONE]
    ended = last_attempts(all_ended)
    used = {row.run_id for family in evidence.families for arm in family.arms for row in arm.used}
    left_out = without_used(all_ended, used)
    included = sum(row.run_id in used and not row.valid for row in ended)
    parts, kind = [], "good"
    if left_out:
        kind = "warn" if used else "bad"
        invalid = Counter(
            name
            for row in left_out
            for name in [taint.kind for taint in evidence.taints.get(row.run_id, ()) if taint.severity == "invalid"]
            or [str(row.outcome).lower().replace("_", " ")]
        )
        why = ", ".join(f"{name} ({n})" for name, n in invalid.most_common())
        verb = "is" if len(left_out) == 1 else "are"
        parts.append(f"{len(left_out)} of {units.counted(len(ended), 'run')} {verb} left out: {why}")
    elif ended and not included:
        parts.append(
            "the run that ended is valid" if len(ended) == 1 else f"all {len(ended)} runs that ended are valid"
        )
    if included:
        kind = "bad"
        parts.append(f"{units.counted(included, 'invalid run')} included on request (--all)")
    if waiting := len(evidence.runs) - len(all_ended):
        parts.append(f"{units.counted(waiting, 'run')} not ended yet")
    parts.append(_machines(evidence))
    return TrustReason(kind, "; ".join(filter(None, parts)))


def _machines(evidence: RunRecords) -> str:
    machines = {row.machine for row in evidence.runs}  # as tables name them: None, of imported logs, is one of its own
    if len(machines) == 1:
        return "machine unknown" if None in machines else "one machine"
    unnamed = ", one of them unknown" if None in machines else ""
    return f"{len(machines)} machines{unnamed}: never compared with each other"


def _caveats(evidence: RunRecords) -> TrustReason:
    shown = [row for family in evidence.families for row in family.shown]
    invalid = {
        (run_id, taint.kind) for run_id, of in evidence.taints.items() for taint in of if taint.severity == "invalid"
    }
    counts = Counter(kind for row in shown for kind in taints(row) if (row.run_id, kind) not in invalid)
    if not counts:
        return TrustReason("good", "without caveats")
    each = ", ".join(f"{kind} ({units.counted(n, 'run')})" for kind, n in counts.most_common())
    return TrustReason("warn", f"caveats of runs that count: {each}")
