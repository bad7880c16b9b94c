"""A link to a box: the system's own ssh, one connection for all calls, and what its failures mean in a sentence."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shlex
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from queue_runner import __version__
from queue_runner.remote.box import MARK, START_S
from queue_runner.remote.target import Refused, Unreachable
from queue_runner.text import one_line

CALL_S = 60.0
"""Time limit of a call that moves little."""
ANSWER_S = CALL_S + START_S
"""Time limit of the answer to sync, for which the box may start a supervisor again."""
MOVE_S = 3600.0
"""Time limit of one that moves files; ssh itself ends a connection that is silent for a quarter of a minute."""
CONNECT_S = 5
"""Time limit of a connection: the address, the greeting and the keys. Whoever asks for it waits so long."""
KEPT_S = 60
"""How long the connection stays open after a call."""
_PATH_MOST = 104
"""Bytes of a socket's path on macOS (sun_path); Linux takes 108."""
_TEMPORARY = 18
"""Bytes that ssh appends to the name of its socket while it makes it."""
_NOISE_MOST = 1 << 16
_ANSWER_MOST = 16 << 20
_OPTIONS = (
    *("BatchMode=yes", f"ConnectTimeout={CONNECT_S}", "ServerAliveInterval=5", "ServerAliveCountMax=3"),
    *("ClearAllForwardings=yes", "ForwardAgent=no", "RequestTTY=no", "RemoteCommand=none", "PermitLocalCommand=no"),
    "LogLevel=ERROR",
)
_LOGIN = (
    ("REMOTE HOST IDENTIFICATION HAS CHANGED", "its host key has changed: find out why before you remove the old one"),
    (
        "ost key verification failed",
        "its host key is not known here: `ssh {host}` once, and compare the fingerprint",
    ),
    ("Permission denied", "it lets nobody in without a password: run `ssh-copy-id {host}`, or start an ssh-agent"),
    ("Could not resolve hostname", "there is no host of that name: see that `ssh {host}` works"),
)
"""Messages of ssh when there is no connection, and their remedies."""


class Answered:
    """The answer to a call, and the bytes that follow it."""

    def __init__(self, answer: dict[str, Any], stream: IO[bytes]) -> None:
        self.answer = answer
        self._stream = stream

    def read(self, count: int) -> bytes:
        """Return exactly so many of the bytes that follow. Raises: Unreachable when the link ends before."""
        data = self._stream.read(count)
        if len(data) < count:
            raise Unreachable("the connection ended in the middle of an answer")
        return data


@dataclass(frozen=True)
class Link:
    """How to reach a box. `options` are words for ssh, `control` the path of the connection's socket, if any."""

    host: str
    python: str
    base: str
    options: tuple[str, ...] = ()
    control: Path | None = None
    _running: set[subprocess.Popen[bytes]] = field(default_factory=set, init=False, compare=False)
    _aborted: threading.Event = field(default_factory=threading.Event, init=False, compare=False)

    @property
    def _ssh(self) -> list[str]:
        shared = []
        if self.control is not None:
            shared = ["ControlMaster=auto", f"ControlPath={self.control}", f"ControlPersist={KEPT_S}"]
        return ["ssh", *self.options, *(word for option in (*_OPTIONS, *shared) for word in ("-o", option))]

    def call(
        self, verb: str, token: str, feed: Callable[[IO[bytes]], object] | None = None, *limits: float
    ) -> AbstractContextManager[Answered]:
        """Let the mpsq of the box do something (queue_runner.remote.box), as `run` does. The folder of a login may have
        any modules: none is imported."""
        return self.run(["-P", "-m", "queue_runner.remote.box", verb, __version__, self.base, token], feed, *limits)

    @contextlib.contextmanager
    def run(
        self,
        words: Sequence[str],
        feed: Callable[[IO[bytes]], object] | None = None,
        limit_s: float = CALL_S,
        bytes_s: float = CALL_S,
    ) -> Iterator[Answered]:
        """Run Python there with these arguments; `feed` writes its standard input. The answer must come within
        `limit_s` seconds, and the bytes that follow it within `bytes_s` more.

        Raises: Unreachable; Refused when the box answers that it cannot.
        """
        command = f"exec {_program(self.python)} {shlex.join(words)}"
        with tempfile.TemporaryFile() as errors:  # no pipe: ssh's process for the connection may keep it open
            try:
                process = subprocess.Popen(
                    [*self._ssh, "--", self.host, command],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                raise Unreachable(f"ssh cannot be run: {error.strerror}") from error
            self._running.add(process)
            if self._aborted.is_set():
                process.kill()
            assert process.stdin is not None and process.stdout is not None
            timer = threading.Timer(limit_s, process.kill)
            began = time.monotonic()
            timer.start()
            try:
                with contextlib.suppress(BrokenPipeError):
                    if feed is not None:
                        feed(process.stdin)
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.close()
                answer = answer_in(process.stdout)
                if answer is None:
                    code = process.wait()
                    if time.monotonic() - began >= limit_s:
                        self.hang_up()
                        raise Unreachable(f"no answer within {limit_s:.0f} s")
                    errors.seek(0)
                    raise self._failure(code, errors.read(_NOISE_MOST).decode(errors="replace"))
                if "error" in answer:
                    text = one_line(str(answer["error"]))[:300]
                    raise Refused(f"{text}: {self._install}" if "version" in answer else text)
                timer.cancel()
                timer = threading.Timer(bytes_s, process.kill)
                timer.start()
                yield Answered(answer, process.stdout)
            finally:
                timer.cancel()
                process.kill()
                process.stdout.close()
                process.wait()
                self._running.discard(process)

    def _failure(self, code: int, errors: str) -> Exception:
        lines = [text for line in errors.splitlines() if (text := one_line(line))]
        last = lines[-1][:200] if lines else f"ssh ended with exit code {code}"
        if code == 255 or code < 0:
            meant = next((text for sign, text in _LOGIN if sign in errors), "{last}")
            return Unreachable(meant.format(host=self.host, last=last))
        if "No module named" in errors or "Unknown option: -P" in errors:  # Python 3.10 lacks both
            return Refused(f"{self.python} there has no mpsq {__version__}: {self._install}")
        if code in (126, 127):
            return Refused(f"there is no {self.python} there: {self._set_python}")
        return Refused(last)

    @property
    def _install(self) -> str:
        return f"`mpsq on add NAME --ssh {self.host}` puts it there, or {self._set_python}"

    @property
    def _set_python(self) -> str:
        return "name its interpreter as `python` in the profile of this box (docs/remote.md)"

    def abort(self) -> None:
        """End the call that another thread waits for, and any later one."""
        self._aborted.set()
        for process in list(self._running):
            process.kill()

    def hang_up(self) -> None:
        """Close the connection that calls share; the next call makes a new one."""
        if self.control is not None and self.control.exists():
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(
                    [*self._ssh, "-O", "exit", "--", self.host],
                    stdin=subprocess.DEVNULL, capture_output=True, timeout=5, check=False,
                )  # fmt: skip


def control_path(cache: Path, host: str, options: tuple[str, ...]) -> Path | None:
    """Return the path of the socket of a connection; None where it would be too long for one, and so each call makes a
    connection of its own."""
    name = hashlib.sha256(repr((host, options)).encode()).hexdigest()[:8]
    path = cache / f"ssh-{name}"
    too_long = len(os.fsencode(path)) + _TEMPORARY >= _PATH_MOST
    return None if too_long or any(letter in str(path) for letter in "% \t") else path


def _program(python: str) -> str:
    """Return an interpreter as a word of any login shell; "~/" is the home there."""
    return f'"$HOME"/{shlex.quote(python[2:])}' if python.startswith("~/") else shlex.quote(python)


def answer_in(stream: IO[bytes]) -> dict[str, Any] | None:
    """Return the answer, after all that a login has printed; None where there is none."""
    remaining = _NOISE_MOST
    while remaining > 0 and (line := stream.readline(remaining)):
        remaining -= len(line)
        if line == MARK:
            with contextlib.suppress(ValueError, RecursionError):
                answer = json.loads(stream.readline(_ANSWER_MOST))
                return answer if isinstance(answer, dict) else None
            return None
    return None
