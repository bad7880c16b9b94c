"""Traces of processes, real and simulated, in the same words: which call follows which in a thread."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

CALLS = frozenset(
    {
        *("create", "rename", "replace", "link", "unlink", "mkdir", "fsync", "fork", "pwrite", "ftruncate", "flock"),
        *("close", "sql", "spawn"),
    }
)
"""The calls that are compared: of files, locks and the store, and the start of a process."""
_IGNORED = re.compile(r"reserve|/proc|/dev/|\.log\b|pycache|pipe|config\.toml|/cache/|notes\.json|snapshots")
"""Paths that the simulation does not have: logs, the reserve of disk space."""

_SAMPLES = re.compile(r"sql BEGIN IMMEDIATE\n(sql INSERT INTO conditions.*\n)+sql COMMIT\n")
"""A transaction that stores samples of the machine, which only a real worker takes."""
_FOLDERS = ("home", "locks", "runs", "logs", "backups", "cache")
"""Folders that are there when a simulation begins, as are its lock files."""

Pairs = dict[str, set[tuple[str, str]]]
"""By role: a call, and the one after it in the same thread."""


def normalized(line: str) -> str | None:
    """Return a line of a trace without what differs between two queues; None for one that is not compared."""
    what, _, detail = line.partition(" ")
    if what not in CALLS or _IGNORED.search(detail):
        return None
    if what == "sql":
        words = detail.split()
        if "conditions" in words:  # samples of the machine
            return None
        return " ".join([what, words[0], *[word for word in words[1:] if word not in ("INTO", "FROM", "OR")][:1]])
    paths = ["/".join(path.split("/")[-3:]) for path in detail.split()]
    text = " ".join(re.sub(r"^.*\b(home(-a)?|locks)/", "", path) for path in paths)
    if (what == "mkdir" and text.rpartition("/")[2] in _FOLDERS) or (
        what == "create" and text.endswith((".lock", ".turn"))
    ):
        return None
    text = re.sub(r"\b\d+\.\d+\b", "RUN", text)
    text = re.sub(r"worker-[0-9a-f]+-\d+", "worker", text)
    text = re.sub(r"\.partial-\w+", "PARTIAL", text)
    return f"{what} {text}".strip()


def pairs(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield each call of a thread with the one after it; repetitions count once."""
    before = "begin"
    for line in _SAMPLES.sub("", "".join(f"{line}\n" for line in lines)).splitlines():
        now = normalized(line)
        if now is not None and now != before:
            yield before, now
            before = now


def of_folder(folder: Path) -> Pairs:
    """Return what real processes have recorded (traced.py)."""
    by_role: Pairs = {}
    for path in sorted(folder.iterdir()):
        by_role.setdefault(path.name.split(".")[0], set()).update(pairs(path.read_text().splitlines()))
    return by_role


class Recorder:
    """Records the threads of a simulated machine."""

    def __init__(self, machine: Any) -> None:
        self._machine = machine
        self._lines: dict[tuple[str, int], list[str]] = {}
        machine.on_point = self._point

    def _point(self, what: str, detail: str) -> None:
        task = self._machine.current
        role = task.process.name.split()[0]
        self._lines.setdefault((role, id(task)), []).append(f"{what} {detail}")

    def pairs(self) -> Pairs:
        by_role: Pairs = {}
        for (role, _), lines in self._lines.items():
            by_role.setdefault(role, set()).update(pairs(lines))
        return by_role


def simulated(folder: Path, seeds: Iterable[int]) -> Pairs:
    """Return what the processes of test_traces do in the simulation, over many seeds."""
    from tests.faults import world

    world.adapt()
    empty = world.template(folder)
    by_role: Pairs = {}
    for seed in seeds:
        place = folder / f"trace-{seed}"
        place.mkdir()
        made = world.World(seed, place, empty, plain=True)
        world.silence(made.machine.note)
        recorder = Recorder(made.machine)
        try:
            made.run_plain()
        finally:
            made.close()
        for role, each in recorder.pairs().items():
            by_role.setdefault(role, set()).update(each)
    return by_role
