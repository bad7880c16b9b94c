"""Use of the GPU while measuring: dips, clock, heat, power, and the energy of an iteration; eager beside compiled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

from queue_runner import units
from queue_runner.analysis import comparison, gpu_use, stats
from queue_runner.analysis.energy import joules_per_iteration
from queue_runner.analysis.gpu_use import PhaseUse
from queue_runner.analysis.grouping import Arm
from queue_runner.analysis.points import PhaseMark, read_samples
from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.reports._common import arm_tables, prepare, select_runs
from queue_runner.reports._common.columns import RowColumn, columns
from queue_runner.reports._common.document import Context, Result, Row, Section
from queue_runner.tables import Column

NAME = "utilization"
HELP = "use of the GPU by phase, its dips, clock, heat and power; joules of an iteration and of a token"
SQL = (
    f"SELECT {prepare.RUN} FROM v_run WHERE {{chosen}} AND state = 'DONE'"
    " AND run_id IN (SELECT run_id FROM conditions) ORDER BY job_id, number"
)
_DEVICES = {"gpu": "gpu", "package": "cpu", "cpu": "cpu", "ane": "ane"}
"""Meters by the begin of their names: what they measure."""
_MHZ = Column("clock_hz", "MHz", lambda hertz: units.number(None if hertz is None else hertz / 1e6, 4), True)
COLUMNS = columns(
    "label runs",
    Column("phase", "phase"),
    Column("n_samples", "samples", units.count, True),
    Column("busy_share", "GPU busy", units.percent, True),
    Column("dips_share", "dips", units.percent, True),
    Column("clock_share", "clock", units.percent, True),
    _MHZ,
    Column("temperature_c", "°C", lambda heat: units.number(heat, 3), True),
    Column("capped_share", "power cap", units.percent, True),
    *(Column(f"{what}_w", f"{what.upper()} W", units.number, True) for what in ("gpu", "cpu", "ane")),
    *(Column(f"{what}_j", f"{what.upper()} J/iter", units.number, True) for what in ("gpu", "cpu")),
    *(Column(f"{what}_j_error", f"{what.upper()} ±", units.number, True) for what in ("gpu", "cpu")),
    *(Column(f"{what}_j_mad", f"{what.upper()} MAD", units.number, True) for what in ("gpu", "cpu")),
    Column("gpu_j_per_token", "GPU J/token", units.number, True),
    Column("cpu_j_per_token", "CPU J/token", units.number, True),
    Column("method", "method"),
)
_FEW = 5
"""Samples below which a median of the use is one of an anecdote."""
_ROUGH = 0.1
"""Error of an energy, as a share of it, from which on it is not to be believed."""


def finish(stored: list[ReportedRun], context: Context) -> Result:
    """Build a table of the measured phase for each family; csv and json have all phases."""
    runs = prepare.prepare(stored, context)
    families = comparison.families(runs, prepare.question(runs, context)) if runs else []
    uses = _uses(runs, context)
    lengths = _lengths(runs, context)
    raw: list[Row] = []
    sections: list[Section] = []
    lines: list[str] = []
    for family in families:
        phase_rows = [(arm, row) for arm in family.arms for row in _rows(arm, uses, lengths)]
        raw += [row for _, row in phase_rows]
        shown = {id(arm): row for arm, row in phase_rows if row["phase"] in ("measure", gpu_use.WHOLE)}
        if shown:
            sections += _sections(arm_tables.caption(family), [*shown.values()])
        lines += [*_twins(family, shown)]
    if not raw:
        return Result(COLUMNS, [], lines=[select_runs.nothing(context, "with a sample of a GPU or of an energy meter")])
    return Result(COLUMNS, raw, sections, lines, [*_notes(raw)])


def _uses(rows: Sequence[ReportedRun], context: Context) -> dict[int, list[PhaseUse]]:
    if not rows:
        return {}
    samples = context.by_run("SELECT run_id, at, data_json FROM conditions WHERE run_id IN ({runs})", rows)
    marks = context.by_run("SELECT run_id, t_s, name, edge FROM phases WHERE run_id IN ({runs}) ORDER BY offset", rows)
    return {
        row.run_id: gpu_use.by_phase(
            read_samples((sample["at"], sample["data_json"]) for sample in samples.get(row.run_id, [])),
            [PhaseMark(mark["t_s"], mark["name"], mark["edge"]) for mark in marks.get(row.run_id, [])],
            row.started_at,
            row.real_s,
        )
        for row in rows
    }


def _lengths(rows: Sequence[ReportedRun], context: Context) -> dict[int, int]:
    """Return how many iterations each run measured: those that a log leaves out, too."""
    sql = (
        "SELECT run_id, MAX(i) - MIN(i) + 1 AS n FROM v_iteration WHERE phase = 'measure' AND run_id IN ({runs})"
        " GROUP BY run_id"
    )
    return {run_id: found[0]["n"] for run_id, found in context.by_run(sql, rows).items()} if rows else {}


def _rows(arm: Arm, uses: Mapping[int, list[PhaseUse]], lengths: Mapping[int, int]) -> Iterator[Row]:
    """Yield a row for each phase: medians over the runs of the arm that know it."""
    by_phase: dict[str, list[tuple[ReportedRun, PhaseUse]]] = {}
    for run in arm.shown:
        for use in uses.get(run.run_id, []):
            by_phase.setdefault(use.phase, []).append((run, use))
    for phase, phase_uses in by_phase.items():
        row: Row = {"label": arm.label, "runs": [run.run for run, _ in phase_uses], "phase": phase}
        row["n_samples"] = sum(use.n_samples for _, use in phase_uses)
        for name in ("busy_share", "dips_share", "clock_share", "clock_hz", "capped_share"):
            row[name] = _middle(getattr(use, name) for _, use in phase_uses)
        row["temperature_c"] = max(
            (use.temperature_c for _, use in phase_uses if use.temperature_c is not None), default=None
        )
        for what in ("gpu", "cpu", "ane"):
            row[f"{what}_w"] = _middle(_sum(use.power_w, what) for _, use in phase_uses)
        for what in ("gpu", "cpu"):
            row |= _energy(what, phase_uses, lengths) if phase == "measure" else dict.fromkeys(_KEYS[what])
        methods = {(_what(meter), told.method) for _, use in phase_uses for meter, told in use.energy.items()}
        row["method"] = ", ".join(f"{what} {method}" for what, method in sorted(methods) if what in ("gpu", "cpu"))
        yield row


_KEYS = {what: (f"{what}_j", f"{what}_j_error", f"{what}_j_mad", f"{what}_j_per_token") for what in ("gpu", "cpu")}


def _energy(
    what: str, uses: Iterable[tuple[ReportedRun, PhaseUse]], lengths: Mapping[int, int]
) -> dict[str, float | None]:
    """Return joules of an iteration: the median over runs, their MAD, the largest error at the borders of the phase."""
    joules, errors, per_token = [], [], []
    for run, use in uses:
        parts = [energy for meter, energy in use.energy.items() if _what(meter) == what]
        n = lengths.get(run.run_id)
        if not parts or not n:
            continue
        joules_each, error_j = joules_per_iteration(parts, n)
        joules.append(joules_each)
        errors += [error_j] if error_j is not None else []
        if run.tokens_per_iter:
            per_token.append(joules[-1] / run.tokens_per_iter)
    middle = _middle(joules)
    mad = stats.mad(joules, middle) if middle is not None and len(joules) > 1 else None
    return dict(zip(_KEYS[what], (middle, max(errors, default=None), mad, _middle(per_token)), strict=True))


def _what(meter: str) -> str | None:
    return next((what for begin, what in _DEVICES.items() if meter.startswith(begin)), None)


def _sum(watts: Mapping[str, float], what: str) -> float | None:
    powers = [value for meter, value in watts.items() if _what(meter) == what]
    return sum(powers) if powers else None


def _middle(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return stats.median(known) if known else None


def _sections(title: str, rows: list[Row]) -> Iterator[Section]:
    """Yield a table of the use and one of the energy, each with the columns that any row has."""
    clock = "clock_hz" if all(row["clock_share"] is None for row in rows) else "clock_share"
    of_use = (
        "n_samples",
        "busy_share",
        "dips_share",
        clock,
        "temperature_c",
        "capped_share",
        "gpu_w",
        "cpu_w",
        "ane_w",
    )
    known = [key for key in of_use if any(row[key] is not None for row in rows)]
    yield Section(f"{title}: while measuring", [c for c in COLUMNS if c.key in ("label", *known)], rows)
    of_energy = [what for what in ("gpu", "cpu") if any(row[f"{what}_j"] is not None for row in rows)]
    shown: list[Column] = []
    for what in of_energy:
        shown.append(RowColumn(what, f"{what.upper()} J/iter", right=True, words=partial(_joules, what)))
        if any(row[f"{what}_j_per_token"] is not None for row in rows):
            shown += [column for column in COLUMNS if column.key == f"{what}_j_per_token"]
    if shown:
        yield Section(f"{title}: energy while measuring", [COLUMNS[0], *shown], rows)


def _joules(what: str, row: Row) -> str:
    """Format the joules of an iteration with the larger of their two errors: over runs, and at the phase's borders."""
    known = [error for key in ("error", "mad") if (error := row[f"{what}_j_{key}"]) is not None]
    return units.plus_minus(row[f"{what}_j"], max(known, default=None))


def _twins(family: comparison.Family, shown: Mapping[int, Row]) -> Iterator[str]:
    """Say what compilation changed. No test: a single figure of each run, of which few are sampled often enough."""
    for arm in family.arms:
        row, twin = shown.get(id(arm)), family.twin(arm)
        against = shown.get(id(twin)) if twin else None
        if row is None or against is None or row["busy_share"] is None or against["busy_share"] is None:
            continue
        words = [
            f"the GPU {units.percent(row['busy_share'])} busy against {units.percent(against['busy_share'])} eager",
            f"dips in {units.percent(row['dips_share'])} of the samples against {units.percent(against['dips_share'])}",
        ]
        for key, unit in (("gpu_w", "W"), ("gpu_j", "J an iteration")):
            if row[key] is not None and against[key] is not None:
                words.append(f"{units.number(row[key], 3)} {unit} against {units.number(against[key], 3)}")
        yield f"{arm.label}: {', '.join(words)}: no verdict, no test is made"


def _notes(raw: Sequence[Row]) -> Iterator[str]:
    measured = [row for row in raw if row["phase"] in ("measure", gpu_use.WHOLE)]
    labels = {row["label"] for row in measured}
    yield "use, clock and W: of the measured phase, by all programs; a dip is 10 points below the median"
    if few := [row["label"] for row in measured if 0 < row["n_samples"] < _FEW]:
        yield f"fewer than {_FEW} samples, so one look and no course: {', '.join(few)}"
    if late := dict.fromkeys(row["label"] for row in raw if row["label"] not in labels):
        yield f"no sample fell in the measured phase: {', '.join(late)}"
    known = [(row[f"{what}_j"], row[f"{what}_j_error"]) for row in measured for what in ("gpu", "cpu")]
    errors = [error / joules for joules, error in known if joules and error is not None]
    if errors:
        doubt = "; not to be believed beyond 10 %: measure longer" if max(errors) > _ROUGH else ""
        yield (
            "J: of the whole board or package, by counter, idle power not subtracted; between two readings at the "
            f"borders of the phase, so at most {units.percent(max(errors), 2)} off{doubt}. "
            "± is that, or the MAD over runs"
        )
    if any("integral" in row["method"] for row in measured):
        yield "J by integral of sampled power: its error is not known, and idle power is not subtracted"
