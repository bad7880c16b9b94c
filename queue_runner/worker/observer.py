"""Work done about once a second during a run: ingest its lines and sample the conditions."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from queue_runner import lanes
from queue_runner.host import conditions
from queue_runner.host.background import BackgroundCall
from queue_runner.host.neighbours import NeighbourTime
from queue_runner.ingest.ingest import Ingest
from queue_runner.run_dir import RunDir
from queue_runner.store import results
from queue_runner.store.engine import Engine, writing
from queue_runner.store.jobs import Claimed

FIRST_S, FIRST_EVERY_S = 10.0, 1.0
"""Initial period of a run and the sampling interval in it: the rates in a sample are over the time since the last one,
and a short run needs more than one."""
AT_END_S = 1.0
"""Longest time from a run's end to its last sample: what others did after the end is not the run's."""


class Observer:
    """An observer of one run; it may be recreated at any time, as by a worker that adopts the run. `fresh`: the run
    starts now. `neighbours` returns the wardens of runs on other lanes."""

    def __init__(
        self,
        engine: Engine,
        run: Claimed,
        folder: RunDir,
        sample_every_s: float,
        neighbours: Callable[[], Collection[int]] = tuple,
        *,
        fresh: bool = False,
    ) -> None:
        self.run_id = run.run_id
        self._engine = engine
        self._folder = folder
        self._ingest = Ingest(engine, run, folder)
        self._neighbours = neighbours
        self._gpus = lanes.parts(run.spec.lane) if lanes.kind(run.spec.lane) == "cuda" else ()
        self._sampler = self._new_sampler(fresh=fresh)
        self._sample_every_s = sample_every_s
        self._began = time.monotonic()
        self._sample_at = self._sampled_at = 0.0
        self._after: BackgroundCall[float | None] | None = None
        self._marked = ""
        self._prepares = folder.is_preparing()

    def observe(self) -> None:
        """Ingest what is new. Raises: MpsqError when the store refuses."""
        self._mark_started()
        marks = self._ingest.phase_marks
        self._ingest.step()
        entered = self._ingest.phase_marks > marks and time.monotonic() >= self._sampled_at + FIRST_EVERY_S
        if entered or time.monotonic() >= self._sample_at:  # a border of phases: energy is split there
            self._sample()

    def _sample(self) -> None:
        now = self._sampled_at = time.monotonic()
        if self._prepares:  # what the preparation does to the machine is no condition of the run
            self._prepares = self._folder.is_preparing()
            self._sampler.close()
            self._sampler = self._new_sampler()
            self._began = now
            if self._prepares:
                return
        self._sample_at = now + (self._sample_every_s if now - self._began > FIRST_S else FIRST_EVERY_S)
        if isinstance(warden := (self._folder.started() or {}).get("warden_pid"), int):
            self._sampler.queue.add(warden)
        self._save(self._sampler.sample(self._folder.of_trainer()))

    def _new_sampler(self, *, fresh: bool = False) -> conditions.Sampler:
        return conditions.Sampler(fresh=fresh, beside=NeighbourTime(self._neighbours), gpus=self._gpus)

    def _save(self, sample: Mapping[str, Any]) -> None:
        with writing(self._engine) as connection:
            results.save_condition(connection, self.run_id, time.time(), sample)

    def _sample_the_end(self) -> None:
        """Sample once more, if the run has just ended: the use by its ended processes is known from wait4."""
        exit_ = self._folder.exit() or {}
        known = [exit_.get(name) for name in ("ended_at", "user_s", "sys_s")]
        told = [float(value) for value in known if isinstance(value, int | float)]
        just_ended = len(told) == len(known) and 0 <= time.time() - told[0] <= AT_END_S
        if sample := self._sampler.at_end(told[1] + told[2] if just_ended else None):
            self._save(sample)

    def finish(self) -> bool:
        """Sample the end and ingest the rest, after the end of the run. Return False while a look at the GPU, beside
        the worker, still has to end: call it again then."""
        if self._after is None:
            self._sample_the_end()
            self._after = BackgroundCall(self._sampler.gpu_busy_after)
        if not self._after.has_ended():
            return False
        if self._after.value is not None:
            self._save({"gpu_busy_after": self._after.value})
        self._sampler.close()
        self._mark_started()
        self._ingest.finish()
        return True

    def _mark_started(self) -> None:
        """Store when the run started: the fence, and once it is prepared the end of the preparation, from which on the
        trainer counts its own time."""
        started = None if self._marked == "prepared" else self._folder.started()
        if started is None:
            return
        prepared_at = self._folder.prepared_at()
        if prepared_at is None and self._marked:
            return
        with writing(self._engine) as connection:
            results.mark_started(connection, self.run_id, prepared_at or started.get("at") or time.time())
        self._marked = "prepared" if prepared_at is not None or not self._folder.is_preparing() else "started"
