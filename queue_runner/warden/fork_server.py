"""Starts the wardens of one worker by fork: to import what a warden needs takes longer than its work before the trainer
starts.

A request has the descriptors of the lane, their number, and the path of the run's folder. The new warden reads it from
the socket itself: this process never holds locks of a lane. Its answer is the warden's process id, or the error that
kept it from being forked; at a warden's end follow its process id and exit code. It ends with its worker, or when a
request was not read; the wardens go on.
"""

from __future__ import annotations

import ctypes  # noqa: F401  # wardens need both
import os
import select
import signal
import socket
import struct  # noqa: F401
import sys

from queue_runner.warden import supervise
from queue_runner.warden.files import reach, say
from queue_runner.warden.instructions import FDS_AT_ONCE, FDS_WORD, REQUEST_END


def main(number: str) -> int:
    """Answer requests on the socket of that descriptor until its other side is closed."""
    worker = socket.socket(fileno=int(number))
    worker.set_inheritable(False)
    ring, bell = os.pipe()  # rung by SIGCHLD
    os.set_blocking(ring, False)
    os.set_blocking(bell, False)
    signal.set_wakeup_fd(bell, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    try:
        while True:
            ready = select.select([worker.fileno(), ring], [], [])[0]
            if ring in ready:
                os.read(ring, 4096)
                _report_ended(worker)
            if worker.fileno() in ready:
                if not worker.recv(1, socket.MSG_PEEK):
                    return 0
                reach("warden.requested")
                answer = _fork(worker, (ring, bell))
                if answer is None:
                    return 0
                reach("warden.forked")
                worker.sendall(b"%d\n" % answer)
                if answer < 0:
                    return 0
    except ConnectionError:
        return 0


def _report_ended(worker: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        worker.sendall(b"%d %d\n" % (pid, os.waitstatus_to_exitcode(status)))


def _fork(worker: socket.socket, not_inherited: tuple[int, int]) -> int | None:
    """Fork a warden. Return its process id, minus the number of the error, or None if it has not read its request."""
    try:
        heard, tells = os.pipe()
        pid = os.fork()
    except OSError as refused:
        return -(refused.errno or 1)
    if pid == 0:
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for fd in (*not_inherited, heard):
                os.close(fd)
            folder, lane = _read_request(worker)
            if folder:
                os.write(tells, b".")
                os.close(tells)
                worker.close()
                os.setsid()
                log = os.open(
                    f"{folder}/warden/warden.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
                )
                os.dup2(log, 1)
                os.dup2(log, 2)
                os.close(log)
                code = supervise.main(folder, lane)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(code)
    os.close(tells)
    has_read = bool(os.read(heard, 1))
    os.close(heard)
    return pid if has_read else None


def _read_request(worker: socket.socket) -> tuple[str, list[int]]:
    """Return the folder and the lane's descriptors of a request; no folder if the other side is closed."""
    data, lane = b"", list[int]()
    while not data.endswith(REQUEST_END):
        part, fds, *_ = socket.recv_fds(worker, 4096, FDS_AT_ONCE)
        if not part:
            return "", lane
        data += part
        lane += fds
    count, _, folder = data.lstrip(FDS_WORD).removesuffix(REQUEST_END).partition(b" ")
    if len(lane) != int(count):
        say("the kernel has passed on", len(lane), "of", int(count), "locks of the lane")
        return "", lane
    return os.fsdecode(folder), lane
