"""Computation of the summary and the taints of a run from its stored events."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection

from queue_runner.analysis.summary import Summary, summarize
from queue_runner.analysis.validity import Facts, find_taints
from queue_runner.model import Ending
from queue_runner.store import results, retries
from queue_runner.store.jobs import Claimed


def summarize_run(
    connection: Connection, run: Claimed, ending: Ending, exit_: Mapping[str, Any], *, unobserved_matters: bool
) -> Summary:
    """Compute and store the summary and the taints of a run whose events are all stored."""
    run_id = run.run_id
    iterations = results.rows_of(connection, "iterations", run_id)
    evals = results.rows_of(connection, "evals", run_id)
    hello = hello_of(connection, run_id)
    notes = results.note_texts(connection, run_id)
    _, *before = retries.segments(connection, run_id)
    summary = summarize(
        iterations=iterations,
        phases=results.rows_of(connection, "phases", run_id),
        evals=evals,
        real_s=exit_.get("real_s"),
        slept_s=exit_.get("slept_s"),
        planned_iters=max(filter(None, (_count(hello, key) for key in ("full_iters", "planned_iters"))), default=None),
        eval_interval=_count(hello, "eval_interval"),
        resumed=bool(before),
        nan_loss="nan_loss" in notes,
    )
    results.save_summary(connection, run_id, asdict(summary))
    facts = Facts(
        outcome=ending.outcome,
        expects_iterations=unobserved_matters and (run.spec.kind == "workload" or run.spec.parser is not None),
        iterations=iterations,
        summary=summary,
        notes=notes,
        conditions=[json.loads(c["data_json"]) for c in results.rows_of(connection, "conditions", run_id)],
        ingests=results.rows_of(connection, "ingests", run_id),
        slept_s=exit_.get("slept_s") or 0.0,
        paused_s=exit_.get("paused_s") or 0.0,
        resumed_from=str(before[0][1]) if before else None,
        learns=not str(hello.get("workload")).endswith("-eval"),
    )
    results.save_taints(connection, run_id, [(t.kind, t.severity, t.detail) for t in find_taints(facts)])
    return summary


def _count(hello: Mapping[str, Any], key: str) -> int | None:
    """Return the count under a key that the protocol does not check; None for anything else."""
    value = hello.get(key)
    return value if type(value) is int and 0 < value < 1 << 53 else None


def hello_of(connection: Connection, run_id: int) -> dict[str, Any]:
    """Return all that the trainer reported about itself; empty if nothing."""
    rows = results.rows_of(connection, "hellos", run_id)
    said: dict[str, Any] = json.loads(rows[0]["hello_json"]) if rows else {}
    return said
