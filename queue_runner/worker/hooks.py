"""Hooks: user commands that are called when a run is done or has failed, or when the queue is idle.

The calls are made one after the other beside the queue, at the lowest priority, each in a session of its own with a
time limit at which its whole process tree is ended. They delay no run; their load on the machine counts as others'
load.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

from queue_runner import redact
from queue_runner.config import Config
from queue_runner.host import notify, processes
from queue_runner.paths import Layout
from queue_runner.store import hook_calls, read
from queue_runner.store.engine import Engine, looking, writing
from queue_runner.store.hook_calls import Call, Orders
from queue_runner.text import plain
from queue_runner.worker import hook_process

NICE = ("nice", "-n", "19")
"""The lowest priority of nice(1): a hook must not take processors from a measured run."""
_LOST_GRACE_S = 1.0
_VALUE_CHARACTERS = 4096


def orders(config: Config) -> Orders:
    """Return the hook calls that the settings request."""
    told = frozenset() if config.notify == "off" else frozenset(config.notify.replace(",", " ").split())
    return Orders(config.hook_done, config.hook_failed, config.hook_idle, told)


class Hooks:
    """A maker of pending calls. Only the holder of worker.lock may have one; one thread calls `step`."""

    def __init__(self, layout: Layout, config: Config, engine: Engine, log: Callable[[str], None]) -> None:
        self._layout = layout
        self._timeout_s = config.hook_timeout_s
        self._orders = orders(config)
        self._engine = engine
        self._log = log
        self._done_with = 0
        self._calling = False
        self._stop = threading.Event()
        self._buried = False

    def wanted(self) -> bool:
        """Return whether a call is pending. Cheap enough for every step of the worker."""
        return self._first_pending() is not None

    def busy(self) -> bool:
        """Return whether a call is being made, or pending."""
        return self._calling or self.wanted()

    def stop(self) -> None:
        """End the current call soon, and make no other: the next worker makes them."""
        self._stop.set()

    def step(self) -> None:
        """Make every pending call. Raises: MpsqError when the store refuses."""
        self._calling = True
        try:
            if not self._buried:
                self._reap()
                self._buried = True
            while not self._stop.is_set() and self._next():
                pass
        finally:
            self._calling = False

    def _next(self) -> bool:
        pending = self._first_pending()
        if pending is None:
            return False
        with writing(self._engine) as connection:
            call = hook_calls.take(connection, pending)
        self._done_with = pending
        if call is not None:
            self._make(call)
        return True

    def _first_pending(self) -> int | None:
        with looking(self._engine) as connection:
            pending = hook_calls.first_pending(connection, self._done_with)
            if pending is None:  # calls never become pending again: no need to look at existing ones
                self._done_with = hook_calls.newest(connection)
        return pending

    def _make(self, call: Call) -> None:
        row = self._row(call)
        title, body = notify.words(call.command, row) if call.kind == hook_calls.NOTIFY else ("", "")
        command = notify.argv(title, body) if title else ["/bin/sh", "-c", self._command(call)]
        ended = hook_process.run(
            [*NICE, *command] if hook_process.is_there(command[0]) else command,
            environment(self._layout, call, row, tag_of(self._layout, call.id)),
            cwd=str(self._layout.home),
            timeout_s=self._timeout_s,
            stop=self._stop,
            started=lambda pid: self._note(call.id, pid),
        )
        output = ended.output
        if ended.missing and title:
            output = f"{command[0]} was not found: {notify.remedy()}"
        with writing(self._engine) as connection:
            hook_calls.end(
                connection, call.id, ended.state, exit_code=ended.exit_code, dur_s=ended.dur_s, output=plain(output)
            )
        self._layout.hook.unlink(missing_ok=True)
        if ended.state != "ok":
            of = f" after run {row['run']}" if row else ""
            code = f" with exit code {ended.exit_code}" if ended.exit_code is not None else ""
            self._log(f"hook_{call.kind}{of}: its command {ended.state.replace('_', ' ')}{code}")

    def _command(self, call: Call) -> str:
        """Return what to run: a command line with secrets is complete in the settings alone."""
        now = getattr(self._orders, call.kind, "")
        if redact.HIDDEN not in call.command or redact.redact([str(now)])[0] == call.command:
            return str(now) if redact.HIDDEN in call.command else call.command
        return "echo 'the settings have another command by now, and its secret with it' >&2; exit 1"

    def _row(self, call: Call) -> Mapping[str, Any] | None:
        if call.run_id is None:
            return None
        with read.reading(self._layout.db) as connection:
            return next(iter(read.runs(connection, "run_id = ?", [call.run_id])), None)

    def _note(self, call_id: int, pid: int) -> None:
        """Record the pid for the next worker, should this one die: macOS shows no tag of its own programs."""
        note = {"id": call_id, "pid": pid, "start": processes.start_time(pid)}
        try:
            self._layout.hook.write_text(json.dumps(note), encoding="utf-8")
        except OSError:
            pass  # the tag remains

    def _reap(self) -> None:
        """End what a dead worker left running and record it as lost: its result is unknown."""
        with looking(self._engine) as connection:
            left = hook_calls.running(connection)
        for call_id in left:
            processes.end_all(_traces(self._layout, call_id), 0.0, _LOST_GRACE_S)
            with writing(self._engine) as connection:
                said = "the worker died while it ran"
                hook_calls.end(connection, call_id, "lost", exit_code=None, dur_s=None, output=said)
            self._log(f"hook call {call_id}: lost: {said}")


def environment(layout: Layout, call: Call, row: Mapping[str, Any] | None, tag: str) -> dict[str, str]:
    """Return the worker's environment with the variables of a hook (docs/hooks.md). Texts are sanitized and on one
    line."""
    told: dict[str, object] = {
        "HOME": str(layout.home),
        "LOCKS": os.environ.get("MPSQ_LOCKS"),
        "TAG": tag,
        "HOOK": call.command if call.kind == hook_calls.NOTIFY else call.kind,
    }
    if row is not None:
        told |= {
            "RUN": row["run"],
            "JOB": row["job_id"],
            "GROUP": f"g{row['group_id']}",
            "NAME": row["name"],
            "TAGS": row["tags"] or "",
            "ATTEMPT": row["attempt"],
            "OUTCOME": row["outcome"],
            "EXIT_CODE": row["exit_code"],
            "SIGNAL": row["signal"],
            "REASON": row["reason"],
            "REAL_S": row["real_s"],
            "MEDIAN_S": row["median_s"],
            "LOSS": row["loss_last"],
            "TAINTS": row["taints"] or "",
            "FOLDER": layout.run_dir(row["run"]),
        }
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MPSQ_")}
    return kept | {f"MPSQ_{name}": _word(value) for name, value in told.items() if value is not None}


def _word(value: object) -> str:
    return " ".join(plain(str(value)).split())[:_VALUE_CHARACTERS]


def tag_of(layout: Layout, call_id: int) -> str:
    """Return the MPSQ_TAG in the environment of every process of a call: computable without having been stored."""
    return hashlib.sha256(f"{layout.home}\0hook\0{call_id}".encode()).hexdigest()[:32]


def _traces(layout: Layout, call_id: int) -> processes.Traces:
    try:
        note = json.loads(layout.hook.read_bytes())
        pid, start = int(note["pid"]), float(note["start"])
        known = note["id"] == call_id and processes.same_process(pid, start)
    except (OSError, ValueError, KeyError, TypeError):
        known = False
    if not known:
        return processes.Traces(tag=tag_of(layout, call_id))
    return processes.Traces(tag_of(layout, call_id), frozenset({pid}), frozenset({(pid, start)}))
