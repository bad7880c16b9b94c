"""Server-sent events: changes of the first page, and logs that grow (WHATWG HTML, 9.2).

One thread looks at the queue for all browsers, with monitor/watch as `mpsq status --watch` does, and only while one
listens. An update that a browser has not taken yet is replaced by the next: nothing piles up for a slow one.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from starlette.responses import StreamingResponse

from queue_runner.errors import MpsqError
from queue_runner.monitor import watch
from queue_runner.monitor.queue_status import Observation
from queue_runner.paths import Layout
from queue_runner.web.views import PATIENCE_S, WAITING

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from starlette.requests import Request

MOST = 16
"""Number of connections that may listen at once."""
BEAT_S = 10.0
"""Interval of the empty lines that tell whether the browser is still there."""
_STEP_S = 0.25

Parts = Mapping[str, Any]
Render = Callable[[Observation], Parts]


class Streams:
    """The connections that listen, and whether the server is about to end."""

    def __init__(self) -> None:
        self.closing = False
        self._open = 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count a connection for as long as it lasts."""
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1

    @property
    def full(self) -> bool:
        """Whether there are as many as may be."""
        return self._open >= MOST

    async def last(self, request: Request) -> bool:
        """Wait a moment. Return whether the stream ends: the browser has gone, or the server goes."""
        await asyncio.sleep(_STEP_S)
        return self.closing or await request.is_disconnected()


def event(name: str, value: Any) -> str:
    """Return an event as it is sent: its data is JSON, which has no line breaks."""
    return f"event: {name}\ndata: {json.dumps(value)}\n\n"


def explained(error: Exception) -> MpsqError:
    """Return an error with its remedy on a page, also one of the system or a defect of ours."""
    if isinstance(error, MpsqError):
        hint = error.hint.replace("mpsq list --all shows", "the history shows")
        return MpsqError(error.message, re.sub(r"mpsq list --runs (\d+)", r"/job/\1", hint))
    if isinstance(error, OSError):
        where = f": {error.filename}" if error.filename else ""
        return MpsqError(f"{(error.strerror or str(error)).lower()}{where}", "mpsq doctor checks this machine")
    return MpsqError(f"mpsq web failed: {type(error).__name__}", "its terminal shows where; please report it")


def answer(events: AsyncIterator[str]) -> StreamingResponse:
    """Return the answer that sends these events."""
    return StreamingResponse(events, media_type="text/event-stream", headers={"x-accel-buffering": "no"})


class Watcher:
    """Looks at the queue while anybody listens. `render` makes the parts of the page of what it sees, once for all."""

    def __init__(self, layout: Layout, render: Render) -> None:
        self._layout = layout
        self._render = render
        self._lock = threading.Lock()
        self._listeners = 0
        self._parts: dict[str, tuple[int, Any]] = {}
        self._version = 0
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()

    async def events(self, request: Request, streams: Streams, choose: Callable[[Any], Any]) -> AsyncIterator[str]:
        """Yield the parts as events, each when it has changed. `choose` picks what this browser may see of one."""
        sent: dict[str, int] = {}
        quiet_s = 0.0
        with streams.counted(), self._listening():
            yield "retry: 2000\n\n"
            while not await streams.last(request):
                quiet_s += _STEP_S
                for name, (version, value) in self._parts.copy().items():
                    if sent.get(name) != version:
                        sent[name], quiet_s = version, 0.0
                        yield event(name, choose(value))
                if quiet_s >= BEAT_S:
                    quiet_s = 0.0
                    yield ":\n\n"

    @contextmanager
    def _listening(self) -> Iterator[None]:
        with self._lock:
            self._listeners += 1
            if self._thread is None:
                self._wake.clear()
                self._thread = threading.Thread(target=self._watch, name="mpsq-web-watch", daemon=True)
                self._thread.start()
        try:
            yield
        finally:
            with self._lock:
                self._listeners -= 1
            self._wake.set()

    def _over(self) -> bool:
        with self._lock:
            self._wake.clear()
            if not self._listeners:
                self._thread = None
                self._parts = {}
            return not self._listeners

    def _watch(self) -> None:
        observations: Generator[Observation | None] | None = None
        while not self._over():
            try:
                observations = observations or watch.observe(self._layout, WAITING, PATIENCE_S)
                observation = next(observations)
                if observation is not None:
                    self._publish(self._render(observation))
            except Exception as error:  # the thread continues: without it no page would be updated, or say why
                observations = None
                trouble = [explained(error).with_remedy] * 2
                if self._parts.get("trouble", (0, None))[1] != trouble and not isinstance(error, MpsqError | OSError):
                    traceback.print_exception(error)
                self._publish({"trouble": trouble})
            self._wake.wait(watch.POLL_S)
        if observations is not None:
            observations.close()

    def _publish(self, parts: Parts) -> None:
        if "trouble" in self._parts and "trouble" not in parts:
            parts = {**parts, "trouble": ["", ""]}  # it is over
        for name, value in parts.items():
            if self._parts.get(name, (0, None))[1] != value:
                self._version += 1
                self._parts[name] = (self._version, value)
