"""The status of a queue as text: the output of `mpsq status`, and the parts shared with its dashboard."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable
from typing import Any

from queue_runner import lanes, tables, times, units
from queue_runner.model import DEFAULT_LANE, Row
from queue_runner.monitor import eta, listing
from queue_runner.monitor.blocks import Block
from queue_runner.monitor.disk_usage import DiskUse
from queue_runner.monitor.progress import RunProgress
from queue_runner.monitor.queue_state import START_A_WORKER, LaneState
from queue_runner.monitor.status import Status
from queue_runner.text import one_line

SHOWN = 10
"""Number of waiting runs shown unless all are requested."""
_NAME = 16
_REASON = 24
_BLOCKS = 5
"""Number of blocks shown."""
_WRAP, _LEAST = 70, 20


def text(found: Status, *, colour: bool = False) -> str:
    """Return the whole status, at least 80 columns wide; with `colour` outcomes and what needs attention are
    coloured."""
    facts = [*lane(found), *_running(found), ("waiting", waiting_count(found)), *plan(found), *hooks(found)]
    warnings = attention(found) if colour else set()
    facts.append(("disk", disk(found.disk)))
    parts = [tables.facts(facts, style=lambda _name, value: "doubt" if value in warnings else "")]
    if found.waiting:
        parts.append(waiting_table(found))
    if (more := found.waiting_count - len(found.waiting)) > 0:
        parts[-1] += f"\n... and {units.count(more)} more: mpsq status --all"
    if found.ended:
        parts.append(ended_table(found, colour=colour))
    return "\n\n".join(parts)


def lane(found: Status, columns: int = _WRAP) -> list[tuple[str, str]]:
    """Return the worker, and what keeps the lane from starting runs, in lines of at most `columns` columns."""
    columns = max(columns, _LEAST)
    facts = [("worker", textwrap.fill(_worker(found), columns))]
    if found.queue.blocked_reason:
        facts.append(("blocked", textwrap.fill(one_line(found.queue.blocked_reason), columns)))
    if found.queue.paused_at:
        why = f" ({one_line(found.queue.paused_reason)})" if found.queue.paused_reason else ""
        facts.append(("paused", textwrap.fill(f"nothing starts until mpsq resume{why}", columns)))
    wide = max((len(lanes.short(one.name)) for one in found.queue.lanes), default=0)
    lines = [
        f"{lanes.short(one.name):<{wide}}  {tables.shorten(_on(one), columns - wide - 2)}" for one in found.queue.lanes
    ]
    if lines:
        facts.append(("lanes", "\n".join(lines)))
    return facts + _blocks(found, columns)


def _on(one: LaneState) -> str:
    """Return what a lane does, on one line."""
    told = []
    if one.running is not None and one.running["lane"] == DEFAULT_LANE:
        told.append(f"run {one.running['run']} has the machine alone")
    elif one.running is not None:
        since = one.running["started_at"] or one.running["claimed_at"]
        told.append(f"{asked(one.running)}, {units.duration(max(time.time() - since, 0.0))}")
    if one.paused_at:
        told.append("paused: mpsq resume --lane" + (f" ({one_line(one.paused_reason)})" if one.paused_reason else ""))
    elif one.blocked_reason:
        told.append(one_line(one.blocked_reason))
    return "; ".join(told) or "free"


def _blocks(found: Status, columns: int) -> list[tuple[str, str]]:
    lines = [textwrap.fill(_block(one, found.queue.worker), columns) for one in found.blocks[:_BLOCKS]]
    if (more := len(found.blocks) - _BLOCKS) > 0:
        lines.append(f"... and {units.count(more)} more")
    return [("" if n else "blocks", line) for n, line in enumerate(lines)]


def _block(one: Block, worker: bool) -> str:
    at = f", run {one.running} is running" if one.running else ""
    said = one_line(one.words) if worker else "no worker follows it"
    return f"{one.lane}: {units.count(one.done)} of {units.counted(one.runs, 'run')} done{at}; {said}"


def attention(found: Status) -> set[str]:
    """Return the values among the facts that call for the user: a lane that starts nothing, trouble of the running run,
    and schedules and hooks that failed."""
    lines = [value for name, value in lane(found) if name != "worker" or not found.queue.worker]
    lines += trouble(found) if found.running is not None else []
    return {*lines, *_failed_schedules(found), *_troubled_hooks(found)}


def _worker(found: Status) -> str:
    if found.queue.worker:
        return f"process {found.queue.worker_pid}" if found.queue.worker_pid else "running"
    if found.running is not None and found.supervised:
        return f"none; the run continues under its warden. {START_A_WORKER}"
    return f"none. {START_A_WORKER}"


def _running(found: Status) -> list[tuple[str, str]]:
    if found.running is None:
        return [("running", "nothing")]
    facts = [("running", textwrap.fill(asked(found.running), _WRAP))]
    if found.progress is not None:
        facts.append(("", "\n".join(filter(None, [numbers(found.progress), clock(found.progress)]))))
    facts += [("", line) for line in trouble(found)]
    return facts


def asked(row: Row) -> str:
    """Return the run and its question, on one line."""
    item = listing.run_object(row)
    return "  ".join(filter(None, map(one_line, (item["run"], item["name"], listing.question(item)))))


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


def trouble(found: Status) -> list[str]:
    """Return further facts about the running run that a user should know."""
    assert found.running is not None
    lines = []
    if found.running["cancel_requested_at"]:
        lines.append("cancellation was requested")
    if found.running["paused_at"]:
        lines.append("suspended: mpsq resume continues it; it keeps the lane and its memory")
    elif found.stopped and found.supervised:
        lines.append("stopped by a signal, not by mpsq pause: mpsq why says how it goes on")
    if found.waits_for_exec and found.supervised:
        lines.append("its program has not started: mpsq why says what it waits for")
    if not found.queue.worker and not found.supervised:
        lines.append("nothing supervises it: the next worker finds out how it ended")
    return lines


def plan(found: Status, columns: int = _WRAP) -> list[tuple[str, str]]:
    """Return when the queue will be done, the schedule that submits next, and each that failed to."""
    columns = max(columns, _LEAST)
    now, facts = time.time(), []
    if told := found.eta.sentence(now, going=goes_on(found)):
        part = f"the first {found.expected}: " if found.expected < found.waiting_count else ""
        facts.append(("done in", textwrap.fill(part + told, columns)))
    if found.schedules and (at := found.schedules[0]["next_at"]) is not None:
        missed = "when a worker runs" if not found.queue.worker else "when nothing runs" if found.running else "now"
        then = times.clock(at, now) if at > now else missed
        facts.append(("schedule", one_line(f"{found.schedules[0]['name']} submits next, {then}")))
    return [*facts, *(("schedule", line) for line in _failed_schedules(found, columns))]


def _failed_schedules(found: Status, columns: int = _WRAP) -> list[str]:
    """Return a sentence on each schedule whose last submission failed."""
    failed = [row for row in found.schedules if row["last_error"]]
    said = (one_line(f"{row['name']} submitted nothing at {row['last_error']}") for row in failed)
    return [textwrap.fill(line, columns) for line in said]


def hooks(found: Status) -> list[tuple[str, str]]:
    """Return the number of pending hook calls and those that need attention; nothing if there are none."""
    to_do = found.hooks.pending + found.hooks.running
    lines = [*([f"{to_do} pending"] if to_do else []), *_troubled_hooks(found)]
    return [("hooks" if not n else "", line) for n, line in enumerate(lines)]


def _troubled_hooks(found: Status) -> list[str]:
    """Return a line on each hook call that did not end well."""
    lines = []
    for call in found.hooks.troubled:
        of = f"after run {call['run']}, " if call["run"] else ""
        lines.append(tables.shorten(one_line(f"{of}{listing.hook_ending(call)}"), 68))
    return lines


def goes_on(found: Status) -> bool:
    """Return whether the waiting runs start without user action."""
    return found.queue.worker and not found.queue.blocked_reason and not found.queue.paused_at


def waiting_count(found: Status) -> str:
    """Return how many runs wait, in words."""
    return units.counted(found.waiting_count, "run")


def disk(use: DiskUse) -> str:
    """Return the disk usage of the queue and the free space."""
    parts = (("runs", use.runs_bytes), ("snapshots", use.snapshots_bytes), ("cache", use.cache_bytes))
    taken = ", ".join(f"{name} {units.size(size)}" for name, size in parts)
    return f"{'' if use.exact else 'at least '}{taken}; {units.size(use.free_bytes)} free"


def waiting_table(found: Status) -> str:
    """Return the waiting runs in queue order, each with its reason."""
    rows = [_waiting(row, place, found) for place, row in enumerate(found.waiting, start=1)]
    titles = {"place": "#", "run": "run", "name": "name", "asks": "asks", "waits": "waits for"}
    if any(row["starts"] != units.MISSING for row in rows):
        titles["starts"] = "starts"
    return tables.table(rows, [_column(key, title) for key, title in titles.items()])


def ended_table(found: Status, *, colour: bool = False) -> str:
    """Return the latest ended runs, the newest first; the times of those that are not valid are marked."""
    titles = {"run": "run", "name": "name", "asks": "asks", "ending": "ended last", "real_s": "after"}
    rows = [_ended(row) for row in found.ended]
    if any(row["mark"] for row in rows):
        titles["mark"] = ""
    return tables.table(rows, [_column(key, title) for key, title in titles.items()], colour=colour)


def _column(key: str, title: str) -> tables.Column:
    words = units.duration if key == "real_s" else None
    style = _STYLES.get(key)
    return tables.Column(key, title, words=words, right=key == "place", flexible=key == "asks", style=style)


_STYLES: dict[str, Callable[[Row], str]] = {"ending": lambda row: row["style"], "mark": lambda _row: "doubt"}


def _waiting(row: Row, place: int, found: Status) -> dict[str, Any]:
    return {
        "place": place,
        **_question(row),
        "waits": tables.shorten(one_line(found.reasons[row["run_id"]].short), _REASON),
        "starts": eta.clock(found.eta.turns.get(row["run"]), time.time()) if goes_on(found) else units.MISSING,
    }


def _ended(row: Row) -> dict[str, Any]:
    return {
        **_question(row),
        "ending": listing.ending(row),
        "style": listing.style(row),
        "real_s": row["real_s"],
        "mark": listing.mark(row),
    }


def _question(row: Row) -> dict[str, Any]:
    name = tables.elide(one_line(row["name"]), _NAME)
    return {"run": row["run"], "name": name, "asks": listing.tried(row) + listing.question(listing.run_object(row))}
