"""Which limit of --stall holds, from what the event file says: phases, iterations, neither."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from queue_runner.warden.limits import LINE_BYTES_MAX, EventProgress, Limits

LIMITS = {"setup": 30.0, "measure": 5.0, "eval": 2000.0, "*": 60.0}


def test_a_file_of_both_streams_counts_once(tmp_path: Path) -> None:
    """The log of a preparation."""
    spec: Any = SimpleNamespace(stall_s={}, events=str(tmp_path / "events.jsonl"))
    with (tmp_path / "one").open("ab") as stdout, (tmp_path / "one").open("ab") as stderr:
        stdout.write(b"four")
        stdout.flush()
        assert Limits(str(tmp_path), spec).sizes([stdout.fileno(), stderr.fileno()]) == (0, 4)


def begin(name: str) -> dict[str, Any]:
    return {"type": "phase", "name": name, "edge": "begin"}


def end(name: str) -> dict[str, Any]:
    return {"type": "phase", "name": name, "edge": "end"}


def iteration(phase: str = "measure") -> dict[str, Any]:
    return {"type": "iter", "i": 1, "phase": phase}


class Trainer:
    """Its files, and the warden's look at them."""

    def __init__(self, folder: Path, limits: dict[str, float]) -> None:
        self.events = folder / "events.jsonl"
        self.output = 0
        self.progress = EventProgress(limits, str(self.events))

    def say(self, *events: object) -> None:
        with self.events.open("a") as stream:
            for event in events:
                stream.write((event if isinstance(event, str) else json.dumps(event)) + "\n")

    def look(self, running_s: float) -> str:
        size = self.events.stat().st_size if self.events.exists() else 0
        return self.progress.stalled((size, self.output), running_s)


@pytest.fixture
def trainer(tmp_path: Path) -> Trainer:
    return Trainer(tmp_path, LIMITS)


@pytest.mark.parametrize(
    ("events", "phase", "limit"),
    [
        ([], "", 2000),  # importing a framework, or a command that never reports: nobody knows which limit holds
        (["no event", {"type": "hello", "v": 1}], "", 2000),
        ([begin("setup")], "setup", 30),
        ([begin("setup"), end("setup")], "", 60),
        ([begin("setup"), end("setup"), begin("measure"), iteration()], "measure", 5),
        ([begin("measure"), iteration(), begin("eval")], "eval", 2000),
        ([begin("measure"), iteration(), begin("eval"), end("eval")], "measure", 5),
        ([begin("eval"), begin("checkpoint")], "checkpoint", 60),
        ([begin("eval"), begin("checkpoint"), end("checkpoint")], "eval", 2000),
        ([begin("eval"), begin("eval"), end("eval")], "eval", 2000),
        ([begin("eval"), begin("checkpoint"), end("eval")], "", 60),  # an end closes what is open inside it
        ([begin("measure"), end("eval")], "measure", 5),  # and one without a beginning nothing
        ([iteration()], "measure", 5),  # a job that reports iterations only
        ([iteration("warmup"), iteration()], "measure", 5),
        ([iteration(), begin("eval")], "eval", 2000),
        ([iteration(), begin("eval"), end("eval")], "measure", 5),
        ([begin("setup"), iteration()], "measure", 5),  # it forgot the end of its setup
        ([begin("measure"), iteration(), end("measure")], "", 60),
    ],
)
def test_the_limit_of_the_phase_it_is_in(trainer: Trainer, events: list[Any], phase: str, limit: float) -> None:
    if events:
        trainer.say(*events)
    assert trainer.look(100.0) == "" if events else trainer.look(0.0) == ""
    since = 100.0 if events else 0.0
    assert trainer.look(since + limit - 0.1) == ""
    where = f" in phase {phase}" if phase else ""
    assert trainer.look(since + limit).endswith(f" {limit:g} s{where}")


def test_one_look_at_many_events_ends_where_one_at_each_does(tmp_path: Path) -> None:
    events = [begin("warmup"), iteration("warmup"), end("warmup"), begin("measure"), iteration(), iteration()]
    events += [begin("eval"), end("eval"), iteration()]
    one, each = Trainer(tmp_path, LIMITS), Trainer(tmp_path, LIMITS)
    for number, event in enumerate(events):
        each.say(event)
        each.look(float(number))
    one.look(0.0)
    assert one.progress.limit() == each.progress.limit() == ("measure", 5.0)
    assert one.progress.open == each.progress.open == ["measure"]


@pytest.mark.parametrize("limits", [{}, {"eval": 1.0}])
def test_no_limit_is_no_stall(tmp_path: Path, limits: dict[str, float]) -> None:
    trainer = Trainer(tmp_path, limits)
    assert trainer.look(1e9) == ""
    trainer.say(begin("measure"))
    trainer.look(1e9)
    assert trainer.look(2e9) == ""


def test_output_counts_until_there_are_events(trainer: Trainer) -> None:
    trainer.look(0.0)
    trainer.output = 10
    assert trainer.look(1999.0) == "" == trainer.look(3998.0)
    trainer.say(iteration())
    trainer.look(3999.0)
    trainer.output = 20
    assert trainer.look(4004.0).endswith(" 5 s in phase measure")


def test_torn_and_hostile_lines_change_nothing(trainer: Trainer) -> None:
    trainer.say(begin("eval"))
    trainer.look(0.0)
    with trainer.events.open("ab") as stream:
        stream.write(b'[{"phase": "edge"' * 5000 + b'\n"phase" "edge"\n\xff"phase""edge"\n')
        stream.write(b'{"type":"iter","phase":[]}\n{"type":"phase","edge":"end","name":7}\n["phase","edge"]\n')
        stream.write(b'{"type":"iter","phase":"' + b"x" * LINE_BYTES_MAX + b'"}\n{"type":"iter","phase":"mea')
    trainer.look(1.0)
    assert trainer.progress.limit() == ("eval", 2000.0)
    with trainer.events.open("ab") as stream:
        stream.write(b'sure"}\n')
    trainer.look(2.0)
    assert trainer.progress.limit() == ("measure", 5.0)


def test_a_file_that_was_cut_is_read_on(trainer: Trainer) -> None:
    trainer.say(*[iteration("warmup")] * 50)
    trainer.look(0.0)
    trainer.events.write_text(json.dumps(iteration()) + "\n")
    trainer.look(1.0)
    assert trainer.progress.limit() == ("measure", 5.0)
