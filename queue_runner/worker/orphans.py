"""Orphans of a run: found by traces that they cannot remove, and ended before the lane is called clear."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from queue_runner.host import lane_locks, locks, processes
from queue_runner.run_dir import RunDir
from queue_runner.store.jobs import Claimed


def end_orphans(run: Claimed, folder: RunDir, lane: str, grace_s: tuple[float, float]) -> list[processes.Process]:
    """End every remaining process of the run; return those that survived.

    `grace_s` are the seconds after SIGINT and after SIGTERM; 0 leaves a signal out. Blocks for at most their sum, and a
    few seconds of SIGKILL.
    """
    noted = folder.noted()
    traces = processes.Traces(
        tag=run.token,
        sessions=frozenset(n[key] for n in noted for key in ("sid", "pgid") if isinstance(n.get(key), int)),
        noted=frozenset((n["pid"], n["start"]) for n in noted),
        lane=lane_locks.paths(lane)[0],
        boot_id=run.boot_id,
    )
    return processes.end_all(traces, *grace_s)


def lock_is_held(folder: RunDir) -> bool | None:
    """Return whether a warden holds the run's lock; None when the job has put something else in its place."""
    try:
        return locks.is_held(folder.warden_lock)
    except OSError:
        return None


def warden_is_there(started: Mapping[str, Any]) -> bool:
    """Return whether the warden that wrote this fence is alive."""
    pid, start = started.get("warden_pid"), started.get("warden_start")
    return isinstance(pid, int) and isinstance(start, int | float) and processes.same_process(pid, start)
