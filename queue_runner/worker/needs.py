"""What each run that may start needs of the lanes: which kind, how many, and the one it is bound to."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator
from functools import partial

from queue_runner import lanes
from queue_runner.lanes import Lane
from queue_runner.model import DEFAULT_LANE
from queue_runner.store import jobs, lane_claims
from queue_runner.store.engine import Connection
from queue_runner.worker import turns
from queue_runner.worker.turns import Asked

_REMEMBERED = 100_000


class Needs:
    """The needs of the runs of one queue on these lanes of its machine. A job's own are looked up once."""

    def __init__(self, here: Iterable[Lane]) -> None:
        self._lanes = list(here)
        self._jobs: dict[int, tuple[str, int]] = {}  # of a job: the kind of its lanes and their number

    def asked(self, connection: Connection) -> Iterator[Asked]:
        """Return what each run that may start needs, in the order in which they are claimed."""
        alone: dict[int, bool] = {}
        return map(partial(self._asked, connection, alone), lane_claims.waiting(connection, time.time()))

    def stuck(self, connection: Connection, paused: Collection[str]) -> set[int]:
        """Return the jobs of which a run might start if these lanes were not paused."""
        if not paused:
            return set()
        found = turns.stuck(self.asked(connection), [lane.name for lane in self._lanes], paused)
        return {run.job for run in lane_claims.waiting(connection, time.time()) if run.run_id in found}

    def _asked(self, connection: Connection, alone: dict[int, bool], run: lane_claims.Waiting) -> Asked:
        """Return what a run needs. `alone` keeps, for one look, which submissions began alone."""
        if run.job not in self._jobs:
            if len(self._jobs) > _REMEMBERED:
                self._jobs.clear()
            spec = jobs.spec_of(connection, run.job)
            self._jobs[run.job] = lanes.needs(spec), spec.gpus
        kind, gpus = self._jobs[run.job]
        lane = "" if run.lane == DEFAULT_LANE else run.lane
        if kind and not lane:
            if run.group not in alone:
                alone[run.group] = self._began_alone(connection, run.group)
            kind = "" if alone[run.group] else kind
        return Asked(run.run_id, run.group, kind, gpus, lane)

    def _began_alone(self, connection: Connection, group: int) -> bool:
        """Return whether runs that now would have a lane have started without one: the others go on as they did."""
        kinds = {lane.kind for lane in self._lanes}
        return any(lanes.needs(spec) in kinds for spec in lane_claims.began_alone(connection, group))
