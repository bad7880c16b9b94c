"""Bundles of format 1, which versions before 0.3 wrote, as files of today: gzip (RFC 1952) of lines of JSON, a list of
values for each row of a part. Only the way from one form to the other is here: the rows are checked as all are.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import sqlite3
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from queue_runner.bundles import collect, reading
from queue_runner.bundles.rows import HEAD, JOBS, RUNS, TABLES, BadBundle, Table
from queue_runner.text import one_line
from queue_runner.units import size

GZIP = b"\x1f\x8b\x08"
MOST_FILE_BYTES = 64 << 20
MOST_BYTES = 512 << 20
MOST_LINE_BYTES = 4 << 20
_REMOVED = {"pairing", "until_valid", "layout_seed", "randomize"}
"""Fields of a question that earlier versions of mpsq wrote."""
_INFINITE = {"inf": float("inf"), "-inf": float("-inf")}
_BATCH = 10_000
_MISFITS = (sqlite3.InterfaceError, sqlite3.ProgrammingError, sqlite3.DataError)
"""Errors of SQLite about a value that is none of its types."""
_NO_TABLE = ("taints",)
"""Parts that are computed anew."""


def current(path: Path, temporary: Path) -> Path:
    """Return a bundle of today's format: the file itself, or one made of it. Raises: BadBundle, OSError."""
    with path.open("rb") as file:
        begin = file.read(len(reading.MAGIC))
    if begin == reading.MAGIC:
        return path
    if not begin:
        raise BadBundle("it is empty", "mpsq export --bundle g4 > g4.mpsq writes one")
    if not begin.startswith(GZIP):
        raise BadBundle("it is not a file of mpsq export --bundle", "name the file that mpsq export --bundle wrote")
    if path.stat().st_size > MOST_FILE_BYTES:
        raise BadBundle(f"it is larger than {size(MOST_FILE_BYTES)}", "ask for fewer submissions in one bundle")
    with collect.create(temporary) as into, path.open("rb") as file:
        try:
            mpsq = _convert(_lines(file), into)
        except (TypeError, ValueError, KeyError, IndexError, AttributeError, *_MISFITS) as error:
            raise BadBundle(f"its rows have another form ({one_line(str(error))[:100]!a})") from error
    collect.seal(temporary, mpsq)
    return temporary


def _convert(lines: Iterator[tuple[Any, str]], into: sqlite3.Connection) -> str:
    """Add the rows of all parts; return the version of mpsq that wrote them. Raises: BadBundle."""
    head, _ = next(lines, (None, ""))
    if type(head) is not dict or head.keys() != {"mpsq_bundle", "mpsq", "statistics"}:
        raise BadBundle("it does not begin as a bundle of mpsq")
    if head["mpsq_bundle"] != 1:
        raise BadBundle(
            f"its format is version {str(head['mpsq_bundle'])[:20]!a}, this mpsq reads 1 and {reading.VERSION}",
            "use the mpsq that made it, or a newer one",
        )
    tables = {table.name: table for table in TABLES if table is not HEAD}
    waiting: list[list[Any]] = []
    part, end, sha256 = "", None, ""
    for value, before in lines:
        if end is not None:
            raise BadBundle("there is more after its end")
        if type(value) is list and part not in _NO_TABLE:
            waiting.append(_row(tables[part], value))
        if waiting and (type(value) is not list or len(waiting) == _BATCH):
            collect.add(into, tables[part], waiting)
            waiting = []
        if type(value) is not list:
            part, end, sha256 = value.get("part", ""), value.get("end"), before
    if end is None:
        raise BadBundle("it is cut off")
    if end["sha256"] != sha256:
        raise BadBundle("it is damaged: its content does not match its hash")
    return str(head["mpsq"])


def _row(table: Table, row: list[Any]) -> list[Any]:
    """Return a row as its table has it, JSON as text. Optional columns at the end may be missing, and runs had one more
    in earlier versions. Raises: ValueError."""
    n = len(table.columns)
    if len(row) > n + (table is RUNS):
        raise ValueError(f"a row of {table.name} has more than {n} values")
    row = [*row[:n], *[None] * (n - len(row))]
    for at, value in enumerate(row):
        if isinstance(value, dict):
            fields = {k: v for k, v in value.items() if table is not JOBS or k not in _REMOVED}
            row[at] = json.dumps(fields, sort_keys=True)
        elif isinstance(value, list):
            row[at] = json.dumps(value)
        elif type(value) is str and table.columns[at] in ("value", "loss"):
            row[at] = _INFINITE[value]
    return row


def _lines(file: BinaryIO) -> Iterator[tuple[Any, str]]:
    """Yield the value of each line of a compressed file, within limits, and the hash of the lines before."""
    unzipped, digest, n_bytes = gzip.GzipFile(fileobj=file), hashlib.sha256(), 0
    decode = msgspec.json.Decoder().decode
    while True:
        try:
            line = unzipped.readline(MOST_LINE_BYTES + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise BadBundle("it is damaged or cut off: it cannot be expanded") from error
        if not line:
            return
        n_bytes += len(line)
        if n_bytes > MOST_BYTES:
            raise BadBundle(f"it expands to more than {size(MOST_BYTES)}")
        if len(line) > MOST_LINE_BYTES:
            raise BadBundle(f"a line is longer than {size(MOST_LINE_BYTES)}")
        before = digest.hexdigest()
        digest.update(line)
        try:
            yield decode(line), before
        except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
            raise BadBundle("a line is not JSON, or is nested too deeply") from error
