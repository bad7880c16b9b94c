"""Work done during a run, about once a second if it writes: ingest its lines and sample the conditions."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from functools import partial

from queue_runner import lanes
from queue_runner.host import run_sampler
from queue_runner.host.background import BackgroundCall
from queue_runner.host.cpu_time import NeighbourTime
from queue_runner.host.run_dir import RunDir
from queue_runner.host.warden_records import Fence, RunEnd
from queue_runner.ingest.ingest import Ingest
from queue_runner.machine_records import SensorSample
from queue_runner.store import results
from queue_runner.store.engine import Connection, Engine, writing
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
        self._samples: list[SensorSample] = []  # not stored yet
        self._after: BackgroundCall[float | None] | None = None
        self._marked = self._mark = ""  # the stored mark of the start, and the next one
        self._prepares = folder.is_preparing()

    def is_due(self) -> bool:
        """Return whether `observe` would find something; any thread may ask."""
        sampler_is_due = time.monotonic() >= self._sample_at or self._sampler.reads_each_second
        return sampler_is_due or self._ingest.has_grown()

    def observe(self, fence: Fence | None) -> None:
        """Ingest new events, and sample if that is due; one transaction stores both. `fence` is the warden's record of
        the start. Raises: MpsqError when the store refuses."""
        chunk = self._ingest.read()
        now = time.monotonic()
        at_border = chunk is not None and chunk.enters_phase and now >= self._sampled_at + FIRST_EVERY_S
        if at_border or now >= self._sample_at:  # energy is split at a border of phases
            self._sample(now, fence)
        if not self._prepares and (reading := self._sampler.gpu_reading(self._folder.of_trainer)) is not None:
            self._samples.append(reading)
        started_at = self._new_start(fence)
        write = partial(self._write, started_at)
        if chunk is not None:
            self._ingest.store(chunk, write)
        elif self._samples or started_at is not None:
            with writing(self._engine) as connection:
                write(connection)
        self._marked, self._samples = self._mark, []

    def _sample(self, now: float, fence: Fence | None) -> None:
        self._sampled_at = now
        if self._prepares:  # the effect of the preparation on the machine is not a condition of the run
            self._prepares = self._folder.is_preparing()
            self._sampler.close()
            self._sampler = self._new_sampler()
            self._began = now
            if self._prepares:
                return
        self._sample_at = now + (self._sample_every_s if now - self._began > FIRST_S else FIRST_EVERY_S)
        if fence is not None and fence.warden_pid is not None:
            self._sampler.queue.add(fence.warden_pid)
        self._samples.append(self._sampler.sample(self._folder.of_trainer()))

    def _new_sampler(self, *, fresh: bool = False) -> run_sampler.Sampler:
        return run_sampler.Sampler(fresh=fresh, beside=NeighbourTime(self._neighbours), gpus=self._gpus)

    def finish(self, fence: Fence | None, exit_: RunEnd | None) -> bool:
        """Sample the end and ingest the rest, after the end of the run. Return False while the look at the GPU, which
        runs beside the worker, has not ended: call it again then."""
        if self._after is None:
            self._sample_the_end(exit_)
            self._after = BackgroundCall(self._sampler.gpu_busy_after)
        if not self._after.has_ended():
            return False
        if self._after.value is not None:
            self._samples.append(SensorSample(at=time.time(), gpu_busy_after=self._after.value))
        self._sampler.close()
        started_at = self._new_start(fence)
        self._ingest.finish(partial(self._write, started_at) if self._samples or started_at is not None else None)
        return True

    def _sample_the_end(self, exit_: RunEnd | None) -> None:
        """Sample once more, if the run has just ended: the use by its ended processes is known from wait4."""
        cpu_s = None
        if exit_ is not None and exit_.ended_at is not None and 0 <= time.time() - exit_.ended_at <= AT_END_S:
            cpu_s = None if exit_.user_s is None or exit_.sys_s is None else exit_.user_s + exit_.sys_s
        sample = self._sampler.at_end(cpu_s)
        if sample.known():
            self._samples.append(sample)

    def _new_start(self, fence: Fence | None) -> float | None:
        """Return when the run started, if that is new: the fence, and once it is prepared the end of the preparation,
        from which on the trainer counts its own time."""
        if fence is None or self._marked == "prepared":
            return None
        prepared_at = self._folder.prepared_at()
        if prepared_at is None and self._marked:
            return None
        self._mark = "prepared" if prepared_at is not None or not self._folder.is_preparing() else "started"
        return prepared_at or fence.at or time.time()

    def _write(self, started_at: float | None, connection: Connection) -> None:
        """Store the samples, and the start of the run if it is new."""
        if started_at is not None:
            results.mark_started(connection, self.run_id, started_at)
        for sample in self._samples:
            results.save_condition(connection, self.run_id, sample.at, sample.known())
