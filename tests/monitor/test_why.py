"""Every state and every outcome has its sentence and its next step."""

# ruff: noqa: E501 - a table of one line a case
from __future__ import annotations

from typing import Any

import pytest

from queue_runner.model import NOT_FAILED, Obstacle, Outcome
from queue_runner.monitor.queue_state import QueueState
from queue_runner.monitor.waiting import Reason, _of_lane, _of_the_queue
from queue_runner.monitor.why import Around, _before, _telling, explain

WORKER = QueueState(True, 42, None, None)
TURN = Reason("turn", "its turn", "run 1.1 is before it", "mpsq edit 12 --top changes it")
NOBODY = QueueState(False, None, None, None)


def row(state: str, **changes: Any) -> dict[str, Any]:
    nothing = dict.fromkeys(
        (
            "outcome",
            "reason",
            "exit_code",
            "signal",
            "real_s",
            "blocked_reason",
            "cancel_requested_at",
            "taints",
            "paused_at",
        )
    )
    return {"run": "12.3", "job_id": 12, "state": state, "lane": "machine", "valid": 1, **nothing, **changes}


@pytest.mark.parametrize(
    ("given", "around", "said", "then"),
    [
        (row("QUEUED"), Around(WORKER, TURN), "run 1.1 is before it", "mpsq edit"),
        (row("QUEUED"), Around(WORKER, TURN, requeued="no fence"), "(it was requeued: no fence)", "mpsq edit"),
        (row("QUEUED"), Around(WORKER), "it is being started", "mpsq logs 12.3 -f"),
        (row("RUNNING"), Around(WORKER), "the worker started it", "mpsq cancel 12.3"),
        (row("RUNNING"), Around(NOBODY, supervised=True), "it continues under its warden", "mpsq worker"),
        (row("RUNNING"), Around(NOBODY), "neither a warden nor a worker", "mpsq worker"),
        (row("RUNNING"), Around(NOBODY, ended=True), "it has finished, but no worker is running to record its result", "mpsq worker"),
        (row("RUNNING"), Around(QueueState(True, 1, "process 7 survived SIGKILL", None)), "process 7 survived SIGKILL", "mpsq status"),
        (row("RUNNING", paused_at=1.0), Around(WORKER, supervised=True), "it was suspended", "mpsq resume 12.3"),
        (row("RUNNING", paused_at=1.0), Around(NOBODY, supervised=True), "keeps the lane and its memory", "mpsq resume"),
        (row("RUNNING", paused_at=1.0), Around(NOBODY), "neither a warden nor a worker", "mpsq worker"),
        (row("RUNNING"), Around(WORKER, supervised=True, stopped=7), "its process 7 was stopped by a signal", "kill -CONT 7 lets it go on; mpsq cancel 12.3"),
        (row("RUNNING", paused_at=1.0), Around(WORKER, supervised=True, stopped=7), "it was suspended", "mpsq resume 12.3"),
        (row("RUNNING"), Around(WORKER, supervised=True, waits_for_exec=True), "its program has not begun", "mpsq cancel 12.3"),
        (row("RUNNING", cancel_requested_at=1.0), Around(WORKER), "cancellation was requested and is in progress", "mpsq wait 12.3"),
        (row("RUNNING", cancel_requested_at=1.0), Around(NOBODY), "no worker is running to record its end", "mpsq worker"),
        (row("DONE", outcome="SUCCEEDED", real_s=90.0), Around(WORKER), "it succeeded after 1 min 30 s", "mpsq report"),
        (row("DONE", outcome="SUCCEEDED", taints="slept", valid=0), Around(WORKER), "not valid (slept)", "mpsq show 12.3"),
        (row("DONE", outcome="SUCCEEDED", taints="drift"), Around(WORKER), "it succeeded", "mpsq report"),
        (row("DONE", outcome="FAILED", exit_code=3, reason="no data"), Around(WORKER), "exit code 3: no data", "mpsq logs 12.3"),
        (row("DONE", outcome="KILLED", signal=9), Around(WORKER), "signal 9 killed it", "mpsq logs 12.3"),
        (row("DONE", outcome="SPAWN_FAILED", reason="no such file"), Around(WORKER), "no such file", "mpsq show 12.3"),
        (row("DONE", outcome="DEVICE_UNAVAILABLE"), Around(WORKER), "its device is not available", "mpsq doctor"),
        (row("DONE", outcome="TIMED_OUT"), Around(WORKER), "longer than --timeout", "longer --timeout"),
        (row("DONE", outcome="STALLED"), Around(WORKER), "reported nothing for too long", "mpsq logs"),
        (row("DONE", outcome="OUT_OF_MEMORY"), Around(WORKER), "ran out of memory", "smaller batch"),
        (row("DONE", outcome="DISK_FULL"), Around(WORKER), "the disk was nearly full", "mpsq gc"),
        (row("DONE", outcome="OUTPUT_LIMIT"), Around(WORKER), "wrote more output than allowed", "output_limit_bytes"),
        (row("DONE", outcome="CODE_CHANGED"), Around(WORKER), "no longer what was submitted", "submit it again"),
        (row("DONE", outcome="CANCELLED"), Around(WORKER), "it was cancelled", "mpsq retry 12.3"),
        (row("DONE", outcome="SKIPPED", reason="12.1 failed"), Around(WORKER), "skipped: 12.1 failed", "mpsq retry"),
        (row("DONE", outcome="SKIPPED", reason="dependency: job 7 did not succeed"), Around(WORKER), "job 7", "fix the job it depended on"),
        (row("DONE", outcome="SKIPPED", reason=f"dependency: job 7 {NOT_FAILED}"), Around(WORKER), "requires that it fails", "nothing is wrong: it was for the case of a failure; mpsq rerun 12 runs it all the same"),
        (row("DONE", outcome="SKIPPED", reason="device: cuda was not available to run 1.1"), Around(WORKER), "cuda", "mpsq doctor tries every device; then mpsq retry 12.3"),
        (row("DONE", outcome="SKIPPED", reason="deadline: it did not start"), Around(WORKER), "deadline", "mpsq rerun 12 runs it without the deadline"),
        (row("DONE", outcome="LOST", reason="reboot: gone"), Around(WORKER), "it was lost: reboot", "mpsq retry 12.3"),
    ],
)  # fmt: skip
def test_a_sentence_and_a_step(given: dict[str, Any], around: Around, said: str, then: str) -> None:
    why = explain(given, around)
    assert why.run == "12.3" and why.sentence.startswith("run 12.3 ")
    assert said in why.sentence
    assert then in why.next_step


@pytest.mark.parametrize("kind", [None, Obstacle.GATE])
def test_what_keeps_the_lane_is_not_read_from_a_sentence(kind: Obstacle | None) -> None:
    """A program may be called anything, and so may what a sentence says of it."""
    said = "process 7 (waits for a quiet machine) of run 12.3 needs more than is free"
    queue = QueueState(True, 1, said, None, blocked_kind=kind)
    waiting = row("QUEUED", run_id=3, job_id=12, lane="machine", blocked_reason=None)
    found = _of_lane(waiting, queue, "") or _of_the_queue(waiting, queue, ())
    assert found.kind == "blocked" and ("--no-gate" in found.next_step) == (kind is Obstacle.GATE)
    kept = QueueState(
        True, 1, "run 12.3 needs more than is free: wait", None, blocked_kind=Obstacle.RESERVED, blocked_for=3
    )
    own = _of_lane(waiting, kept, "")
    assert own is not None and own.sentence == "it needs more than is free: wait"
    assert _of_lane({**waiting, "run_id": 4}, kept, "") is None


def test_a_sentence_for_every_outcome() -> None:
    said = {
        explain(row("DONE", outcome=str(outcome), exit_code=1, signal=1), Around(WORKER)).sentence
        for outcome in Outcome
    }
    assert len(said) == len(Outcome)


def test_a_reason_may_hold_braces() -> None:
    failed = explain(row("DONE", outcome="FAILED", exit_code=1, reason="KeyError: {x}"), Around(WORKER))
    assert failed.sentence.endswith("KeyError: {x}")


def tried(run: str, repeat: int, state: str, outcome: str | None = None) -> dict[str, Any]:
    number = int(run.partition(".")[2])
    return row(state, run=run, number=number, attempt=number, repeat=repeat, outcome=outcome, exit_code=1)


def test_what_is_tried_again_is_not_answered_by_its_old_failure() -> None:
    failed, well = tried("12.1", 1, "DONE", "FAILED"), tried("12.2", 2, "DONE", "SUCCEEDED")
    queued = tried("12.3", 1, "QUEUED")
    assert _telling([failed, well]) is failed and _telling([failed, well, queued]) is queued
    assert _telling([failed, well, tried("12.3", 1, "DONE", "SUCCEEDED")])["outcome"] == "SUCCEEDED"
    before = _before(queued, [failed, well, queued])
    assert before == "run 12.1: it failed with exit code 1" and _before(well, [failed, well, queued]) == ""
    assert explain(queued, Around(WORKER, TURN, before=before)).sentence.endswith(f"; the previous attempt, {before}")


def test_a_probe_of_a_search_is_told_what_its_end_means() -> None:
    probe = {"spec_json": '{"find_max": "batch_size=8"}', "group_id": 4}
    full = explain(row("DONE", outcome="OUT_OF_MEMORY", **probe), Around(WORKER))
    assert "--find-max searches for that limit" in full.sentence and "report scaling g4" in full.next_step
    stopped = explain(row("DONE", outcome="FAILED", exit_code=1, **probe), Around(WORKER))
    assert "its search stopped there" in stopped.sentence and "retry 12.3 continues the search" in stopped.next_step
    fits = explain(row("DONE", outcome="SUCCEEDED", **probe), Around(WORKER))
    assert "report scaling g4" in fits.next_step
