"""A real worker, with real wardens, that records their system calls in the words of the simulation.

`python -m tests.faults.traced FOLDER [ARGUMENTS]` is a worker with these arguments. Each thread has a file in FOLDER.
"""

# the calls of os are what this is about
# ruff: noqa: PTH115
from __future__ import annotations

import builtins
import fcntl
import io
import marshal
import os
import sqlite3
import sys
import threading
from collections.abc import Callable
from typing import Any

_REAL_OPEN, _REAL_WRITE = os.open, os.write
_files: dict[int, int] = {}
_folder = ""
_role = ""


def record(what: str, detail: object = "") -> None:
    """Append a line to the file of this thread."""
    thread = threading.get_ident()
    if thread not in _files:
        name = f"{_folder}/{_role}.{os.getpid()}.{len(_files)}"
        _files[thread] = _REAL_OPEN(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    text = os.fspath(detail) if isinstance(detail, str | os.PathLike) else str(detail)
    _REAL_WRITE(_files[thread], f"{what} {text}\n".encode())


def _path_of(fd: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return ""


def _wrap(module: Any, name: str, note: Callable[..., None]) -> None:
    real = getattr(module, name)

    def call(*arguments: Any, **named: Any) -> Any:
        note(*arguments, **named)
        return real(*arguments, **named)

    setattr(module, name, call)


def _opened(path: Any, flags: Any = "r", *_: Any, **__: Any) -> None:
    if isinstance(path, str | os.PathLike):
        creates = bool(flags & os.O_CREAT) if isinstance(flags, int) else any(letter in flags for letter in "wax+")
        if creates and not os.path.lexists(path):
            record("create", path)


def _closed(fd: int) -> None:
    if (path := _path_of(fd)).endswith((".lock", ".turn")):
        record("close", path)


class _Connection(sqlite3.Connection):
    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        _statement(sql)
        return super().execute(sql, *values)

    def executemany(self, sql: str, *values: Any) -> sqlite3.Cursor:
        _statement(sql)
        return super().executemany(sql, *values)


def _statement(sql: str) -> None:
    words = sql.split()
    if words and words[0] in ("BEGIN", "COMMIT", "ROLLBACK", "INSERT", "UPDATE", "DELETE"):
        record("sql", " ".join(words[:4]))


def begin(folder: str, role: str) -> None:
    """Record from now on."""
    global _folder, _role
    _folder, _role = folder, role
    for name in ("rename", "replace", "link"):
        _wrap(os, name, lambda a, b, name=name, **_: record(name, f"{os.fspath(a)} {os.fspath(b)}"))
    for name in ("unlink", "mkdir"):
        _wrap(os, name, lambda path, *_, name=name, **__: record(name, path))
    for name in ("fsync", "fork"):
        _wrap(os, name, lambda *_, name=name: record(name))
    for name in ("write", "pwrite", "ftruncate"):
        _wrap(os, name, lambda fd, *_, name=name: record(name, _path_of(fd)) if _path_of(fd)[:1] == "/" else None)
    _wrap(os, "close", _closed)
    _wrap(fcntl, "flock", lambda fd, *_: record("flock", _path_of(fd)))
    _wrap(os, "open", _opened)
    _wrap(builtins, "open", _opened)
    io.open = builtins.open
    real_connect = sqlite3.connect

    def connect(*arguments: Any, **named: Any) -> sqlite3.Connection:
        base = named.pop("factory", sqlite3.Connection)
        return real_connect(*arguments, factory=type("Traced", (_Connection, base), {}), **named)

    sqlite3.connect = connect  # type: ignore[assignment]


_WARDEN = """
import sys
supervise, traced = sys.modules["queue_runner.warden.supervise"], sys.modules["traced"]
supervises = supervise.main
def main(*arguments):
    traced.begin({folder!r}, "warden")
    return supervises(*arguments)
supervise.main = main
"""


def _work(folder: str, arguments: list[str]) -> int:
    begin(folder, "worker")
    from queue_runner.worker import main_loop, warden_starter

    *modules, forks = marshal.loads(warden_starter.warden_code())
    with open(__file__) as source:
        modules.append(("traced", compile(source.read(), __file__, "exec")))
    modules.append(("begin", compile(_WARDEN.format(folder=folder), "begin", "exec")))
    code = marshal.dumps([*modules, forks])
    warden_starter.warden_code = lambda: code  # type: ignore[assignment]
    _wrap(warden_starter.WardenStarter, "spawn", lambda *_: record("spawn"))
    return main_loop.main(arguments)


if __name__ == "__main__":
    sys.exit(_work(sys.argv[1], sys.argv[2:]))
