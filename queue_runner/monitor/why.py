"""Why a run is in its state, for every state and outcome: one sentence, and the next step."""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from queue_runner import config, units
from queue_runner.host import protected
from queue_runner.model import DEFAULT_LANE, NOT_FAILED, PREFLIGHT, Outcome, Row, Selector, State
from queue_runner.monitor import blocks, eta, queue_state, waiting
from queue_runner.monitor.attempts import last_attempts
from queue_runner.monitor.progress import Tracker
from queue_runner.monitor.queue_state import START_A_WORKER, QueueState
from queue_runner.monitor.wait import is_probe
from queue_runner.monitor.waiting import Reason
from queue_runner.paths import Layout
from queue_runner.run_dir import RunDir
from queue_runner.store import read


@dataclass(frozen=True)
class RunContext:
    """Facts about a run besides its row. `waits` is set for a run that has not started."""

    queue: QueueState
    waits: Reason | None = None
    supervised: bool = False
    waits_for_exec: bool = False
    stopped: int | None = None  # pid of its trainer, where a signal stopped that and not mpsq pause
    ended: bool = False  # its warden has written how it ended, and no worker has stored that yet
    schedule: str | None = None  # the schedule that submitted it
    requeued: str | None = None  # why it was requeued
    starting: str = ""  # when it starts: "in about 12 min, at 22:40"
    remote: str = ""  # what is known of the block that a run of a remote lane belongs to
    before: str = ""  # for a further attempt that has not ended: how the previous one did


@dataclass(frozen=True)
class Why:
    """The reason of one run. `run` is 12.3. `next_step` is empty if nothing is left to do. `kind` is, in one word of
    reasons.Reason, what a run that has not started waits for; else it is empty."""

    run: str
    sentence: str
    next_step: str
    kind: str = ""


def explain(row: Row, context: RunContext) -> Why:
    """Explain one row of v_run in words."""
    state = State(row["state"])
    if state is State.DONE:
        sentence, step = _done(row)
        if is_probe(row):
            sentence, step = _of_search(row, sentence, step)
        if row.get("deleted_at"):
            sentence, step = f"{sentence}; its files were deleted", "" if row["outcome"] != "SUCCEEDED" else step
    elif state is State.RUNNING:
        sentence, step = _running(row, context)
    else:
        sentence, step = _waiting(context)
    origin = f", submitted by schedule {context.schedule}," if context.schedule else ""
    told = f"run {row['run']}{origin} {_IS[state]}: {sentence}"
    if context.before and state is not State.DONE:
        told += f"; the previous attempt, {context.before}"
    kind = context.waits.kind if context.waits is not None else ""
    return Why(row["run"], told, step.format(run=row["run"], job=row["job_id"]), kind)


_IS = {State.HELD: "is held", State.QUEUED: "waits", State.RUNNING: "is running", State.DONE: "has ended"}


def _waiting(context: RunContext) -> tuple[str, str]:
    if context.waits is None:  # it was claimed after its row was read, and before the queue's
        return "it is being started", "mpsq logs {run} -f follows it"
    back = f" (it was requeued: {context.requeued})" if context.requeued else ""
    starting = f"; it starts {context.starting}" if context.starting and context.waits.kind == "turn" else ""
    return context.waits.sentence + starting + back, context.waits.next_step


def _running(row: Row, context: RunContext) -> tuple[str, str]:
    if context.remote:
        return _running_elsewhere(row, context)
    if row["cancel_requested_at"]:
        if context.queue.worker or context.supervised:
            return "its cancellation was requested and is in progress", "mpsq wait {run}"
        return "its cancellation was requested, but no worker is running to record its end", START_A_WORKER
    if context.ended and not context.queue.worker:
        return "it has finished, but no worker is running to record its result", START_A_WORKER
    on = {lane.name: lane.blocked_reason for lane in context.queue.lanes}
    blocked = on.get(row["lane"], context.queue.blocked_reason)
    if blocked and not context.supervised:
        return blocked, "mpsq status shows when the lane is free again; mpsq cancel {run} cancels it"
    if row["paused_at"] and context.supervised:
        since = units.duration(max(time.time() - row["paused_at"], 0.0))
        return f"it was suspended {since} ago and keeps the lane and its memory", "mpsq resume {run}"
    if context.stopped and context.supervised:
        told = f"its process {context.stopped} was stopped by a signal, not by mpsq pause; it keeps the lane"
        return told, f"kill -CONT {context.stopped} continues it; mpsq cancel {{run}} cancels it"
    if context.waits_for_exec and context.supervised:
        told = f"its program has not started: its folder or program is still being read ({protected.SLOW})"
        return told, "mpsq cancel {run} cancels it"
    beside = f" on lane {row['lane']}" if row["lane"] != DEFAULT_LANE else ""
    if not context.queue.worker:
        if context.supervised:
            return "it continues under its warden, but no worker is running to record it", START_A_WORKER
        return "neither a warden nor a worker supervises it: the next worker finds out how it ended", START_A_WORKER
    return (
        f"the worker started it{beside} and it has not ended",
        "mpsq logs {run} -f follows it; mpsq cancel {run} cancels it",
    )


def _running_elsewhere(row: Row, context: RunContext) -> tuple[str, str]:
    if not context.queue.worker:
        return "it runs on a node, but no worker is running here to record it", START_A_WORKER
    if row["cancel_requested_at"]:
        return f"its cancellation was requested and is in progress ({context.remote})", "mpsq wait {run}"
    return f"its node started it ({context.remote})", "mpsq logs {run} -f follows it; mpsq cancel {run} cancels it"


def _of_search(row: Row, sentence: str, step: str) -> tuple[str, str]:
    """Return what the end of a probe of --find-max means for its search."""
    if row["outcome"] == Outcome.OUT_OF_MEMORY:
        return (
            f"{sentence}; --find-max searches for that limit",
            f"mpsq report scaling g{row['group_id']} has the answer",
        )
    if row["outcome"] == Outcome.SUCCEEDED:
        return sentence, f"mpsq report scaling g{row['group_id']} shows the state of its search"
    return f"{sentence}; its search stopped there", f"{step}; mpsq retry {{run}} continues the search"


_LOGS = "mpsq logs {run} --both shows what it wrote"
_ENDED = {
    Outcome.SUCCEEDED: ("it succeeded{ran}", "mpsq report reads its numbers"),
    Outcome.FAILED: ("it failed with exit code {row[exit_code]}{ran}{told}", _LOGS),
    Outcome.KILLED: ("signal {row[signal]} killed it{ran}{told}", f"{_LOGS}; the system log may show the sender"),
    Outcome.SPAWN_FAILED: (
        "it could not be started{told}",
        "mpsq show {run} shows its command and folder; fix them, then mpsq retry {run}",
    ),
    Outcome.DEVICE_UNAVAILABLE: ("its device is not available{told}", "mpsq doctor tries every device"),
    Outcome.TIMED_OUT: ("it took longer than --timeout allows{told}", "submit it again with a longer --timeout"),
    Outcome.STALLED: ("it reported nothing for too long{ran}{told}", _LOGS),
    Outcome.OUT_OF_MEMORY: ("it ran out of memory{ran}{told}", "submit it with a smaller batch or model"),
    Outcome.OUTPUT_LIMIT: (
        "it wrote more output than allowed{ran}{told}",
        "make it write less, or raise output_limit_bytes: mpsq config list",
    ),
    Outcome.DISK_FULL: (
        "it was stopped because the disk was nearly full{ran}{told}",
        "free some space, for example with mpsq gc --keep last:1, then run mpsq retry {run}",
    ),
    Outcome.CODE_CHANGED: (
        "its code is no longer what was submitted{told}",
        "submit it again; with --snapshot copy it runs the code as submitted, whatever changes later",
    ),
    Outcome.CANCELLED: ("it was cancelled{ran}{told}", "mpsq retry {run} if it was a mistake"),
    Outcome.SKIPPED: ("it was skipped{told}", ""),
    Outcome.LOST: ("it was lost{told}", "mpsq retry {run}; its output until then is kept: mpsq logs {run}"),
}
"""Sentence and next step by outcome. `ran` is how long it ran, `told` the stored reason; either may be empty."""


_SKIPPED = {
    "dependency": "fix the job it depended on, then mpsq retry {run}",
    "device": "mpsq doctor tries every device; then mpsq retry {run}",
    "deadline": "mpsq rerun {job} runs it without the deadline",
    "preflight": "{remedy}; then mpsq retry {{job}}",
}
"""Next step by the kind of reason for which a run was skipped."""


def _done(row: Row) -> tuple[str, str]:
    outcome = Outcome(row["outcome"])
    ran = f" after {units.duration(row['real_s'])}" if row["real_s"] is not None else ""
    if outcome is Outcome.SUCCEEDED and row["taints"] and not row["valid"]:
        taints = row["taints"].replace(",", ", ")
        return f"it succeeded{ran}, but its numbers are not valid ({taints})", "mpsq show {run} says why"
    sentence, step = _ENDED[outcome]
    if row.get("kind") == "import" and outcome is not Outcome.SUCCEEDED:
        sentence = "how it ended is unknown{told}" if outcome is Outcome.LOST else sentence
        step = "mpsq show {run} shows what the log tells; mpsq report --all includes its numbers"
    if outcome is Outcome.SKIPPED:
        step = _SKIPPED.get((row["reason"] or "").partition(":")[0], "mpsq retry {run}")
        if NOT_FAILED in (row["reason"] or ""):
            step = "nothing is wrong: it should run only after a failure; mpsq rerun {job} runs it anyway"
        if (reason := row["reason"] or "").startswith("preflight: "):
            step = step.format(remedy=_remedy_of_preflight(reason.removeprefix("preflight: ")))
    return sentence.format(row=row, ran=ran, told=f": {row['reason']}" if row["reason"] else ""), step


_MISSING_MODULE = re.compile(r"No module named '([\w.]+)'")


def _remedy_of_preflight(ended: str) -> str:
    """Return what to do about a preflight that `ended` so, as in "FAILED(1): no data"."""
    if found := _MISSING_MODULE.search(ended):
        return f"install {found[1].partition('.')[0]} for the interpreter that mpsq show {{job}} names"
    outcome = re.match(r"[A-Z_]+", ended)
    step = _ENDED[Outcome(outcome[0])][1] if outcome and outcome[0] in Outcome.__members__ else _LOGS
    return step.partition(", then mpsq retry")[0].replace("{run}", f"{{job}}.{PREFLIGHT}")


def explain_all(layout: Layout, connection: sqlite3.Connection, selectors: Sequence[Selector]) -> list[Why]:
    """Return the reasons of the selected runs: of the run itself, or of the most informative run of each job.

    Raises: UsageError when nothing matches.
    """
    rows = read.select(connection, selectors)
    queue = queue_state.look(layout, connection)
    named = {selector.text for selector in selectors}
    chosen = [
        row for group in _by_job(rows) for row in ([row for row in group if row["run"] in named] or [_telling(group)])
    ]
    before = {row["run"]: _before(row, rows) for row in chosen}
    waits: Mapping[int, Reason] = {}
    if any(row["state"] in (State.QUEUED, State.HELD) for row in chosen):
        waits = waiting.reasons(connection, queue, read.queue_outline(connection), time.time())
    starting = _starting(layout, connection) if any(row["state"] == State.QUEUED for row in chosen) else {}
    contexts = {
        row["run"]: _context(layout, connection, row, queue, waits.get(row["run_id"]), starting) for row in chosen
    }
    return [explain(row, replace(contexts[row["run"]], before=before[row["run"]])) for row in chosen]


def _starting(layout: Layout, connection: sqlite3.Connection) -> dict[str, str]:
    """Return when each of the first runs of the queue starts, in words."""
    now, first = time.time(), read.queue(connection, eta.EXPECTED)
    left_s = Tracker().look(connection, first[0]).left_s if first and first[0]["state"] == State.RUNNING else None
    estimate = eta.estimate(connection, first, now, left_s=left_s, gap_s=config.load(layout.config).cooldown_s)
    return {run: eta.starting(turn, now) for run, turn in estimate.turns.items()}


def _by_job(rows: Sequence[Row]) -> list[list[Row]]:
    jobs: dict[int, list[Row]] = {}
    for row in rows:
        jobs.setdefault(row["job_id"], []).append(row)
    return list(jobs.values())


def _telling(rows: Sequence[Row]) -> Row:
    """Return the run of a job that a user asks about: the running one, else one that did not succeed, else the next.

    Attempts that were retried do not count: only the last attempt of each repeat.
    """

    def rank(row: Row) -> tuple[int, int]:
        if row["state"] == State.RUNNING:
            return 0, row["number"]
        if row["state"] == State.DONE and row["outcome"] != Outcome.SUCCEEDED:
            return 1, -row["number"]
        if row["state"] != State.DONE:
            return 2, row["number"]
        return 3, -row["number"]

    return min(last_attempts(rows), key=rank)


def _before(row: Row, rows: Sequence[Row]) -> str:
    """Return how the previous attempt ended, in words; "" if there is none."""
    tried = [one for one in rows if (one["job_id"], one["repeat"]) == (row["job_id"], row["repeat"])]
    earlier = [one for one in tried if one["number"] < row["number"] and one["state"] == State.DONE]
    if not earlier:
        return ""
    last = max(earlier, key=lambda one: int(one["number"]))
    return f"run {last['run']}: {_done(last)[0]}"


def _context(
    layout: Layout,
    connection: sqlite3.Connection,
    row: Row,
    queue: QueueState,
    waits: Reason | None,
    starting: Mapping[str, str],
) -> RunContext:
    name = row["run"]
    folder = RunDir(layout.runs / name)
    back = [e for e in read.events(connection, row["job_id"]) if e["run"] == name and e["verb"] == "unclaim"]
    return RunContext(
        queue,
        waits=waits,
        supervised=row["state"] == State.RUNNING and queue_state.is_supervised(folder),
        waits_for_exec=row["state"] == State.RUNNING and folder.waits_for_exec(),
        stopped=queue_state.stopped_trainer(folder) if row["state"] == State.RUNNING else None,
        ended=row["state"] == State.RUNNING and folder.exit() is not None,
        schedule=read.schedule_name(connection, row["schedule_id"]),
        requeued=back[-1]["reason"] if back and row["state"] == State.QUEUED else None,
        starting=starting.get(name, ""),
        remote=blocks.of(connection, row),
    )
