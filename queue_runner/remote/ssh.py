"""A box: somebody's machine that ssh reaches. The block runs there, detached from the link, under an ordinary worker.

The folder of a block exists twice: on the box, where its fence and its records are made, and here, where what came back
is read (queue_runner.remote.mirror). The link decides nothing: what it cannot tell is not known.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any

from queue_runner import failpoints
from queue_runner.checks import Check
from queue_runner.paths import Layout
from queue_runner.remote import ssh_checks
from queue_runner.remote.answers import Down, NotSent, Refused, Seen, Unreachable
from queue_runner.remote.block import Folder, write_json
from queue_runner.remote.box import WHOLE
from queue_runner.remote.fence import has_started
from queue_runner.remote.link import ANSWER_S, MOVE_S, Answered, Link, control_path
from queue_runner.remote.mirror import LIMIT, Mirror
from queue_runner.remote.read_json import read_json

BASE = "~/.mpsq/blocks"
PYTHON = "python3"
SOON_S = 1.0
MOST_WAIT_S = 60.0
"""The longest pause between two tries to reach a box that does not answer."""


@dataclass
class _Known:
    """What the box has said of a block; times are monotonic seconds."""

    state: dict[str, Any] | None = None
    failure: str = ""
    due: float = 0.0


class Ssh:
    """A box as a target of --on."""

    def __init__(self, name: str, profile: Mapping[str, str], layout: Layout, poll_s: float, grace_s: float) -> None:
        self.kind = name
        self.poll_s = min(poll_s, SOON_S)  # `look` itself asks no more often than `poll` says
        self.grace_s = grace_s
        self.told: dict[str, Any] = {"box": True}
        self._every_s = poll_s
        self._blocks = layout.blocks
        options = tuple(shlex.split(profile.get("ssh", "")))
        control = control_path(layout.cache, profile["host"], options)
        self.link = Link(
            profile["host"], profile.get("python") or PYTHON, profile.get("folder") or BASE, options, control
        )
        self._known: dict[str, _Known] = {}
        self.down: Down | None = None
        self._failures = 0
        self._not_before = 0.0

    @contextlib.contextmanager
    def _call(
        self, verb: str, token: str, feed: Callable[[IO[bytes]], None] | None = None, *limits: float
    ) -> Iterator[Answered]:
        """Do as Link.call; a box that has not answered is left alone for a while, which doubles, since whoever asks it
        waits for it. Raises: Unreachable, Refused."""
        if self.down is not None and time.monotonic() < self._not_before:
            raise Unreachable(self.down.why)
        try:
            with self.link.call(verb, token, feed, *limits) as answered:
                yield answered
        except Unreachable as error:
            self._fails(error)
            raise
        self.down, self._failures = None, 0

    def _fails(self, error: Exception) -> None:
        self._failures += 1
        pause_s = min(MOST_WAIT_S, self._every_s * 2 ** min(self._failures - 1, 10))
        self._not_before = time.monotonic() + pause_s
        since = self.down.since if self.down is not None else time.time()
        self.down = Down(str(error), since, time.time() + pause_s)

    def folder(self, token: str) -> Folder:
        """Return what is here of the block's folder."""
        return Folder(self._blocks / token)

    def send(self, token: str, options: Mapping[str, str]) -> str:
        """Copy the block to the box and start it there; return its short name. Raises: Unreachable, Refused, NotSent.

        Until the whole block is there nothing can start, so that a link that fails before is no doubt.
        """
        path = self.folder(token).path

        def feed(stream: IO[bytes]) -> None:
            with tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as archive:
                archive.add(path, arcname=".", filter=_without_owner)
                archive.addfile(tarfile.TarInfo(WHOLE))

        try:
            with self._call("receive", token, feed, MOVE_S):
                pass
        except Unreachable as error:
            raise NotSent(str(error)) from error
        failpoints.reach("box.received")
        self._known[token] = _Known()
        try:
            with self._call("start", token):
                pass
        except Refused as error:
            raise Unreachable(str(error)) from error  # it may have started
        return token[:8]

    def look(self, token: str) -> Seen:
        """Return what the box says of a block. Raises: Unreachable, also for an answer that is none."""
        known = self._sync(token)
        state = known.state
        if state is None or known.failure:
            raise Unreachable(known.failure)
        if not state.get("folder"):
            started = self.has_started(token)
            return Seen("gone", "NODE_FAIL (its folder is gone)" if started else "forgotten", "", token[:8])
        if state.get("alive"):
            fence = state.get("fence")
            pid = fence.get("pid") if isinstance(fence, dict) else None
            return Seen("running", "running" + (f" as process {pid}" if isinstance(pid, int) else ""), "", token[:8])
        if state.get("left"):
            return Seen("running", "running without a supervisor, which has died too often", "", token[:8])
        return Seen("gone", self._end_of(state), "", token[:8])

    def _end_of(self, state: Mapping[str, Any]) -> str:
        fence = state.get("fence")
        if not isinstance(fence, dict):
            return "it ended before it began" if state.get("starts") else "forgotten"
        if "void" in fence:
            return "forgotten"
        if fence.get("boot", state.get("boot")) != state.get("boot"):
            return "REBOOT (it could not go on after it)"
        return f"NODE_FAIL (its supervisor has died {state.get('starts')} times)"

    def fetch(self, token: str) -> None:
        """Bring back what is new, as often as `poll` says. Raises: OSError for what cannot be written here."""
        self._sync(token)

    def _sync(self, token: str) -> _Known:
        known = self._known.setdefault(token, _Known())
        now = time.monotonic()
        if now < known.due or (self.down is not None and now < self._not_before):
            known.failure = known.failure or (self.down.why if self.down is not None else "")
            return known
        folder = self.folder(token)
        told = read_json(folder.instructions) or {}
        mirror = Mirror(folder, (f"{run['job_id']}.{run['number']}" for run in told.get("runs", ())))
        have, done = mirror.have()
        asked = {"have": have, "done": done, "requests": self._requests(folder), "limit": LIMIT}
        try:
            with self._call("sync", token, lambda stream: _write(stream, asked), ANSWER_S, MOVE_S) as answered:
                mirror.take(answered.told, answered.read)
            known.state, known.failure = answered.told, ""
        except (Unreachable, Refused) as error:
            known.failure = str(error)
            if isinstance(error, Refused):
                self._fails(error)
            return known
        soon = known.state.get("ended") is not None or not known.state.get("alive")
        pause_s = 0.0 if known.state.get("more") else min(self._every_s, SOON_S) if soon else self._every_s
        known.due = time.monotonic() + pause_s
        return known

    def _requests(self, folder: Folder) -> list[str]:
        cancels = sorted(path.name for path in folder.cancels.iterdir()) if folder.cancels.is_dir() else []
        return [f"cancel/{name}" for name in cancels] + (["stop"] if folder.stop.exists() else [])

    def has_started(self, token: str) -> bool:
        """Return whether the block is known to have been started."""
        return has_started(self.folder(token).fence)

    def void(self, token: str) -> bool:
        """Make a block void; False when it was started before. Raises: Unreachable, OSError."""
        try:
            with self._call("void", token) as answered:
                if answered.told.get("void") is not True:
                    return False
        except Refused as error:
            raise Unreachable(str(error)) from error
        write_json(self.folder(token).fence, {"void": "by the front"})
        return True

    def request(self, token: str, name: str) -> None:
        """Leave a request, which goes with the next answer that the box gives. Raises: OSError."""
        path = self.folder(token).path / name
        if not path.exists():
            path.touch()
            self._known.setdefault(token, _Known()).due = 0.0

    def end(self, token: str, *, hard: bool) -> None:
        """Ask for the end of a block. Raises: OSError."""
        self.request(token, "stop")

    def abort(self) -> None:
        """End the call that another thread waits for, and any later one."""
        self.link.abort()

    def checks(self, name: str, *, smoke: bool) -> Iterator[Check]:
        """Examine the login, mpsq and the disk there; `smoke` adds nothing."""
        return ssh_checks.of_box(name, self.link)

    def remove(self, token: str) -> None:
        """Remove the folder of a block on the box, then here. Raises: Unreachable, OSError."""
        try:
            with self._call("remove", token):
                pass
        except Refused as error:
            raise Unreachable(str(error)) from error
        shutil.rmtree(self.folder(token).path, ignore_errors=True)
        self._known.pop(token, None)
        if not self._known:
            self.link.hang_up()


def _write(stream: IO[bytes], asked: Mapping[str, Any]) -> None:
    stream.write(json.dumps(asked).encode())


def _without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member
