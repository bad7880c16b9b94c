"""What a step costs: one read, and at most one write, whatever the worker waits for."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from queue_runner import config_file
from queue_runner.cli.main import main
from queue_runner.host import processes, wakeup
from queue_runner.host.run_dir import RunDir
from queue_runner.model import DEFAULT_LANE, RunId
from queue_runner.paths import Layout
from queue_runner.spec import JobSpec, NewJob
from queue_runner.store import jobs, ready
from queue_runner.store.engine import Engine, looking, open_engine, writing
from queue_runner.worker import gate, gate_load
from queue_runner.worker.now import Clocks
from queue_runner.worker.steps import Steps
from queue_runner.worker.supervisor import READY_S
from tests.process_support import a_fifo
from tests.queue_support import until
from tests.worker_transactions import EXIT, READ, WRITE, counting

pytestmark = pytest.mark.process


@pytest.fixture
def engine(layout: Layout) -> Iterator[Engine]:
    engine = open_engine(layout.db, keep_open=True)
    yield engine
    engine.dispose()


@pytest.fixture(params=["serial", "cpu:0"])
def steps(layout: Layout, engine: Engine, request: pytest.FixtureRequest) -> Iterator[Steps]:
    layout.config.write_text(f'lanes = "{request.param}"\nmin_free_bytes = 0\nbackup_every_s = 0\n')
    steps = Steps(layout, config_file.load(layout.config), engine, lambda _: None)
    yield steps
    steps.stop()


def cost(step: Callable[[], object]) -> tuple[int, int, int]:
    """The read and write transactions of a step, and how often it read an exit.json."""
    with counting() as counts:
        step()
    totals = {kind: sum(n for (_, counted), n in counts.items() if counted == kind) for kind in (READ, WRITE, EXIT)}
    return totals[READ], totals[WRITE], totals[EXIT]


def submit(engine: Engine, *argv: str, gate: bool = False) -> None:
    spec = JobSpec(kind="command", name="x", argv=argv, device="cpu", cwd="/", env=dict(os.environ), gate=gate)
    with writing(engine) as connection:
        jobs.submit(connection, "test", 0, [NewJob(spec)], [(0, 1)])


def test_an_idle_step_reads_once_and_writes_nothing(steps: Steps) -> None:
    steps.step()
    assert [cost(steps.step) for _ in range(3)] == [(1, 0, 0)] * 3


def test_a_watching_step_reads_once_and_writes_at_most_once(steps: Steps, engine: Engine, layout: Layout) -> None:
    submit(engine, "/bin/sh", "-c", "while :; do sleep 0.05; done")
    folder = RunDir(layout.run_dir(RunId(1, 1)))
    until(lambda: steps.step() and folder.started() is not None, "the start")
    steps.step()
    for _ in range(4):
        reads, writes, exits = cost(steps.step)
        assert (reads, exits) == (1, 1) and writes <= 1
        time.sleep(0.3)  # so that some of the steps sample, and some do not
    folder.request_cancel("test")
    until(lambda: not steps.step(), "the end")
    with looking(engine) as connection:
        assert connection.value("SELECT outcome FROM runs") == "CANCELLED"


def test_a_step_looks_at_all_waiting_runs_only_after_a_change(
    steps: Steps, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[float] = []
    looked = ready.unsatisfiable
    monkeypatch.setattr(ready, "unsatisfiable", lambda connection, at: looks.append(at) or looked(connection, at))
    submit(engine, "/bin/sleep", "60")
    submit(engine, "true")
    until(steps.step, "the start")
    steps.step()
    looks.clear()
    for _ in range(3):
        steps.step()
    assert not looks
    submit(engine, "true")
    steps.step()
    assert looks
    RunDir(steps._layout.run_dir(RunId(1, 1))).request_cancel("test")
    until(lambda: not steps.step(), "the end")


def test_a_worker_does_not_look_for_processes_that_its_own_warden_has_found_gone(
    steps: Steps, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    swept: list[object] = []
    monkeypatch.setattr(processes, "end_all", lambda *arguments: swept.append(arguments) or [])
    submit(engine, "true")
    until(lambda: not steps.step(), "the end")
    with looking(engine) as connection:
        assert connection.value("SELECT outcome FROM runs") == "SUCCEEDED"
    assert not swept


def test_a_worker_gets_ready_for_a_submission_and_lets_go_when_none_follows(layout: Layout, engine: Engine) -> None:
    at = [0.0]
    steps = Steps(layout, config_file.load(layout.config), engine, lambda _: None, Clocks(steady=lambda: at[0]))
    reader = steps._supervisor(DEFAULT_LANE)._reader
    steps.step()
    steps.get_ready()
    assert reader._process is not None
    steps.step()
    assert reader._process is not None
    at[0] = READY_S + 1
    steps.step()
    assert reader._process is None
    steps.stop()


def test_a_full_disk_makes_no_step_due_while_a_run_waits_at_the_gate(
    layout: Layout, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gate's last time was past for as long as the disk was full: one step followed the other."""
    layout.config.write_text("min_free_bytes = 1\nbackup_every_s = 0\n")
    monkeypatch.setattr(gate, "disturbances", lambda *_, **__: [gate.Disturbance("load", "test {}", ("is", "was"))])
    monkeypatch.setattr(gate_load.Load, "read", lambda *_, **__: {})
    monkeypatch.setattr(gate, "LOOK_S", 0.01)
    steps = Steps(layout, config_file.load(layout.config), engine, lambda _: None)
    submit(engine, "true", gate=True)
    steps.step()
    due = steps.next_change_at
    assert due is not None
    until(lambda: time.time() > due, "the next look")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    steps.step()
    assert steps.next_change_at is None
    steps.stop()


def test_a_submission_rings_when_it_begins_and_when_it_is_stored(layout: Layout) -> None:
    with a_fifo(layout.fifo) as bell:
        assert main(["submit", "--", "true"]) == 0
        assert os.read(bell, 10) == wakeup.SOON + wakeup.NOW
        assert main(["submit", "--dry-run", "--", "true"]) == 0
        with pytest.raises(BlockingIOError):
            os.read(bell, 10)


def test_the_whole_life_of_a_job_takes_few_transactions(steps: Steps, engine: Engine) -> None:
    submit(engine, "/usr/bin/env", "true")
    steps.step()  # clears what an earlier worker may have left
    reads = writes = n_steps = 0

    def step() -> bool:
        nonlocal reads, writes, n_steps
        counted = cost(lambda: active.append(steps.step()))
        reads, writes, n_steps = reads + counted[0], writes + counted[1], n_steps + 1
        return not active[-1]

    active: list[bool] = []
    until(step, "the end")
    assert reads <= n_steps + 6 and writes <= n_steps + 4, (n_steps, reads, writes)
