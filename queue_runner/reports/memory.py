"""Memory of each run over its iterations: the highest, what is taken but not used, whether it grows, the end of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from queue_runner import stats, units
from queue_runner.compare import Family, families
from queue_runner.errors import UsageError
from queue_runner.grouping import SUBJECT, Cell, taints, word
from queue_runner.model import Ending, Outcome
from queue_runner.render import Column
from queue_runner.reports import Context, Result, Row, Section, _choose, _facts, _notes

NAME = "memory"
HELP = "allocated and reserved bytes over the iterations: the peak, fragmentation, growth, the end of what ran out"
SQL = (
    f"SELECT {_facts.RUN} FROM v_run WHERE {{chosen}} AND state = 'DONE'"
    " AND (n_iters > 0 OR outcome = 'OUT_OF_MEMORY') ORDER BY job_id, number"
)
FEWEST = 20
"""Measured iterations below which nothing is said of growth."""
MATERIAL_SHARE = 0.01
MATERIAL_BYTES = 2**20
"""Growth over what was measured must exceed this share of the level, and this many bytes, to be called a leak."""
PER = 1000
"""Iterations that growth is told for."""
COLUMNS = (
    Column("workload", "workload"),
    Column("config", "config"),
    Column("label", "row"),
    Column("framework", "framework"),
    Column("framework_version", "version"),
    Column("device", "device"),
    Column("compile", "compile"),
    Column("dtype", "dtype"),
    Column("run", "run"),
    Column("outcome", "outcome"),
    Column("n", "iterations", units.count, True),
    Column("reserved_is", "reserved is"),
    Column("peak_allocated_bytes", "peak allocated", units.size, True),
    Column("peak_reserved_bytes", "peak reserved", units.size, True),
    Column("reserved_over_allocated", "reserved / allocated", units.ratio, True),
    Column("last_i", "last iteration", units.count, True),
    Column("last_allocated_bytes", "last allocated", units.size, True),
    Column("last_reserved_bytes", "last reserved", units.size, True),
    Column("max_rss_bytes", "max RSS", units.size, True),
    Column("grows", "what grows"),
    Column("growth_bytes_per_1000", "growth / 1,000 iterations", units.size, True),
    Column("growth_low", "from", units.size, True),
    Column("growth_high", "to", units.size, True),
    Column("leak", "leak"),
    Column("valid", "times count"),
    Column("taints", "taints", " ".join),
)
_MOST_RUNS = 24
FRAGMENTED = 1.5
"""Reserved over allocated, at the peak of what is reserved, from which it is worth a sentence."""


class Point(NamedTuple):
    """After one iteration. Bytes are None where they are not told."""

    i: int
    phase: str
    allocated: int | None
    reserved: int | None


@dataclass(frozen=True, eq=False)
class Series:
    """The memory of one run by iteration."""

    cell: Cell
    run: Mapping[str, Any]
    points: Sequence[Point]

    @property
    def resident(self) -> bool:
        """Whether what is called reserved is the process's RSS."""
        return str(self.run["device"]) == "cpu"

    @property
    def peak_allocated(self) -> int | None:
        return max((point.allocated for point in self.points if point.allocated is not None), default=None)

    @property
    def peak_reserved(self) -> int | None:
        return max((point.reserved for point in self.points if point.reserved is not None), default=None)

    @cached_property
    def ratio(self) -> float | None:
        """Reserved over allocated where most is reserved; None on the CPU, whose process holds more than tensors."""
        both = [(a, r) for _, _, a, r in self.points if a and r is not None]
        if not both or self.resident:
            return None
        allocated, reserved = max(both, key=lambda pair: pair[1])
        return reserved / allocated

    @cached_property
    def _measured(self) -> tuple[str, list[int], list[float]]:
        """What growth is taken of: bytes in tensors where they are told, else those that are reserved."""
        tensors = any(point.allocated is not None for point in self.points)
        measured = [point for point in self.points if point.phase in ("measure", "eval_iter")]
        some = [(point.i, point.allocated if tensors else point.reserved) for point in measured]
        known = [(i, float(x)) for i, x in some if x is not None]
        name = "allocated" if tensors else "RSS" if self.resident else "reserved"
        return name, [i for i, _ in known], [x for _, x in known]

    @property
    def grows(self) -> str:
        """allocated, reserved or RSS."""
        return self._measured[0]

    @cached_property
    def slope(self) -> stats.Slope | None:
        """Bytes an iteration; None for fewer than FEWEST."""
        _, at, xs = self._measured
        return stats.slope(at, xs) if len(xs) >= FEWEST else None

    @cached_property
    def leak(self) -> bool | None:
        """Whether it grows beyond doubt and materially: over all that was measured, and over its second half alone.

        What settles after a while is no leak. None where there are too few iterations to say.
        """
        if self.slope is None:
            return None
        _, at, xs = self._measured
        half = len(xs) // 2
        later = stats.slope(at[half:], xs[half:])
        grown = self.slope.middle * (at[-1] - at[0])
        material = grown > max(MATERIAL_BYTES, MATERIAL_SHARE * stats.median(xs))
        return bool(material and self.slope.low > 0 and later is not None and later.low > 0)


def finish(rows: list[Row], context: Context) -> Result:
    """A table of runs for each family. Raises: UsageError (--group-by, any --vs)."""
    if context.options.vs:
        raise UsageError(f"{NAME} takes no --vs: it compares nothing", "--where device=cuda narrows it")
    rows = _facts.prepare(rows, context)
    found = families(rows, _facts.question(rows, context)) if rows else []
    found = sorted(found, key=lambda family: -max(row["run_id"] for cell in family.cells for row in cell.runs))
    raw, sections, told = [], [], []
    left = len(rows) if context.options.chosen else _MOST_RUNS
    n_left = 0
    for some in _tables(found):
        runs = [(cell, row) for family in some for cell in family.cells for row in cell.runs]
        looked_at = runs[:left]
        n_left += len(runs) - len(looked_at)
        left -= len(looked_at)
        series = [one for cell, row in looked_at if (one := _series(cell, row, context)) is not None]
        raw += [_row(one) for one in series]
        told += series
        kinds = ([one for one in series if one.resident is resident] for resident in (True, False))
        sections += [_section(of) for of in kinds if of]
    if not raw:
        return Result(COLUMNS, [], lines=[_choose.nothing(context, "that tells its memory")])
    notes = [*_notes_of(told)]
    silent = {row["run"] for row in rows if row["outcome"] == Outcome.OUT_OF_MEMORY} - {one["run"] for one in raw}
    if silent:
        notes.append(f"out of memory before an iteration was told: {_notes.named(sorted(silent))}")
    if n_left:
        notes.append(f"{n_left} older runs were not looked at: mpsq report memory g4, --since 2d or --where choose")
    return Result(COLUMNS, raw, sections, [*_lines(told)], notes)


def _tables(found: Sequence[Family]) -> list[list[Family]]:
    """Families that differ in settings alone, together, and these in the labels of their rows."""
    tables: dict[tuple[Any, ...], list[Family]] = {}
    for family in found:
        tables.setdefault(tuple(family.common[name] for name in SUBJECT), []).append(family)
    labelled = []
    for several in tables.values():
        differ = [n for n in several[0].common if len({str(f.common.get(n)) for f in several}) > 1]
        labelled.append(
            [
                replace(family, cells=[replace(cell, label=_label(cell, family, differ)) for cell in family.cells])
                for family in several
            ]
        )
    return labelled


def _label(cell: Cell, family: Family, differ: Sequence[str]) -> str:
    told = [word(name, value) for name in differ if (value := family.common.get(name)) is not None]
    return " ".join([cell.label, *told])


def _series(cell: Cell, row: Mapping[str, Any], context: Context) -> Series | None:
    first, last = context.options.iters or (0, 2**62)
    sql = (
        "SELECT i, phase, allocated_bytes, reserved_bytes FROM v_iteration WHERE run_id = ? AND i BETWEEN ? AND ?"
        " AND COALESCE(allocated_bytes, reserved_bytes) IS NOT NULL ORDER BY offset"
    )
    points = [Point(*one.values()) for one in context.read(sql, [row["run_id"], first, last])]
    return Series(cell, row, points) if points else None


def _row(one: Series) -> dict[str, Any]:
    row, slope = one.run, one.slope
    last = one.points[-1]
    named = ("config", "framework", "framework_version", "device", "dtype", "run", "max_rss_bytes")
    return {
        "workload": row["subject"],
        "label": one.cell.label,
        **{name: row[name] for name in named},
        "compile": None if row["compile"] is None else bool(row["compile"]),
        "outcome": str(_ending(row)),
        "n": len(one.points),
        "reserved_is": "RSS" if one.resident else "reserved",
        "peak_allocated_bytes": one.peak_allocated,
        "peak_reserved_bytes": one.peak_reserved,
        "reserved_over_allocated": one.ratio,
        "last_i": last.i,
        "last_allocated_bytes": last.allocated,
        "last_reserved_bytes": last.reserved,
        "grows": one.grows,
        "growth_bytes_per_1000": slope.middle * PER if slope else None,
        "growth_low": slope.low * PER if slope else None,
        "growth_high": slope.high * PER if slope else None,
        "leak": one.leak,
        "valid": bool(row["valid"]),
        "taints": sorted(taints(row)),
    }


def _ending(row: Mapping[str, Any]) -> Ending:
    return Ending(Outcome(row["outcome"]), row["exit_code"], row["signal"], row["reason"] or "")


def _section(series: Sequence[Series]) -> Section:
    device = not series[0].resident
    columns = [
        Column("label", "", flexible=True),
        Column("run", "run"),
        *([] if device else [Column("n", "iters", units.count, True)]),
        *([Column("allocated", "allocated", right=True)] if device else []),
        Column("reserved", "reserved" if device else "RSS", right=True),
        *([Column("ratio", "ratio", right=True)] if device else []),
        Column("growth", "growth", right=True),
        Column("interval", "95 % interval", right=True),
        Column("what", ""),
    ]
    shown = []
    for one in series:
        slope = one.slope
        shown.append(
            {
                "label": one.cell.label,
                "run": one.run["run"],
                "n": len(one.points),
                "allocated": units.size(one.peak_allocated),
                "reserved": units.size(one.peak_reserved),
                "ratio": units.number(one.ratio, 3),
                "growth": _bytes(slope.middle * PER) if slope else units.MISSING,
                "interval": _interval(slope) if slope else units.MISSING,
                "what": "leak" if one.leak else "",
            }
        )
    run = series[0].run
    name = " ".join(str(text) for text in (run["subject"], run["config"]) if text)
    return Section(", ".join([name, *_alike(series, "framework", "dtype"), "at the highest"]), columns, shown)


def _alike(series: Sequence[Series], *names: str) -> list[str]:
    """What all rows share and no label names."""
    found = [{str(one.run[name]) for one in series if one.run[name]} for name in names]
    return [next(iter(values)) for values in found if len(values) == 1]


def _bytes(x: float) -> str:
    return "0" if x == 0 else units.size(round(x))


def _interval(slope: stats.Slope) -> str:
    """Both ends for 1,000 iterations, the unit once where it is the same: "208 to 250 MiB"."""
    low, high = _bytes(slope.low * PER), _bytes(slope.high * PER)
    number, _, unit = low.partition(" ")
    return f"{number if high.endswith(' ' + unit) else low} to {high}"


def _lines(series: Sequence[Series]) -> Iterable[str]:
    for one in series:
        if one.leak and one.slope is not None:
            yield (
                f"{one.run['run']} ({one.cell.label}) leaks: {one.grows} grows by {_bytes(one.slope.middle * PER)} in"
                f" 1,000 iterations (95 % interval {_interval(one.slope)}), in the second half still"
            )
    unsure = [one for one in series if one.leak is None]
    well = [one for one in series if one.leak is False]
    if well:
        yield f"no leak shown in {_runs(well)}"
    if unsure:
        yield f"nothing can be said of growth in {_runs(unsure)}: fewer than {FEWEST} measured iterations"
    kept: dict[tuple[str, str, bool], list[Series]] = {}
    for one in series:
        if one.ratio is not None and one.ratio >= FRAGMENTED:
            jax = one.run["framework"] == "jax"
            kept.setdefault(("", "", jax) if jax else (one.run["subject"], one.cell.label, jax), []).append(one)
    for (subject, label, jax), some in kept.items():
        most = units.ratio(max(one.ratio or 0.0 for one in some))
        if jax:
            yield (
                f"jax, {_runs(some)}, holds up to {most} what its arrays take between iterations: XLA takes most of a"
                " device's memory when it starts, unless XLA_PYTHON_CLIENT_PREALLOCATE=false, and that is not what the"
                " model needs"
            )
            continue
        label = f"{subject} {label}" if len({other.run["subject"] for other in series}) > 1 else label
        yield (
            f"{label}, {_runs(some)}, holds up to {most} what its tensors take between iterations: kept for what an"
            " iteration needs in its midst, or fragmented"
        )
    for one in series:
        if one.run["outcome"] == Outcome.OUT_OF_MEMORY:
            i, _, allocated, reserved = one.points[-1]
            known = [f"{units.size(allocated)} allocated"] if allocated is not None else []
            known += [f"{units.size(reserved)} {'resident' if one.resident else 'reserved'}"] if reserved else []
            yield (
                f"{one.run['run']} ({one.cell.label}) ran out of memory; after iteration {units.count(i)}, the last"
                f" that it told, {' and '.join(known)}"
            )


def _runs(series: Sequence[Series]) -> str:
    return f"{len(series)} run{'s' if len(series) > 1 else ''} ({_notes.named([one.run['run'] for one in series])})"


def _notes_of(series: Sequence[Series]) -> Iterable[str]:
    if any(not one.resident for one in series):
        yield "allocated: in tensors; reserved: taken from the driver; after each iteration, not at its highest"
        yield "ratio: reserved over allocated where most is reserved"
    if any(one.resident for one in series):
        yield "RSS: what the process has resident after each iteration, libraries and data as well; cpu rows"
    yield (
        f"growth: in 1,000 iterations, Theil-Sen slope over measured ones; a leak: 95 % interval above 0, overall and"
        f" in the second half, and more than {units.percent(MATERIAL_SHARE, 1)} and {units.size(MATERIAL_BYTES)} in all"
    )
    badly = [f"{one.run['run']} {_ending(one.run)}" for one in series if one.run["outcome"] != Outcome.SUCCEEDED]
    if badly:
        yield f"up to their end: {_notes.named(badly)}"
    if any(not one.run["valid"] for one in series):
        yield "runs whose times do not count are in: it changes none of these numbers but that swapping lowers RSS"
