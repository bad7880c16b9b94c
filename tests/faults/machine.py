"""The simulated machine: processes made of greenlets, their descriptors, signals and children, and the clocks.

One greenlet runs at a time. It gives up its turn at points: before each system call that matters, and wherever it
waits. Whose turn is next, how long a turn takes and who dies at a point is drawn from one seeded generator.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
from collections.abc import Callable
from typing import Any

from greenlet import getcurrent, greenlet

from tests.faults.disk import Disk

REAL_CLOSE, REAL_DUP, REAL_WRITE = os.close, os.dup, os.write

STALL_S = 40.0
"""The longest time for which a process may stand still, as a loaded machine or SIGSTOP makes it."""
INIT = 1
WEIGHTS = {
    "sql": 12,
    "rename": 12,
    "replace": 12,
    "fork": 12,
    "spawn": 12,
    "unlink": 6,
    "fsync": 6,
    "mkdir": 4,
    "kill": 6,
}
"""How much likelier a process dies at calls after which others see something else."""
_FATAL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM)


class Killed(BaseException):
    """The process of this greenlet is dead: it unwinds, and nothing that it still does has an effect."""


class Violation(Exception):
    """A promise of docs/supervision.md is broken."""


class Process:
    """A simulated process. `exited` is its wait status once it is a zombie."""

    def __init__(self, pid: int, name: str, parent: Process | None, start: float) -> None:
        self.pid, self.name, self.parent, self.start = pid, name, parent, start
        self.kind = name.split()[0]
        self.session = self.group = pid if parent is None else parent.session
        self.tag = parent.tag if parent is not None else ""
        self.fds: dict[int, str] = {}
        self.connections: list[sqlite3.Connection] = []
        self.tasks: list[Task] = []
        self.handlers: dict[int, Any] = {}
        self.wakeup_fd = -1
        self.is_subreaper = False
        self.is_stopped = self.stop_is_news = self.was_continued = False
        self.exited: int | None = None
        self.by_fault = False
        self.home = parent.home if parent is not None else ""
        self.run = parent.run if parent is not None else ""
        self.ends_with: Process | None = None
        self.forked: Process | None = None  # the warden of a starter
        self.reported: int | None = None  # by a starter: the exit code of its warden

    @property
    def is_alive(self) -> bool:
        return self.exited is None

    def __repr__(self) -> str:
        return f"{self.name}:{self.pid}"


class Task:
    """A thread of a simulated process."""

    def __init__(self, machine: Machine, process: Process, function: Callable[[], object], name: str) -> None:
        self.machine, self.process, self.name = machine, process, name
        self.wake_at: float | None = None
        self.is_ready: Callable[[], bool] | None = None
        self.held_until = 0.0
        self.has_ended = False
        self.priority = machine.random.random()
        self.function = function
        self.greenlet = greenlet(self._run, machine.main)

    def _run(self) -> None:
        try:
            self.function()
        except Killed:
            pass
        except SystemExit as error:
            self.machine.exit(self.process, int(error.code or 0))
        except Violation as error:
            self.machine.failure = self.machine.failure or error
        except BaseException as error:
            if self.process.is_alive:  # what a dead process finds closed does not matter
                self.machine.crashed(self, error)
        finally:
            self.has_ended = True
            if not self.process.is_alive:
                self.machine._disconnect(self.process)


class Machine:
    """A machine whose kernel is a seeded generator."""

    def __init__(self, seed: int, folder: str) -> None:
        self.random = random.Random(seed)
        self.folder = folder
        self.disk = Disk(self.random)
        self.main = getcurrent()
        self.current: Task | None = None
        self.tasks: list[Task] = []
        self.processes: dict[int, Process] = {}
        self.awake_s = 1000.0  # the clock that stops while the machine sleeps
        self.slept_s = 0.0
        self.wall_ahead_s = 1_790_000_000.0  # as world.WALL_S
        self.boot = 1
        self.next_pid = 1000
        self.n_steps = self.n_points = 0
        self.failure: Exception | None = None
        self.log: list[str] = []
        self.sticks = 0.9  # how often a turn goes on at a point
        self.by_priority = False
        self.stalls = 0.0
        self.dies_at_point: dict[str, float] = {}
        self.disk_is_full = False
        self.doomed: Process | None = None  # dies as soon as SQLite returns
        self.on_exit: list[Callable[[Process], None]] = []
        self.on_point: Callable[[str, str], None] | None = None

    # -- clocks -------------------------------------------------------------------------------------------------------

    @property
    def wall(self) -> float:
        return self.wall_ahead_s + self.awake_s + self.slept_s

    @property
    def boot_id(self) -> str:
        return f"boot-{self.boot}"

    def note(self, text: str) -> None:
        """Append a line to the log of this run, by which two runs of a seed can be compared."""
        self.log.append(f"{self.awake_s - 1000:9.3f} {text}")

    # -- turns --------------------------------------------------------------------------------------------------------

    def point(self, what: str = "", detail: str = "") -> None:
        """Let the seed decide whether this process goes on now, later, or never."""
        task = self.current
        if task is None:
            return
        process = task.process
        if not process.is_alive:
            raise Killed
        if self.on_point is not None:
            self.on_point(what, detail)
        self.n_points += 1
        chance = self.random.random()
        if self.dies_at_point and chance < self.dies_at_point.get(process.kind, 0.0) * WEIGHTS.get(what, 1):
            self.note(f"{process} dies before {what} {detail}")
            process.by_fault = True
            self.kill(process, signal.SIGKILL)
            raise Killed
        if self.stalls and self.random.random() < self.stalls:
            task.held_until = self.awake_s + self.random.choice((0.001, 0.01, 0.1, 1.0, STALL_S)) * chance
            self.pause()
        elif chance > self.sticks:
            self.pause()

    def pause(self) -> None:
        """Give up the turn."""
        task = self.current
        assert task is not None
        self.main.switch()
        if not task.process.is_alive:
            raise Killed

    def wait(self, ready: Callable[[], bool] | None, timeout_s: float | None = None) -> bool:
        """Wait until a condition holds, or a time has passed; return whether it holds."""
        task = self.current
        assert task is not None
        if not task.process.is_alive:
            raise Killed
        if ready is not None and ready():
            return True
        task.is_ready = ready
        task.wake_at = None if timeout_s is None else self.awake_s + max(timeout_s, 0.0)
        try:
            self.pause()
        finally:
            task.is_ready, task.wake_at = None, None
        return ready is not None and ready()

    def step(self) -> bool:
        """Let one greenlet have one turn; return False where nobody will ever have one."""
        now, ready, earliest = self.awake_s, [], None
        self.tasks = [task for task in self.tasks if not task.has_ended]
        for task in self.tasks:
            if task.process.is_stopped:
                continue
            at = task.held_until
            if at <= now:
                if task.is_ready is not None and task.is_ready():
                    ready.append(task)
                    continue
                if task.wake_at is None:
                    if task.is_ready is None:
                        ready.append(task)
                    continue
                at = task.wake_at
                if at <= now:
                    ready.append(task)
                    continue
            earliest = at if earliest is None else min(earliest, at)
        if not ready:
            if earliest is None:
                return False
            self.awake_s = earliest + 1e-6
            return True
        task = ready[0] if len(ready) == 1 else self._chosen(ready)
        self.n_steps += 1
        self.awake_s += self.random.random() * 0.0004
        self._turn(task)
        return True

    def _chosen(self, ready: list[Task]) -> Task:
        """Return whose turn it is: anybody's, or that of the first in an order of threads that changes at times."""
        if not self.by_priority:
            return self.random.choice(ready)
        if self.random.random() < 0.02:
            self.random.choice(ready).priority = self.random.random()
        return max(ready, key=lambda task: task.priority)

    def _turn(self, task: Task, *, kill: bool = False) -> None:
        before, self.current = self.current, task
        try:
            if kill:
                task.greenlet.parent = getcurrent()  # who kills goes on when this has unwound
                task.greenlet.throw(Killed)
            else:
                task.greenlet.switch()
        finally:
            self.current = before

    # -- processes ----------------------------------------------------------------------------------------------------

    def spawn(
        self, name: str, function: Callable[[], object] | None, parent: Process | None = None, fds: tuple[int, ...] = ()
    ) -> Process:
        """Start a process with copies of these descriptors of its parent."""
        self.next_pid += 1
        process = Process(self.next_pid, name, parent, round(self.awake_s, 6))
        self.processes[process.pid] = process
        for fd in fds:
            assert parent is not None
            process.fds[REAL_DUP(fd)] = parent.fds[fd]
        if function is not None:
            self.thread(process, function, name)
        return process

    def thread(self, process: Process, function: Callable[[], object], name: str) -> Task:
        task = Task(self, process, function, name)
        process.tasks.append(task)
        self.tasks.append(task)
        return task

    def exit(self, process: Process, code: int) -> None:
        """End a process by itself."""
        self._end(process, (code & 0xFF) << 8)

    def kill(self, process: Process, number: int) -> None:
        """Send a signal."""
        if not process.is_alive:
            return
        if number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT):
            pass
        elif number in process.handlers:
            handler = process.handlers[number]
            if callable(handler):
                handler(number, None)
                return
            if handler == signal.SIG_IGN:
                return
        if number == signal.SIGSTOP:
            if not process.is_stopped:
                process.is_stopped, process.stop_is_news = True, True
                self._child_news(process)
        elif number == signal.SIGCONT:
            if process.is_stopped:
                process.is_stopped, process.was_continued = False, True
                self._child_news(process)
        elif number == signal.SIGKILL or number in _FATAL:
            process.is_stopped = False
            self._end(process, int(number))

    def _end(self, process: Process, status: int) -> None:
        if not process.is_alive:
            return
        process.exited = status
        process.is_stopped = False
        self.note(f"{process} ends with {status}")
        for fd in process.fds:
            REAL_CLOSE(fd)
        process.fds.clear()
        for task in process.tasks:
            if task is not self.current and not task.has_ended and task.greenlet:
                self._turn(task, kill=True)
            elif not task.greenlet:
                task.has_ended = True
        if self.current not in process.tasks:
            self._disconnect(process)  # else once that one has unwound
        for child in list(self.processes.values()):
            if child.parent is process:
                child.parent = self._reaper_of(process)
                if child.parent is None and not child.is_alive:
                    del self.processes[child.pid]
                elif not child.is_alive:
                    self._child_news(child)
            if child.ends_with is process and child.is_alive:
                self._end(child, int(signal.SIGKILL))
        before, self.current = self.current, None
        for hook in self.on_exit:
            hook(process)
        self.current = before
        if process.parent is None or not process.parent.is_alive:
            self.processes.pop(process.pid, None)
        else:
            self._child_news(process)

    def committed(self, connection: sqlite3.Connection) -> None:
        """A transaction of this connection is durable."""

    def _disconnect(self, process: Process) -> None:
        for connection in process.connections:
            self.close_dead(connection)
        process.connections.clear()

    def close_dead(self, connection: sqlite3.Connection) -> None:
        """Close what a process that was killed had open: SQLite must not tidy up for it."""
        raise NotImplementedError

    def _reaper_of(self, process: Process) -> Process | None:
        parent = process.parent
        while parent is not None and not (parent.is_alive and parent.is_subreaper):
            parent = parent.parent
        return parent

    def _child_news(self, process: Process) -> None:
        parent = process.parent
        if parent is not None and parent.is_alive and parent.wakeup_fd >= 0:
            try:
                REAL_WRITE(parent.wakeup_fd, b"\x11")
            except OSError:
                pass

    def crashed(self, task: Task, error: BaseException) -> None:
        """A thread ended with an error that nobody caught."""
        import traceback

        self.note(f"{task.process} {task.name}: {error!r}")
        text = "".join(traceback.format_exception(error))
        self.log.append(text)
        if task is task.process.tasks[0]:
            self.exit(task.process, 1)
        self.unhandled(task.process, error, text)

    def unhandled(self, process: Process, error: BaseException, text: str) -> None:
        """A program has ended with a traceback."""
        self.failure = self.failure or Violation(f"{process} ended with a traceback: {text}")

    def power_off(self) -> None:
        """Lose everything that is not on the disk, and boot again."""
        self.note("power off")
        for process in list(self.processes.values()):
            process.by_fault = True
            process.parent = None
        for process in list(self.processes.values()):
            if process.is_alive:
                self._end(process, int(signal.SIGKILL))
        self.processes.clear()
        self.disk.lose()
        self.boot += 1
        self.awake_s += 20.0
