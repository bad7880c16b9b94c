"""Use of the GPU while measuring: dips, clock, heat, power, and the energy of an iteration."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec import Struct

from queue_runner import units
from queue_runner.analysis import comparison, gpu_use, stats
from queue_runner.analysis.gpu_use import IterationEnergy, PhaseUse
from queue_runner.analysis.grouping import Arm
from queue_runner.analysis.points import PhaseMark
from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.machine_records import read_samples
from queue_runner.monitor.answers import prepare, select_runs
from queue_runner.monitor.answers.run_query import Context
from queue_runner.reports._common import arm_tables
from queue_runner.reports._common.columns import columns
from queue_runner.reports._common.document import Result, Section
from queue_runner.tables import Column

NAME = "utilization"
HELP = "use of the GPU while measuring, its dips, clock, heat and power; joules of an iteration and of a token"
READS = ("group_by",)
SQL = (
    f"SELECT {prepare.RUN} FROM v_run WHERE {{chosen}} AND state = 'DONE'"
    " AND run_id IN (SELECT run_id FROM conditions) ORDER BY job_id, number"
)
_DEVICES = {"gpu": "gpu", "package": "cpu", "cpu": "cpu", "ane": "ane"}
"""The part that a meter measures, by the beginning of its name."""


class PhaseRow(Struct, frozen=True):
    """The use while measuring, of the runs of an arm that know it. `energy` is by part."""

    label: str
    runs: Sequence[str]
    uses: Sequence[PhaseUse]
    energy: Mapping[str, IterationEnergy]

    @property
    def n_samples(self) -> int:
        """Number of samples of all runs."""
        return sum(use.n_samples for use in self.uses)


def _of_uses(
    key: str,
    title: str,
    words: Callable[[Any], str] = units.percent,
    value: Callable[[PhaseUse], float | None] | None = None,
    choose: Callable[[list[float]], float] = stats.median,
) -> Column:
    """Return the column of a value of the runs: their median, or what else `choose` makes of the known ones."""

    def chosen(row: PhaseRow) -> float | None:
        known = [x for use in row.uses if (x := value(use) if value else getattr(use, key)) is not None]
        return choose(known) if known else None

    return Column(key, title, words, True, value=chosen)


def _watts(part: str) -> Column:
    return _of_uses(f"{part}_w", f"{part.upper()} W", units.number, lambda use: _sum(use.power_w, part))


def _of_energy(part: str, name: str, title: str) -> Column:
    title = f"{part.upper()} {title}"
    return Column(f"{part}_{name}", title, units.number, True, value=lambda row: getattr(row.energy[part], name))


_METERED = ("gpu", "cpu")
_ENERGIES = (("j", "J/iter"), ("j_error", "±"), ("j_mad", "MAD"), ("j_per_token", "J/token"))
COLUMNS = columns(
    "label runs",
    Column("phase", "phase", value=lambda row: row.uses[0].phase),
    "n_samples",
    _of_uses("busy_share", "GPU busy"),
    _of_uses("dips_share", "dips"),
    _of_uses("clock_share", "clock"),
    _of_uses("clock_hz", "MHz", lambda hertz: units.number(None if hertz is None else hertz / 1e6, 4)),
    _of_uses("temperature_c", "°C", lambda heat: units.number(heat, 3), choose=max),
    _of_uses("capped_share", "power cap"),
    *map(_watts, (*_METERED, "ane")),
    *(_of_energy(part, name, title) for name, title in _ENERGIES for part in _METERED),
)
_FEW = 5
"""Samples below which a median of the use is one of an anecdote."""
_ROUGH = 0.1
"""Error of an energy, as a share of it, from which on it is not to be believed."""


def finish(stored: list[ReportedRun], context: Context) -> Result:
    """Build a table of the measured phase for each family; its runs are those with a sample there."""
    runs = prepare.prepare(stored, context)
    families = comparison.families(runs, prepare.question(runs, context)) if runs else []
    uses = _uses(runs, context)
    lengths = {run_id: n for run_id, ((n,),) in context.tuples_by_run(_MEASURED, runs).items()}
    raw: list[PhaseRow] = []
    sections: list[Section] = []
    for family in families:
        rows = [row for arm in family.arms if (row := _row(arm, uses, lengths)) is not None]
        raw += rows
        sections += _sections(arm_tables.caption(family), rows) if rows else ()
    if not raw:
        return Result(COLUMNS, [], lines=[select_runs.nothing(context, "with a sample of a GPU or of an energy meter")])
    return Result(COLUMNS, raw, sections, notes=[*_notes(raw)])


_MEASURED = (
    "SELECT run_id, MAX(i) - MIN(i) + 1 FROM v_iteration WHERE phase = 'measure' AND run_id IN ({runs}) GROUP BY run_id"
)
"""How many iterations each run measured: those that a log leaves out, too."""


def _uses(rows: Sequence[ReportedRun], context: Context) -> dict[int, PhaseUse]:
    samples = context.tuples_by_run("SELECT run_id, at, data_json FROM conditions WHERE run_id IN ({runs})", rows)
    sql = "SELECT run_id, t_s, name, edge FROM phases WHERE run_id IN ({runs}) ORDER BY offset"
    marks = context.tuples_by_run(sql, rows)
    uses = {
        row.run_id: gpu_use.measured(
            read_samples(samples.get(row.run_id, [])),
            [PhaseMark(*mark) for mark in marks.get(row.run_id, [])],
            row.started_at,
            row.real_s,
        )
        for row in rows
    }
    return {run_id: use for run_id, use in uses.items() if use is not None}


def _row(arm: Arm, uses: Mapping[int, PhaseUse], lengths: Mapping[int, int]) -> PhaseRow | None:
    """Return the use of the runs of the arm that have samples; None if none has any."""
    pairs = [(run, uses[run.run_id]) for run in arm.shown if run.run_id in uses]
    measured = [(run, use) for run, use in pairs if run.run_id in lengths and use.phase != gpu_use.WHOLE]
    joules = {
        part: gpu_use.of_iteration(
            (energies, lengths[run.run_id], run.tokens_per_iter)
            for run, use in measured
            if (energies := [energy for meter, energy in use.joules.items() if _part(meter) == part])
        )
        for part in _METERED
    }
    return PhaseRow(arm.label, [run.run for run, _ in pairs], [use for _, use in pairs], joules) if pairs else None


def _part(meter: str) -> str | None:
    return next((part for begin, part in _DEVICES.items() if meter.startswith(begin)), None)


def _sum(watts: Mapping[str, float], part: str) -> float | None:
    powers = [value for meter, value in watts.items() if _part(meter) == part]
    return sum(powers) if powers else None


def _sections(title: str, rows: Sequence[PhaseRow]) -> Iterator[Section]:
    """Yield a table of the use and one of the energy, each with the columns that any row has."""
    by_key = {column.key: column for column in COLUMNS if any(column.of(row) is not None for row in rows)}
    clock = "clock_share" if "clock_share" in by_key else "clock_hz"
    use = ("label", "n_samples", "busy_share", "dips_share", clock, "temperature_c", "capped_share")
    yield Section(
        f"{title}: while measuring", [by_key[k] for k in (*use, "gpu_w", "cpu_w", "ane_w") if k in by_key], rows
    )
    shown: list[Column] = []
    for part in (part for part in _METERED if f"{part}_j" in by_key):
        shown.append(Column(part, f"{part.upper()} J/iter", right=True, value=partial(_joules, part)))
        shown += [by_key[key] for key in (f"{part}_j_per_token",) if key in by_key]
    if shown:
        yield Section(f"{title}: energy while measuring", [COLUMNS[0], *shown], rows)


def _joules(part: str, row: PhaseRow) -> str:
    """Format the joules of an iteration with the larger of their two errors: over runs, and at the phase's borders."""
    energy = row.energy[part]
    known = [error for error in (energy.j_error, energy.j_mad) if error is not None]
    return units.plus_minus(energy.j, max(known, default=None))


def _notes(raw: Sequence[PhaseRow]) -> Iterator[str]:
    yield "use, clock and W: of the measured phase, by all programs; a dip is 10 points below the median"
    if few := [row.label for row in raw if 0 < row.n_samples < _FEW]:
        yield f"fewer than {_FEW} samples, too few to trust: {', '.join(few)}"
    known = [(energy.j, energy.j_error) for row in raw for energy in row.energy.values()]
    errors = [error / joules for joules, error in known if joules and error is not None]
    if errors:
        doubt = " (too much: measure longer)" if max(errors) > _ROUGH else ""
        yield (
            "J: of the whole board or package, with idle power, from a counter read near the start and end of the"
            f" phase; the error is at most {units.percent(max(errors), 2)}{doubt}. ±: the error, or the MAD over runs"
        )
