"""--find-max in the queue: each probe is a job of the group; the end of one stores the next in the same transaction.

The state of a search is thus its stored runs: a worker that dies loses nothing, `mpsq cancel` of the current run ends
the search, and `mpsq retry` of a probe that failed for another reason continues it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import TYPE_CHECKING

from queue_runner.machine_records import read_machine
from queue_runner.model import Ending, Outcome, RunId
from queue_runner.spec import JobSpec
from queue_runner.store import read
from queue_runner.store.read import PROBES, ProbeRow
from queue_runner.submit.find_max import search
from queue_runner.submit.find_max.search import Limit, Probe, SearchRange, SearchState
from queue_runner.workloads import mps_switches

if TYPE_CHECKING:
    from queue_runner.store.engine import Connection


def is_answer(spec: JobSpec, ending: Ending) -> bool:
    """Return whether this ending of a probe is the answer its search needs, so that a retry would only repeat it."""
    return bool(spec.find_max) and ending.outcome is Outcome.OUT_OF_MEMORY


def queue_next(connection: Connection, job_id: int, spec: JobSpec, memory_bytes: float | None) -> RunId | None:
    """Store the probe that follows this one and return its run; None if the search has its answer or can have none.

    `memory_bytes` is the memory of the machine; None if unknown.
    """
    if not spec.find_max:
        return None
    from queue_runner.store import jobs

    params = search.parse(spec.find_max)
    rows = [ProbeRow(*row) for row in connection.rows(PROBES, {"job": job_id, "find_max": spec.find_max})]
    state = state_of(params, _of_same_search(rows, spec, params), memory_bytes)
    if state.following is None:
        return None
    following = search.with_value(spec, params.key, state.following)
    return jobs.add_probe(connection, job_id, following, state.sentence(params.key))


def state_of_job(connection: sqlite3.Connection, job_id: int) -> SearchState | None:
    """Return the state of the search that a job is a probe of (read-only connection); None for any other job."""
    (spec_json,) = read.tuples(connection, "SELECT spec_json FROM jobs WHERE id = ?", [job_id]).fetchone()
    spec = JobSpec.from_json(spec_json)
    if not spec.find_max:
        return None
    params = search.parse(spec.find_max)
    probes = read.tuples(connection, PROBES, {"job": job_id, "find_max": spec.find_max})
    rows = [ProbeRow(*row) for row in probes]
    rows = _of_same_search(rows, spec, params)
    machine = next((row.machine_hash for row in reversed(rows) if row.machine_hash), None)
    facts = read.tuples(connection, "SELECT data_json FROM fingerprints WHERE hash = ?", [machine]).fetchone()
    return state_of(params, rows, read_machine(facts[0] if facts else None).memory_bytes)


def _of_same_search(rows: Sequence[ProbeRow], spec: JobSpec, params: SearchRange) -> list[ProbeRow]:
    """Return the probes that differ from `spec` in the setting only: a group may have several searches."""
    common = search.without(spec, params.key)
    return [row for row in rows if search.without(JobSpec.from_json(row.spec_json), params.key) == common]


def state_of(params: SearchRange, rows: Sequence[ProbeRow], memory_bytes: float | None) -> SearchState:
    """Return the state of a search; `rows` are its probes' last attempts."""
    return search.state(params, [_probe(params, row) for row in rows], _limit(params, rows, memory_bytes))


def _limit(params: SearchRange, rows: Sequence[ProbeRow], memory_bytes: float | None) -> Limit | None:
    """Return the memory that a probe may be predicted to need. A range, or a watermark in the environment, asks for
    more than Metal recommends."""
    sizes = [row.recommended_bytes for row in rows if row.device == "mps"]
    recommended = next((size for size in reversed(sizes) if isinstance(size, int) and size > 0), None)
    if recommended is None:
        return search.of_machine(memory_bytes)
    ratio = mps_switches.memory_ratio(JobSpec.from_json(rows[-1].spec_json).env)
    if ratio is None:
        ratio = 1.0 if params.last == search.MOST else mps_switches.DEFAULT_HIGH
    return search.of_metal(recommended, ratio, memory_bytes)


def _probe(params: SearchRange, row: ProbeRow) -> Probe:
    value = int(JobSpec.from_json(row.spec_json).params[params.key])
    if row.outcome is None:
        return Probe(value, None, "it has not ended", over=False)
    ending = Ending(Outcome(row.outcome), row.exit_code, row.signal, row.reason or "")
    why = f"{ending}: {ending.reason}" if ending.reason else str(ending)
    if ending.outcome is Outcome.OUT_OF_MEMORY:
        return Probe(value, False, why)
    if ending.outcome is not Outcome.SUCCEEDED:
        return Probe(value, None, why)
    if row.swapped:
        return Probe(value, False, "it only works with swapping")
    process = row.max_rss_bytes  # on macOS the footprint, which has the GPU's
    used = {"cpu": process, None: process, "mps": row.reserved_bytes or process}
    return Probe(value, True, why, used_bytes=used.get(row.device))
