"""The end of a run: summary, taints, fingerprint and the move to DONE, in one transaction."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, Engine

from queue_runner import find_max, resume, stop_points
from queue_runner.ending import failed_on_metal, with_last_words
from queue_runner.fingerprint import of_machine, of_software
from queue_runner.model import Ending, Verb
from queue_runner.rundir import RunDir, read_end
from queue_runner.store import attempts, hooks, jobs, results
from queue_runner.store.engine import writing
from queue_runner.store.hooks import Orders
from queue_runner.store.jobs import Claimed
from queue_runner.summarize import Summary, summarize
from queue_runner.taints import Facts, find_taints
from queue_runner.text import last_line, plain

_STDERR_BYTES = 1 << 20
"""Of the end of stderr, in which Metal's complaints are looked for."""
_LAST_BYTES = 4096
"""Of the same, in which a job's last words are."""


def finish(
    engine: Engine, run: Claimed, folder: RunDir, ending: Ending, exit_: Mapping[str, Any] | None, orders: Orders
) -> Ending:
    """Store how the run ended and what is to be called for it, all or nothing. Returns the ending with its reason.

    Raises: MpsqError (store).
    """
    stderr = read_end(folder.stderr, _STDERR_BYTES)
    failed, end = failed_on_metal(stderr), stderr[-_LAST_BYTES:]
    ending = with_last_words(ending, last_line(end), end)
    machine = of_machine()  # may ask programs: not while the write lock is held
    with writing(engine) as connection:
        if exit_ is not None:
            results.save_exit(connection, run.run_id, exit_)
        if failed:
            results.save_note(connection, run.run_id, "wrong_result", failed)
        _summarise_whatever_it_said(connection, run, ending, exit_ or {})
        results.mark_fingerprint(
            connection,
            run.run_id,
            results.save_fingerprint(connection, "machine", machine),
            results.save_fingerprint(connection, "software", of_software(hello_of(connection, run.run_id), run.spec)),
        )
        jobs.move(
            connection,
            run.run_id,
            Verb.FINISH,
            actor="worker",
            ending=ending,
            ended_at=(exit_ or {}).get("ended_at") or time.time(),
            paused_at=None,
            blocked_reason=None,
        )
        stop_points.reach("finish.before_retry")
        again = None
        if not find_max.is_answer(run.spec, ending):
            checkpoint = _checkpoint(connection, run, folder)
            again = attempts.retry_as_agreed(connection, run.run_id, ending, time.time(), checkpoint)
        if again is None:
            find_max.go_on(connection, run.id.job, run.spec, find_max.memory_bytes(machine))
        hooks.note_end(connection, run.run_id, ending.outcome, orders)
        stop_points.reach("finish.before_commit")
    return ending


def _checkpoint(connection: Connection, run: Claimed, folder: RunDir) -> int | None:
    """The run whose checkpoint a retry goes on from; None where that was not agreed, or there is none."""
    if not run.spec.resume:
        return None
    found = resume.newest(folder.path.parent, attempts.segments(connection, run.run_id))
    return found.run_id if found else None


def _summarise_whatever_it_said(connection: Connection, run: Claimed, ending: Ending, exit_: Mapping[str, Any]) -> None:
    """Numbers that mpsq fails to make sense of are a fault of mpsq and invalid; they never hold the queue."""
    try:
        with connection.begin_nested():
            summarise_run(connection, run, ending, exit_, unobserved_matters=True)
    except (ArithmeticError, LookupError, TypeError, ValueError, AssertionError, RecursionError) as error:
        detail = f"mpsq could not make sense of what it reported ({type(error).__name__}: {error}): please report it"
        results.save_taints(connection, run.run_id, [("unobserved", "invalid", plain(detail))])


def summarise_run(
    connection: Connection, run: Claimed, ending: Ending, exit_: Mapping[str, Any], *, unobserved_matters: bool
) -> Summary:
    """Compute and store the summary and the taints of a run whose events are all stored."""
    run_id = run.run_id
    iterations = results.rows_of(connection, "iterations", run_id)
    evals = results.rows_of(connection, "evals", run_id)
    hello = hello_of(connection, run_id)
    notes = results.note_texts(connection, run_id)
    _, *before = attempts.segments(connection, run_id)
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
    """A key that the protocol does not check: anything may stand there."""
    value = hello.get(key)
    return value if type(value) is int and 0 < value < 1 << 53 else None


def hello_of(connection: Connection, run_id: int) -> dict[str, Any]:
    """All that the trainer said of itself; empty where it said nothing."""
    rows = results.rows_of(connection, "hellos", run_id)
    said: dict[str, Any] = json.loads(rows[0]["hello_json"]) if rows else {}
    return said
