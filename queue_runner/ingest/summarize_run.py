"""Computation of the summary and the taints of a run from its stored events.

Computing reads, storing writes: a caller need not hold the write lock while it computes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any

from msgspec import Meta, Struct

from queue_runner.analysis.clock_check import clock_step_s
from queue_runner.analysis.neighbour_share import SHARE, Neighbour, NeighbourActivity, neighbour_activity
from queue_runner.analysis.points import EvalPoint, IterationPoint, PhaseMark
from queue_runner.analysis.summary import Summary, summarize
from queue_runner.analysis.validity import Facts, find_taints, learns
from queue_runner.events import FIELD_DROPPED
from queue_runner.host.warden_records import RunEnd
from queue_runner.ingest import parsers
from queue_runner.ingest.clock import Clock
from queue_runner.machine_records import SensorSample, known_fields, read_samples
from queue_runner.model import Ending, Taint
from queue_runner.spec import JobSpec
from queue_runner.store import results, retries
from queue_runner.store.engine import Connection
from queue_runner.text import plain

GRAPHS = ("recompilations", "graph_breaks")
"""Metrics of an iteration that compiled."""

Planned = Annotated[int, Meta(gt=0, lt=1 << 53)]


class SelfDescription(Struct, frozen=True):
    """What the end of a run needs of the trainer's hello. The protocol does not check all of these counts."""

    workload: str = ""
    versions: dict[str, str] = {}
    dur_is: str | None = None
    full_iters: Planned | None = None
    planned_iters: Planned | None = None
    eval_interval: Planned | None = None


class Assessment(Struct, frozen=True):
    """The summary and the taints of a run. `summary` is None if it could not be computed. `neighbour_share` is the
    share of the measured time (0 to 1) during which another lane was busy; None if none was."""

    summary: Summary | None
    taints: Sequence[Taint]
    neighbour_share: float | None = None


class RunPoints(Struct, frozen=True):
    """The points of a run whose events are all stored. `notes` has the first text of each kind, `clocks` the
    remembered state of each source's parser, `metrics` the values of each by iteration."""

    iterations: Sequence[IterationPoint]
    evals: Sequence[EvalPoint]
    phases: Sequence[PhaseMark]
    hello: SelfDescription
    notes: Mapping[str, str]
    dropped: Sequence[str]
    clocks: Mapping[str, str | None]
    conditions: Sequence[SensorSample]
    graphs: Mapping[str, Sequence[tuple[int, float]]]
    resumed_from: str | None = None
    neighbour_share: float | None = None


def read_points(connection: Connection, run_id: int) -> RunPoints:
    """Read the points of a run."""
    _, *before = retries.segments(connection, run_id)
    resumed_from = str(before[0][1]) if before else None
    return points_of(lambda table, *names: results.rows_of(connection, table, names, run_id), resumed_from)


def points_of(
    rows: Callable[..., Iterable[tuple[Any, ...]]], resumed_from: str | None, neighbour_share: float | None = None
) -> RunPoints:
    """Return the points of a run. `rows` returns columns of all its rows in a table, in the order of its file."""
    notes = [*rows("notes", "kind", "text")]
    samples = read_samples(rows("conditions", "at", "data_json"))
    graphs: dict[str, list[tuple[int, float]]] = {name: [] for name in GRAPHS}
    for name, i, value in rows("metrics", "name", "i", "value"):
        if name in graphs and i is not None and value is not None and math.isfinite(value):
            graphs[name].append((i, value))
    return RunPoints(
        iterations=[*map(IterationPoint._make, rows("iterations", *IterationPoint._fields))],
        evals=[*map(EvalPoint._make, rows("evals", *EvalPoint._fields))],
        phases=[*map(PhaseMark._make, rows("phases", *PhaseMark._fields))],
        hello=_described(rows("hellos", "hello_json")),
        notes=dict(reversed(notes)),
        dropped=[text for kind, text in notes if kind == FIELD_DROPPED],
        clocks=dict(rows("ingests", "source", "parser_state")),
        conditions=[sample for sample in samples if sample.source is None],  # without those of imported tools
        graphs=graphs,
        resumed_from=resumed_from,
        neighbour_share=neighbour_share,
    )


def assess(
    points: RunPoints,
    spec: JobSpec,
    ending: Ending,
    exit_: RunEnd,
    *,
    unobserved_matters: bool,
    new_notes: Mapping[str, str] | None = None,
    neighbours: Sequence[Neighbour] = (),
) -> Assessment:
    """Compute the summary and the taints of a run of its points. `new_notes` are those that its end adds, by kind;
    `neighbours` are the runs of other lanes that were active during it."""
    hello, phases = points.hello, points.phases
    notes = {**(new_notes or {}), **points.notes}
    real_s, slept_s = exit_.real_s, exit_.slept_s or 0.0
    summary = summarize(
        iterations=points.iterations,
        phases=phases,
        evals=points.evals,
        real_s=real_s,
        slept_s=slept_s,
        planned_iters=max(filter(None, (hello.full_iters, hello.planned_iters)), default=None),
        eval_interval=hello.eval_interval,
        resumed=points.resumed_from is not None,
        nan_loss="nan_loss" in notes,
    )
    busy = neighbour_activity(phases, real_s - slept_s, real_s, neighbours) if real_s is not None else None
    if busy is None and points.neighbour_share is not None:
        busy = NeighbourActivity(points.neighbour_share, ())
    facts = Facts(
        outcome=ending.outcome,
        expects_iterations=unobserved_matters
        and (spec.kind == "workload" or spec.parser not in (None, parsers.REMOVED)),
        iterations=points.iterations,
        summary=summary,
        notes=notes,
        conditions=points.conditions,
        watched=bool(points.clocks),
        slept_s=slept_s,
        paused_s=exit_.paused_s or 0.0,
        start_s=exit_.start_s or 0.0,
        resumed_from=points.resumed_from,
        real_s=real_s,
        clock_step_s=clock_step_s(real_s, exit_.started_at, exit_.ended_at),
        dur_is=hello.dur_is,
        lines=Clock.from_state(points.clocks.get("events")),
        dropped=points.dropped,
        recompiled=_recompiled(points.graphs),
        learns=learns(hello.workload),
        neighbours=busy,
    )
    return Assessment(summary, find_taints(facts), busy.share if busy is not None else None)


def assess_safely(compute: Callable[[], Assessment]) -> Assessment:
    """Assess a run. Numbers that mpsq cannot process are an error of mpsq: the run is invalid then, and all else
    continues."""
    try:
        return compute()
    except (ArithmeticError, LookupError, TypeError, ValueError, AssertionError, RecursionError) as error:
        detail = f"mpsq could not process what it reported ({type(error).__name__}: {error}): please report it"
        return Assessment(None, [Taint("unobserved", "invalid", plain(detail))])


def save(connection: Connection, run_id: int, assessment: Assessment) -> None:
    """Store the summary and the taints of a run."""
    if assessment.summary is not None:
        results.save_summary(connection, run_id, asdict(assessment.summary))
    if assessment.neighbour_share is not None:
        results.save_metric(connection, run_id, SHARE, assessment.neighbour_share, "share")
    results.save_taints(connection, run_id, assessment.taints)


def _recompiled(graphs: Mapping[str, Sequence[tuple[int, float]]]) -> dict[int, tuple[int, int]]:
    """Return the graphs and the graph breaks of each measured iteration that compiled."""
    by_iteration: dict[int, tuple[int, int]] = {}
    for place, name in enumerate(GRAPHS):
        for i, value in graphs.get(name, ()):
            counts = list(by_iteration.get(i, (0, 0)))
            counts[place] += int(value)
            by_iteration[i] = (counts[0], counts[1])
    return by_iteration


def self_description(connection: Connection, run_id: int) -> SelfDescription:
    """Return what the trainer reported about itself."""
    return _described(results.rows_of(connection, "hellos", ("hello_json",), run_id))


def _described(hellos: Iterable[tuple[Any, ...]]) -> SelfDescription:
    """Return the needed fields of a stored hello; the defaults without one."""
    return known_fields(json.loads(next(iter(hellos), ("{}",))[0]), SelfDescription)
