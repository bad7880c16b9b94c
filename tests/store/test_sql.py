"""mpsq db sql: what it answers, what it refuses, and that it ends."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from queue_runner.errors import UsageError
from queue_runner.paths import Layout
from queue_runner.store import read, sql
from tests.cli_support import Cli, full_queue

pytestmark = pytest.mark.process


@pytest.fixture
def layout(home: Path) -> Layout:
    return full_queue(home)


def ask(layout: Layout, query: str, **limits: float) -> sql.Answer:
    with read.reading(layout.db) as connection:
        return sql.ask(connection, query, **limits)  # type: ignore[arg-type]


def test_an_answer(layout: Layout) -> None:
    answer = ask(layout, "SELECT run, outcome FROM v_run WHERE job_id = 1 ORDER BY run")
    assert answer.rows == [{"run": "1.1", "outcome": "SUCCEEDED"}, {"run": "1.2", "outcome": "SUCCEEDED"}]
    assert answer.columns == ["run", "outcome"] and not answer.cut


@pytest.mark.parametrize(
    "query",
    [
        "SELECT count(*) AS n FROM iterations",
        "WITH slow AS (SELECT run_id FROM v_run WHERE median_s > 1) SELECT * FROM slow",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5) SELECT sum(i) AS n FROM n",
        "SELECT value FROM json_each('[1, 2]')",
        "SELECT key FROM v_run, json_each(v_run.spec_json, '$.params')",
        "SELECT name FROM sqlite_master",
        "SELECT name FROM pragma_table_info('v_run')",
        "PRAGMA table_info(v_run)",
        "EXPLAIN QUERY PLAN SELECT * FROM v_run",
        "SELECT avg(median_s) OVER (PARTITION BY device) FROM v_run",
        "VALUES (1), (2)",
        "SELECT lower(quote(run)) FROM v_iteration GROUP BY run HAVING count(*) > 1 ORDER BY 1 LIMIT 3;",
    ],
)
def test_what_only_reads_is_allowed(layout: Layout, query: str) -> None:
    ask(layout, query)


@pytest.mark.parametrize(
    "query",
    [
        "DELETE FROM runs",
        "UPDATE jobs SET name = 'x'",
        "INSERT INTO lanes (name) VALUES ('x')",
        "WITH x AS (SELECT 1) DELETE FROM runs",
        "DROP TABLE runs",
        "CREATE TABLE x (y)",
        "CREATE TEMP TABLE x (y)",
        "CREATE TEMP VIEW x AS SELECT 1",
        "CREATE VIRTUAL TABLE x USING fts5(y)",
        "ATTACH '{other}' AS other",
        "VACUUM INTO '{other}'",
        "VACUUM",
        "REINDEX",
        "ANALYZE",
        "BEGIN",
        "SAVEPOINT x",
        "PRAGMA journal_mode=DELETE",
        "PRAGMA writable_schema=ON",
        "PRAGMA user_version=9",
        "PRAGMA temp_store_directory='{other}'",
        "PRAGMA wal_checkpoint(TRUNCATE)",
        "SELECT * FROM pragma_wal_checkpoint",
        "SELECT load_extension('{other}')",
    ],
)
def test_everything_else_is_refused_and_changes_nothing(layout: Layout, tmp_path: Path, query: str) -> None:
    before = hashlib.sha256(layout.db.read_bytes()).hexdigest()
    other = tmp_path / "other"
    with pytest.raises(UsageError) as error:
        ask(layout, query.format(other=other))
    assert error.value.message and error.value.hint
    assert hashlib.sha256(layout.db.read_bytes()).hexdigest() == before and not other.exists()


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELECT * FROM v_runs", 'did you mean "v_run"'),
        ("SELECT mediann_s FROM v_run", "no such column: mediann_s"),
        ("SELEKT 1", "syntax error"),
        ("", "is empty"),
        ("-- nothing", "is empty"),
        ("SELECT 1; DELETE FROM runs", "more than one statement"),
        ("SELECT ?", "SQLite does not accept"),
        ("SELECT 'a\0b'", "SQLite does not accept"),
        ("SELECT zeroblob(1000000000)", "larger than 64.0 MiB"),
    ],
)
def test_errors_are_sentences(layout: Layout, query: str, said: str) -> None:
    with pytest.raises(UsageError) as error:
        ask(layout, query)
    assert said in f"{error.value.message} {error.value.hint}"


@pytest.mark.parametrize(
    "query",
    [
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n",
        "SELECT count(*) FROM iterations a, iterations b, iterations c, iterations d, iterations e, iterations f",
    ],
)
def test_an_endless_query_ends(layout: Layout, query: str) -> None:
    with pytest.raises(UsageError, match="took longer than"):
        ask(layout, query, limit_s=0.05, most_rows=10**12)


def test_rows_and_bytes_are_limited(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = ask(layout, "SELECT i FROM v_iteration", most_rows=3)
    assert len(answer.rows) == 3 and answer.cut == "3 rows"
    assert not ask(layout, "SELECT i FROM v_iteration LIMIT 3", most_rows=3).cut
    monkeypatch.setattr(sql, "MOST_BYTES", 10_000)
    answer = ask(layout, "SELECT hex(zeroblob(2000)) FROM v_iteration")
    assert len(answer.rows) == 2 and answer.cut == "9.77 KiB of values"


def test_names_and_values_that_no_table_has(layout: Layout) -> None:
    answer = ask(layout, "SELECT 1 AS n, 2 AS n, x'00ff' AS raw, CAST(x'ff' AS TEXT) AS text, 9e999 AS big")
    assert answer.rows == [{"n": 1, "n_2": 2, "raw": "00ff", "text": "\ufffd", "big": float("inf")}]


def test_the_command(layout: Layout, mpsq: Cli) -> None:
    query = "SELECT run, median_s FROM v_run WHERE job_id = 1 ORDER BY run"
    assert mpsq.ok("db", "sql", query).out.split()[-4:] == ["1.1", "0.02", "1.2", "0.02"]
    assert mpsq.ok("db", "sql", query, "--format", "csv").out == "run,median_s\n1.1,0.02\n1.2,0.02\n"
    said = mpsq.ok("db", "sql", query, "--limit", 1, "--json")
    assert said.json() == {
        "schema": "mpsq.sql/1",
        "columns": ["run", "median_s"],
        "rows": [{"run": "1.1", "median_s": 0.02}],
        "cut": "1 row",
    }
    assert "the first 1 row" in said.err
    assert json.loads(mpsq.ok("db", "sql", "SELECT 9e999 AS x", "--json").out)["rows"] == [{"x": "inf"}]
    ran = mpsq.ok("db", "sql", "SELECT run FROM v_run WHERE 0")
    assert (ran.out, ran.err) == ("", "no rows\n")
    assert "\x1b" not in mpsq.ok("db", "sql", "SELECT char(27) || '[31m' AS \"\x1b[0m\"").out
    for query in ("DELETE FROM runs", "SELECT * FROM nowhere"):
        ran = mpsq("db", "sql", query)
        assert ran.code == 2 and ran.err.startswith("error: ")
