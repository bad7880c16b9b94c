"""The status of a queue as text: the output of `mpsq status`, and the parts shared with its dashboard."""

from __future__ import annotations

import time
from collections.abc import Sequence

from queue_runner import lanes, tables, times, units
from queue_runner.analysis.stats import by_key
from queue_runner.host.locks import START_A_WORKER
from queue_runner.model import DEFAULT_LANE
from queue_runner.monitor import eta, explanation
from queue_runner.monitor.progress import RunProgress
from queue_runner.monitor.queue_state import LaneState
from queue_runner.monitor.queue_status import ENDED, Status
from queue_runner.monitor.run_view import RunView
from queue_runner.store.read import RemoteLane
from queue_runner.text import one_line

SHOWN = 10
"""Number of waiting runs shown unless all are requested."""
_NAME = 16
_REASON = 24
_BLOCKS = 5
"""Number of submissions whose blocks are shown."""

Facts = list[tuple[str, str]]
"""Names and values. A name may be empty: the value belongs to the one before."""


def text(status: Status, *, colour: bool = False) -> str:
    """Return the whole status, at least 80 columns wide; with `colour` outcomes and what needs attention are
    coloured."""
    facts = [*lane(status), *_running(status), *plan(status)]
    held_up = [value for name, value in lane(status) if name != "worker" or not status.queue.worker]
    warnings = {*held_up, *trouble(status), *_failed_schedules(status)} if colour else ()
    names = {name for name, _value in facts}
    parts = [tables.facts(facts, prose=names, style=lambda _name, value: "doubt" if value in warnings else "")]
    if status.waiting:
        parts.append(waiting_table(status))
    if (more := status.waiting_count - len(status.waiting)) > 0:
        parts[-1] += f"\n... and {units.count(more)} more: mpsq status --all"
    if status.ended:
        parts.append(ended_table(status, colour=colour))
        if (n := len(status.ended)) >= ENDED:
            parts[-1] += f"\nthe newest {n} only; mpsq list --runs --all shows all"
    return "\n\n".join(parts)


def next_step(status: Status) -> str:
    """Return the command that the user most likely needs now."""
    if status.queue.paused_at and status.waiting:
        return "mpsq resume"
    if not status.queue.worker and (status.waiting or any(run.is_unstored for run in status.ended)):
        return "mpsq worker, or mpsq service install"
    if status.running is not None:
        return f"mpsq logs -f {status.running.run.run}"
    if status.waiting:
        return f"mpsq why {status.waiting[0].run}"
    if status.ended and status.ended[0].style == "bad":
        return f"mpsq why {status.ended[0].run}"
    return "mpsq report" if status.ended else "mpsq run nanogpt --config tiny"


def lane(status: Status) -> Facts:
    """Return the worker, and what keeps the lane from starting runs."""
    queue = status.queue
    facts = [("worker", _worker(status))]
    if queue.blocked_reason:
        facts.append(("blocked", one_line(queue.blocked_reason)))
    if queue.paused_at:
        why = f"{one_line(queue.paused_reason)}: " if queue.paused_reason else ""
        facts.append(("paused", f"{why}nothing starts until mpsq resume"))
    if queue.lanes:
        facts.append(("lanes", "\n".join(f"{lanes.short(lane.name)}  {_lane_state(lane)}" for lane in queue.lanes)))
    if status.blocks:
        submissions = by_key(status.blocks, lambda block: block.lane.rpartition("-")[0])
        blocks = [_blocks(name, same, queue.worker) for name, same in [*submissions.items()][:_BLOCKS]]
        more = len(submissions) - _BLOCKS
        facts.append(("blocks", "\n".join([*blocks, *([f"... and {units.count(more)} more"] if more > 0 else [])])))
    return facts


def _lane_state(lane: LaneState) -> str:
    """Return what a lane does, on one line."""
    parts = []
    if lane.running is not None and lane.running.lane == DEFAULT_LANE:
        parts.append(f"run {lane.running.run} has the machine to itself")
    elif lane.running is not None:
        since = lane.running.started_at or lane.running.claimed_at or time.time()
        parts.append(f"{run_and_question(lane.running)}, {units.rough(time.time() - since)}")
    if lane.paused_at:
        why = f" ({one_line(lane.paused_reason)})" if lane.paused_reason else ""
        parts.append(f"paused: mpsq resume --lane {lanes.short(lane.name)}{why}")
    elif lane.blocked_reason:
        parts.append(one_line(lane.blocked_reason))
    return "; ".join(parts) or "free"


def _blocks(name: str, blocks: Sequence[RemoteLane], worker: bool) -> str:
    """Return the state of the blocks of a submission at one target, on one line."""
    running = [block.running for block in blocks if block.running]
    doing = f", run {running[0]} is running" if running else ""
    where = blocks[0].lane
    if len(blocks) > 1:
        where, doing = f"{name}: {len(blocks)} blocks", f", {len(running)} running" if running else ""
    done, runs = sum(block.done for block in blocks), sum(block.runs for block in blocks)
    first = next((block for block in blocks if block.silent), blocks[0])
    state = one_line(first.status) if worker else "no worker follows it"
    return f"{where}: {units.count(done)} of {units.counted(runs, 'run')} done{doing}; {state}"


def _worker(status: Status) -> str:
    if status.queue.worker:
        return f"process {status.queue.worker_pid}" if status.queue.worker_pid else "running"
    if status.running is not None and status.running.supervision.warden:
        return f"none, but the run continues; {START_A_WORKER}"
    return f"none; {START_A_WORKER}"


def _running(status: Status) -> Facts:
    if status.running is None:
        unstored = [run.run for run in status.ended if run.is_unstored]
        left = f"; the next worker stores the result of {', '.join(unstored)}, which ended" if unstored else ""
        return [("running", f"nothing{left}")]
    progress = status.running.progress
    facts = [run_and_question(status.running.run), numbers(progress), clock(progress), *trouble(status)]
    return [("" if n else "running", fact) for n, fact in enumerate(filter(None, facts))]


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
    if at.elapsed_s is None:
        return "it is being prepared"
    left = f", about {eta.about(at.left_s)} of training left" if at.left_s else ""
    return f"{units.rough(at.elapsed_s)} so far{left}"


def trouble(status: Status) -> list[str]:
    """Return what a user should know about the running run, each with the next step."""
    if status.running is None:
        return []
    run = status.running.run
    known = explanation.troubles(run, status.running.supervision, status.queue.worker)
    return [f"{sentence}; {step.format(run=run.run)}" for sentence, step in known]


def plan(status: Status) -> Facts:
    """Return which submissions are open, how many runs wait, when the queue will be done, the schedule that submits
    next, each whose last submission failed, and the free space."""
    now = time.time()
    facts = [("" if n else "rounds", sentence) for n, sentence in enumerate(status.undecided.values())]
    facts += status.added
    first_tries = f", {units.counted(status.preflight_count, 'preflight')}" if status.preflight_count else ""
    stuck = ""
    if (n_stuck := status.eta.n_stuck) == status.waiting_runs > 0:
        stuck = ", held or blocked"
    elif n_stuck:
        stuck = f" ({units.count(n_stuck)} of them held or blocked)"
    facts.append(("waiting", units.counted(status.waiting_runs, "run") + stuck + first_tries))
    if estimate := status.eta.sentence(now, going=status.goes_on):
        part = f"the first {status.expected}: " if status.expected < status.waiting_count else ""
        facts.append(("done in", part + estimate))
    if status.schedules and (at := status.schedules[0].next_at) is not None:
        missed = "when a worker runs" if not status.queue.worker else "when nothing runs" if status.running else "now"
        then = times.clock(at, now) if at > now else missed
        facts.append(("schedule", one_line(f"{status.schedules[0].name} submits jobs next, {then}")))
    facts += [("schedule", line) for line in _failed_schedules(status)]
    return [*facts, ("disk", f"{units.size(status.free_bytes)} free")]


def _failed_schedules(status: Status) -> list[str]:
    """Return a sentence on each schedule whose last submission failed."""
    failed = (schedule for schedule in status.schedules if schedule.last_error)
    return [one_line(f"{schedule.name} submitted nothing at {schedule.last_error}") for schedule in failed]


_RUN = [
    tables.Column("run", "run"),
    tables.Column("name", "name", words=lambda name: tables.elide(one_line(name), _NAME)),
    tables.Column("settings_line", "settings", flexible=True),
]


def waiting_table(status: Status) -> str:
    """Return the waiting runs in queue order, each with its reason."""
    now = time.time()
    places = {run.run_id: str(place) for place, run in enumerate(status.waiting, start=1)}
    turns = status.eta.turns if status.goes_on else {}
    starts = {run.run: eta.clock(turns.get(run.run), now) for run in status.waiting}
    columns = [
        tables.Column("run_id", "#", words=places.__getitem__, right=True),
        *_RUN,
        tables.Column("run_id", "waits for", words=lambda id: tables.shorten(status.reasons[id].short, _REASON)),
    ]
    if any(start != units.MISSING for start in starts.values()):
        columns.append(tables.Column("run", "starts", words=starts.__getitem__))
    return tables.table(status.waiting, columns)


def ended_table(status: Status, *, colour: bool = False) -> str:
    """Return the latest ended runs, the newest first; the times of those that are not valid are marked."""
    columns = [
        *_RUN,
        tables.Column("ending", "outcome", style=lambda run: run.style),
        tables.Column("real_s", "took", words=units.duration),
    ]
    if any(run.mark for run in status.ended):
        columns.append(tables.Column("mark", "", style=lambda _run: "doubt"))
    return tables.table(status.ended, columns, colour=colour)
