"""Real wardens and real trainers for the process tests. Conditions are polled; nothing sleeps a fixed time."""

from __future__ import annotations

import json
import marshal
import os
import secrets
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import pytest

from queue_runner.host import locks, processes
from queue_runner.host.processes import Process, Traces, boot_id
from queue_runner.host.run_dir import RunDir
from queue_runner.worker import warden_starter
from tests.events_support import whole_lines
from tests.patience import UNTIL_S, patience, until

PYTHON = [sys.executable, "-u", "-I", "-S", "-c"]
"""A trainer that starts fast; append the program."""

SETSID = shlex.join(
    [sys.executable, "-I", "-S", "-c", "import os, sys; os.setsid(); os.execvp(sys.argv[1], sys.argv[1:])"]
)
"""For a shell: the program after it gets a session of its own. A Mac has no `setsid`."""
NOW = shlex.join([sys.executable, "-I", "-S", "-c", "import time; print(time.time())"])
"""For a shell: the time in seconds, with decimals, which a Mac's `date` cannot print."""

WITHOUT_PROC = bool(os.environ.get("MPSQ_WITHOUT_PROC"))
"""Whether to run as on a Mac as far as that goes: the tests may not look into /proc, and Linux's own are skipped."""
needs_linux = pytest.mark.skipif(not sys.platform.startswith("linux") or WITHOUT_PROC, reason="of Linux alone")


def is_alive(process: Process) -> bool:
    """Whether it is there and no zombie."""
    state = processes.look(process.pid)
    return state is not None and not state.ended and processes.same_start(state.start, process.start)


def is_there(pid: int) -> bool:
    """Whether a process of that pid lives; a zombie that nobody has reaped yet does not."""
    state = processes.look(pid)
    return state is not None and not state.ended


def words_of(process: psutil.Process) -> list[str]:
    """The command line of a process; none of one that has ended, or that nobody has waited for yet."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def state_of(pid: int) -> str:
    """`T` where the process is stopped, `Z` for a zombie, `D` where it waits in the kernel, `S` for any other, `gone`
    where there is none."""
    try:
        status = psutil.Process(pid).status()
    except psutil.NoSuchProcess:
        return "gone"
    return {psutil.STATUS_STOPPED: "T", psutil.STATUS_ZOMBIE: "Z", psutil.STATUS_DISK_SLEEP: "D"}.get(status, "S")


def variables_of(pid: int) -> dict[str, str]:
    """The environment that the process was started with; empty where that cannot be seen."""
    try:
        return psutil.Process(pid).environ()
    except (psutil.Error, OSError):
        return {}


def hide_proc() -> None:
    """From now on a test, or what supports it, that opens or lists something of /proc fails. The product may."""

    def refuse(event: str, arguments: tuple[object, ...]) -> None:
        if event not in ("open", "os.listdir", "os.scandir") or not str(arguments[0]).startswith("/proc"):
            return
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_code.co_filename.startswith((_STDLIB, "<frozen")):
            if "site-packages" in frame.f_code.co_filename:
                return
            frame = frame.f_back
        if frame.f_code.co_filename.startswith(_TESTS):
            raise FileNotFoundError(f"{arguments[0]} is hidden: MPSQ_WITHOUT_PROC is set")

    sys.addaudithook(refuse)


_STDLIB, _TESTS = str(Path(os.__file__).parent), str(Path(__file__).parent)


def identity(pid: int) -> Process:
    start = processes.start_time(pid)
    assert start is not None, f"process {pid} is gone"
    return Process(pid, start)


class StartedWarden:
    """A warden of this process."""

    def __init__(self, folder: Path, lane_fds: list[int]) -> None:
        self._starter = warden_starter.WardenStarter(folder)
        with mock.patch.object(warden_starter, "ANSWER_S", patience(UNTIL_S)):
            pid = self._starter.spawn(RunDir(folder), lane_fds)
        assert pid is not None, (folder / "warden" / "warden.log").read_text()
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self.wait(0.0)

    def wait(self, timeout: float = 60.0) -> int | None:
        """The exit code; None if it has none in time."""
        if self.returncode is None:
            self.returncode = self._starter.exit_code(self.pid, timeout)
            if self.returncode is not None:
                self._starter.close()
        return self.returncode

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


class WardenRun:
    """One run's folder and its warden, started as a worker starts it."""

    def __init__(self, folder: Path, argv: list[str], **changes: Any) -> None:
        self.folder = folder / "runs" / "1.1"
        (self.folder / "warden").mkdir(parents=True, mode=0o700)
        self.stops = folder / "stops"
        self.stops.mkdir()
        self.tag = secrets.token_hex(16)
        self.lane = locks.lane_lock_path("machine")
        self.process: StartedWarden | None = None
        self.stand_in = "pass"
        """Python that the warden runs first."""
        self.spec: dict[str, Any] = {
            "v": 1,
            "run": "1.1",
            "tag": self.tag,
            "argv": argv,
            "cwd": str(folder),
            "env": {"PATH": os.environ["PATH"], "OUT": str(folder), "PYTHONUNBUFFERED": "1"},
            "stdout": str(self.folder / "stdout.log"),
            "stderr": str(self.folder / "stderr.log"),
            "events": str(self.folder / "events.jsonl"),
            "boot_id": boot_id(),
            "grace_s": {"int": 5.0, "term": 5.0},
            "timeout_s": None,
            "stall_s": {},
            "output_limit_bytes": 1 << 31,
            "min_free_bytes": 0,
            "allow_daemons": False,
            "wake": str(folder / "worker.fifo"),
            **changes,
        }

    def start(self, stop_at: str | None = None) -> WardenRun:
        """Take the lane, start the warden with it, and let go of our copy."""
        held = locks.try_lock(self.lane)
        assert held is not None, "the lane is held"
        held.write_holder({"run": "1.1", "token": self.tag})
        (self.folder / "spec.json").write_text(json.dumps(self.spec))
        environment = {k: v for k, v in os.environ.items() if not k.startswith("MPSQ_STOP")}
        if stop_at:
            environment |= {"MPSQ_STOP_AT": stop_at, "MPSQ_STOP_DIR": str(self.stops)}
        code = [("stand_in", compile(self.stand_in, "stand_in", "exec")), *marshal.loads(warden_starter.warden_code())]
        with (
            mock.patch.dict(os.environ, environment, clear=True),
            mock.patch.object(warden_starter, "warden_code", lambda: marshal.dumps(code)),
        ):
            self.process = StartedWarden(self.folder, [held.fd])
        held.close()
        return self

    # -- what is on disk ----------------------------------------------------------------------------------------------

    def read(self, name: str) -> dict[str, Any] | None:
        try:
            data: dict[str, Any] = json.loads((self.folder / "warden" / name).read_bytes())
        except FileNotFoundError:
            return None
        return data

    def noted(self) -> list[dict[str, Any]]:
        return whole_lines(self.folder / "warden" / "pids.jsonl")

    @property
    def log(self) -> str:
        return (self.folder / "warden" / "warden.log").read_text()

    @property
    def stdout(self) -> str:
        return self._text("stdout.log")

    @property
    def stderr(self) -> str:
        return self._text("stderr.log")

    def _text(self, name: str) -> str:
        path = self.folder / name
        return path.read_text() if path.exists() else ""

    # -- what happens to it -------------------------------------------------------------------------------------------

    def wait(self) -> dict[str, Any]:
        """exit.json, once the warden has ended by itself; the lane is free then and nothing is left."""
        assert self.process is not None
        assert self.process.wait() == 0, self.log
        exit_ = self.read("exit.json")
        assert exit_ is not None, self.log
        return exit_

    def trainer(self) -> Process:
        """The trainer, once it is noted."""
        first = until(self.noted, "the trainer to be noted")[0]
        return Process(first["pid"], first["start"])

    def cancel(self, who: str = "test") -> None:
        (self.folder / "cancel").write_text(who)

    def stopped_at(self, name: str) -> int:
        """Wait until the warden has reached the stop point; returns its pid."""
        assert self.process is not None
        until(lambda: list(self.stops.glob(f"{name}.*")), lambda: f"stop point {name}; {self.log}")
        pid = self.process.pid
        until(lambda: state_of(pid) == "T", f"{name} to stop")
        return pid

    def go_on(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGCONT)

    def kill_warden(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def traces(self) -> Traces:
        noted = self.noted()
        return Traces(
            tag=self.tag,
            sessions=frozenset(n["sid"] for n in noted),
            noted=frozenset((n["pid"], n["start"]) for n in noted),
            lane=self.lane,
        )

    def leftovers(self) -> set[Process]:
        return {Process(pid, seen.start) for pid, seen in processes.find_orphans(self.traces()).items()}

    def lane_is_free(self) -> bool:
        return not locks.is_held(self.lane)

    def clean_up(self) -> list[Process]:
        """End whatever the test has left; returns what would not die."""
        if self.process is not None and self.process.poll() is None:
            self.kill_warden()
        return processes.end_all(self.traces(), 0, 0)


@contextmanager
def a_fifo(path: Path) -> Iterator[int]:
    """A worker's bell to listen on."""
    os.mkfifo(path)
    fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    try:
        yield fd
    finally:
        os.close(fd)


def python(program: str) -> list[str]:
    """The argv of a trainer in Python."""
    return [*PYTHON, program]
