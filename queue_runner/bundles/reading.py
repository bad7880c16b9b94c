"""Reading of a bundle: its rows come from a child process (reader.py), and each is checked here before it is used."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from operator import attrgetter, lt
from pathlib import Path
from typing import IO, Any

from msgspec import Struct, field, msgpack
from msgspec.structs import asdict

from queue_runner.bundles.reader import END, ERROR, HEADER, MOST_FRAME_BYTES
from queue_runner.bundles.rows import (
    ADDED,
    FINGERPRINTS,
    GROUPS,
    HEAD,
    JOBS,
    MEASURED,
    NOTES,
    QUESTION,
    TABLES,
    BadBundle,
    GroupRow,
    HeadRow,
    JobRow,
    RunRow,
    Table,
)
from queue_runner.model import PREFLIGHT
from queue_runner.spec import JobSpec
from queue_runner.store import results
from queue_runner.text import one_line
from queue_runner.units import size
from queue_runner.worker.start_worker import program

VERSION = 2
MAGIC = b"SQLite format 3\0"
MOST_FILE_BYTES = 16 << 30
MOST_RUNS = 100_000
"""Their rows are stored in one transaction: about 1 s."""
MOST_RUN_ROWS = 5_000_000
"""Rows of one run, which are in memory at once."""
_MOST_GROWTH = 16
"""Bytes of rows in MessagePack, for each byte of the file: at most 9 for a number, and texts as they are."""
KEPT = (
    *("number", "repeat", "attempt", "outcome", "exit_code", "signal", "reason", "created_at", "claimed_at"),
    *("started_at", "ended_at"),
)
"""Columns of a run that are the same in every queue."""


class BundleJob(Struct, frozen=True):
    row: JobRow
    spec: JobSpec
    tags: tuple[str, ...]

    def identity(self, group: GroupRow) -> str:
        """Return the hash that names the job in all queues: of its number and of the moments of its submission."""
        return _hash([group.id, group.created_at, self.row.id, self.row.created_at])

    @property
    def question(self) -> str:
        """The sha256 of the fields of its specification that travel and are not at their default, without those that
        were added later: no stored hash changes."""
        default, fields = asdict(JobSpec(kind="", name="")), asdict(self.spec)
        return _hash({name: fields[name] for name in {*QUESTION} - ADDED if fields[name] != default[name]})


class Content(Struct):
    """A bundle without what its runs measured."""

    head: HeadRow | None = None
    groups: dict[int, GroupRow] = field(default_factory=dict)
    fingerprints: dict[str, tuple[str, dict[str, Any]]] = field(default_factory=dict)
    jobs: dict[int, BundleJob] = field(default_factory=dict)
    runs: dict[int, RunRow] = field(default_factory=dict)
    sha256: str = ""

    def machines(self) -> dict[int, list[str]]:
        """Return, by submission, the machines that its runs name, in the order of their ends. A run that was never
        started counts as one of the first machine."""
        of_group: dict[int, list[str]] = {}
        for run in sorted(self.runs.values(), key=lambda run: (run.ended_at is None, run.ended_at or 0, run.id)):
            if run.machine_hash is not None:
                of_group.setdefault(self.jobs[run.job_id].row.group_id, []).append(run.machine_hash)
        return of_group

    def take(self, table: Table, rows: list[Any]) -> None:
        """Add rows. Raises: BadBundle for a row that contradicts another."""
        for row in rows:
            if table is HEAD:
                self.head = row
                if row.version != VERSION:
                    raise BadBundle(
                        f"its format is version {row.version}, this mpsq reads {VERSION}",
                        "use the mpsq that made it, or a newer one",
                    )
            elif table is GROUPS:
                self.groups[row.id] = row
            elif table is FINGERPRINTS:
                data = json.loads(row.data_json)
                if results.fingerprint_hash(row.kind, data) != row.hash:
                    raise BadBundle(f"the content of the fingerprint {row.hash[:7]} does not match its hash")
                self.fingerprints[row.hash] = (row.kind, data)
            elif table is JOBS:
                spec = JobSpec.from_json(row.spec_json)
                self.jobs[row.id] = BundleJob(row, spec, tuple(json.loads(row.tags_json)))
            else:
                self.runs[row.id] = row
        if len(self.runs) > MOST_RUNS:
            raise BadBundle(f"it has more than {MOST_RUNS:,} runs", "ask for fewer submissions in one bundle")

    def check(self) -> None:
        """Check what single rows cannot show. Raises: BadBundle."""
        for job in self.jobs.values():
            if job.row.group_id not in self.groups:
                raise BadBundle(f"job {job.row.id} belongs to none of its submissions")
        if len({(run.job_id, run.number) for run in self.runs.values()}) < len(self.runs):
            raise BadBundle("its runs contradict one another: two have the same number")
        for run in self.runs.values():
            self._check_run(run)

    def check_complete(self) -> None:
        """Check that it has whole submissions, each of which names a machine, and no preflight. Raises: BadBundle."""
        if tried := [run.id for run in self.runs.values() if run.number == PREFLIGHT]:
            raise BadBundle(f"run {tried[0]} is a preflight")
        if silent := self.groups.keys() - self.machines().keys():
            raise BadBundle(f"no run of the submission g{min(silent)} has started on any machine")

    def _check_run(self, run: RunRow) -> None:
        if run.job_id not in self.jobs:
            raise BadBundle(f"run {run.id} belongs to none of its jobs")
        of_outcome = {
            "SUCCEEDED": run.exit_code in (0, None),
            "FAILED": run.exit_code not in (0, None),
            "KILLED": run.signal is not None,
        }
        if not of_outcome.get(run.outcome, True):
            raise BadBundle(
                f"run {run.id} contradicts itself: its exit code or signal does not match its outcome {run.outcome}"
            )
        before = self.runs.get(run.resumed_from or 0)
        if run.resumed_from and (before is None or before.id >= run.id or before.job_id != run.job_id):
            raise BadBundle(f"run {run.id} resumes from a run that is not of the same job")
        for hash, kind in ((run.machine_hash, "machine"), (run.software_hash, "software")):
            if hash is not None and self.fingerprints.get(hash, ("", {}))[0] != kind:
                raise BadBundle(f"run {run.id} names a {kind} that the bundle does not describe")


class RunContent:
    """What one run measured, by table. `hash` covers its end and all its measurements, without fields that its owner
    may edit and without prose, which another mpsq may clean in another way."""

    def __init__(self, run: RunRow) -> None:
        self.run = run
        self.rows: dict[str, list[Any]] = {table.name: [] for table in MEASURED}
        named = [getattr(run, name) for name in KEPT if name != "reason"]
        self._digest = hashlib.sha256(msgpack.encode([*named, run.machine_hash, run.software_hash]))

    @property
    def hash(self) -> str:
        return self._digest.hexdigest()

    def take(self, number: int, rows: list[Any], data: bytes) -> None:
        """Add rows of a table, which are `data` in MessagePack. Raises: BadBundle."""
        table = TABLES[number]
        self.rows[table.name] += rows
        if sum(map(len, self.rows.values())) > MOST_RUN_ROWS:
            raise BadBundle(f"run {self.run.id} has more than {MOST_RUN_ROWS:,} rows")
        if self.run.machine_hash is None:
            raise BadBundle(f"run {self.run.id} has results, but does not say on which machine they were measured")
        hashed = msgpack.encode([row[:-1] for row in rows]) if table is NOTES else data
        self._digest.update(HEADER.pack(number, len(hashed)) + hashed)


Frames = Iterator[tuple[int, bytes]]


class ReaderProcess(AbstractContextManager["ReaderProcess"]):
    """The child process that opens bundles: started for the first one, and again after a bad one."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None

    def __exit__(self, *_: object) -> None:
        self._end()

    def frames(self, path: Path) -> Frames:
        """Yield what a bundle has, within what a file of its size can hold. Raises: BadBundle."""
        n_bytes = path.stat().st_size
        if n_bytes > MOST_FILE_BYTES:
            raise BadBundle(f"it is larger than {size(MOST_FILE_BYTES)}", "ask for fewer submissions in one bundle")
        left = _MOST_GROWTH * n_bytes
        is_whole = False
        stdin, stdout = self._start()
        try:
            with suppress(BrokenPipeError):
                stdin.write(json.dumps(str(path)).encode() + b"\n")
                stdin.flush()
            while True:
                header = stdout.read(HEADER.size)
                if len(header) < HEADER.size:
                    raise BadBundle("it is damaged: SQLite could not read it to its end")
                number, length = HEADER.unpack(header)
                if number == END:
                    is_whole = True
                    return
                data = stdout.read(min(length, MOST_FRAME_BYTES))
                if number == ERROR:
                    raise BadBundle(one_line(data.decode(errors="replace"))[:200])
                left -= len(data)
                if number >= len(TABLES) or len(data) < length or left < 0:
                    raise BadBundle("it is damaged: it has more rows than a file of its size can have")
                yield number, data
        finally:
            if not is_whole:
                self._end()

    def _start(self) -> tuple[IO[bytes], IO[bytes]]:
        if self._child is None:
            command, env = program("queue_runner.bundles.reader")
            pipe = subprocess.PIPE
            self._child = subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
        assert self._child.stdin is not None and self._child.stdout is not None
        return self._child.stdin, self._child.stdout

    def _end(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.communicate()
            self._child = None


def read(frames: Frames, take_run: Callable[[Content, RunContent], object]) -> Content:
    """Check the frames of a bundle, and return its content; `take_run` gets what each run measured, in the order of the
    runs. Raises: BadBundle."""
    content, digest, keys = Content(), hashlib.sha256(), dict[str, list[Any]]()

    def parts() -> Iterator[tuple[int, list[Any], bytes]]:
        for number, data in frames:
            rows = TABLES[number].decode(data)
            _check_order(TABLES[number], rows, keys)
            if TABLES[number] is not HEAD:
                digest.update(HEADER.pack(number, len(data)) + data)
            yield number, rows, data

    following = parts()
    part = next(following, None)
    while part is not None and TABLES[part[0]] not in MEASURED:
        content.take(TABLES[part[0]], part[1])
        part = next(following, None)
    content.check()
    for run in content.runs.values():
        of_run = RunContent(run)
        while part is not None and TABLES[part[0]] in MEASURED and all(row.run_id == run.id for row in part[1]):
            of_run.take(*part)
            part = next(following, None)
        take_run(content, of_run)
    if part is not None:
        raise BadBundle(f"some of its {TABLES[part[0]].name} belong to a run that it does not contain")
    if content.head is None:
        raise BadBundle("it has no head")
    content.sha256 = digest.hexdigest()
    return content


def checked(frames: Frames, take_run: Callable[[Content, RunContent], object]) -> Content:
    """Read a bundle, as `read`, that also says its own hash. Raises: BadBundle, also where that is another one."""
    content = read(frames, take_run)
    if content.head is None or content.head.sha256 != content.sha256:
        raise BadBundle("it is damaged: its content does not match its hash")
    return content


def _check_order(table: Table, rows: list[Any], keys: dict[str, list[Any]]) -> None:
    """Check that keys grow, and so come once."""
    if not rows:
        raise BadBundle(f"its {table.name} are empty where they are not")
    of_rows = [*keys.get(table.name, ()), *map(attrgetter(*table.key), rows)]
    if not all(map(lt, of_rows, of_rows[1:])):
        raise BadBundle(f"its {table.name} are out of order, or one comes twice")
    keys[table.name] = of_rows[-1:]


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
