"""Reading of whole submissions from a queue, cleaned, into a database of their own."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence

from queue_runner.bundles.clean import Cleaner, of_queue
from queue_runner.bundles.parts import BY_NAME, OF_RUN, BadBundle, BundleGroup, BundleJob, BundleRun
from queue_runner.bundles.scratch import Scratch
from queue_runner.errors import UsageError
from queue_runner.ingest.storable import BadLine
from queue_runner.model import PREFLIGHT, Selector
from queue_runner.paths import Layout
from queue_runner.spec import JobSpec
from queue_runner.store import read, results
from queue_runner.store.read import tuples


def collect(layout: Layout, connection: sqlite3.Connection, selectors: Sequence[Selector], into: Scratch) -> int:
    """Fill a database with the ended runs of submissions; return how many of their runs were left out: those that have
    not ended, and those of a submission in which nothing ran.

    Raises: UsageError for a selector that is not a whole submission of this queue, MpsqError for content that a bundle
    cannot hold.
    """
    groups = [_group(connection, selector) for selector in selectors]
    sql = f"SELECT {', '.join(BundleJob._fields)} FROM jobs WHERE group_id = ? ORDER BY id"
    jobs = [BundleJob(*row) for group in groups for row in tuples(connection, sql, [group])]
    specs = {job.id: JobSpec.from_json(job.spec_json) for job in jobs}
    tokens = tuples(connection, "SELECT token FROM runs WHERE token IS NOT NULL ORDER BY id LIMIT 1")
    cleaner = of_queue(layout, [token for (token,) in tokens], [spec.env for spec in specs.values()])
    runs, n_left = _runs(connection, groups)
    try:
        for id in sorted({*groups}):
            sql = f"SELECT {', '.join(BundleGroup._fields)} FROM groups WHERE id = ?"
            group = BundleGroup(*tuples(connection, sql, [id]).fetchone())
            aim = None if group.aim is None else cleaner.aim(group.aim)
            into.add(BY_NAME["groups"], [*group[:2], cleaner.command(group.title), group.seed, aim])
        hashes = _add_fingerprints(connection, runs, cleaner, into)
        for job in jobs:
            tags = tuples(connection, "SELECT tag FROM job_tags WHERE job_id = ? ORDER BY tag", [job.id])
            names = sorted({cleaner.name(tag) or "" for (tag,) in tags})
            note = None if job.note is None else cleaner.text(job.note)
            question = cleaner.spec(specs[job.id])
            into.add(BY_NAME["jobs"], [job.id, job.group_id, job.created_at, question, note, names])
        for run in runs:
            cleaned = run._replace(
                machine_hash=hashes.get(run.machine_hash),
                software_hash=hashes.get(run.software_hash),
                reason=None if run.reason is None else cleaner.text(run.reason),
            )
            into.add(BY_NAME["runs"], [*cleaned])
        for part in OF_RUN:
            # what a parser remembers may be lines of the log: only the counts of the clock are read
            columns = ", ".join(part.names).replace("parser_state", "iif(source = 'events', parser_state, NULL)")
            sql = f"SELECT {columns} FROM {part.name} WHERE run_id = ? ORDER BY {part.order}"
            for run in runs if part.name != "taints" else [run for run in runs if run.machine_hash]:
                for row in tuples(connection, sql, [run.id]):
                    into.add(part, cleaner.row(part, row))
        into.check()
    except BadLine as error:
        raise BadBundle(str(error), "export another submission, and report this one") from error
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


def _runs(connection: sqlite3.Connection, groups: Sequence[int]) -> tuple[list[BundleRun], int]:
    columns, marks = ", ".join(f"r.{name}" for name in BundleRun._fields), ", ".join("?" * len(groups))
    sql = (
        f"SELECT r.state = 'DONE', {columns} FROM runs r JOIN jobs j ON j.id = r.job_id"
        f" WHERE j.group_id IN ({marks}) AND r.number <> ? ORDER BY r.id"
    )
    rows = tuples(connection, sql, [*groups, PREFLIGHT]).fetchall()
    ended = [BundleRun(*values) for done, *values in rows if done]
    if not any(run.machine_hash for run in ended):
        raise UsageError("none of its jobs has run yet, so there are no results", "mpsq status shows what waits")
    return ended, len(rows) - len(ended)


def _add_fingerprints(
    connection: sqlite3.Connection, runs: Sequence[BundleRun], cleaner: Cleaner, into: Scratch
) -> dict[str | None, str]:
    """Add the cleaned fingerprints; return their hashes by the hash that this queue has for them."""
    hashes: dict[str | None, str] = {}
    for digest in sorted({digest for run in runs for digest in (run.machine_hash, run.software_hash) if digest}):
        kind, text = tuples(connection, "SELECT kind, data_json FROM fingerprints WHERE hash = ?", [digest]).fetchone()
        data = cleaner.facts(json.loads(text))
        hashes[digest] = results.fingerprint_hash(kind, data)
        into.add(BY_NAME["fingerprints"], [hashes[digest], kind, data])
    return hashes
