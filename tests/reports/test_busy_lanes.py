"""Runs that were measured while another lane was busy are rows of their own in reports."""

from __future__ import annotations

from pathlib import Path

from queue_runner.model import NEIGHBOUR_BUSY
from queue_runner.reports._common import printing
from tests.reports.report_fixture import Store

BUSY = {NEIGHBOUR_BUSY: ("caveat", "for 100 % of its measured time another lane was busy: 9.1 on cpu:1")}


def test_runs_beside_another_lane_are_rows_of_their_own(tmp_path: Path) -> None:
    """Also where --group-by asks for the device alone."""
    store = Store(tmp_path / "store", tmp_path)
    for _ in range(2):
        store.run("cpu", median_s=0.1)
        store.run("cpu", median_s=0.2, taints=BUSY)
        store.run("mps", median_s=0.05, taints=BUSY)
    for options in ({}, {"group_by": "device"}):
        result = store.report("devices", **options)
        assert [row["n_valid"] for row in result.rows] == [2, 2, 2]
        assert sorted(row["label"].endswith("beside another lane") for row in result.rows) == [False, True, True]
        assert next(row for row in result.rows if row["is_baseline"])["label"].startswith("cpu")
        text = " ".join(printing.as_text("devices", result, "table", explain=True).split())
        assert "beside another lane: measured while another lane was busy; the other rows ran alone" in text
    store.db.close()
