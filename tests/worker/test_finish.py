"""The end of a run is stored whatever its numbers look like."""

from __future__ import annotations

import pkgutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from queue_runner.config_file import Config
from queue_runner.events import Iter
from queue_runner.host import run_sampler
from queue_runner.host.run_dir import RunDir
from queue_runner.lanes import Lane
from queue_runner.model import DEFAULT_LANE, Ending, Outcome
from queue_runner.paths import Layout
from queue_runner.spec import JobSpec, NewJob, Terms
from queue_runner.store import jobs, lane_claims, read, results
from queue_runner.store.engine import Engine, open_engine, writing
from queue_runner.worker import finish
from queue_runner.worker.gate import Gate
from queue_runner.worker.gate_load import Load
from tests import named_rows
from tests.queue_support import until
from tests.store_support import claim_next


@pytest.fixture
def engine(layout: Layout) -> Iterator[Engine]:
    engine = open_engine(layout.db, keep_open=True)
    yield engine
    engine.dispose()


def test_a_run_that_ended_as_nan_is_stored_without_a_last_loss(engine: Engine, layout: Layout) -> None:
    with writing(engine) as connection:
        jobs.submit(connection, "test", 0, [NewJob(JobSpec(kind="command", name="x", argv=("true",)), 1)], [(0, 1)])
        run = claim_next(connection)
        assert run is not None
        losses = [4.0, 3.0, float("nan")]
        results.save_events(
            connection, run.run_id, [Iter(offset=i, t=0.0, i=i, dur_s=0.1, loss=x) for i, x in enumerate(losses)]
        )
    finish.finish(engine, run, RunDir(layout.run_dir(run.id)), Ending(Outcome.SUCCEEDED, 0), None)
    with read.reading(layout.db) as connection:
        (row,) = named_rows.runs(connection)
    assert (row["loss_first"], row["loss_last"], row["valid"]) == (4.0, None, 0) and "diverged" in row["taints"]


@pytest.mark.parametrize(("device", "tainted"), [("mps", True), (None, True), ("cpu", False)])
def test_a_gpu_that_was_busy_before_the_start_is_a_taint(
    engine: Engine, layout: Layout, monkeypatch: pytest.MonkeyPatch, device: str | None, tainted: bool
) -> None:
    monkeypatch.setattr(run_sampler, "gpu_use_before", lambda busy_share: 0.43)
    with writing(engine) as connection:
        spec = JobSpec(kind="command", name="x", argv=("true",), device=device)
        jobs.submit(connection, "test", 0, [NewJob(spec, 1)], [(0, 1)])
        following = lane_claims.following(connection, 1, Lane(DEFAULT_LANE))
    gate = Gate(engine, Config(), Load())
    until(lambda: gate.blocking_reason(following) is None, "the look")
    with writing(engine) as connection:
        run = claim_next(connection)
    assert run is not None
    gate.note(run)
    finish.finish(engine, run, RunDir(layout.run_dir(run.id)), Ending(Outcome.SUCCEEDED, 0), None)
    with read.reading(layout.db) as connection:
        found = [(t["kind"], "43 %" in t["detail"]) for t in named_rows.detail(connection, "taints", run.run_id)]
    assert found == [("gpu_busy", True)] * tainted


def test_the_write_lock_is_free_while_the_summary_is_computed(
    engine: Engine, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    iterations = 100_000
    with writing(engine) as connection:
        spec = JobSpec(kind="command", name="x", argv=("true",))
        jobs.submit(connection, "test", 0, [NewJob(spec), NewJob(spec)], [(0, 1), (1, 1)])
        run = claim_next(connection)
        assert run is not None
        events = [Iter(offset=i, t=0.0, i=i, dur_s=0.1, loss=1.0) for i in range(iterations)]
        results.save_events(connection, run.run_id, events)
    computing: list[str] = []

    def write_elsewhere(function: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **kwargs: Any) -> Any:
            with closing(sqlite3.connect(layout.db, timeout=0, isolation_level=None)) as other:
                other.execute("UPDATE jobs SET note = ? WHERE id = 2", (function.__name__,))
            computing.append(function.__name__)
            return function(*args, **kwargs)

        return watched

    for module, name in (
        ("ingest.summarize_run", "summarize"),
        ("ingest.summarize_run", "find_taints"),
        ("worker.finish", "find_neighbours"),
        ("worker.finish", "of_software"),
    ):
        target = f"queue_runner.{module}.{name}"
        monkeypatch.setattr(target, write_elsewhere(pkgutil.resolve_name(target)))
    finish.finish(engine, run, RunDir(layout.run_dir(run.id)), Ending(Outcome.SUCCEEDED, 0), None)
    assert sorted(computing) == ["find_neighbours", "find_taints", "of_software", "summarize"]
    with read.reading(layout.db) as connection:
        row = named_rows.runs(connection)[0]
    assert (row["state"], row["n_iters"]) == ("DONE", iterations)


def test_a_fault_of_ours_invalidates_the_numbers_and_holds_nobody(
    engine: Engine, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_: object) -> None:
        raise ZeroDivisionError("of ours")

    monkeypatch.setattr("queue_runner.ingest.summarize_run.summarize", fail)
    with writing(engine) as connection:
        spec = JobSpec(kind="command", name="x", argv=("true",))
        jobs.submit(connection, "test", 0, [NewJob(spec, 1, Terms(retries=1))], [(0, 1)])
        run = claim_next(connection)
    assert run is not None
    folder = RunDir(layout.run_dir(run.id))
    finish.finish(engine, run, folder, Ending(Outcome.FAILED, 1, reason="so it said"), None)
    with read.reading(layout.db) as connection:
        first, second = named_rows.runs(connection)
        (taint,) = named_rows.detail(connection, "taints", run.run_id)
    assert (first["outcome"], first["valid"]) == ("FAILED", 0)
    assert (second["state"], second["attempt"]) == ("QUEUED", 2)
    assert "ZeroDivisionError: of ours" in taint["detail"] and "report it" in taint["detail"]
