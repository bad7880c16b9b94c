"""Reports read what they print: the newest comparisons, whatever else the store holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from queue_runner import reports
from queue_runner.reports._common import printing
from queue_runner.reports._common.report_options import read_options
from queue_runner.store import questions, read
from tests import named_rows
from tests.reports.report_fixture import Store

pytestmark = pytest.mark.process


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setenv("MPSQ_LOCKS", str(tmp_path / "locks"))
    made = Store(tmp_path / "home")
    yield made
    made.db.close()


def submit(store: Store, group: int, *settings: Mapping[str, Any], framework: str = "torch") -> None:
    """A submission of one workload on two devices, with each of the settings."""
    for params in settings:
        for device in ("cpu", "mps"):
            for k in range(2):
                times = 0.1 + 0.01 * k
                run = store.run(
                    device, False, times, params=params, group=group, framework=framework, hello={"seed": 1}
                )
                store.iterations(run, [times] * 12, losses=[3.0 - 0.1 * i for i in range(12)])


def rows_read(store: Store, name: str, **options: Any) -> int:
    """The number of rows that the report reads from SQLite."""
    n = 0

    def counted(cursor: Any, values: tuple[Any, ...]) -> named_rows.Row:
        nonlocal n
        n += 1
        return read.as_dict(cursor, values)

    with read.reading(store.layout.db) as connection:
        connection.row_factory = counted
        reports.run(name, connection, read_options(**options))
    return n


@pytest.mark.parametrize("name", ["devices", "numerics", "iterations", "missing"])
def test_a_report_of_the_newest_reads_no_more_rows_from_a_larger_store(store: Store, name: str) -> None:
    for group in range(1, 13):
        submit(store, group, {"batch_size": group})
    few = rows_read(store, name, newest=True)
    for group in range(13, 61):
        submit(store, group, {"batch_size": group})
    assert rows_read(store, name, newest=True) == few
    plan = f"EXPLAIN QUERY PLAN SELECT id FROM jobs WHERE {questions.QUESTION} = ?"
    assert "jobs_question" in str(store.db.execute(plan, ["nanogpt"]).fetchall())


@pytest.mark.parametrize("name", ["devices", "frameworks", "numerics"])
def test_the_newest_are_shown_as_if_everything_were_read(store: Store, name: str) -> None:
    submit(store, 1, {"batch_size": 8}, {"batch_size": 16})  # asked again as group 51
    submit(store, 2, {"lr": 0.1})  # more runs of group 50
    for group in range(3, 50):
        submit(store, group, {"dropout": group / 100})
    submit(store, 50, {"lr": 0.1})
    submit(store, 50, {"lr": 0.1}, framework="mlx")
    submit(store, 51, {"batch_size": 16})
    newest, all_of_it = (store.report(name, newest=wanted) for wanted in (True, False))
    assert printing.as_text(name, newest, "table", explain=True) == printing.as_text(
        name, all_of_it, "table", explain=True
    )
    if name == "devices":
        assert {8, 16} <= {row["factors"].get("batch_size") for row in newest.rows}
        assert len(newest.rows) < len(all_of_it.rows)


def test_a_baseline_that_only_older_runs_have_is_found(store: Store) -> None:
    store.run("cuda", params={"batch_size": 1})
    for group in range(2, 12):
        submit(store, group, {"batch_size": group})
    with_older = store.report(newest=True, vs="device=cuda")
    assert with_older.rows == store.report(vs="device=cuda").rows


def test_a_selection_is_read_whole(store: Store) -> None:
    for group in range(1, 8):
        submit(store, group, {"batch_size": group})
    assert len(store.report(newest=True, where=["workload=nanogpt"]).rows) == 14
    assert len(store.report(newest=True, group_by="device").rows) == 2
