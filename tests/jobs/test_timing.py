"""An iteration's time is from an idle device to an idle device; a device that works behind one's back shows it."""

from __future__ import annotations

import inspect
import json
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness import loop
from mpsq_report import Reporter

pytestmark = pytest.mark.slow


class AsyncDevice:
    """Takes work at once and does it when it is waited for; only then does its clock go on."""

    kind = "cuda"

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
    device, times_s = AsyncDevice(), []
    for seconds in (1.0, 2.0, 4.0):
        device.launch(10.0)
        times_s.append(timed(lambda s=seconds: device.launch(s), device.synchronize, device.clock)[0])
    return times_s


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


class FakeTraining(SimpleNamespace):
    """A training and its framework on an AsyncDevice: 1 s an iteration, 60 s to compile at the first, 5 s an evaluation
    of a split."""

    name = "fake"

    def __init__(self, losses: Mapping[int, float] | None = None) -> None:
        clock = AsyncDevice()
        super().__init__(clock=clock, device=clock, losses=losses or {}, log=[], per_iter=8, reference=None)

    def step(self, training: Any, i: int) -> float:
        self.clock.launch(61.0 if not self.log else 1.0)
        self.log.append(f"step {i}")
        return self.losses.get(i, 4.0 - i / 100)

    def wait(self, training: Any, loss: float | None) -> None:
        self.clock.synchronize()

    def read(self, training: Any, loss: float) -> float:
        assert self.clock.queued_s == 0, "the loss was read inside the iteration"
        return loss

    def memory(self, device: Any) -> tuple[int | None, int | None]:
        return 100, 200

    def peak_memory(self, device: Any) -> tuple[int | None, int | None]:
        return None, None

    def evaluate(self, training: Any, split: str) -> Mapping[str, float]:
        self.clock.launch(5.0)
        self.log.append(f"eval {split}")
        return {"loss": 2.0}

    def save(self, training: Any, folder: Path, done: int) -> Path:
        self.clock.launch(3.0)
        self.log.append(f"save {done}")
        return folder

    def after_first(self, training: Any) -> None:
        self.log.append("after first")

    def cache_state(self) -> None:
        return None


def train(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fake: FakeTraining,
    done: int = 0,
    compile: bool = False,
    out: Path | None = None,
    **changes: Any,
) -> tuple[loop.Result, list[dict[str, Any]]]:
    monkeypatch.setattr(loop.timed, "__defaults__", (fake.clock.clock,))
    usual = {
        "max_iters": 10, "warmup_iters": 3, "eval_interval": 5, "checkpoint_interval": 0, "log_interval": 1,
        "stop_on_nan": False,
    }  # fmt: skip
    settings = SimpleNamespace(**usual | changes)
    fake.options = SimpleNamespace(settings=settings, compile=compile, out=out, dtype="fp32")
    fake.reference = SimpleNamespace(cpu=None)
    path = tmp_path / "events.jsonl"
    report, framework = Reporter(path, fake.clock.clock, 0.0), cast(Any, fake)
    result = loop.train({"unit": "tokens"}, framework, framework, fake.step, fake.evaluate, report, tmp_path, done)
    return result, [event for event in map(json.loads, path.read_text().splitlines()) if event.get("name") != "setup"]


def test_evaluations_and_checkpoints_are_in_no_iteration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeTraining()
    result, events = train(tmp_path, monkeypatch, fake, checkpoint_interval=4, out=tmp_path)
    assert [e["dur_s"] for e in events if e["type"] == "iter"] == [61.0] + [1.0] * 9
    assert [(e["i"], e["split"], e["dur_s"]) for e in events if e["type"] == "eval"] == [
        (5, "train", 5.0), (5, "val", 5.0), (10, "train", 5.0), (10, "val", 5.0),
    ]  # fmt: skip
    assert result.measured_s == [1.0] * 6
    assert [word for word in fake.log if word.startswith("save")] == ["save 4", "save 8", "save 10"]
    assert fake.log[:2] == ["step 0", "after first"] and fake.log.count("after first") == 1


@pytest.mark.parametrize(("compiles", "first"), [(False, "warmup"), (True, "compile")])
def test_the_same_iterations_are_measured_with_and_without_compilation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiles: bool, first: str
) -> None:
    _, events = train(tmp_path, monkeypatch, FakeTraining(), compile=compiles, done=20, max_iters=27)
    phases = [(e["i"], e["phase"]) for e in events if e["type"] == "iter"]
    assert phases == [
        (20, first),
        (21, "warmup"),
        (22, "warmup"),
        (23, "warmup"),
        *((i, "measure") for i in (24, 25, 26)),
    ]


def test_phases_nest_and_are_all_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, events = train(tmp_path, monkeypatch, FakeTraining(), compile=True, out=tmp_path)
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
    result, events = train(tmp_path, monkeypatch, FakeTraining(losses))
    (text,) = (e["text"] for e in events if e["type"] == "note" and e["kind"] == "nan_loss")
    assert "iteration 3 is nan" in text
    assert [e["loss"] for e in events if e["type"] == "iter"][3:5] == ["nan", "inf"]
    assert result.diverged and len(result.measured_s) == 6


def test_it_can_stop_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, events = train(tmp_path, monkeypatch, FakeTraining({3: float("nan")}), stop_on_nan=True)
    assert [e["i"] for e in events if e["type"] == "iter"] == [0, 1, 2, 3]
    assert (events[-1]["name"], events[-1]["edge"]) == ("warmup", "end")
