"""The worker: the wiring of APScheduler. `mpsq worker` execs into it, launchd and systemd start it.

Its jobs are kept in memory only and run by one thread, so steps never overlap. What must happen is in our own tables;
the scheduler only says when (reference: APScheduler 3.11, MemoryJobStore).
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import pickle
import resource
import signal
import socket
import sqlite3
import stat
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.jobstores.base import JobLookupError
from apscheduler.schedulers.background import BackgroundScheduler

import queue_runner
from queue_runner import config_file, extensions, paths, units
from queue_runner.errors import (
    AlreadyRunning,
    ConfigError,
    DamageError,
    MpsqError,
    OwnershipError,
    RunActive,
    SchemaError,
    UsageError,
)
from queue_runner.host import locks, ownership, reserve, wakeup
from queue_runner.host.home import ensure_home
from queue_runner.host.run_dir import cut_middle
from queue_runner.host.stop_signal import StopSignal
from queue_runner.store import backup, jobs, migrate, read
from queue_runner.store.engine import checkpoint, looking, open_engine
from queue_runner.worker import warden_starter
from queue_runner.worker.hooks import Hooks
from queue_runner.worker.steps import Steps
from queue_runner.worker.throttled_log import ThrottledLog

BUSY_TICK_S = 1.0
"""Interval of the steps beside a run."""
WATCH_TICK_S = 10.0
"""The same while there is nothing to do but to watch runs: a step follows at once when one of them has news."""
UPKEEP_EVERY_S = 300.0
HOOKS_EVERY_S = 60.0
"""Interval at which the hooks are called in case a ring gets lost."""
PARTS_EVERY_S = 1.0
"""Interval at which the parts of optional packages are called while one has something to do, or may have; `poll_s`
otherwise."""
LOOK_UP_S = 1.0
SET_BACK_S = 1.0
"""Smallest backward step of the wall clock that is handled: no tick notices less."""
LONG_LOG_BYTES = 16 << 20
LONG_LOG_EVERY_S = 30.0
"""SQLite's log is written back before the next upkeep is due if it is longer than LONG_LOG_BYTES, but not more often
than this: 25 short runs a second write a gigabyte between two upkeeps."""
STUCK_S = 3600.0
"""A step that takes longer counts as stuck: systemd restarts the worker then."""

OPEN_FILES = 4096
"""The limit of open files of a job on a Mac, as in the service's definition: a terminal's programs have 256, too few
for data loaders and caches of many files. macOS's own limit (OPEN_MAX, 10,240) is above it."""

log = logging.getLogger("mpsq.worker")


class ServiceManager:
    """The service manager that started this process, and gets our messages by sd_notify(3); without one, nothing is
    sent.

    Its variables are removed from the environment: jobs and hooks must not inherit them.
    """

    def __init__(self) -> None:
        self._address = os.environ.pop("NOTIFY_SOCKET", "")
        self._watchdog_us = os.environ.pop("WATCHDOG_USEC", "")
        os.environ.pop("WATCHDOG_PID", None)

    def started(self) -> None:
        """Tell that the start is over. An upgrade may follow, which can take long, so the watchdog sleeps."""
        self._tell("READY=1", f"WATCHDOG_USEC={2**64 - 1}")

    def works(self) -> None:
        """Wake the watchdog, which from now on expects `alive`."""
        if self._watchdog_us:
            self._tell(f"WATCHDOG_USEC={self._watchdog_us}")

    def alive(self) -> None:
        """Tell that this process still works."""
        if self._watchdog_us:
            self._tell("WATCHDOG=1")

    def _tell(self, *lines: str) -> None:
        if not self._address:
            return
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto("\n".join(lines).encode(), address)


class Worker:
    """A worker that holds worker.lock and the lanes, and steps them on every ring and every tick."""

    def __init__(
        self,
        layout: paths.Layout,
        settings: config_file.Config,
        held: locks.Lock,
        manager: ServiceManager,
        *,
        until_idle: bool,
        is_service: bool = False,
    ) -> None:
        self._layout = layout
        self._manager = manager
        self._step_began_at: float | None = None
        self._log_seen_at = time.monotonic() - LONG_LOG_EVERY_S
        self._held = held
        self._log_bytes, self._service_label = settings.keep_worker_log_bytes, settings.service_label
        self._until_idle = until_idle
        self._db_file = _file_id(layout.db)
        self._code = _version_of_code() if is_service else None
        self._engine = open_engine(layout.db, keep_open=True)
        self._steps = Steps(layout, settings, self._engine, log.info)
        self._hooks = Hooks(layout, settings, self._engine, log.info, lambda: self._steps.now.stuck)
        self._parts = extensions.worker_parts(layout, settings, self._engine, log.info)
        self._complain = ThrottledLog(log.error)
        self._stopped = StopSignal()
        self._rung = threading.Event()
        self._is_expected = threading.Event()  # a submission
        self._turn = threading.Lock()  # held by a step, and before the shutdown: see run
        self._is_idle = False
        self._idle_tick_s = settings.poll_s
        self._ticks_s = {"step": self._idle_tick_s, "parts": PARTS_EVERY_S}
        self._parts_are_busy = self._parts_are_asked = True
        self._wall_ahead_s = time.time() - time.monotonic()
        self._scheduler = BackgroundScheduler(
            # hooks have a thread of their own: one that hangs delays no step
            executors={name: ThreadPoolExecutor(1) for name in ("default", "hooks", "parts")},
            # two instances of a job: one that runs and one behind it in the executor, so that no ring is dropped
            job_defaults={"misfire_grace_time": None, "coalesce": True, "max_instances": 2},
            timezone=UTC,
        )

    def run(self) -> None:
        """Work until a signal stops it. A run in progress then continues under its warden (detach).

        Raises: DamageError when the database was removed or replaced meanwhile; what it held is in a backup then.
        MpsqError when it has to start anew.
        """
        with read.reading(self._layout.db) as opened:
            self._work()
            if self._lost_the_database():
                raise self._rescued(opened)
        checkpoint(self._layout.db)
        self._engine.dispose()
        if self._was_upgraded():
            raise MpsqError("mpsq was upgraded while the worker ran", "its service restarts it as the new version")

    def _work(self) -> None:
        reserve.keep(self._layout)
        bell = wakeup.listen(self._layout.fifo)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup and a script's background jobs ignore it
                signal.signal(number, lambda *_: self._stopped.set())
        self._scheduler.add_job(
            self._step, "interval", seconds=self._ticks_s["step"], id="step", next_run_time=datetime.now(UTC)
        )
        self._scheduler.add_job(self._upkeep, "interval", seconds=UPKEEP_EVERY_S, id="upkeep")
        self._scheduler.add_job(
            self._call_hooks,
            "interval",
            seconds=HOOKS_EVERY_S,
            id="hooks",
            executor="hooks",
            next_run_time=datetime.now(UTC),
        )
        self._scheduler.add_job(
            self._step_parts,
            "interval",
            seconds=self._ticks_s["parts"],
            id="parts",
            executor="parts",
            max_instances=1,
            next_run_time=datetime.now(UTC),
        )
        self._scheduler.start()
        threading.Thread(target=self._answer, args=[bell], daemon=True).start()
        self._manager.works()
        while not self._stopped.wait(LOOK_UP_S):  # handles signals that another thread received
            self._look_at_the_clock()
            self._look_at_the_log()
            if self._step_began_at is None and self._steps.has_news():
                self._step_now()
            if time.monotonic() - (self._step_began_at or time.monotonic()) < STUCK_S:
                self._manager.alive()
        with self._turn:  # shutdown waits for a step while it holds the lock with which a step sets its next time
            self._scheduler.pause()  # else a job that falls due meanwhile is submitted to an executor that is gone
        self._hooks.stop()
        for part in self._parts:
            part.stop()
        self._scheduler.shutdown(wait=True)
        self._steps.stop()

    def _lost_the_database(self) -> bool:
        """Return whether another file or none is under the name of the database, so that only this worker can still
        read what it stores."""
        try:
            return _file_id(self._layout.db) != self._db_file
        except FileNotFoundError:
            return True
        except OSError:
            return False  # the folder cannot be reached for the moment

    def _was_upgraded(self) -> bool:
        """Return whether another mpsq is in the place of this one: what a service then imported would not fit to what
        it has. A worker without a manager to start it again goes on."""
        return self._code is not None and _version_of_code() not in (self._code, None)

    def _rescued(self, opened: sqlite3.Connection) -> MpsqError:
        """Save what this worker can still read; in the user's data folder if the home is gone, too. An empty queue is
        not saved: as one that was begun in the folder on which a disk was then mounted."""
        if opened.execute("SELECT 1 FROM jobs LIMIT 1").fetchone() is None:
            return MpsqError(f"the database {self._layout.db}, still empty, was removed or replaced", "start it again")
        gone = not self._layout.home.exists()
        place = paths.Layout(paths.data_folder()) if gone else self._layout
        saved = backup.make_from(opened, place, backup.RESCUED)
        return DamageError(
            f"the database {self._layout.db} was removed or replaced while the worker ran: its content is saved as"
            f" {saved}",
            f"mpsq db restore{f' {saved}' if gone else ''} restores that; a run in progress continues meanwhile",
        )

    def _look_at_the_clock(self) -> None:
        """Make all jobs due now if the wall clock was set back: the scheduler uses it, and would wait for the
        difference while a run goes unobserved."""
        before, self._wall_ahead_s = self._wall_ahead_s, time.time() - time.monotonic()
        if self._wall_ahead_s < before - SET_BACK_S:
            log.info("the clock was set back by %.0f s", before - self._wall_ahead_s)
            for job in self._scheduler.get_jobs():
                job.modify(next_run_time=datetime.now(UTC))

    def _look_at_the_log(self) -> None:
        if time.monotonic() - self._log_seen_at >= LONG_LOG_EVERY_S:
            self._log_seen_at = time.monotonic()
            with contextlib.suppress(OSError):
                if Path(f"{self._layout.db}-wal").stat().st_size > LONG_LOG_BYTES:
                    self._step_now("upkeep")

    def _upkeep(self) -> None:
        self._log_seen_at = time.monotonic()
        reserve.keep(self._layout)
        checkpoint(self._layout.db)
        with contextlib.suppress(OSError, RuntimeError):  # there is no such log; the user has no home
            self._cut_log()
        self._held.touch()  # cleaners of temporary files spare a young lock

    def _cut_log(self) -> None:
        """Cut the log that this process writes: no service manager rotates it. Only where it is not the queue's, the
        user's home is looked at, which may be on a network drive that is gone."""
        output, log_file = os.fstat(2), self._layout.worker_log
        if not stat.S_ISREG(output.st_mode):
            return
        if not (log_file.exists() and os.path.samestat(log_file.stat(), output)):
            log_file = paths.launchd_log(self._service_label, Path.home())
        if os.path.samestat(log_file.stat(), output):
            cut_middle(log_file, self._log_bytes, self._log_bytes // 4)

    def _answer(self, bell: int) -> None:
        while rung := os.read(bell, 4096):
            if wakeup.SOON in rung:
                self._is_expected.set()
            self._rung.set()
            self._parts_are_busy = self._parts_are_asked = True
            self._step_now()

    def _step_now(self, job: str = "step") -> None:
        self._step_at(datetime.now(UTC), job)

    def _step_at(self, moment: datetime, job: str = "step") -> None:
        with contextlib.suppress(JobLookupError):  # the bell may ring once more after the shutdown
            self._scheduler.modify_job(job, next_run_time=moment)

    def _step_every(self, tick_s: float, job: str = "step") -> None:
        if tick_s != self._ticks_s[job]:
            self._ticks_s[job] = tick_s
            self._scheduler.reschedule_job(job, trigger="interval", seconds=tick_s)

    def _has_work(self) -> bool:
        return self._steps.now.something_waits or self._hooks.busy() or any(part.busy() for part in self._parts)

    def _n_left(self) -> int | None:
        """Return how many runs are queued, of which none can start; None if the queue has changed since the step."""
        with looking(self._engine) as connection:
            if jobs.last_event(connection) != self._steps.now.last_event:
                return None
            return int(connection.value("SELECT count(*) FROM runs WHERE state = 'QUEUED'"))

    def _step_parts(self) -> None:
        self._parts_are_asked = are_busy = False
        for part in self._parts:
            try:
                are_busy |= part.step()
            except MpsqError as error:
                are_busy = True
                self._complain(error.with_remedy)
            except Exception as error:
                are_busy, trace = True, traceback.format_exc()
                self._complain(f"{type(part).__name__} failed and will be tried again: {error!r}", trace)
        self._parts_are_busy = are_busy or self._parts_are_asked
        self._step_if_it_may_end()

    def _call_hooks(self) -> None:
        try:
            self._hooks.step()
        except MpsqError as error:
            self._complain(f"hooks: {error.with_remedy}")
        except Exception as error:
            self._complain(f"a hook could not be called: {error!r}", traceback.format_exc())
        self._step_if_it_may_end()

    def _step_if_it_may_end(self) -> None:
        if self._until_idle:
            with self._turn:  # the shutdown waits for this thread while it holds the lock that setting a time needs
                if not self._stopped.is_set():
                    self._step_now()

    def _step(self) -> None:
        with self._turn:
            if not self._stopped.is_set():
                self._step_began_at = time.monotonic()
                self._step_once()
                self._step_began_at = None

    def _step_once(self) -> None:
        self._rung.clear()
        if self._lost_the_database() or self._was_upgraded():
            self._stopped.set()
            return
        try:
            active = self._steps.step()
            was_idle, self._is_idle = self._is_idle, not active and not self._steps.now.something_waits
            becomes_idle = self._is_idle and not was_idle
            if self._steps.now.last_event > self._hooks.last_event or (becomes_idle and self._hooks.awaits_idle):
                self._step_now("hooks")
            if self._is_expected.is_set():
                self._is_expected.clear()
                self._steps.get_ready()
            ended = self._until_idle and not active and not self._has_work()
            n_left = self._n_left() if ended else None
        except MpsqError as error:
            self._complain(error.with_remedy)
            return
        except Exception as error:
            self._complain(f"a step failed and will be retried: {error!r}", traceback.format_exc())
            return
        if n_left is not None:
            self._stopped.set()
            if n_left:
                log.info("%s cannot start without you: mpsq status says why", units.counted(n_left, "run"))
        busy_tick_s = WATCH_TICK_S if self._steps.watched else BUSY_TICK_S
        tick_s = busy_tick_s if active else self._idle_tick_s
        self._step_every(tick_s)
        self._step_every(PARTS_EVERY_S if self._parts_are_busy else max(PARTS_EVERY_S, self._idle_tick_s), "parts")
        due = self._steps.next_change_at
        if due is not None and due - time.time() < tick_s:
            self._step_at(datetime.fromtimestamp(due, UTC))
        if self._rung.is_set():
            self._step_now()  # the ring came during the step, and rescheduling may have overwritten it


def _file_id(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino


def _version_of_code() -> tuple[int, ...] | None:
    """Return what an installation changes in any case; None in the middle of one."""
    try:
        status = Path(queue_runner.__file__).stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the worker. Returns its exit code: 75 when another worker holds the queue, and 0 instead of any code that a
    restart cannot fix when a service manager started it (`--service`)."""
    parser = argparse.ArgumentParser(prog="mpsq worker", description="run the queue, one job at a time")
    parser.add_argument("--service", action="store_true", help="started by launchd or systemd")
    parser.add_argument("--until-idle", action="store_true", help="exit when no job is queued or running")
    parser.add_argument("--on-request", action="store_true", help="begin at a line on standard input")
    options = parser.parse_args(arguments)
    if options.on_request and not _is_requested():
        return 0
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO, stream=sys.stderr)
    for library in ("apscheduler", "alembic"):
        logging.getLogger(library).setLevel(logging.ERROR)
    manager = ServiceManager()
    warden_starter.warden_code()  # before an upgrade can change it
    try:
        layout = ensure_home(need_bytes=0)  # the disk may become free again: keep trying
        ownership.secure_runs(layout)
        settings = config_file.load(layout.config)
        held = _take(layout, options.until_idle, manager if options.service else None)
        manager.started()
        _refuse_damaged(layout)
        _migrate(layout)
        allow_open_files()
        log.info("worker %d on %s", os.getpid(), layout.home)
        for sentence in config_file.removed(layout.config):
            log.warning("%s", sentence)
        Worker(layout, settings, held, manager, until_idle=options.until_idle, is_service=options.service).run()
        held.close()
    except MpsqError as error:
        log.error("%s", error.message)
        if error.hint:
            log.error("hint: %s", error.hint)
        return 0 if options.service and isinstance(error, _NO_RESTART_MENDS) else error.exit_code
    return 0


def allow_open_files(platform: str = sys.platform) -> None:
    """Raise the limit of this process, which its children inherit, on macOS; elsewhere the default suffices."""
    if platform != "darwin":
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < limit:
        with contextlib.suppress(OSError, ValueError):  # jobs keep the lower limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def _is_requested() -> bool:
    """Wait for a line on standard input, then close it; return whether there was one."""
    requested = bool(os.read(0, 1))  # read no further: the next line is for the next worker
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    return requested


_NO_RESTART_MENDS = (AlreadyRunning, ConfigError, DamageError, OwnershipError, SchemaError, UsageError)
"""Errors that a restart by a service manager cannot fix; a full disk or a folder that is not mounted yet may be
fixed."""


def _migrate(layout: paths.Layout) -> None:
    """Migrate the database to our schema. A run that was started before the upgrade is waited for: it is active."""
    logged = False
    while True:
        try:
            if read.schema_revision(layout.db) != read.HEAD:
                _migrate_in_child(layout)
            return
        except RunActive as error:
            if not logged:
                log.info("%s; the worker starts when it has ended", error.message)
            logged = True
            time.sleep(BUSY_TICK_S)


def _migrate_in_child(layout: paths.Layout) -> None:
    """Migrate in a child process: SQLAlchemy and Alembic would keep 25 MB of this one as long as it lives.

    Raises: MpsqError as `migrate.upgrade`.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        error: BaseException | None = None
        try:
            migrate.upgrade(layout, holds_worker_lock=True)
        except BaseException as raised:
            error = raised
        with contextlib.suppress(Exception):
            os.write(writer, pickle.dumps(error))
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as answer:
        pickled = answer.read()
    os.waitpid(child, 0)
    if not pickled:
        raise MpsqError("the upgrade of the database ended early", "start the worker again to continue it")
    if error := pickle.loads(pickled):
        raise error


def _refuse_damaged(layout: paths.Layout) -> None:
    """Raise DamageError for a database in which SQLite finds damage: its rows may start the wrong run."""
    if read.schema_revision(layout.db) is not None and (problems := backup.problems(layout.db, quick=True)):
        raise DamageError(f"the database is damaged: {problems[0]}", backup.remedy(layout))


def _take(layout: paths.Layout, until_idle: bool = False, service: ServiceManager | None = None) -> locks.Lock:
    """Take the queue. A `service` waits for a worker that ends with the queue's work: a waiting command has started it
    while the service was down, for an upgrade, and nobody would start the service again.

    Raises: AlreadyRunning.
    """
    waits, path = False, locks.worker_lock_path(layout.home)
    while (held := locks.try_worker(layout.home)) is None:
        holder = (locks.read_holder(path) if locks.is_held(path) else None) or {}
        error = AlreadyRunning(
            f"another worker (process {holder.get('pid', 'unknown')}) runs this queue",
            "mpsq status shows what that worker does",
        )
        if service is None or not holder.get("until_idle"):
            raise error
        if not waits:
            log.info("%s until it is idle; this one waits", error.message)
            service.started()
        waits = True
        time.sleep(BUSY_TICK_S)
    try:
        held.write_holder({"home": str(layout.home), "until_idle": until_idle})
    except OSError:
        held.forget_holder()  # the disk is full: nobody knows our process id then
    return held
