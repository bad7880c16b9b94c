"""SQLite's own files: a VFS in front of the system's, in which writes fail, tear, and are lost with the power.

It is SQLite's default VFS from `install` on, so that the product's connections use it. It copies the tables of the
VFS that is there and replaces the calls that matter; the library is the one that Python's sqlite3 uses.
"""

# the calls of os are what this is about
# ruff: noqa: PTH116
from __future__ import annotations

import _sqlite3
import ctypes
import functools
import os
import random
import sqlite3
import stat
import time
from collections.abc import Callable
from ctypes import CFUNCTYPE, POINTER, Structure, c_char_p, c_int, c_int64, c_void_p
from typing import TYPE_CHECKING, Any

from tests.faults.machine import Killed

if TYPE_CHECKING:
    from tests.faults.machine import Machine, Process

_open, _close, _pread, _pwrite, _ftruncate = os.open, os.close, os.pread, os.pwrite, os.ftruncate
"""The real calls: within a call of SQLite no other process may have a turn."""
OK, BUSY, IOERR, FULL, CANTOPEN = 0, 5, 10, 13, 14
IOERR_READ, IOERR_WRITE, IOERR_FSYNC = (IOERR | number << 8 for number in (1, 3, 4))
IOERR_TRUNCATE, IOERR_DELETE = (IOERR | number << 8 for number in (6, 10))
IOERR_LOCK, IOERR_SHMMAP = IOERR | 15 << 8, IOERR | 21 << 8
SECTOR_BYTES = 512

_VFS_CALLS = (
    *("xOpen", "xDelete", "xAccess", "xFullPathname", "xDlOpen", "xDlError", "xDlSym", "xDlClose", "xRandomness"),
    *("xSleep", "xCurrentTime", "xGetLastError", "xCurrentTimeInt64", "xSetSystemCall", "xGetSystemCall"),
    "xNextSystemCall",
)
_FILE_CALLS = (
    *("xClose", "xRead", "xWrite", "xTruncate", "xSync", "xFileSize", "xLock", "xUnlock", "xCheckReservedLock"),
    *("xFileControl", "xSectorSize", "xDeviceCharacteristics", "xShmMap", "xShmLock", "xShmBarrier", "xShmUnmap"),
    *("xFetch", "xUnfetch"),
)


class _Vfs(Structure):
    _fields_ = (
        *(("iVersion", c_int), ("szOsFile", c_int), ("mxPathname", c_int), ("pNext", c_void_p)),
        *(("zName", c_char_p), ("pAppData", c_void_p)),
        *((name, c_void_p) for name in _VFS_CALLS),
    )


class _Methods(Structure):
    _fields_ = (("iVersion", c_int), *((name, c_void_p) for name in _FILE_CALLS))


_OPEN = CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_int, c_void_p)
_DELETE = CFUNCTYPE(c_int, c_void_p, c_char_p, c_int)
_CALLS: dict[str, Any] = {
    "xClose": CFUNCTYPE(c_int, c_void_p),
    "xRead": CFUNCTYPE(c_int, c_void_p, c_void_p, c_int, c_int64),
    "xWrite": CFUNCTYPE(c_int, c_void_p, c_void_p, c_int, c_int64),
    "xTruncate": CFUNCTYPE(c_int, c_void_p, c_int64),
    "xSync": CFUNCTYPE(c_int, c_void_p, c_int),
    "xLock": CFUNCTYPE(c_int, c_void_p, c_int),
    "xShmMap": CFUNCTYPE(c_int, c_void_p, c_int, c_int, c_int, c_void_p),
    "xShmLock": CFUNCTYPE(c_int, c_void_p, c_int, c_int, c_int),
}
_ERRORS = {
    **{"open": CANTOPEN, "delete": IOERR_DELETE, "read": IOERR_READ, "write": IOERR_WRITE, "sync": IOERR_FSYNC},
    **{"truncate": IOERR_TRUNCATE, "lock": IOERR_LOCK, "shmmap": IOERR_SHMMAP, "shmlock": IOERR_LOCK},
}
"""The error of a device by call."""


class Files:
    """What happens to SQLite's files. `fails` returns the error of a call by its name and file, 0 for none; `tears`
    how many bytes of a write that fails are written all the same."""

    def __init__(self) -> None:
        self.is_dead = False  # the process of the connection has been killed
        self.fails: Callable[[str, str], int] | None = None
        self.tears: Callable[[int], int] = lambda size: 0
        self.is_watched = False
        self.written: dict[int, list[tuple[int, bytes, bytes, int]]] = {}  # by inode: offset, old, new, size before
        self.names: dict[int, str] = {}  # by address of the file
        self.fds: dict[int, int] = {}  # by inode
        self.inodes: dict[int, int] = {}  # by address of the file
        self.new_logs: set[int] = set()  # of logs that are empty: their first flush is one of their folder, too
        self.names_are_flushed: Callable[[], None] = lambda: None

    def error(self, call: str, file: int | None, name: str = "") -> int:
        if self.is_dead:
            return 0 if call in ("read", "open", "lock", "shmmap", "shmlock") else _ERRORS[call]
        if self.fails is None:
            return 0
        return self.fails(call, name or self.names.get(file or 0, ""))

    def watch(self) -> None:
        """From now on remember writes that were not flushed."""
        self.forget()
        self.is_watched = True

    def forget(self) -> None:
        for fd in self.fds.values():
            _close(fd)
        self.written, self.fds, self.inodes = {}, {}, {}
        self.is_watched = False

    def opened(self, file: int, path: str) -> None:
        self.names[file] = path
        self.new_logs.discard(file)
        if path.endswith(("-wal", "-journal")) and os.stat(path).st_size == 0:
            self.new_logs.add(file)
        if not self.is_watched or not path or path.endswith("-shm"):
            return
        status = os.stat(path)
        if stat.S_ISREG(status.st_mode):
            self.inodes[file] = status.st_ino
            if status.st_ino not in self.fds:
                try:
                    self.fds[status.st_ino] = _open(path, os.O_RDWR | os.O_CLOEXEC)
                except OSError:
                    del self.inodes[file]

    def note(self, file: int, offset: int, new: bytes | None) -> None:
        """Note a write, or with None a truncation."""
        inode = self.inodes.get(file)
        if inode is None:
            return
        fd = self.fds[inode]
        size = os.fstat(fd).st_size
        old = _pread(fd, len(new) if new is not None else max(size - offset, 0), offset)
        self.written.setdefault(inode, []).append((offset, old, b"" if new is None else new, size))

    def flushed(self, file: int) -> None:
        self.written.pop(self.inodes.get(file, 0), None)
        if file in self.new_logs:
            self.new_logs.discard(file)
            self.names_are_flushed()

    def lose(self, chance: random.Random) -> None:
        """Undo writes that were not flushed; the seed says which writes have reached the disk all the same."""
        for inode, writes in self.written.items():
            fd = self.fds[inode]
            for offset, old, _, size in reversed(writes):
                _pwrite(fd, old, offset)
                _ftruncate(fd, size)
            share = chance.choice((0.0, 0.5, 0.9, 1.0))
            for offset, _, new, _ in writes:
                if chance.random() < share and new:
                    torn = chance.random() < 0.2
                    n_bytes = chance.randrange(0, len(new) + 1, SECTOR_BYTES) if torn else len(new)
                    _pwrite(fd, new[:n_bytes], offset)
        self.written.clear()


files = Files()
_kept: list[object] = []  # what SQLite has pointers to


@functools.cache
def library() -> ctypes.CDLL:
    """Return the SQLite of Python's sqlite3. Raises: OSError or AttributeError where it cannot be reached."""
    loaded = ctypes.CDLL(getattr(_sqlite3, "__file__", None))
    loaded.sqlite3_vfs_find.restype = POINTER(_Vfs)
    loaded.sqlite3_vfs_find.argtypes = [c_char_p]
    loaded.sqlite3_next_stmt.restype = c_void_p
    loaded.sqlite3_vfs_register.argtypes = [c_void_p, c_int]
    return loaded


def uninstall() -> None:
    """Make the VFS that was there before the default one again."""
    assert library().sqlite3_vfs_register(library().sqlite3_vfs_find(b"unix"), 1) == OK


def install(*, all_calls: bool = False) -> Files:
    """Make the VFS the default one, with `all_calls` with those that only the injection of errors needs."""
    original = library().sqlite3_vfs_find(b"unix").contents
    vfs = _Vfs.from_buffer_copy(original)
    vfs.zName = b"mpsq-faults"
    open_file, delete_file = _OPEN(original.xOpen), _DELETE(original.xDelete)
    tables: dict[int, _Methods] = {}

    def table(address: int) -> int:
        if address not in tables:
            methods = _Methods.from_buffer_copy(_Methods.from_address(address))
            for name, replacement in _replacements(methods, all_calls).items():
                _kept.append(replacement)
                setattr(methods, name, ctypes.cast(replacement, c_void_p).value)
            tables[address] = methods
        return ctypes.addressof(tables[address])

    def x_open(self: int, name: int | None, file: int, flags: int, out: int) -> int:
        path = os.fsdecode(ctypes.string_at(name)) if name else ""
        methods = c_void_p.from_address(file)
        if code := files.error("open", None, path):
            methods.value = None
            return code
        code = open_file(self, name, file, flags, out)
        if code == OK and methods.value:
            files.opened(file, path)
            methods.value = table(methods.value)
        return code  # type: ignore[no-any-return]

    def x_delete(self: int, name: bytes, sync: int) -> int:
        return files.error("delete", None, os.fsdecode(name)) or delete_file(self, name, sync)

    callbacks = {"xOpen": _OPEN(x_open), "xDelete": _DELETE(x_delete)}
    for name, callback in callbacks.items():
        setattr(vfs, name, ctypes.cast(callback, c_void_p).value)
    _kept.extend((vfs, callbacks))
    code = library().sqlite3_vfs_register(ctypes.byref(vfs), 1)
    assert code == OK, f"sqlite3_vfs_register: {code}"
    return files


def _replacements(methods: _Methods, all_calls: bool) -> dict[str, Any]:
    real = {name: kind(getattr(methods, name)) for name, kind in _CALLS.items() if getattr(methods, name)}

    def x_close(file: int) -> int:
        files.names.pop(file, None)
        files.inodes.pop(file, None)
        try:
            return real["xClose"](file)  # type: ignore[no-any-return]
        except ctypes.ArgumentError:  # of an error that is on its way through the code that closes
            return real["xClose"](file)  # type: ignore[no-any-return]

    def x_write(file: int, data: int, size: int, offset: int) -> int:
        code = files.error("write", file)
        n_bytes = size if not code else 0 if files.is_dead else files.tears(size)
        if not n_bytes:
            return code
        if files.is_watched:
            files.note(file, offset, ctypes.string_at(data, n_bytes))
        written = real["xWrite"](file, data, n_bytes, offset)
        return code or written

    def x_truncate(file: int, size: int) -> int:
        if code := files.error("truncate", file):
            return code
        if files.is_watched:
            files.note(file, size, None)
        return real["xTruncate"](file, size)  # type: ignore[no-any-return]

    def x_sync(file: int, flags: int) -> int:
        if code := files.error("sync", file):
            return code
        files.flushed(file)
        return real["xSync"](file, flags) if all_calls else OK  # type: ignore[no-any-return]

    def x_read(file: int, data: int, size: int, offset: int) -> int:
        return files.error("read", file) or real["xRead"](file, data, size, offset)

    def x_lock(file: int, level: int) -> int:
        return files.error("lock", file) or real["xLock"](file, level)

    def x_shm_map(file: int, page: int, size: int, extend: int, out: int) -> int:
        return files.error("shmmap", file) or real["xShmMap"](file, page, size, extend, out)

    def x_shm_lock(file: int, offset: int, n: int, flags: int) -> int:
        is_lock = flags & 2  # SQLITE_SHM_LOCK; an unlock cannot fail
        return (files.error("shmlock", file) if is_lock else 0) or real["xShmLock"](file, offset, n, flags)

    chosen = {"xClose": x_close, "xWrite": x_write, "xTruncate": x_truncate, "xSync": x_sync}
    if all_calls:
        chosen |= {"xRead": x_read, "xLock": x_lock, "xShmMap": x_shm_map, "xShmLock": x_shm_lock}
    return {name: _CALLS[name](call) for name, call in chosen.items() if name in real}


# -- connections of simulated processes -------------------------------------------------------------------------------


@functools.cache
def _simulated(base: type[sqlite3.Connection]) -> type[sqlite3.Connection]:
    class Simulated(base):  # type: ignore[misc, valid-type]
        machine: Machine
        process: Process
        patience_s: float
        address: str

        def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
            return _run(self, super().execute, sql, *values)

        def executemany(self, sql: str, *values: Any) -> sqlite3.Cursor:
            return _run(self, super().executemany, sql, *values)

        def backup(self, target: sqlite3.Connection, **named: Any) -> None:
            try:
                super().backup(target, **named)
            finally:
                _die_if_doomed(self.machine, "a backup")

        def close(self) -> None:
            if self.process.is_alive and self in self.process.connections:
                self.process.connections.remove(self)
                super().close()
                _die_if_doomed(self.machine, "a close")

    return Simulated


def connect(
    machine: Machine, process: Process, database: Any, *arguments: Any, timeout: float = 5.0, **named: Any
) -> sqlite3.Connection:
    """Connect for a simulated process, which waits for locks by the simulated clock."""
    from tests.faults import calls

    factory = _simulated(named.pop("factory", sqlite3.Connection))
    named |= {"timeout": 0.0, "check_same_thread": False}
    connection: Any = calls.REAL.connect(database, *arguments, factory=factory, **named)
    connection.machine, connection.process, connection.patience_s = machine, process, timeout
    connection.address = str(database)
    process.connections.append(connection)
    return connection  # type: ignore[no-any-return]


_CONTROL = ("BEGIN", "COMMIT", "ROLLBACK")


def _run(connection: Any, call: Callable[..., sqlite3.Cursor], sql: str, *values: Any) -> sqlite3.Cursor:
    machine, process = connection.machine, connection.process
    if not process.is_alive:
        raise Killed
    if sql.startswith("PRAGMA busy_timeout="):
        connection.patience_s = float(sql.partition("=")[2]) / 1000
        return call("SELECT 1")
    word = sql.lstrip()[:8].split(None, 1)[0]
    if word in _CONTROL or word in ("INSERT", "UPDATE", "DELETE"):
        machine.point("sql", " ".join(sql.split()[:4]))
    deadline = time.monotonic() + connection.patience_s
    while True:
        try:
            cursor = call(sql, *values)
            break
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if machine.doomed is None and (code != BUSY or time.monotonic() > deadline):
                raise
            if machine.doomed is None:
                machine.wait(None, 0.003)
        if machine.doomed is not None:
            break
    _die_if_doomed(machine, word)
    if word == "COMMIT":
        machine.committed(connection)
        machine.pause()
    return cursor


def _die_if_doomed(machine: Machine, what: str) -> None:
    if machine.doomed is not None:
        doomed, machine.doomed = machine.doomed, None
        doomed.by_fault = True
        machine.note(f"{doomed} dies within {what}")
        machine.kill(doomed, 9)
        files.is_dead = False
        raise Killed


def _reset_statements(connection: sqlite3.Connection) -> None:
    """Let go of the locks of statements that nobody has read to the end. The handle is the first field of the object
    (pysqlite_Connection of CPython's Modules/_sqlite/connection.h)."""
    handle = c_void_p.from_address(id(connection) + object.__basicsize__).value
    statement = library().sqlite3_next_stmt(c_void_p(handle), None) if handle else None
    while statement:
        library().sqlite3_reset(c_void_p(statement))
        statement = library().sqlite3_next_stmt(c_void_p(handle), c_void_p(statement))


def close_dead(connection: sqlite3.Connection) -> None:
    """Close a connection of a process that was killed: nothing that SQLite does then reaches the disk."""
    before, files.is_dead = files.is_dead, True
    try:
        _reset_statements(connection)
        sqlite3.Connection.close(connection)
    finally:
        files.is_dead = before
