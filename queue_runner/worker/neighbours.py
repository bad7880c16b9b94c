"""Which runs were active on other lanes during a run, found once: at its end.

Whatever was beside it has been claimed by then. A neighbour that is still RUNNING in the database may have started
after it, or ended hours before a worker came to see it: its own files tell, the fence and exit.json, so that the order
in which a worker takes note of ends changes nothing. One whose end is unknown counts as active until it is known.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection

from queue_runner.analysis.neighbours import Neighbour
from queue_runner.model import State
from queue_runner.run_dir import RunDir
from queue_runner.store import neighbours
from queue_runner.store.jobs import Claimed


def of_run(connection: Connection, run: Claimed, folder: RunDir, exit_: Mapping[str, Any]) -> list[Neighbour]:
    """Return the neighbours of a run of this machine that has ended as `exit_` says; none without its start."""
    began = exit_.get("started_at")
    if run.spec.on or began is None:
        return []
    found = []
    for row in neighbours.beside(connection, run.run_id, began, exit_.get("ended_at") or time.time()):
        ended_at = row["ended_at"]
        if row["state"] == State.RUNNING:
            there = RunDir(folder.path.parent / row["run"])
            if row["started_at"] is None and there.started() is None:
                continue  # it has not started yet, and this run has ended
            ended_at = (there.exit() or {}).get("ended_at") or math.inf
        elif row["started_at"] is None:
            continue  # it never started
        found.append(Neighbour(row["run"], row["lane"], row["claimed_at"] - began, ended_at - began))
    return found
