"""The server: uvicorn on the socket that `mpsq web` made, until SIGINT or SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import uvicorn.server
from anyio.to_thread import current_default_thread_limiter
from uvicorn.protocols.http.h11_impl import H11Protocol

from queue_runner import paths
from queue_runner.host.low_priority import give_way
from queue_runner.web import CONNECTIONS, ENDS, HOST
from queue_runner.web.app import Site, make_site
from queue_runner.web.security import Access, is_owner, user_of

THREADS = 4
"""Pages that are made at once."""
GRACE_S = 2
"""Seconds that an answer may still take once the server ends."""
REQUEST_S = 5.0
"""Time within which a connection must have sent a whole request; the same that uvicorn waits for a further one."""
FULL_COLLECTION = 1000
"""The last threshold of gc: a full collection takes 30 ms of a page, and app.Rest has one while nobody waits."""
STRANGERS = 4
"""Connections of all other users together: each gets its refusal, and none takes a place of the owner."""


class Server(uvicorn.server.Server):
    """uvicorn without its own handling of signals, which raises them once more after the end."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class WebConnection(H11Protocol):
    """A connection that gives way: to the owner, to a whole request, and to a newer one where there is no place."""

    _late: asyncio.TimerHandle | None = None
    _since = 0.0
    _is_stranger = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._since = self.loop.time()
        user = user_of(self.client, self.server) if self.client and self.server and self.server[1] else None  # type: ignore[arg-type]
        self._is_stranger = not is_owner(user)
        others = [other for other in self.connections if isinstance(other, WebConnection) and other is not self]
        if self._is_stranger and sum(other._is_stranger for other in others) >= STRANGERS:
            self._drop()
            return
        idle = [other for other in others if other._is_idle]
        if len(self.connections) >= CONNECTIONS and idle:
            min(idle, key=lambda other: other._since)._drop()
        self._expect_request()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._expect_request()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._late is not None:
            self._late.cancel()
        super().connection_lost(exc)

    @property
    def _is_idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def _expect_request(self) -> None:
        """Close the connection unless a whole request comes in time; every byte more gives no more time."""
        if not self._is_idle and self._late is not None:
            self._late.cancel()
            self._late = None
        elif self._is_idle and self._late is None:
            self._late = self.loop.call_later(REQUEST_S, self._drop)

    def _drop(self) -> None:
        self.connections.discard(self)  # now: the place is needed before the event loop closes it
        self.transport.abort()


def main() -> int:
    """Print the address and serve the queue until a signal. The arguments are those of web_command: the descriptor of
    the socket, then options. Returns the exit code."""
    descriptor, *options = sys.argv[1:]
    for number in ENDS:
        if signal.getsignal(number) != signal.SIG_IGN:  # as a script's background jobs leave it
            signal.signal(number, lambda *_: sys.exit(0))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDS)
    access = Access(write="--write" in options)
    site = make_site(paths.layout(), access)
    with socket.socket(fileno=int(descriptor)) as listener:
        address = f"http://{HOST}:{listener.getsockname()[1]}/?token={access.token}"
        print(address, flush=True)
        print("Ctrl-C ends the page, not the queue" + "; the page may change the queue" * access.write, file=sys.stderr)
        give_way()  # to the measured run
        gc.set_threshold(*gc.get_threshold()[:2], FULL_COLLECTION)
        with _opened(address) if "--open" in options else contextlib.nullcontext():
            asyncio.run(_serve(site, listener))
    return 0


async def _serve(site: Site, listener: socket.socket) -> None:
    """Serve until a signal. The streams end first: they would keep the server from ending."""
    current_default_thread_limiter().total_tokens = THREADS
    server = Server(
        uvicorn.Config(
            site.app,
            loop="asyncio",
            http=WebConnection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,  # nothing is in front of it, and anybody could send them
            limit_concurrency=CONNECTIONS,
            timeout_graceful_shutdown=GRACE_S,
            h11_max_incomplete_event_size=16 << 10,
        )
    )

    def end() -> None:
        site.streams.closing = True
        server.should_exit = True

    loop = asyncio.get_running_loop()
    for number in ENDS:
        if signal.getsignal(number) != signal.SIG_IGN:
            loop.add_signal_handler(number, end)
    await server.serve(sockets=[listener])


@contextlib.contextmanager
def _opened(address: str) -> Iterator[None]:
    """Open the address in the user's browser. It goes through a file that only they may read: the arguments of a
    program are for everybody to see."""
    import webbrowser

    with tempfile.TemporaryDirectory(prefix="mpsq-") as folder:
        page = Path(folder, "open.html")
        page.write_text(f'<!doctype html><meta http-equiv="refresh" content="0; url={address}"><title>mpsq</title>\n')
        with contextlib.suppress(webbrowser.Error):
            webbrowser.open(page.as_uri())
        yield
