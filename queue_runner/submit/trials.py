"""Preflight: which cells of a submission are first tried with one iteration, and with which settings.

A cell that cannot work - its data is absent, a package is missing, the device is not there or too small - is then known
within minutes, and not after the night. The record of the attempt is run 12.0 of job 12 (model.PREFLIGHT): it holds the
lane under a warden as a run does, and no report reads it. worker/preflight_end.py draws the conclusion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from queue_runner import units
from queue_runner.host.once_a_day import RepeatedNote
from queue_runner.paths import Layout
from queue_runner.spec import JobSpec, NewJob, Value
from queue_runner.submit.submit_options import Request

if TYPE_CHECKING:
    from queue_runner.store.engine import Connection
    from queue_runner.store.history import Expected
    from queue_runner.workloads.manifest import Workload

ONE: Mapping[str, Value] = {"max_iters": 1, "warmup_iters": 0, "eval_interval": 0, "checkpoint_interval": 0}
"""Settings of a preflight, as far as the workload has them: one iteration, no evaluation, no checkpoint."""
MOST_SHARE = 0.1
"""Share of the runs of a cell that its preflight, which is mostly start-up, may cost; above it there is none."""
_STARTUP_ITERS = 100
"""Number of iterations that take as long as a start-up, where no run of the question is known (assumed)."""


def is_wanted(request: Request, *, several: bool) -> bool:
    """Return whether the cells of a request, `several` of one submission or one alone, get preflights: those of a
    workload, unless it declines them. A search (--find-max) tries its cells anyway, and rounds until decided begin with
    one of each row."""
    is_on = several and request.until is None if request.preflight is None else request.preflight
    return is_on and request.workload is not None and request.find_max is None


def settings(workload: Workload) -> dict[str, Value]:
    """Return the settings of a preflight of a workload; empty for one that does not count its iterations."""
    if "max_iters" not in workload.params:
        return {}
    known = workload.params
    return {key: value for key, value in ONE.items() if key in known and not known[key].wrong(value)}


def choose(layout: Layout, connection: Connection, jobs: Sequence[NewJob]) -> list[int]:
    """Return the indexes of the jobs, as they are to be stored, that get a preflight: not where the question
    already succeeded in this environment, nor where the start-up exceeds MOST_SHARE of all its repeats."""
    from queue_runner.store import preflights
    from queue_runner.store.history import History
    from queue_runner.store.read import reading

    candidates = [index for index, job in enumerate(jobs) if job.spec.preflight and job.terms.rerun_of is None]
    if not candidates:
        return []
    proven = preflights.proven(connection, [jobs[index].spec for index in candidates])
    tried = []
    with reading(layout.db) as reader:
        history = History(reader)
        for index in candidates:
            spec, repeats = jobs[index].spec, jobs[index].repeats
            if proven and preflights.question(spec) in proven:
                continue
            if _share(history.expected(spec), spec) <= MOST_SHARE * repeats:
                tried.append(index)
    return tried


def _share(expected: Expected, spec: JobSpec) -> float:
    """Return the cost of a preflight as a share of one run. An unknown number of iterations counts as many."""
    if expected.startup_s is not None and expected.real_s:
        return expected.startup_s / expected.real_s
    iters = spec.params.get("max_iters")
    return _STARTUP_ITERS / (_STARTUP_ITERS + iters) if isinstance(iters, int) else 0.0


def note(tried: Sequence[int], jobs: Sequence[NewJob]) -> list[str]:
    """Return a sentence on the preflights of a submission; none if there are none."""
    if not tried:
        return []
    which = (
        "each job is" if len(tried) == len(jobs) else f"{units.count(len(tried))} of {units.count(len(jobs))} jobs are"
    )
    text = f"{which} first tried with one iteration; reports leave this trial out (--no-preflight skips it)"
    return [RepeatedNote(text)]
