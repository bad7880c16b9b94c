"""Bundles for tests: of a queue with planted secrets, and as somebody writes them who knows the format."""

from __future__ import annotations

import gzip
import hashlib
import json
import sqlite3
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from queue_runner.bundles import merge
from queue_runner.bundles.bundle_option import make_bundle
from queue_runner.model import parse_selector
from queue_runner.paths import Layout
from queue_runner.store import results
from tests.cli_support import empty_queue
from tests.reports.report_fixture import Store

ALPHA = {"cpu": "Alpha M1", "memory_gib": 64, "id": "aaaa", "system": "macOS"}
SYSTEM = {"versions": {"torch": "2.13.0"}, "system": {"os": "macOS", "os_version": "26.1"}}
TIMES = [0.5, 0.25, 0.125, 0.1, 1 / 3]
"""Seconds of the iterations of every run: numbers that a binary fraction has, and one that it has not."""


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
            taints = (
                {"planted": ("invalid", "a disturbance that its points do not show")}
                if (device, i) == ("cpu", 1)
                else {}
            )
            run = made.run(
                device, params={"lr": 0.1}, taints=taints, machine=machine, software=SYSTEM, tags=["a"],
                hello={"device_name": f"Alpha {device}"}, **({"outcome": "FAILED", "exit_code": 3} if failed else {}),
            )  # fmt: skip
            made.iterations(run, [time * scale * (1 + i / 100) for time in TIMES * 4], losses=[2.5, None] * 10)
            made.metric(run, "reference_loss_device", 2.5)
            made.db.execute("UPDATE exits SET real_s = 60 WHERE run_id = ?", [run])
    return made


def exported(store: Store, *groups: str) -> bytes:
    return make_bundle(store.layout, [parse_selector(name) for name in groups or ["g1"]])[0]


def receiver(folder: Path) -> Layout:
    return empty_queue(folder)


def merged(layout: Layout, *data: bytes) -> list[merge.Merged]:
    return merge.merge(layout, [(f"{i}.mpsq", one) for i, one in enumerate(data)])


def lines_of(data: bytes) -> list[Any]:
    return [json.loads(line) for line in gzip.decompress(data).splitlines()]


def sealed(lines: list[Any]) -> bytes:
    """A bundle of these lines with the hashes that belong to them: as a hostile author writes it."""
    whole, parts, name = hashlib.sha256(), {}, ""
    text = bytearray()
    own: Any = None
    n = 0
    for line in lines[:-1]:
        written = json.dumps(line, separators=(",", ":"), sort_keys=True).encode() + b"\n"
        if type(line) is dict:
            if own is not None:
                parts[name] = [n, own.hexdigest()]
            name, own, n = line.get("part"), hashlib.sha256() if "part" in line else None, 0
        else:
            own.update(written)
            n += 1
        whole.update(written)
        text += written
    end = {"end": {"parts": parts, "sha256": whole.hexdigest()}}
    return packed(bytes(text) + json.dumps(end).encode() + b"\n")


def packed(text: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return packer.compress(text) + packer.flush()


def rows(lines: list[Any], part: str) -> list[list[Any]]:
    """The rows of a part, in place."""
    begin = lines.index({"part": part}) + 1
    end = next(i for i in range(begin, len(lines)) if type(lines[i]) is dict)
    return lines[begin:end]


def rehash(lines: list[Any]) -> None:
    """Give each fingerprint the hash of what it says now, and name it by that in the runs."""
    new = {}
    for row in rows(lines, "fingerprints"):
        old, row[0] = row[0], results.fingerprint_hash(row[1], row[2])
        new[old] = row[0]
    for run in rows(lines, "runs"):
        run[:] = [new.get(value, value) if type(value) is str else value for value in run]


def content(db: Path) -> dict[str, list[Any]]:
    """Every row of a database."""
    with sqlite3.connect(f"file:{db}?mode=ro", uri=True) as connection:
        names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: connection.execute(f"SELECT * FROM {name}").fetchall() for name in names}
