"""Each target read back by the library that it is for, and what may not happen to what was there before."""

from __future__ import annotations

import csv
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from queue_runner.errors import UsageError
from queue_runner.export import formats, selected
from queue_runner.export.formats import MANIFEST
from queue_runner.reports._common.report_options import read_options
from queue_runner.store import read, results
from queue_runner.store.engine import open_engine, writing
from tests.cli_support import Cli
from tests.export.export_support import TIMES, write
from tests.reports.report_fixture import Store

TARGETS = ("csv", "jsonl", "parquet", "tensorboard")


def test_the_columns_are_those_of_the_views(store: Store) -> None:
    for table in selected.TABLES:
        names = [row[0] for row in store.db.execute("SELECT name FROM pragma_table_info(?)", [table.view])]
        extra = {*selected.FROM_SPEC} if table is selected.RUNS else set()
        mine = [field.name for field in table.fields]
        assert {*mine} - extra == {*names} - {"spec_json"}, table.name
        assert len(mine) == len({*mine})


def test_every_target_is_known() -> None:
    assert tuple(formats.names()) == TARGETS
    assert all(name == formats.load(name).NAME and formats.load(name).HELP for name in TARGETS)
    with pytest.raises(UsageError, match='cannot export to "parket"') as error:
        formats.load("parket")
    assert 'mean "parquet"' in error.value.hint


@pytest.mark.parametrize("target", ["csv", "jsonl", "parquet"])
def test_tables_are_read_back(store: Store, tmp_path: Path, target: str) -> None:
    done = write(store, target, tmp_path / "out")
    assert (done.rows, done.n_not_valid) == ({"runs": 3, "iterations": 9, "evals": 6, "metrics": 3}, 1)
    tables = {name: _rows(target, tmp_path / "out", name) for name in done.rows}
    assert {name: len(rows) for name, rows in tables.items()} == done.rows
    assert [(row["run"], str(row["valid"])) for row in tables["runs"]] == [
        ("1.1", "True"),
        ("1.2", "False"),
        ("2.1", "True"),
    ]
    assert [float(row["dur_s"]) for row in tables["iterations"] if row["run"] == "2.1"] == TIMES
    assert tables["iterations"][1]["loss"] in (None, "")
    assert tables["metrics"][0]["unit"] == "nats"
    manifest = json.loads((tmp_path / "out" / MANIFEST).read_text())
    assert manifest["schema"] == "mpsq.export/1" and manifest["tables"]["iterations"]["units"]["dur_s"] == "s"


def test_each_setting_that_tells_runs_apart_is_a_column(store: Store, tmp_path: Path) -> None:
    """Runs of two modes of torch.compile were alike in every file."""
    token = "ghp_hunter2hunter2hunter2"
    variables = {"OMP_NUM_THREADS": "8", "URL": f"https://{token}@host"}
    store.run("cpu", "max-autotune", variables=variables, prepare=f"fetch {token}")
    write(store, "jsonl", tmp_path / "out")
    *others, run = _rows("jsonl", tmp_path / "out", "runs")
    assert run["compile_mode"] == "max-autotune" and run["prepare"] == "fetch [hidden]"
    assert json.loads(run["variables_json"])["OMP_NUM_THREADS"] == "8" and token not in str(run)
    assert (run["cores"], run["threads"], run["warmup"], run["mps_json"]) == (None, None, 0, "{}")
    assert all(other["compile_mode"] is None and other["variables_json"] == "{}" for other in others)


def test_what_the_queue_adds_has_no_offset(store: Store, home: Path, tmp_path: Path, mpsq: Cli) -> None:
    """It was 4611686018427387903, the place after all lines of a trainer."""
    with writing(open_engine(store.layout.db)) as connection:
        results.save_metric(connection, 1, "neighbour_busy_share", 0.5, "")
        results.save_note(connection, 1, "not_quiet", "busy")
    write(store, "csv", tmp_path / "out")
    rows = _rows("csv", tmp_path / "out", "metrics")
    (added,) = (row for row in rows if row["name"] == "neighbour_busy_share")
    assert added["offset"] == "" and all(row["offset"].isdecimal() for row in rows if row is not added)
    (run,) = mpsq.ok("show", "1.1", "--json").json()["runs"]
    assert [note["offset"] for note in run["notes"] if note["kind"] == "not_quiet"] == [None]


def _rows(target: str, folder: Path, name: str) -> list[dict[str, Any]]:
    path = folder / f"{name}.{target}"
    if target == "csv":
        return list(csv.DictReader(path.open(encoding="utf-8")))
    if target == "jsonl":
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    import pyarrow.parquet

    rows: list[dict[str, Any]] = pyarrow.parquet.read_table(path).to_pylist()
    return rows


def test_parquet_has_types_and_units(store: Store, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    write(store, "parquet", tmp_path / "out")
    schema = pyarrow.parquet.read_schema(tmp_path / "out" / "runs.parquet")
    assert schema.field("median_s").metadata == {b"unit": b"s"} and schema.field("median_s").type == pa.float64()
    assert schema.field("valid").type == pa.bool_() and schema.field("seed").type == pa.int64()


def test_a_selection(store: Store, tmp_path: Path) -> None:
    assert write(store, "csv", tmp_path / "one", "1.1").rows["runs"] == 1
    assert write(store, "csv", tmp_path / "two", where=["device=mps"]).rows["iterations"] == 3
    with pytest.raises(UsageError, match="no run matches"):
        write(store, "csv", tmp_path / "three", where=["device=cuda"])
    with pytest.raises(UsageError, match="there is no job 9"):
        write(store, "csv", tmp_path / "three", "9")
    assert not (tmp_path / "three").exists()


def test_secrets_are_hidden(store: Store, tmp_path: Path) -> None:
    store.run(workload=None, framework=None, argv=["train.py", "--api-key=ghp_hunter2hunter2hunter2"])
    store.db.execute("UPDATE jobs SET note = 'https://me:hunter2@example.org', name = 'ghp_hunter2hunter2hunter2'")
    for target in ("csv", "jsonl", "parquet"):
        write(store, target, tmp_path / target)
        for path in (tmp_path / target).rglob("*"):
            assert "hunter2" not in str(path)
            assert path.is_dir() or b"hunter2" not in path.read_bytes(), path
    (row,) = [row for row in _rows("jsonl", tmp_path / "jsonl", "runs") if row["kind"] == "command"]
    assert row["argv"] == "train.py '--api-key=[hidden]'"


@pytest.mark.parametrize("target", ["csv", "jsonl", "parquet"])
def test_an_earlier_export_is_not_replaced(store: Store, tmp_path: Path, target: str) -> None:
    out = tmp_path / "out"
    write(store, target, out)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(UsageError, match="already exists"):
        write(store, target, out, "1.1")
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "out"]


def test_what_exists_is_left_alone(store: Store, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years")
    file, link, empty = tmp_path / "file", tmp_path / "link", tmp_path / "empty"
    file.write_text("x")
    empty.mkdir()
    link.symlink_to(empty)
    for out in (mine, file, link):
        with pytest.raises(UsageError, match="already exists"):
            write(store, "csv", out)
    with pytest.raises(UsageError, match="does not exist"):
        write(store, "csv", mine / "a/b")
    assert (mine / "thesis.txt").read_text() == "years"
    write(store, "csv", empty)  # an empty folder is as good as none


def test_nothing_half_written_stays(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = selected.Selected.rows

    def breaks(self: selected.Selected, table: selected.ExportTable) -> Any:
        if table is selected.EVALS:
            raise OSError(28, "No space left on device")
        return rows(self, table)

    monkeypatch.setattr(selected.Selected, "rows", breaks)
    with pytest.raises(OSError, match="No space left"):
        write(store, "csv", tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home"]


def test_all_tables_are_of_one_moment(store: Store, tmp_path: Path) -> None:
    store.db.execute("PRAGMA journal_mode=WAL")
    with read.reading(store.layout.db) as connection:
        found = selected.select(connection, read_options())
        with sqlite3.connect(store.layout.db) as other:
            other.execute("DELETE FROM iterations")
        assert len(list(found.rows(selected.ITERATIONS))) == found.counts["iterations"] == 9


@pytest.mark.parametrize(("target", "module"), [("parquet", "pyarrow"), ("tensorboard", "tensorboardX")])
def test_a_missing_library_is_a_sentence(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, module: str
) -> None:
    monkeypatch.setitem(__import__("sys").modules, module, None)
    with pytest.raises(UsageError, match=f"{module} is not installed") as error:
        write(store, target, tmp_path / "out")
    assert error.value.hint == f"pip install {module}"
    assert not (tmp_path / "out").exists()
