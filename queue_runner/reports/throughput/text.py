"""A model's table of training and evaluation, and its findings in words: the data of `throughput`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from queue_runner import units
from queue_runner.analysis.comparison import Family
from queue_runner.analysis.significance import Verdict
from queue_runner.reports._common import footnotes

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


def findings(table: Table) -> list[str]:
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
        within = f" (95 % CI {interval})" if best["speedup_low"] is not None else ""
        judged: Verdict = best["judged"]
        times = f"{'is' if judged.decided else 'measured'} {units.ratio(best['speedup'])}"
        verdict = str(judged) if judged.decided else f"no verdict, {judged}"
        yield f"{table.about}, {mode}: {best['label']} {times} as fast as {base}{within}: {verdict}"


def _no_ratio(rows: Sequence[Mapping[str, Any]]) -> str:
    able = [row for row in rows if row["compared"]]
    if not able:
        return "no valid run"
    if not any(row["device"] == "cpu" and not row["compile"] for row in able):
        return "no eager run on the CPU to compare with (mpsq submit ... --device cpu, or --vs)"
    return "only one row: nothing to compare with"


def _doubts(table: Table) -> Iterator[str]:
    """Report numbers that are impossible or based on too little data."""
    for label, by_mode in table.pairs():
        train_s, eval_s = (by_mode[mode]["median_s"] if mode in by_mode else None for mode in MODES)
        if train_s is not None and eval_s is not None and eval_s >= train_s:
            yield (
                f"implausible: {table.about}, {label}: evaluation takes {units.ms(eval_s)} ms, training"
                f" {units.ms(train_s)} ms, but evaluation is a part of training"
            )
    for row in table.rows:
        if (row["mfu"] or 0) > 1:
            which = f"{table.about}, {row['label']}, {row['mode']}"
            yield f"implausible: {which}: {units.percent(row['mfu'])} of the peak: the FLOP or the peak is wrong"
    few = ((f"{row['label']} {row['mode']}", row) for row in table.rows if row["n_valid"])
    yield from (f"{table.about}: {note}" for note in footnotes.few_iterations(few))
