"""--find-max in the queue: each probe is a job of the group; the end of one stores the next in the same transaction.

The state of a search is thus its stored runs: a worker that dies loses nothing, `mpsq cancel` of the current run ends
the search, and `mpsq retry` of a probe that failed for another reason continues it.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from queue_runner.model import Ending, Outcome, Row, RunId, State
from queue_runner.spec import JobSpec
from queue_runner.submit.find_max import search
from queue_runner.submit.find_max.search import Asked, Limit, Probe, Standing
from queue_runner.workloads import mps_switches

if TYPE_CHECKING:
    from queue_runner.store.engine import Connection


def is_answer(spec: JobSpec, ending: Ending) -> bool:
    """Return whether this ending of a probe is the answer its search needs, so that a retry would only repeat it."""
    return bool(spec.find_max) and ending.outcome is Outcome.OUT_OF_MEMORY


def go_on(connection: Connection, job_id: int, spec: JobSpec, memory_bytes: float | None) -> RunId | None:
    """Store the probe that follows this one and return its run; None if the search has its answer or can have none.

    `memory_bytes` is the memory of the machine; None if unknown.
    """
    if not spec.find_max:
        return None
    from queue_runner.store import find_max

    asked = search.parse(spec.find_max)
    rows = [row for row in find_max.probes(connection, job_id, spec.find_max) if same(row["spec_json"], spec, asked)]
    at = stand(asked, rows, memory_bytes)
    if at.following is None:
        return None
    return find_max.add(connection, job_id, search.with_value(spec, asked.key, at.following), at.sentence(asked.key))


def standing_of(connection: sqlite3.Connection, job_id: int) -> Standing | None:
    """Return the standing of the search that a job is a probe of (read-only connection); None for any other job."""
    from queue_runner.store.read import PROBES

    found = connection.execute("SELECT spec_json FROM jobs WHERE id = ?", [job_id]).fetchone()
    spec = JobSpec.from_json(found["spec_json"])
    if not spec.find_max:
        return None
    asked = search.parse(spec.find_max)
    named = {"job": job_id, "asked": spec.find_max}
    rows = [row for row in connection.execute(PROBES, named) if same(row["spec_json"], spec, asked)]
    machine = next((row["machine_hash"] for row in reversed(rows) if row["machine_hash"]), None)
    told = connection.execute("SELECT data_json FROM fingerprints WHERE hash = ?", [machine]).fetchone()
    return stand(asked, rows, memory_bytes(json.loads(told["data_json"]) if told else {}))


def memory_bytes(machine: Mapping[str, Any]) -> float | None:
    """Return the total memory of a machine from its fingerprint; None if not recorded."""
    gib = machine.get("memory_gib")
    return gib * 2.0**30 if isinstance(gib, int | float) else None


def same(spec_json: str, spec: JobSpec, asked: Asked) -> bool:
    """Return whether a stored job belongs to the same search: it differs in the setting only."""
    return search.without(JobSpec.from_json(spec_json), asked.key) == search.without(spec, asked.key)


def stand(asked: Asked, rows: Sequence[Row], memory_bytes: float | None) -> Standing:
    """Return the standing of a search; `rows` are its probes' last attempts, as of read.PROBES."""
    return search.standing(asked, [probe(asked, row) for row in rows], _limit(asked, rows, memory_bytes))


def _limit(asked: Asked, rows: Sequence[Row], memory_bytes: float | None) -> Limit | None:
    """Return the memory that a probe may be predicted to need. A range, or a watermark in the environment, asks for
    more than Metal recommends."""
    told = [row["recommended_bytes"] for row in rows if row["device"] == "mps"]
    recommended = next((size for size in reversed(told) if isinstance(size, int) and size > 0), None)
    if recommended is None:
        return search.of_machine(memory_bytes)
    ratio = mps_switches.memory_ratio(JobSpec.from_json(rows[-1]["spec_json"]).env)
    if ratio is None:
        ratio = 1.0 if asked.last == search.MOST else mps_switches.DEFAULT_HIGH
    return search.of_metal(recommended, ratio, memory_bytes)


def probe(asked: Asked, row: Row) -> Probe:
    """Return the result of a row for its value."""
    value = int(JobSpec.from_json(row["spec_json"]).params[asked.key])
    if row["state"] != State.DONE:
        return Probe(value, None, "it has not ended", over=False)
    ending = Ending(Outcome(row["outcome"]), row["exit_code"], row["signal"], row["reason"] or "")
    told = f"{ending}: {ending.reason}" if ending.reason else str(ending)
    if ending.outcome is Outcome.OUT_OF_MEMORY:
        return Probe(value, False, told)
    if ending.outcome is not Outcome.SUCCEEDED:
        return Probe(value, None, told)
    if row["swapped"]:
        return Probe(value, False, "it only works with swapping")
    process = row["max_rss_bytes"]  # on macOS the footprint, which has the GPU's
    used = {"cpu": process, None: process, "mps": row["reserved_bytes"] or process}
    return Probe(value, True, told, used_bytes=used.get(row["device"]))
