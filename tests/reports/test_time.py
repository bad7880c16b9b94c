"""The report of times: what makes a run's times invalid stands beside them."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from tests.cli_support import Cli, full_queue

pytestmark = pytest.mark.process


def test_a_contended_run_says_so(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`mpsq run` on a busy machine ended with bare numbers."""
    layout = full_queue(home)
    detail = "other programs used 56% of the machine's cores"
    with sqlite3.connect(layout.db) as connection:
        (run_id, job, number) = connection.execute(
            "SELECT id, job_id, number FROM runs WHERE outcome = 'SUCCEEDED' LIMIT 1"
        ).fetchone()
        connection.execute(
            "INSERT OR REPLACE INTO taints (run_id, kind, severity, detail) VALUES (?, 'contended', 'invalid', ?)",
            [run_id, detail],
        )
    connection.close()
    said = Cli(capsys).ok("report", "time", f"{job}.{number}").out
    assert f"contended: {detail}" in said and "invalid: " in said
