"""The remote lanes of a queue: send what may start as a block, follow it, store what comes back (docs/remote.md).

All that is known of a block is in the database: a run that was sent has the token of its block. The scheduler knows the
token as the name of a job, and the block's fence says whether it was ever started. A worker that dies anywhere leaves
one of these.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from queue_runner import config_file
from queue_runner.config_file import Config
from queue_runner.control import checkpoints
from queue_runner.errors import MpsqError
from queue_runner.host import failpoints, job_environments
from queue_runner.host.job_secrets import Missing
from queue_runner.host.run_dir import read_end
from queue_runner.lanes import target_of
from queue_runner.model import Ending, Obstacle, Outcome, RunId, State
from queue_runner.paths import Layout
from queue_runner.remote import block, block_store, targets
from queue_runner.remote.block import Folder
from queue_runner.remote.block_runs import BlockRuns
from queue_runner.remote.block_store import BlockRun
from queue_runner.remote.fence import FenceHolder, take_fence
from queue_runner.remote.json_files import read_json
from queue_runner.remote.profile import find_profile
from queue_runner.remote.target import NotSent, Refused, Seen, Target, Unreachable
from queue_runner.store import added_rounds, lane_claims, retries
from queue_runner.store.engine import Engine, looking, writing
from queue_runner.store.jobs import Claimed
from queue_runner.store.lane_claims import Blocked
from queue_runner.text import last_line, one_line
from queue_runner.times import clock
from queue_runner.worker.throttled_log import ThrottledLog

MOST_SENT = 3
"""How often a block is sent at most, if the scheduler forgets it before it starts."""
TRY_AGAIN_S = 30.0
PATIENCE_S = 1.0
"""How long a step waits for its targets. A slower one continues while the others take their next steps."""
STOP_S = 40.0
"""How long a worker that stops waits for them: more than a command of Slurm may take; calls of ssh are ended."""

_WHY_MOST = 500
_BAD = "bad_result: its node returned a result that is not valid"
_REMOVED = "folder_removed: the folder of its block was removed, with the results on its node"


class _Watch(Struct):
    """Knowledge about a block since this worker follows it; times are monotonic seconds."""

    over_since: float | None = None
    beat: Any = None


class Dispatcher:
    """The remote lanes. Only the holder of worker.lock may make one. Each target has its own thread, which alone uses
    the state of its lanes and blocks."""

    def __init__(self, layout: Layout, config: Config, engine: Engine, log: Callable[[str], None]) -> None:
        self._layout = layout
        self._config = config
        self._engine = engine
        self._log = log
        self._results = BlockRuns(layout, config, engine, log)
        self._complain = ThrottledLog(log)
        self._watches: dict[str, _Watch] = {}
        self._sent: dict[str, int] = {}
        self._not_before: dict[str, float] = {}
        self._refused: dict[str, Blocked] = {}
        self._ended: dict[str, int] = {}
        self._in_doubt: dict[str, str] = {}
        self._silent_since: dict[str, float] = {}
        """When targets stopped answering, in Unix seconds, by lane."""
        self._blocked: dict[str, Blocked | None] = {}
        self._targets: dict[str, Target] = {}
        self._closing: dict[str, Target] = {}
        self._past = self._ended_before()
        self._silent: set[str] = set()
        self._threads: dict[str, threading.Thread] = {}
        self._stopping = False

    def busy(self) -> bool:
        """Return whether a remote run waits, is under way or may follow, or a block is being cleared away."""
        with looking(self._engine) as connection:
            waits = block_store.something_waits(connection) or bool(added_rounds.ended(connection))
            return waits or bool(self._past) or bool(self._closing.keys() - self._silent)

    def _ended_before(self) -> dict[str, list[str]]:
        """Return the blocks that an earlier worker has stored, by target: a folder may be left of them."""
        by_target: dict[str, list[str]] = {}
        with looking(self._engine) as connection:
            lanes, open_ = block_store.lanes_by_token(connection), block_store.open_tokens(connection)
        names = {token: target_of(lane) for token, lane in lanes.items()} | targets.mirrored(self._layout)
        for token in names.keys() - open_:
            by_target.setdefault(names[token], []).append(token)
        return by_target

    def step(self) -> bool:
        """Do what can be done now for every target whose last step has ended. Return whether something is under way.
        Raises: MpsqError when the store refuses."""
        with looking(self._engine) as connection:
            lanes = block_store.open_lanes(connection)
        closing = list(self._closing.values())
        names = {target_of(lane) for lane in lanes} | set(self._past)
        names |= {name for name, target in list(self._targets.items()) if target in closing}
        for name in sorted(names):
            if name not in self._threads or not self._threads[name].is_alive():
                of_target = [lane for lane in lanes if target_of(lane) == name]
                thread = threading.Thread(target=self._step_of, args=[name, of_target], daemon=True)
                self._threads[name] = thread
                thread.start()
        self._wait(PATIENCE_S)
        return bool(names) or self.busy()

    def stop(self) -> None:
        """End the steps that are under way. The database has all that the next worker needs."""
        self._stopping = True
        for target in list(self._targets.values()):
            target.abort()
        self._wait(STOP_S)

    def _wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        for thread in list(self._threads.values()):
            thread.join(max(0.0, deadline - time.monotonic()))

    def _step_of(self, name: str, lanes: Sequence[str]) -> None:
        """Do what can be done now in the lanes of a target."""
        try:
            for token in self._past.pop(name, ()):
                target = self._target_of(name)
                if target.folder(token).path.is_dir():
                    self._closing[token] = target
            with self._results.one_reader():
                for lane in lanes:
                    if self._stopping:
                        return
                    self._step_and_tell(lane)
            self._clear_away(name)
        except MpsqError as error:
            self._complain(f"blocks: {error.with_remedy}")
        except Exception as error:
            self._complain(f"{name}: blocks could not be followed: {error!r}", traceback.format_exc())

    def _step_and_tell(self, lane: str) -> None:
        try:
            with looking(self._engine) as connection:
                rows = block_store.sent(connection, lane)
            if rows:
                token = rows[0].token
                of_block = [row for row in rows if row.token == token]
                self._follow(lane, token, self._target_of(target_of(lane)), of_block)
            else:
                self._send(lane)
        except Unreachable as error:
            self._say_silent(lane, self._target_of(target_of(lane)), error)
        except OSError as error:
            self._say(lane, Blocked(f"the block's folder cannot be used: {error.strerror or error}: {error.filename}"))
        except MpsqError as error:
            self._say(lane, Blocked(error.message))
        except Exception as error:  # of one lane: the others go on
            self._say(lane, Blocked(f"its block cannot be followed: {error!r}; mpsq tries again: please report it"))
            self._complain(f"{lane}: {error!r}", traceback.format_exc())

    def _target_of(self, name: str) -> Target:
        if name not in self._targets:
            self._targets[name] = targets.of(config_file.load(self._layout.config), self._layout, name)
        return self._targets[name]

    def _renew(self, name: str) -> None:
        """Take the profile of a target as it is now, unless blocks are under way in the folder that it had."""
        before, profile = self._target_of(name), find_profile(config_file.load(self._layout.config), name)
        if profile == before.profile:
            return
        with looking(self._engine) as connection:
            lanes = [lane for lane in block_store.open_lanes(connection) if target_of(lane) == name]
            is_used = any(block_store.sent(connection, lane) for lane in lanes)
        closing = [token for token, target in self._closing.items() if target is before]
        if profile.folder == before.profile.folder or not (is_used or closing):
            del self._targets[name]
            self._closing |= dict.fromkeys(closing, self._target_of(name))

    # -- sending ----------------------------------------------------------------------------------------------------

    def _send(self, lane: str) -> None:
        now = time.time()
        with looking(self._engine) as connection:
            ids = block_store.ready(connection, lane, now)
            if not ids or time.monotonic() < self._not_before.get(lane, 0.0):
                return
            options = block_store.claimed(connection, ids[0]).spec.on
            first = block_store.waits_for_preflight(connection, ids[0])
        name, submission = options["to"], lane.rpartition("-")[0]
        if time.monotonic() < self._not_before.get(name, 0.0):
            return
        if time.monotonic() < self._not_before.get(submission, 0.0):
            self._say(lane, self._refused[submission])
            return
        self._renew(name)
        target = self._target_of(name)
        if (down := target.down) is not None and down.is_left_alone:
            raise Unreachable(down.why)
        if self._in_doubt.get(name) in self._closing:
            return  # the rest of the last try is removed first, as soon as the target answers
        if first:
            self._say(lane, Blocked(f"waits for {first}, which tries its row"))
            return
        if not target.profile.is_box:
            with writing(self._engine) as connection:
                if block_store.complete_rounds(connection, ids):
                    ids = block_store.ready(connection, lane, now)
            if not ids:
                return  # paused meanwhile
        token = secrets.token_hex(16)
        with looking(self._engine) as connection:
            runs = [block_store.claimed(connection, id) for id in ids]
            chains = {run.id: retries.segments(connection, run.run_id)[1:2] for run in runs}
        origins = {str(run): str(name) for run, chain in chains.items() for _, name in chain}
        codes = {code for run in runs for code in (run.spec.snapshot, run.spec.tree) if code}
        folder = target.folder(token)
        with contextlib.ExitStack() as undo:
            undo.callback(shutil.rmtree, folder.path, ignore_errors=True)
            try:
                if (environments := self._gather(folder, runs, origins)) is None:
                    return
                with looking(self._engine) as connection:
                    instructions = block_store.instructions(
                        connection,
                        ids,
                        environments=environments,
                        token=token,
                        to=name,
                        settings=block.settings_of_a_node(self._config),
                        box=target.profile.is_box,
                        local=target.profile.local,
                        whole=target.profile.is_box or target.profile.for_block(options).is_whole_node,
                        origins=origins,
                    )
                block.create(folder, instructions, self._layout.snapshots, codes)
                with writing(self._engine) as connection:
                    if block_store.mark_sent(connection, ids, token) != len(ids):
                        connection.rollback()  # a cancel, hold or edit came between
                        return
            except (OSError, MpsqError):
                self._not_before[lane] = time.monotonic() + TRY_AGAIN_S
                raise
            undo.pop_all()
        failpoints.reach("blocks.marked")
        try:
            job = target.send(token, options)
        except OSError as error:  # nothing can have started yet
            if self._take_back(lane, token, target, str(error)):
                self._closing[token] = target
            raise
        except NotSent as error:
            if self._take_back(lane, token, target, str(error)):
                self._say_silent(lane, target, error, TRY_AGAIN_S)
                self._closing[token] = target  # it may have come, and so the target is asked first
            self._in_doubt[name] = token
            return
        except Refused as error:
            if self._take_back(lane, token, target, str(error)):
                refusal = f"{target.kind} refuses the block: {error}; it is tried again every {TRY_AGAIN_S:.0f} s"
                self._refused[submission] = Blocked(refusal)  # of its other blocks, too: a limit on jobs may be reached
                self._not_before[submission] = self._not_before[lane]
                self._say(lane, self._refused[submission])
                shutil.rmtree(target.folder(token).path, ignore_errors=True)
            return
        except Unreachable as error:
            self._not_before[name] = time.monotonic() + TRY_AGAIN_S  # else each lane would wait for it in turn
            self._say_silent(lane, target, error, TRY_AGAIN_S)
            return
        failpoints.reach("blocks.sent")
        self._say(lane, Blocked(f"sent as {target.kind} job {job}"))

    def _gather(
        self, folder: Folder, runs: Sequence[Claimed], origins: Mapping[str, str]
    ) -> dict[str, dict[str, str]] | None:
        """Copy what runs resume from into a block, and return their environments by the names of their files. A run
        that lacks one of these ends as SPAWN_FAILED; None if one does: the next step sends the others. Raises: OSError,
        MpsqError."""
        for path in (folder.path, folder.origins):
            path.mkdir(mode=0o700, parents=True)
        environments: dict[str, dict[str, str]] = {}
        complete = True
        for run in runs:
            try:
                if run.spec.env_file and run.spec.env_file not in environments:
                    environments[run.spec.env_file] = job_environments.load(self._layout, run.spec)
                if (origin := origins.get(str(run.id))) is not None:
                    checkpoints.copy(self._layout, RunId(*map(int, origin.split("."))), folder.origins / origin)
            except (Missing, checkpoints.Gone) as error:
                self._results.refuse(run, error.ending())
                complete = False
        return environments if complete else None

    def _take_back(self, lane: str, token: str, target: Target, why: str) -> bool:
        """Let the runs of a block that was not started be sent again later; False where it was started after all."""
        if not take_fence(target.folder(token).fence, FenceHolder(void=why)):
            return False
        with writing(self._engine) as connection:
            block_store.send_again(connection, token)
        self._not_before[lane] = time.monotonic() + TRY_AGAIN_S
        return True

    # -- following --------------------------------------------------------------------------------------------------

    def _follow(self, lane: str, token: str, target: Target, rows: Sequence[BlockRun]) -> None:
        watch = self._watches.setdefault(token, _Watch())
        folder = target.folder(token)
        removed = block.is_removed(folder)
        refused = None
        try:  # first: no result that comes back may delay a cancel
            if not removed and self._pass_on_cancels(token, target, rows):
                return
        except OSError as error:
            refused = error
        state: Seen | Unreachable
        try:
            state = target.look(token)
        except Unreachable as error:
            state = error
        ended = read_json(folder.ended)  # before its runs: they are complete by then
        if self._results.take_in(folder, rows):
            with looking(self._engine) as connection:
                rows = [row for row in block_store.sent(connection, lane) if row.token == token]
        if not rows:
            self._close(lane, token, target)
            return
        if refused is not None:
            raise refused
        if ended is not None:
            why = one_line(str(ended.get("why") or ""))[:_WHY_MOST]
            self._say(lane, Blocked(f"the node has ended the block{': ' if why else ''}{why}"))
            if self._is_over(watch, folder, target):
                is_taken = why == block.TAKEN
                cause = target.ending(token, signalled=True) if is_taken else Ending(Outcome.SKIPPED, reason=why)
                if cause is not None:
                    self._after(lane, token, target, rows, cause, clean=True)
        elif isinstance(state, Unreachable):
            watch.over_since = None
            pending = any(row.cancel_requested_at is not None for row in rows)
            then = "; it is asked to cancel as soon as it answers" if pending else ""
            raise Unreachable(f"{state}; the block may be running{then}") from state
        elif state.state != "gone":
            watch.over_since = None
            on = f" on {state.node}" if state.node else ""
            self._say(lane, Blocked(f"{target.kind} job {state.job} is {state.words}{on}"))
        elif removed:
            if self._is_over(watch, folder, target):
                self._after(lane, token, target, rows, Ending(Outcome.LOST, reason=_REMOVED), clean=False)
        elif not target.has_started(token):
            self._never_started(lane, token, target, rows, state.words)
        elif self._is_over(watch, folder, target):
            cause = target.ending(token, signalled=False)
            if cause is not None:
                self._after(lane, token, target, rows, cause, clean=False)

    def _is_over(self, watch: _Watch, folder: Folder, target: Target) -> bool:
        """Return whether nothing has come for the grace that a shared folder needs, since the block seemed over."""
        beat = read_json(folder.beat), [*folder.beginnings()]
        if watch.over_since is None or beat != watch.beat:
            watch.over_since, watch.beat = time.monotonic(), beat
        return time.monotonic() - watch.over_since >= target.profile.grace_s

    def _never_started(self, lane: str, token: str, target: Target, rows: Sequence[BlockRun], words: str) -> None:
        if not target.void(token):
            return  # it has started after all
        self._log(f"{lane}: its block never started: {words}")
        self._sent[lane] = self._sent.get(lane, 0) + 1
        if words == "forgotten" and self._sent[lane] < MOST_SENT:
            with writing(self._engine) as connection:
                block_store.send_again(connection, token)
            self._closing[token] = target
            return
        if (cause := target.ending(token, signalled=False)) is not None:
            log = last_line(read_end(target.folder(token).log))
            reason = f"{cause.reason}, before the block started" + (f": {log}" if log else "")
            self._after(lane, token, target, rows, replace(cause, reason=reason), clean=True)

    def _after(
        self, lane: str, token: str, target: Target, rows: Sequence[BlockRun], cause: Ending, *, clean: bool
    ) -> None:
        """Store the end of the runs that have no result. `cause` says how the block ended; SKIPPED: it did so itself.
        `clean`: its node was there until then, so that a run without any file was not started."""
        _ask_to_stop(target, token)
        folder = target.folder(token)
        come = folder.beginnings()
        begun = {name for name, times in come.items() if times.at is not None}
        permitted = None if target.profile.is_box else folder.may_have_begun()
        possible = begun | ({row.name for row in rows} if permitted is None else permitted)
        lost = replace(cause, outcome=Outcome.LOST) if cause.outcome is Outcome.SKIPPED else cause
        lost = lost if lost.reason else replace(lost, reason="forgotten: its node left no record of its end")
        self._ended[lane] = self._ended.get(lane, 0) + 1
        order = {name: place for place, name in enumerate(come, start=1)}  # one of them can be RUNNING at a time
        for row in sorted(rows, key=lambda row: (row.state != State.RUNNING, order.get(row.name, len(rows) + 1))):
            if row.name in come and self._results.take(folder, row, cause):
                continue  # it came after one without a result
            if row.name in (begun if clean else possible) or row.state == State.RUNNING:
                is_bad = folder.result(row.name).exists()
                self._results.lost(folder, row, Ending(Outcome.LOST, reason=_BAD) if is_bad else lost)
            elif row.state == State.QUEUED and (cause.reason or row.cancel_requested_at):
                with looking(self._engine) as connection:
                    again = retries.sends_again(connection, row.run_id, cause, self._ended[lane])
                if not again:
                    self._results.leave_undone(row, cause)
        with writing(self._engine) as connection:
            block_store.send_again(connection, token)  # last: a run that has begun must never wait without its block
        self._close(lane, token, target, keep=not clean)  # a silent node may still come to read `stop`

    def _pass_on_cancels(self, token: str, target: Target, rows: Sequence[BlockRun]) -> bool:
        """Pass on which runs were cancelled; return whether the whole block was, before it started."""
        cancelled = [row for row in rows if row.cancel_requested_at is not None]
        with contextlib.suppress(Unreachable):  # as `_follow` says
            if len(cancelled) == len(rows) and not target.has_started(token) and target.void(token):
                for row in rows:
                    self._results.leave_undone(row, Ending(Outcome.CANCELLED))
                self._closing[token] = target
                return True
        for row in cancelled:
            if not (target.folder(token).cancels / row.name).exists():
                target.request(token, f"cancel/{row.name}")
        return False

    # -- the end of a block -----------------------------------------------------------------------------------------

    def _close(self, lane: str, token: str, target: Target, *, keep: bool = False) -> None:
        _ask_to_stop(target, token)
        self._watches.pop(token, None)
        self._sent.pop(lane, None)
        if not keep:
            self._closing[token] = target
        self._say(lane, None)

    def _clear_away(self, name: str) -> None:
        """End the finished blocks that a target still has, then remove their folders."""
        for token, target in list(self._closing.items()):
            if target is not self._targets.get(name) or self._stopping:
                continue
            try:
                state = target.look(token).state
                self._silent.discard(token)
                if state == "gone":
                    target.remove(token)
                    del self._closing[token]
                elif state == "waiting":
                    target.end(token, hard=True)
                elif target.folder(token).ended.exists():
                    continue  # it is completing
                else:
                    target.end(token, hard=False)
            except (Unreachable, OSError):
                self._silent.add(token)  # a worker that runs until idle does not wait for it

    def _say_silent(self, lane: str, target: Target, why: object, again_s: float = 0.0) -> None:
        """Store since when the target does not answer, and when it is asked again: after `again_s` seconds at the
        earliest."""
        if self._stopping:
            return  # its call may be one that this worker has ended
        now, down = time.time(), target.down
        since = self._silent_since.setdefault(lane, now if down is None else down.since)
        at = max(now + again_s, now + target.profile.poll_s if down is None else down.next_try_at)
        reason = f"{target.kind} does not answer since {clock(since, now)}: {why}"
        before = self._blocked.get(lane)
        if down is None and before is not None and before.reason == reason and now < (before.next_try_at or 0.0):
            return
        self._say(lane, Blocked(reason, Obstacle.SILENT, next_try_at=round(at)))

    def _say(self, lane: str, blocked: Blocked | None) -> None:
        """Store for `why` and `status` why the lane waits; written only when it changes."""
        if blocked is None or blocked.kind is not Obstacle.SILENT:
            self._silent_since.pop(lane, None)
        before = self._blocked.get(lane)
        if lane in self._blocked and before == blocked:
            return
        with writing(self._engine) as connection:
            lane_claims.block(connection, lane, blocked)
        self._blocked[lane] = blocked
        if blocked and (before is None or before.reason != blocked.reason):
            self._log(f"{lane}: {blocked.reason}")


def _ask_to_stop(target: Target, token: str) -> None:
    """Leave a request that a node which is still there ends; without the folder it ends by itself. Raises: OSError."""
    with contextlib.suppress(FileNotFoundError):
        target.request(token, "stop")
