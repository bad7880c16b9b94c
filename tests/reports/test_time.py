"""The report of times: what makes a run's times invalid stands beside them, and none comes from the wall clock."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from queue_runner import reports
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


def times_in(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Yield each time in seconds of a JSON document, with its key."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from times_in(item, key)
    elif isinstance(value, list):
        for item in value:
            yield from times_in(item, name)
    elif name.endswith("_s") and isinstance(value, int | float):
        yield name, value


def test_a_clock_that_was_set_back_makes_no_time_negative(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two hours back gave ended - started = -7,180 s."""
    layout = full_queue(home)
    with sqlite3.connect(layout.db) as connection:
        connection.execute("UPDATE runs SET ended_at = started_at - 7180 WHERE ended_at IS NOT NULL")
        connection.execute("UPDATE runs SET started_at = ? WHERE ended_at IS NULL", [time.time() + 7180])
    connection.close()
    mpsq = Cli(capsys)
    lists = [("list", "--all"), ("status",), ("show", "1"), ("show", "4"), ("show", "g1"), ("why", "4")]
    times = []
    for words in [*lists, *(("report", name, "--all") for name in reports.names())]:
        ran = mpsq(*words, "--json")
        assert ran.code in (0, 1) and "Traceback" not in ran.err, words
        if ran.out:
            times += [(words, *pair) for pair in times_in(json.loads(ran.out))]
    assert ("list", "--all") in {words for words, _, _ in times}
    assert [each for each in times if each[2] < 0] == []
