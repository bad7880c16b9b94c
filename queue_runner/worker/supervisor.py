"""Supervise one lane: reap the run that ended on it, start the next one. Only from the state on disk.

A new worker and one that has run for weeks do the same: they look at the run that is RUNNING in the database, at its
warden's lock and at the lane, and act on what they find (docs/supervision.md, Deaths). What is done once for all lanes
is in lanes.py.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from queue_runner import failpoints, lanes, units
from queue_runner.config import Config
from queue_runner.control import checkpoints, pausing
from queue_runner.errors import MpsqError
from queue_runner.host import job_secrets, protected, wakeup
from queue_runner.host.boot import boot_id
from queue_runner.host.keep_awake import keep_awake
from queue_runner.host.lane_locks import Hold, LaneLocks
from queue_runner.host.load import Load, gpu_tool
from queue_runner.model import DEFAULT_LANE, Ending, Obstacle, Outcome
from queue_runner.paths import Layout
from queue_runner.run_dir import RunDir, read_end
from queue_runner.source import archive, verify, working_copy
from queue_runner.store import jobs, lane_claims, results, retries
from queue_runner.store.engine import Engine, looking, writing
from queue_runner.store.jobs import Claimed, Following
from queue_runner.store.lane_claims import Blocked
from queue_runner.text import last_line, plain
from queue_runner.worker import hooks, launch, preflight
from queue_runner.worker.canary import Canary
from queue_runner.worker.finish import finish
from queue_runner.worker.gate import Gate
from queue_runner.worker.observer import Observer
from queue_runner.worker.orphans import end_orphans, lock_is_held, warden_is_there
from queue_runner.worker.outcome import of_exit, of_silence
from queue_runner.worker.truncate_logs import compact_logs

RETRY_AFTER_S = 30.0
"""How long a lane stays blocked after a start that the machine refused (full disk, no more processes)."""
PATIENCE_S = 1.0
"""How long the code of a run is waited for at its start; the other lanes and the end of the worker wait meanwhile."""
GPU_LOOK_EVERY_S = 0.25
"""Interval at which a look at the GPU after a run, which takes some seconds, is asked for its answer."""
MAX_FRUITLESS_STARTS = 5
"""Number of successive wardens that may die before their fence, until the run is given up as SPAWN_FAILED."""


class Supervisor:
    """The owner of one lane of one queue. Only the holder of worker.lock may make one."""

    def __init__(
        self,
        layout: Layout,
        config: Config,
        engine: Engine,
        log: Callable[[str], None],
        wardens: Mapping[str, int],
        lane: str = DEFAULT_LANE,
        cores: Collection[int] = (),
    ) -> None:
        """`wardens` are those of all runs of the queue by lane, kept up to date; `cores` the lane's processors."""
        self.lane = lane
        self._neighbours = lambda: [pid for name, pid in wardens.items() if name != lane]
        self._layout = layout
        self._config = config
        self._engine = engine
        self._log = log
        self._orders = hooks.orders(config)
        uuids = lanes.parts(lane) if lanes.kind(lane) == "cuda" else ()
        self._gate = Gate(engine, config, Load(gpu=gpu_tool(uuids=uuids)), Canary(layout, config, log))
        self._locks = LaneLocks(lane, cores)
        self._held: Hold | None = None
        self._look: tuple[Claimed, verify.Look] | None = None  # at the code of a run that is to start
        self._warden: subprocess.Popen[bytes] | None = None
        self._observer: Observer | None = None
        self._kept_awake: int | None = None  # the run for which that was done
        self._blocked: Blocked | None = Blocked("not known yet")  # an earlier worker may have left it blocked
        self._not_before = 0.0
        self._gpu_look_at: float | None = None  # when it is asked again what the GPU did after the last run
        self._fruitless = 0

    @property
    def waits_for(self) -> int | None:
        """The run that waits for a quiet machine on this lane."""
        return self._gate.waits_for

    @property
    def due(self) -> float | None:
        """When (Unix seconds) the gate looks again, or the run that has ended."""
        return min((at for at in (self._gate.due, self._gpu_look_at) if at is not None), default=None)

    @property
    def cools(self) -> bool:
        """Whether nothing may start yet: the last run has just ended, or the machine has refused to start one."""
        return time.monotonic() < self._not_before

    @property
    def holds(self) -> bool:
        """Whether this worker holds the lane itself: a run does without it."""
        return self._held is not None

    def is_held(self) -> bool:
        """Return whether a process holds the lane, or a part of it."""
        return self._locks.is_held()

    def look(self, wardens: Collection[int], *, running: bool) -> None:
        """Note the load of the machine, of which the queue's own `wardens` are no part."""
        self._is_ours_alive()  # reaps the last warden
        self._gate.observe(wardens, running=running)

    def warden(self, run: Claimed) -> int | None:
        """Return the warden of a run; one that another worker has started is not below this process."""
        if self._is_ours_alive() and self._warden is not None:
            return self._warden.pid
        pid = (RunDir(self._layout.run_dir(run.id)).started() or {}).get("warden_pid")
        return pid if isinstance(pid, int) else None

    def close(self) -> None:
        """Release the lane, if this worker holds it; a run continues under its warden."""
        self._locks.leave()
        if self._held is not None:
            self._held.close()
            self._held = None

    def stop(self) -> None:
        """Do as `close`, and end what was asked of tools. A run whose code was still being read waits again."""
        if self._look is not None:
            run, _ = self._look
            self._end_look()
            with contextlib.suppress(MpsqError):  # the next worker finds that it never started
                self._unclaim(run, "the worker ended while its code was being read")
        self.close()
        self._gate.close()

    def rest(self, why: Blocked | None = None) -> None:
        """Start nothing, since there is nothing to start, or, if `why` says so, as something else goes first."""
        self._gate.leave()
        self._block(why)
        self.close()

    def wait_in_turn(self) -> None:
        """Let no run of another queue begin on these lanes before the one of this queue that needs all of them."""
        self._locks.wait_in_turn()

    def take(self) -> bool:
        """Take the lane, if it is free."""
        if self._held is None:
            self._held = self._locks.take()
        return self._held is not None

    # -- the current run ------------------------------------------------------------------------------------------

    def reap(self, run: Claimed) -> bool:
        """Watch a run; return True once it is no longer RUNNING."""
        if self._look is not None and self._look[0].run_id == run.run_id:
            return not self._launch(run)
        folder = RunDir(self._layout.run_dir(run.id))
        folder.repair()
        ended = folder.exit() is not None  # its warden may still be sweeping
        if not ended and self._is_supervised(folder):
            self._watch(run, folder)
            return False
        if not self.take():
            if self._is_supervised(folder) or not self._lost_its_warden(run, folder):
                return False
            if not self._sweep(run, folder, spare_daemons=ended) or not self.take():
                return False
        failpoints.reach("worker.took_lane")
        return self._end(run, folder)

    def _is_ours_alive(self) -> bool:
        if self._warden is not None and self._warden.poll() is not None:
            self._warden = None
        return self._warden is not None

    def _is_supervised(self, folder: RunDir) -> bool:
        return self._is_ours_alive() or lock_is_held(folder) is True

    def _lost_its_warden(self, run: Claimed, folder: RunDir) -> bool:
        """Return whether a warden that is gone wrote the fence. It takes its lock first, so the lock is checked last.
        If the job has damaged the lock, the fence identifies the warden; if it has removed both, a fence seen earlier
        counts."""
        started = folder.started()
        if started is None:
            return self._was_seen(run)
        return lock_is_held(folder) is False and not warden_is_there(started)

    def _watch(self, run: Claimed, folder: RunDir) -> None:
        if self._observer is None or self._observer.run_id != run.run_id:
            self._observer = Observer(self._engine, run, folder, self._config.sample_s, self._neighbours)
        if self._kept_awake != run.run_id and (fence := folder.started()):
            self._keep_awake(run, fence.get("warden_pid"))  # adopted: its helper may be gone
        self._observer.observe()
        with looking(self._engine) as connection:
            cancelled = jobs.cancel_requested(connection, run.run_id)
            pausing.sync_request(connection, run.run_id, folder)
        if cancelled and not folder.cancel.exists():  # the CLI died between its commit and its request
            folder.path.mkdir(mode=0o700, exist_ok=True)  # a job may have removed it; its warden looks there
            folder.request_cancel("worker")

    def _end(self, run: Claimed, folder: RunDir) -> bool:
        """End the run while holding the lane lock, so without a warden: reread its report, ensure that no process is
        left, store the end."""
        exit_ = folder.exit()
        if exit_ is None and folder.started() is None and not self._was_seen(run):
            return self._never_ran(run, folder)
        self._fruitless = 0
        if not self._sweep(run, folder, spare_daemons=exit_ is not None and not exit_.get("stop")):
            return False
        failpoints.reach("worker.scanned")
        if self._observer is None or self._observer.run_id != run.run_id:
            self._observer = Observer(self._engine, run, folder, self._config.sample_s, self._neighbours)
        if not self._observer.finish():
            self._gpu_look_at = time.time() + GPU_LOOK_EVERY_S
            return False
        self._gpu_look_at = None
        failpoints.reach("worker.ingested")
        with looking(self._engine) as connection:
            notes = results.note_texts(connection, run.run_id)
        ending = of_exit(exit_, notes) if exit_ is not None else of_silence(rebooted=run.boot_id != boot_id())
        if preflight.is_one(run):
            preflight.throw_away(self._layout, run, folder)
        ending = self._finish(run, folder, ending, exit_)
        failpoints.reach("worker.done")
        self._block(None)
        compact_logs(folder, self._config.keep_log_bytes)
        working_copy.tidy(self._layout.snapshots, run.spec, folder.tree)
        self._observer = None
        self._not_before = time.monotonic() + self._config.cooldown_s
        self._log(f"run {run.id}: {ending}" + (f": {ending.reason}" if ending.reason else ""))
        return True

    def _finish(self, run: Claimed, folder: RunDir, ending: Ending, exit_: Mapping[str, Any] | None = None) -> Ending:
        return finish(self._engine, run, folder, ending, exit_, self._orders, self._config.hold_after_failures)

    def _was_seen(self, run: Claimed) -> bool:
        with looking(self._engine) as connection:
            return jobs.was_started(connection, run.run_id)

    def _never_ran(self, run: Claimed, folder: RunDir) -> bool:
        """Requeue a run without a fence, unless its wardens keep dying before that."""
        if self._fruitless + 1 < MAX_FRUITLESS_STARTS:
            self._unclaim(run, "it never started: no fence was written")
            self._fruitless += 1  # only now: a refusal by the store is not the run's fault
            return True
        folder.secrets.unlink(missing_ok=True)
        said = last_line(read_end(folder.warden_log)) or "warden.log is empty"
        reason = f"its supervisor died {MAX_FRUITLESS_STARTS} times before the start: {said}"
        finish(
            self._engine,
            run,
            folder,
            Ending(Outcome.SPAWN_FAILED, reason=reason),
            None,
            self._orders,
            self._config.hold_after_failures,
        )
        self._log(f"run {run.id}: SPAWN_FAILED: {reason}")
        self._fruitless = 0
        return True

    def _sweep(self, run: Claimed, folder: RunDir, *, spare_daemons: bool) -> bool:
        """End the orphans of the run. Returns True after two empty scans; otherwise the lane is BLOCKED."""
        if spare_daemons and run.spec.allow_daemons:
            return True
        grace = (self._config.grace_int_s, self._config.grace_term_s)
        survivors = end_orphans(run, folder, self.lane, grace)
        if survivors:
            names = ", ".join(str(process.pid) for process in survivors)
            told = f"process {names} of run {run.id} survived SIGKILL: try kill -9 {names}, or restart the machine"
            self._block(Blocked(told))
            return False
        return True

    def _unclaim(self, run: Claimed, reason: str) -> None:
        folder = RunDir(self._layout.run_dir(run.id))
        folder.secrets.unlink(missing_ok=True)  # it may be cancelled before it is tried again
        with writing(self._engine) as connection:
            back = jobs.unclaim(connection, run.run_id, reason)
            results.forget_start(connection, run.run_id)
            lane_claims.unbind(connection, run.run_id)
        self._observer = None
        self._log(f"run {run.id}: {'requeued' if back else 'cancelled'}: {reason}")

    # -- the run that comes next ----------------------------------------------------------------------------------

    def start(self, choose: Callable[[], Following | None], claim: Callable[..., Claimed | None]) -> bool:
        """Start the run that `choose` returns once the lane is held, by `claim`; return whether it runs."""
        if self.cools:
            self.close()
            return False
        runs = self._layout.runs
        measured = next(folder for folder in (runs, *runs.parents) if folder.exists())  # a user may have removed it
        if (free := shutil.disk_usage(measured).free) < self._config.min_free_bytes:
            self._block_for_disk(free, measured)
            self.close()
            return False
        if not self.take():
            if self._locks.is_shared():
                self._gate.look_later()  # they end, and none begins: the wait for a quiet machine goes on
            else:
                self._gate.leave("another queue of this machine is running")
            self._block(Blocked("another queue of this machine is running; this one continues when the lane is free"))
            return False
        assert self._held is not None
        failpoints.reach("worker.lane")
        if what := self._locks.goes_first():
            self.rest(Blocked(f"a run of another queue needs {what}, and goes first"))
            return False
        following = choose()
        if following is None or (why_not := self._gate.keeps(following, self._held)) is not None:
            if following is None:
                self._block(None)
            elif why_not:
                self._block(Blocked(why_not, Obstacle.GATE if self._gate.is_waiting else None))
            if following is not None and not self._gate.keeps_lane:
                self._lend()
            elif not self._gate.keeps_lane:
                self.close()
            return False
        token = secrets.token_hex(16)
        with writing(self._engine) as connection:
            run = claim(connection, token=token, boot_id=boot_id(), only=following.run_id)
        if run is None:
            self.close()
            wakeup.ring(self._layout.fifo)  # another has become the next one
            return False
        failpoints.reach("worker.claimed")
        return self._launch(run, PATIENCE_S)

    def _lend(self) -> None:
        """Let other queues use the lane while the gate is shut. Runs on lanes may go on, but no more of them start
        where the machine is wanted alone: one or the other would disturb it forever."""
        self._locks.wait_in_turn()
        if self._held is not None:
            self._held.close()
            self._held = None

    def _launch(self, run: Claimed, patience_s: float = 0.0) -> bool:
        """Start a claimed run once its code has been read; return whether it is RUNNING. Where that takes longer than
        `patience_s`, `reap` goes on with it."""
        lane = self._held
        assert lane is not None
        try:
            found = self._looked(run, patience_s)
            if found is None:
                return self._look is not None
            if found.refusal:
                return self._refuse(run, found.refusal)
            lane.write_holder({"home": str(self._layout.home), "run": str(run.id), "token": run.token})
            with looking(self._engine) as connection:
                _, *before = retries.segments(connection, run.run_id)
            origin = before[0][1] if before else None
            folder = launch.prepare(self._layout, self._config, run, lane, origin, found.real, self._log)
            with looking(self._engine) as connection:
                if jobs.cancel_requested(connection, run.run_id):
                    folder.request_cancel("user")  # it came before there was a folder for the request
                pausing.sync_request(connection, run.run_id, folder)
            self._gate.note(run)
            failpoints.reach("worker.prepared")
            self._warden = launch.spawn(folder, lane)
        except archive.Damaged as error:
            return self._refuse(run, verify.lost(error))
        except (checkpoints.Gone, job_secrets.Missing) as error:
            return self._refuse(run, error.ending())
        except OSError as error:
            self._not_before = time.monotonic() + RETRY_AFTER_S
            self._unclaim(run, f"the machine refused to start it: {error.strerror or error}")
            again = f"it is retried every {RETRY_AFTER_S:.0f} s"
            self._block(Blocked(f"the machine refused to start run {run.id}: {error.strerror or error}; {again}"))
            self.close()
            return False
        failpoints.reach("worker.spawned")
        self.close()  # the warden and the trainer hold the lane now
        self._block(None)
        self._keep_awake(run, self._warden.pid)
        self._observer = Observer(self._engine, run, folder, self._config.sample_s, self._neighbours, fresh=True)
        self._log(f"run {run.id}: started: {run.spec.label()}")
        return True

    def _looked(self, run: Claimed, patience_s: float) -> verify.Found | None:
        """Return what a look at the run's code has found; None while that goes on, or once the run was cancelled.

        Raises: OSError as verify.Look."""
        if self._look is None or self._look[0].run_id != run.run_id:
            self._end_look()
            self._look = run, verify.Look(self._layout.snapshots, run.spec)
        _, look = self._look
        try:
            found = look.wait(patience_s)
        except BaseException:
            self._end_look()
            raise
        if found is None and self._is_wanted(run):
            told = f"the {look.what} must be read before run {run.id} begins, which takes long with {protected.SLOW}"
            self._block(Blocked(plain(told)))
            return None
        self._end_look()
        if found is None:
            self._unclaim(run, "its code was still being read")
            self._block(None)
            self.close()
        return found

    def _is_wanted(self, run: Claimed) -> bool:
        """Return whether nobody has cancelled the run, which has no folder for the request yet."""
        with looking(self._engine) as connection:
            return not jobs.cancel_requested(connection, run.run_id)

    def _end_look(self) -> None:
        if self._look is not None:
            self._look[1].close()
            self._look = None

    def _keep_awake(self, run: Claimed, warden_pid: object) -> None:
        """Keep the machine awake while this warden lives. The helper ends with it."""
        self._kept_awake = run.run_id
        if self._config.keep_awake and isinstance(warden_pid, int):
            keep_awake(warden_pid)

    def _refuse(self, run: Claimed, ending: Ending) -> bool:
        """End a run that must not be started. No fence was written, and no other run waits for its lane to be swept."""
        failpoints.reach("worker.refusing")
        finish(
            self._engine,
            run,
            RunDir(self._layout.run_dir(run.id)),
            ending,
            None,
            self._orders,
            self._config.hold_after_failures,
        )
        failpoints.reach("worker.refused")
        self._log(f"run {run.id}: {ending}: {ending.reason}")
        self.close()
        wakeup.ring(self._layout.fifo)  # the next one need not wait for the next tick
        return True

    def _block_for_disk(self, free: int, folder: Path) -> None:
        needed = units.size(self._config.min_free_bytes)
        reason = (
            f"only {units.size(free)} are free on the disk of {folder}, and a run needs {needed}"
            " (min_free_bytes): free some space, for example with mpsq gc; the queue then continues"
        )
        if self._blocked is None or self._blocked.kind is not Obstacle.DISK:  # the free space changes all the time
            with contextlib.suppress(MpsqError):  # a full disk does not take the reason either
                self._block(Blocked(reason, Obstacle.DISK))

    def _block(self, why: Blocked | None) -> None:
        """Store for `status` why nothing starts; written only when it changes."""
        if why == self._blocked:
            return
        with writing(self._engine) as connection:
            lane_claims.block(connection, self.lane, why)
        self._blocked = why
        if why:
            self._log(f"{'' if self.lane == DEFAULT_LANE else f'{self.lane}: '}blocked: {why.reason}")
