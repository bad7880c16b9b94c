"""What another tool saw goes to the runs that were going on then; reports read it instead of mpsq's own samples."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.reports.report_fixture import Store

pytestmark = pytest.mark.fast
BEGIN = 1e9


@pytest.fixture
def store(home: Path, tmp_path: Path) -> Store:
    made = Store(home, tmp_path / "template")
    for k in range(2):
        run_id = made.run("mps", ended_at=BEGIN + 30 + 100 * k)
        made.watched(run_id, [{"gpu_busy_share": 0.5}] * 31)
        made.iterations(run_id, [1.0] * 20)
    made.db.execute("UPDATE runs SET started_at = 1e9 + 100 WHERE number = 2")
    return made


def macmon(path: Path, first: int, last: int) -> Path:
    def line(second: int) -> str:
        at = datetime.fromtimestamp(BEGIN + second + 0.5, UTC).isoformat()
        return json.dumps({"timestamp": at, "gpu_usage": [1296, 0.99], "gpu_power": 24.0, "ane_power": 0.25})

    path.write_text("\n".join(line(second) for second in range(first, last)))
    return path


def test_samples_go_to_the_runs_of_their_time(store: Store, tmp_path: Path) -> None:
    from queue_runner.control.import_timeline import import_timelines
    from queue_runner.errors import MpsqError

    log = macmon(tmp_path / "macmon.jsonl", -20, 115)
    found = import_timelines(store.layout, [log], "macmon", None)
    assert [(one.run, one.samples) for one in found] == [("1.1", 30), ("1.2", 15)]
    report = store.report("utilization", selectors=["1.1"])
    (row,) = (row for row in report.rows if row["phase"] == "measure")
    assert (row["busy_share"], row["gpu_w"], row["ane_w"]) == (0.99, 24.0, 0.25)
    assert row["gpu_j"] == pytest.approx(24.0) and "integral" in row["method"]
    with pytest.raises(MpsqError, match="already been imported"):
        import_timelines(store.layout, [log], "macmon", None)


def test_one_run_by_name_and_none_of_another_time(store: Store, tmp_path: Path) -> None:
    from queue_runner.control.import_timeline import import_timelines
    from queue_runner.errors import MpsqError

    log = macmon(tmp_path / "macmon.jsonl", 0, 125)
    assert [one.run for one in import_timelines(store.layout, [log], "macmon", "1.2")] == ["1.2"]
    with pytest.raises(MpsqError, match=r"no run was going on while later.jsonl was written"):
        import_timelines(store.layout, [macmon(tmp_path / "later.jsonl", 500, 510)], "macmon", None)
    store.db.execute("UPDATE runs SET started_at = NULL WHERE number = 1")  # as of an imported log
    found = import_timelines(store.layout, [macmon(tmp_path / "later.jsonl", 500, 510)], "macmon", "1.1")
    assert [(one.run, one.samples) for one in found] == [("1.1", 10)]
