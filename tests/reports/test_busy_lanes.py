"""A busy other lane disturbs a run as any other load does: a caveat, and never a row of its own."""

from __future__ import annotations

from pathlib import Path

from queue_runner.model import NEIGHBOUR_BUSY
from queue_runner.reports._common import printing
from tests.reports.report_fixture import Store

BUSY = {NEIGHBOUR_BUSY: ("caveat", "for 100 % of its measured time another lane was busy: 9.1 on cpu:1")}


def test_runs_beside_another_lane_stay_in_their_row(tmp_path: Path) -> None:
    """The last run of a submission is often alone, because the other lane has ended: its round counts all the same."""
    store = Store(tmp_path / "store")
    for taints in (BUSY, BUSY, {}):
        store.run("cpu", median_s=0.1, taints=taints)
        store.run("mps", median_s=0.05, taints=BUSY)
    result = store.report("devices")
    assert [(row["label"], row["n_valid"]) for row in result.rows] == [("cpu eager", 3), ("mps eager", 3)]
    assert f"{NEIGHBOUR_BUSY}" in printing.as_text("devices", result, "table")
    store.db.close()
