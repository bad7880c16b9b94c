"""Start of the trainer: its output files, its own session, the inherited lane, and whether exec succeeded."""

# importing pathlib would add a fifth to the start time, so:
# ruff: noqa: PTH113
from __future__ import annotations

import errno
import os
import select
import signal
import time

from queue_runner.warden.files import LINUX, awake, with_sleep

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from queue_runner.warden.instructions import RunInstructions


EXEC_POLL_S = 0.25
_BEGAN = b"@"  # the clocks follow, up to a zero byte
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h


def prctl(option: int, value: int) -> bool:
    """Call prctl(2), on Linux only. Return whether the kernel has done it."""
    import ctypes

    zeros = [ctypes.c_ulong(0)] * 3
    return ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value), *zeros) == 0  # type: ignore[no-any-return]


class Trainer:
    """A started trainer, or its `error` as in exit.json. `pid` is 0 when there is no process. It `began` right before
    its exec, which took at most `start_s`: the fork before that, some milliseconds, is the warden's own work."""

    def __init__(self) -> None:
        self.pid = 0
        self.outputs: list[int] = []
        self.began = 0.0, 0.0  # awake, with_sleep
        self.start_s: float | None = None
        self.started_at: float | None = None
        self.error: dict[str, Any] | None = None


def start(made: Trainer, spec: RunInstructions, lane: list[int], to_be_stopped: Callable[[], bool]) -> None:
    """Fork and exec, and fill in `made`; any failure is in its `error`.

    Before exec the child may wait in the kernel for hours: for a network drive, or for an answer to a privacy prompt of
    macOS. It counts as started as soon as it is `to_be_stopped`.
    """
    message = b""
    environment = {**spec.env, "MPSQ_TAG": spec.tag, "MPSQ_EVENTS": spec.events}
    flags, warden = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, os.getpid()
    try:
        made.outputs = [os.open(name, flags, 0o600) for name in (spec.stdout, spec.stderr)]
        null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        reader, writer = os.pipe()
        made.started_at, made.began = time.time(), (awake(), with_sleep())
        made.pid = os.fork()
    except OSError as refused:
        made.error = {"errno": refused.errno, "text": f"no process can be created: {refused}"}
        return
    if made.pid == 0:
        _become(spec, lane, warden, (null, *made.outputs), writer, environment)
    os.close(writer)
    os.close(null)
    while True:
        if not select.select([reader], [], [], EXEC_POLL_S)[0]:
            if to_be_stopped():
                return  # `told` stays open: the child is not to die of a broken pipe
        elif part := os.read(reader, 4096):
            message += part
        else:  # exec closed the other side
            break
    os.close(reader)
    if message.startswith(_BEGAN):
        began, _, message = message[len(_BEGAN) :].partition(b"\0")
        awake_s, with_sleep_s = map(float, began.split())
        made.began, made.start_s = (awake_s, with_sleep_s), max(0.0, awake() - awake_s)
    if message:
        number, text = message.decode(errors="replace").split(" ", 1)
        made.error = {"errno": int(number), "text": text}


def _become(
    spec: RunInstructions,
    lane: list[int],
    warden: int,
    streams: tuple[int, ...],
    tell: int,
    environment: dict[str, str],
) -> None:
    """Exec the trainer in the child. Report the moment of it through `tell`, then the failure. Never returns."""
    place = "its start"
    try:
        os.setsid()
        if spec.lock is not None:
            os.closerange(spec.lock, spec.lock + 1)  # its exec closes it, too, but may wait for hours
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        for stream, fd in enumerate(streams):
            os.dup2(fd, stream)
        if not spec.allow_daemons:
            for held in lane:
                os.set_inheritable(held, True)
        elif LINUX:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != warden:
                os._exit(127)
        if LINUX and spec.cores:
            place = f"its processors {spec.cores}"
            os.sched_setaffinity(0, spec.cores)
        place = f"its working directory {spec.cwd}"
        os.chdir(spec.cwd)
        place = spec.argv[0]
        environment["MPSQ_T0"] = repr(time.perf_counter())
        os.write(tell, _BEGAN + f"{awake()!r} {with_sleep()!r}\0".encode())
        os.execvpe(spec.argv[0], spec.argv, environment)
    except OSError as refused:
        if refused.errno == errno.ENOENT and os.path.isfile(place):
            place += ", or the interpreter that its first line names"
        os.write(tell, f"{refused.errno} {place}: {refused.strerror}"[:1500].encode(errors="replace"))
    except BaseException as broken:
        os.write(tell, f"{errno.EINVAL} {place}: {broken}"[:1500].encode(errors="replace"))
    finally:
        os._exit(127)
