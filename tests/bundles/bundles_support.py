"""Bundles for tests: of a queue with planted secrets, and as somebody writes them who knows the format."""

from __future__ import annotations

import gzip
import hashlib
import json
import sqlite3
import tempfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from queue_runner.bundles import collect, merge
from queue_runner.bundles.reader import HEADER, frames
from queue_runner.bundles.rows import HEAD, TABLES, BadBundle
from queue_runner.model import parse_selector
from queue_runner.paths import Layout
from queue_runner.store import results
from queue_runner.store.read import reading
from tests.cli_support import empty_queue
from tests.reports.report_fixture import Store

ALPHA = {"cpu": "Alpha M1", "memory_gib": 64, "id": "aaaa", "system": "macOS"}
SYSTEM = {"versions": {"torch": "2.13.0"}, "system": {"os": "macOS", "os_version": "26.1"}}
TIMES = [0.5, 0.25, 0.125, 0.1, 1 / 3]
"""Seconds of the iterations of every run: numbers that a binary fraction has, and one that it has not."""
FORMAT_1 = Path(__file__).parents[1] / "golden" / "bundles" / "format-1.mpsq"
"""The bundle of `sender` as mpsq 0.2.0 wrote it."""

Change = Callable[[sqlite3.Connection], object]


class Sender(Store):
    """A store whose fingerprints have the hashes that a worker gives them."""

    def fingerprint(self, kind: str, data: Mapping[str, Any]) -> str:
        digest = results.fingerprint_hash(kind, data)
        text = json.dumps(data, sort_keys=True)
        self._insert("fingerprints", or_="OR IGNORE", hash=digest, kind=kind, data_json=text)
        return digest


def sender(folder: Path, machine: dict[str, Any] = ALPHA) -> Store:
    """A queue with one submission: three runs on the CPU, of which one is invalid, three on the GPU, one of them
    failed."""
    made = Sender(folder)
    for device, n, scale in (("cpu", 3, 1.0), ("mps", 3, 0.5)):
        for i in range(n):
            failed = device == "mps" and i == 2
            run = made.run(
                device, params={"lr": 0.1}, machine=machine, software=SYSTEM, tags=["a"],
                hello={"device_name": f"Alpha {device}"}, **({"outcome": "FAILED", "exit_code": 3} if failed else {}),
            )  # fmt: skip
            made.iterations(run, [time * scale * (1 + i / 100) for time in TIMES * 4], losses=[2.5, None] * 10)
            made.metric(run, "reference_loss_device", 2.5)
            made.db.execute("UPDATE exits SET real_s = 60 WHERE run_id = ?", [run])
            if (device, i) == ("cpu", 1):
                made.db.execute("INSERT INTO notes VALUES (?, 7, 'wrong_result', 'a GPU error')", [run])
    return made


def make_bundle(layout: Layout, names: Sequence[str], path: Path) -> int:
    """Write a bundle of submissions; return how many of their runs have not ended."""
    with reading(layout.db) as connection:
        return collect.export(layout, connection, [parse_selector(name) for name in names], path)


def exported(store: Store, *groups: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "b.mpsq"
        make_bundle(store.layout, groups or ["g1"], path)
        return path.read_bytes()


def receiver(folder: Path) -> Layout:
    return empty_queue(folder)


def merged(layout: Layout, *data: bytes) -> list[merge.Merged]:
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{i}.mpsq" for i in range(len(data))]
        for path, content in zip(paths, data, strict=True):
            path.write_bytes(content)
        return merge.merge(layout, [(path.name, path) for path in paths])


def rows(data: bytes, sql: str) -> list[Any]:
    """What a query of a bundle returns."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "b.mpsq"
        path.write_bytes(data)
        with closing(sqlite3.connect(path)) as connection:
            return connection.execute(sql).fetchall()


def text_of(data: bytes) -> str:
    """All rows of a bundle as text."""
    return "\n".join(str(row) for table in TABLES for row in rows(data, f"SELECT * FROM {table.name}"))


def changed(data: bytes, *changes: str | Change, sealed: bool = True) -> bytes:
    """A bundle after statements of SQL or functions of its connection, with the hash that belongs to it: as a hostile
    author writes it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "b.mpsq"
        path.write_bytes(data)
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            for change in changes:
                connection.executescript(change) if isinstance(change, str) else change(connection)
            if sealed:
                seal(connection)
        return path.read_bytes()


def seal(connection: sqlite3.Connection) -> None:
    digest = hashlib.sha256()
    with suppress(BadBundle, sqlite3.Error, UnicodeError):
        for number, frame in frames(connection):
            if TABLES[number] is not HEAD:
                digest.update(HEADER.pack(number, len(frame)) + frame)
    connection.execute("UPDATE bundle SET sha256 = ?", [digest.hexdigest()])


def rehash(connection: sqlite3.Connection) -> None:
    """Give each fingerprint the hash of what it says now, and name it by that in the runs."""
    for old, kind, data in connection.execute("SELECT * FROM fingerprints").fetchall():
        new = results.fingerprint_hash(kind, json.loads(data))
        connection.execute("UPDATE fingerprints SET hash = ? WHERE hash = ?", [new, old])
        for column in ("machine_hash", "software_hash"):
            connection.execute(f"UPDATE runs SET {column} = ? WHERE {column} = ?", [new, old])


# -- format 1 ----------------------------------------------------------------------------------------------------------


def lines_of(data: bytes) -> list[Any]:
    return [json.loads(line) for line in gzip.decompress(data).splitlines()]


def old_sealed(lines: list[Any]) -> bytes:
    """A bundle of format 1 of these lines with the hash that belongs to them."""
    text = b"".join(json.dumps(line, separators=(",", ":"), sort_keys=True).encode() + b"\n" for line in lines[:-1])
    end = {"end": {"parts": {}, "sha256": hashlib.sha256(text).hexdigest()}}
    return packed(text + json.dumps(end).encode() + b"\n")


def packed(text: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return packer.compress(text) + packer.flush()


def old_rows(lines: list[Any], part: str) -> list[list[Any]]:
    """The rows of a part, in place."""
    begin = lines.index({"part": part}) + 1
    end = next(i for i in range(begin, len(lines)) if type(lines[i]) is dict)
    return lines[begin:end]


def content(db: Path) -> dict[str, list[Any]]:
    """Every row of a database."""
    with closing(sqlite3.connect(f"file:{db}?mode=ro", uri=True)) as connection:
        names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: connection.execute(f"SELECT * FROM {name}").fetchall() for name in names}
