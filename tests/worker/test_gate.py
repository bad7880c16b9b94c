"""The gate before real workers: what keeps a run waiting, what ends the wait, and what a run that did not wait is told.

The worker's machine is a stand-in (tests/machine_stand_in.py), since no test can make this one quiet; one test makes
real load."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from queue_runner.control import cancellation
from queue_runner.model import DEFAULT_LANE, parse_selector
from queue_runner.monitor import explanation, run_details, run_view
from queue_runner.store import read
from tests import forked_programs
from tests.cli_support import Cli
from tests.patience import patience
from tests.queue_support import Queue, until

pytestmark = pytest.mark.process

STAND_IN = "tests.machine_stand_in"
MOVING = {"gate_cpu_share": 0.1, "gate_battery": "true", "gate_memory_bytes": 2**30, "poll_s": 0.2}


@pytest.fixture
def machine(queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the stand-in's sensors, and the usual thresholds."""
    path = tmp_path / "machine.json"
    monkeypatch.setenv("MPSQ_MACHINE", str(path))
    settings = {"grace_int_s": 0.3, "grace_term_s": 0.3, "min_free_bytes": 0, **MOVING}
    queue.layout.config.write_text("".join(f"{key} = {value}\n" for key, value in settings.items()))
    return path


def reads(machine: Path, **values: Any) -> None:
    machine.write_text(json.dumps({"cpu": 0.0, **values}))


def blocked(queue: Queue) -> str:
    with read.reading(queue.layout.db) as connection:
        return read.lane(connection, DEFAULT_LANE).blocked_reason or ""


def details(queue: Queue, run: str) -> run_details.Details:
    with read.reading(queue.layout.db) as connection:
        (view,) = run_view.select(connection, [parse_selector(run)])
        return run_details.details(queue.layout, connection, view)


def taints(queue: Queue, run: str) -> dict[str, str]:
    return {taint.kind: taint.severity for taint in details(queue, run).taints}


def history(queue: Queue, run: str) -> list[str]:
    return [event.verb for event in details(queue, run).history]


@pytest.mark.parametrize(
    ("noise", "told"),
    [
        ({"cpu": 0.9}, "other programs use 9"),
        ({"gpu": 0.5}, "other programs keep the GPU 50"),
        ({"thermal_level": 1}, "thermal pressure"),
        ({"on_battery": True}, "runs on battery"),
        ({"low_power": True}, "low power mode"),
        ({"memory_available_bytes": 1000}, "of memory are available"),
    ],
)
def test_it_waits_for_a_quiet_machine(queue: Queue, machine: Path, noise: dict[str, Any], told: str) -> None:
    reads(machine, **noise)
    queue.submit("echo ran >> $J", gate_timeout_s=3600.0)
    queue.worker(module=STAND_IN)
    until(lambda: told in blocked(queue), "the reason")
    with read.reading(queue.layout.db) as connection:
        (one,) = explanation.explain_all(queue.layout, connection, [parse_selector("1")])
    assert one.kind == "gate" and told in one.sentence and " for a quiet machine, until " in one.sentence
    assert "--no-gate" in one.next_step
    assert queue.written() == []
    reads(machine)
    queue.done(1)
    assert queue.written() == ["ran"] and not blocked(queue)
    assert "not_quiet" not in taints(queue, "1.1")
    assert history(queue, "1.1") == ["submit", "wait for quiet", "quiet", "claim", "finish"]


def test_a_quiet_machine_is_not_waited_for(queue: Queue, machine: Path) -> None:
    reads(machine)
    queue.submit("true", repeats=3, gate_timeout_s=3600.0)
    queue.worker(module=STAND_IN)
    queue.done(3)
    assert history(queue, "1.2") == ["submit", "claim", "finish"]


def test_after_the_timeout_it_starts_with_a_caveat(queue: Queue, machine: Path) -> None:
    reads(machine, cpu=0.9)
    queue.submit("true", gate_timeout_s=0.5)
    queue.worker(module=STAND_IN)
    queue.done(1)
    assert taints(queue, "1.1")["not_quiet"] == "caveat"
    assert history(queue, "1.1") == ["submit", "wait for quiet", "not quiet", "claim", "finish"]
    (caveat,) = (taint.detail for taint in details(queue, "1.1").taints if taint.kind == "not_quiet")
    assert "other programs used 90" in caveat and "of waiting" in caveat


def test_a_submission_waits_once(queue: Queue, machine: Path) -> None:
    """Each run had waited: a night of 60 runs beside one forgotten program lost ten hours."""
    reads(machine, cpu=0.9)
    queue.submit("true", repeats=3, gate_timeout_s=0.5)
    worker = queue.worker(module=STAND_IN)
    queue.done(3)
    assert [verb for verb in history(queue, "1.1") if "quiet" in verb] == ["wait for quiet", "not quiet"]
    for run in ("1.2", "1.3"):
        assert history(queue, run) == ["submit", "claim", "finish"] and taints(queue, run)["not_quiet"] == "caveat"
    queue.submit("true", gate_timeout_s=3600.0)
    until(lambda: "run 2.1 waits" in blocked(queue), "the wait of another submission")
    worker.send_signal(signal.SIGKILL)
    worker.wait()


def test_a_submission_does_not_ask_again_the_next_day(queue: Queue, machine: Path) -> None:
    """A new worker and rounds that were added had waited anew. The store knows that a run of it has started."""
    reads(machine)
    queue.submit("true", repeats=2, gate_timeout_s=3600.0)
    with sqlite3.connect(queue.layout.db) as connection:
        connection.execute("UPDATE runs SET not_before_at = 4e9 WHERE number = 2")
    connection.close()
    worker = queue.worker(module=STAND_IN)
    until(lambda: any(row["state"] == "DONE" for row in queue.rows()), "the first run")
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    with sqlite3.connect(queue.layout.db) as connection:
        connection.execute("UPDATE runs SET ended_at = ? WHERE number = 1", [time.time() - 86400])
        connection.execute("UPDATE runs SET not_before_at = NULL")
    connection.close()
    reads(machine, cpu=0.9)
    queue.worker(module=STAND_IN)
    queue.done(2)
    assert "wait for quiet" not in history(queue, "1.2")


def test_what_a_run_waited_counts_for_its_submission(queue: Queue, machine: Path) -> None:
    """The next run waited anew when one was cancelled, held or overtaken."""
    reads(machine, cpu=0.9)
    queue.submit("true", repeats=2, gate_timeout_s=3600.0)
    queue.worker(module=STAND_IN)
    until(lambda: "run 1.1 waits" in blocked(queue), "the first")
    with sqlite3.connect(queue.layout.db) as connection:  # as if it had waited an hour by then
        connection.execute(
            "INSERT INTO job_events (at, job_id, run_id, actor, verb)"
            " SELECT at - 3600, job_id, run_id, actor, verb FROM job_events WHERE verb = 'wait for quiet'"
        )
    connection.close()
    cancellation.cancel(queue.layout, [parse_selector("1.1")], grace_s=None, within_s=5.0)
    queue.done(2)
    assert [verb for verb in history(queue, "1.2") if "quiet" in verb] == ["wait for quiet", "not quiet"]


def test_a_command_that_somebody_watches_waits_briefly(queue: Queue, machine: Path) -> None:
    reads(machine, cpu=0.9)
    worker = queue.worker(module=STAND_IN)
    until(lambda: f"worker {worker.pid} on" in queue.log(), "the worker")  # else mpsq run starts one
    waited = []
    for group in (1, 2):  # the first question, of unknown length, waits no longer than a short one
        done = forked_programs.run("run", "--repeats", "2", "--", "/usr/bin/true", cwd=queue.folder)
        assert done.returncode == 0 and (done.stdout + done.stderr).count("starting anyway") == 1, done
        waited.append(details(queue, f"{group}.1").start["gate_waited_s"])
    assert all(patience(4) > waited_s >= 0.8 for waited_s in waited)


def test_a_start_that_did_not_come_about_leaves_no_caveat(queue: Queue, machine: Path) -> None:
    """The worker dies before it starts the warden; the next one finds the machine quiet."""
    reads(machine, cpu=0.9)
    queue.submit("true", gate_timeout_s=0.5)
    worker = queue.worker("worker.prepared", module=STAND_IN)
    queue.stopped("worker.prepared")
    worker.kill()
    worker.wait()
    reads(machine)
    queue.worker(module=STAND_IN)
    queue.done(1)
    assert "not_quiet" not in taints(queue, "1.1")
    assert details(queue, "1.1").start["gate_waited_s"] == 0


def test_a_battery_is_waited_for_once(queue: Queue, machine: Path) -> None:
    """It does not go away by itself: the next submission starts at once, and says so."""
    reads(machine, on_battery=True)
    first, second = (queue.submit("true", gate_timeout_s=0.5) for _ in range(2))
    queue.worker(module=STAND_IN)
    queue.done(2)
    assert "wait for quiet" in history(queue, f"{first}.1") and "wait for quiet" not in history(queue, f"{second}.1")
    assert {taints(queue, run)["not_quiet"] for run in (f"{first}.1", f"{second}.1")} == {"caveat"}
    reads(machine)
    queue.submit("true", gate_timeout_s=3600.0)
    queue.done(3)
    assert "not_quiet" not in taints(queue, "3.1")
    reads(machine, on_battery=True)
    queue.submit("true", gate_timeout_s=3600.0)
    until(lambda: "battery" in blocked(queue), "its return")


def test_a_job_without_a_gate_starts_at_once(queue: Queue, machine: Path) -> None:
    reads(machine, cpu=0.9, on_battery=True)
    queue.submit("true")
    queue.submit("true", repeats=2, no_gate=True)
    queue.worker(module=STAND_IN)
    queue.done(3)
    assert "not_quiet" not in taints(queue, "1.1") and "not_quiet" not in taints(queue, "2.1")


def test_a_look_at_the_gpu_holds_nobody(queue: Queue, machine: Path) -> None:
    """The worker slept while a tool looked, up to eight seconds before each start: nothing else was done meanwhile."""
    reads(machine, gpu=0.5, look_s=2 * (limit_s := patience(10.0)))
    hurried = queue.submit("echo hurried >> $J", name="hurried")
    queue.worker(module=STAND_IN)
    until(machine.with_suffix(".looked").exists, "the look")
    before = time.monotonic()
    cancellation.cancel(queue.layout, [parse_selector(str(hurried))], grace_s=None, within_s=5.0)
    queue.submit("echo other >> $J", device="cpu")
    queue.done(2)
    assert time.monotonic() - before < limit_s and queue.written() == ["other"]
    reads(machine, gpu=0.5, look_s=0.3)
    queue.submit("true")
    queue.done(3)
    assert taints(queue, "3.1")["gpu_busy"] == "caveat" and "gpu_busy" not in taints(queue, "2.1")


def test_a_busy_gpu_does_not_matter_to_the_cpu(queue: Queue, machine: Path) -> None:
    reads(machine, gpu=0.9)
    queue.submit("true", device="cpu", gate_timeout_s=3600.0)
    queue.worker(module=STAND_IN)
    queue.done(1)


def test_what_is_cancelled_or_held_leaves_the_gate(queue: Queue, machine: Path, mpsq: Cli) -> None:
    reads(machine, cpu=0.9)
    first, held = (queue.submit("true", gate_timeout_s=3600.0) for _ in range(2))
    other = queue.submit("echo other >> $J", no_gate=True)
    queue.worker(module=STAND_IN)
    until(lambda: "run 1.1 waits" in blocked(queue), "the first")
    cancellation.cancel(queue.layout, [parse_selector(str(first))], grace_s=None, within_s=5.0)
    until(lambda: "run 2.1 waits" in blocked(queue), "the second")
    mpsq.ok("pause", held)
    until(lambda: queue.written() == ["other"], "what is behind them")
    until(lambda: not blocked(queue), "nothing to wait for")
    assert [row["job_id"] for row in queue.rows() if row["state"] == "HELD"] == [held]
    mpsq.ok("resume", held)
    until(lambda: "run 2.1 waits" in blocked(queue), "its return")
    assert other == 3 and history(queue, "2.1").count("wait for quiet") == 2, "a wait of its own"
    mpsq.ok("pause")
    until(lambda: not blocked(queue), "the gate of a paused lane")
    until(lambda: history(queue, "2.1")[-1] == "no longer next", "the end of its wait")


def test_a_run_of_higher_priority_passes(queue: Queue, machine: Path) -> None:
    reads(machine, cpu=0.9)
    queue.submit("echo last >> $J", gate_timeout_s=3600.0)
    queue.worker(module=STAND_IN)
    until(lambda: "run 1.1 waits" in blocked(queue), "the first")
    queue.submit("echo first >> $J", priority=1)
    until(lambda: queue.written() == ["first"], "the urgent one")
    until(lambda: "run 1.1 waits" in blocked(queue), "its return")


def test_the_timeout_counts_on_when_the_worker_dies(queue: Queue, machine: Path) -> None:
    reads(machine, cpu=0.9)
    queue.submit("true", gate_timeout_s=3600.0)
    worker = queue.worker(module=STAND_IN)
    until(lambda: "run 1.1 waits" in blocked(queue), "the wait")
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    with sqlite3.connect(queue.layout.db) as connection:  # as if it had waited an hour by then
        connection.execute(
            "INSERT INTO job_events (at, job_id, run_id, actor, verb)"
            " SELECT at - 3600, job_id, run_id, actor, verb FROM job_events WHERE verb = 'wait for quiet'"
        )
    connection.close()
    queue.worker(module=STAND_IN)
    queue.done(1)
    assert history(queue, "1.1")[3:] == ["not quiet", "claim", "finish"], "no new wait"
    assert "1 h" in next(taint.detail for taint in details(queue, "1.1").taints if taint.kind == "not_quiet")


def test_real_load(queue: Queue) -> None:
    """Every processor computes for others; a hook and the runs before it are the queue's own and do not count. On a
    machine that is busy anyway the gate opens by its setting, else by itself."""
    calm = psutil.cpu_percent(1.0) / 100 <= 0.3
    settings = "gate_cpu_share = 0.6\nmin_free_bytes = 0\npoll_s = 0.5\n"
    queue.layout.config.write_text(settings)
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4 * (psutil.cpu_count() or 1))]
    try:
        queue.submit("echo ran >> $J", gate_timeout_s=3600.0)
        worker = queue.worker()
        until(lambda: "of the processors" in blocked(queue), "the reason")
        assert queue.written() == []
    finally:
        for process in busy:
            process.kill()
            process.wait()
    if not calm:
        worker.terminate()
        worker.wait()
        queue.layout.config.write_text(settings.replace("0.6", "1"))
        queue.worker()
    queue.done(1)
    assert "not_quiet" not in taints(queue, "1.1")
