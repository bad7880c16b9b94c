"""Forecast of how long a plan will take, from how long the same questions took before."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from queue_runner import config_file, units
from queue_runner.monitor import eta, progress, run_view
from queue_runner.monitor.run_view import JobQuestion
from queue_runner.paths import Layout
from queue_runner.store import read
from queue_runner.store.history import ALIKE, History
from queue_runner.submit.plan import Plan

FOREGROUND_S = 5.0
"""How long a command that somebody watches waits for a quiet machine: FOREGROUND_SHORT_S unless its runs are expected
to take SHORT_S or more, which a first question does not know."""
FOREGROUND_SHORT_S = 1.0
SHORT_S = 10.0


class Forecast(Struct, frozen=True):
    """The forecast of a plan: seconds per run by job (None: unknown), in total, and when it would be done."""

    run_s: tuple[float | None, ...]
    total_s: float
    unknown: int
    alike: int
    waits_s: float
    n_runs: int
    waits_sure: bool = True
    """whether the runs before them are known to take no longer"""

    def sentence(self, now: float) -> str:
        """Return `16 runs: about 40 min, done at 09:10`."""
        sure = self.waits_sure and not self.unknown
        end = f", done {eta.at_clock(now + self.waits_s + self.total_s, now, sure=sure)}"
        if self.waits_s:
            end += f"; earlier runs first take {eta.about(self.waits_s)}"
        words = eta.in_words(self.total_s, end, self.n_runs, self.unknown, self.alike, sure=sure, subject="time ")
        return f"{units.counted(self.n_runs, 'run')}: {words}"


def forecast(layout: Layout, planned: Plan) -> Forecast:
    """Forecast how long a plan takes, after the runs that already wait; without a queue nothing is known."""
    specs = [(job.spec, job.repeats) for job in planned.jobs]
    n_runs = len(planned.order)
    if not read.is_there(layout.db):
        return Forecast((None,) * len(specs), 0.0, n_runs, 0, 0.0, n_runs)
    gap_s = config_file.load(layout.config).cooldown_s
    with read.reading(layout.db) as connection:
        history = History(connection)
        expected = [(history.expected(spec), repeats) for spec, repeats in specs]
        before = progress.estimate(layout, connection, run_view.queue(connection))
    return Forecast(
        tuple(takes.real_s for takes, _ in expected),
        sum((takes.real_s or 0.0) * repeats for takes, repeats in expected) + gap_s * max(n_runs - 1, 0),
        unknown=sum(repeats for takes, repeats in expected if takes.real_s is None),
        alike=sum(repeats for takes, repeats in expected if takes.basis == ALIKE),
        waits_s=before.left_s,
        n_runs=n_runs,
        waits_sure=all(turn.finish_sure for turn in before.going),
    )


def with_short_gate(layout: Layout, planned: Plan) -> Plan:
    """Return the plan of a command that somebody watches: its gate waits FOREGROUND_S at most, unless a time was
    given."""
    gate_s = FOREGROUND_SHORT_S if forecast(layout, planned).total_s < SHORT_S else FOREGROUND_S
    jobs = [
        replace(job, spec=job.spec.changed(gate_s=gate_s)) if job.spec.gate and job.spec.gate_s is None else job
        for job in planned.jobs
    ]
    return replace(planned, jobs=tuple(jobs))


def lines(planned: Plan, foreseen: Forecast) -> Sequence[tuple[str, str]]:
    """Return the question of each cell and the duration of one run of it, in words."""
    pairs = []
    for job, run_s in zip(planned.jobs, foreseen.run_s, strict=True):
        takes = "time not known yet" if run_s is None else f"about {units.duration(run_s)} a run"
        name = f"{job.spec.name}: {JobQuestion.of_spec(job.spec)}"
        pairs.append((name, takes if job.repeats == 1 else f"{job.repeats} x, {takes}"))
    return pairs
