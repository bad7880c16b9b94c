"""A run's samples as a queue stores them: at its start, at borders of phases, and at its end."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

from queue_runner.errors import MpsqError
from queue_runner.host import run_sampler
from queue_runner.host.run_dir import RunDir
from queue_runner.machine_records import SensorSample
from queue_runner.paths import Layout
from queue_runner.spec import JobSpec, NewJob
from queue_runner.store import jobs, read, results
from queue_runner.store.engine import Engine, open_engine, writing
from queue_runner.store.jobs import Claimed
from queue_runner.worker import observer
from tests import named_rows
from tests.patience import UNTIL_S, patience
from tests.queue_support import Queue, until
from tests.store_support import claim_next

pytestmark = pytest.mark.process


@pytest.fixture
def engine(layout: Layout) -> Iterator[Engine]:
    engine = open_engine(layout.db, keep_open=True)
    yield engine
    engine.dispose()


def samples(queue: Queue) -> list[dict[str, Any]]:
    with read.reading(queue.layout.db) as connection:
        return [json.loads(row["data_json"]) for row in named_rows.detail(connection, "conditions", 1)]


def taints(queue: Queue) -> list[str]:
    with read.reading(queue.layout.db) as connection:
        return [row["kind"] for row in named_rows.detail(connection, "taints", 1)]


def test_a_run_shorter_than_the_first_interval_is_watched(queue: Queue) -> None:
    """Of its end wait4 knows what its processes used: before, it was `unwatched`, whatever the others did."""
    queue.submit("sleep 0.8")
    queue.worker()
    queue.done()
    assert {"others_cpu_share", "job_cpu_share"} <= samples(queue)[-1].keys()
    assert "unwatched" not in taints(queue)


def begun(layout: Layout, engine: Engine) -> tuple[Claimed, RunDir]:
    """Return a claimed run and its folder."""
    with writing(engine) as connection:
        jobs.submit(connection, "test", 0, [NewJob(JobSpec(kind="command", name="x", argv=("true",)), 1)], [(0, 1)])
        run = claim_next(connection)
    assert run is not None
    folder = RunDir(layout.run_dir(run.id))
    folder.path.mkdir(parents=True)
    return run, folder


def test_a_border_of_phases_is_sampled_at_once(layout: Layout, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Energy is split there, and the interval of the samples may be minutes."""
    monkeypatch.setattr(observer, "FIRST_S", -1.0)
    monkeypatch.setattr(observer, "FIRST_EVERY_S", 0.0)
    run, folder = begun(layout, engine)
    watching = observer.Observer(engine, run, folder, sample_every_s=3600)

    def stored() -> int:
        watching.observe(None)
        with read.reading(layout.db) as connection:
            return len(named_rows.detail(connection, "conditions", run.run_id))

    assert [stored(), stored()] == [1, 1]
    for n, (name, edge) in enumerate((("setup", "begin"), ("measure", "begin"), ("measure", "end"))):
        with folder.events.open("a") as events:
            events.write(json.dumps({"type": "phase", "t": float(n), "name": name, "edge": edge}) + "\n")
        assert [stored(), stored()] == [n + 2, n + 2]
    with folder.events.open("a") as events:
        events.write(json.dumps({"type": "iter", "t": 4.0, "i": 0, "dur_s": 0.1}) + "\n")
    assert stored() == 4, "an iteration is no border"
    assert watching.finish(None, None)


def test_a_sample_that_the_store_refuses_is_stored_later(
    layout: Layout, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, folder = begun(layout, engine)
    watching = observer.Observer(engine, run, folder, sample_every_s=3600)
    folder.events.write_text(json.dumps({"type": "iter", "t": 4.0, "i": 0, "dur_s": 0.1}) + "\n")
    with monkeypatch.context() as patched:
        patched.setattr(results, "save_events", mock.Mock(side_effect=MpsqError("the disk is full", "free some")))
        with pytest.raises(MpsqError):
            watching.observe(None)
    monkeypatch.setattr(observer, "FIRST_EVERY_S", 3600.0)
    watching.observe(None)
    with read.reading(layout.db) as connection:
        assert named_rows.detail(connection, "conditions", run.run_id)


def test_a_number_that_no_warden_writes_stops_no_observation(layout: Layout, engine: Engine) -> None:
    run, folder = begun(layout, engine)
    (folder.path / "warden").mkdir()
    (folder.path / "warden" / "prepared").write_text(f'{{"at": 1, "noted": {10**30}}}')
    observer.Observer(engine, run, folder, sample_every_s=3600).observe(None)
    with read.reading(layout.db) as connection:
        assert named_rows.detail(connection, "conditions", run.run_id)


def test_a_macs_gpu_is_stored_with_the_time_of_its_query(
    layout: Layout, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two samples, and not while the run is prepared."""
    queries = iter(
        [
            SensorSample(at=100.0, gpu_busy_share=1.0, over_s=1.0),
            None,
            SensorSample(at=101.0, gpu_busy_share=0.5),
        ]
    )
    monkeypatch.setattr(run_sampler.Sampler, "gpu_reading", lambda self, pids: next(queries))
    monkeypatch.setattr(observer, "FIRST_S", -1.0)
    run, folder = begun(layout, engine)
    watching = observer.Observer(engine, run, folder, sample_every_s=3600)
    for _ in range(3):
        watching.observe(None)
    with read.reading(layout.db) as connection:
        stored = {row["at"]: row["data_json"] for row in named_rows.detail(connection, "conditions", run.run_id)}
    assert json.loads(stored[100.0]) == {"gpu_busy_share": 1.0, "over_s": 1.0}
    assert json.loads(stored[101.0]) == {"gpu_busy_share": 0.5} and len(stored) == 3


def test_a_look_at_the_gpu_after_the_end_holds_nobody(
    layout: Layout, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker slept up to three seconds at the end of each run in a container, and with it the other lanes."""
    go_on = threading.Event()
    monkeypatch.setattr(run_sampler.Sampler, "gpu_busy_after", lambda _: go_on.wait(patience(UNTIL_S)) and 0.9)
    run, folder = begun(layout, engine)
    watching = observer.Observer(engine, run, folder, sample_every_s=3600)
    assert [watching.finish(None, None), watching.finish(None, None)] == [False, False]
    go_on.set()
    until(lambda: watching.finish(None, None), "the look")
    with read.reading(layout.db) as connection:
        found = [json.loads(row["data_json"]) for row in named_rows.detail(connection, "conditions", run.run_id)]
    assert [one["gpu_busy_after"] for one in found if "gpu_busy_after" in one] == [0.9]
