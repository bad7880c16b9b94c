"""A box: somebody's machine that ssh reaches. The block runs there, detached from the link, under an ordinary worker.

The folder of a block exists twice: on the box, where its fence and its results are made, and here, where the returned
files are read (queue_runner.remote.mirror). The link decides nothing: without an answer nothing is known.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any

from msgspec import Struct, ValidationError, field, to_builtins

from queue_runner import __version__, units
from queue_runner.checks import Check
from queue_runner.decoding import convert
from queue_runner.host import failpoints
from queue_runner.paths import Layout
from queue_runner.remote.block import Instructions
from queue_runner.remote.box import WHOLE, BoxState, Place, SyncRequest
from queue_runner.remote.json_files import read_struct, write_json
from queue_runner.remote.link import ANSWER_S, MOVE_S, Answered, Link, control_path
from queue_runner.remote.mirror import LIMIT, Mirror
from queue_runner.remote.profile import Profile
from queue_runner.remote.target import Down, NotSent, Refused, Seen, Target, Unreachable

BASE = "~/.mpsq/blocks"
SOON_S = 1.0
FETCH_S = 5.0
"""How long one step brings files back that are there already: a cancellation waits for it."""
MOST_WAIT_S = 60.0
"""The longest pause between two tries to reach a box that does not answer."""


class _Known(Struct):
    """The last answer of the box about a block, and until when it is good enough, in monotonic seconds."""

    state: BoxState = field(default_factory=BoxState)
    due: float = 0.0


class Ssh(Target):
    """A box as a target of --on."""

    def __init__(self, name: str, profile: Profile, layout: Layout) -> None:
        super().__init__(name, layout.blocks, profile)
        options = tuple(shlex.split(profile.ssh))
        control = control_path(layout.cache, profile.host, options)
        self.link = Link(profile.host, profile.python, profile.folder or BASE, options, control)
        self._known: dict[str, _Known] = {}
        self._failures = 0

    @contextlib.contextmanager
    def _call(
        self, verb: str, token: str, feed: Callable[[IO[bytes]], object] | None = None, *limits: float
    ) -> Iterator[Answered]:
        """Do as Link.call. A box that has not answered is left alone for a pause that doubles: each call waits for it.
        Raises: Unreachable, Refused."""
        self._check_down()
        try:
            with self.link.call(verb, token, feed, *limits) as answered:
                yield answered
        except Unreachable as error:
            self._fails(error)
            raise
        self.down, self._failures = None, 0

    def _check_down(self) -> None:
        if self.down is not None and self.down.is_left_alone:
            raise Unreachable(self.down.why)

    def _fails(self, error: Exception) -> None:
        self._failures += 1
        pause_s = min(MOST_WAIT_S, self.profile.poll_s * 2 ** min(self._failures - 1, 10))
        since = self.down.since if self.down is not None else time.time()
        self.down = Down(str(error), since, time.time() + pause_s, time.monotonic() + pause_s)

    def _order(self, verb: str, token: str) -> dict[str, Any]:
        """Let the box do what it has no reason to refuse: who knows what it did? Raises: Unreachable."""
        try:
            with self._call(verb, token) as answered:
                return answered.answer
        except Refused as error:
            raise Unreachable(str(error)) from error

    def send(self, token: str, options: Mapping[str, str]) -> str:
        """Copy the block to the box and start it there; return its short name. Raises: Unreachable, Refused, NotSent.

        Nothing can start before the whole block is there: if the link fails earlier, the block has not started.
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
        self._order("start", token)
        return token[:8]

    def look(self, token: str) -> Seen:
        """Bring back new files, as often as `poll` says, and return the state of a block. Raises: Unreachable, also for
        an invalid answer; OSError when they cannot be written here."""
        deadline = time.monotonic() + FETCH_S
        state = self._sync(token)
        while state.more and time.monotonic() < deadline:
            state = self._sync(token)
        if not state.folder:
            words = "NODE_FAIL (its folder is gone)" if self.has_started(token) else "forgotten"
        elif state.alive:
            pid = state.fence.pid if state.fence is not None else None
            words = f"running as process {pid}" if pid is not None else "running"
            words += "; its disk is full, and results wait for room" if state.full else ""
            return Seen("running", words, "", token[:8])
        elif state.more:
            return Seen("running", "over, but its results are coming", "", token[:8])
        elif state.left:
            return Seen("running", "running without a supervisor, which has died too often", "", token[:8])
        elif state.fence is None:
            words = "it ended before it began" if state.starts else "forgotten"
        elif state.fence.void is not None:
            words = "forgotten"
        elif state.fence.boot not in (None, state.boot):
            words = "REBOOT (it could not go on after it)"
        else:
            words = f"NODE_FAIL (its supervisor has died {state.starts} times)"
        return Seen("gone", words, "", token[:8])

    def _sync(self, token: str) -> BoxState:
        self._check_down()
        known = self._known.setdefault(token, _Known())
        if time.monotonic() < known.due:
            return known.state
        folder = self.folder(token)
        instructions = read_struct(folder.instructions, Instructions)
        mirror = Mirror(folder, [run.name for run in instructions.runs] if instructions is not None else [])
        have, done = mirror.have()
        names = sorted(path.name for path in folder.cancels.iterdir()) if folder.cancels.is_dir() else []
        is_to_stop = folder.stop.exists() or not folder.path.is_dir()
        requests = [f"cancel/{name}" for name in names] + ["stop"] * is_to_stop
        data = json.dumps(SyncRequest(have, {*done}, requests, LIMIT), default=to_builtins).encode()
        try:
            with self._call("sync", token, lambda stream: stream.write(data), ANSWER_S, MOVE_S) as answered:
                state = known.state = mirror.take(answered.answer, answered.read)
        except Refused as error:
            self._fails(error)
            raise Unreachable(str(error)) from error
        soon = state.ended is not None or not state.alive
        pause_s = 0.0 if state.more else min(self.profile.poll_s, SOON_S) if soon else self.profile.poll_s
        known.due = time.monotonic() + pause_s
        return state

    def void(self, token: str) -> bool:
        """Make a block void; False when it was started before. Raises: Unreachable, OSError."""
        if self._order("void", token).get("void") is not True:
            return False
        write_json(self.folder(token).fence, {"void": "by the front"})
        return True

    def request(self, token: str, name: str) -> None:
        """Leave a request, which goes with the next answer that the box gives. Raises: OSError."""
        if not (self.folder(token).path / name).exists():
            super().request(token, name)
            self._known.setdefault(token, _Known()).due = 0.0

    def abort(self) -> None:
        """End the call that another thread waits for, and any later one."""
        self.link.abort()

    def checks(self) -> Iterator[Check]:
        """Examine the login, mpsq and the disk there."""
        begin, host, on = time.monotonic(), self.link.host, f"mpsq config set on.{self.profile.name}"
        try:
            with self.link.call("hello", "0" * 32) as answered:
                place = convert(answered.answer, Place)
        except Unreachable as error:
            fix = f"see that `ssh -o BatchMode=yes {host} true` works; blocks that were sent continue meanwhile"
            yield Check("login", "fail", f"{host}: {error}", fix)
            return
        except (Refused, ValidationError) as error:
            yield Check("login", "ok", f"{host} lets you in")
            fix = f"{on}.kind ssh, and on.{self.profile.name}.python PATH: one that has mpsq {__version__}"
            yield Check("mpsq", "fail", str(error), fix)
            return
        took = units.duration(time.monotonic() - begin)
        yield Check("login", "ok", f"{host} lets you in and answered in {took}")
        yield Check("mpsq", "ok", f"{__version__} in {self.link.python}, Python {place.python}")
        fix = f"{on}.folder PATH: a folder of yours on a local disk there"
        if place.problem:
            yield Check("folder", "fail", place.problem, f"free some space there, or {fix}")
        else:
            yield Check("folder", "ok", f"{place.place} is local, {units.size(place.free_bytes)} are free")

    def remove(self, token: str) -> None:
        """Remove the folder of a block on the box, then here. Raises: Unreachable, OSError."""
        self._order("remove", token)
        super().remove(token)
        self._known.pop(token, None)
        if not self._known:
            self.link.hang_up()


def _without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member
