"""A model's table of training and evaluation, and statements on it: the data of `throughput`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from queue_runner import units
from queue_runner.analysis.comparison import Family
from queue_runner.analysis.significance import Verdict
from queue_runner.reports._common import footnotes
from queue_runner.reports._common.settings import FEW_ITERS

TRAINING, EVALUATION = "training", "evaluation"
MODES = (TRAINING, EVALUATION)


@dataclass(frozen=True)
class Table:
    """One model with one set of settings on one machine: its families by mode, and their rows."""

    model: str
    title: str
    families: Mapping[str, Family]
    rows: Sequence[dict[str, Any]]
    about: str = ""
    """its name in sentences: model and config if these identify the table, else the whole title"""

    @property
    def name(self) -> str:
        return f"{self.model} {self.rows[0]['config'] or ''}".rstrip()

    def of(self, mode: str) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["mode"] == mode]

    def pairs(self) -> Iterator[tuple[str, dict[str, dict[str, Any]]]]:
        """Yield each label with its rows by mode."""
        for label in dict.fromkeys(row["label"] for row in self.rows):
            yield label, {row["mode"]: row for row in self.rows if row["label"] == label}


def lines(table: Table) -> list[str]:
    """Return the answer for the fastest row of each mode, followed by doubts about numbers."""
    return [*_answers(table), *_doubts(table)]


def _answers(table: Table) -> Iterator[str]:
    for mode in table.families:
        rows = table.of(mode)
        over = [row for row in rows if row["speedup"] is not None and not row["is_baseline"]]
        if not over:
            yield f"{table.about}, {mode}: {_no_ratio(rows)}"
            continue
        best = max(over, key=lambda row: row["speedup"])
        base = next(row["label"] for row in rows if row["is_baseline"])
        interval = units.ratio_interval(best["speedup_low"], best["speedup_high"])
        within = f" ({interval})" if best["speedup_low"] is not None else ""
        judged: Verdict = best["judged"]
        times = f"{'is' if judged.decided else 'measured'} {units.ratio(best['speedup'])}"
        verdict = str(judged) if judged.decided else f"no verdict, {judged}"
        yield f"{table.about}, {mode}: {best['label']} {times} as fast as {base}{within}: {verdict}"


def _no_ratio(rows: Sequence[Mapping[str, Any]]) -> str:
    able = [row for row in rows if row["compared"]]
    if not able:
        return "no run that counts"
    if not any(row["device"] == "cpu" and not row["compile"] for row in able):
        return "no eager run on the cpu to compare with (mpsq submit ... --device cpu, or --vs)"
    return "only one row: nothing to compare with"


def _doubts(table: Table) -> Iterator[str]:
    """Report numbers that are impossible or based on too little data."""
    for label, by_mode in table.pairs():
        trains_s, evaluates_s = (by_mode[mode]["median_s"] if mode in by_mode else None for mode in MODES)
        if trains_s is not None and evaluates_s is not None and evaluates_s >= trains_s:
            yield (
                f"not to be believed: {table.about}, {label} evaluates no faster than it trains "
                f"({units.ms(evaluates_s)} against {units.ms(trains_s)} ms): a part of training cannot take longer"
            )
    for row in table.rows:
        if (row["mfu"] or 0) > 1:
            which = f"{table.about}, {row['label']}, {row['mode']}"
            yield f"not to be believed: {which}: {units.percent(row['mfu'])} of the peak: one of the two is wrong"
    few = [row for row in table.rows if row["n_valid"] and (row["n_measure"] or 0) < FEW_ITERS]
    if few:
        named = footnotes.named([f"{row['label']} {row['mode']} ({row['n_measure'] or 0})" for row in few])
        yield f"{table.about}: fewer than {FEW_ITERS} measured iterations a run: {named}; --set max_iters says how many"
