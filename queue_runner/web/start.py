"""How `mpsq web` becomes a server: everything that a user can get wrong is checked first, with the port taken, and then
another program takes the place of the command. It holds 5 MB less: what reads command lines is not in it."""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
from dataclasses import dataclass
from typing import NoReturn

from queue_runner.errors import MpsqError, UsageError

HOST = "127.0.0.1"
"""The only address: whoever needs it from elsewhere makes a tunnel, which asks for a key or a password."""
PORT = 8642
CONNECTIONS = 64
NEEDS = ("starlette", "uvicorn")


@dataclass(frozen=True)
class Wanted:
    """Options of `mpsq web`. `port` 0 is any free one."""

    port: int = PORT
    write: bool = False
    open: bool = False


def start(wanted: Wanted) -> NoReturn:
    """Become the server. Raises: UsageError where the extra is not installed; MpsqError where the port is taken."""
    if any(importlib.util.find_spec(name) is None for name in NEEDS):
        raise UsageError("mpsq web needs Starlette and uvicorn", "pip install 'mpsq[web]'")
    from queue_runner.worker import spawn

    listener = listen(wanted.port)
    listener.set_inheritable(True)
    options = [name for name, given in (("--write", wanted.write), ("--open", wanted.open)) if given]
    arguments, environment = spawn.program("queue_runner.web", "--fd", str(listener.fileno()), *options)
    environment.setdefault("MALLOC_ARENA_MAX", "1")  # of glibc: its few threads need no memory of their own, 1 MB less
    sys.stdout.flush()
    sys.stderr.flush()
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
