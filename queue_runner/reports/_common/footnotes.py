"""Footnotes that several reports share: marks of caveats, excluded runs, spreads, machines, sources of peaks."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from string import ascii_lowercase
from typing import Any

from queue_runner import units
from queue_runner.analysis.comparison import PHASE, WALL, Family
from queue_runner.analysis.finding import Caveat, Finding, NextStep
from queue_runner.analysis.grouping import LOG, MAIN, Arm, last_attempts, taints, value_of
from queue_runner.analysis.peaks import Peak
from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.analysis.stats import by_key
from queue_runner.machine_records import read_machine
from queue_runner.model import IN_COPY, Outcome, State, Taint
from queue_runner.monitor.answers import select_runs
from queue_runner.monitor.answers.run_query import Context
from queue_runner.reports._common.arm_rows import ArmRow
from queue_runner.reports._common.settings import FEW_ITERS
from queue_runner.spec import more_time
from queue_runner.store import read
from queue_runner.submit import missing_runs
from queue_runner.tables import MARKS, Column

MOST_NAMED = 5
"""Maximum number of runs or reasons named in a note; the rest is counted."""
MOST_DETAILS = 3
EXCLUDED = "!"
"""Marks a row with excluded runs; if all were, it shows their numbers and is not compared."""


class CaveatMarks:
    """The taints of a report's `rows`, read once and only if there are any. Each kind of caveat of the runs `shown` has
    a letter, which marks the rows of a table."""

    def __init__(self, rows: Sequence[ReportedRun], shown: Iterable[ReportedRun], context: Context) -> None:
        sql = "SELECT run_id, kind, severity, detail FROM taints WHERE run_id IN ({runs})"
        self._connection = context.connection
        stored = context.tuples_by_run(sql, [row for row in rows if row.taints])
        self._by_run = {run_id: [Taint(*values) for values in taints] for run_id, taints in stored.items()}
        self._names = {row.run_id: row.run for row in shown}  # a run may be shown twice
        marked = [(run, taint) for run_id, run in self._names.items() for taint in self._by_run.get(run_id, ())]
        caveats = (pair for pair in marked if pair[1].severity == "caveat")
        self._caveats = by_key(caveats, lambda pair: pair[1].kind)
        self._letters = dict(zip(self._caveats, ascii_lowercase, strict=False))
        self.column = Column(MARKS, "mark", value=self.mark, style=lambda _row: "doubt")

    def mark(self, row: Any) -> str:
        """Return the letters of the row's `taints`, after EXCLUDED if some of its runs are `excluded`."""
        letters = sorted(self._letters[kind] for kind in row.taints if kind in self._letters)
        return (EXCLUDED if row.excluded else "") + "".join(letters)

    def columns(self, rows: Iterable[Any]) -> list[Column]:
        """Return the column of marks; none if no row has one."""
        return [self.column] if any(map(self.mark, rows)) else []

    def notes(self) -> Iterable[str]:
        """Explain each letter by the details stored with the runs, and name these runs."""
        for kind, letter in self._letters.items():
            details = by_key(self._caveats[kind], lambda pair: pair[1].detail)
            parts = [
                f"{detail} (run{'s' * (len(same) > 1)} {named([run for run, _ in same])})"
                for detail, same in details.items()
            ]
            more = f"; {len(details) - MOST_DETAILS} more" if len(details) > MOST_DETAILS else ""
            name = f"{letter} = {kind}"
            if kind == IN_COPY:  # with the changed files
                first = next(iter(details))
                name, parts[0] = f"{name} ({first})", parts[0].removeprefix(f"{first} ")
            yield Caveat(name, f": {'; '.join(parts[:MOST_DETAILS])}{more}", letter=letter)

    def excluded(self, rows: Iterable[ReportedRun], used: Collection[int]) -> Iterable[str]:
        """Name the runs of `rows` that are left out, and those that only --all includes, each reason once after its
        runs. `used` are the ids of the runs whose numbers count."""
        every = list(rows)
        work = {row.spec_hash for row in every if row.run_id in used}
        doubtful = [row for row in every if not (row.run_id in used and row.valid and row.outcome == Outcome.SUCCEEDED)]
        for included, runs in sorted(by_key(doubtful, lambda row: row.run_id in used).items()):
            reasons = by_key(runs, self._why)
            parts = [f"{named([row.run for row in same])} {reason}" for reason, same in reasons.items()]
            if (more := len(parts) - MOST_NAMED) > 0:
                parts[MOST_NAMED:] = [f"{more} more reason{'s' * (more > 1)}"]
            kinds = ", ".join(dict.fromkeys(kind for row in runs for kind in self._kinds(row)))
            n_runs = units.counted(len(last_attempts(runs)), "run")
            counted = f"{n_runs} included by --all" if included else f"{EXCLUDED} {n_runs} left out"
            yield Caveat(f"{counted} ({kinds})", f": {'; '.join(parts)}")
            if not included:
                yield from self._again(runs, {row.group_id for row in every}, work)

    def _again(
        self, runs: Sequence[ReportedRun], shown: Collection[int | None], work: Collection[str]
    ) -> Iterable[str]:
        """Say how to run those that are left out again, or where they were submitted again: `shown` has the
        submissions of the report, `work` the questions of the runs that count."""
        repeated = read.repeated_by(self._connection, [row.run_id for row in runs])
        elsewhere = {run_id: one for run_id, one in repeated.items() if one.group not in shown}
        n = len(last_attempts([row for row in runs if row.run_id in elsewhere]))
        for group in sorted({one.group for one in elsewhere.values()})[-MOST_NAMED:]:
            is_ok = all(one.is_ok for one in elsewhere.values() if one.group == group)
            report = f"mpsq report g{group}{' shows its numbers' if is_ok else ''}"
            yield NextStep(f"{units.counted(n, 'run')} submitted again, see also {report}", report)
        unmended = {run_id for run_id, one in repeated.items() if not one.is_ok}  # their own report leads on
        runs = [row for row in runs if row.run_id not in unmended and row.kind != "import" and not row.merged]
        lacking = missing_runs.lacking(self._connection, sorted({row.group_id or 0 for row in runs}))
        if not lacking:
            return
        late = [row for row in runs if row.outcome == Outcome.TIMED_OUT and row.group_id in lacking]
        again = f"mpsq rerun {' '.join(f'g{group}' for group in lacking)} --missing"
        if timeout_s := read.longest_timeout_s(self._connection, [row.job_id for row in late]):
            of_late = [group for group in lacking if any(row.group_id == group for row in late)]
            command = more_time(" ".join(f"g{group}" for group in of_late), timeout_s)
            yield NextStep(f"to give those that timed out more time: {command}", command)
        elif all(row.spec_hash not in work and self._fails_again(row) for row in runs):
            failed = [row for row in runs if row.outcome == Outcome.FAILED]
            log = f"mpsq logs {(failed or runs)[-1].run}"
            yield NextStep(f"why: {log}", log)
            if failed:
                fixed = f"again after a fix: {again}"
                yield NextStep(f"to run them {fixed}", fixed)
        else:
            yield NextStep(f"to run them again: {again}", again)

    def _fails_again(self, row: ReportedRun) -> bool:
        """Return whether another run of the same would most likely end like this one."""
        return row.outcome == Outcome.FAILED or any(taint.kind == "unobserved" for taint in self._invalid(row))

    def _kinds(self, row: ReportedRun) -> list[str]:
        if row.outcome != Outcome.SUCCEEDED:
            return [row.outcome or ""]
        return [taint.kind for taint in self._invalid(row)] or ["no results"]

    def _invalid(self, row: ReportedRun) -> list[Taint]:
        return [taint for taint in self._by_run.get(row.run_id, []) if taint.severity == "invalid"]

    def _why(self, row: ReportedRun) -> str:
        """Return why a run is excluded: its outcome, or the taints that make it invalid."""
        if row.outcome != Outcome.SUCCEEDED:
            return row.fate
        kinds = ", ".join(f"{taint.kind} ({taint.detail})" for taint in self._invalid(row))
        return kinds or ("reported no results" if row.valid else "no reason stored")


def notes(families: Sequence[Family], raw: Sequence[ArmRow], marks: CaveatMarks, context: Context) -> list[str]:
    """Return all footnotes of compared families, those on the numbers first."""
    arms = [arm for family in families for arm in family.arms]
    return [
        *spreads(times(row.time_of for row in raw), {row.spread_over for row in raw}),
        *_window(families),
        *marks.notes(),
        *_excluded(arms, marks),
        *_in_no_phase(arms),
        *_pending(arms),
        *_two_places(families),
        *_mixed_first_iteration(arms),
        *peaks(((row.device_name or row.device, row.dtype, row.peak) for row in raw), "MFU: relative to"),
        *_unknown_peaks(raw),
        *_machines(families, context),
        *_pooled(arms, context),
        *_unknown_logs(arms),
    ]


_MEANINGS = {
    "iteration": "ms/iter: the median of a run's iterations, or the geometric mean of several runs' medians",
    PHASE: "ms/iter: the wall time of a run's measured phase per iteration, or the geometric mean of several runs",
    WALL: "wall s: the real time of a run, or the geometric mean of several runs",
}


def times(times_of: Iterable[str | None]) -> str:
    """Say what the times of a table are."""
    return "; ".join(_MEANINGS[time_of] for time_of in sorted({time_of or "iteration" for time_of in times_of}))


def _unknown_logs(arms: Sequence[Arm]) -> Iterable[str]:
    """Say why imported logs are not pooled."""
    if sum(arm.key.get(LOG) is not None for arm in arms) > 1:
        remedy = ": mpsq import FILE --set device=mps --set compile=off sets both; --group-by device pools them"
        yield Caveat("logs of unknown device or mode form separate rows", remedy, minor=True)


def few(rows: Sequence[ArmRow], families: Sequence[Family]) -> Iterable[str]:
    """Name rows whose runs measured no iterations, or too few for a reliable median."""
    several = len({(row.workload, row.config) for row in rows}) > 1
    several = several and not any(row.workload in row.label for row in rows)  # else the label says it
    runs = [run for family in families for run in family.shown]
    settable = _MAX_ITERS if all(run.kind == "workload" for run in runs) else ""
    is_windowed = any(run.window for run in runs)
    sizes = (
        (" ".join(filter(None, [*([row.workload, row.config] if several else []), row.label])), row.n_measure)
        for row in rows
        if row.n_iters and row.n_valid and row.time_of != WALL and not (is_windowed and row.time_of == PHASE)
    )
    yield from few_iterations(sizes, "; a wider --iters has more" if is_windowed else settable)


_MAX_ITERS = "; --set max_iters=N sets the number"


def few_iterations(rows: Iterable[tuple[str, float | None]], remedy: str = _MAX_ITERS) -> Iterable[str]:
    """Name those of the (name, number of measured iterations) pairs with fewer than FEW_ITERS."""
    short = [f"{name} ({n_rounded})" for name, n in rows if (n_rounded := round(n or 0)) < FEW_ITERS]
    if short:
        yield Caveat(f"fewer than {FEW_ITERS} measured iterations per run", f": {named(short)}{remedy}", minor=True)


def spreads(subject: str, over: Iterable[str | None]) -> Iterable[str]:
    """Explain the spread of a table, by what it is over; nothing if there is none."""
    texts = {
        "runs": f"{units.PLUS_MINUS}: standard deviation of the runs",
        "iterations": "(in parentheses): MAD of the iterations of one run, not of several runs",
        "samples": "(in parentheses): MAD of the samples of one run, not of several runs",
    }
    if used := [text for key, text in texts.items() if key in {*over}]:
        yield Finding("; ".join([subject, *used]))


def _window(families: Sequence[Family]) -> Iterable[str]:
    windowed = [row for family in families for row in family.shown if row.window]
    if any(row.time_of for row in windowed):
        yield Caveat("--iters applies to the times of iterations, not to these wall times")
    for first, last in filter(None, {row.window for row in windowed if row.time_of is None}):
        yield Caveat(f"ms/iter: of iterations {units.count(first)} to {units.count(last)} (--iters)")


def named(names: Sequence[str]) -> str:
    """Join at most MOST_NAMED names; the rest is counted."""
    return units.listed(names, MOST_NAMED)


def _excluded(arms: Sequence[Arm], marks: CaveatMarks) -> Iterable[str]:
    used = {row.run_id for arm in arms for row in arm.used}
    yield from marks.excluded((row for arm in arms for row in arm.ended), used)
    if any(not arm.used and arm.median_s is not None for arm in arms):
        without = "a row that has only invalid runs shows them, but is not compared"
        yield Caveat(without, " (--all includes them)", minor=True)


UNPHASED_S = 2.0
UNPHASED_SHARE = 0.1
"""Time of a run in no phase that is worth a caveat: so much, or this share if it is over half a second."""


def _in_no_phase(arms: Sequence[Arm]) -> Iterable[str]:
    """Tell the time of the runs that belongs to no phase, in seconds and as a share: no figure accounts for it."""
    times: list[tuple[float, float, str]] = []
    for arm in arms:
        known = [(row.other_s, row.real_s) for row in arm.shown if row.other_s is not None and row.real_s]
        if known:
            other_s, real_s = (math.fsum(column) / len(known) for column in zip(*known, strict=True))
            times.append((other_s, other_s / real_s, arm.label))
    if not times:
        return
    listed = named([f"{label} {_seconds_and_share(*amount)}" for *amount, label in times])
    most_s, share, _ = max(times)
    if most_s >= UNPHASED_S or (share >= UNPHASED_SHARE and most_s > 0.5):
        yield Caveat(f"{_seconds_and_share(most_s, share)} of a run belong to no phase", f": {listed}", minor=True)
    else:
        yield Finding(f"time outside all phases: {listed}")


def _seconds_and_share(dur_s: float, share: float) -> str:
    return f"{units.seconds(dur_s, 1)} s ({units.percent(share, 2)})"


def _pending(arms: Sequence[Arm]) -> Iterable[str]:
    rows = [row for arm in arms for row in arm.runs if row.state != State.DONE]
    if rows:
        text = f"{len(rows)} run{'s have' if len(rows) > 1 else ' has'} not ended yet"
        is_held = all(row.state == State.HELD for row in rows)
        groups = dict.fromkeys(f"g{row.group_id}" for row in rows)
        yield NextStep(text, f"mpsq resume {' '.join(groups)}" if is_held else "mpsq status")


def _two_places(families: Sequence[Family]) -> Iterable[str]:
    """Say that some runs of a question ran in their folder, and others in a copy of the code as submitted."""
    in_folder = in_copy = 0
    for family in families:
        runs = [row for arm in family.arms for row in arm.shown]
        n_copied = sum(IN_COPY in taints(row) for row in runs)
        if 0 < n_copied < len(runs):
            in_folder += len(runs) - n_copied
            in_copy += n_copied
    if in_copy:
        places = f": {in_folder} in the job's folder, {in_copy} in a copy of the code as submitted"
        yield Caveat("compared runs ran in two places", places)


def _mixed_first_iteration(arms: Sequence[Arm]) -> Iterable[str]:
    if any("unsynced" in taints(row) and row.first_iter_s is not None for arm in arms for row in arm.shown):
        yield Finding("in logs of other trainers, 1st iter and compile include the first evaluation")


def peaks(peaks: Iterable[tuple[str | None, str | None, Peak | None]], subject: str) -> Iterable[str]:
    """Name each peak, given with the names of its device and dtype, with its source."""
    known = {(name or "", dtype or "", peak.flops, peak.source) for name, dtype, peak in peaks if peak}
    for name, dtype, flops, source in sorted(known):
        yield Finding(f"{subject} {units.flops_per_s(flops)}, {name} {dtype}".rstrip() + f" ({source})")


def _unknown_peaks(rows: Sequence[ArmRow]) -> Iterable[str]:
    names = {row.device_name for row in rows if row.flops_per_s and not row.peak and row.device != "cpu"}
    if known_names := sorted(filter(None, names)):
        measure = "mpsq submit matmul --config peak measures it, for --peak measured"
        yield Finding(f"MFU: the peak of {named(known_names)} is unknown: {measure}")


def _machines(families: Sequence[Family], context: Context) -> Iterable[str]:
    machines = {family.common["machine"]: family.arms[0].runs[0].where for family in families}
    if len(machines) > 1:
        what = "kinds of machine" if any(arm.n_machines > 1 for f in families for arm in f.arms) else "machines"
        yield Caveat(f"runs of {len(machines)} {what}: in separate tables", f", {NEVER_COMPARED}", minor=True)
        yield from (Finding(f"{where}: {_machine(m, context)}") for m, where in machines.items() if m)
    if any(f.common["machine"] is None and len(f.arms) > 1 and any(arm.used for arm in f.arms) for f in families):
        unnamed = "imported logs do not name their machine and count as one"
        yield Caveat(unnamed, " (mpsq import --set machine=NAME separates them)", minor=True)


NEVER_COMPARED = "never compared: processor, memory, cooling and system all differ"


def _machine(machine: str, context: Context) -> str:
    """Describe a machine by its fingerprint; two different machines may have the same description."""
    hash = machine.removeprefix(select_runs.MERGED)
    stored = context.tuples("SELECT data_json FROM fingerprints WHERE hash = ? AND kind = 'machine'", [hash])
    facts = read_machine(stored[0][0] if stored else None)
    memory = f"{facts.memory_gib} GiB" if facts.memory_gib else None
    cores = f"{facts.cores_logical} cores" if facts.cores_logical else None
    parts = [facts.model or facts.system, facts.cpu, cores, memory, *map(str, facts.gpus or ())]
    return ", ".join(filter(None, parts)) or "unknown hardware"


def _pooled(arms: Sequence[Arm], context: Context) -> Iterable[str]:
    """Warn of rows that pool runs with different factors, which --group-by allows."""
    if not context.options.group_by:
        return
    names = [*MAIN, *sorted({name for arm in arms for row in arm.used for name in row.factors})]
    mixed = [n for n in names if any(len({value_of(row, n) for row in arm.used}) > 1 for arm in arms)]
    if mixed:
        yield Caveat(f"rows pool runs that differ in {', '.join(mixed)}", ": --group-by separates them")
