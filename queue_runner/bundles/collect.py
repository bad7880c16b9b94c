"""Reading of whole submissions from a queue, cleaned, into a database of their own."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from queue_runner.bundles.clean import Cleaner, of_queue
from queue_runner.bundles.parts import BY_NAME, OF_RUN, BadBundle
from queue_runner.bundles.scratch import Scratch
from queue_runner.errors import UsageError
from queue_runner.ingest.fields import BadLine
from queue_runner.model import PREFLIGHT, Selector
from queue_runner.paths import Layout
from queue_runner.spec import JobSpec
from queue_runner.store import read, results
from queue_runner.tables import finite

Row = Mapping[str, Any]


def collect(layout: Layout, connection: sqlite3.Connection, selectors: Sequence[Selector], into: Scratch) -> int:
    """Fill a database with the ended runs of submissions; return how many runs of theirs were left out: those that have
    not ended, and of a submission in which nothing ran.

    Raises: UsageError for what is no whole submission of this queue, MpsqError for what a bundle cannot hold.
    """
    groups = [_group(connection, selector) for selector in selectors]
    jobs = [_job for group in groups for _job in _jobs(connection, group)]
    specs = {row["id"]: JobSpec.from_json(row["spec_json"]) for row in jobs}
    token = connection.execute("SELECT token FROM runs WHERE token IS NOT NULL ORDER BY id LIMIT 1").fetchall()
    cleaner = of_queue(layout, [row["token"] for row in token], [spec.env for spec in specs.values()])
    runs, n_left = _runs(connection, groups)
    fingerprints = _fingerprints(connection, runs, cleaner)
    try:
        for group in sorted({*groups}):
            row = connection.execute("SELECT * FROM groups WHERE id = ?", [group]).fetchone()
            into.add(BY_NAME["groups"], [group, row["created_at"], cleaner.command(row["title"]), row["seed"]])
        for kind, data in fingerprints.values():
            into.add(BY_NAME["fingerprints"], [results.fingerprint_hash(kind, data), kind, data])
        for row in jobs:
            tags = connection.execute("SELECT tag FROM job_tags WHERE job_id = ? ORDER BY tag", [row["id"]]).fetchall()
            names = sorted({cleaner.name(tag["tag"]) or "" for tag in tags})
            note = None if row["note"] is None else cleaner.text(row["note"])
            question = cleaner.spec(specs[row["id"]])
            into.add(BY_NAME["jobs"], [row["id"], row["group_id"], row["created_at"], question, note, names])
        for row in runs:
            hashes = {
                name: results.fingerprint_hash(*fingerprints[row[name]]) if row[name] else None
                for name in ("machine_hash", "software_hash")
            }
            reason = None if row["reason"] is None else cleaner.text(row["reason"])
            told = {**row, **hashes, "reason": reason}
            into.add(BY_NAME["runs"], [told[name] for name in BY_NAME["runs"].names])
        for part in OF_RUN:
            clean = _CLEAN[part.name]
            sql = f"SELECT * FROM {part.name} WHERE run_id = ? ORDER BY {part.order}"
            for run in runs if part.name != "taints" else [r for r in runs if r["machine_hash"]]:
                for found in connection.execute(sql, [run["id"]]):
                    row = clean(found, cleaner)
                    into.add(part, [finite(row[name]) for name in part.names])
        into.check()
    except BadLine as error:
        raise BadBundle(str(error), "export another submission, and report this one") from error
    return n_left


def _group(connection: sqlite3.Connection, selector: Selector) -> int:
    if selector.group is None and not selector.last:
        raise UsageError(
            f"{selector.text} is not a whole submission, and a bundle contains only whole ones",
            "name the group: mpsq export --bundle g4",
        )
    condition, values = read.where(selector, connection)
    sql = f"SELECT DISTINCT group_id, kind FROM v_run WHERE {condition}"
    rows = connection.execute(sql, values).fetchall()
    if any(row["kind"] == "import" for row in rows):
        raise UsageError(
            f"g{rows[0]['group_id']} was imported or merged: it did not run here", "export it where it ran"
        )
    return int(rows[0]["group_id"])


def _jobs(connection: sqlite3.Connection, group: int) -> list[Row]:
    sql = "SELECT id, group_id, created_at, spec_json, note FROM jobs WHERE group_id = ? ORDER BY id"
    return list(connection.execute(sql, [group]))


def _runs(connection: sqlite3.Connection, groups: Sequence[int]) -> tuple[list[Row], int]:
    marks = ", ".join("?" * len(groups))
    sql = f"SELECT r.* FROM runs r JOIN jobs j ON j.id = r.job_id WHERE j.group_id IN ({marks}) AND r.number <> ?"
    found = list(connection.execute(f"{sql} ORDER BY r.id", [*groups, PREFLIGHT]))
    ended = [row for row in found if row["state"] == "DONE"]
    if not any(row["machine_hash"] for row in ended):
        raise UsageError("none of its jobs has run yet, so there are no results", "mpsq status shows what waits")
    return ended, len(found) - len(ended)


def _fingerprints(
    connection: sqlite3.Connection, runs: Sequence[Row], cleaner: Cleaner
) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return the cleaned fingerprints by the hash that this queue has for them."""
    found = {}
    for hash in sorted({row[name] for row in runs for name in ("machine_hash", "software_hash") if row[name]}):
        row = connection.execute("SELECT kind, data_json FROM fingerprints WHERE hash = ?", [hash]).fetchone()
        found[hash] = row["kind"], cleaner.facts(json.loads(row["data_json"]))
    return found


def _hello(row: Row, cleaner: Cleaner) -> Row:
    texts = {name: cleaner.name(value) for name, value in row.items() if type(value) is str and name != "hello_json"}
    return {**row, **texts, "hello_json": cleaner.tree(json.loads(row["hello_json"]))}


def _exit(row: Row, cleaner: Cleaner) -> Row:
    told = json.loads(row["exit_json"])
    return {**row, "exit_json": cleaner.tree({name: value for name, value in told.items() if name != "boot_id"})}


def _ingest(row: Row, cleaner: Cleaner) -> Row:
    """Keep the counts of the clock; what a parser remembers may be lines of the log."""
    state = json.loads(row["parser_state"]) if row["parser_state"] and row["source"] == "events" else None
    return {**row, "parser_state": cleaner.tree(state)}


def _condition(row: Row, cleaner: Cleaner) -> Row:
    return {**row, "data_json": cleaner.tree(json.loads(row["data_json"]))}


def _names(*names: str) -> Callable[[Row, Cleaner], Row]:
    return lambda row, cleaner: {**row, **{name: cleaner.name(row[name]) for name in names}}


def _said(*texts: str) -> Callable[[Row, Cleaner], Row]:
    def clean(row: Row, cleaner: Cleaner) -> Row:
        return {**row, "kind": cleaner.name(row["kind"]), **{name: cleaner.text(row[name]) for name in texts}}

    return clean


_CLEAN: dict[str, Callable[[Row, Cleaner], Row]] = {
    "hellos": _hello,
    "exits": _exit,
    "ingests": _ingest,
    "conditions": _condition,
    "notes": _said("text"),
    "taints": _said("detail"),
    "phases": _names("name"),
    "evals": _names("metric", "split"),
    "metrics": _names("name", "unit"),
    "iterations": lambda row, _: row,
}
