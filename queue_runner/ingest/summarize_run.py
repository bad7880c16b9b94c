"""Computation of the summary and the taints of a run from its stored events.

Computing reads, storing writes: a caller need not hold the write lock while it computes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

from msgspec import Meta, Struct

from queue_runner.analysis.clock_check import clock_step_s
from queue_runner.analysis.neighbour_share import SHARE, Neighbour, beside
from queue_runner.analysis.points import EvalPoint, IterationPoint, PhaseMark
from queue_runner.analysis.summary import Summary, summarize
from queue_runner.analysis.validity import Facts, Taint, find_taints
from queue_runner.events import FIELD_DROPPED
from queue_runner.host.warden_records import RunEnd
from queue_runner.ingest import parsers
from queue_runner.ingest.clock import Clock
from queue_runner.machine_records import SensorSample, known_fields, read_samples
from queue_runner.model import Ending
from queue_runner.store import results, retries
from queue_runner.store.engine import Connection
from queue_runner.store.jobs import Claimed

Planned = Annotated[int, Meta(gt=0, lt=1 << 53)]


class SelfDescription(Struct, frozen=True):
    """What the end of a run needs of the trainer's hello. The protocol does not check all of these counts."""

    workload: str = ""
    versions: dict[str, str] = {}
    dur_is: str | None = None
    full_iters: Planned | None = None
    planned_iters: Planned | None = None
    eval_interval: Planned | None = None


@dataclass(frozen=True)
class Assessment:
    """The summary and the taints of a run. `summary` is None if it could not be computed. `neighbour_share` is the
    share of the measured time (0 to 1) during which another lane was busy; None if none was."""

    summary: Summary | None
    taints: Sequence[Taint]
    neighbour_share: float | None = None


def assess(
    connection: Connection,
    run: Claimed,
    ending: Ending,
    exit_: RunEnd,
    *,
    unobserved_matters: bool,
    new_notes: Mapping[str, str] | None = None,
    neighbours: Sequence[Neighbour] = (),
) -> Assessment:
    """Compute the summary and the taints of a run whose events are all stored. `new_notes` are those that its end adds,
    by kind; `neighbours` are the runs of other lanes that were active during it."""
    run_id = run.run_id
    rows = results.rows_of(connection, "iterations", IterationPoint._fields, run_id)
    iterations = [IterationPoint._make(row) for row in rows]
    evals = [EvalPoint._make(row) for row in results.rows_of(connection, "evals", EvalPoint._fields, run_id)]
    hello = self_description(connection, run_id)
    notes = {**(new_notes or {}), **results.note_texts(connection, run_id)}
    _, *before = retries.segments(connection, run_id)
    phases = [PhaseMark._make(row) for row in results.rows_of(connection, "phases", PhaseMark._fields, run_id)]
    clocks = dict(results.rows_of(connection, "ingests", ("source", "parser_state"), run_id))
    real_s, slept_s = exit_.real_s, exit_.slept_s or 0.0
    summary = summarize(
        iterations=iterations,
        phases=phases,
        evals=evals,
        real_s=real_s,
        slept_s=slept_s,
        planned_iters=max(filter(None, (hello.full_iters, hello.planned_iters)), default=None),
        eval_interval=hello.eval_interval,
        resumed=bool(before),
        nan_loss="nan_loss" in notes,
    )
    facts = Facts(
        outcome=ending.outcome,
        expects_iterations=unobserved_matters
        and (run.spec.kind == "workload" or (run.spec.parser is not None and parsers.iterates(run.spec.parser))),
        iterations=iterations,
        summary=summary,
        notes=notes,
        conditions=conditions_of(connection, run_id),
        watched=bool(clocks),
        slept_s=slept_s,
        paused_s=exit_.paused_s or 0.0,
        resumed_from=str(before[0][1]) if before else None,
        real_s=real_s,
        clock_step_s=clock_step_s(real_s, exit_.started_at, exit_.ended_at),
        dur_is=hello.dur_is,
        lines=Clock.from_state(clocks.get("events")),
        dropped=results.notes_of(connection, run_id, FIELD_DROPPED),
        recompiled=_recompiled(connection, run_id),
        learns=not hello.workload.endswith("-eval"),
        beside=beside(phases, real_s - slept_s, real_s, neighbours) if real_s is not None else None,
    )
    return Assessment(summary, find_taints(facts), facts.beside.share if facts.beside is not None else None)


def save(connection: Connection, run_id: int, assessment: Assessment) -> None:
    """Store the summary and the taints of a run."""
    if assessment.summary is not None:
        results.save_summary(connection, run_id, asdict(assessment.summary))
    if assessment.neighbour_share is not None:
        results.save_metric(connection, run_id, SHARE, assessment.neighbour_share, "share")
    results.save_taints(connection, run_id, [(t.kind, t.severity, t.detail) for t in assessment.taints])


def conditions_of(connection: Connection, run_id: int) -> list[SensorSample]:
    """Return the run's samples in the order of their times, without those of imported tools."""
    samples = read_samples(results.rows_of(connection, "conditions", ("at", "data_json"), run_id))
    return [sample for sample in samples if sample.source is None]


def _recompiled(connection: Connection, run_id: int) -> dict[int, tuple[int, int]]:
    """Return the graphs and the graph breaks of each measured iteration that compiled."""
    by_iteration: dict[int, tuple[int, int]] = {}
    for name, place in (("recompilations", 0), ("graph_breaks", 1)):
        for i, value in results.metric_values(connection, run_id, name):
            counts = list(by_iteration.get(i, (0, 0)))
            counts[place] += int(value)
            by_iteration[i] = (counts[0], counts[1])
    return by_iteration


def self_description(connection: Connection, run_id: int) -> SelfDescription:
    """Return what the trainer reported about itself."""
    rows = results.rows_of(connection, "hellos", ("hello_json",), run_id)
    return known_fields(json.loads(rows[0][0]) if rows else {}, SelfDescription)
