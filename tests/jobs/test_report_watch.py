"""The clock of loops that call back, on a clock and a device that are only counted."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

JOBS = Path(__file__).resolve().parents[2] / "jobs"


class Loop:
    """A trainer's loop: work takes so many seconds, and the device is behind by one until it is waited for."""

    def __init__(self, path: Path, **more: Any) -> None:
        sys.path.insert(0, str(JOBS))
        try:
            report, watch = (importlib.import_module(name) for name in ("mpsq_report", "mpsq_report_watch"))
        finally:
            sys.path.remove(str(JOBS))
        self.now, self.behind, self.path = 0.0, 0.0, path
        self.waits = 0
        self.watch = watch.Watch(
            report.Reporter(path=str(path) if path.name else "", clock=lambda: self.now, zero=0.0),
            self.synchronize, lambda: (1, 2), clock=lambda: self.now, **more,
        )  # fmt: skip

    def synchronize(self) -> None:
        self.now, self.behind, self.waits = self.now + self.behind, 0.0, self.waits + 1

    def work(self, dur_s: float) -> None:
        self.now, self.behind = self.now + dur_s, self.behind + 1.0

    def told(self) -> list[tuple[Any, ...]]:
        keys = {"iter": ("i", "dur_s", "loss", "phase"), "phase": ("name", "edge", "t")}
        lines = [json.loads(line) for line in self.path.read_text().splitlines()]
        return [tuple(line.get(key) for key in keys[line["type"]]) for line in lines if line["type"] in keys]


def test_what_is_between_two_iterations_is_in_none(tmp_path: Path) -> None:
    loop = Loop(tmp_path / "events", warmup_iters=0)
    watch = loop.watch
    watch.start()
    loop.work(2.0)
    watch.stop(0, 0.5)
    watch.start()
    loop.work(30.0)  # a log, say
    watch.start()
    loop.work(3.0)
    watch.stop(1, loss_follows=True)
    watch.loss(0.25)
    watch.pause("eval")
    loop.work(50.0)
    watch.pause("eval")
    watch.pause("checkpoint")
    loop.work(70.0)
    watch.start()
    loop.work(4.0)
    watch.stop(2, loss_follows=True)  # and does not
    watch.close()
    watch.close()
    watch.stop(3)  # never begun
    assert loop.told() == [
        ("warmup", "begin", 0.0),
        (0, 3.0, 0.5, "warmup"),
        ("warmup", "end", 3.0), ("measure", "begin", 3.0),
        (1, 4.0, 0.25, "measure"),
        ("eval", "begin", 38.0), ("eval", "end", 88.0),
        ("checkpoint", "begin", 88.0), ("checkpoint", "end", 158.0),
        (2, 5.0, None, "measure"),
        ("measure", "end", 165.0),
    ]  # fmt: skip


def test_the_first_compiles_and_a_loss_of_nan_is_noted_once(tmp_path: Path) -> None:
    heard: list[Any] = []
    loop = Loop(tmp_path / "events", compiled=True, warmup_iters=1, on_iteration=heard.append)
    for i in range(4):
        loop.watch.start()
        loop.watch.stop(i, float("nan") if i else 1.0)
    assert [one.phase for one in heard] == ["compile", "warmup", "measure", "measure"]
    assert [one.memory for one in heard] == [(1, 2)] * 4
    assert loop.path.read_text().count('"nan_loss"') == 1


def test_without_a_listener_nothing_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MPSQ_EVENTS", raising=False)
    loop = Loop(Path())
    loop.watch.start()
    loop.watch.stop(0, 1.0)
    loop.watch.pause("eval")
    loop.watch.close()
    assert loop.waits == 0 and not loop.watch.active


def test_callbacks_are_found_beside_the_module_and_nothing_else_is() -> None:
    import mpsq_report

    with pytest.raises(AttributeError, match="no attribute 'Trainercallback'"):
        _ = mpsq_report.Trainercallback
    assert mpsq_report._ELSEWHERE.keys() == {"TrainerCallback", "LightningCallback", "Watch"}
