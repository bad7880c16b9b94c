"""`make demo`: its commands, and its time limit."""

from __future__ import annotations

import pytest

from queue_runner.cli import demo
from tests.queue_support import Queue


@pytest.mark.process
def test_the_remaining_runs_are_cancelled_at_the_limit(queue: Queue) -> None:
    assert demo.mpsq("run --no-gate --set s=600,601 -- sleep {s}", 5.0) == 0
    assert {row["outcome"] for row in queue.rows()} == {"CANCELLED"}


def test_it_benches_and_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[str] = []
    monkeypatch.setenv("MPSQ_HOME", "/nowhere/demo")
    monkeypatch.setattr(demo, "mpsq", lambda arguments, limit_s=None: commands.append(arguments) or 0)
    assert demo.main() == 0
    assert [command.split()[0] for command in commands] == ["bench", "report"]
