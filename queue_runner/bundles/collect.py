"""Writing of a bundle: whole submissions of a queue, cleaned, into a new SQLite file."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from queue_runner import __version__
from queue_runner.bundles import reader, reading
from queue_runner.bundles.clean import NOTHING_HIDDEN, Cleaner, of_queue
from queue_runner.bundles.reading import Content
from queue_runner.bundles.rows import (
    FINGERPRINTS,
    GROUPS,
    HEAD,
    JOBS,
    MEASURED,
    NOTES,
    RUNS,
    TABLES,
    BadBundle,
    RunRow,
    Table,
)
from queue_runner.errors import MpsqError, UsageError
from queue_runner.model import PREFLIGHT, Selector
from queue_runner.paths import Layout
from queue_runner.spec import JobSpec
from queue_runner.store import read, results
from queue_runner.store.read import tuples

_BATCH = 10_000


def export(layout: Layout, connection: sqlite3.Connection, selectors: Sequence[Selector], path: Path) -> int:
    """Write the ended runs of submissions into a bundle, and check it as an import does; return how many of their runs
    were left out because they have not ended.

    Raises: UsageError for a selector that is not a whole submission of this queue, MpsqError for content that a bundle
    cannot hold, or a full disk.
    """
    groups = sorted({_group(connection, selector) for selector in selectors})
    runs, n_left = _runs(connection, groups)
    chosen = ", ".join(map(str, groups))
    sql = f"SELECT id, group_id, created_at, spec_json, note FROM jobs WHERE group_id IN ({chosen}) ORDER BY id"
    jobs = tuples(connection, sql).fetchall()
    specs = {job[0]: JobSpec.from_json(job[3]) for job in jobs}
    tokens = tuples(connection, "SELECT token FROM runs WHERE token IS NOT NULL ORDER BY id LIMIT 1")
    cleaner = of_queue(layout, [token for (token,) in tokens], [spec.env for spec in specs.values()])
    try:
        with create(path) as into:
            sql = f"SELECT id, created_at, title, seed, aim FROM groups WHERE id IN ({chosen}) ORDER BY id"
            for id, created_at, title, seed, aim in tuples(connection, sql):
                cleaned = None if aim is None else _json(cleaner.names(json.loads(aim)))
                add(into, GROUPS, [(id, created_at, cleaner.command(title), seed, cleaned)])
            for id, group, created_at, _, note in jobs:
                tags = tuples(connection, "SELECT tag FROM job_tags WHERE job_id = ?", [id])
                names = sorted({cleaner.name(tag) or "" for (tag,) in tags})
                note = None if note is None else cleaner.text(note)
                add(into, JOBS, [(id, group, created_at, _json(cleaner.spec(specs[id])), note, _json(names))])
            _add_runs(connection, runs, cleaner, into)
        seal(path).check_complete()
    except BadBundle as error:
        raise BadBundle(error.reason, "export another submission, and report this one") from error
    return n_left


def export_run(
    connection: sqlite3.Connection,
    run_id: int,
    notes: Iterable[tuple[str, str]],
    path: Path,
    *,
    measured: bool = True,
) -> None:
    """Write an ended run, with what it `measured` and further `notes` of (kind, text), into a bundle for the queue that
    has sent it here: nothing is hidden from that one, which knows the question.

    Raises: BadBundle for results that a bundle cannot hold, MpsqError for a full disk.
    """
    ((_, run),) = _run_rows(connection, "r.id = ?", [run_id])
    run = run._replace(resumed_from=None, software_hash=run.software_hash if measured else None)
    with create(path, page_bytes=1024) as into:
        add(into, GROUPS, [(1, 0.0, "", 0, None)])
        question = _json(NOTHING_HIDDEN.spec(JobSpec(kind="command", name="")))
        add(into, JOBS, [(run.job_id, 1, 0.0, question, None, "[]")])
        _add_runs(connection, [run], NOTHING_HIDDEN, into, MEASURED if measured else ())
        if run.machine_hash is not None:
            rows = [(run.id, results.note_place(kind), kind, NOTHING_HIDDEN.text(text)) for kind, text in notes]
            add(into, NOTES, rows)
    seal(path)


@contextmanager
def create(path: Path, page_bytes: int = 8192) -> Iterator[sqlite3.Connection]:
    """Create a bundle without a head, whose rows are stored when the block ends. Raises: MpsqError for a full disk."""
    with _written(path) as into:
        for pragma in (f"page_size={page_bytes}", "journal_mode=OFF", "synchronous=OFF"):
            into.execute(f"PRAGMA {pragma}")
        into.execute("BEGIN")
        for table in TABLES:
            into.execute(table.sql)
        yield into
        into.execute("COMMIT")


@contextmanager
def _written(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a bundle to write it. Raises: MpsqError for a full disk, or a quota that is used up (disk I/O error)."""
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as into:
            yield into
    except sqlite3.OperationalError as error:
        if not any(sign in str(error) for sign in ("disk is full", "disk I/O error")):
            raise
        hint = "free some space there, also where a quota limits it"
        raise MpsqError(f"a bundle cannot be written in {path.parent}: {error}", hint) from error


def add(into: sqlite3.Connection, table: Table, rows: Iterable[Sequence[Any]]) -> None:
    """Add rows to a bundle. Raises: BadBundle for a row that is there."""
    try:
        into.executemany(f"INSERT INTO {table.name} VALUES ({', '.join('?' * len(table.columns))})", rows)
    except (sqlite3.IntegrityError, OverflowError) as error:
        raise BadBundle(f"its {table.name} contradict one another ({error})") from error


def seal(path: Path, mpsq: str = __version__) -> Content:
    """Check a bundle that this process has written, and give it its head; return its content. Raises: BadBundle,
    MpsqError for a full disk."""
    with _written(path) as into:
        add(into, HEAD, [(reading.VERSION, mpsq, "0" * 64)])
        content = reading.read(reader.frames_of(path), lambda *_: None)
        into.execute("UPDATE bundle SET sha256 = ?", [content.sha256])
    return content


def _add_runs(
    connection: sqlite3.Connection,
    runs: Sequence[RunRow],
    cleaner: Cleaner,
    into: sqlite3.Connection,
    tables: Sequence[Table] = MEASURED,
) -> None:
    """Add runs with their fingerprints, and what they measured."""
    hashes = _add_fingerprints(connection, runs, cleaner, into)
    cleaned_runs = (
        run._replace(
            machine_hash=hashes.get(run.machine_hash),
            software_hash=hashes.get(run.software_hash),
            reason=None if run.reason is None else cleaner.text(run.reason),
        )
        for run in runs
    )
    add(into, RUNS, cleaned_runs)
    for table in tables:
        clean = cleaner.of(table)
        # what a parser remembers may be lines of the log: only the counts of the clock are read
        select = table.select.replace('"parser_state"', "iif(source = 'events', parser_state, NULL)")
        select = select.replace(" ORDER BY", " WHERE run_id = ? ORDER BY")
        for run in runs:
            rows = tuples(connection, select, [run.id])
            while batch := rows.fetchmany(_BATCH):
                add(into, table, batch if clean is None else map(clean, batch))


def _group(connection: sqlite3.Connection, selector: Selector) -> int:
    if selector.tags or (selector.group is None and not selector.last):
        raise UsageError(
            f"{selector.text} is not a whole submission, and a bundle contains only whole ones",
            "name the group: mpsq export --bundle g4",
        )
    condition, values = read.where(selector, connection)
    rows = tuples(connection, f"SELECT DISTINCT group_id, kind FROM v_run WHERE {condition}", values).fetchall()
    group = int(rows[0][0])
    if any(kind == "import" for _, kind in rows):
        raise UsageError(f"g{group} was imported or merged: it did not run here", "export it where it ran")
    return group


def _runs(connection: sqlite3.Connection, groups: Sequence[int]) -> tuple[list[RunRow], int]:
    marks = ", ".join("?" * len(groups))
    rows = _run_rows(connection, f"j.group_id IN ({marks}) AND r.number <> ?", [*groups, PREFLIGHT])
    ended = [run for done, run in rows if done]
    if not any(run.machine_hash for run in ended):
        raise UsageError("none of its jobs has run yet, so there are no results", "mpsq status shows what waits")
    return ended, len(rows) - len(ended)


def _run_rows(connection: sqlite3.Connection, condition: str, values: Sequence[int]) -> list[tuple[bool, RunRow]]:
    """Return runs, each with whether it has ended."""
    columns = ", ".join(f"r.{name}" for name in RunRow._fields)
    sql = (
        f"SELECT r.state = 'DONE', {columns} FROM runs r JOIN jobs j ON j.id = r.job_id WHERE {condition} ORDER BY r.id"
    )
    return [(bool(done), RunRow(*row)) for done, *row in tuples(connection, sql, values)]


def _add_fingerprints(
    connection: sqlite3.Connection, runs: Sequence[RunRow], cleaner: Cleaner, into: sqlite3.Connection
) -> dict[str | None, str]:
    """Add the cleaned fingerprints; return their hashes by the hash that this queue has for them."""
    hashes: dict[str | None, str] = {}
    rows = {}
    for digest in sorted({digest for run in runs for digest in (run.machine_hash, run.software_hash) if digest}):
        kind, text = tuples(connection, "SELECT kind, data_json FROM fingerprints WHERE hash = ?", [digest]).fetchone()
        data = cleaner.names(cleaner.tree(json.loads(text)))
        hashes[digest] = results.fingerprint_hash(kind, data)
        rows[hashes[digest]] = (hashes[digest], kind, _json(data))
    add(into, FINGERPRINTS, rows.values())
    return hashes


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
