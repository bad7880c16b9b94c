"""What a run left behind: found by the traces that it cannot wash off, and ended before the lane is called clear."""

from __future__ import annotations

from pathlib import Path

from queue_runner import locks
from queue_runner.host import processes
from queue_runner.rundir import RunDir


def end_leftovers(token: str, folder: RunDir, lane: Path, grace_s: tuple[float, float]) -> list[processes.Process]:
    """End every process of the run that is still there; returns those that would not die after two looks.

    `grace_s` are the seconds after SIGINT and after SIGTERM. Holders of the lane count only while the lane's own note
    names this run: once another queue has the lane, its processes are not ours to end.
    """
    holder = locks.read_holder(lane) or {}
    noted = folder.noted()
    traces = processes.Traces(
        tag=token,
        sessions=frozenset(n["sid"] for n in noted if isinstance(n.get("sid"), int)),
        noted=frozenset((n["pid"], n["start"]) for n in noted if "pid" in n and "start" in n),
        lane=lane if holder.get("token") == token else None,
    )
    return processes.end_all(traces, *grace_s)
