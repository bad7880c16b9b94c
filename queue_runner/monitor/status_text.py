"""The status of a queue as text: the output of `mpsq status`, and the parts shared with its dashboard."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from queue_runner import lanes, tables, times, units
from queue_runner.model import DEFAULT_LANE
from queue_runner.monitor import eta
from queue_runner.monitor.blocks import Block
from queue_runner.monitor.disk_usage import DiskUse
from queue_runner.monitor.progress import RunProgress
from queue_runner.monitor.queue_state import START_A_WORKER, LaneState
from queue_runner.monitor.run_view import RunView
from queue_runner.monitor.status import Status
from queue_runner.text import one_line

SHOWN = 10
"""Number of waiting runs shown unless all are requested."""
_NAME = 16
_REASON = 24
_BLOCKS = 5
"""Number of blocks shown."""
_WRAP, _LEAST = 70, 20


def text(status: Status, *, colour: bool = False) -> str:
    """Return the whole status, at least 80 columns wide; with `colour` outcomes and what needs attention are
    coloured."""
    facts = [*lane(status), *_running(status), ("waiting", waiting_count(status)), *plan(status)]
    warnings = attention(status) if colour else set()
    facts.append(("disk", disk(status.disk)))
    parts = [tables.facts(facts, style=lambda _name, value: "doubt" if value in warnings else "")]
    if status.waiting:
        parts.append(waiting_table(status))
    if (more := status.waiting_count - len(status.waiting)) > 0:
        parts[-1] += f"\n... and {units.count(more)} more: mpsq status --all"
    if status.ended:
        parts.append(ended_table(status, colour=colour))
    return "\n\n".join(parts)


def lane(status: Status, columns: int = _WRAP) -> list[tuple[str, str]]:
    """Return the worker, and what keeps the lane from starting runs, in lines of at most `columns` columns."""
    columns = max(columns, _LEAST)
    facts = [("worker", textwrap.fill(_worker(status), columns))]
    if status.queue.blocked_reason:
        facts.append(("blocked", textwrap.fill(one_line(status.queue.blocked_reason), columns)))
    if status.queue.paused_at:
        why = f" ({one_line(status.queue.paused_reason)})" if status.queue.paused_reason else ""
        facts.append(("paused", textwrap.fill(f"nothing starts until mpsq resume{why}", columns)))
    widest = max((len(lanes.short(lane.name)) for lane in status.queue.lanes), default=0)
    lines = [
        f"{lanes.short(lane.name):<{widest}}  {tables.shorten(_lane_state(lane), columns - widest - 2)}"
        for lane in status.queue.lanes
    ]
    if lines:
        facts.append(("lanes", "\n".join(lines)))
    return facts + _blocks(status, columns)


def _lane_state(lane: LaneState) -> str:
    """Return what a lane does, on one line."""
    parts = []
    if lane.running is not None and lane.running.lane == DEFAULT_LANE:
        parts.append(f"run {lane.running.run} has the machine alone")
    elif lane.running is not None:
        since = lane.running.started_at or lane.running.claimed_at or time.time()
        parts.append(f"{run_and_question(lane.running)}, {units.duration(max(time.time() - since, 0.0))}")
    if lane.paused_at:
        parts.append(
            "paused: mpsq resume --lane" + (f" ({one_line(lane.paused_reason)})" if lane.paused_reason else "")
        )
    elif lane.blocked_reason:
        parts.append(one_line(lane.blocked_reason))
    return "; ".join(parts) or "free"


def _blocks(status: Status, columns: int) -> list[tuple[str, str]]:
    lines = [textwrap.fill(_block(block, status.queue.worker), columns) for block in status.blocks[:_BLOCKS]]
    if (more := len(status.blocks) - _BLOCKS) > 0:
        lines.append(f"... and {units.count(more)} more")
    return [("" if n else "blocks", line) for n, line in enumerate(lines)]


def _block(block: Block, worker: bool) -> str:
    running = f", run {block.running} is running" if block.running else ""
    state = one_line(block.words) if worker else "no worker follows it"
    return f"{block.lane}: {units.count(block.done)} of {units.counted(block.runs, 'run')} done{running}; {state}"


def attention(status: Status) -> set[str]:
    """Return the values among the facts that call for the user: a lane that starts nothing, trouble of the running run,
    and schedules that failed."""
    lines = [value for name, value in lane(status) if name != "worker" or not status.queue.worker]
    lines += trouble(status) if status.running is not None else []
    return {*lines, *_failed_schedules(status)}


def _worker(status: Status) -> str:
    if status.queue.worker:
        return f"process {status.queue.worker_pid}" if status.queue.worker_pid else "running"
    if status.running is not None and status.supervised:
        return f"none; the run continues under its warden. {START_A_WORKER}"
    return f"none. {START_A_WORKER}"


def _running(status: Status) -> list[tuple[str, str]]:
    if status.running is None:
        return [("running", "nothing")]
    facts = [("running", textwrap.fill(run_and_question(status.running), _WRAP))]
    if status.progress is not None:
        facts.append(("", "\n".join(filter(None, [numbers(status.progress), clock(status.progress)]))))
    facts += [("", line) for line in trouble(status)]
    return facts


def run_and_question(run: RunView) -> str:
    """Return the run and its question, on one line."""
    return "  ".join(filter(None, map(one_line, (run.run, run.name, str(run.question)))))


def numbers(at: RunProgress, *, counted: bool = True) -> str:
    """Return phase, iterations (if `counted`), time per iteration and loss, as far as they are known."""
    where = [f"phase {at.phase}"] if at.phase else []
    if at.iters and counted:
        planned = f" of {units.count(at.planned_iters)}" if at.planned_iters else ""
        where.append(f"iteration {units.count(at.iters)}{planned}")
    if at.median_s is not None:
        where.append(f"{units.ms(at.median_s)} ms/iter")
    if at.loss is not None:
        where.append(f"loss {units.loss(at.loss)}")
    return ", ".join(where)


def clock(at: RunProgress) -> str:
    """Return how long the run has taken, and about how long it will take."""
    left = f", about {units.duration(at.left_s)} of training left" if at.left_s else ""
    return f"{units.duration(at.elapsed_s)} so far{left}"


def trouble(status: Status) -> list[str]:
    """Return further facts about the running run that a user should know."""
    assert status.running is not None
    lines = []
    if status.running.cancel_requested_at:
        lines.append("cancellation was requested")
    if status.running.paused_at:
        lines.append("suspended: mpsq resume continues it; it keeps the lane and its memory")
    elif status.stopped and status.supervised:
        lines.append("stopped by a signal, not by mpsq pause: mpsq why says how it goes on")
    if status.waits_for_exec and status.supervised:
        lines.append("its program has not started: mpsq why says what it waits for")
    if not status.queue.worker and not status.supervised:
        lines.append("nothing supervises it: the next worker finds out how it ended")
    return lines


def plan(status: Status, columns: int = _WRAP) -> list[tuple[str, str]]:
    """Return when the queue will be done, the schedule that submits next, and each that failed to."""
    columns = max(columns, _LEAST)
    now, facts = time.time(), []
    if estimate := status.eta.sentence(now, going=status.goes_on):
        part = f"the first {status.expected}: " if status.expected < status.waiting_count else ""
        facts.append(("done in", textwrap.fill(part + estimate, columns)))
    if status.schedules and (at := status.schedules[0].next_at) is not None:
        missed = "when a worker runs" if not status.queue.worker else "when nothing runs" if status.running else "now"
        then = times.clock(at, now) if at > now else missed
        facts.append(("schedule", one_line(f"{status.schedules[0].name} submits next, {then}")))
    return [*facts, *(("schedule", line) for line in _failed_schedules(status, columns))]


def _failed_schedules(status: Status, columns: int = _WRAP) -> list[str]:
    """Return a sentence on each schedule whose last submission failed."""
    failed = (schedule for schedule in status.schedules if schedule.last_error)
    lines = (one_line(f"{schedule.name} submitted nothing at {schedule.last_error}") for schedule in failed)
    return [textwrap.fill(line, columns) for line in lines]


def waiting_count(status: Status) -> str:
    """Return how many runs wait, in words."""
    return units.counted(status.waiting_count, "run")


def disk(use: DiskUse) -> str:
    """Return the disk usage of the queue and the free space."""
    parts = (("runs", use.runs_bytes), ("snapshots", use.snapshots_bytes), ("cache", use.cache_bytes))
    taken = ", ".join(f"{name} {units.size(size)}" for name, size in parts)
    return f"{'' if use.exact else 'at least '}{taken}; {units.size(use.free_bytes)} free"


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of one of the two tables."""

    run: str
    name: str
    asks: str
    place: int = 0
    waits: str = ""
    starts: str = units.MISSING
    ending: str = ""
    style: str = ""
    real_s: float | None = None
    mark: str = ""

    @classmethod
    def of(cls, run: RunView, **cells: Any) -> _Row:
        name = tables.elide(one_line(run.name), _NAME)
        return cls(run.run, name, f"{run.preflight_prefix}{run.question}", **cells)


def waiting_table(status: Status) -> str:
    """Return the waiting runs in queue order, each with its reason."""
    now = time.time()
    rows = [
        _Row.of(
            run,
            place=place,
            waits=tables.shorten(one_line(status.reasons[run.run_id].short), _REASON),
            starts=eta.clock(status.eta.turns.get(run.run), now) if status.goes_on else units.MISSING,
        )
        for place, run in enumerate(status.waiting, start=1)
    ]
    titles = {"place": "#", "run": "run", "name": "name", "asks": "settings", "waits": "waits for"}
    if any(row.starts != units.MISSING for row in rows):
        titles["starts"] = "starts"
    return tables.table(rows, [_column(key, title) for key, title in titles.items()])


def ended_table(status: Status, *, colour: bool = False) -> str:
    """Return the latest ended runs, the newest first; the times of those that are not valid are marked."""
    titles = {"run": "run", "name": "name", "asks": "settings", "ending": "outcome", "real_s": "took"}
    rows = [_Row.of(run, ending=run.ending, style=run.style, real_s=run.real_s, mark=run.mark) for run in status.ended]
    if any(row.mark for row in rows):
        titles["mark"] = ""
    return tables.table(rows, [_column(key, title) for key, title in titles.items()], colour=colour)


def _column(key: str, title: str) -> tables.Column:
    words = units.duration if key == "real_s" else None
    style: Callable[[_Row], str] | None = {"ending": lambda row: row.style, "mark": lambda _row: "doubt"}.get(key)
    return tables.Column(key, title, words=words, right=key == "place", flexible=key == "asks", style=style)
