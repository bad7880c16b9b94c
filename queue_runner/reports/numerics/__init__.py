"""Divergence of losses: each iteration's loss against a baseline of the same seed, data and settings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from queue_runner import units
from queue_runner.analysis.comparison import Family, compare
from queue_runner.analysis.grouping import Arm, taints
from queue_runner.errors import UsageError
from queue_runner.model import Outcome
from queue_runner.reports._common import footnotes, prepare, select_runs
from queue_runner.reports._common.report import Context, Result, Row, Section
from queue_runner.reports.devices import tables
from queue_runner.reports.numerics.divergence import LEVELS, Parting, losses, off_words, relative
from queue_runner.tables import Column

NAME = "numerics"
HELP = "where losses part from a baseline's, iteration by iteration: device, dtype, framework"
SQL = (
    f"SELECT {prepare.RUN}, data_sha256 FROM v_run WHERE {{chosen}} AND state = 'DONE' AND n_iters > 0"
    " ORDER BY job_id, number"
)
COLUMNS = (
    Column("workload", "workload"),
    Column("config", "config"),
    Column("label", "row"),
    Column("framework", "framework"),
    Column("framework_version", "version"),
    Column("device", "device"),
    Column("compile", "compile"),
    Column("dtype", "dtype"),
    Column("seed", "seed", units.count, True),
    Column("run", "run"),
    Column("baseline_run", "baseline"),
    Column("i", "i", units.count, True),
    Column("loss", "loss", units.loss, True),
    Column("baseline_loss", "loss of the baseline", units.loss, True),
    Column("relative", "relative difference", units.number, True),
)
_UNUSABLE = "log_rewritten"
"""The only taint that invalidates losses; contended, slept and others affect only times."""
_MOST_FAMILIES = 4


def finish(rows: list[Row], context: Context) -> Result:
    """Build a table for each comparison, and rows of all iterations for csv and json.

    Raises: UsageError when --vs is invalid or --group-by is given.
    """
    if context.options.group_by:
        raise UsageError(
            f"{NAME} takes no --group-by: rows that pool questions have no loss of their own", "--vs dtype=fp32"
        )
    rows = prepare.prepare(rows, context)
    rows = [{**row, "valid": _UNUSABLE not in taints(row)} for row in rows]
    for row in rows:  # losses of a failed run are usable up to its end
        row["ended"], row["outcome"] = row["outcome"], Outcome.SUCCEEDED
    families = compare(rows, prepare.question(rows, context)) if rows else []
    families = sorted(families, key=lambda family: -max(row["run_id"] for cell in family.cells for row in cell.runs))
    sections: list[Section] = []
    lines: list[str] = []
    raw: list[dict[str, Any]] = []
    told: list[Parting] = []
    reference = _reference(rows, context)
    n_left = 0
    for family in families:
        if len(sections) >= _MOST_FAMILIES and not context.options.chosen:
            n_left += len(family.cells) > 1
            continue
        base = _baseline(family)
        found = _partings(family, base, context) if base is not None else []
        if base is None or not found:
            continue
        raw += [one for parting in found for one in _rows(parting)]
        told += found
        sections.append(_section(family, base, found, reference))
        title = [_title(family) + ":"] if len(families) > 1 else []
        lines += [*title, *_lines(family, base, found)]
    if not raw:
        which = "whose losses could be compared: two rows of the same settings, seed and data,"
        return Result(COLUMNS, [], lines=[select_runs.nothing(context, which)])
    older = [f"{n_left} older comparisons were not made: mpsq report numerics g4 chooses"] if n_left else []
    return Result(COLUMNS, raw, sections, lines, [*_notes_of(told), *older])


def _baseline(family: Family) -> Arm | None:
    """Return the requested baseline, else the family's, else the first cell if there are no times to choose by."""
    if family.baseline is not None:
        return family.baseline
    return family.cells[0] if family.why == "" and family.cells else None


def _partings(family: Family, base: Arm, context: Context) -> list[Parting]:
    """Compare each run, the baseline's others included, with the baseline's first run of the same seed and data."""
    known: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    for row in base.used:
        known.setdefault((row["seed"], row["data_sha256"]), row)
    read: dict[int, dict[int, float]] = {}
    found = []
    for cell in [base, *(cell for cell in family.cells if cell is not base)]:
        for row in cell.used:
            against = known.get((row["seed"], row["data_sha256"]))
            if against is None or against["run_id"] == row["run_id"]:
                continue
            a, b = (read.setdefault(one["run_id"], losses(one, context)) for one in (row, against))
            points = [(i, a[i], b[i], relative(a[i], b[i])) for i in sorted(a.keys() & b.keys())]
            if points:
                found.append(Parting(cell, row, against, points))
    return found


def _reference(rows: Sequence[Row], context: Context) -> dict[int, dict[str, float]]:
    """Read by run the loss of the first batch before training, on the CPU and on the device."""
    ids = ", ".join(str(int(row["run_id"])) for row in rows)
    sql = (
        f"SELECT run_id, name, value FROM metrics WHERE run_id IN ({ids}) AND value IS NOT NULL"
        " AND name IN ('reference_loss_cpu', 'reference_loss_device')"
    )
    found: dict[int, dict[str, float]] = {}
    for one in context.read(sql):
        found.setdefault(one["run_id"], {})[one["name"].rpartition("_")[2]] = float(one["value"])
    return found


def _rows(parting: Parting) -> Iterable[dict[str, Any]]:
    row = parting.run
    named = ("config", "framework", "framework_version", "device", "dtype", "seed", "run")
    fixed = {
        "workload": row["subject"],
        "label": parting.cell.label,
        **{name: row[name] for name in named},
        "compile": None if row["compile"] is None else bool(row["compile"]),
        "baseline_run": parting.baseline["run"],
    }
    for i, loss, baseline_loss, off in parting.points:
        yield {**fixed, "i": i, "loss": loss, "baseline_loss": baseline_loss, "relative": off}


def _title(family: Family) -> str:
    shown = [dict(row) for cell in family.cells for row in cell.used or cell.runs]
    return tables.caption(family, shown)


def _section(
    family: Family, base: Arm, found: Sequence[Parting], reference: Mapping[int, Mapping[str, float]]
) -> Section:
    """Build a row for each cell, from its run with the largest difference, with the number of runs."""
    columns = [
        Column("label", "", flexible=True),
        Column("runs", "runs", units.count, True),
        Column("n", "iters", units.count, True),
        *(Column(f"above{level:g}", f"> {units.percent(level, 1)}", right=True) for level in LEVELS),
        Column("greatest", "at most", right=True),
        Column("last", "at last", right=True),
        Column("device", "step 0", right=True),
        Column("cpu", "on CPU", right=True),
    ]
    shown = []
    for cell in dict.fromkeys(parting.cell for parting in found):
        some = [parting for parting in found if parting.cell is cell]
        worst = _worst(some)
        told = reference.get(worst.run["run_id"], {})
        firsts = {f"above{level:g}": _first(worst, level) for level in LEVELS}
        shown.append(
            {
                "label": f"{cell.label}, again" if cell is base else cell.label,
                "runs": len(some),
                "n": len(worst.points),
                **firsts,
                "greatest": _off(worst.greatest[1] if worst.greatest else None),
                "last": _off(worst.last),
                "cpu": units.loss(told.get("cpu")),
                "device": units.loss(told.get("device")),
            }
        )
    why = f" ({family.why})" if family.why else ""
    return Section(_title(family), columns, shown, [f"against {base.label}{why}"])


def _worst(some: Sequence[Parting]) -> Parting:
    return max(some, key=lambda parting: parting.greatest[1] if parting.greatest else -1.0)


def _first(parting: Parting, level: float) -> str:
    first = parting.first(level)
    return "never" if first is None else units.count(first)


def _off(x: float | None) -> str:
    """Format a difference for a narrow table column."""
    return "nan" if x is not None and not math.isfinite(x) else off_words(x)


def _lines(family: Family, base: Arm, found: Sequence[Parting]) -> Iterable[str]:
    floor = [parting for parting in found if parting.cell is base]
    if floor:
        worst = _worst(floor)
        off = worst.greatest[1] if worst.greatest else 0.0
        same = "repeats bit by bit" if off == 0 else f"is up to {off_words(off)} away from itself when it is run again"
        yield f"{base.label} {same} ({len(floor) + 1} runs)"
    for cell in dict.fromkeys(parting.cell for parting in found if parting.cell is not base):
        worst = _worst([parting for parting in found if parting.cell is cell])
        yield f"{cell.label} {_parts(worst)}"


def _parts(worst: Parting) -> str:
    if (i := worst.not_a_number) is not None:
        return f"has a loss that is not a number from iteration {units.count(i)} on, where the baseline has one"
    if (i := worst.baseline_not_a_number) is not None:
        return f"has a loss from iteration {units.count(i)} on where the baseline's is not a number"
    both = [i for i, _, _, off in worst.points if off is None]
    n = len(worst.points) - len(both)
    if not n:
        return "has no loss that is a number, and neither has the baseline"
    at, off = worst.greatest or (worst.points[0][0], 0.0)
    if off <= LEVELS[0]:
        over = f"over {units.count(n)} iteration{'s' if n > 1 else ''}"
        over += f"; then both are not a number, from {units.count(both[0])} on" if both else ""
        return f"stays within {off_words(off)} of the baseline {over}" if off else f"has the baseline's losses {over}"
    said = [f"{units.percent(level, 1)} at iteration {_first(worst, level)}" for level in LEVELS if off > level]
    final = f"{off_words(worst.last)} at last" if worst.last is not None else "no number at last"
    most = f"{off_words(off)} at most (at {units.count(at)})"
    return f"parts from the baseline by more than {', '.join(said)}; {most}, {final}"


def _notes_of(found: Sequence[Parting]) -> Iterable[str]:
    levels = " and ".join(f"> {units.percent(level, 1)}" for level in LEVELS)
    yield f"{levels}: the first iteration that far off"
    yield "step 0: the loss of the first batch before training, on the device and on the CPU"
    yield "difference: |loss - baseline's| / |baseline's|, same iteration, seed and data; of several runs the worst"
    if any(parting.run["dtype"] != parting.baseline["dtype"] for parting in found):
        yield "a reduced precision parts by rounding alone: eps is 0.78 % in bf16, 0.098 % in fp16"
    if len({parting.run["framework"] for parting in found} | {parting.baseline["framework"] for parting in found}) > 1:
        yield "with dropout each framework draws its own masks: --set dropout=0 compares the arithmetic alone"
    rows = {row["run"]: row for parting in found for row in (parting.run, parting.baseline)}
    badly = [f"{name} {row['ended']}" for name, row in rows.items() if row["ended"] != Outcome.SUCCEEDED]
    if badly:
        yield f"losses up to their end: {footnotes.named(badly)}"
    spoiled = sorted({kind for row in rows.values() for kind in taints(row)} & {"contended", "slept", "swapping"})
    if spoiled:
        yield f"runs whose times do not count ({', '.join(spoiled)}) are in: it changes no loss"
