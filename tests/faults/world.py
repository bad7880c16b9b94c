"""One simulated machine with one or two queues: workers, wardens, trainers and users, and what befalls them.

`calls.install` comes before the import of this module. What runs is the product: `main_loop.Worker`, the commands,
and `warden.supervise.main` for each run. Replaced is what looks at the real machine (sensors, git, the code of the
warden) and takes milliseconds.
"""

# ruff: noqa: E731
from __future__ import annotations

import calendar
import functools
import json
import logging
import os
import shutil
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from queue_runner import extensions
from queue_runner.config_file import Config
from queue_runner.control import cancellation, new_attempts, pausing
from queue_runner.errors import MpsqError
from queue_runner.host import background, lane_list, locks, processes, reserve, run_sampler, wakeup
from queue_runner.host.run_dir import RunDir
from queue_runner.lanes import Lane
from queue_runner.machine_records import SensorSample
from queue_runner.model import Condition, Selector
from queue_runner.paths import Layout
from queue_runner.source.snapshot import Taken
from queue_runner.spec import JobSpec, NewJob, Terms
from queue_runner.store import backup, migrate, read, restore
from queue_runner.submit import plan
from queue_runner.warden import supervise
from queue_runner.warden.instructions import SOMETHING_LEFT
from queue_runner.worker import backups, finish, hooks, main_loop, observer, steps, supervisor, warden_starter
from tests.faults import calls, sqlite_files
from tests.faults.checks import Checker
from tests.faults.machine import Killed, Machine, Process, Violation
from tests.faults.scheduler import SimulatedScheduler

POLL_S = 900.0
"""How often an idle worker looks: so rarely that a lost ring shows."""
BUSY_S = 20.0
"""For how long users act and faults happen."""
CALM_S = 4000.0
"""How long the rest may take once nothing befalls the machine any more."""
WALL_S = 1_790_000_000.0
MOST_STEPS = 400_000


class _Quiet:
    """No sensors."""

    reads_gpu = reads_each_second = False

    def __init__(self, **_: Any) -> None:
        self.queue: set[int] = set()

    def sample(self, *_: Any, **__: Any) -> SensorSample:
        return SensorSample()

    def at_end(self, *_: Any) -> SensorSample:
        return SensorSample()

    def gpu_reading(self, *_: Any) -> None:
        return None

    def gpu_busy_after(self) -> None:
        return None

    def read(self, **_: Any) -> SensorSample:
        return SensorSample()

    def close(self) -> None:
        """Nothing is open."""


def _holds_lock(pid: int, name: str, file: os.stat_result, taker: int | None) -> bool:
    process = calls.machine.processes.get(pid) if calls.machine is not None else None
    return process is not None and any(path.endswith(name) for path in process.fds.values())


class _Starter:
    """Stands in for the process that forks wardens: a process for each of them, which may die or stand still before,
    between and after its calls."""

    def __init__(self, _: Path) -> None:
        self._starters: dict[int, Process] = {}  # by the process id of the warden

    def get_ready(self) -> None:
        """It is always ready."""

    rest = close = get_ready

    def spawn(self, folder: RunDir, lane_fds: Sequence[int]) -> int | None:
        """Start a warden as WardenStarter.spawn does."""
        machine, task = calls.machine, calls.task()
        assert machine is not None and task is not None and calls.start_program is not None
        machine.point("spawn")
        starter = calls.start_program(task.process, [str(folder.path)], tuple(lane_fds))
        machine.wait(lambda: starter.forked is not None or not starter.is_alive, warden_starter.ANSWER_S)
        if starter.forked is None:
            return None
        self._starters[starter.forked.pid] = starter
        return starter.forked.pid

    def exit_code(self, pid: int, at_most_s: float = 0.0) -> int | None:
        """Return what WardenStarter.exit_code does."""
        starter = self._starters[pid]
        assert calls.machine is not None
        calls.machine.wait(lambda: not starter.is_alive, at_most_s)
        if starter.is_alive:
            return None
        calls.machine.processes.pop(starter.pid, None)
        del self._starters[pid]
        return SOMETHING_LEFT if starter.reported is None else starter.reported


def _make_subreaper(option: int, value: int) -> bool:
    now = calls.task()
    assert now is not None
    now.process.is_subreaper = True
    return True


def adapt() -> None:
    """Let the product's modules use simulated threads, and no sensors, git or copied program; once in a process."""
    for module in (main_loop, background, hooks):
        module.threading = calls.threads  # type: ignore[assignment]
    main_loop.StopSignal = calls.Event  # type: ignore[assignment, misc]
    main_loop.BackgroundScheduler = SimulatedScheduler
    main_loop.datetime = calls.Datetime  # type: ignore[misc]
    extensions.worker_parts = lambda *_: []
    reserve.keep = lambda layout: None
    supervisor.Load = _Quiet  # type: ignore[misc, assignment]
    observer.run_sampler = SimpleNamespace(Sampler=_Quiet)  # type: ignore[assignment]
    run_sampler.gpu_use_before = lambda *_, **__: None
    finish.of_machine = lambda: {"model": "simulated"}  # type: ignore[assignment]
    finish._of_system = lambda: {"os": "simulated"}  # type: ignore[assignment]
    supervise.prctl = _make_subreaper
    supervise.oom_kills = lambda: 0
    processes._holds_lock_linux = _holds_lock
    processes._is_ours = lambda pid: True
    lane_list.resolve = lambda setting, *_: (_lanes(setting), [])  # type: ignore[assignment]
    plan._take_snapshots = lambda layout, planned: [Taken(None) for _ in planned.jobs]
    steps.WardenStarter = _Starter  # type: ignore[assignment, misc]
    main_loop._migrate_in_child = functools.partial(migrate.upgrade, holds_worker_lock=True)  # a real child, otherwise
    backups._mtime = _mtime
    sqlite_files.install()
    extensions.installed()  # the first call reads files of other packages


def _mtime(*paths: Path) -> float | None:
    """Return when a database or a backup was changed, by the simulated clock."""
    path = paths[0]
    if not path.exists():
        return None
    if path.parent.name != "backups":
        return _changed_at.get(str(path), 0.0)
    return float(calendar.timegm(time.strptime(path.name[5:20], "%Y%m%d-%H%M%S")))


_changed_at: dict[str, float] = {}
"""When databases were changed last (Unix seconds of the simulated clock)."""


def _lanes(setting: str) -> list[Lane]:
    return [] if setting == "serial" else [Lane(name, (int(name[-1]),)) for name in setting.split(",")]


@dataclass
class Truth:
    """What really happened to a run that a trainer was started for."""

    run: str
    tag: str
    epoch: int
    status: int | None = None
    n_lines: int = 0
    warden_died: bool = False
    power_failed: bool = False


@dataclass
class Submission:
    """A submission, whose jobs have its word as their name. `ids` once it is acknowledged."""

    word: str
    n_runs: int
    epoch: int
    ids: tuple[int, ...] = ()


@dataclass
class Queue:
    """A queue of the machine, and what the checker knows of it."""

    name: str
    layout: Layout
    config: Config
    epoch: int = 0
    submissions: list[Submission] = field(default_factory=list)
    truths: dict[str, Truth] = field(default_factory=dict)  # by tag
    n_starts: Counter[tuple[int, str]] = field(default_factory=Counter)
    wardens_killed: Counter[str] = field(default_factory=Counter)
    cancelled: set[str] = field(default_factory=set)
    worker: Process | None = None
    worker_due: float = 0.0
    kept_down: int = 0
    ring_lost: bool = False
    io_failed: bool = False


class World:
    """A machine with its queues. `scale` makes faults rarer (below 1) or more frequent."""

    def __init__(self, seed: int, folder: Path, template: Path, *, plain: bool = False) -> None:
        self.machine = Machine(seed, str(folder))
        self.chance = self.machine.random
        self.seed = seed
        (folder / "locks").mkdir(mode=0o700, parents=True)
        os.environ["MPSQ_LOCKS"] = str(folder / "locks")
        chance = self.chance
        lanes = "serial" if plain or chance.random() < 0.6 else "cpu:0,cpu:1"
        n_queues = 1 if plain or chance.random() < 0.7 else 2
        self.queues: list[Queue] = []
        for name in "ab"[:n_queues]:
            home = folder / f"home-{name}"
            for path in (home, home / "runs", home / "backups", home / "logs", home / "cache"):
                path.mkdir(mode=0o700)
            shutil.copy(template, home / "mpsq.db")
            config = Config(
                poll_s=POLL_S if n_queues == 1 else 5.0,  # by which a queue finds that another one is over
                min_free_bytes=0,
                lanes=lanes,
                keep_awake=False,
                hold_after_failures=0,
                grace_int_s=chance.choice((0.0, 0.3, 2.0)),
                grace_term_s=chance.choice((0.0, 0.3, 2.0)),
                cooldown_s=0.0 if plain else chance.choice((0.0, 0.0, 1.0)),
                backup_every_s=0.0 if plain else chance.choice((0.0, 20.0)),
            )
            self.queues.append(Queue(name, Layout(home), config))
        self.machine.disk.begin(str(folder / "graveyard"), *(str(queue.layout.home) for queue in self.queues))
        sqlite_files.files.watch()
        sqlite_files.files.names_are_flushed = self.machine.disk.flush_names
        self.checker = Checker(self)
        self.machine.committed = self._committed  # type: ignore[method-assign]
        self.machine.on_exit.append(self._ended)
        self.machine.unhandled = self._unhandled  # type: ignore[method-assign]
        calls.start_program = self._start_program
        calls.begin(self.machine)
        self.is_calm = self._released = self._is_off = False
        self._restores_ended: list[tuple[Queue, int]] = []
        self.n_words = 0
        self.plan = [] if plain else self._drawn_plan()
        self.faults: list[Callable[[], None]] = []
        self.follows = 0.0
        if not plain:
            self._draw_faults()

    def _committed(self, connection: Any) -> None:
        for queue in self.queues:
            if str(queue.layout.db) in connection.address:
                _changed_at[str(queue.layout.db)] = self.machine.wall
        self.checker.committed(connection)

    # -- drawn at the beginning -------------------------------------------------------------------------------

    def _drawn_plan(self) -> list[tuple[float, str, Queue]]:
        """Return what users do, and when: each seed uses a few of the verbs."""
        chance = self.chance
        verbs = [
            "cancel",
            "hold",
            "release",
            "pause",
            "resume",
            "suspend",
            "wake",
            "retry",
            "stop",
            "read",
            "backup",
            "ring",
        ]
        chosen = chance.sample(verbs, chance.randint(0, 5))
        if chance.random() < 0.2:
            chosen.append("restore")
        actions = []
        for queue in self.queues:
            for _ in range(chance.randint(1, 3)):
                actions.append((chance.uniform(0, BUSY_S / 2), "submit", queue))
            for verb in chosen:
                for _ in range(chance.randint(1, 3)):
                    actions.append((chance.uniform(0, BUSY_S), verb, queue))
            if "restore" in chosen:
                actions.append((chance.uniform(0, BUSY_S / 2), "backup", queue))
        return sorted(actions, key=lambda action: action[0])

    def _draw_faults(self) -> None:
        chance, machine = self.chance, self.machine
        machine.sticks = chance.choice((0.5, 0.9, 0.97))
        machine.by_priority = chance.random() < 0.5
        machine.stalls = chance.choice((0.0, 0.0, 0.0005, 0.003))
        for name in ("worker", "starter", "warden", "submit", "cancel", "restore", "trainer", "backup"):
            if chance.random() < 0.4:
                machine.dies_at_point[name] = 10 ** chance.uniform(-4.5, -2.7)
        if "restore" in machine.dies_at_point:
            machine.dies_at_point["restore"] *= 3
        kinds = [self._kill_one, self._jump, self._sleep, self._fill, self._fail_io, self._power_off]
        self.faults = chance.sample(kinds, chance.randint(0, 3))
        self.follows = chance.choice((0.0, 0.0, 0.7))
        self.fault_rate = 10 ** chance.uniform(-4, -2.5)

    # -- one run of a seed --------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run to the end. Raises: Violation."""
        machine = self.machine
        began = machine.awake_s
        at = 0
        while machine.n_steps < MOST_STEPS:
            now = machine.awake_s - began
            while at < len(self.plan) and self.plan[at][0] <= now:
                _, verb, queue = self.plan[at]
                at += 1
                self._act(verb, queue)
            if not self.is_calm:
                if now >= BUSY_S and at >= len(self.plan):
                    self._calm()
                elif self.faults and self.chance.random() < self.fault_rate:
                    self.chance.choice(self.faults)()
            self._tend()
            if not machine.step():
                machine.awake_s += 0.5
            self._raise()
            self.checker.step()
            if self.is_calm:
                if self.checker.is_over():
                    break
                if not self._released and not self.checker.users():
                    self._released = True  # a command of before may have paused something since
                    self._release()
                if machine.awake_s - began > BUSY_S + CALM_S:
                    raise Violation(f"runs are stuck: {self.checker.unended()}")
        else:
            raise Violation(f"not over after {MOST_STEPS} steps: {self.checker.unended()}")
        self.checker.final()

    def run_plain(self) -> None:
        """Do what test_traces does with real processes: a run that ends, one that is cancelled, one whose warden is
        killed, and one whose worker is killed."""
        queue, machine = self.queues[0], self.machine
        machine.sticks = self.chance.choice((0.5, 0.9))
        long = {"for_s": 300.0, "lines": 0, "exit": 0, "signal": 0, "children": 0, "deaf": False, "torn": False}
        brief = {**long, "for_s": self.chance.choice((0.2, 1.5)), "lines": 3}
        self.submit(queue, [brief])
        self._until(lambda: self._ends(queue) == 1)
        for number in (2, 3, 4):
            self.submit(queue, [{**long, "for_s": 4.0} if number == 4 else long])
            self._until(lambda: bool(self._trainer(queue)))
            if number == 2:
                queue.cancelled.add("2")
                self._spawn(
                    "cancel",
                    queue,
                    lambda: cancellation.cancel(queue.layout, [Selector("2", job=2)], grace_s=0.0, within_s=0.0),
                )
            elif number == 3:
                (warden,) = [each for each in machine.processes.values() if each.name == "warden" and each.is_alive]
                warden.by_fault = True
                machine.kill(warden, signal.SIGKILL)
            else:
                assert queue.worker is not None
                queue.worker.by_fault = True
                machine.kill(queue.worker, signal.SIGKILL)
            self._until(lambda: self._ends(queue) == number)  # noqa: B023

    def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            if self.machine.n_steps > MOST_STEPS:
                raise Violation("\n".join(self.machine.log))
            self._tend()
            if not self.machine.step():
                self.machine.awake_s += 0.5
            self._raise()
            self.checker.step()

    def _ends(self, queue: Queue) -> int:
        return sum(row.state == "DONE" for row in self.checker.rows[queue.name].values())

    def _trainer(self, queue: Queue) -> list[Process]:
        return [each for each in self.machine.processes.values() if each.name == "trainer" and each.is_alive]

    def _raise(self) -> None:
        if self.machine.failure is not None:
            raise self.machine.failure

    def close(self) -> None:
        """End all that is simulated."""
        self.machine.note("end")
        for process in list(self.machine.processes.values()):
            process.parent = None
            if process.is_alive:
                self.machine._end(process, int(signal.SIGKILL))
        calls.begin(None)
        self.checker.close()
        sqlite_files.files.forget()
        sqlite_files.files.fails = None

    def _calm(self) -> None:
        """From now on nothing befalls the machine, and users release what waits for them."""
        machine = self.machine
        self.is_calm = True
        machine.note("calm")
        machine.wall_ahead_s = max(machine.wall_ahead_s, WALL_S)  # or a retry would wait for what it was set back
        machine.dies_at_point, machine.stalls, machine.disk_is_full = {}, 0.0, False
        sqlite_files.files.fails = None
        self._release()

    def _release(self) -> None:
        for queue in self.queues:
            self._act("resume", queue)
            self._act("release all", queue)

    def _tend(self) -> None:
        """Start workers as a service manager does."""
        for queue in self.queues:
            if queue.worker is not None and not queue.worker.is_alive:
                queue.worker = None
                queue.worker_due = self.machine.awake_s + self.chance.choice((0.0, 0.5, 5.0))
            if queue.worker is None and not queue.kept_down and self.machine.awake_s >= queue.worker_due:
                self.start_worker(queue)

    def start_worker(self, queue: Queue) -> Process:
        queue.worker = self._spawn("worker", queue, lambda: self._work(queue))
        return queue.worker

    def _work(self, queue: Queue) -> None:
        held = main_loop._take(queue.layout)
        main_loop._refuse_damaged(queue.layout)
        main_loop._migrate(queue.layout)
        main_loop.Worker(queue.layout, queue.config, held, main_loop.ServiceManager(), until_idle=False).run()
        held.close()

    def _spawn(self, name: str, queue: Queue, function: Callable[[], object]) -> Process:
        def main() -> None:
            try:
                function()
            except MpsqError as error:
                self.machine.note(f"{process}: {error.message}")
                raise SystemExit(error.exit_code) from None
            raise SystemExit(0)

        process = self.machine.spawn(f"{name} {queue.name}", main)
        process.home = queue.name
        return process

    def _unhandled(self, process: Process, error: BaseException, text: str) -> None:
        queue = self.queue_of(process)
        is_shortage = isinstance(error, OSError | sqlite3.Error) and queue is not None and queue.io_failed
        if not is_shortage:
            self.machine.failure = self.machine.failure or Violation(f"{process} ended with a traceback: {text}")

    def truth_of(self, queue: Queue, run: str, token: str | None) -> Truth | None:
        """Return what really happened to a run."""
        return queue.truths.get(token or "")

    def queue_of(self, process: Process) -> Queue | None:
        return next((queue for queue in self.queues if queue.name == process.home), None)

    # -- users --------------------------------------------------------------------------------------------------------

    def _act(self, verb: str, queue: Queue) -> None:
        layout = queue.layout
        self.machine.note(f"{queue.name}: {verb}")
        if verb == "submit":
            self.submit(queue, *self._drawn_jobs(queue))
            return
        if verb == "stop":
            if queue.worker is not None:
                self.machine.kill(queue.worker, signal.SIGTERM)
            return
        if verb == "restore":
            self._restore(queue)
            return
        word = self._drawn_job(queue)
        selectors = [Selector(str(word), job=word)] if word is not None else []
        everything = [Selector(str(job), job=job) for sub in queue.submissions for job in sub.ids]
        within_s = self.chance.choice((0.0, 1.0))
        done: Callable[[], object]
        if verb == "pause":
            done = lambda: pausing.pause_lane(layout, "a user")
        elif verb == "resume":
            done = lambda: pausing.pause_lane(layout, None)
        elif verb == "ring":
            done = lambda: self._ring(queue)
        elif verb == "read":
            done = lambda: self._read(queue)
        elif verb == "backup":
            done = lambda: backup.make(layout)
        elif not (everything if verb == "release all" else selectors):
            return
        elif verb == "release all":
            done = lambda: pausing.resume(layout, everything, within_s=0.0)
        elif verb == "cancel":
            queue.cancelled.add(str(word))
            grace_s = self.chance.choice((None, 0.0, 0.2))
            done = lambda: cancellation.cancel(layout, selectors, grace_s=grace_s, within_s=within_s)
        elif verb in ("hold", "suspend"):
            done = lambda: pausing.pause(layout, selectors, now=verb == "suspend", within_s=within_s)
        elif verb in ("release", "wake"):
            done = lambda: pausing.resume(layout, selectors, within_s=within_s)
        elif verb == "retry":
            done = lambda: new_attempts.retry(layout, selectors)
        else:
            raise ValueError(verb)
        self._spawn(verb.replace(" ", "-"), queue, done)

    def _drawn_job(self, queue: Queue) -> int | None:
        ids = [job for sub in queue.submissions for job in sub.ids if sub.epoch == queue.epoch]
        return self.chance.choice(ids) if ids else None

    def _drawn_jobs(self, queue: Queue) -> tuple[list[dict[str, Any]], int, Terms]:
        """Return what the trainers of a submission do, how often each runs, and the terms of its jobs."""
        chance = self.chance
        behaviours = [
            {
                "for_s": chance.choice((0.0, 0.2, 1.0, 3.0)),
                "lines": chance.choice((0, 1, 3, 20)),
                "exit": chance.choice((0, 0, 0, 3)),
                "signal": chance.choice((0, 0, 0, 0, 11)),
                "children": chance.choice((0, 0, 1, 2)),
                "deaf": chance.random() < 0.2,
                "torn": chance.random() < 0.2,
            }
            for _ in range(chance.choice((1, 1, 2)))
        ]
        acknowledged = self._drawn_job(queue)
        after = ((acknowledged, chance.choice(list(Condition))),) if acknowledged and chance.random() < 0.15 else ()
        terms = Terms(
            priority=chance.choice((0, 0, 0, 1)),
            hold=chance.random() < 0.1,
            retries=chance.choice((0, 0, 2)),
            retry_on=("failed", "lost"),
            backoff_s=chance.choice((0.0, 3.0)),
            after=after,
        )
        return behaviours, chance.choice((1, 1, 2)), terms

    def submit(
        self, queue: Queue, behaviours: list[dict[str, Any]], repeats: int = 1, terms: Terms | None = None
    ) -> Submission:
        """Submit a job for each behaviour of a trainer."""
        self.n_words += 1
        word = f"{queue.name}{self.n_words}"
        device = "cpu" if queue.config.lanes != "serial" and self.chance.random() < 0.7 else None
        jobs = tuple(
            NewJob(
                JobSpec(
                    kind="command",
                    name=word,
                    argv=("trainer", json.dumps(behaviour)),
                    cwd="/",
                    device=device,
                    env={"PATH": "/bin", "N": word},
                    timeout_s=behaviour.get("timeout_s"),
                ),
                repeats,
                terms or Terms(),
            )
            for behaviour in behaviours
        )
        planned = plan.Plan(word, 0, jobs)
        submission = Submission(word, len(planned.order), queue.epoch)
        queue.submissions.append(submission)

        def store() -> None:
            ids = plan.store(queue.layout, planned).jobs
            if submission.epoch == queue.epoch:
                submission.ids = ids
                self.machine.note(f"{queue.name}: {word} is {ids}")

        self._spawn("submit", queue, store)
        return submission

    def run_has_ended(self, queue: Queue) -> None:
        """Maybe submit the next job at once, as a script does that waits for an end."""
        if not self.is_calm and self.plan and self.chance.random() < self.follows and len(queue.submissions) < 6:
            self._act("submit", queue)

    def _read(self, queue: Queue) -> None:
        with read.reading(queue.layout.db) as connection:
            connection.execute("BEGIN")
            connection.execute("SELECT count(*) FROM runs").fetchone()
            self.machine.wait(None, self.chance.uniform(0.0, 15.0))
            connection.execute("SELECT count(*) FROM jobs").fetchone()
            connection.execute("ROLLBACK")

    def _ring(self, queue: Queue) -> None:
        """Ring all the time, so that the worker looks at whatever happens."""
        for _ in range(self.chance.choice((20, 60))):
            wakeup.ring(queue.layout.fifo)
            self.machine.wait(None, self.chance.uniform(0.0, 0.05))

    def _restore(self, queue: Queue) -> None:
        """Stop the worker, restore the newest backup, and start it again: all as a user does."""
        queue.kept_down += 1
        if queue.worker is not None:
            self.machine.kill(queue.worker, signal.SIGTERM)
        begins = self.machine.awake_s + self.chance.choice((0.0, 1.0))
        if self.chance.random() < 0.6:  # somebody reads all the while, and submits
            self._act("read", queue)
            self._act("submit", queue)

        def work() -> None:
            self.machine.wait(lambda: queue.worker is None and self.machine.awake_s >= begins, 60.0)
            if not backup.stored(queue.layout.backups):
                backup.make(queue.layout)
            self.checker.restoring(queue)
            restored = restore.restore(queue.layout)
            self.machine.note(f"restored {restored.source}")

        self._spawn("restore", queue, work)

    # -- programs -----------------------------------------------------------------------------------------------------

    def _start_program(self, parent: Process, argv: list[str] | None, fds: tuple[int, ...]) -> Process:
        machine = self.machine
        queue = self.queue_of(parent)
        assert queue is not None
        if argv is None:
            return self._start_trainer(parent, queue)
        folder = argv[-1]
        starter = self._child_of(parent, "starter", queue, folder, fds)

        def start() -> None:
            machine.point("fork")
            warden = self._child_of(starter, "warden", queue, folder, tuple(starter.fds))
            lane = [*warden.fds]

            def main() -> None:
                raise SystemExit(supervise.main(folder, lane))

            machine.thread(warden, main, "warden")
            for fd in [*starter.fds]:
                os.close(fd)
            starter.forked = warden
            machine.wait(lambda: warden.exited is not None)
            machine.processes.pop(warden.pid, None)
            starter.reported = os.waitstatus_to_exitcode(warden.exited or 0)
            raise SystemExit(0)

        machine.thread(starter, start, "starter")
        return starter

    def _child_of(self, parent: Process, name: str, queue: Queue, folder: str, fds: tuple[int, ...]) -> Process:
        child = self.machine.spawn(name, None, parent, fds)
        child.home, child.run = queue.name, Path(folder).name
        child.session = child.group = child.pid
        child.handlers = {}
        return child

    def _start_trainer(self, warden: Process, queue: Queue) -> Process:
        machine = self.machine
        before, machine.current = machine.current, None
        try:
            spec = json.loads((queue.layout.run_dir(warden.run) / "spec.json").read_text())
        finally:
            machine.current = before
        locks_of_lane = tuple(fd for fd, path in warden.fds.items() if Path(path).name.startswith("lane-"))
        trainer = machine.spawn("trainer", None, warden, locks_of_lane)
        trainer.session = trainer.group = trainer.pid
        trainer.tag = spec["tag"]
        truth = Truth(warden.run, trainer.tag, queue.epoch)
        self.checker.trainer_starts(queue, trainer, truth, spec)
        behaviour = json.loads(spec["argv"][1])
        machine.thread(trainer, lambda: self._train(trainer, truth, behaviour, spec["events"]), "trainer")
        return trainer

    def _train(self, trainer: Process, truth: Truth, behaviour: dict[str, Any], events: str) -> None:
        machine = self.machine
        for number in range(behaviour["children"]):
            child = machine.spawn("child", None, trainer, tuple(trainer.fds))
            if behaviour["deaf"]:
                child.handlers = dict.fromkeys((signal.SIGINT, signal.SIGTERM), signal.SIG_IGN)
            if number:
                child.session = child.group = child.pid
        if behaviour["deaf"]:
            trainer.handlers = dict.fromkeys((signal.SIGINT, signal.SIGTERM), signal.SIG_IGN)
        n_lines = behaviour["lines"]
        if n_lines:
            fd = os.open(events, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            for number in range(n_lines):
                machine.wait(None, behaviour["for_s"] / n_lines)
                line = {"type": "iter", "t": 1.0 + number, "i": number, "dur_s": 0.5, "loss": 1.0, "phase": "measure"}
                try:
                    os.write(fd, json.dumps(line).encode() + b"\n")
                    truth.n_lines += 1
                except OSError:
                    pass  # the disk is full
            if behaviour["torn"]:
                os.write(fd, b'{"type":"iter","t":99')
        else:
            machine.wait(None, behaviour["for_s"])
        if behaviour["signal"]:
            machine.kill(trainer, behaviour["signal"])
            if trainer.is_alive:
                machine._end(trainer, behaviour["signal"])
            raise Killed
        raise SystemExit(behaviour["exit"])

    def _ended(self, process: Process) -> None:
        queue = self.queue_of(process)
        if queue is None:
            return
        name = process.name.split()[0]
        if name == "warden" and process.by_fault:
            queue.wardens_killed[process.run] += 1
            for truth in queue.truths.values():
                if truth.run == process.run and truth.epoch == queue.epoch:
                    truth.warden_died = True
        elif name == "trainer" and process.tag in queue.truths:
            queue.truths[process.tag].status = process.exited
        elif name == "restore":
            queue.kept_down -= 1
            self._restores_ended.append((queue, process.pid))
            if not self._is_off:
                self._check_restores()
        if process.by_fault and name not in ("starter", "warden", "trainer", "child"):
            queue.ring_lost = True

    def _check_restores(self) -> None:
        while self._restores_ended:
            self.checker.restored(*self._restores_ended.pop())

    # -- faults -------------------------------------------------------------------------------------------------------

    def _kill_one(self) -> None:
        alive = [process for process in self.machine.processes.values() if process.is_alive and process.name != "child"]
        if alive:
            victim = self.chance.choice(alive)
            victim.by_fault = True
            self.machine.note(f"kill {victim}")
            self.machine.kill(victim, signal.SIGKILL)

    def _jump(self) -> None:
        jump_s = self.chance.choice((-7200.0, -5.0, 3.0, 3600.0))
        self.machine.note(f"the clock jumps by {jump_s}")
        self.machine.wall_ahead_s += jump_s

    def _sleep(self) -> None:
        self.machine.note("the machine sleeps")
        self.machine.slept_s += self.chance.choice((1.0, 600.0))

    def _fill(self) -> None:
        """The disk is full, until it is found full again."""
        machine = self.machine
        machine.disk_is_full = not machine.disk_is_full
        machine.note(f"disk full: {machine.disk_is_full}")
        for queue in self.queues:
            queue.io_failed = True
        sqlite_files.files.fails = self._is_full if machine.disk_is_full else None

    def _is_full(self, call: str, name: str) -> int:
        return sqlite_files.FULL if call == "write" and self.machine.current is not None else 0

    def _fail_io(self) -> None:
        """The next flush or write of SQLite fails, or its process dies within it."""
        call = self.chance.choice(("write", "sync"))
        dies = self.chance.random() < 0.6
        self.machine.note(f"the next {call} of SQLite {'kills' if dies else 'fails'}")
        files = sqlite_files.files

        def fails(now: str, name: str) -> int:
            task = self.machine.current
            if now != call or task is None or self.machine.disk_is_full:
                return 0
            files.fails = None
            if dies:
                self.machine.doomed = task.process
                files.is_dead = True
            queue = self.queue_of(task.process)
            if queue is not None:
                queue.io_failed = True
            return sqlite_files.IOERR_WRITE if call == "write" else sqlite_files.IOERR_FSYNC

        if files.fails is None:
            files.tears = lambda size: self.chance.randrange(0, size + 1, sqlite_files.SECTOR_BYTES)
            files.fails = fails

    def _power_off(self) -> None:
        for queue in self.queues:
            queue.kept_down = 0
            queue.ring_lost = True
            for truth in queue.truths.values():
                truth.power_failed = True  # parts of its files may be gone
        self.checker.close()
        self._is_off = True
        self.machine.power_off()
        self._is_off = False
        sqlite_files.files.lose(self.chance)
        for queue in self.queues:
            queue.kept_down = 0
            Path(f"{queue.layout.db}-shm").unlink(missing_ok=True)
            queue.worker, queue.worker_due = None, self.machine.awake_s
        self._check_restores()
        self.checker.booted()


def template(folder: Path) -> Path:
    """Create an empty database for all worlds."""
    db = folder / "template.db"
    migrate.create(db)
    with sqlite3.connect(db) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return db


def silence(log: Callable[[str], None]) -> None:
    """Give the lines of the worker's log to `log`."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            log(record.getMessage())

    logger = logging.getLogger("mpsq.worker")
    logger.handlers, logger.propagate = [Handler()], False
    logger.setLevel(logging.INFO)


__all__ = ["World", "adapt", "locks", "silence", "template", "wakeup"]
