"""Why a run is in its state, for every state and outcome: one sentence, and the next step."""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct, field

from queue_runner import times, units
from queue_runner.analysis.stats import by_key
from queue_runner.host import protected
from queue_runner.host.locks import START_A_WORKER
from queue_runner.host.run_dir import RunDir
from queue_runner.model import DEFAULT_LANE, IN_COPY, PREFLIGHT, Outcome, Selector, State
from queue_runner.monitor import eta, group_summary, progress, queue_state, run_view, waiting
from queue_runner.monitor.queue_state import QueueState, Supervision
from queue_runner.monitor.run_view import RunView
from queue_runner.monitor.waiting import Reason
from queue_runner.paths import Layout
from queue_runner.spec import more_rounds, more_time
from queue_runner.store import added_rounds, read
from queue_runner.submit import missing_runs


class RunContext(Struct, frozen=True):
    """Facts about a run besides its row. `waits` is set for a run that has not started."""

    queue: QueueState
    waits: Reason | None = None
    supervision: Supervision = field(default_factory=Supervision)
    schedule: str | None = None  # the schedule that submitted it
    requeued: str | None = None  # why it was requeued
    starting: str = ""  # when it starts: "in about 12 min, at 22:40"
    remote: str = ""  # the state of the block that a run of a remote lane belongs to
    before: str = ""  # for a further attempt that has not ended: how the previous one did
    retried: str = ""  # the last attempt at the same repeat, if this is an earlier one
    repeated: read.Repetition | None = None  # the newest job that repeats that of a failed run
    undecided: str = ""  # how far its submission with --until is, while that is open
    in_copy: str = ""  # why it started in a copy of its code
    flaw: str = ""  # what makes its numbers invalid
    lacks: bool = True  # whether its submission lacks runs
    has_log: bool = True
    instead_of_rounds: str = ""  # the next step of a skipped run whose submission takes no further rounds


class Why(Struct, frozen=True):
    """The reason of one run. `run` is 12.3. `next_step` is empty if nothing is left to do. `kind` is, in one word of
    reasons.Reason, what a run that has not started waits for; else it is empty."""

    run: str
    sentence: str
    next_step: str
    kind: str = ""


def explain(run: RunView, context: RunContext) -> Why:
    """Explain the state of one run in words."""
    state = State(run.state)
    if state is State.DONE:
        sentence, step = _done(run, context.flaw)
        if run.is_probe:
            sentence, step = _search_meaning(run, sentence, step)
        if run.deleted_at:
            sentence, step = f"{sentence}; its files were deleted", "" if run.outcome != "SUCCEEDED" else step
        step = "mpsq rerun {job} queues it again" if "mpsq logs" in step and not context.has_log else step
        step = context.instead_of_rounds or step
    elif run.is_unstored:
        sentence, step = f"{_done(run)[0]}; the next worker stores its result", START_A_WORKER
    elif state is State.RUNNING:
        sentence, step = _running(run, context)
    else:
        sentence, step = _waiting(context)
        if run.deadline_at is not None and run.deadline_at > time.time():
            sentence += f"; it is skipped if it has not started by {times.clock(run.deadline_at, time.time())}"
    origin = f", submitted by schedule {context.schedule}," if context.schedule else ""
    kind = context.waits.kind if context.waits is not None else ""
    colon = "" if kind == "gate" else ":"  # "waits for a quiet machine, 1.00 s at most: ..."
    sentence = f"run {run.run}{origin} {_IS[State.DONE if run.is_unstored else state]}{colon} {sentence}"
    if context.before and state is not State.DONE:
        sentence += f"; the previous attempt, {context.before}"
    if context.in_copy:
        sentence += f"; it started in a copy of the code as submitted, because {context.in_copy}"
    if context.retried:
        sentence += f"; it was retried as run {context.retried}"
        step = f"mpsq why {context.retried}" if "mpsq retry" in step else step
    elif context.repeated:
        job, is_ok = context.repeated.job, context.repeated.is_ok
        sentence += f"; job {job} {'repeated it and succeeded' if is_ok else 'repeats it'}"
        step = f"mpsq report g{context.repeated.group} shows its numbers" if is_ok else f"mpsq why {job}"
    elif step == _LOGS and context.lacks:
        step += _AFTER_A_FIX
    if context.undecided and state is State.DONE:
        sentence += f"; {context.undecided}"
    step = step.format(run=run.run, job=run.job_id, group=run.group_id, more_time=with_more_time(run))
    return Why(run.run, sentence, step, kind)


def with_more_time(run: RunView) -> str:
    """Return what queues the job of a run again with a longer time limit; the limit of a node is another one."""
    timeout_s = run.spec.timeout_s
    if timeout_s is None:
        return "submit it again with a longer --time"
    return f"{more_time(run.job_id, timeout_s)} queues it again with more time"


_IS = {State.HELD: "is held", State.QUEUED: "waits", State.RUNNING: "is running", State.DONE: "has ended"}


def _waiting(context: RunContext) -> tuple[str, str]:
    if context.waits is None:  # it was claimed after its row was read, and before the queue's
        return "it is being started", "mpsq logs {run} -f follows it"
    back = f" (it was requeued: {context.requeued})" if context.requeued else ""
    starting = f"; it starts {context.starting}" if context.starting and context.waits.kind == "turn" else ""
    return context.waits.sentence + starting + back, context.waits.next_step


def troubles(run: RunView, supervision: Supervision, worker: bool) -> Iterator[tuple[str, str]]:
    """Yield what a user should know about a run that is running here, each with the next step; the most important
    first."""
    warden, stopped = supervision.warden, supervision.stopped
    if run.cancel_requested_at and (worker or warden):
        yield "its cancellation was requested and is in progress", "mpsq wait {run} waits for its end"
    elif run.cancel_requested_at:
        yield "its cancellation was requested, but no worker is running to record its end", START_A_WORKER
    if warden and run.paused_at:
        ago = f"{units.rough(time.time() - run.paused_at)} ago"
        yield f"it was suspended {ago}, and still holds its memory and the device", "mpsq resume {run} continues it"
    elif warden and stopped:
        sentence = f"its process {stopped} was stopped by a signal, not by mpsq pause; it still holds the device"
        yield sentence, f"kill -CONT {stopped} continues it; mpsq cancel {{run}} cancels it"
    if warden and supervision.waits_for_exec:
        sentence = f"its program has not started, because its folder or program cannot be read yet ({protected.SLOW})"
        yield sentence, "mpsq cancel {run} cancels it"
    if not (worker or warden):
        sentence = "it has lost its supervisor, so its state is unknown: the next worker will find out how it ended"
        yield sentence, START_A_WORKER


def _running(run: RunView, context: RunContext) -> tuple[str, str]:
    if context.remote:
        return _running_elsewhere(run, context)
    on = {lane.name: lane.blocked_reason for lane in context.queue.lanes}
    blocked = on.get(run.lane, context.queue.blocked_reason)
    if blocked and not context.supervision.warden and not run.cancel_requested_at:
        return blocked, "mpsq status shows when the lane is free again; mpsq cancel {run} cancels it"
    if (known := next(troubles(run, context.supervision, context.queue.worker), None)) is not None:
        return known
    if not context.queue.worker:
        return "it continues, but no worker is running to record it", START_A_WORKER
    lane = f" on lane {run.lane}" if run.lane != DEFAULT_LANE else ""
    return (
        f"the worker has started it{lane}",
        "mpsq logs {run} -f follows it; mpsq cancel {run} cancels it",
    )


def _running_elsewhere(run: RunView, context: RunContext) -> tuple[str, str]:
    if not context.queue.worker:
        return "it runs on a node, but no worker is running here to record it", START_A_WORKER
    if run.cancel_requested_at:
        return (
            f"its cancellation was requested and is in progress ({context.remote})",
            "mpsq wait {run} waits for its end",
        )
    return f"its node started it ({context.remote})", "mpsq logs {run} -f follows it; mpsq cancel {run} cancels it"


def _search_meaning(run: RunView, sentence: str, step: str) -> tuple[str, str]:
    """Return what the end of a probe of --find-max means for its search."""
    if run.outcome == Outcome.OUT_OF_MEMORY:
        return (
            f"{sentence}; --find-max searches for that limit",
            f"mpsq report scaling g{run.group_id} has the answer",
        )
    if run.outcome == Outcome.SUCCEEDED:
        return sentence, f"mpsq report scaling g{run.group_id} shows the state of its search"
    return f"{sentence}; the search of --find-max stopped there", f"{step}; mpsq retry {{run}} continues the search"


_LOGS = "mpsq logs {run} shows what it wrote"
_AFTER_A_FIX = "; after a fix, mpsq rerun g{group} --missing repeats the failed runs"
_ENDED = {
    Outcome.SUCCEEDED: ("it succeeded{ran}", "mpsq report g{group} shows its numbers"),
    Outcome.FAILED: ("it failed with exit code {run.exit_code}{ran}{reason}", _LOGS),
    Outcome.KILLED: ("signal {run.signal} killed it{ran}{reason}", f"{_LOGS}; the system log may show the sender"),
    Outcome.SPAWN_FAILED: (
        "it could not be started{reason}",
        "mpsq show {run} shows its command and folder; fix them, then mpsq retry {run}",
    ),
    Outcome.DEVICE_UNAVAILABLE: ("its device is not available{reason}", "mpsq doctor tries every device"),
    Outcome.TIMED_OUT: ("its --timeout ended it{reason}", "{more_time}"),
    Outcome.STALLED: ("its --stall ended it{ran}{reason}", _LOGS),
    Outcome.OUT_OF_MEMORY: ("it ran out of memory{ran}{reason}", "submit it with a smaller batch or model"),
    Outcome.OUTPUT_LIMIT: (
        "it wrote more output than allowed{ran}{reason}",
        "make it write less, or raise output_limit_bytes: mpsq config list",
    ),
    Outcome.DISK_FULL: (
        "the disk was full{ran}{reason}",
        "free some space, for example with mpsq gc --keep last:1, then run mpsq retry {run}",
    ),
    Outcome.CODE_CHANGED: (
        "its code can no longer be run as it was submitted{reason}",
        "mpsq rerun {job} --snapshot off runs the current code",
    ),
    Outcome.CANCELLED: ("it was cancelled{ran}{reason}", "mpsq retry {run} if it was a mistake"),
    Outcome.SKIPPED: ("it was skipped{reason}", ""),
    Outcome.LOST: ("it was lost{reason}", "mpsq retry {run} runs it again; mpsq logs {run} shows what it had printed"),
}
"""Sentence and next step by outcome. `ran` is how long it ran, `reason` the stored one; either may be empty."""


_SKIPPED = {
    "device": "mpsq doctor tries every device; then mpsq retry {run}",
    "deadline": "mpsq rerun {job} runs it without the deadline",
    "budget": f"{more_rounds('{group}')} adds three rounds",
}
"""Next step by the kind of reason for which a run was skipped."""
_NEW_JOBS = {_ENDED[outcome][1] for outcome in (Outcome.TIMED_OUT, Outcome.OUT_OF_MEMORY, Outcome.CODE_CHANGED)}
"""The steps that make another job, so that nothing of this one is to be retried."""


def _done(run: RunView, flaw: str = "") -> tuple[str, str]:
    outcome = Outcome(run.outcome or "")
    ran = f" after {units.duration(run.real_s)}" if run.real_s is not None else ""
    if outcome is Outcome.SUCCEEDED and run.taints and not run.valid:
        return (
            f"it succeeded{ran}, but its numbers are not valid: {flaw or run.flaw}",
            "mpsq show {run} has the details",
        )
    sentence, step = _ENDED[outcome]
    if run.kind == "import" and outcome is not Outcome.SUCCEEDED:
        sentence = "how it ended is unknown{reason}" if outcome is Outcome.LOST else sentence
        step = "mpsq show {run} shows what the log contains; mpsq report --all includes its numbers"
    elif outcome is Outcome.SKIPPED:
        kind, _, rest = (run.reason or "").partition(": ")
        step = _SKIPPED.get(kind, "mpsq retry {run}")
        if kind == "dependency" and (other := _OTHER_JOB.match(rest)):
            step = f"mpsq why {other[1]} explains it; once it has succeeded, mpsq retry {{run}}"
        if run.is_unneeded:
            step = "nothing is wrong: it should run only after a failure; mpsq rerun {job} runs it anyway"
        if kind == "preflight":
            remedy = _remedy_of_preflight(rest)
            step = remedy if remedy in _NEW_JOBS else f"{remedy}; then mpsq retry {{job}}"
    reason = f": {run.reason}" if run.reason else ""
    if outcome is Outcome.CANCELLED:
        reason = reason.replace(": cancelled", "", 1)  # "it was cancelled: cancelled before it started"
    return sentence.format(run=run, ran=ran, reason=reason), step


_OTHER_JOB = re.compile(r"job (\d+) ")
_MISSING_MODULE = re.compile(r"No module named '([\w.]+)'")


def _remedy_of_preflight(ended: str) -> str:
    """Return what to do about a preflight that `ended` so, as in "FAILED(1): no data"."""
    if missing := _MISSING_MODULE.search(ended):
        return f"install {missing[1].partition('.')[0]} for the interpreter that mpsq show {{job}} names"
    outcome = re.match(r"[A-Z_]+", ended)
    step = _ENDED[Outcome(outcome[0])][1] if outcome and outcome[0] in Outcome.__members__ else _LOGS
    return step.partition(", then mpsq retry")[0].replace("{run}", f"{{job}}.{PREFLIGHT}")


_SAME_REPEAT = "job_id = ? AND repeat = ?"
_REQUEUED = "SELECT reason FROM v_event WHERE run = ? AND verb = 'unclaim' ORDER BY id DESC LIMIT 1"
_IN_COPY = "SELECT text FROM notes WHERE run_id = ? AND kind = ?"
_FLAW = (
    "SELECT detail || ' (' || kind || ')' FROM taints WHERE run_id = ? AND severity = 'invalid' ORDER BY kind LIMIT 1"
)


def explain_all(layout: Layout, connection: sqlite3.Connection, selectors: Sequence[Selector]) -> list[Why]:
    """Return the reasons of the selected runs: of the run itself, or of the most informative run of each job.

    Raises: UsageError when nothing matches.
    """
    runs = run_view.select(connection, selectors)
    queue = queue_state.look(layout, connection)
    named = {f"{selector.job}.{selector.number}" for selector in selectors}
    pairs = [
        (run, run_view.runs(connection, _SAME_REPEAT, [run.job_id, run.repeat]) if run.run in named else members)
        for members in by_key(runs, lambda run: run.job_id).values()
        for run in ([run for run in members if run.run in named] or [_most_informative(members)])
    ]
    chosen = [run for run, _ in pairs]
    waits: Mapping[int, Reason] = {}
    elsewhere = read.remote_lanes(connection)
    if unstarted := {run.run_id for run in chosen if run.state in (State.QUEUED, State.HELD)}:
        outline = run_view.queue_outline(connection)
        waits = waiting.reasons(connection, queue, outline, elsewhere, time.time(), unstarted)
    starting: dict[str, str] = {}
    if any(waits[run.run_id].kind == "turn" for run in chosen if run.run_id in waits):
        estimate = progress.estimate(layout, connection, run_view.queue(connection, eta.EXPECTED))
        starting = {run: eta.starting(turn, time.time()) for run, turn in estimate.turns.items()}
    undecided = group_summary.undecided(connection)
    repeated = read.repeated_by(connection, [run.run_id for run in chosen if _is_failure(run)])
    failed = [run for run in chosen if run.state == State.DONE and not (run.succeeded or run.run_id in repeated)]
    lacking_jobs = missing_runs.lacking_jobs(connection, [run.job_id for run in failed])  # quick, and mostly enough
    lacking = {run.group_id for run in failed if run.job_id in lacking_jobs}
    lacking.update(missing_runs.lacking(connection, sorted({run.group_id for run in failed} - lacking)))
    return [
        explain(
            run,
            RunContext(
                queue,
                waits=waits.get(run.run_id),
                schedule=read.schedule_name(connection, run.schedule_id),
                requeued=read.value(connection, _REQUEUED, run.run) if run.state == State.QUEUED else None,
                starting=starting.get(run.run, ""),
                remote=elsewhere[run.lane].status if run.lane in elsewhere else "",
                before=_before(run, others),
                retried=_retried(run, others),
                repeated=repeated.get(run.run_id),
                undecided=undecided.get(run.group_id, ""),
                in_copy=read.value(connection, _IN_COPY, run.run_id, IN_COPY) or "",
                flaw=read.value(connection, _FLAW, run.run_id) or "",
                lacks=run.group_id in lacking,
                has_log=RunDir(layout.run_dir(run.run)).stdout.exists(),
                instead_of_rounds=_instead_of_rounds(connection, run),
                supervision=queue_state.supervision(RunDir(layout.run_dir(run.run))),
            ),
        )
        for run, others in pairs
    ]


def _is_failure(run: RunView) -> bool:
    """Return whether a run has ended without what it was for."""
    is_limit = run.is_probe and run.outcome == Outcome.OUT_OF_MEMORY
    return run.state == State.DONE and not (run.succeeded or run.is_preflight or run.is_unneeded or is_limit)


def _most_informative(runs: Sequence[RunView]) -> RunView:
    """Return the run of a job that a user asks about: the running one, else one that did not succeed, else the next.

    Attempts that were retried do not count: only the last attempt of each repeat.
    """

    def rank(run: RunView) -> tuple[int, int]:
        if run.state == State.RUNNING:
            return 0, run.number
        if run.state == State.DONE:
            return (3 if run.succeeded else 1), -run.number
        return 2, run.number

    return min(run_view.last_attempts(runs), key=rank)


def _instead_of_rounds(connection: sqlite3.Connection, run: RunView) -> str:
    """Return the next step of a run that the end of a budget skipped, where its submission takes no further rounds."""
    if not run.is_beyond_budget:
        return ""
    jobs = read.tuples(connection, added_rounds.JOBS.format(groups="?"), [run.group_id])
    return added_rounds.instead_of_rounds(jobs).get(run.group_id, "")


def _retried(run: RunView, runs: Sequence[RunView]) -> str:
    """Return the last attempt at the same repeat if this is an earlier one; "" if it is not, or only tries the job."""
    (last,) = run_view.last_attempts(
        other for other in runs if (other.job_id, other.repeat) == (run.job_id, run.repeat)
    )
    return "" if last.run == run.run or run.is_preflight else last.run


def _before(run: RunView, runs: Sequence[RunView]) -> str:
    """Return how the previous attempt ended, in words; "" if there is none."""
    attempts = [other for other in runs if (other.job_id, other.repeat) == (run.job_id, run.repeat)]
    earlier = [other for other in attempts if PREFLIGHT < other.number < run.number and other.state == State.DONE]
    if not earlier:
        return ""
    last = max(earlier, key=lambda other: other.number)
    return f"run {last.run}: {_done(last)[0]}"
