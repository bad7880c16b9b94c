"""Footnotes of the default report: meaning of the marks, runs left out, sources of peaks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from queue_runner import units
from queue_runner.analysis.comparison import Family
from queue_runner.analysis.grouping import MAIN, Arm, taints, value_of
from queue_runner.model import Ending, Outcome, State
from queue_runner.reports._common.report import Context, Row
from queue_runner.reports._common.settings import FEW_ITERS

MOST_NAMED = 5
"""Maximum number of runs named in a note; the rest is counted."""
MOST_DETAILS = 3


class Taints:
    """The taints of a report's runs, read once and only if there are any."""

    def __init__(self, rows: Sequence[Row], context: Context) -> None:
        self._by_run: dict[int, list[Row]] = {}
        if not any(row["taints"] for row in rows):
            return
        chosen = "SELECT run_id FROM v_run WHERE {chosen}"
        for found in context.read(f"SELECT run_id, kind, severity, detail FROM taints WHERE run_id IN ({chosen})"):
            self._by_run.setdefault(found["run_id"], []).append(found)

    def of(self, row: Mapping[str, Any]) -> list[Row]:
        return self._by_run.get(row["run_id"], [])

    def caveats(self, families: Sequence[Family]) -> dict[str, list[tuple[Mapping[str, Any], str]]]:
        """Return by kind of caveat the runs that have it, with its detail, among the runs whose numbers are shown."""
        found: dict[str, list[tuple[Mapping[str, Any], str]]] = {}
        for row in (row for family in families for cell in family.cells for row in cell.shown):
            for taint in self.of(row):
                if taint["severity"] != "caveat":  # the others are listed by run: see _left_out
                    continue
                found.setdefault(taint["kind"], []).append((row, taint["detail"]))
        return found


def letters(kinds: Iterable[str]) -> dict[str, str]:
    """Return a mark for each kind of taint, in the given order."""
    return dict(zip(kinds, "abcdefghijklmnopqrstuvwxyz", strict=False))


def notes(
    families: Sequence[Family],
    raw: Sequence[Mapping[str, Any]],
    found: Taints,
    marks: Mapping[str, str],
    context: Context,
) -> list[str]:
    """Return all footnotes, those on the numbers first."""
    cells = [cell for family in families for cell in family.cells]
    return [
        *_spreads(raw, context),
        *(caveat(marks[kind], kind, runs) for kind, runs in found.caveats(families).items() if kind in marks),
        *_left_out(cells, found, context),
        *_waiting(cells),
        *_mixed_first_iteration(cells),
        *_peaks(raw),
        *_machines(families, context),
        *_pooled(cells, context),
    ]


def few(raw: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    """Report rows whose runs measured no iterations, or too few for a reliable median."""
    rows = [row for row in raw if row["n_iters"] and row["n_valid"] and (row["n_measure"] or 0) < FEW_ITERS]
    if rows:
        several = len({(row["workload"], row["config"]) for row in raw}) > 1
        names = [
            " ".join(filter(None, [*([row["workload"], row["config"]] if several else []), row["label"]]))
            for row in rows
        ]
        each = [f"{name} ({row['n_measure'] or 0})" for name, row in zip(names, rows, strict=True)]
        named = ", ".join(each[:MOST_NAMED])
        more = f" and {len(rows) - MOST_NAMED} more rows" if len(rows) > MOST_NAMED else ""
        yield f"fewer than {FEW_ITERS} measured iterations a run: {named}{more}"


def _spreads(raw: Sequence[Mapping[str, Any]], context: Context) -> Iterable[str]:
    over = {row["spread_over"] for row in raw if row["spread_s"] is not None}
    what = {
        "runs": f"{units.PLUS_MINUS} is the MAD of the medians of several runs",
        "iterations": "(in brackets) is the MAD of the iterations of one run, which says nothing about another run",
    }
    words = [text for key, text in what.items() if key in over]
    if words:
        yield "ms/iter: median; " + "; ".join(words)
    if context.options.iters:
        first, last = context.options.iters
        yield f"ms/iter is over iterations {units.count(first)} to {units.count(last)} (--iters)"


def caveat(mark: str, kind: str, runs: Sequence[tuple[Mapping[str, Any], str]]) -> str:
    """Return the meaning of the mark in the words stored with the runs, and which runs they belong to."""
    told: dict[str, list[str]] = {}
    for row, detail in runs:
        told.setdefault(detail, []).append(row["run"])
    each = [f"{detail} ({named(names)})" for detail, names in [*told.items()][:MOST_DETAILS]]
    more = f"; and {len(told) - MOST_DETAILS} more" if len(told) > MOST_DETAILS else ""
    return f"{mark} {kind}: {'; '.join(each)}{more}"


def named(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


def _left_out(cells: Sequence[Arm], found: Taints, context: Context) -> Iterable[str]:
    rows = [row for cell in cells for row in cell.left_out]
    if rows:
        yield f"! left out of the numbers: {_by_reason(rows, found)}"
    if any(not cell.used and cell.median_s is not None for cell in cells):
        yield "a row without a valid run shows its invalid runs' numbers and is not compared (--all does)"
    if context.options.include_invalid and any(not row["valid"] for cell in cells for row in cell.used):
        bad = [row for cell in cells for row in cell.used if not row["valid"]]
        yield f"invalid runs are in the numbers (--all): {_by_reason(bad, found)}"


def _by_reason(rows: Sequence[Mapping[str, Any]], found: Taints) -> str:
    """List each reason once, after the runs that have it."""
    reasons: dict[str, list[str]] = {}
    for row in rows:
        reasons.setdefault(why(row, found), []).append(row["run"])
    parts = [f"{_some(runs)} {reason}" for reason, runs in list(reasons.items())[:MOST_NAMED]]
    more = len(reasons) - len(parts)
    return "; ".join(parts) + (f"; and {units.count(more)} more reason{'s' if more > 1 else ''}" if more else "")


def _some(runs: Sequence[str]) -> str:
    shown = ", ".join(runs[:MOST_NAMED])
    return shown + (f" and {units.count(len(runs) - MOST_NAMED)} more" if len(runs) > MOST_NAMED else "")


def why(row: Mapping[str, Any], found: Taints) -> str:
    """Return why a run does not count: how it ended, or what makes it invalid."""
    if row["outcome"] != Outcome.SUCCEEDED:
        ending = Ending(Outcome(row["outcome"]), row["exit_code"], row["signal"], row["reason"] or "")
        return f"{ending}{': ' + row['reason'] if row['reason'] else ''}"
    invalid = [taint for taint in found.of(row) if taint["severity"] == "invalid"]
    said = ", ".join(f"{taint['kind']} ({taint['detail']})" for taint in invalid)
    return said or ("told no results" if row["valid"] else "no reason stored")


def _waiting(cells: Sequence[Arm]) -> Iterable[str]:
    n = sum(row["state"] != State.DONE for cell in cells for row in cell.runs)
    if n:
        yield f"{n} run{'s have' if n > 1 else ' has'} not ended yet"


def _mixed_first_iteration(cells: Sequence[Arm]) -> Iterable[str]:
    if any("unsynced" in taints(row) and row["first_iter_s"] is not None for cell in cells for row in cell.shown):
        yield "1st iter and compile of a log whose clock is not ours include its first evaluation"


def _peaks(raw: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    peaks = {(row["device_name"] or row["device"], row["dtype"], row["peak_flops"], row["peak_source"]) for row in raw}
    for name, dtype, flops, source in sorted(peak for peak in peaks if peak[2] is not None):
        yield f"MFU: of {units.flops_per_s(flops)}, {name} {dtype or ''}".rstrip() + f" ({source})"


def _machines(families: Sequence[Family], context: Context) -> Iterable[str]:
    machines = {family.common["machine"]: family.cells[0].runs[0]["where"] for family in families}
    if len(machines) > 1:
        yield f"runs of {len(machines)} machines: each in tables of its own, never compared"
        yield from (f"{where}: {_is(machine, context)}" for machine, where in machines.items() if machine)
    if any(f.common["machine"] is None and len(f.cells) > 1 and any(c.used for c in f.cells) for f in families):
        yield "imported logs do not name their machine: taken to be one (mpsq import --set machine=NAME tells apart)"


def _is(machine: str, context: Context) -> str:
    """Describe a machine by its fingerprint; two different machines may have the same description."""
    found = context.read("SELECT data_json FROM fingerprints WHERE hash = ? AND kind = 'machine'", [machine])
    said = json.loads(found[0]["data_json"]) if found else {}
    memory = f"{said['memory_gib']} GiB" if said.get("memory_gib") else None
    cores = f"{said['cores_logical']} cores" if said.get("cores_logical") else None
    words = [said.get("model") or said.get("system"), said.get("cpu"), cores, memory, *(said.get("gpus") or [])]
    return ", ".join(str(text) for text in words if text) or "nothing is known of it"


def _pooled(cells: Sequence[Arm], context: Context) -> Iterable[str]:
    """Warn of rows that pool runs with different factors, which --group-by allows."""
    if not context.options.group_by:
        return
    names = [*MAIN, *sorted({name for cell in cells for row in cell.used for name in row["factors"]})]
    mixed = [n for n in names if any(len({value_of(row, n) for row in cell.used}) > 1 for cell in cells)]
    if mixed:
        yield f"rows pool runs that differ in {', '.join(mixed)}: a median over different questions (--group-by)"
