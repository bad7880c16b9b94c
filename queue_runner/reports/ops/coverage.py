"""Operator coverage as reported by opcheck: verdicts, merged over runs with the same settings.

A verdict is a metric `op/NAME/DTYPE/DIRECTION/VERDICT`, whose value is the median of its timed calls in seconds; the
reason is in a note of the kind `opcheck`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from queue_runner.analysis.grouping import taints, value_of
from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.analysis.stats import by_key
from queue_runner.errors import UsageError
from queue_runner.model import Outcome
from queue_runner.monitor.answers import select_runs
from queue_runner.monitor.answers.run_query import Context

VERDICTS = ("native", "fallback", "missing", "wrong", "error", "unchecked")
WORST_FIRST = ("wrong", "error", "missing", "fallback", "unchecked")
BECAME, BROKE, CHANGED, NEW, GONE = "became native", "no longer native", "changed", "new", "gone"
_KEY = (
    "device",
    "device_name",
    "framework_version",
    "env",
    "config",
    "samples",
    "fallbacks",
    "os_version",
    "gpu_driver",
)
"""Names that distinguish tables. A check of two samples does not replace one of all; those of MPS depend on macOS."""
_VERSION = ("framework_version", "env")
"""Names in which tables that are compared by default may differ."""
_ALIASES = {"torch": "framework_version", "version": "framework_version"}
_NOTE = re.compile(r"(\S+) (\S+) (\S+) (\w+)(?: \(\d+ of \d+ samples\))?(?:: (.*))?", re.S)

Cell = tuple[str, str, str]
"""Operator, dtype, direction."""


@dataclass(frozen=True)
class OpVerdict:
    """A run's result for one cell. `median_s` is in seconds per call, None where not timed."""

    run: str
    verdict: str
    median_s: float | None
    detail: str = ""


@dataclass
class Coverage:
    """One table: the newest verdict on each cell, over all runs with the same settings."""

    key: Mapping[str, Any]
    runs: list[ReportedRun] = field(default_factory=list)
    cells: dict[Cell, OpVerdict] = field(default_factory=dict)
    inventory: dict[str, float] = field(default_factory=dict)

    def label(self) -> str:
        """Return device and version: "cuda, torch 2.13.0"."""
        words = [str(self.key.get("device") or "a device")]
        if version := self.key.get("framework_version"):
            words.append(f"torch {version}")
        words += [f"{name}={value}" for name, value in self.key.items() if value and name not in _SAID]
        return ", ".join(words)

    def put(self, run: str, name: str, value: float | None, details: Mapping[tuple[str, ...], str]) -> None:
        """Add a metric of a run, with its detail by cell and verdict."""
        group, *parts = name.split("/")
        if group == "op" and len(parts) == 4 and parts[3] in VERDICTS:
            op, dtype, direction, verdict = parts
            self.cells[op, dtype, direction] = OpVerdict(run, verdict, value, details.get(tuple(parts), ""))
        elif group != "op" and value is not None:
            self.inventory[name.removeprefix("inventory.")] = value

    def counts(self) -> dict[tuple[str, str], Counter[str]]:
        """Count verdicts by dtype and direction, in the order in which they were checked."""
        counts: dict[tuple[str, str], Counter[str]] = {}
        for (_, dtype, direction), result in self.cells.items():
            counts.setdefault((dtype, direction), Counter())[result.verdict] += 1
        return counts


_SAID = frozenset({"machine", "device", "device_name", "framework_version", "config"})


def gather(rows: Sequence[ReportedRun], context: Context) -> list[Coverage]:
    """Return tables of the successful prepared rows. Raises: UsageError when no run has a name in --group-by."""
    names = [_named(context, name, "--group-by") for name in context.options.group_by] or list(_KEY)
    able = [r for r in rows if r.outcome == Outcome.SUCCEEDED and "log_rewritten" not in taints(r)]
    able.sort(key=lambda r: (r.job_id, r.number))
    metrics = context.tuples_by_run(  # in reported order, since a later one corrects an earlier one
        "SELECT run_id, name, value FROM v_metric WHERE run_id IN ({runs})"
        " AND (name LIKE 'op/%' OR name LIKE 'inventory.%') ORDER BY run_id, offset",
        able,
    )
    notes = context.tuples_by_run("SELECT run_id, text FROM notes WHERE run_id IN ({runs}) AND kind = 'opcheck'", able)
    tables: dict[tuple[Any, ...], Coverage] = {}
    for row in able:
        key = {name: value_of(row, name) for name in ["machine", *names]}
        table = tables.setdefault(tuple(key.values()), Coverage(key))
        table.runs.append(row)
        texts = [_NOTE.fullmatch(text) for (text,) in notes.get(row.run_id, [])]
        details = {match.groups()[:4]: match[5] or "" for match in texts if match}
        for name, value in metrics.get(row.run_id, []):
            table.put(row.run, name, value, details)
    return [table for table in tables.values() if table.cells]


def _named(context: Context, name: str, option: str) -> str:
    name = _ALIASES.get(name, name)
    if name in (*_KEY, "machine"):
        return name
    return select_runs.resolve(context.connection, name, option) or name


def pairs(tables: Sequence[Coverage], context: Context) -> list[tuple[Coverage, Coverage]]:
    """Return tables to compare, earlier first: each with the --vs baseline, or adjacent versions of one device.

    Raises: UsageError when the baseline is missing or ambiguous.
    """
    baseline = {_named(context, name, "--vs"): value for name, value in context.options.vs.items()}
    if not baseline:
        several = by_key(tables, _without_versions).values()
        return [pair for versions in several for pair in pairwise(sorted(versions, key=_order))]
    fitting = [table for table in tables if all(_fits(table, name, value) for name, value in baseline.items())]
    if len(fitting) != 1:
        text = ",".join(f"{name}={value}" for name, value in baseline.items())
        labels = "; ".join(dict.fromkeys(table.label() for table in tables))
        raise UsageError(
            f"--vs {text} matches {len(fitting) or 'none'} of the tables, not one", f"the tables: {labels}"
        )
    return [(fitting[0], table) for table in tables if table is not fitting[0]]


def _fits(table: Coverage, name: str, value: str) -> bool:
    values = {str(value_of(row, name)) for row in table.runs} if name not in table.key else {str(table.key[name])}
    return values == {value}


def _without_versions(table: Coverage) -> tuple[Any, ...]:
    return tuple((name, value) for name, value in table.key.items() if name not in _VERSION)


def _order(table: Coverage) -> tuple[list[int], str, str]:
    """Return a sort key with versions as numbers: 2.9 is before 2.13."""
    text = str(table.key.get("framework_version") or "")
    return [int(part) for part in re.findall(r"\d+", text.split("+")[0])], text, str(table.key.get("env") or "")


def change(before: OpVerdict | None, now: OpVerdict | None) -> str:
    """Return the change of a cell between two tables; empty if there is none."""
    if before is None or now is None:
        return NEW if before is None else GONE
    if before.verdict == now.verdict:
        return ""
    return BECAME if now.verdict == "native" else BROKE if before.verdict == "native" else CHANGED
