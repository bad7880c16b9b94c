"""A store to export from."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.export.export_support import TIMES
from tests.reports.report_fixture import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Runs 1.1, 1.2 (invalid) and 2.1; a loss that is not a number, and a metric that has no iteration."""
    made = Store(tmp_path / "home")
    for device, taints in (("cpu", {}), ("cpu", {"contended": ("invalid", "others used the CPU")}), ("mps", {})):
        run_id = made.run(device, params={"lr": 0.1}, taints=taints)
        made.iterations(run_id, TIMES)
        made.metric(run_id, "reference_loss_device", 2.5)
    made.db.execute("UPDATE iterations SET loss = NULL WHERE run_id = 1 AND i = 1")
    return made
