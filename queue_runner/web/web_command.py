"""mpsq web: everything that a user can get wrong is checked first, with the port taken, and then the server takes the
place of the command. It holds 5 MB less, since it does not load the code that reads command lines."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import sys
from typing import Annotated

import typer

from queue_runner.cli.common import home, new_app
from queue_runner.errors import MpsqError, UsageError
from queue_runner.web import CONNECTIONS, ENDS, HOST

app = new_app()
NEEDS = ("starlette", "uvicorn")


@app.command("web")
def web(
    port: Annotated[int, typer.Option(min=0, max=65535, metavar="PORT", help="The port; 0 takes a free one.")] = 8642,
    write: Annotated[
        bool, typer.Option("--write", help="Allow to cancel, hold, release, move and retry jobs from the page.")
    ] = False,
    open: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Show the queue in a browser on this machine: what runs, the history, comparisons, logs.

    It prints the address and serves it until Ctrl-C, to this user on 127.0.0.1 alone; from another machine, reach it
    through ssh -L. It needs pip install starlette uvicorn. docs/web.md describes the pages and who may do what.
    """
    from queue_runner.worker import start_worker

    home()  # raises if the home belongs to another user
    if any(importlib.util.find_spec(name) is None for name in NEEDS):
        raise UsageError("mpsq web needs Starlette and uvicorn", "pip install starlette uvicorn")
    listener = listen(port)
    listener.set_inheritable(True)
    options = ["--write"] * write + ["--open"] * open
    arguments, environment = start_worker.program("queue_runner.web", str(listener.fileno()), *options)
    environment.setdefault("MALLOC_ARENA_MAX", "1")  # of glibc: its few threads need no memory of their own, 1 MB less
    sys.stdout.flush()
    sys.stderr.flush()
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)  # until the server can end by them: it loads for a second
    os.execve(sys.executable, arguments, environment)


def listen(port: int) -> socket.socket:
    """Return a socket of this machine alone. Raises: MpsqError where the port is taken or reserved."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
    except OSError as error:
        listener.close()
        reason = (error.strerror or str(error)).lower()
        raise MpsqError(f"port {port} cannot be used: {reason}", "mpsq web --port 0 takes a free one") from error
    listener.listen(CONNECTIONS)
    return listener
