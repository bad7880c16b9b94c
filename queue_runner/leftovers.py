"""What a run left behind: found by the traces that it cannot wash off, and ended before the lane is called clear."""

from __future__ import annotations

from queue_runner import locks
from queue_runner.host import processes
from queue_runner.rundir import RunDir
from queue_runner.store.jobs import Claimed


def end_leftovers(run: Claimed, folder: RunDir, lane: str, grace_s: tuple[float, float]) -> list[processes.Process]:
    """End every process of the run that is still there; returns those that would not die.

    `grace_s` are the seconds after SIGINT and after SIGTERM; 0 leaves a signal out. Blocks for their sum at most, and
    a few seconds of SIGKILL.
    """
    noted = [n for n in folder.noted() if isinstance(n.get("pid"), int) and isinstance(n.get("start"), int | float)]
    traces = processes.Traces(
        tag=run.token,
        sessions=frozenset(n[key] for n in noted for key in ("sid", "pgid") if isinstance(n.get(key), int)),
        noted=frozenset((n["pid"], n["start"]) for n in noted),
        lane=locks.lane_lock_path(lane),
        boot_id=run.boot_id,
    )
    return processes.end_all(traces, *grace_s)
