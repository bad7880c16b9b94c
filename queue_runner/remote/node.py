"""On a node: run a block with an ordinary worker whose home is on local disk, and pass on what its runs write.

    python -m queue_runner.remote FOLDER [ended | died]

The first start takes the fence. Later starts exit at once, as after a scheduler lost its memory, unless they come from
the same allocation, or the same box, after the first one died: then they continue in its home with its worker.

SIGTERM, which comes before the limit of the allocation (`ended`: it has come), and the file `stop` end the current run
cleanly; runs that have not started stay undone. So does a start after too many deaths (`died`).
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from queue_runner.atomic_file import flush, replacing
from queue_runner.bundles import run_result
from queue_runner.control import cancellation, checkpoints
from queue_runner.decoding import convert
from queue_runner.errors import MpsqError
from queue_runner.host import lane_list, lane_locks, locks, redact, wakeup
from queue_runner.host.home import ensure_home
from queue_runner.host.processes import boot_id
from queue_runner.host.run_dir import RunDir
from queue_runner.host.stop_signal import StopSignal
from queue_runner.model import DEFAULT_LANE, Outcome, RunId, State, parse_selector
from queue_runner.paths import Layout
from queue_runner.remote import block, block_store, outputs
from queue_runner.remote.block import Instructions
from queue_runner.remote.block_store import BlockRun
from queue_runner.remote.fence import FenceHolder, take_fence
from queue_runner.remote.json_files import read_struct, write_json
from queue_runner.spec import OF_NODE, JobSpec
from queue_runner.store import jobs, lane_claims, migrate
from queue_runner.store.engine import looking, open_engine, writing
from queue_runner.worker.throttled_log import ThrottledLog

STEP_S = 0.5
ABANDON_S = 120.0
"""How long the end of a run is waited for where the supervisor itself has failed."""
MOST_STARTS = 5
"""Starts of the worker, which a block outlives."""
_OF_JOB = "slurm-"
_HOME = "mpsq-block-"
SWEEP_S = 60.0
"""Age of the last sign of a dead supervisor that nobody starts again: the batch script does so at once."""
DIED = "node_fail: the block's supervisor died too often on its box"
SIGNAL_S = 5.0
"""How long a run that SIGTERM has ended is kept back. After KillWait, 30 s, Slurm kills the rest."""
AHEAD = 2
"""Runs that a node may begin before their predecessors are published: the current one, and the next."""
_complain = ThrottledLog(logging.getLogger(__name__).warning)
"""Log to stderr, if it takes the text: it is a file on the disk that may be full."""


class Node:
    """A block on its node, from the fence to ended.json."""

    def __init__(self, folder: block.Folder, instructions: Instructions, home: Path) -> None:
        self._folder = folder
        self._instructions = instructions
        self._layout = Layout(home)
        self._stop, self._stop_at = "", 0.0
        self._stopping = StopSignal()
        self._starts = 0
        self._worker: subprocess.Popen[bytes] | None = None
        published = {run.name for run in instructions.runs if block.is_missing(folder.result(run.name)) is False}
        self._exported = published | {*instructions.origins.values()}
        self._resumed = {job.id for job in instructions.jobs if JobSpec.from_json(job.spec_json).resume}
        self._checkpoints: dict[str, object] = {}
        self._begun: dict[str, float | None] = {}
        self._cancelled: set[str] = set()
        self._beats = 0
        self.own_lanes: list[str] = []
        """Lanes that are named after this job, and gone with it."""

    def load(self) -> None:
        """Create the home with the jobs of the block. Raises: MpsqError, OSError."""
        loaded = self._layout.home / "loaded"
        if loaded.exists():
            self._engine = open_engine(self._layout.db)
            return
        shutil.rmtree(self._layout.home, ignore_errors=True)  # of a start that has died
        layout = ensure_home(self._layout.home)
        shutil.copytree(self._folder.snapshots, layout.snapshots, dirs_exist_ok=True)
        layout.config.write_text(self._instructions.settings)
        migrate.ensure(layout)
        for origin in {*self._instructions.origins.values()}:
            shutil.copytree(self._folder.origins / origin, layout.run_dir(origin) / "out", symlinks=True)
        self._engine = open_engine(layout.db)
        scheduled = {name: value for name, value in os.environ.items() if name.startswith(OF_NODE)}
        with writing(self._engine) as connection:
            if self._instructions.box:
                block_store.load(connection, layout, self._instructions, None, _of_a_login(), sys.executable)
            else:
                block_store.load(connection, layout, self._instructions, scheduled, {}, None)
            block_store.add_origins(connection, self._instructions)
        write_json(loaded, {})

    def run(self) -> str:
        """Work until every run is DONE or the block is to end; return why it ended, "" when all was done."""
        self._permit(self._export())
        while True:
            if block.is_missing(self._folder.path):
                self.stop("stopped: the folder of the block was removed")
            elif block.is_missing(self._folder.stop) is False:
                self.stop("stopped: the front ended the block")
            idle = bool(self._stop)
            with _tried_again():
                idle = self._keep_worker()
            with _tried_again():
                self._pass_on_cancels()
            remaining = self._export()
            self._permit(remaining)
            if not remaining or (idle and self._is_over(remaining)):
                return self._stop
            self._stopping.wait(STEP_S)

    def stop(self, why: str) -> None:
        """End the current run, start no other."""
        if not self._stop:
            self._stop, self._stop_at = why, time.time()
        self._stopping.set()

    def close(self) -> None:
        """End the worker; a run that it left has ended, or ends with its warden's grace."""
        if self._worker is not None and self._worker.poll() is None:
            self._worker.terminate()
            self._worker.wait()
        deadline = time.monotonic() + ABANDON_S
        while time.monotonic() < deadline and locks.worker(self._layout.home)[0]:
            time.sleep(STEP_S)

    def _keep_worker(self) -> bool:
        """Start the worker where it has died; return whether it has nothing more to do."""
        if self._worker is None or self._worker.poll() not in (None, 0):
            if locks.worker(self._layout.home)[0]:
                return False  # the worker of a supervisor that has died
            if self._starts >= MOST_STARTS:
                self._stop = self._stop or f"worker: it died {MOST_STARTS} times"
                return True
            env = {**os.environ, "MPSQ_HOME": str(self._layout.home)}
            if not self._instructions.whole:
                env[lane_locks.PART] = " ".join(part := part_given())
                self.own_lanes = [unit for unit in part if unit.startswith(_OF_JOB)]
            with self._folder.log.open("ab") as log:
                self._worker = subprocess.Popen(
                    [sys.executable, "-m", "queue_runner.worker", "--until-idle"],
                    env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                )  # fmt: skip
            self._starts += 1
        return self._worker.poll() is not None

    def _is_over(self, remaining: list[BlockRun]) -> bool:
        """Return whether an idle worker leaves these runs for good: they are held, or the block is to end. A run that
        is DONE is among them while the shared folder does not take what it wrote."""
        if any(row.state == State.DONE for row in remaining):
            return False
        if any(row.state == State.RUNNING for row in remaining):
            self._worker = None
            return self._starts >= MOST_STARTS
        return True

    def abandon(self) -> None:
        """End what runs, after an error of this program: nothing may be left on a node that the front calls free."""
        self.stop("error: the node's supervisor failed")
        if self._worker is None:
            return
        deadline = time.monotonic() + ABANDON_S
        self._end_current()
        while time.monotonic() < deadline and not self._keep_worker():
            time.sleep(STEP_S)

    def _end_current(self) -> None:
        if "*" not in self._cancelled:
            with writing(self._engine) as connection:
                lane_claims.pause(connection, DEFAULT_LANE, self._stop)
                running = jobs.running(connection, DEFAULT_LANE)
                if running is not None:
                    jobs.request_cancel(connection, [running.run_id], actor="worker")
            if running is not None:
                RunDir(self._layout.run_dir(running.id)).request_cancel(self._stop)
            self._cancelled.add("*")

    def _pass_on_cancels(self) -> None:
        if self._stop:
            self._end_current()
        names: set[str] = set()
        with contextlib.suppress(FileNotFoundError):
            names = {path.name for path in self._folder.cancels.iterdir()} - self._cancelled
        for name in sorted(names & {run.name for run in self._instructions.runs}):
            cancellation.cancel(self._layout, [parse_selector(name)], grace_s=None, within_s=0.0)
            self._cancelled.add(name)

    def _export(self) -> list[BlockRun]:
        """Pass on new results; return the runs that are not DONE. A full shared folder is tried again."""
        with looking(self._engine) as connection:
            rows = block_store.all_runs(connection)
        self._beats += 1
        with contextlib.suppress(OSError):
            os.utime(self._layout.home.with_suffix(".lock"))  # `sweep` looks at it
        now = next((row.name for row in rows if row.state == State.RUNNING), None)
        if block.is_missing(self._folder.path):
            return [row for row in rows if row.state != State.DONE]
        with _tried_again():
            write_json(self._folder.beat, {"count": self._beats, "run": now}, durable=False)
        for row in rows:
            if row.name not in self._exported and row.state in (State.RUNNING, State.DONE):
                with _tried_again():
                    self._pass_on(row)
        return [row for row in rows if row.state != State.DONE or row.name not in self._exported]

    def _permit(self, remaining: Sequence[BlockRun]) -> None:
        """Let the next runs begin, once the folder of the block says so: whatever becomes of the node, the front knows
        which runs cannot have begun."""
        with looking(self._engine) as connection:
            waiting = block_store.not_permitted(connection)
        open_ = [row for row in remaining if row.run_id not in waiting]
        following = waiting[: max(0, AHEAD - len(open_))]
        if not following or self._stop:
            return
        names = [row.name for row in remaining if row in open_ or row.run_id in following]
        with _tried_again():
            write_json(self._folder.permitted, {"runs": names})
            with writing(self._engine) as connection:
                block_store.permit(connection, following)
            wakeup.ring(self._layout.fifo)

    def _pass_on(self, row: BlockRun) -> None:
        name, source = row.name, RunDir(self._layout.run_dir(row.name))
        target = self._folder.run(name)
        if self._begun.get(name, 0.0) != row.started_at:
            target.path.mkdir(mode=0o700, exist_ok=True)
            write_json(target.path / "began.json", {"at": row.claimed_at, "started": row.started_at})
            self._begun[name] = row.started_at
        is_taken = self._is_taken(row) if row.state == State.DONE else None
        left_out = block.fetch(source, target, whole=is_taken is not None)
        if is_taken is None:
            if row.job_id in self._resumed:
                with contextlib.suppress(checkpoints.Gone):  # the job has replaced it meanwhile
                    self._publish_checkpoint(name)
            return
        for stream in block.STREAMS:
            with contextlib.suppress(FileNotFoundError):
                flush(target.path / stream)
        self._publish(row, outputs.note(left_out) + [(block.TAKEN_NOTE, block.TAKEN)] * is_taken)
        self._exported.add(name)

    def _is_taken(self, row: BlockRun) -> bool | None:
        """Return whether the scheduler has ended a run; None while that is not known: its signal may reach the job
        before it reaches this process."""
        if self._instructions.box or row.name in self._cancelled or row.claimed_at is None:
            return False
        with looking(self._engine) as connection:
            outcome, number, ended_at = block_store.end_of(connection, row.run_id)
        is_signalled = number == signal.SIGTERM
        if outcome is Outcome.SUCCEEDED or self._stop not in ("", block.TAKEN):
            return False
        if self._stop:
            return is_signalled or ended_at > self._stop_at - 1.0
        return None if is_signalled and time.time() < ended_at + SIGNAL_S else False

    def _publish(self, row: BlockRun, notes: list[tuple[str, str]]) -> None:
        """Write the result of a run that is DONE. It is made on the local disk, as SQLite needs. Raises: OSError."""
        made = self._layout.home / block.RESULT
        run_result.publish(self._layout, row.run_id, notes, made)
        with replacing(self._folder.result(row.name), durable=True) as partial:
            shutil.copyfile(made, partial)

    def _publish_checkpoint(self, name: str) -> None:
        """Copy the newest checkpoint of a run that goes on: its node may be taken at any time. Raises: OSError."""
        newest = checkpoints.in_folder(RunDir(self._layout.run_dir(name)).out)
        stamp = newest and (newest, newest.stat().st_mtime_ns, newest.stat().st_size)
        if newest is None or self._checkpoints.get(name) == stamp:
            return
        with outputs.replacing_folder(self._folder.run(name).out) as out:
            checkpoints.copy(self._layout, RunId(*map(int, name.split("."))), out)
        self._checkpoints[name] = stamp


@contextlib.contextmanager
def _tried_again() -> Iterator[None]:
    """Report an error once, of a full disk or a shared folder that does not answer: the next step tries again."""
    try:
        yield
    except (OSError, MpsqError) as error:
        _complain(f"{error}; mpsq tries again")


def about_here() -> FenceHolder:
    """Return the host, and what Slurm calls it and the job."""
    node, job = os.environ.get("SLURMD_NODENAME"), os.environ.get("SLURM_JOB_ID")
    return FenceHolder(host=socket.gethostname(), node=node, job=job)


def part_given(library: Any = None) -> list[str]:
    """Return what Slurm gave this job of the machine, as `lanes.units` names it: its GPUs, and its processors where it
    is bound to these; a name of its own where neither is known."""
    visible = [word for word in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if word]
    gpus = [word for word in visible if not word.isdecimal()]  # MIG slices
    if visible and not gpus:
        there = lane_list.gpus(library=library)
        gpus = there  # confined to its own
        if len(there) > len(visible):
            numbers = os.environ.get("SLURM_JOB_GPUS", ",".join(visible)).split(",")
            gpus = [there[int(number)] for number in numbers if number.isdecimal() and int(number) < len(there)]
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    bound = sorted(cores) if len(cores) < (os.cpu_count() or 1) else []
    return [*gpus, *(f"cpu:{core}" for core in bound)] or [f"{_OF_JOB}{os.environ.get('SLURM_JOB_ID', os.getpid())}"]


def _of_a_login() -> dict[str, str]:
    """Return the variables of this login for the jobs, with this interpreter first on the PATH."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("SSH_", "MPSQ_"))}
    path = os.pathsep.join((str(Path(sys.executable).parent), env.get("PATH", os.defpath)))
    return redact.inherited({**env, "PATH": path})


def main(arguments: list[str]) -> int:
    """Run a block. Return 0 when it ended as it should, also where another start has run it."""
    folder = block.Folder(Path(arguments[0]))
    instructions = convert(json.loads(folder.instructions.read_bytes()), Instructions)
    box = instructions.box
    temporary = Path(instructions.local or tempfile.gettempdir())
    home = folder.home if box else temporary / f"{_HOME}{folder.path.name}"
    about = replace(about_here(), pid=os.getpid(), at=time.time(), boot=boot_id())
    may_run = take_fence(folder.fence, about) or _may_continue(folder, home, box=box)
    lock = locks.try_lock(home.with_suffix(".lock")) if may_run else None
    if lock is None:
        print("this block was started before, or is void: nothing to do", file=sys.stderr)
        return 0
    if not box:
        sweep(temporary)
    node = Node(folder, instructions, home)
    taken = "stopped: the box ended it, as at its shutdown" if box else block.TAKEN
    signal.signal(signal.SIGTERM, lambda *_: node.stop(taken))
    if "ended" in arguments[1:]:
        node.stop(taken)
    if "died" in arguments[1:]:
        node.stop(DIED)
    ended = "error: the node could not begin"
    try:
        node.load()
        ended = node.run()
    except BaseException as error:
        ended = f"error: {type(error).__name__}: {error}"
        node.abandon()
        raise
    finally:
        node.close()
        _say_ended(folder, ended)
        shutil.rmtree(home, ignore_errors=True)
        for path in (home.with_suffix(".lock"), *map(locks.lane_lock_path, node.own_lanes)):
            path.unlink(missing_ok=True)
        lock.close()
    return 0


def sweep(temporary: Path) -> None:
    """Remove the homes of blocks that were killed on this node; one that has just died may still be started again."""
    for path in temporary.glob(f"{_HOME}*.lock"):
        with contextlib.suppress(OSError, MpsqError):  # as of another user
            home = path.with_suffix("")
            is_old = path.stat().st_uid == os.getuid() and time.time() - path.stat().st_mtime > SWEEP_S
            if not is_old or (home.is_dir() and locks.worker(home)[0]):
                continue
            if (lock := locks.try_lock(path)) is not None:
                with lock:
                    shutil.rmtree(home, ignore_errors=True)
                    path.unlink()
    for path in locks.lock_dir().glob(f"lane-{_OF_JOB}*.lock"):
        if (lock := locks.try_lock(path)) is not None:  # between two runs it is made anew
            with lock:
                path.unlink(missing_ok=True)


def _may_continue(folder: block.Folder, home: Path, *, box: bool) -> bool:
    """Return whether the block was begun here, on this box or in this allocation, and has not ended."""
    fence = read_struct(folder.fence, FenceHolder)
    if fence is None or fence.void is not None or folder.ended.exists():
        return False
    if box:
        return True
    here = about_here()
    same = (here.host, here.node, here.job) == (fence.host, fence.node, fence.job)
    return here.job is not None and same and home.is_dir()


def _say_ended(folder: block.Folder, why: str) -> None:
    """Write ended.json, however long the folder takes nothing: without it the front has to guess."""
    while not block.is_missing(folder.path):
        try:
            write_json(folder.ended, {"why": why, "at": time.time()})
            return
        except OSError as error:
            _complain(f"ended.json cannot be written: {error}")
            time.sleep(STEP_S)
