"""Exports and the store itself, opened by the programs that they are for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.export.export_support import TIMES, write
from tests.reports.report_fixture import Store

pytestmark = pytest.mark.process


def test_duckdb_and_pandas_read_the_exports(store: Store, tmp_path: Path) -> None:
    import duckdb
    import pandas

    for target in ("parquet", "csv", "jsonl"):
        write(store, target, tmp_path / target)
    for read, end in (("read_parquet", "parquet"), ("read_csv", "csv"), ("read_json", "jsonl")):
        table = f"{read}('{tmp_path / end / 'iterations'}.{end}')"
        assert duckdb.sql(
            f"SELECT CAST(run AS TEXT), sum(dur_s) FROM {table} GROUP BY run ORDER BY run"
        ).fetchall() == [(run, sum(TIMES)) for run in ("1.1", "1.2", "2.1")]
    frame = pandas.read_parquet(tmp_path / "parquet" / "runs.parquet")
    assert frame.groupby("device").median_s.median().to_dict() == {"cpu": 0.1, "mps": 0.1}


@pytest.fixture
def live(store: Store) -> Store:
    """The store while another connection writes: its newest rows are in the log beside it, not in the file."""
    store.db.execute("PRAGMA journal_mode=WAL")
    store.db.execute("PRAGMA wal_autocheckpoint=0")
    store.iterations(store.run("cuda"), TIMES)
    assert store.layout.db.with_name(store.layout.db.name + "-wal").stat().st_size > 0
    return store


def test_duckdb_asks_the_store_through_pandas(live: Store) -> None:
    """DuckDB's own reader of SQLite files is an extension that it downloads: this is the way without."""
    import sqlite3

    import duckdb
    import pandas

    with sqlite3.connect(f"file:{live.layout.db}?mode=ro", uri=True) as connection:
        v_run = pandas.read_sql("SELECT run_id, device, median_s FROM v_run", connection)
        v_iteration = pandas.read_sql("SELECT run_id, dur_s FROM v_iteration", connection)
    assert len(v_run) == 4 and len(v_iteration) == 12
    found = duckdb.sql(
        "SELECT device, count(*) FROM v_run JOIN v_iteration USING (run_id) GROUP BY device ORDER BY device"
    ).fetchall()
    assert found == [("cpu", 6), ("cuda", 3), ("mps", 3)]


def test_datasette_opens_the_store(live: Store) -> None:
    import asyncio

    from datasette.app import Datasette

    async def ask() -> tuple[Any, Any]:
        datasette = Datasette([str(live.layout.db)])
        await datasette.invoke_startup()
        name = live.layout.db.stem
        rows = await datasette.client.get(f"/{name}/v_run.json?_shape=array&_sort=run&device=cuda")
        sql = "select device, count(*) as n from v_run join v_iteration using (run_id) group by device"
        grouped = await datasette.client.get(f"/{name}.json", params={"sql": sql, "_shape": "array"})
        return rows.json(), grouped.json()

    rows, grouped = asyncio.run(ask())
    assert [(row["device"], row["median_s"]) for row in rows] == [("cuda", 0.1)]
    assert {row["device"]: row["n"] for row in grouped} == {"cpu": 6, "cuda": 3, "mps": 3}
