"""Hooks: user commands that are called when a run is done or has failed, or when the queue is idle.

They are called one after the other beside the queue, at the lowest priority, each in a session of its own with a time
limit at which its whole process tree is ended. They delay no run; their load on the machine counts as others' load.
The history names the runs that have ended since the worker started. A call is made at most once: a worker that dies
or is stopped loses the calls that it has not made.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from queue_runner.config_file import Config
from queue_runner.host import processes, redact
from queue_runner.model import PREFLIGHT, Outcome, Verb
from queue_runner.paths import Layout
from queue_runner.store import jobs, read, ready
from queue_runner.store.engine import Engine, looking
from queue_runner.text import plain

if TYPE_CHECKING:
    from queue_runner.monitor.run_view import RunView

NICE = ("nice", "-n", "19")
"""The lowest priority of nice(1): a hook must not take processors from a measured run."""
STOP_GRACE_S = 2.0
"""How long a hook may continue after the worker is asked to stop."""
_APART = '/bin/sh -c "$0"; exit $?'
"""For a shell: runs a hook as its child, so that a hook that ends its parent does not end the worker."""
TAIL_BYTES = 8192
"""How much of the end of its output goes into the worker's log."""
_TERM_S = 2.0
_LOOK_S = 0.25
_VALUE_CHARACTERS = 4096
_RUN_ENDS = """
SELECT e.id, e.verb, e.run_id, r.outcome, r.number FROM job_events e JOIN runs r ON r.id = e.run_id
WHERE e.id > ? AND e.verb IN ('finish', 'skip') ORDER BY e.id
"""
"""The runs that a worker has ended or skipped since an entry of the history. A cancelled run calls no hook: the user
who cancelled it knows. Nor does a skipped run, or a preflight that succeeded."""


class Hooks:
    """A caller of hooks. Only the holder of worker.lock may have one; one thread calls `step`.

    `last_event` is the entry of the history up to which the ends of runs are known. `awaits_idle`: a run has ended
    since the queue was idle.
    """

    def __init__(
        self,
        layout: Layout,
        config: Config,
        engine: Engine,
        log: Callable[[str], None],
        stuck: Callable[[], Collection[int]] = tuple,
    ) -> None:
        """`stuck` returns the jobs that wait for a user to resume a lane."""
        self._layout = layout
        self._stuck = stuck
        self._timeout_s = config.hook_timeout_s
        self._commands = {"done": config.hook_done, "failed": config.hook_failed, "idle": config.hook_idle}
        self._engine = engine
        self._log = log
        self._calling = False
        self.awaits_idle = False
        self._stop = threading.Event()
        self._predecessor_is_gone = False
        with looking(engine) as connection:
            self.last_event = jobs.last_event(connection)

    def busy(self) -> bool:
        """Return whether a hook is being called, or is due."""
        with looking(self._engine) as connection:
            newest = jobs.last_event(connection)
            if newest > self.last_event or self._calling:  # in this order: `step` sets these the other way
                return True
            return self.awaits_idle and ready.is_idle(connection, self._stuck())

    def stop(self) -> None:
        """End the current call soon, and make no other."""
        self._stop.set()

    def step(self) -> None:
        """Call the hooks for every run that has ended since the last step. Raises: MpsqError when the store refuses."""
        self._calling = True
        try:
            if not self._predecessor_is_gone:  # a worker that was killed may have left one
                processes.end_all(processes.Traces(tag_of(self._layout)), 0.0, _TERM_S)
                self._predecessor_is_gone = True
            self._call_all()
        finally:
            self._calling = False

    def _call_all(self) -> None:
        while True:
            with looking(self._engine) as connection:
                newest = jobs.last_event(connection)
                ends = connection.rows(_RUN_ENDS, [self.last_event])
                is_idle = self.awaits_idle and not ends and ready.is_idle(connection, self._stuck())
            if not ends:
                break
            self.awaits_idle = True
            for id, verb, run_id, outcome, number in ends:
                self.last_event = id
                if verb != Verb.SKIP and outcome != Outcome.CANCELLED:
                    if outcome != Outcome.SUCCEEDED:
                        self._call("failed", run_id)
                    elif number != PREFLIGHT:
                        self._call("done", run_id)
        self.last_event = newest
        if is_idle:
            self.awaits_idle = False
            self._call("idle", None)

    def _call(self, event: str, run_id: int | None) -> None:
        """Run the command that the settings have for an event, if any."""
        if not (command := self._commands[event]):
            return
        ended = None
        if run_id is not None:
            from queue_runner.monitor import run_view  # most queues have no hooks

            with read.reading(self._layout.db) as connection:
                ended = next(iter(run_view.runs(connection, "run_id = ?", [run_id])), None)
        if self._stop.is_set():
            return
        argv = [*(NICE if shutil.which(NICE[0]) else ()), "/bin/sh", "-c", _APART, command]
        problem, output = run(argv, environment(self._layout, event, ended), self._timeout_s, self._stop)
        name = f"hook_{event}" + (f" after run {ended.run}" if ended else "")
        for line in redact.redact(filter(None, [*plain(output).splitlines(), problem])):
            self._log(f"{name}: {line}")


def environment(layout: Layout, event: str, run: RunView | None) -> dict[str, str]:
    """Return the worker's environment with the variables of a hook (docs/hooks.md). Texts are sanitized and on one
    line."""
    values: dict[str, object] = {
        "HOME": str(layout.home),
        "LOCKS": os.environ.get("MPSQ_LOCKS"),
        "TAG": tag_of(layout),
        "HOOK": event,
    }
    if run is not None:
        values |= {
            "RUN": run.run,
            "JOB": run.job_id,
            "GROUP": f"g{run.group_id}",
            "NAME": run.name,
            "TAGS": ",".join(run.tags),
            "ATTEMPT": run.attempt,
            "OUTCOME": run.outcome,
            "EXIT_CODE": run.exit_code,
            "SIGNAL": run.signal,
            "REASON": run.reason,
            "REAL_S": run.real_s,
            "MEDIAN_S": run.median_s,
            "LOSS": run.loss_last,
            "TAINTS": ",".join(run.taints),
            "FOLDER": layout.run_dir(run.run),
        }
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("MPSQ_")}
    return inherited | {
        f"MPSQ_{name}": " ".join(plain(str(value)).split())[:_VALUE_CHARACTERS]
        for name, value in values.items()
        if value is not None
    }


def tag_of(layout: Layout) -> str:
    """Return the MPSQ_TAG of every process of a queue's hooks, by which they are found."""
    return hashlib.sha256(f"{layout.home}\0hook".encode()).hexdigest()[:32]


def run(argv: Sequence[str], env: Mapping[str, str], timeout_s: float, stop: threading.Event) -> tuple[str, str]:
    """Run a program in $MPSQ_HOME to its end, or to its time limit, and end the descendants that remain, which have its
    MPSQ_TAG. Return the problem, "" if there is none, and the end of its output."""
    deadline = time.monotonic() + timeout_s
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(env),
            cwd=env["MPSQ_HOME"],
            start_new_session=True,
        )
        assert process.stdout is not None
        with process.stdout as pipe:
            tail = subprocess.Popen(["tail", "-c", str(TAIL_BYTES)], stdin=pipe, stdout=subprocess.PIPE)
    except (OSError, ValueError) as error:
        processes.end_all(processes.Traces(env["MPSQ_TAG"]), 0.0, _TERM_S)  # it may have been started
        return f"it could not be started: {getattr(error, 'strerror', None) or error}", ""
    start = processes.start_time(process.pid)
    identity = frozenset({(process.pid, start)} if start is not None else ())
    traces = processes.Traces(env["MPSQ_TAG"], frozenset({process.pid}), identity)
    cut = _wait(process, deadline, stop)
    remaining = processes.find_orphans(traces)
    survivors = processes.end_all(traces, 0.0, _TERM_S) if remaining else []
    try:
        last = tail.communicate(timeout=_TERM_S)[0]
    except subprocess.TimeoutExpired:  # a process that nothing ends or finds, as of another user, keeps the pipe open
        tail.kill()
        last = tail.communicate()[0] or b"[its output is not known: a process that it has left keeps it open]"
    if len(last) == TAIL_BYTES:
        last = b"[...]\n" + last.partition(b"\n")[2]
    output = last.decode("utf-8", "replace").rstrip()
    if survivors:
        return f"process {', '.join(str(process.pid) for process in survivors)} survived SIGKILL", output
    code = process.wait()
    problem = cut or (f"its command failed with exit code {code}" if code else "")
    if remaining and not cut:
        count = f"{len(remaining)} process{'es' * (len(remaining) != 1)}"
        problem = f"{problem}; " * bool(problem) + f"it left {count} behind, which were terminated"
    return problem, output


def _wait(process: subprocess.Popen[bytes], deadline: float, stop: threading.Event) -> str:
    """Wait until the process ends. Return why it has to be ended, "" when it has ended."""
    reason = "it was terminated at its time limit (hook_timeout_s)"
    while process.poll() is None:
        if stop.is_set() and time.monotonic() + STOP_GRACE_S < deadline:
            deadline, reason = time.monotonic() + STOP_GRACE_S, "it was terminated because the worker was stopped"
        remaining_s = deadline - time.monotonic()
        if remaining_s <= 0:
            return reason
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(min(remaining_s, _LOOK_S))
    return ""
