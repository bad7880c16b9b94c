"""Writing of a bundle: whole submissions of a queue, cleaned, into a new SQLite file."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from queue_runner import __version__
from queue_runner.bundles import reading
from queue_runner.bundles.clean import Cleaner, of_queue
from queue_runner.bundles.harmless import BadBundle
from queue_runner.bundles.rows import FINGERPRINTS, GROUPS, HEAD, JOBS, MEASURED, RUNS, TABLES, RunRow, Table
from queue_runner.errors import MpsqError, UsageError
from queue_runner.model import PREFLIGHT, Selector
from queue_runner.paths import Layout
from queue_runner.spec import JobSpec
from queue_runner.store import read, results
from queue_runner.store.read import tuples

_BATCH = 10_000


def export(layout: Layout, connection: sqlite3.Connection, selectors: Sequence[Selector], path: Path) -> int:
    """Write the ended runs of submissions into a bundle and read it as an import does; return how many of their runs
    were left out: those that have not ended, and those of a submission in which nothing ran.

    Raises: UsageError for a selector that is not a whole submission of this queue, MpsqError for content that a bundle
    cannot hold, or a full disk.
    """
    try:
        with closing(create(path)) as into:
            n_left = _collect(layout, connection, selectors, into)
        seal(path)
    except BadBundle as error:
        raise BadBundle(error.message.partition(": ")[2], "export another submission, and report this one") from error
    except sqlite3.OperationalError as error:
        if "full" not in str(error):
            raise
        raise MpsqError(f"no room for a bundle in {path.parent}", "free some space") from error
    return n_left


def create(path: Path) -> sqlite3.Connection:
    """Create a bundle without rows and without a head."""
    into = sqlite3.connect(path, isolation_level=None)
    for pragma in ("page_size=8192", "journal_mode=OFF", "synchronous=OFF"):
        into.execute(f"PRAGMA {pragma}")
    into.execute("BEGIN")
    for table in TABLES:
        into.execute(table.sql)
    return into


def add(into: sqlite3.Connection, table: Table, rows: Iterable[Sequence[Any]]) -> None:
    """Add rows to a bundle. Raises: BadBundle for a row that is there."""
    try:
        into.executemany(f"INSERT INTO {table.name} VALUES ({', '.join('?' * len(table.columns))})", rows)
    except (sqlite3.IntegrityError, OverflowError) as error:
        raise BadBundle(f"its {table.name} contradict one another ({error})") from error


def seal(path: Path, mpsq: str = __version__) -> None:
    """Check a bundle and give it its head. Raises: BadBundle, OSError."""
    with closing(sqlite3.connect(path, isolation_level=None)) as into:
        add(into, HEAD, [(reading.VERSION, mpsq, "0" * 64)])
        sha256 = reading.read(path, lambda *_: None).sha256
        into.execute("UPDATE bundle SET sha256 = ?", [sha256])


def _collect(
    layout: Layout, connection: sqlite3.Connection, selectors: Sequence[Selector], into: sqlite3.Connection
) -> int:
    groups = sorted({_group(connection, selector) for selector in selectors})
    runs, n_left = _runs(connection, groups)
    chosen = ", ".join(map(str, groups))
    sql = f"SELECT id, group_id, created_at, spec_json, note FROM jobs WHERE group_id IN ({chosen}) ORDER BY id"
    jobs = tuples(connection, sql).fetchall()
    specs = {job[0]: JobSpec.from_json(job[3]) for job in jobs}
    tokens = tuples(connection, "SELECT token FROM runs WHERE token IS NOT NULL ORDER BY id LIMIT 1")
    cleaner = of_queue(layout, [token for (token,) in tokens], [spec.env for spec in specs.values()])
    sql = f"SELECT id, created_at, title, seed, aim FROM groups WHERE id IN ({chosen}) ORDER BY id"
    for id, created_at, title, seed, aim in tuples(connection, sql):
        cleaned = None if aim is None else _json(cleaner.aim(aim))
        add(into, GROUPS, [(id, created_at, cleaner.command(title), seed, cleaned)])
    for id, group, created_at, _, note in jobs:
        tags = tuples(connection, "SELECT tag FROM job_tags WHERE job_id = ?", [id])
        names = sorted({cleaner.name(tag) or "" for (tag,) in tags})
        note = None if note is None else cleaner.text(note)
        add(into, JOBS, [(id, group, created_at, _json(cleaner.spec(specs[id])), note, _json(names))])
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
    for table in MEASURED:
        clean = cleaner.of(table)
        # what a parser remembers may be lines of the log: only the counts of the clock are read
        select = table.select.replace('"parser_state"', "iif(source = 'events', parser_state, NULL)")
        for run in runs:
            rows = tuples(connection, select.replace(" ORDER BY", " WHERE run_id = ? ORDER BY"), [run.id])
            while batch := rows.fetchmany(_BATCH):
                add(into, table, batch if clean is None else map(clean, batch))
    into.execute("COMMIT")
    return n_left


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
    columns, marks = ", ".join(f"r.{name}" for name in RunRow._fields), ", ".join("?" * len(groups))
    sql = (
        f"SELECT r.state = 'DONE', {columns} FROM runs r JOIN jobs j ON j.id = r.job_id"
        f" WHERE j.group_id IN ({marks}) AND r.number <> ? ORDER BY r.id"
    )
    rows = tuples(connection, sql, [*groups, PREFLIGHT]).fetchall()
    ended = [RunRow(*values) for done, *values in rows if done]
    if not any(run.machine_hash for run in ended):
        raise UsageError("none of its jobs has run yet, so there are no results", "mpsq status shows what waits")
    return ended, len(rows) - len(ended)


def _add_fingerprints(
    connection: sqlite3.Connection, runs: Sequence[RunRow], cleaner: Cleaner, into: sqlite3.Connection
) -> dict[str | None, str]:
    """Add the cleaned fingerprints; return their hashes by the hash that this queue has for them."""
    hashes: dict[str | None, str] = {}
    rows = {}
    for digest in sorted({digest for run in runs for digest in (run.machine_hash, run.software_hash) if digest}):
        kind, text = tuples(connection, "SELECT kind, data_json FROM fingerprints WHERE hash = ?", [digest]).fetchone()
        data = cleaner.facts(json.loads(text))
        hashes[digest] = results.fingerprint_hash(kind, data)
        rows[hashes[digest]] = (hashes[digest], kind, _json(data))
    add(into, FINGERPRINTS, rows.values())
    return hashes


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
