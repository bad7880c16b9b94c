"""The server as a program, which `mpsq web` becomes: uvicorn on the socket that it made, until SIGINT or SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import uvicorn
from anyio.to_thread import current_default_thread_limiter

from queue_runner import paths
from queue_runner.host.low_priority import give_way
from queue_runner.web import CONNECTIONS, HOST
from queue_runner.web.app import Site, make_site
from queue_runner.web.security import Access

THREADS = 4
"""Pages that are made at once."""
GRACE_S = 2
"""Seconds that an answer may still take once the server ends."""


class Server(uvicorn.Server):
    """uvicorn without its own handling of signals, which raises them once more after the end."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the address and serve the queue until a signal. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="mpsq web")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--open", action="store_true")
    options = parser.parse_args(arguments)
    access = Access(write=options.write)
    site = make_site(paths.layout(), access)
    with socket.socket(fileno=options.fd) as listener:
        address = f"http://{HOST}:{listener.getsockname()[1]}/?token={access.token}"
        print(address, flush=True)
        print("Ctrl-C ends the page, not the queue" + "; the page may change the queue" * access.write, file=sys.stderr)
        give_way()  # to the measured run
        with _opened(address) if options.open else contextlib.nullcontext():
            asyncio.run(_serve(site, listener))
    return 0


async def _serve(site: Site, listener: socket.socket) -> None:
    """Serve until a signal. The streams end first: they would keep the server from ending."""
    current_default_thread_limiter().total_tokens = THREADS
    server = Server(
        uvicorn.Config(
            site.app,
            loop="asyncio",
            http="h11",
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
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) != signal.SIG_IGN:  # as a script's background jobs leave it
            loop.add_signal_handler(number, end)
    await server.serve(sockets=[listener])


@contextlib.contextmanager
def _opened(address: str) -> Iterator[None]:
    """Open the address in the user's browser. It goes through a file that only they may read: the arguments of a
    program are for everybody to see."""
    import tempfile
    import webbrowser

    with tempfile.TemporaryDirectory(prefix="mpsq-web-") as folder:  # mode 0700
        page = Path(folder) / "open.html"
        page.write_text(f'<!doctype html><meta http-equiv="refresh" content="0; url={address}"><title>mpsq</title>\n')
        with contextlib.suppress(webbrowser.Error):
            webbrowser.open(page.as_uri())
        yield


if __name__ == "__main__":
    sys.exit(main())
