"""`make demo`: its time limit, and a machine without a C++ compiler."""

from __future__ import annotations

import time

import pytest

from queue_runner.cli import demo
from queue_runner.host import compiler, torch_probe
from tests.queue_support import Queue


@pytest.mark.process
def test_the_remaining_runs_are_cancelled_at_the_limit(queue: Queue) -> None:
    queue.submit("exec sleep 600", 2)
    assert demo.work(time.monotonic()) == 0
    assert [row["outcome"] for row in queue.rows()] == ["CANCELLED"] * 2


@pytest.mark.parametrize(("works", "mode"), [(True, "--compile both"), (False, "--compile off")])
def test_without_a_compiler_only_eager_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], works: bool, mode: str
) -> None:
    commands: list[str] = []
    monkeypatch.setenv("MPSQ_HOME", "/nowhere/demo")
    monkeypatch.setattr(torch_probe, "computing_devices", lambda: ["cpu"])
    monkeypatch.setattr(compiler, "probe", lambda: compiler.Compiler(works, "no g++", "apk add g++"))
    monkeypatch.setattr(demo, "mpsq", lambda arguments: commands.append(arguments) or 0)
    monkeypatch.setattr(demo, "work", lambda until: 0)
    assert demo.main() == 0
    assert mode in commands[0]
    assert ("apk add g++" in capsys.readouterr().out) != works
