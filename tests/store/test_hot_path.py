"""The hot path: its SQL is that of the Core statements, and a submission and a worker import neither SQLAlchemy nor
Alembic."""

from __future__ import annotations

import ast
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from queue_runner.paths import Layout
from queue_runner.store import hot_sql, lane_claims, ready, schema, statements
from queue_runner.store.read import HEAD, schema_revision
from tests.queue_support import Queue


def test_the_texts_are_those_of_the_statements() -> None:
    assert Path(hot_sql.__file__).read_text("utf-8") == statements.generated()


def test_every_text_is_used() -> None:
    names = {name for name in vars(hot_sql) if name.isupper()}
    folder = Path(hot_sql.__file__).parent
    used = {
        node.attr
        for path in folder.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "hot_sql"
    }
    assert names == used


@pytest.fixture
def empty(layout: Layout) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(layout.db)) as connection:
        yield connection


def plan(connection: sqlite3.Connection, sql: str) -> str:
    values = dict.fromkeys(re.findall(r":(\w+)", sql), 1)
    return "\n".join(detail for *_, detail in connection.execute(f"EXPLAIN QUERY PLAN {sql}", values))


READS_ALL = re.compile(
    r"SCAN (runs|jobs|job_events)"
    r"(?! USING (COVERING )?INDEX (runs_one_running_per_lane|runs_queue|runs_unended)$)",
    re.MULTILINE,
)
"""A table is read from its beginning to its end, or an index that has all of its rows."""


@pytest.mark.parametrize(
    "sql",
    [
        *(hot_sql.PLACES, hot_sql.LANES_IN_USE, hot_sql.NEWEST_EVENT_OF_RUN, lane_claims.ACTIVE, lane_claims.STARTABLE),
        *(ready.CAN_START, ready.NEXT_START_AT, ready.LATE, ready.NEXT_DEADLINE_AT, ready.MISSED, ready.HELD_JOBS),
        *(ready.ALL_QUEUED_JOBS, ready.ALL_UNPAUSED_JOBS),
    ],
)
def test_what_a_step_reads_does_not_grow_with_the_history(empty: sqlite3.Connection, sql: str) -> None:
    assert not READS_ALL.search(plan(empty, sql))


def test_the_next_run_is_found_without_sorting_all_that_wait(empty: sqlite3.Connection) -> None:
    assert "TEMP B-TREE" not in plan(empty, lane_claims.STARTABLE)


def test_a_removal_looks_for_what_refers_to_a_row_by_an_index(empty: sqlite3.Connection) -> None:
    """SQLite looks once for each row that is deleted; fingerprints are few."""
    for table in schema.metadata.tables:
        for _, _, parent, column, *_ in empty.execute(f"PRAGMA foreign_key_list({table})").fetchall():
            question = f"SELECT 1 FROM {table} WHERE {column} = :value"
            assert parent == "fingerprints" or "SCAN" not in plan(empty, question), question


@pytest.mark.parametrize("words", [["nanogpt"], ["--repeats", "2", "--", "true"]])
def test_a_submission_imports_no_sqlalchemy(layout: Layout, words: list[str]) -> None:
    code = (
        "import sys; from queue_runner.cli.main import main;"
        f"print(main(['submit', *{words}]), *sorted(m for m in sys.modules if m in"
        " ('sqlalchemy', 'alembic', 'rich', 'psutil', 'asyncio', 'apscheduler', 'queue_runner.events')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0", done.stdout + done.stderr


@pytest.mark.process
@pytest.mark.parametrize("is_new", [False, True])
def test_a_worker_keeps_no_large_library(queue: Queue, tmp_path: Path, is_new: bool) -> None:
    """Nor does one that has created or upgraded its database."""
    queue.submit("true")
    queue.submit("exit 1")
    code = (
        "import atexit, runpy, sys; sys.argv[1:] = ['--until-idle'];"
        "large = {'sqlalchemy', 'alembic', 'asyncio', 'ssl'};"
        "atexit.register(lambda: print('kept:', *sorted(large & set(sys.modules))));"
        "runpy.run_module('queue_runner.worker', run_name='__main__')"
    )
    env = {**os.environ, "MPSQ_HOME": str(tmp_path / "new")} if is_new else None
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert (done.returncode, done.stdout.strip()) == (0, "kept:"), done.stderr
    if is_new:
        assert schema_revision(Layout(tmp_path / "new").db) == HEAD
    else:
        assert [row["outcome"] for row in queue.done(2)] == ["SUCCEEDED", "FAILED"]


@pytest.mark.process
def test_a_newer_database_is_refused_by_the_worker(queue: Queue) -> None:
    """The error of the child that upgrades is the worker's."""
    queue.submit("true")
    with sqlite3.connect(queue.layout.db) as newer:
        newer.execute("UPDATE alembic_version SET version_num = '9999'")
    done = subprocess.run([sys.executable, "-m", "queue_runner.worker"], capture_output=True, text=True)
    assert done.returncode == 4 and "newer" in done.stderr and "Traceback" not in done.stderr, done.stderr
