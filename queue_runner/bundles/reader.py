"""The child process that opens bundles: `python -m queue_runner.bundles.reader` writes the rows of each to stdout.
Their paths come on stdin, each as a line of JSON.

A bundle is hostile until the parent has checked each row: only this process, which has limits and writes nothing, lets
SQLite read it. The rows come in one order, cut at the same places: their bytes are what the hash of a bundle covers.
"""

from __future__ import annotations

import contextlib
import json
import resource
import sqlite3
import struct
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any
from urllib.parse import quote

from msgspec import msgpack

from queue_runner.bundles.rows import MEASURED, MOST_JSON, RUNS, TABLES, BadBundle, Table

HEADER = struct.Struct(">BI")
"""Before each frame: the number of its table, and its bytes. A frame is rows in MessagePack."""
END, ERROR = 254, 255
"""Instead of a table: nothing of the bundle follows, and why it is refused."""
MOST_FRAME_BYTES = 64 << 20
_MEMORY_BYTES = 2 << 30
_CPU_S = 60
_CPU_S_PER_BYTE = 1e-6
"""Far more than an honest file takes: 0.1 microseconds."""
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 4 * MOST_JSON + 1000,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 10_000,
    sqlite3.SQLITE_LIMIT_COLUMN: 32,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 20,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 1,
    sqlite3.SQLITE_LIMIT_VDBE_OP: 1000,
    sqlite3.SQLITE_LIMIT_FUNCTION_ARG: 8,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER: 8,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 1,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}
_PRAGMAS = ("trusted_schema=OFF", "cell_size_check=ON", "query_only=ON", "mmap_size=0", "cache_size=-8000")


def main() -> None:
    """Write the frames of each bundle to stdout."""
    _limit(resource.RLIMIT_AS, _MEMORY_BYTES)  # macOS has none
    _limit(resource.RLIMIT_FSIZE, 0)
    out = sys.stdout.buffer
    for line in sys.stdin:
        path = Path(json.loads(line))
        used = resource.getrusage(resource.RUSAGE_SELF)
        used_s = used.ru_utime + used.ru_stime
        _limit(resource.RLIMIT_CPU, int(used_s + _CPU_S + path.stat().st_size * _CPU_S_PER_BYTE))
        try:
            for number, frame in frames_of(path):
                out.write(HEADER.pack(number, len(frame)) + frame)
            out.write(HEADER.pack(END, 0))
        except BadBundle as error:
            text = error.reason.encode(errors="replace")[:1000]
            out.write(HEADER.pack(ERROR, len(text)) + text)
        out.flush()


def _limit(what: int, most: int) -> None:
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(what, (most, resource.getrlimit(what)[1]))


def frames_of(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the frames of a file, which is opened with the limits of a bundle. Raises: BadBundle for one that cannot be
    read as a bundle."""
    url = f"file:{quote(bytes(path))}?mode=ro&immutable=1"
    try:
        with contextlib.closing(sqlite3.connect(url, uri=True, isolation_level=None)) as connection:
            for limit, value in _LIMITS.items():
                connection.setlimit(limit, value)
            for pragma in _PRAGMAS:
                connection.execute(f"PRAGMA {pragma}")
            yield from frames(connection)
    except (sqlite3.Error, MemoryError, OverflowError, UnicodeError) as error:
        raise BadBundle(f"it is damaged ({str(error) or type(error).__name__})") from error


def frames(connection: sqlite3.Connection) -> Iterator[tuple[int, bytes]]:
    """Yield the rows of a bundle by the number of their table: first the tables that name the runs, then, run by run,
    what each has measured. Raises: sqlite3.Error, BadBundle for a file that is not built as a bundle."""
    _check_schema(connection)
    runs: list[Any] = []
    for number, table in enumerate(TABLES):
        if table in MEASURED:
            continue
        rows = connection.execute(table.select)
        while chunk := rows.fetchmany(table.at_once):
            runs += [row[0] for row in chunk] if table is RUNS else []
            yield number, _frame(table, chunk)
    first = TABLES.index(MEASURED[0])
    by_run = [groupby(connection.execute(table.select), itemgetter(0)) for table in MEASURED]
    following = [next(groups, None) for groups in by_run]
    for run in runs:
        for place, table in enumerate(MEASURED):
            of_run = following[place]
            if of_run is not None and of_run[0] == run:
                while chunk := list(islice(of_run[1], table.at_once)):
                    yield first + place, _frame(table, chunk)
                following[place] = next(by_run[place], None)
    for table, of_run in zip(MEASURED, following, strict=True):
        if of_run is not None:
            raise BadBundle(f"some of its {table.name} belong to a run that it does not contain")


def _frame(table: Table, rows: Sequence[Any]) -> bytes:
    if len(frame := msgpack.encode(rows)) > MOST_FRAME_BYTES:
        raise BadBundle(f"{table.at_once} of its {table.name} are too large")
    return frame


def _check_schema(connection: sqlite3.Connection) -> None:
    expected = {("table", table.name, table.name, table.sql) for table in TABLES}
    objects = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master").fetchmany(len(TABLES) + 1)
    if {*objects} != expected or len(objects) != len(expected):
        raise BadBundle("its tables are not those of a bundle")


if __name__ == "__main__":
    main()
