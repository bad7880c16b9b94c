"""Which runs answer the same question, and what one question's answer is worth against another's. Pure.

A cell is a set of runs that differ in nothing that is named; a family is a set of cells that may be compared: the same
machine, workload, config and settings. A ratio is over run medians, and a verdict needs several runs on both sides.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from queue_runner import stats
from queue_runner.errors import UsageError
from queue_runner.model import Outcome, State

if TYPE_CHECKING:
    from queue_runner.verdict import Verdict

Row = Mapping[str, Any]
"""A run: the columns of v_run, and `factors`, the settings and versions by which runs are told apart besides."""

SUBJECT = ("machine", "subject", "config")
"""What the members of a family have in common, whatever is asked: runs of two machines are never compared."""
MAIN = ("device", "compile", "dtype", "framework")
"""What tells cells apart and is named first."""
MOST_SPLITS = 30_000
"""Permutations that all verdicts of one question may cost together, about 50 ms; see `fold`."""


def value_of(row: Row, name: str) -> Any:
    """A column of v_run, or a setting or version of that name."""
    factors: Mapping[str, Any] = row["factors"]
    return factors[name] if name in factors else row.get(name)


def word(name: str, value: Any) -> str:
    """A factor's value in words: "eager", "mps", "max_iters=20"."""
    if name == "compile":
        return "" if value is None else "compiled" if value else "eager"
    if name in ("device", "dtype", "framework", "config", "subject", "device_name", "optimizer"):
        return "" if value is None else str(value)
    return f"{name}={'(unset)' if value is None else value}"


@dataclass(frozen=True)
class Cell:
    """Runs that ask the same. Only `used` ones give numbers: succeeded and valid, or all where invalid ones are wanted."""

    key: Mapping[str, Any]
    runs: Sequence[Row]
    used: Sequence[Row]
    label: str = ""

    @cached_property
    def left_out(self) -> list[Row]:
        """Runs that ended and are not used."""
        ids = {row["run_id"] for row in self.used}
        return [row for row in self.runs if row["state"] == State.DONE and row["run_id"] not in ids]

    @cached_property
    def shown(self) -> Sequence[Row]:
        """Runs whose numbers are shown: those used, or where none is, the invalid ones, which are never compared."""
        return self.used or [row for row in self.left_out if row["outcome"] == Outcome.SUCCEEDED]

    @cached_property
    def times(self) -> list[float]:
        """Seconds an iteration, the median of each used run: what is compared."""
        return [row["median_s"] for row in self.used if (row["median_s"] or 0) > 0]

    def median(self, name: str) -> float | None:
        """The median of a column over the runs that are shown; None where no run has it."""
        values = [row[name] for row in self.shown if row[name] is not None]
        return stats.median(values) if values else None

    @cached_property
    def median_s(self) -> float | None:
        return self.median("median_s")

    @cached_property
    def spread_s(self) -> tuple[float | None, str | None]:
        """MAD over the medians of several runs ("runs"); of one run, over its iterations ("iterations")."""
        medians = [row["median_s"] for row in self.shown if row["median_s"] is not None]
        if len(medians) > 1:
            return stats.mad(medians), "runs"
        return (self.median("mad_s"), "iterations") if medians else (None, None)

    @property
    def work(self) -> float | None:
        """Tokens, else samples, an iteration."""
        return self.median("tokens_per_iter") or self.median("samples_per_iter")


@dataclass(frozen=True)
class Pair:
    """A cell against another. `low` and `high` are the 95 % interval of the ratio, there from 4 runs each on."""

    cell: Cell
    baseline: Cell
    verdict: Verdict
    low: float | None = None
    high: float | None = None

    @property
    def ratio(self) -> float:
        """How many times as fast as the baseline: above 1 the cell takes less time."""
        return self.verdict.speedup


@dataclass(frozen=True)
class Family:
    """Cells that may be compared, and how they compare. `per_work`: ratios are of time per token or sample."""

    common: Mapping[str, Any]
    cells: Sequence[Cell]
    baseline: Cell | None = None
    why: str = ""
    pairs: Sequence[Pair] = ()
    twins: Sequence[Pair] = ()
    per_work: bool = False

    def pair(self, cell: Cell) -> Pair | None:
        return next((pair for pair in self.pairs if pair.cell is cell), None)

    def twin(self, cell: Cell) -> Cell | None:
        """The same cell without compilation; None for one that is not compiled."""
        if not cell.key.get("compile"):
            return None
        wanted = {**cell.key, "compile": 0}
        return next((other for other in self.cells if other.key == wanted), None)


@dataclass(frozen=True)
class Question:
    """What is compared: the names that tell cells apart, those among them that stay within a family, and the baseline."""

    names: Sequence[str]
    settings: Sequence[str] = ()
    vs: Mapping[str, Any] = field(default_factory=dict)
    include_invalid: bool = False


def compare(rows: Iterable[Row], question: Question) -> list[Family]:
    """Group runs into cells and families, and judge each cell against its family's baseline and its eager twin.

    Raises: UsageError when the baseline that was asked for is no cell, or several of one family.
    """
    cells = group(rows, question)
    fixed = [*SUBJECT, *(name for name in question.settings if name not in question.vs)]
    found: dict[tuple[Any, ...], list[Cell]] = {}
    for cell in cells:
        found.setdefault(tuple(cell.key.get(name) for name in fixed), []).append(cell)
    families = [Family(dict(zip(fixed, key, strict=True)), sorted(members, key=_order)) for key, members in found.items()]
    families.sort(key=lambda family: [str(value) for value in family.common.values()])
    return [_judged(family) for family in _with_baselines([_labelled(family) for family in families], question.vs)]


def group(rows: Iterable[Row], question: Question) -> list[Cell]:
    """Cells of runs. A run without numbers goes with the runs of the same job, whose details it could not report."""
    rows = list(rows)
    names = [*SUBJECT, *(name for name in question.names if name not in SUBJECT)]
    members: dict[tuple[Any, ...], list[Row]] = {}
    place: dict[Any, tuple[Any, ...]] = {}
    for row in sorted(rows, key=lambda row: row["median_s"] is None):
        key = tuple(value_of(row, name) for name in names)
        if row["median_s"] is None:
            key = place.get(row["spec_hash"], key)
        place.setdefault(row["spec_hash"], key)
        members.setdefault(key, []).append(row)
    return [
        Cell(
            dict(zip(names, key, strict=True)),
            sorted(runs, key=lambda row: row["run_id"]),
            [row for row in sorted(runs, key=lambda row: row["run_id"]) if _counts(row, question.include_invalid)],
        )
        for key, runs in members.items()
    ]


def _counts(row: Row, include_invalid: bool) -> bool:
    if include_invalid:
        return bool(row["outcome"] == Outcome.SUCCEEDED or row["median_s"] is not None)
    return bool(row["outcome"] == Outcome.SUCCEEDED and row["valid"])


def _order(cell: Cell) -> tuple[Any, ...]:
    """The cpu first, eager before compiled, full precision before others, then by the rest."""
    key = cell.key
    device = str(key.get("device"))
    rest = [(0, value, "") if isinstance(value, int | float) else (1, 0, str(value)) for value in key.values()]
    return device != "cpu", device, bool(key.get("compile")), key.get("dtype") != "fp32", rest


def _labelled(family: Family) -> Family:
    """Name every cell by device and mode, by what else differs in the family, and by details only where it must be."""
    names = [name for name in family.cells[0].key if name not in family.common]
    differ = {name for name in names if len({cell.key[name] for cell in family.cells}) > 1}
    shown = [name for name in names if name in ("device", "compile") or (name in differ and name in MAIN)]
    shown += [name for name in names if name in differ and name not in MAIN and _splits(family.cells, shown, name)]
    cells = []
    for cell in family.cells:
        words = [word(name, cell.key[name]) for name in shown]
        cells.append(replace(cell, label=" ".join(filter(None, words)) or str(family.common["subject"])))
    return replace(family, cells=cells)


def _splits(cells: Sequence[Cell], shown: Sequence[str], name: str) -> bool:
    """Whether cells that look the same by `shown` differ in `name`."""
    seen: dict[tuple[Any, ...], Any] = {}
    return any(
        seen.setdefault(tuple(cell.key[other] for other in shown), cell.key[name]) != cell.key[name] for cell in cells
    )


def _with_baselines(families: Sequence[Family], vs: Mapping[str, Any]) -> list[Family]:
    if not vs:
        return [_default_baseline(family) for family in families]
    said = ",".join(f"{name}={_as_typed(name, value)}" for name, value in vs.items())
    chosen, some = [], False
    for family in families:
        match = [c for c in family.cells if all(_same(c.key.get(name), value) for name, value in vs.items())]
        if len(match) > 1:
            apart = [n for n in match[0].key if len({c.key[n] for c in match}) > 1 and n not in SUBJECT]
            raise UsageError(
                f"--vs {said} is {len(match)} rows: {', '.join(cell.label for cell in match)}",
                f"they differ in {' and '.join(apart)}: add "
                + ",".join(f"{name}={_as_typed(name, match[0].key[name])}" for name in apart),
            )
        some = some or bool(match)
        chosen.append(replace(family, baseline=match[0] if match else None, why="--vs " + said))
    if families and not some:
        rows = dict.fromkeys(cell.label for family in families for cell in family.cells)
        raise UsageError(f"--vs {said} is none of the rows", f"the rows are: {', '.join([*rows][:8])}")
    return chosen


def _same(value: Any, wanted: Any) -> bool:
    return value is not None and (value == wanted or str(value) == str(wanted))


def _as_typed(name: str, value: Any) -> str:
    return ("on" if value else "off") if name == "compile" else str(value)


def _default_baseline(family: Family) -> Family:
    """Eager on the cpu, in full precision and torch where there is a choice; else the slowest eager cell; else the slowest."""
    able = [cell for cell in family.cells if cell.times]
    if len(able) < 2:
        return family
    best = min(able, key=lambda cell: (*_distance(cell), -(cell.median_s or 0)))
    far, compiled = _distance(best)[:2]
    why = "eager on the cpu" if not far and not compiled else "the slowest eager row" if not compiled else "the slowest row"
    return replace(family, baseline=best, why=f"{why}, by default")


def _distance(cell: Cell) -> tuple[bool, bool, bool, bool]:
    key = cell.key
    compiled = bool(key.get("compile"))
    away = key.get("device") != "cpu" or compiled
    return away, compiled, key.get("dtype") not in ("fp32", None), key.get("framework") not in ("torch", None)


def _judged(family: Family) -> Family:
    works = {cell.work for cell in family.cells if cell.times}
    per_work = len(works - {None}) > 1
    able = [cell for cell in family.cells if cell.times and (not per_work or cell.work)]
    pairs = [(c, family.baseline) for c in able if family.baseline in able and c is not family.baseline]
    twins = [(c, t) for c in able if (t := family.twin(c)) is not None and any(t is cell for cell in able)]
    return replace(family, per_work=per_work, pairs=judge(pairs, per_work), twins=judge(twins, per_work))


def judge(pairs: Sequence[tuple[Cell, Cell | None]], per_work: bool = False) -> list[Pair]:
    """Verdicts on all pairs of one question together (Holm), each with the interval of its own ratio."""
    if not pairs:
        return []
    from queue_runner import verdict

    both = [(cell, baseline) for cell, baseline in pairs if baseline is not None]
    arms = [(_arm(cell, per_work), _arm(baseline, per_work)) for cell, baseline in both]
    need = verdict.needed_repeats()
    n_most = max(max(6, verdict.needed_repeats(len(arms))), *(n for n in (7, 8) if len(arms) * math.comb(2 * n, n) <= MOST_SPLITS), 6)
    folded = [(fold(arm, n_most), fold(baseline, n_most)) for arm, baseline in arms]
    found = []
    for (cell, baseline), (arm, base), sizes, judged in zip(both, folded, arms, verdict.compare_all(folded), strict=True):
        alone = verdict.compare(arm, base) if min(len(arm), len(base)) >= need else judged
        judged = replace(judged, n=len(sizes[0]), n_baseline=len(sizes[1]))
        found.append(Pair(cell, baseline, judged, alone.low, alone.high))
    return found


def _arm(cell: Cell, per_work: bool) -> list[float]:
    return [time / (cell.work or 1.0) for time in cell.times] if per_work else cell.times


def fold(times: Sequence[float], n_most: int) -> list[float]:
    """At most `n_most` numbers for many run medians: geometric means of successive batches, in the order of the runs.

    All splits of a few batches can be formed exactly, where those of many runs could only be sampled; a slow change
    from run to run stays visible between batches (method of batch means: Law & Kelton, Simulation Modeling and
    Analysis, section 9.5).
    """
    if len(times) <= n_most:
        return list(times)
    cuts = [len(times) * k // n_most for k in range(n_most + 1)]
    batches = [times[a:b] for a, b in zip(cuts, cuts[1:], strict=False)]
    return [math.exp(math.fsum(map(math.log, batch)) / len(batch)) for batch in batches]
