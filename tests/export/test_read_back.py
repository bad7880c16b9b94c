"""Exports and the store itself, opened by the programs that they are for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from queue_runner.export.formats import tensorboard
from queue_runner.export.selected import SelectedRun
from tests.export.export_support import TIMES, write
from tests.reports.report_fixture import Store

pytestmark = pytest.mark.process


def test_tensorboard_reads_it(store: Store, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    write(store, "tensorboard", tmp_path / "out")
    folders = sorted(path.name for path in (tmp_path / "out").iterdir() if path.is_dir())
    assert [folder.split()[0] for folder in folders] == ["1.1", "1.2", "2.1"]
    assert [folder.endswith(" (not valid)") for folder in folders] == [False, True, False]
    series = EventAccumulator(str(tmp_path / "out" / folders[0]), size_guidance={"scalars": 0})
    series.Reload()
    assert [(point.step, point.value) for point in series.Scalars("iteration/dur_s")] == [*enumerate(TIMES)]
    assert [point.step for point in series.Scalars("iteration/loss")] == [0, 2]
    assert series.Scalars("metric/reference_loss_device_nats")[0].value == 2.5
    assert series.Scalars("eval/val/loss")[0].step == 105
    assert series.Scalars("run/real_s")[0].wall_time == 1e9


def test_a_folder_of_tensorboard_keeps_what_tells_runs_apart() -> None:
    """Names were cut at 100 characters: they lost the last settings, and that a run is not valid."""
    title = "1.1 nanogpt tiny cpu " + " ".join(f"setting_{n}=0.{n}" for n in range(40)) + " lr=0.125"
    name = tensorboard.folder_name(SelectedRun(1, False, title, ()))
    assert name.startswith("1.1 nanogpt tiny cpu") and name.endswith("lr=0.125 (not valid)") and len(name) <= 200


@pytest.mark.parametrize("letter", ["字", "я", "😀"])
def test_a_folder_of_tensorboard_fits_into_255_bytes(letter: str) -> None:
    name = tensorboard.folder_name(SelectedRun(1, False, f"1.1 {letter * 200} lr=0.125", ()))
    assert name.startswith("1.1 ") and name.endswith("lr=0.125 (not valid)") and len(name.encode()) <= 255


def test_no_secret_is_in_a_log_directory(store: Store, tmp_path: Path) -> None:
    store.run(workload=None, framework=None, argv=["train.py", "--api-key=ghp_hunter2hunter2hunter2"])
    store.db.execute("UPDATE jobs SET note = 'https://me:hunter2@example.org', name = 'ghp_hunter2hunter2hunter2'")
    write(store, "tensorboard", tmp_path / "out")
    for path in (tmp_path / "out").rglob("*"):
        assert "hunter2" not in str(path)
        assert path.is_dir() or b"hunter2" not in path.read_bytes(), path


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
