"""Act on one lane: watch and end its run, start the next one. Only from the state on disk.

A new worker and one that has run for weeks do the same (docs/supervision.md, Deaths). decide.py decides; steps.py does
the work that all lanes share.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Mapping

from msgspec import Struct

from queue_runner import lanes
from queue_runner.config_file import Config
from queue_runner.control import checkpoints, pausing
from queue_runner.errors import MpsqError
from queue_runner.host import child, failpoints, job_secrets, lane_locks, processes, protected, trash, wakeup
from queue_runner.host.keep_awake import keep_awake
from queue_runner.host.lane_locks import Hold, LaneLocks
from queue_runner.host.processes import boot_id
from queue_runner.host.run_dir import RunDir, read_end
from queue_runner.host.warden_records import RunEnd
from queue_runner.ingest.outcome import of_exit, of_silence
from queue_runner.lanes import Lane
from queue_runner.model import DEFAULT_LANE, IN_COPY, Ending, Obstacle, Outcome, RunId
from queue_runner.paths import Layout
from queue_runner.source import archive, verify, working_copy
from queue_runner.store import jobs, lane_claims, results, retries
from queue_runner.store.engine import Engine, looking, writing
from queue_runner.store.jobs import Claimed, Following
from queue_runner.store.lane_claims import Blocked
from queue_runner.text import last_line, plain
from queue_runner.warden.instructions import NOTHING_LEFT
from queue_runner.worker import launch, preflight_end
from queue_runner.worker.finish import finish
from queue_runner.worker.gate import Gate
from queue_runner.worker.gate_load import Load
from queue_runner.worker.now import ActiveRun, Clocks, LaneNow
from queue_runner.worker.observer import Observer
from queue_runner.worker.warden_starter import WardenStarter

RETRY_AFTER_S = 30.0
"""How long a lane stays blocked after a start that the machine refused (full disk, no more processes)."""
PATIENCE_S = 1.0
"""How long a start waits for the code of its run; the other lanes and the end of the worker wait meanwhile."""
GPU_LOOK_EVERY_S = 0.25
"""Interval at which the worker asks whether the look at the GPU after a run, which takes some seconds, has ended."""
RETURN_S = 10.0
"""How long the files of an ended run may take to return to the user's folder; the other lanes wait meanwhile."""
READY_S = 10.0
"""How long a submission that has begun may take to be stored."""
EXIT_S = 0.1
"""How long the exit of a warden that has released its lane may take; then the run's processes are looked for."""
MAX_FRUITLESS_STARTS = 5
"""Number of successive wardens that may die before they write the fence, until the run is given up as SPAWN_FAILED."""

_FAULTS = (ArithmeticError, LookupError, RecursionError, ValueError)
"""Errors that the data of a run raise by a mistake of ours: before its start they cost that run, and not the night.
Those of an upgrade below a worker are others, and pass."""


class _Launching(Struct, frozen=True):
    """A claimed run whose code is being read. `origin` is the run whose checkpoint it resumes from."""

    run: Claimed
    origin: RunId | None
    look: verify.Look


class Supervisor:
    """The owner of one lane of one queue. Only the holder of worker.lock may make one."""

    def __init__(
        self,
        layout: Layout,
        config: Config,
        engine: Engine,
        log: Callable[[str], None],
        starter: WardenStarter,
        wardens: Mapping[str, int],
        lane: Lane | None = None,
        clocks: Clocks | None = None,
    ) -> None:
        """`wardens` are those of all runs of the queue by lane, kept up to date. Without `lane`: of the machine."""
        self.lane = lane or Lane(DEFAULT_LANE)
        self._other_wardens = lambda: [pid for name, pid in wardens.items() if name != self.lane.name]
        self._layout = layout
        self._config = config
        self._engine = engine
        self._starter = starter
        self._log = log
        self._clocks = clocks or Clocks()
        units = lanes.parts(self.lane.name) if self.lane.kind == "cuda" else lane_locks.part()
        uuids = [unit for unit in units if unit.startswith(("GPU-", "MIG-"))]
        self.gate = Gate(engine, config, Load(gpus=uuids))
        self._locks = LaneLocks(self.lane.name, self.lane.cores)
        self._held: Hold | None = None
        self._launching: _Launching | None = None
        self._reader = child.Child(verify.__name__)
        self._ready_until: float | None = None
        self._warden: int | None = None  # the process id of the last warden that this worker has started, until its end
        self._supervised = 0  # the run of the last warden that this worker has started
        self._nothing_left = False  # its warden reported at its end that no process of that run is left
        self._observer: Observer | None = None
        self._kept_awake: int | None = None  # the run for which the machine is kept awake
        self._blocked: Blocked | None = Blocked("not known yet")  # an earlier worker may have left it blocked
        self._not_before = 0.0
        self._gpu_look_at: float | None = None  # when to ask again what the GPU did after the last run
        self._fruitless = 0
        self._has_given_up = False  # a run for that reason, and none has started since

    # -- the state of the lane -----------------------------------------------------------------------------------------

    def state(self) -> LaneNow:
        """Return the state of the lane."""
        cools = self.in_cooldown
        if not cools:
            self._not_before = 0.0  # only here: a cooldown that ends after this look still makes the next step due
        return LaneNow(
            held=self._held is not None,
            cools=cools,
            reserved=self._locks.is_reserved,
            waiting_run=self.gate.waits_for,
            blocked=self._blocked,
        )

    @property
    def due(self) -> float | None:
        """When (Unix seconds) the gate looks again, the GPU is checked after a run, or something may start again."""
        pause_s = max(self._not_before - self._clocks.steady(), 0.0)
        over_at = self._clocks.wall() + pause_s if self._not_before else None
        return min((at for at in (self.gate.due, self._gpu_look_at, over_at) if at is not None), default=None)

    @property
    def in_cooldown(self) -> bool:
        """Whether nothing may start yet: the last run has just ended, or the machine has refused to start one."""
        return self._clocks.steady() < self._not_before

    def held_elsewhere(self) -> str:
        """Return in words what another queue runs on the lane; "" if no process holds a lock of it."""
        return self._locks.held_by(self._layout.home) if self._locks.is_held() else ""

    def reads_code(self, run_id: int) -> bool:
        """Return whether the code of this run is still being read before its start."""
        return self._launching is not None and self._launching.run.run_id == run_id

    def warden_pid(self) -> int | None:
        """Return the pid of the warden that this worker has started, while it is alive."""
        self._look_for_exit(0.0)
        return self._warden if self._warden is not None and processes.is_running(self._warden) else None

    def _look_for_exit(self, at_most_s: float) -> None:
        if self._warden is not None and (code := self._starter.exit_code(self._warden, at_most_s)) is not None:
            self._warden, self._nothing_left = None, code == NOTHING_LEFT

    # -- its locks ----------------------------------------------------------------------------------------------------

    def take(self) -> bool:
        """Take the lane, if it is free."""
        if self._held is None:
            self._held = self._locks.take()
        return self._held is not None

    def reserve(self) -> None:
        """Let no run of another queue start on these lanes before the run of this queue that needs all of them."""
        self._locks.wait_in_turn()

    def release(self, reason: Blocked | None = None) -> None:
        """Release the lane because nothing can start; `reason` says what takes precedence, if anything does."""
        if reason is None or reason.kind is not Obstacle.DISK:
            self.gate.leave()
        self._block(reason)
        self.close()
        if self._launching is None:
            self._reader.close()

    def close(self) -> None:
        """Release the lane, if this worker holds it; a run continues under its warden."""
        self._locks.leave()
        self._lend()

    def _lend(self) -> None:
        """Let other queues use the lane, but keep a reservation."""
        if self._held is not None:
            self._held.close()
            self._held = None

    def stop(self) -> None:
        """Do as `close`, and end the tools. A run whose code was still being read waits again."""
        if self._launching is not None:
            run = self._launching.run
            self._end_look()
            with contextlib.suppress(MpsqError):  # the next worker finds that it never started
                self._unclaim(run, "the worker ended while its code was being read")
        self.close()
        self._reader.close()
        self.gate.close()

    # -- the current run ----------------------------------------------------------------------------------------------

    def watch(self, run: ActiveRun) -> None:
        """Ingest what the run has written, sample the machine, and repeat requests that a dead command left undone."""
        if self._kept_awake != run.claimed.run_id and run.fence:
            self._keep_awake(run.claimed, run.fence.warden_pid)  # adopted: its helper may be gone
        self._observer_of(run).observe(run.fence)
        if run.cancel_requested and not run.folder.cancel.exists():
            run.folder.path.mkdir(mode=0o700, exist_ok=True)  # a job may have removed it; its warden looks there
            run.folder.request_cancel("worker")
        if run.suspend_requested != os.path.lexists(run.folder.suspend):
            with looking(self._engine) as connection:
                pausing.sync_request(connection, run.claimed.run_id, run.folder)

    def has_news(self) -> bool:
        """Return whether `watch` would find something; any thread may ask."""
        observer = self._observer
        return observer is None or observer.is_due()

    def sweep(self, run: ActiveRun) -> None:
        """End the processes of a run whose warden was killed. The lane is blocked while one is left."""
        self._sweep(run, spare_daemons=run.exit is not None)

    def end(self, run: ActiveRun) -> None:
        """End the run while holding the lane lock, so without a warden: ensure that no process is left, and store the
        end. If a process is left, or the GPU is still looked at, a later step tries again."""
        failpoints.reach("worker.took_lane")
        claimed, folder = run.claimed, run.folder
        if run.exit is None and run.fence is None and not run.was_started:
            self._requeue(run)
            return
        self._fruitless, self._has_given_up = 0, False
        if not self._warden_left_nothing(run) and not self._sweep(
            run, spare_daemons=run.exit is not None and run.exit.stop is None
        ):
            return
        failpoints.reach("worker.scanned")
        if not self._observer_of(run).finish(run.fence, run.exit):
            self._gpu_look_at = self._clocks.wall() + GPU_LOOK_EVERY_S
            return
        self._gpu_look_at = None
        failpoints.reach("worker.ingested")
        with looking(self._engine) as connection:
            notes = results.note_texts(connection, claimed.run_id)
        ending = of_exit(run.exit, notes) if run.exit is not None else of_silence(rebooted=claimed.boot_id != boot_id())
        if claimed.id.is_preflight:
            preflight_end.throw_away(self._layout, claimed, folder)
        ending = self._finish(claimed, folder, ending, run.exit)
        failpoints.reach("worker.done")
        self._block(None)
        folder.shorten_logs(self._config.keep_log_bytes)
        self._tidy(claimed, folder)
        self._observer = None
        self._not_before = self._clocks.steady() + self._config.cooldown_s
        if self.in_cooldown:
            self.close()
        self._log(f"run {claimed.id}: {ending}" + (f": {ending.reason}" if ending.reason else ""))

    def _tidy(self, run: Claimed, folder: RunDir) -> None:
        """Reduce the run's copy to what it has written, and what git ignores of that to its place in the user's folder,
        which may not answer. The results of --snapshot copy stay apart: the next run would overwrite them. Nothing
        stays of judged runs: the checkpoints of hundreds in a night would fill the disk."""
        if run.spec.within:
            for path in (folder.tree, folder.private):
                with contextlib.suppress(OSError):
                    trash.remove(path)
            return
        working_copy.tidy(self._layout.snapshots, run.spec, folder.tree)
        if run.spec.tree and not run.spec.copy and folder.tree.is_dir():
            with contextlib.suppress(child.TookTooLong, OSError):
                child.call(RETURN_S, working_copy.return_ignored, self._layout.snapshots, run.spec, folder.tree)

    def _observer_of(self, run: ActiveRun) -> Observer:
        if self._observer is None or self._observer.run_id != run.claimed.run_id:
            self._observer = Observer(self._engine, run.claimed, run.folder, self._config.sample_s, self._other_wardens)
        return self._observer

    def _finish(self, run: Claimed, folder: RunDir, ending: Ending, exit_: RunEnd | None = None) -> Ending:
        return finish(self._engine, run, folder, ending, exit_, self._config.hold_after_failures)

    def _requeue(self, run: ActiveRun) -> None:
        """Requeue a run without a fence, unless its wardens keep dying before that. Where those of the next run do so,
        too, it is not the run's fault: as where Python was replaced below this worker."""
        claimed, folder = run.claimed, run.folder
        if self._fruitless + 1 < MAX_FRUITLESS_STARTS:
            self._unclaim(claimed, "it never started")
            self._fruitless += 1  # only now: a refusal by the store is not the run's fault
            return
        folder.secrets.unlink(missing_ok=True)
        last_words = last_line(read_end(folder.warden_log)) or "warden.log is empty"
        if self._has_given_up:
            self._hold_off(claimed, f"its supervisor died again before the start: {last_words}")
            return
        self._has_given_up = True
        reason = f"its supervisor died {MAX_FRUITLESS_STARTS} times before the start: {last_words}"
        self._finish(claimed, folder, Ending(Outcome.SPAWN_FAILED, reason=reason))
        self._log(f"run {claimed.id}: SPAWN_FAILED: {reason}")
        self._fruitless = 0

    def _warden_left_nothing(self, run: ActiveRun) -> bool:
        """Return whether the warden of the run, which this worker has started, ended with the word that no process is
        left: it has released the lane, so its own end is near."""
        if self._supervised != run.claimed.run_id:
            return False
        self._look_for_exit(EXIT_S)
        return self._warden is None and self._nothing_left

    def _sweep(self, run: ActiveRun, *, spare_daemons: bool) -> bool:
        """End the orphans of the run. Returns True after two empty scans; otherwise the lane is BLOCKED."""
        if spare_daemons and run.claimed.spec.allow_daemons:
            return True
        noted = [*run.folder.noted()]
        traces = processes.Traces(
            tag=run.claimed.token,
            sessions=frozenset(id_ for process in noted for id_ in (process.sid, process.pgid) if id_ is not None),
            noted=frozenset((process.pid, process.start) for process in noted),
            lane=lane_locks.paths(self.lane.name)[0],
            boot_id=run.claimed.boot_id,
        )
        survivors = processes.end_all(traces, self._config.grace_int_s, self._config.grace_term_s)
        if survivors:
            pids = ", ".join(str(process.pid) for process in survivors)
            remedy = f"try kill -9 {pids}, or restart the machine"
            self._block(Blocked(f"process {pids} of run {run.claimed.id} survived SIGKILL: {remedy}"))
        return not survivors

    def _unclaim(self, run: Claimed, reason: str) -> None:
        folder = RunDir(self._layout.run_dir(run.id))
        folder.secrets.unlink(missing_ok=True)  # it may be cancelled before it is tried again
        with writing(self._engine) as connection:
            requeued = jobs.unclaim(connection, run.run_id, reason)
            results.forget_start(connection, run.run_id)
            lane_claims.unbind(connection, run.run_id)
        self._observer = None
        self._log(f"run {run.id}: {'requeued' if requeued else 'cancelled'}: {reason}")

    # -- the run that comes next --------------------------------------------------------------------------------------

    def start(self, following: Following) -> bool:
        """Start a run, if the lane can be had and its gate is open; return whether it is RUNNING."""
        if not self.take():
            if self._locks.is_shared():
                self.gate.look_later()  # they end, and none begins: the wait for a quiet machine goes on
            else:
                self.gate.leave("another queue is running")
            self._block(Blocked(f"{self._locks.held_by(self._layout.home)}; this run starts once it has ended"))
            return False
        assert self._held is not None
        failpoints.reach("worker.lane")
        if purpose := self._locks.goes_first():
            self.release(Blocked(f"a run of another queue needs {purpose} and starts first"))
            return False
        if (why_not := self.gate.blocking_reason(following)) is not None:
            if why_not:
                self._block(Blocked(why_not, Obstacle.GATE if self.gate.is_waiting else None))
            if not self.gate.keeps_lane:
                self._locks.wait_in_turn()  # what runs may continue, but nothing else starts
                self._lend()
            return False
        token = secrets.token_hex(16)
        with writing(self._engine) as connection:
            run = lane_claims.claim(connection, self.lane, token, boot_id(), following.run_id, self._clocks.wall())
            earlier = retries.segments(connection, run.run_id)[1:] if run is not None else []
        if run is None:
            self.close()
            wakeup.ring(self._layout.fifo)  # it was changed meanwhile: another run may be next
            return False
        failpoints.reach("worker.claimed")
        return self._launch(run, earlier[0][1] if earlier else None, PATIENCE_S)

    def get_ready(self) -> None:
        """Start the child that reads the code of runs, since a submission has begun; it takes as long as that."""
        self._ready_until = self._clocks.steady() + READY_S
        with contextlib.suppress(OSError):  # the start of the run will report it
            self._reader.start()

    def rest(self) -> None:
        """End that child if no run has followed."""
        if self._ready_until is not None and self._clocks.steady() > self._ready_until:
            self._ready_until = None
            if self._launching is None and self._observer is None:
                self._reader.close()

    def read_code(self) -> bool:
        """Continue a start whose code was still being read; return whether the run is RUNNING."""
        assert self._launching is not None
        return self._launch(self._launching.run, self._launching.origin, 0.0)

    def _launch(self, run: Claimed, origin: RunId | None, patience_s: float) -> bool:
        """Start a claimed run once its code has been read, for which this waits `patience_s`; return whether it is
        RUNNING."""
        lane = self._held
        assert lane is not None
        try:
            code = self._read_code(run, origin, patience_s)
            if code is None:
                return self._launching is not None
            if code.refusal:
                return self._refuse(run, code.refusal)
            lane.write_holder({"home": str(self._layout.home), "run": str(run.id), "token": run.token})
            with looking(self._engine) as connection:
                is_checked = run.spec.seed_by_round and jobs.is_checked(connection, run.id.job, run.lane)
            folder = launch.prepare(self._layout, self._config, run, lane, origin, code, is_checked, self._log)
            with looking(self._engine) as connection:
                if jobs.cancel_requested(connection, run.run_id):
                    folder.request_cancel("user")  # it came before there was a folder for the request
                pausing.sync_request(connection, run.run_id, folder)
            self.gate.note(run)
            self._note_copy(run, code)
            failpoints.reach("worker.prepared")
            self._warden, self._supervised = self._starter.spawn(folder, lane.fds), run.run_id
            self._nothing_left = False
        except archive.Damaged as error:
            return self._refuse(run, verify.lost(error))
        except (checkpoints.Gone, job_secrets.Missing) as error:
            return self._refuse(run, error.ending())
        except OSError as error:
            where = f": {error.filename}" if error.filename else ""
            self._hold_off(run, plain(f"the machine refused to start it: {error.strerror or error}{where}"))
            return False
        except _FAULTS as error:
            why = plain(f"mpsq could not start it ({error!r}): please report it")
            return self._refuse(run, Ending(Outcome.SPAWN_FAILED, reason=why))
        failpoints.reach("worker.spawned")
        self.close()  # the warden and the trainer hold the lane now
        self._block(None)
        if self._warden is not None:
            self._keep_awake(run, self._warden)
        self._observer = Observer(self._engine, run, folder, self._config.sample_s, self._other_wardens, fresh=True)
        self._log(f"run {run.id}: started: {run.spec.label()}")
        return True

    def _hold_off(self, run: Claimed, reason: str) -> None:
        """Requeue a run that nothing but a change of the machine lets start, and start none for a while."""
        self._not_before = self._clocks.steady() + RETRY_AFTER_S
        self._unclaim(run, reason)
        self._block(Blocked(f"run {run.id} cannot be started: {reason}; it is retried every {RETRY_AFTER_S:.0f} s"))
        self.close()

    def _note_copy(self, run: Claimed, code: verify.StartCode) -> None:
        """Store with the run that it starts in a copy of its code, though that was not requested, and why."""
        notes = {IN_COPY: code.note, "editable_install": code.caveat}
        if any(notes.values()):
            with writing(self._engine) as connection:
                for kind, text in notes.items():
                    if text:
                        results.save_note(connection, run.run_id, kind, text)

    def _read_code(self, run: Claimed, origin: RunId | None, patience_s: float) -> verify.StartCode | None:
        """Return the result of reading the run's code; None while that goes on, or once the run was cancelled.

        Raises: OSError as verify.Look."""
        if self._launching is None or self._launching.run.run_id != run.run_id:
            self._end_look()
            copied = False
            if run.spec.tree and not (run.spec.copy or run.spec.allow_changed):
                with looking(self._engine) as connection:
                    copied = results.was_copied(connection, run.run_id)
            not_code = self._config.not_code
            look = verify.Look(self._layout.snapshots, run.spec, not_code, self._reader, copied=copied)
            self._launching = _Launching(run, origin, look)
        look = self._launching.look
        try:
            code = look.wait(patience_s)
        except BaseException:
            self._end_look()
            raise
        with looking(self._engine) as connection:  # its folder, where a warden would look, is not there yet
            is_cancelled = jobs.cancel_requested(connection, run.run_id)
        if code is None and not is_cancelled:
            what = f"the {look.what} must be read before run {run.id} begins, which takes long with {protected.SLOW}"
            self._block(Blocked(plain(what)))
            return None
        self._end_look()
        if code is None:
            self._unclaim(run, "its code was still being read")
            self._block(None)
            self.close()
        return code

    def _end_look(self) -> None:
        if self._launching is not None:
            self._launching.look.close()
            self._launching = None

    def _keep_awake(self, run: Claimed, warden_pid: object) -> None:
        """Keep the machine awake while this warden lives. The helper ends with it."""
        self._kept_awake = run.run_id
        if self._config.keep_awake and isinstance(warden_pid, int):
            keep_awake(warden_pid)

    def _refuse(self, run: Claimed, ending: Ending) -> bool:
        """End a run that must not be started. No fence was written, and no other run waits for its lane to be swept."""
        failpoints.reach("worker.refusing")
        self._finish(run, RunDir(self._layout.run_dir(run.id)), ending)
        failpoints.reach("worker.refused")
        self._log(f"run {run.id}: {ending}: {ending.reason}")
        self.close()
        wakeup.ring(self._layout.fifo)  # the next one need not wait for the next tick
        return True

    def _block(self, reason: Blocked | None) -> None:
        """Store for `status` why nothing starts; written only when it changes."""
        if reason == self._blocked:
            return
        try:
            with writing(self._engine) as connection:
                lane_claims.block(connection, self.lane.name, reason)
        except MpsqError:
            if reason is None or reason.kind is not Obstacle.DISK:  # a full disk does not take the reason either
                raise
            return
        self._blocked = reason
        if reason:
            prefix = "" if self.lane.name == DEFAULT_LANE else f"{self.lane.name}: "
            self._log(f"{prefix}blocked: {reason.reason}")
