"""Every state and every outcome has its sentence and its next step."""

# ruff: noqa: E501 - a table of one line a case
from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import fields, replace

from queue_runner import tables
from queue_runner.model import NOT_FAILED, Obstacle, Outcome, Selector, parse_selector
from queue_runner.monitor import listing, run_view
from queue_runner.monitor.awaiting import Awaited
from queue_runner.monitor.explanation import RunContext, _before, _most_informative, explain, explain_all
from queue_runner.monitor.queue_state import LaneState, QueueState, Supervision
from queue_runner.monitor.run_view import RunView
from queue_runner.monitor.status_text import _lane_state
from queue_runner.monitor.waiting import Reason, _of_lane, _of_the_queue
from queue_runner.paths import Layout
from queue_runner.spec import JobSpec, NewJob
from queue_runner.store import jobs
from queue_runner.store.engine import open_engine, writing
from queue_runner.store.read import reading
from tests.cli_support import SPEC, empty_queue, full_queue

WORKER = QueueState(True, 42, None, None)
TURN = Reason("turn", "its turn", "run 1.1 is before it", "mpsq edit 12 --top changes it")
NOBODY = QueueState(False, None, None, None)


def run(state: str, **changes: Any) -> RunView:
    nothing: dict[str, Any] = {field.name: None for field in fields(RunView)}
    columns = {
        "run": "12.3",
        "job_id": 12,
        "number": 3,
        "state": state,
        "lane": "machine",
        "valid": True,
        "kind": "command",
    }
    return RunView(**{**nothing, **columns, "taints": (), "spec_json": SPEC.to_json(), **changes})


@pytest.mark.parametrize(
    ("given", "context", "said", "then"),
    [
        (run("QUEUED"), RunContext(WORKER, TURN), "run 1.1 is before it", "mpsq edit"),
        (run("QUEUED"), RunContext(WORKER, TURN, requeued="no fence"), "(it was requeued: no fence)", "mpsq edit"),
        (run("QUEUED"), RunContext(WORKER), "it is being started", "mpsq logs 12.3 -f"),
        (run("QUEUED", deadline_at=4e9), RunContext(WORKER, TURN), "run 1.1 is before it; it is skipped if it has not started by ", "mpsq edit"),
        (run("RUNNING"), RunContext(WORKER), "the worker has started it", "mpsq cancel 12.3"),
        (run("RUNNING"), RunContext(NOBODY, supervision=Supervision(True)), "it continues, but no worker", "mpsq worker"),
        (run("RUNNING"), RunContext(NOBODY), "it has lost its supervisor", "mpsq worker"),
        (run("RUNNING", outcome="SUCCEEDED", real_s=6.0), RunContext(NOBODY), "run 12.3 has ended: it succeeded after 6.00 s; the next worker stores its result", "mpsq worker"),
        (run("RUNNING"), RunContext(QueueState(True, 1, "process 7 survived SIGKILL", None)), "process 7 survived SIGKILL", "mpsq status"),
        (run("RUNNING", paused_at=1.0), RunContext(WORKER, supervision=Supervision(True)), "it was suspended", "mpsq resume 12.3"),
        (run("RUNNING", paused_at=1.0), RunContext(NOBODY, supervision=Supervision(True)), "still holds its memory and the device", "mpsq resume"),
        (run("RUNNING", paused_at=1.0), RunContext(NOBODY), "it has lost its supervisor", "mpsq worker"),
        (run("RUNNING"), RunContext(WORKER, supervision=Supervision(True, stopped=7)), "its process 7 was stopped by a signal", "kill -CONT 7 continues it; mpsq cancel 12.3"),
        (run("RUNNING", paused_at=1.0), RunContext(WORKER, supervision=Supervision(True, stopped=7)), "it was suspended", "mpsq resume 12.3"),
        (run("RUNNING"), RunContext(WORKER, supervision=Supervision(True, waits_for_exec=True)), "its program has not started", "mpsq cancel 12.3"),
        (run("RUNNING", cancel_requested_at=1.0), RunContext(WORKER), "cancellation was requested and is in progress", "mpsq wait 12.3"),
        (run("RUNNING", cancel_requested_at=1.0), RunContext(NOBODY), "no worker is running to record its end", "mpsq worker"),
        (run("DONE", outcome="SUCCEEDED", real_s=90.0), RunContext(WORKER), "it succeeded after 1 min 30 s", "mpsq report"),
        (run("DONE", outcome="SUCCEEDED", taints=("slept",), valid=False), RunContext(WORKER, flaw="the machine slept 31 s"), "not valid: the machine slept 31 s", "mpsq show 12.3"),
        (run("DONE", outcome="SUCCEEDED", taints=("drift",)), RunContext(WORKER), "it succeeded", "mpsq report"),
        (run("DONE", outcome="FAILED", exit_code=3, reason="no data"), RunContext(WORKER), "exit code 3: no data", "mpsq logs 12.3 shows what it wrote; after a fix, mpsq rerun g"),
        (run("DONE", outcome="KILLED", signal=9), RunContext(WORKER), "signal 9 killed it", "mpsq logs 12.3"),
        (run("DONE", outcome="SPAWN_FAILED", reason="no such file"), RunContext(WORKER), "no such file", "mpsq show 12.3"),
        (run("DONE", outcome="DEVICE_UNAVAILABLE"), RunContext(WORKER), "its device is not available", "mpsq doctor"),
        (run("DONE", outcome="TIMED_OUT", spec_json=SPEC.changed(timeout_s=5400.0).to_json()), RunContext(WORKER), "its --timeout ended it", "mpsq rerun 12 --timeout 3h"),
        (run("DONE", outcome="TIMED_OUT", reason="walltime"), RunContext(WORKER), "walltime", "longer --time"),
        (run("DONE", outcome="SKIPPED", reason="preflight: TIMED_OUT", spec_json=SPEC.changed(timeout_s=2.0).to_json()), RunContext(WORKER), "it was skipped", "mpsq rerun 12 --timeout 4s queues it again with more time"),
        (run("DONE", outcome="SKIPPED", reason="preflight: FAILED(1): no data"), RunContext(WORKER), "it was skipped", "mpsq logs 12.0 shows what it wrote; then mpsq retry 12"),
        (run("DONE", outcome="STALLED"), RunContext(WORKER), "its --stall ended it", "; after a fix, mpsq rerun g"),
        (run("DONE", outcome="FAILED", exit_code=3), RunContext(WORKER, retried="12.4"), "retried as run 12.4", "mpsq logs 12.3 shows what it wrote"),
        (run("DONE", outcome="OUT_OF_MEMORY"), RunContext(WORKER), "ran out of memory", "smaller batch"),
        (run("DONE", outcome="DISK_FULL"), RunContext(WORKER), "the disk was full", "mpsq gc"),
        (run("DONE", outcome="OUTPUT_LIMIT"), RunContext(WORKER), "wrote more output than allowed", "output_limit_bytes"),
        (run("DONE", outcome="CODE_CHANGED"), RunContext(WORKER), "can no longer be run as it was submitted", "mpsq rerun 12 --snapshot off"),
        (run("DONE", outcome="FAILED", exit_code=3), RunContext(WORKER, in_copy="a.py changed"), "exit code 3; it started in a copy of the code as submitted, because a.py", "mpsq logs 12.3"),
        (run("DONE", outcome="CANCELLED", reason="cancelled before it started"), RunContext(WORKER), "it was cancelled before it started", "mpsq retry 12.3"),
        (run("DONE", outcome="CANCELLED"), RunContext(WORKER), "it was cancelled", "mpsq retry 12.3"),
        (run("DONE", outcome="SKIPPED", reason="12.1 failed"), RunContext(WORKER), "skipped: 12.1 failed", "mpsq retry"),
        (run("DONE", outcome="SKIPPED", reason="dependency: job 7 did not succeed"), RunContext(WORKER), "job 7", "mpsq why 7 explains it; once it has succeeded, mpsq retry 12.3"),
        (run("DONE", outcome="SKIPPED", reason=f"dependency: job 7 {NOT_FAILED}"), RunContext(WORKER), "requires that it fails", "nothing is wrong: it should run only after a failure; mpsq rerun 12 runs it anyway"),
        (run("DONE", outcome="SKIPPED", reason="device: run 1.1 could not use cuda"), RunContext(WORKER), "cuda", "mpsq doctor tries every device; then mpsq retry 12.3"),
        (run("DONE", outcome="SKIPPED", reason="deadline: it did not start"), RunContext(WORKER), "deadline", "mpsq rerun 12 runs it without the deadline"),
        (run("DONE", outcome="LOST", reason="reboot: gone"), RunContext(WORKER), "it was lost: reboot", "mpsq retry 12.3"),
    ],
)  # fmt: skip
def test_a_sentence_and_a_step(given: RunView, context: RunContext, said: str, then: str) -> None:
    why = explain(given, context)
    assert why.run == "12.3" and why.sentence.startswith("run 12.3 ")
    assert said in why.sentence
    assert then in why.next_step


@pytest.mark.parametrize(
    ("change", "step"),
    [
        ("deleted_at = NULL", "mpsq rerun g1 --rounds 3 adds three rounds"),
        ("deadline_at = 1", "mpsq rerun g1"),
        ("deleted_at = 1", "submit the jobs again"),
        ("kind = 'import'", "submit a job with the same settings"),
    ],
)
def test_rounds_of_a_budget_are_offered_only_where_they_are_accepted(home: Path, change: str, step: str) -> None:
    layout = full_queue(home)
    with sqlite3.connect(layout.db) as connection:
        connection.execute("DROP TRIGGER done_is_final")
        connection.execute(
            "UPDATE runs SET outcome = 'SKIPPED', exit_code = NULL, reason = 'budget: over' WHERE outcome = 'FAILED'"
        )
        connection.execute(f"UPDATE jobs SET {change} WHERE id = 1")
    with reading(layout.db) as reader:
        (why,) = explain_all(layout, reader, [Selector("2.1", job=2, number=1)])
    assert why.next_step.startswith(step) and ("--rounds" in why.next_step) == ("--rounds" in step)


@pytest.mark.parametrize("kind", [None, Obstacle.GATE])
def test_what_keeps_the_lane_is_not_read_from_a_sentence(kind: Obstacle | None) -> None:
    """A program may be called anything, and so may what a sentence says of it."""
    answer = "process 7 (waits for a quiet machine) of run 12.3 needs more than is free"
    queue = QueueState(True, 1, answer, None, blocked_kind=kind)
    waiting = run("QUEUED", run_id=3, job_id=12, lane="machine", blocked_reason=None)
    found = _of_lane(waiting, queue, "") or _of_the_queue(waiting, queue, ())
    assert found.kind == "blocked" and "--no-gate" not in found.next_step
    kept = QueueState(
        True, 1, "run 12.3 needs more than is free: wait", None, blocked_kind=Obstacle.RESERVED, blocked_for=3
    )
    reason = _of_lane(waiting, kept, "")
    assert reason is not None and reason.sentence.startswith("it needs more")
    assert _of_lane(replace(waiting, run_id=4), kept, "") is None


@pytest.mark.parametrize(
    ("device", "paused", "is_waiting"),
    [("cpu", ("cpu:0", "cpu:1"), True), ("cpu", ("cpu:0",), False), ("mps", ("cpu:0", "cpu:1"), False)],
)
def test_a_run_whose_lanes_are_all_paused_does_not_start_immediately(
    device: str, paused: tuple[str, ...], is_waiting: bool
) -> None:
    lanes = [LaneState(name, None, 1.0 if name in paused else None, None) for name in ("cpu:0", "cpu:1")]
    queue = QueueState(True, 1, None, None, lanes=lanes)
    reason = _of_lane(run("QUEUED", run_id=3), queue, "", replace(SPEC, device=device))
    assert (reason is not None) == is_waiting
    assert reason is None or "resume --lane cpu:0" in reason.next_step


def test_a_failure_that_leaves_nothing_missing_offers_no_run() -> None:
    """mpsq rerun --missing, which it named, queued nothing where a later submission had succeeded."""
    failed = run("DONE", outcome="FAILED", exit_code=3)
    assert "--missing" in explain(failed, RunContext(WORKER)).next_step
    assert "--missing" not in explain(failed, RunContext(WORKER, lacks=False)).next_step


def test_a_paused_lane_names_the_command_that_resumes_it() -> None:
    """It named mpsq resume --lane, which is refused."""
    answer = _lane_state(LaneState("cpu:0", None, 1.0, "by hand"))
    assert "resume --lane cpu:0" in answer and "(by hand)" in answer


def test_a_run_behind_one_that_waits_for_quiet_has_its_turn_after_it() -> None:
    """It was advised to be submitted with --no-gate, which it was."""
    gate = "run 1.1 waits for a quiet machine, until 10:12 at the latest: other programs use 90 %"
    queue = QueueState(True, 1, gate, None, blocked_kind=Obstacle.GATE)
    waiting = run("QUEUED", run_id=3, job_id=12, lane="machine", blocked_reason=None)
    behind = _of_the_queue(waiting, queue, ["1.1"], any_waits=True)
    assert (behind.kind, behind.short) == ("turn", "its turn, after 1.1")
    assert behind.sentence.startswith("run 1.1 is before") and behind.sentence.endswith(gate)
    assert "--no-gate" not in behind.next_step and "mpsq edit 12 --top" in behind.next_step
    assert _of_the_queue(waiting, queue, ["1.1", "12.1"]).short == "its turn", "it waited for its turn, after itself"


@pytest.mark.parametrize(("jobs", "step"), [(2, "1 2"), (7, "g3")])
def test_all_held_jobs_are_named(jobs: int, step: str) -> None:
    held = [run("HELD", job_id=job, group_id=3, repeat=1, attempt=1) for job in range(1, jobs + 1)]
    assert Awaited(held).held_sentence().endswith(f"mpsq resume {step}")


def test_a_sentence_for_every_outcome() -> None:
    answer = {
        explain(run("DONE", outcome=str(outcome), exit_code=1, signal=1), RunContext(WORKER)).sentence
        for outcome in Outcome
    }
    assert len(answer) == len(Outcome)


def test_a_reason_may_hold_braces() -> None:
    failed = explain(run("DONE", outcome="FAILED", exit_code=1, reason="KeyError: {x}"), RunContext(WORKER))
    assert failed.sentence.endswith("KeyError: {x}")


def tried(name: str, repeat: int, state: str, outcome: str | None = None) -> RunView:
    number = int(name.partition(".")[2])
    return run(state, run=name, number=number, attempt=number, repeat=repeat, outcome=outcome, exit_code=1)


def test_what_is_tried_again_is_not_answered_by_its_old_failure() -> None:
    failed, well = tried("12.1", 1, "DONE", "FAILED"), tried("12.2", 2, "DONE", "SUCCEEDED")
    queued = tried("12.3", 1, "QUEUED")
    assert _most_informative([failed, well]) is failed and _most_informative([failed, well, queued]) is queued
    assert _most_informative([failed, well, tried("12.3", 1, "DONE", "SUCCEEDED")]).succeeded
    before = _before(queued, [failed, well, queued])
    assert (
        before.startswith("run 12.1: ")
        and before.endswith("exit code 1")
        and _before(well, [failed, well, queued]) == ""
    )
    assert explain(queued, RunContext(WORKER, TURN, before=before)).sentence.endswith(
        f"; the previous attempt, {before}"
    )


def test_a_probe_of_a_search_is_told_what_its_end_means() -> None:
    probe = {"spec_json": JobSpec("workload", "toy", find_max="batch_size=8").to_json(), "group_id": 4}
    full = explain(run("DONE", outcome="OUT_OF_MEMORY", **probe), RunContext(WORKER))
    assert "--find-max searches" in full.sentence and "report scaling g4" in full.next_step
    stopped = explain(run("DONE", outcome="FAILED", exit_code=1, **probe), RunContext(WORKER))
    assert "--find-max stopped" in stopped.sentence and "retry 12.3 " in stopped.next_step
    fits = explain(run("DONE", outcome="SUCCEEDED", **probe), RunContext(WORKER))
    assert "report scaling g4" in fits.next_step


def statements(layout: Layout, n_jobs: int) -> int:
    """Submit jobs, and return how many statements it takes to explain the last of them."""
    engine = open_engine(layout.db, check=False)
    with writing(engine) as connection:
        submitted = jobs.submit(connection, "test", 0, [NewJob(SPEC)] * n_jobs, [(n, 1) for n in range(n_jobs)])
    engine.dispose()
    last = submitted[1][-1]
    executed: list[str] = []
    with reading(layout.db) as connection:
        connection.set_trace_callback(executed.append)
        (why,) = explain_all(layout, connection, [Selector(str(last), job=last)])
    assert why.sentence.startswith(f"run {last}.1 waits: ")
    return len(executed)


def test_a_waiting_job_is_explained_by_as_many_queries_however_long_the_queue_is(home: Path) -> None:
    layout = empty_queue(home)
    assert statements(layout, 1) == statements(layout, 20) == statements(layout, 100)


def test_a_run_that_has_ended_is_explained_without_reading_the_queue(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = full_queue(home)
    monkeypatch.setattr(run_view, "queue", None)
    monkeypatch.setattr(run_view, "queue_outline", None)
    with reading(layout.db) as connection:
        (why,) = explain_all(layout, connection, [parse_selector("2")])
    assert "failed" in why.sentence


def test_a_list_holds_one_job_at_a_time(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = full_queue(home)
    with reading(layout.db) as connection:
        listed = listing.each_job(connection, listing.Filter(), RunView)
        first = next(listed)
        total = connection.execute("SELECT count(*) AS n FROM jobs").fetchone()["n"]
        assert first.first.job_id == 1 and len(list(listed)) == total - 1
        parsed: list[str] = []
        loads = json.loads

        def counting(text: str) -> Any:
            parsed.append(text)
            return loads(text)

        monkeypatch.setattr(json, "loads", counting)
        run_view.stored_spec.cache_clear()
        listed_jobs = tables.json_value(listing.jobs(connection, listing.Filter()))
        assert len(listed_jobs) == len(parsed) == total, "each specification once"


def test_behind_a_running_run_alone_no_other_order_is_offered() -> None:
    """Its next step was `mpsq edit 12 --top`, which changed nothing."""
    queue = QueueState(True, 1, None, None)
    behind = _of_the_queue(run("QUEUED", lane="machine", blocked_reason=None), queue, ["1.1"])
    assert behind.kind == "turn" and "--top" not in behind.next_step
