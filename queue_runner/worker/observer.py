"""Work done about once a second during a run: ingest its lines and sample the conditions."""

from __future__ import annotations

import time

from sqlalchemy import Engine

from queue_runner.analysis.validity import GPU_BUSY_SHARE
from queue_runner.host import conditions
from queue_runner.ingest.ingest import Ingest
from queue_runner.run_dir import RunDir
from queue_runner.store import results
from queue_runner.store.engine import writing
from queue_runner.store.jobs import Claimed

FIRST_S, FIRST_EVERY_S = 10.0, 1.0
"""Initial period of a run and the sampling interval in it: the rates in a sample are over the time since the last one,
and a short run needs more than one."""


def note_gpu_use(engine: Engine, run: Claimed) -> None:
    """Store how busy the GPU is before a run that may use it starts. While it runs, no tool tells its use from that of
    others."""
    if run.spec.device == "cpu":
        return
    if (share := conditions.gpu_use_before(GPU_BUSY_SHARE)) is not None:
        with writing(engine) as connection:
            results.save_condition(connection, run.run_id, time.time(), {"gpu_busy_before": share})


class Observer:
    """An observer of one run; it may be recreated at any time, as by a worker that adopts the run."""

    def __init__(self, engine: Engine, run: Claimed, folder: RunDir, sample_every_s: float) -> None:
        self.run_id = run.run_id
        self._engine = engine
        self._folder = folder
        self._ingest = Ingest(engine, run, folder)
        self._sampler = conditions.Sampler()
        self._sample_every_s = sample_every_s
        self._began = time.monotonic()
        self._sample_at = 0.0
        self._marked = False

    def observe(self) -> None:
        """Ingest what is new. Raises: MpsqError when the store refuses."""
        self._mark_started()
        self._ingest.step()
        if time.monotonic() >= self._sample_at:
            self._sample()

    def _sample(self) -> None:
        now = time.monotonic()
        self._sample_at = now + (self._sample_every_s if now - self._began > FIRST_S else FIRST_EVERY_S)
        noted = [(n["pid"], float(n["start"])) for n in self._folder.noted()]
        sample = self._sampler.sample(noted)
        with writing(self._engine) as connection:
            results.save_condition(connection, self.run_id, time.time(), sample)

    def finish(self) -> None:
        """Ingest the rest, after the end of the run."""
        self._sampler.close()  # no last sample: use by an ended process would count as use by others
        self._mark_started()
        self._ingest.finish()

    def _mark_started(self) -> None:
        if self._marked:
            return
        started = self._folder.started()
        if started is not None:
            with writing(self._engine) as connection:
                results.mark_started(connection, self.run_id, started.get("at") or time.time())
            self._marked = True
