"""Whether the numbers of a report may be believed, in sentences: verdicts, runs left out, caveats, machines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from queue_runner import units
from queue_runner.analysis.comparison import Family, Pair
from queue_runner.analysis.grouping import taints
from queue_runner.analysis.stats import by_key
from queue_runner.model import State
from queue_runner.pages.run_records import RunRecords


@dataclass(frozen=True)
class TrustReason:
    """A sentence, and whether it speaks for the numbers ("good"), against them ("bad"), or limits them ("warn")."""

    kind: str
    text: str


def reasons(evidence: RunRecords) -> list[TrustReason]:
    """Return the reasons, those against the numbers first."""
    every = [*_judged(evidence.families), *_left_out(evidence), *_caveats(evidence), *_machines(evidence)]
    return sorted(every, key=lambda reason: ("bad", "warn", "good").index(reason.kind))


def sign(families: Iterable[Family]) -> str:
    """Return "good" where every comparison has a verdict, "warn" where one has none, "" where there is none."""
    pairs = _pairs(families)
    return ("good" if all(pair.verdict.decided for pair in pairs) else "warn") if pairs else ""


def _pairs(families: Iterable[Family]) -> list[Pair]:
    """Return all comparisons; one requested in both directions once."""
    pairs = [pair for family in families for pair in (*family.pairs, *family.twins)]
    return [*{frozenset((pair.arm, pair.baseline)): pair for pair in pairs}.values()]


def _judged(families: Iterable[Family]) -> Iterable[TrustReason]:
    pairs = _pairs(families)
    decided = sum(pair.verdict.decided for pair in pairs)
    if decided:
        rounds = [pair.verdict.n for pair in pairs if pair.verdict.decided]
        fewest, most = min(rounds), max(rounds)
        each = f"{fewest} to {most} rounds" if fewest < most else units.counted(most, "round")
        which = (
            "the verdict rests"
            if len(pairs) == 1
            else f"{decided} of {len(pairs)} comparisons have a verdict: they rest"
        )
        yield TrustReason(
            "good", f"{which} on {each}; that any word is wrong has a chance of at most 5 %, whenever one looks"
        )
    undecided = by_key((pair for pair in pairs if not pair.verdict.decided), lambda pair: pair.verdict.next_step)
    for needs, alike in undecided.items():
        number = "the comparison is" if len(pairs) == 1 else f"{len(alike)} of {len(pairs)} comparisons are"
        yield TrustReason("warn", f"{number} undecided: {needs}; until then a ratio is a measurement, not a verdict")
    if not pairs:
        yield TrustReason("warn", "nothing was compared: there are not two rows with valid runs of the same question")


def _left_out(evidence: RunRecords) -> Iterable[TrustReason]:
    ended = [row for row in evidence.runs if row.state == State.DONE]
    used = {row.run_id for family in evidence.families for arm in family.arms for row in arm.used}
    out = [row for row in ended if row.run_id not in used]
    included = [row for row in ended if row.run_id in used and not row.valid]
    if not out:
        if ended and not included:
            yield TrustReason("good", f"all {units.counted(len(ended), 'run')} that ended are valid")
    else:
        invalid = Counter(
            kind
            for row in out
            for kind in [taint.kind for taint in evidence.taints.get(row.run_id, ()) if taint.severity == "invalid"]
            or [str(row.outcome).lower().replace("_", " ")]
        )
        why = ", ".join(f"{kind} ({n})" for kind, n in invalid.most_common())
        kind = "bad" if not used else "warn"
        yield TrustReason(kind, f"{len(out)} of {units.counted(len(ended), 'run')} are left out: {why}")
    if included:
        yield TrustReason("bad", f"{units.counted(len(included), 'invalid run')} included on request (--all)")
    if waiting := len(evidence.runs) - len(ended):
        yield TrustReason("warn", f"{units.counted(waiting, 'run')} not ended yet")


def _caveats(evidence: RunRecords) -> Iterable[TrustReason]:
    shown = [row for family in evidence.families for row in family.shown]
    marks = [(run_id, taint) for run_id, taints in evidence.taints.items() for taint in taints]
    invalid = {(run_id, taint.kind) for run_id, taint in marks if taint.severity == "invalid"}
    counts = Counter(kind for row in shown for kind in taints(row) if (row.run_id, kind) not in invalid)
    if counts:
        each = ", ".join(f"{kind} ({units.counted(n, 'run')})" for kind, n in counts.most_common())
        yield TrustReason("warn", f"caveats of runs that count: {each}")


def _machines(evidence: RunRecords) -> Iterable[TrustReason]:
    hashes = {row.machine_hash for row in evidence.runs if row.machine_hash}
    if len(hashes) == 1:
        yield TrustReason("good", "all runs ran on one machine")
    elif hashes:
        yield TrustReason("warn", f"the runs ran on {len(hashes)} machines, which are never compared with each other")
