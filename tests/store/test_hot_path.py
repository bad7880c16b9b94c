"""The hot path: its SQL is that of the Core statements, and a submission and a worker import neither SQLAlchemy nor
Alembic."""

from __future__ import annotations

import ast
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from queue_runner.paths import Layout
from queue_runner.store import hot_sql, schema, statements
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
    "name",
    [
        *("PLACES", "ACTIVE", "LANES_IN_USE", "CAN_START", "STARTABLE", "NEXT_START_AT", "LATE"),
        *("NEXT_DEADLINE_AT", "MISSED", "HELD_JOBS", "ALL_QUEUED_JOBS", "ALL_UNPAUSED_JOBS", "NEWEST_EVENT_OF_RUN"),
    ],
)
def test_what_a_step_reads_does_not_grow_with_the_history(empty: sqlite3.Connection, name: str) -> None:
    assert not READS_ALL.search(plan(empty, getattr(hot_sql, name)))


def test_the_next_run_is_found_without_sorting_all_that_wait(empty: sqlite3.Connection) -> None:
    assert "TEMP B-TREE" not in plan(empty, hot_sql.STARTABLE)


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
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "0", done.stdout + done.stderr


@pytest.mark.process
def test_a_worker_imports_no_sqlalchemy(queue: Queue) -> None:
    queue.submit("true")
    queue.submit("exit 1")
    code = (
        "import sys; from queue_runner.worker.main_loop import main;"
        "print(main(['--until-idle']), *sorted({'sqlalchemy', 'alembic'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "0", done.stdout + done.stderr
    assert [row["outcome"] for row in queue.done(2)] == ["SUCCEEDED", "FAILED"]
