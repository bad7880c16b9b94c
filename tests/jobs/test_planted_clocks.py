"""Wrong clocks planted in trainings that run and report for real, as `mpsq_report` writes them; and clean trainings.

Each twice here; MPSQ_CAMPAIGN=long, as `make campaign` sets, plants each 20 times and runs 100 clean trainings.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from queue import Queue

import pytest

from harness.loop import SyncProof
from mpsq_report import Reporter
from queue_runner import reports
from queue_runner.host.warden_records import RunEnd
from queue_runner.model import Ending, Outcome
from queue_runner.paths import Layout
from queue_runner.reports._common import printing
from queue_runner.store import read
from queue_runner.store.engine import open_engine
from queue_runner.worker import finish
from tests import named_rows
from tests.ingest.test_ingest import Case

pytestmark = pytest.mark.process

LONG = os.environ.get("MPSQ_CAMPAIGN") == "long"
N_PLANTED, N_CLEAN = (20, 100) if LONG else (2, 4)
N_ITERS, ITER_S = 30, 0.02
CLOCK = {"wrong_clock", "unsynced", "iterations_missing", "clock_step", "field_dropped"}
planted = pytest.mark.parametrize("time_", range(N_PLANTED))


@pytest.fixture
def case(layout: Layout) -> Iterator[Case]:
    engine = open_engine(layout.db, keep_open=True)
    yield Case(layout, engine)
    engine.dispose()


class Accelerator:
    """A device whose work is queued: `launch` returns at once, `wait` when all work is done."""

    def __init__(self) -> None:
        self._work: Queue[float | None] = Queue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while (dur_s := self._work.get()) is not None:
            time.sleep(dur_s)
            self._work.task_done()

    def launch(self, dur_s: float) -> None:
        self._work.put(dur_s)

    def wait(self) -> None:
        self._work.join()

    def close(self) -> None:
        self._work.put(None)
        self._thread.join()


Report = Callable[[Reporter, int, float], None]


def as_measured(report: Reporter, i: int, dur_s: float) -> None:
    report.iter(i, dur_s, 2.0, synced=True)


def log(dur_s: float) -> None:
    """Use a processor for so long: to sleep would last longer on a loaded machine."""
    end = time.perf_counter() + dur_s
    while time.perf_counter() < end:
        pass


def train(case: Case, report_iteration: Report = as_measured, logging_s: float = 0.0, between_s: float = 0.0) -> float:
    """Run a training; return its real time. `logging_s` passes between iterations, `between_s` outside all phases."""
    began = time.perf_counter()
    report = Reporter(case.folder.events, zero=began)
    report.hello(workload="mine", framework="torch", device="cpu", dtype="fp32")
    with report.phase("measure"):
        for i in range(N_ITERS):
            start = time.perf_counter()
            time.sleep(ITER_S)
            report_iteration(report, i, time.perf_counter() - start)
            log(logging_s)
    time.sleep(between_s)
    report.bye()
    return time.perf_counter() - began


def taints(case: Case, layout: Layout, real_s: float, set_by_s: float = 0.0) -> dict[str, str]:
    """Return the taints about clocks of a run that ended; the wall clock was set meanwhile by `set_by_s`."""
    case.ingest().step()
    ended_at = time.time()
    end = RunEnd(exit_code=0, real_s=real_s, started_at=ended_at - real_s - set_by_s, ended_at=ended_at)
    finish.finish(case.engine, case.run, case.folder, Ending(Outcome.SUCCEEDED, 0), end)
    with read.reading(layout.db) as connection:
        rows = named_rows.detail(connection, "taints", case.run.run_id)
    return {taint["kind"]: taint["detail"] for taint in rows if taint["kind"] in CLOCK}


@planted
@pytest.mark.parametrize("share", [0.45, 0.6, 2.0])
def test_times_in_a_wrong_unit_are_caught(case: Case, layout: Layout, share: float, time_: int) -> None:
    def wrongly(report: Reporter, i: int, dur_s: float) -> None:
        report.iter(i, dur_s * share, 2.0, synced=True)

    assert "wrong_clock" in taints(case, layout, train(case, wrongly))


@planted
def test_iterations_that_end_early_are_caught(case: Case, layout: Layout, time_: int) -> None:
    def wrongly(report: Reporter, i: int, dur_s: float) -> None:
        report.iter(i, 0.001 if i % 5 > 2 else dur_s, 2.0, synced=True)

    assert "wrong_clock" in taints(case, layout, train(case, wrongly))


@planted
@pytest.mark.parametrize("reads_losses", [True, False], ids=["losses are read", "one wait at the end"])
def test_a_clock_that_does_not_wait_is_caught(case: Case, layout: Layout, reads_losses: bool, time_: int) -> None:
    device = Accelerator()
    began = time.perf_counter()
    report = Reporter(case.folder.events, zero=began)
    with report.phase("measure"):
        for i in range(N_ITERS):
            start = time.perf_counter()
            device.launch(ITER_S)
            dur_s = time.perf_counter() - start
            if reads_losses:
                device.wait()
            report.iter(i, dur_s, 2.0, synced=True)
        device.wait()
    real_s = time.perf_counter() - began
    device.close()
    assert "wrong_clock" in taints(case, layout, real_s)


@planted
@pytest.mark.parametrize("waits", [True, False])
def test_the_harness_proves_that_its_clock_waits(case: Case, layout: Layout, waits: bool, time_: int) -> None:
    device, proof = Accelerator(), SyncProof()
    report = Reporter(case.folder.events)
    for i in range(10):
        start = time.perf_counter()
        device.launch(ITER_S)
        if waits:
            device.wait()
        stopped = time.perf_counter()
        device.wait()
        proof.add(stopped - start, time.perf_counter() - stopped)
        report.iter(i, stopped - start, 2.0, synced=True)
    proof.write(report)
    device.close()
    assert ("unsynced" in taints(case, layout, 10.0)) == (not waits)


@planted
def test_three_seconds_in_no_phase_are_shown(case: Case, layout: Layout, time_: int) -> None:
    real_s = train(case, between_s=3.0 if LONG else 0.0) + (0.0 if LONG else 3.0)
    assert not taints(case, layout, real_s)
    with read.reading(layout.db) as connection:
        text = printing.as_text("devices", reports.run("devices", connection), "table")
    assert re.search(r"[3-9]\.\d s \(\d\d %\).*belong to no phase", text), text


@planted
def test_dropped_iterations_leave_a_mark(case: Case, layout: Layout, time_: int) -> None:
    def sometimes(report: Reporter, i: int, dur_s: float) -> None:
        if i not in (7, 8, 20):
            report.iter(i, dur_s, 2.0, synced=True)

    assert "3 iterations" in taints(case, layout, train(case, sometimes))["iterations_missing"]


@planted
def test_a_negative_time_leaves_a_mark(case: Case, layout: Layout, time_: int) -> None:
    real_s = train(case)
    with case.folder.events.open("a") as stream:
        stream.write('{"type":"iter","t":1,"i":30,"dur_s":-0.02}\n')
    assert "dur_s: expected float >= 0" in taints(case, layout, real_s)["field_dropped"]


@planted
@pytest.mark.parametrize("set_by_s", [3600.0, -30.0])
def test_a_step_of_the_wall_clock_leaves_a_mark(case: Case, layout: Layout, set_by_s: float, time_: int) -> None:
    assert f"{set_by_s:+.1f} s" in taints(case, layout, train(case), set_by_s)["clock_step"]


@pytest.mark.parametrize("logging_s", [0.0, 0.05 * ITER_S], ids=["clean", "logging"])
@pytest.mark.parametrize("time_", range(N_CLEAN // 2))
def test_a_clean_training_has_no_mark(case: Case, layout: Layout, logging_s: float, time_: int) -> None:
    assert not taints(case, layout, train(case, logging_s=logging_s))
