"""An iteration's time is from an idle device to an idle device; a device that works behind one's back shows it."""

from __future__ import annotations

import inspect
import json
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from harness import loop
from mpsq_report import Reporter

pytestmark = pytest.mark.slow


class AsyncDevice:
    """Takes work at once and does it when it is waited for; only then does its clock go on."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.queued_s = 0.0

    def launch(self, seconds: float) -> None:
        self.queued_s += seconds

    def synchronize(self) -> None:
        self.now_s += self.queued_s
        self.queued_s = 0.0

    def clock(self) -> float:
        return self.now_s


def durations(timed: Callable[..., Any]) -> list[float]:
    """Three pieces of work of 1, 2 and 4 s, each after 10 s of work that is not theirs (an evaluation, say)."""
    device, found = AsyncDevice(), []
    for seconds in (1.0, 2.0, 4.0):
        device.launch(10.0)
        found.append(timed(lambda s=seconds: device.launch(s), device.synchronize, device.clock)[0])
    return found


def test_the_time_is_that_of_the_work() -> None:
    assert durations(loop.timed) == [1.0, 2.0, 4.0]


@pytest.mark.parametrize("which", [0, 1], ids=["before the first reading", "before the second"])
def test_without_either_synchronisation_it_would_not_be(which: int) -> None:
    """The test above is worth something: take one of the two out of the source, and its numbers change."""
    lines = textwrap.dedent(inspect.getsource(loop.timed)).splitlines()
    places = [n for n, line in enumerate(lines) if line.strip() == "synchronize()"]
    assert len(places) == 2
    del lines[places[which]]
    scope = dict(vars(loop))
    exec(compile("from __future__ import annotations\n" + "\n".join(lines), "mutated", "exec"), scope)
    assert durations(scope["timed"]) != [1.0, 2.0, 4.0]


class FakeWork:
    """A trainer on an AsyncDevice: 1 s an iteration, 60 s to compile at the first, 5 s an evaluation of a split."""

    splits: tuple[str, ...] = ("train", "val")

    def __init__(self, losses: Mapping[int, float] | None = None) -> None:
        self.device = AsyncDevice()
        self.losses = losses or {}
        self.log: list[str] = []
        self.synchronize = self.device.synchronize

    def step(self, i: int) -> float:
        self.device.launch(61.0 if not self.log else 1.0)
        self.log.append(f"step {i}")
        return self.losses.get(i, 4.0 - i / 100)

    def read(self, loss: float) -> float:
        assert self.device.queued_s == 0, "the loss was read inside the iteration"
        return loss

    def measures(self, loss: float) -> loop.Measures:
        return {"decode_tokens_per_s": (100.0 * loss, "tokens/s")}

    def memory(self) -> tuple[int | None, int | None]:
        return 100, 200

    def evaluate(self, split: str) -> Mapping[str, float]:
        self.device.launch(5.0)
        self.log.append(f"eval {split}")
        return {"loss": 2.0}

    def save(self, done: int) -> None:
        self.device.launch(3.0)
        self.log.append(f"save {done}")

    def after_first(self) -> None:
        self.log.append("after first")


def plan(**changes: Any) -> loop.Plan:
    usual = {
        "first": 0, "total": 10, "warmup_iters": 3, "compile": False, "eval_interval": 5, "checkpoint_interval": 0,
        "save_at_end": False, "log_interval": 1, "stop_on_nan": False, "per_iter": 8, "unit": "tokens",
    }  # fmt: skip
    return loop.Plan(**(usual | changes))


def go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: FakeWork, **changes: Any
) -> tuple[loop.Result, list[dict[str, Any]]]:
    monkeypatch.setattr(loop.timed, "__defaults__", (work.device.clock,))
    path = tmp_path / "events.jsonl"
    result = loop.run(plan(**changes), work, Reporter(path, work.device.clock, 0.0), say=lambda line: None)
    return result, [json.loads(line) for line in path.read_text().splitlines()]


def test_evaluations_and_checkpoints_are_in_no_iteration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = FakeWork()
    result, events = go(tmp_path, monkeypatch, work, checkpoint_interval=4, save_at_end=True)
    assert [e["dur_s"] for e in events if e["type"] == "iter"] == [61.0] + [1.0] * 9
    assert [(e["i"], e["split"], e["dur_s"]) for e in events if e["type"] == "eval"] == [
        (5, "train", 5.0), (5, "val", 5.0), (10, "train", 5.0), (10, "val", 5.0),
    ]  # fmt: skip
    assert result.measured_s == [1.0] * 6
    assert [word for word in work.log if word.startswith("save")] == ["save 4", "save 8", "save 10"]
    assert work.log[:2] == ["step 0", "after first"] and work.log.count("after first") == 1


def test_measures_are_of_measured_iterations_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result, events = go(tmp_path, monkeypatch, FakeWork(), total=7)
    said = [(e["i"], e["name"], e["value"], e["unit"]) for e in events if e["type"] == "metric"]
    assert said == [(i, "decode_tokens_per_s", pytest.approx(400 - i), "tokens/s") for i in (4, 5, 6)]
    assert "; decode 395 tokens/s" in result.sentence()


@pytest.mark.parametrize(("compiles", "first"), [(False, "warmup"), (True, "compile")])
def test_the_same_iterations_are_measured_with_and_without_compilation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiles: bool, first: str
) -> None:
    _, events = go(tmp_path, monkeypatch, FakeWork(), compile=compiles, first=20, total=27)
    said = [(e["i"], e["phase"]) for e in events if e["type"] == "iter"]
    assert said == [
        (20, first),
        (21, "warmup"),
        (22, "warmup"),
        (23, "warmup"),
        *((i, "measure") for i in (24, 25, 26)),
    ]


def test_phases_nest_and_are_all_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, events = go(tmp_path, monkeypatch, FakeWork(), compile=True, save_at_end=True)
    open_phases: list[str] = []
    for event in events:
        if event["type"] == "phase" and event["edge"] == "begin":
            open_phases.append(event["name"])
        elif event["type"] == "phase":
            assert open_phases.pop() == event["name"]
        elif event["type"] == "iter":
            assert open_phases == [event["phase"]]
        elif event["type"] == "eval":
            assert open_phases == ["measure", "eval"]
    assert not open_phases


def test_a_loss_that_is_no_number_is_noted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    losses = {3: float("nan"), 4: float("inf")}
    result, events = go(tmp_path, monkeypatch, FakeWork(losses))
    assert [e["text"] for e in events if e["type"] == "note"] == ["the loss of iteration 3 is nan"]
    assert [e["loss"] for e in events if e["type"] == "iter"][3:5] == ["nan", "inf"]
    assert result.diverged and len(result.measured_s) == 6


def test_it_can_stop_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, events = go(tmp_path, monkeypatch, FakeWork({3: float("nan")}), stop_on_nan=True)
    assert [e["i"] for e in events if e["type"] == "iter"] == [0, 1, 2, 3]
    assert (events[-1]["name"], events[-1]["edge"]) == ("warmup", "end")
