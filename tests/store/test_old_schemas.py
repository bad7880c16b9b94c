"""Each schema that main has had, upgraded by this code with a run in flight, and compared row by row."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from queue_runner.errors import RunActive
from queue_runner.host import locks
from queue_runner.paths import Layout
from queue_runner.store import backup, migrate, read
from tests.queue_support import Queue, until
from tests.store import old_schemas
from tests.store.test_migrations import shape

pytestmark = pytest.mark.process

SCHEMAS = old_schemas.stored()
REWRITTEN = {
    ("jobs", "spec_json"): "0017 environments leave it, and fields of removed options",
    ("v_run", "spec_json"): "the same",
    ("schedules", "title"): "0012 the command line that it stores",
    **dict.fromkeys((("taints", "severity"), ("v_run", "taints"), ("v_run", "valid")), "0015 disturbances are caveats"),
    ("alembic_version", "version_num"): "each migration",
}
"""What an upgrade may change in a row that stays: `test_migrations` says how each is rewritten."""
REMOVED = {
    "hook_runs": "0013",
    "schedules.request_json": "0012 command_json",
    "runs.replaces": "0014",
    "v_run.replaces": "0014",
    "v_run.replaced": "0014",
    "groups.same_within": "0018 aim",
}
"""Tables and columns that a migration has removed."""
SPEC_KEYS = {"env", "env_file", "variables", "until_valid", "pairing", "layout_seed", "randomize"}
"""Fields of specifications that migrations rewrite, add or remove."""


@contextmanager
def opened(db: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(f"file:{db}?mode=ro", uri=True)) as connection:
        connection.row_factory = sqlite3.Row
        yield connection


def contents(db: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of every table and view, in an order of their values."""
    with opened(db) as connection:
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')").fetchall()
        return {
            name: sorted((dict(row) for row in connection.execute(f'SELECT * FROM "{name}"')), key=by_values)
            for (name,) in tables
        }


def by_values(row: dict[str, Any]) -> str:
    return repr([*row.values()][:3])


def columns(db: Path, table: str) -> set[str]:
    with opened(db) as connection:
        return {row["name"] for row in connection.execute(f'PRAGMA table_info("{table}")')}


@pytest.fixture
def old(layout: Layout, request: pytest.FixtureRequest) -> Layout:
    """The queue that a version with this schema has left."""
    for path in layout.home.glob("mpsq.db*"):
        path.unlink()
    old_schemas.load(request.param, layout.home.parent)
    assert read.schema_revision(layout.db) == request.param
    return layout


@pytest.mark.parametrize("old", SCHEMAS, indirect=True)
def test_an_upgrade_waits_for_the_run_in_flight_and_keeps_every_row(old: Layout, tmp_path: Path) -> None:
    before, shapes = contents(old.db), {}
    for table in before:
        shapes[table] = columns(old.db, table)
    warden = locks.try_lock(old.run_dir(old_schemas.IN_FLIGHT) / "warden.lock")
    assert warden is not None
    if before["alembic_version"] != [{"version_num": read.HEAD}]:
        with pytest.raises(RunActive):
            migrate.ensure(old)
    assert contents(old.db) == before, "a refused upgrade changes nothing"
    warden.close()
    migrate.ensure(old)
    assert backup.problems(old.db) == []
    new = tmp_path / "new.db"
    migrate.create(new)
    assert shape(old.db) == shape(new)
    after = contents(old.db)
    for table, rows in before.items():
        if table in REMOVED:
            continue
        common = shapes[table] & columns(old.db, table)
        assert not {f"{table}.{name}" for name in shapes[table] - common} - {*REMOVED}
        comparable = sorted(name for name in common if (table, name) not in REWRITTEN)
        assert [[row[name] for name in comparable] for row in after[table]] == [
            [row[name] for name in comparable] for row in rows
        ], table
    for row, earlier in zip(after["jobs"], before["jobs"], strict=True):
        spec, then = (json.loads(each["spec_json"]) for each in (row, earlier))
        assert {k: v for k, v in then.items() if k not in SPEC_KEYS} == {
            k: v for k, v in spec.items() if k not in SPEC_KEYS
        }


@pytest.mark.parametrize("old", [*SCHEMAS[::6], SCHEMAS[-1]], indirect=True)
def test_the_queue_goes_on_after_the_upgrade(old: Layout, tmp_path: Path) -> None:
    """The run in flight ends with its true outcome, waiting jobs run, and held ones stay held."""
    with opened(old.db) as connection:
        (state,) = connection.execute("SELECT state FROM runs WHERE job_id = 7").fetchone()
    is_held = state == "HELD"  # the oldest had no --hold
    work = tmp_path / "work"
    work.mkdir()
    (work / "train.sh").write_text(old_schemas.TRAIN)
    queue = Queue(old, tmp_path)
    try:
        queue.worker("", "--until-idle")
        until(lambda: read.schema_revision(old.db) == read.HEAD, "the upgrade")
        rows = queue.done(7 if is_held else 8)
        scheduled = "8.1"  # the schedule is due by now
        assert {row["run"]: row["outcome"] for row in rows if row["run"] != scheduled} == {
            **{"1.1": "SUCCEEDED", "1.2": "SUCCEEDED", "2.1": "FAILED", "3.1": "SUCCEEDED"},
            **{old_schemas.IN_FLIGHT: "SUCCEEDED", "5.1": "SUCCEEDED", "6.1": "SUCCEEDED"},
            "7.1": None if is_held else "SUCCEEDED",
        }
        assert [row["n_iters"] for row in rows if row["run"] == old_schemas.IN_FLIGHT] == [3]
    finally:
        queue.close()


def test_the_archive_has_every_schema() -> None:
    """`python -m tests.store.old_schemas` adds the newest one."""
    names = {path.name[:4] for path in Path(migrate.migrations_dir()).glob("versions/0*.py")}
    assert names - old_schemas.NEVER_ALONE == {*SCHEMAS}
