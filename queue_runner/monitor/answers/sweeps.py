"""What one submission swept, and whether its runs are compared by iterations or by wall time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from queue_runner.analysis.comparison import PHASE, WALL
from queue_runner.analysis.grouping import taints
from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.analysis.stats import by_key
from queue_runner.model import Outcome
from queue_runner.monitor.answers import select_runs
from queue_runner.monitor.answers.run_query import Context

_OF_ITERATIONS: Mapping[str, Any] = dict.fromkeys(
    (
        *("mad_s", "q1_s", "q3_s", "mean_s", "n_measure", "tokens_per_iter", "samples_per_iter", "flops_per_iter"),
        *("first_iter_s", "first_iter_excess_s"),
    )
)
"""Values of a row that say nothing of a whole run."""
_AXES = "device, mode, dtype and framework"


def add(rows: Iterable[ReportedRun], context: Context, declared: bool) -> list[ReportedRun]:
    """Return prepared rows with `swept`, the keys that their submission swept, `sweep`, the submission that did, and
    with wall times where no iterations were reported. `declared`: all names are compared, as --vs name=NAME says."""
    rows = list(rows)
    swept, firsts = _swept(rows, context)
    keys = [(firsts.get(row.group_id), _workload(row.kind, row.asked_workload)) for row in rows]
    rows = [
        row.changed(swept=names, sweep=key[0] if names and not context.options.group_by else None)
        for row, key in zip(rows, keys, strict=True)
        for names in [swept.get(key, frozenset())]
    ]
    return _with_wall_times(rows, context, declared)


def _workload(kind: str, workload: str | None) -> str | None:
    return workload if kind == "workload" else None


def _swept(
    rows: Iterable[ReportedRun], context: Context
) -> tuple[dict[tuple[int | None, str | None], frozenset[str]], dict[int | None, int]]:
    """Return what each submission swept, by submission and workload: of all its jobs, chosen now or not. Return also,
    by submission, the first that asked its question.

    Names are swept where a submission has several for one workload, or a command beside what else it has: commands do
    not say what they compute, and whoever submits them together compares them. Configs are swept only where nothing
    else is: another config is another model, and gpt2 is not compared with shakespeare_char beside cpu with mps.
    """
    by_submission: dict[tuple[int | None, str | None], dict[str, set[str]]] = {}
    several: dict[int | None, set[str]] = {}
    mixed: set[int | None] = set()
    jobs_of: dict[int, set[Any]] = {}
    for group, job_name, kind, config, workload, params, argv, *axes in context.by_groups(
        f"SELECT group_id, name, {select_runs.KIND}, config, json_extract(spec_json, '$.workload'),"
        " json_extract(spec_json, '$.params'), json_extract(spec_json, '$.argv'), device, dtype, framework, compile,"
        " json_extract(spec_json, '$.compile_mode') FROM jobs"
        " WHERE (kind <> 'import' OR json_extract(spec_json, '$.merged.kind') IS NOT NULL)"
        " AND group_id IN ({groups})",
        rows,
    ):
        values = by_submission.setdefault((group, _workload(kind, workload)), {})
        settings: dict[str, Any] = json.loads(params)
        values.setdefault("", set()).update(settings)
        for name, value in {"subject": job_name, "config": config, _AXES: axes, **settings}.items():
            values.setdefault(name, set()).add(json.dumps(value))
        several.setdefault(group, set()).add(str(job_name))
        jobs_of.setdefault(group, set()).add((job_name, config, params, argv if kind == "command" else None))
        if kind == "command":
            mixed.add(group)
    together: dict[int | None, set[str]] = {}
    for (group, _), values in by_submission.items():
        if group in mixed and len(several[group]) > 1:
            together.setdefault(group, {"subject", "config"}).update(values[""])
    swept = {}
    for (group, workload), values in by_submission.items():
        names = frozenset(name for name, texts in values.items() if name and len(texts) > 1)
        if workload is not None and names - {"config", "subject"}:
            names -= {"config"}
        swept[group, workload] = (names - {_AXES}) | together.get(group, frozenset())
    return swept, _firsts(jobs_of)


def _firsts(jobs_of: Mapping[int, set[Any]]) -> dict[int | None, int]:
    """Return, by submission, the first one that asked all that it asks: it is a rerun of that, or of a part of it."""
    firsts: dict[int | None, int] = {}
    equal: dict[frozenset[Any], int] = {}
    holding: dict[Any, list[int]] = {}
    for group in sorted(jobs_of):
        jobs = frozenset(jobs_of[group])
        larger = (other for other in reversed(holding.get(next(iter(jobs)), [])) if jobs <= jobs_of[other])
        firsts[group] = equal[jobs] if jobs in equal else next(larger, group)
        if equal.setdefault(jobs, firsts[group]) == group:
            for job in jobs:
                holding.setdefault(job, []).append(group)
    return firsts


def _with_wall_times(rows: list[ReportedRun], context: Context, declared: bool) -> list[ReportedRun]:
    """Return rows with the real time as `median_s` where some run that they are compared with reports no iterations. A
    run whose iterations are all warm-up has no time."""
    together: dict[Any, Any] = {}

    def root(member: Any) -> Any:
        while together.setdefault(member, member) != member:
            member = together[member]
        return member

    def question(row: ReportedRun) -> Any:
        return root(_subject(row))

    for row in rows:
        subject = _subject(row)
        together[root(subject)] = root(("all", row.machine) if declared else subject)
        if "subject" in row.swept and row.kind != "import":
            together[root(subject)] = root(("group", row.machine, row.group_id))
    ended = [row for row in rows if row.outcome == Outcome.SUCCEEDED]
    iterate = {_subject(row) for row in ended if row.median_s is not None or row.n_iters}
    wall = {question(row) for row in ended if row.real_s is not None and _subject(row) not in iterate}
    rows, untimed = with_phase_times(rows, context, question)
    wall |= {question(row) for row in rows if row.run_id in untimed}
    return [_of_run(row) if question(row) in wall else row for row in rows]


def _subject(row: ReportedRun) -> Any:
    return "name", row.machine, row.subject


def with_phase_times(
    rows: Sequence[ReportedRun], context: Context, question: Callable[[ReportedRun], Any] = _subject
) -> tuple[list[ReportedRun], set[int]]:
    """Return the rows, and the ids of those whose `question` has a run without a time of the measured phase.

    Where a clock of a question contradicts itself, or does not wait for the device as others do, its rows have the wall
    time of that phase.
    """
    able = (row for row in rows if row.outcome == Outcome.SUCCEEDED and row.kind != "import" and row.median_s)
    biased = {key: same for key, same in by_key(able, question).items() if _is_biased(same)}
    if not biased:
        return list(rows), set()
    passed = context.tuples_by_run(_PASSED, [row for same in biased.values() for row in same])
    lacking = {key for key, same in biased.items() if not all(row.measure_s and row.n_measure for row in same)}
    timed = [_of_phase(row, passed) if question(row) in biased else row for row in rows]
    return timed, {row.run_id for row in rows if question(row) in lacking}


def _of_run(row: ReportedRun) -> ReportedRun:
    """Return the run with its real time instead of the times of its iterations; without any where it failed."""
    if row.outcome != Outcome.SUCCEEDED:
        return row.changed(**_OF_ITERATIONS, median_s=None, time_of=WALL)
    return row if row.real_s is None else row.changed(**_OF_ITERATIONS, median_s=row.real_s, time_of=WALL)


def _is_biased(rows: Iterable[ReportedRun]) -> bool:
    """Return whether some clock contradicts itself, or waits for the device in some runs and not in others."""
    unsynced = {"unsynced" in taints(row) for row in rows}
    return len(unsynced) > 1 or any("wrong_clock" in taints(row) for row in rows)


_PASSED = (
    "SELECT run_id, max(i) - min(i) + 1 FROM v_iteration WHERE run_id IN ({runs}) AND phase = 'measure' GROUP BY 1"
)
"""The number of measured iterations: a trainer may report every tenth."""


def _of_phase(row: ReportedRun, passed: Mapping[int, list[Any]]) -> ReportedRun:
    """Return the run with the wall time of its measured phase instead of the times that its iterations reported."""
    if not (row.measure_s and row.n_measure):
        return row if row.outcome == Outcome.SUCCEEDED else row.changed(time_of=PHASE)
    mean_s = row.measure_s / max([row.n_measure, *(n for (n,) in passed.get(row.run_id, ()))])
    return row.changed(median_s=mean_s, mean_s=mean_s, mad_s=None, q1_s=None, q3_s=None, time_of=PHASE)
