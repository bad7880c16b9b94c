"""The warden: starts one trainer, supervises it to its end, and leaves its true status on disk. One per run.

fork_server.py starts it from the code that its worker holds: it needs only the standard library, and an upgrade of mpsq
does not change it. It outlives the worker, the terminal and a logout.
Its steps and files, in order (docs/architecture.md):

    warden.lock, cancel?, started, [prepare, prepared], spawn, watch [stop, signals], exit.json, sweep,
    lane closed, wake

The preparation is the same program with further variables, in which it computes what the run needs and must not measure
(jobs/harness/prepared.py): ended, limited and cancelled as the trainer is, but no part of the run's time. How it ends
does not matter: a trainer that finds nothing prepared computes it itself. Or it is a shell that gets the program as its
arguments, for --warmup and --prepare: there no trainer starts after a failure.

The lane is the inherited lock that means "something may be using the accelerator"; a run beside others has those of
its lane, and last the machine's, which it shares. The trainer inherits them too, so that the lane stays held if the
warden is killed. With allow_daemons only the warden holds it: a daemon that may outlive
its job must not keep the lane. There the kernel (Linux) kills the trainer together with its warden.

The clocks of timeout and stall stop while the machine sleeps and while the trainer is stopped (SIGSTOP).
"""

# importing pathlib would add a fifth to the start time, so:
# ruff: noqa: PTH108, PTH110
from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import time

from queue_runner.warden import files
from queue_runner.warden.files import LINUX, awake, reach, say, with_sleep
from queue_runner.warden.instructions import NEEDED, NOTHING_LEFT, SOMETHING_LEFT, RunInstructions
from queue_runner.warden.limits import Limits, cancelled
from queue_runner.warden.output_order import OutputOrder
from queue_runner.warden.process_tree import KILL_S, ProcessTree, Termination, kill_children, read, row
from queue_runner.warden.spawn import PR_SET_CHILD_SUBREAPER, Trainer, prctl, start
from queue_runner.warden.suspend import Pause

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

POLL_S = 0.25  # for cancel and limits
FIRST_LOOK_S = 0.05  # after the start: looking through all processes takes milliseconds from a program that needs few
KILLS_IN_A_ROW = 100  # between two scans of all processes
WAITS_S = 2.0  # an exec that takes longer is reported to the user
TOUCH_S = 3600.0  # keeps cleaners of old temporary files from removing the lane's lock
RESCAN_S = 0.02  # while ending the tree
EXIT_TRIED_S = 60.0
IGNORED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGPIPE", "SIGUSR1", "SIGUSR2", "SIGALRM")


def oom_kills() -> int:
    """Return the kernel's count of OOM kills in our control group (v2, v1), else on the machine; 0 if unknown."""
    places = []
    try:
        for line in read("/proc/self/cgroup").decode().splitlines():
            _, names, path = line.split(":", 2)
            if not names:
                places.append(f"/sys/fs/cgroup{path}/memory.events")
            elif "memory" in names.split(","):
                places.append(f"/sys/fs/cgroup/memory{path}/memory.oom_control")
    except (OSError, ValueError):
        pass
    for place in (*places, "/proc/vmstat"):
        try:
            for counter in read(place).splitlines():
                if counter.startswith(b"oom_kill "):
                    return int(counter.split()[1])
        except (OSError, ValueError):
            continue
    return 0


class Run:
    """A trainer from its start to its end."""

    def __init__(self, folder: str, spec: RunInstructions, adopts: bool) -> None:
        """`adopts`: the kernel gives the warden every orphan of its descendants."""
        self.folder, self.own, self.spec, self.adopts = folder, f"{folder}/warden/", spec, adopts
        self.tree = ProcessTree(spec.tag, self.own + "pids.jsonl")
        self.pause = Pause(folder, self.tree)
        self.limits = Limits(folder, spec)
        self.order: OutputOrder | None = None  # of the trainer's output, not of the preparation's
        self.trainer = Trainer()
        self.childless = False  # at the last look: no descendant is left then, if it adopts
        self.status: int | None = None
        self.usage: Any = None
        self.ended = (0.0, 0.0)  # awake, with_sleep
        self.signalled: tuple[float, float, float] | None = None  # the same and the time of day, at the last SIGCHLD
        self.paused_s = 0.0
        self.paused_since: float | None = None
        self.waits = False  # whether it was reported that the trainer waits for its exec
        self.halted = False  # the trainer itself is stopped, by whomever
        self.ended_at = 0.0
        self.prepared: dict[str, Any] | None = None
        self.oom_kills = oom_kills()
        self.next_touch = 0.0
        self.ring, bell = os.pipe()  # rung by SIGCHLD: sigtimedwait does not exist on macOS
        os.set_blocking(self.ring, False)
        os.set_blocking(bell, False)
        signal.set_wakeup_fd(bell, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, self.note_signal)

    def note_signal(self, *_: object) -> None:
        """Note when a child ended: until it is reaped, the warden may have to look through all processes."""
        self.signalled = awake(), with_sleep(), time.time()

    def wait(self, at_most_s: float) -> None:
        if select.select([self.ring], [], [], max(0.0, at_most_s))[0]:
            os.read(self.ring, 4096)

    def reap(self) -> bool:
        """Reap children: adopted orphans, and the trainer's stops and its end. Return True if it ended.

        Not waitid(WNOWAIT): Python has it on macOS from 3.13 only. Once reaped, the trainer is never signalled by pid.
        """
        signalled, self.signalled = self.signalled, None
        if self.status is None and self.trainer.pid:
            self.tree.weigh(self.trainer.pid)  # it may have ended, but nobody has waited for it
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
                self.childless = False
            except ChildProcessError:
                pid, self.childless = 0, True
            if pid == 0:
                return self.status is not None
            if pid != self.trainer.pid:
                continue
            self.halted = os.WIFSTOPPED(status)
            if not self.halted and not os.WIFCONTINUED(status):
                *ended, self.ended_at = self.signalled or signalled or (awake(), with_sleep(), time.time())
                self.ended = ended[0], ended[1]
                self.status, self.usage = status, usage
                self.pause.still = False
            self.count_pause()

    def count_pause(self) -> None:
        """Begin or end a pause: while the trainer, or the whole tree by `mpsq pause --now`, is stopped."""
        paused = self.halted or self.pause.still
        if paused and self.paused_since is None:
            self.paused_since = awake()
        elif not paused and self.paused_since is not None:
            self.paused_s += awake() - self.paused_since
            self.paused_since = None

    def running_s(self) -> float:
        """Return seconds since the trainer's start, excluding those it was stopped or the machine asleep."""
        now = awake()
        paused_s = self.paused_s + (now - self.paused_since if self.paused_since is not None else 0.0)
        return now - self.trainer.began[0] - paused_s

    def reason_to_stop(self) -> tuple[str, str] | None:
        """Return (cause, detail) when the trainer has to be stopped."""
        cancel_requested = cancelled(self.folder, self.spec)
        return cancel_requested or self.limits.passed(self.running_s(), self.trainer.outputs)

    def to_be_stopped(self) -> bool:
        """Look after a trainer that waits for its exec, which may take hours; return whether it has to be stopped."""
        try:
            if self.reason_to_stop() is not None:
                return True
            self.pause.look()
            self.tree.note()
            if not self.waits and awake() - self.trainer.began[0] > WAITS_S:
                self.waits = True
                files.publish(self.own + "waits", {"v": 1, "at": time.time()})
        except Exception as error:  # any failure: the trainer must not be left unsupervised
            say("while starting:", repr(error))
        self.count_pause()
        return False

    def begin(self, lane: list[int]) -> None:
        """Start the trainer."""
        start(self.trainer, self.spec, lane, self.to_be_stopped)
        if self.waits:
            self.waits = False
            try:
                os.unlink(self.own + "waits")
            except OSError:
                pass  # the disk was full

    def watch(self, lane: list[int]) -> tuple[dict[str, Any] | None, bool, Termination | None]:
        """Watch the trainer to its end. Return (stop, whether it preceded the end, the Ending begun on the tree)."""
        stop, stopped, ending = None, False, None
        if trainer := row(self.trainer.pid):
            self.tree.remember({self.trainer.pid: trainer})
        self.wait(FIRST_LOOK_S)
        while not self.reap():
            try:
                reason = self.reason_to_stop() if stop is None else None
                if reason:
                    stop = {"v": 1, "cause": reason[0], "at": time.time(), "detail": reason[1]}
                    reach("warden.before_stop")
                    self.publish_stop(stop)
                    reach("warden.stopped")
                    if self.reap():
                        break
                    self.pause.forget()  # signalling also continues the processes
                    stopped, ending = True, Termination(self.tree.find, self.spec.grace_s)
                if ending:
                    ending.step()
                else:
                    self.pause.look()
                self.tree.note()
                if self.order:
                    self.order.note(self.trainer.outputs)
                if awake() >= self.next_touch:
                    self.next_touch = awake() + TOUCH_S
                    for held in lane:
                        os.utime(held)
            except Exception as error:  # any failure: the trainer must not be left unsupervised
                say("while watching:", repr(error))
            self.count_pause()
            self.wait(RESCAN_S if ending else POLL_S)
        if self.pause.on:
            self.pause.resume()  # the trainer was killed while stopped; daemons may live on
        return stop, stopped, ending

    def prepare(self, lane: list[int]) -> tuple[dict[str, Any] | None, Termination | None]:
        """Run the program as a preparation, to its end and that of its processes. Return (stop, Ending) like watch."""
        spec, how, log = self.spec, self.spec.preparation, self.own + "prepare.log"
        self.spec = spec.changed(
            argv=[*how.by, *spec.argv],
            env={**spec.env, **how.env},
            timeout_s=how.timeout_s,
            stdout=log,
            stderr=log,
            events=os.devnull,
        )
        self.limits = Limits(self.folder, self.spec)
        self.begin(lane)
        stop, stopped, ending = None, False, None
        failure = self.trainer.error if how.by else None
        if self.trainer.error is None:
            stop, stopped, ending = self.watch(lane)
            result = self.result(stop, stopped)
            names = ("exit_code", "signal", "real_s", "user_s", "sys_s", "max_rss_bytes")
            self.prepared = {name: result[name] for name in names}
            if how.by and not stopped and result["exit_code"] != 0:
                how_ended = (
                    f"exit code {result['exit_code']}" if result["signal"] is None else f"signal {result['signal']}"
                )
                failure = {"errno": 0, "text": f"--warmup or --prepare ended with {how_ended}; its output: {log}"}
            self.sweep(ending or Termination(self.tree.find, spec.grace_s))
            for fd in self.trainer.outputs:
                os.close(fd)
        self.spec, self.limits, self.trainer = spec, Limits(self.folder, spec), Trainer()
        self.trainer.error = failure
        self.status, self.usage, self.tree.largest_bytes = None, None, 0
        self.paused_s, self.paused_since, self.halted = 0.0, None, False
        self.oom_kills = oom_kills()
        return stop, ending

    def publish_started(self) -> None:
        """Publish the fence. Raises: OSError; nothing was started then."""
        this_process = row(os.getpid())
        started = {"v": 1, "run": self.spec.run, "boot_id": self.spec.boot_id, "warden_pid": os.getpid()}
        started |= {
            "warden_start": this_process.start if this_process else None,
            "trainer_pid": None,
            "at": time.time(),
        }
        files.publish(self.own + "started", {**started, "session": os.getsid(0)})

    def publish_prepared(self) -> None:
        """Publish that the trainer's own start is next, and how many processes are noted that are not the trainer's:
        conditions are sampled from here on."""
        prepared = {"v": 1, "at": time.time(), "noted": len(self.tree.noted), **(self.prepared or {})}
        try:
            files.publish(self.own + "prepared", prepared)
        except OSError as error:
            say("the preparation is not recorded:", error)  # exit.json will contain it

    def publish_stop(self, stop: dict[str, Any]) -> None:
        try:
            files.publish(self.own + "stop", stop, keep_trying_s=5.0)
        except OSError as error:
            say("cannot write the stop file:", error)  # exit.json will contain it

    def result(self, stop: dict[str, Any] | None, stopped: bool) -> dict[str, Any]:
        """Return exit.json's content; no times if nothing ran. ru_maxrss: KiB on Linux, bytes on macOS (getrusage(2)).

        On macOS max_rss_bytes is the largest physical footprint of a process, and ru_maxrss only if that is unknown.
        On Linux max_rss_bytes is never below the warden's own, some 10 MB: the high-water mark survives exec.
        """
        trainer, code = self.trainer, None
        if self.status is not None and not trainer.error:
            code = os.waitstatus_to_exitcode(self.status)
        ran = code is not None
        max_rss_bytes = self.usage.ru_maxrss * (1024 if LINUX else 1) if ran else None
        real_s = self.ended[1] - trainer.began[1]
        return {
            "v": 1,
            "run": self.spec.run,
            "exit_code": code if code is not None and code >= 0 else None,
            "signal": -code if code is not None and code < 0 else None,
            "spawn_error": trainer.error,
            "stop": stop,
            "stopped": stopped,
            "real_s": real_s if ran else None,
            "start_s": trainer.start_s if ran else None,
            "slept_s": max(0.0, real_s - (self.ended[0] - trainer.began[0])) if ran else None,
            "paused_s": self.paused_s if ran else None,
            "user_s": self.usage.ru_utime if ran else None,
            "sys_s": self.usage.ru_stime if ran else None,
            "max_rss_bytes": (self.tree.largest_bytes or max_rss_bytes) if ran else None,
            "started_at": trainer.started_at,
            "ended_at": self.ended_at if ran else time.time(),
            "boot_id": self.spec.boot_id,
            "oom_killed": ran and oom_kills() > self.oom_kills,
            "output_bytes": sum(self.limits.sizes(trainer.outputs)),
            "prepared": self.prepared,
        }

    def sweep(self, ending: Termination) -> bool:
        """End remaining processes. Return whether none is left. The worker reports those that do not die: it finds the
        lane held, or the process."""
        give_up = awake() + ending.term_s + KILL_S
        try:
            while True:
                self.reap()
                nothing_seen = ending.step(sure=self.adopts and self.childless)
                self.reap()  # the last ones too: init may be slow
                if nothing_seen and self.childless:
                    return True
                if awake() > give_up:
                    say("survived SIGKILL:", *ending.find())
                    return False
                if awake() > ending.began + ending.term_s:
                    for _ in range(KILLS_IN_A_ROW):
                        kill_children()
                        self.reap()
                self.wait(RESCAN_S)
        except OSError as error:
            say("while sweeping:", error)
            return False

    def supervise(self, lane: list[int]) -> bool:
        """Perform all steps, from the check for a cancel to the last remaining process. Return whether none is left, or
        daemons may be."""
        stop, stopped, ending = None, False, None
        if cancel := cancelled(self.folder, self.spec):
            stop = {"v": 1, "cause": cancel[0], "at": time.time(), "detail": cancel[1]}
        else:
            reach("warden.before_started")
            self.publish_started()
            reach("warden.started")
            if self.spec.prepares:
                stop, ending = self.prepare(lane)
                self.publish_prepared()
                reach("warden.prepared")
            if stop is None and self.trainer.error is None:
                self.begin(lane)
                reach("warden.spawned")
            if stop is None and self.trainer.error is None:
                self.order = OutputOrder(self.own + "output_order")
                stop, stopped, ending = self.watch(lane)
                reach("warden.reaped")
        exit_ = self.result(stop, stopped)
        try:
            files.publish(self.own + "exit.json", exit_, "warden.exit_tmp", EXIT_TRIED_S)
        except OSError as error:
            say("the result is lost:", error, exit_)
        reach("warden.exited")
        nothing_left = True
        if stop or not self.spec.allow_daemons:
            nothing_left = self.sweep(ending or Termination(self.tree.find, self.spec.grace_s))
        reach("warden.swept")
        return nothing_left


def main(folder: str, lane: list[int]) -> int:
    """Supervise the run of a folder, with its lane's locks. Return NOTHING_LEFT or SOMETHING_LEFT of its processes;
    otherwise there is no fence, and it never ran."""
    for name in IGNORED:
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    values = json.loads(read(f"{folder}/spec.json"))
    if missing := NEEDED - values.keys():
        say("spec.json lacks", *missing)
        return 1
    spec = RunInstructions(values)
    lane_locks = lane[:-1] if spec.lane_shares else lane
    for held in lane:
        os.set_inheritable(held, False)
    granted = all(files.grants(held, fcntl.LOCK_EX if held in lane_locks else fcntl.LOCK_SH) for held in lane)
    spec.lock = files.hold(f"{folder}/warden.lock")
    if spec.lock is None or not granted:
        say("another warden holds this run, or another run holds the lane")
        return 75
    reach("warden.locked")
    if any(os.path.exists(f"{folder}/warden/{name}") for name in ("started", "exit.json")):
        say("this run has been started before")
        return 1
    secrets = f"{folder}/secrets.json"
    if os.path.exists(secrets):
        spec = spec.changed(**json.loads(read(secrets)))
        os.unlink(secrets)  # a worker that does not find the fence writes the folder anew
    adopts = LINUX and prctl(PR_SET_CHILD_SUBREAPER, 1)
    for name in ("exit.json", "stop"):
        files.reserve(f"{folder}/warden/{name}")
    nothing_left = Run(folder, spec, adopts).supervise(lane)
    for held in lane:
        os.close(held)
    try:
        os.unlink(f"{folder}/warden/stop.tmp")
    except OSError:
        pass  # there was a stop
    try:
        bell = os.open(spec.wake, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        os.write(bell, b"!")
    except OSError:
        pass  # no worker listens: the next one checks by itself
    reach("warden.rang")
    return NOTHING_LEFT if nothing_left else SOMETHING_LEFT
