"""Iterations held against the clock: by the trainer's own lines, its phases and the real time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from queue_runner.host.warden_records import RunEnd
from queue_runner.model import Ending, Outcome
from queue_runner.paths import Layout
from queue_runner.store import read
from queue_runner.store.engine import open_engine
from queue_runner.worker import finish
from tests import named_rows
from tests.ingest.test_ingest import Case

pytestmark = pytest.mark.process

Line = dict[str, Any]


@pytest.fixture
def case(layout: Layout) -> Iterator[Case]:
    engine = open_engine(layout.db, keep_open=True)
    yield Case(layout, engine)
    engine.dispose()


def phase(name: str, edge: str, t: float) -> Line:
    return {"type": "phase", "name": name, "edge": edge, "t": t}


def training(n: int, told_s: float, passed_s: float, every: int = 1, **hello: Any) -> list[Line]:
    """The lines of `n` iterations that took `passed_s` each and were told as `told_s`, in a phase measure."""
    lines: list[Line] = [{"type": "hello", "v": 1, "t": 0.5, **hello}, phase("measure", "begin", 1.0)]
    for k in range(1, n + 1):
        i = k * every
        lines.append({"type": "iter", "t": 1 + i * passed_s, "i": i, "dur_s": told_s, "synced": True})
    return [*lines, phase("measure", "end", 1 + n * every * passed_s)]


def taints(case: Case, layout: Layout, lines: list[Line], real_s: float, steps: int = 1) -> dict[str, str]:
    """Return the taints of a run that wrote these lines, read in so many steps by as many workers."""
    size = -(-len(lines) // steps)
    for at in range(0, len(lines), size):
        with case.folder.events.open("a") as stream:
            stream.write("".join(json.dumps(line) + "\n" for line in lines[at : at + size]))
        case.ingest().step()
    exit_ = RunEnd(exit_code=0, real_s=real_s)
    finish.finish(case.engine, case.run, case.folder, Ending(Outcome.SUCCEEDED, 0), exit_)
    with read.reading(layout.db) as connection:
        found = named_rows.detail(connection, "taints", case.run.run_id)
    return {taint["kind"]: taint["detail"] for taint in found}


@pytest.mark.parametrize("steps", [1, 7])
def test_100_iterations_of_50_ms_told_as_1_ms_are_not_believed(case: Case, layout: Layout, steps: int) -> None:
    found = taints(case, layout, training(100, 0.001, 0.05), 7.0, steps)
    assert found["wrong_clock"] == (
        "99 measured iterations reported 1.000 ms on average, but 50.00 ms passed between their lines"
    )


def test_15_s_of_iterations_within_5_s_are_not_believed(case: Case, layout: Layout) -> None:
    found = taints(case, layout, training(100, 0.15, 0.05), 6.3)
    assert found["wrong_clock"] == "the 100 iterations add up to 15.0 s, but the whole run took 6.30 s"


def test_iterations_longer_than_their_phase_are_not_believed(case: Case, layout: Layout) -> None:
    found = taints(case, layout, training(100, 0.06, 0.05), 20.0)
    assert "add up to 6.00 s, but the phases that iterations run in lasted 5.00 s" in found["wrong_clock"]


@pytest.mark.parametrize("share", [0.45, 0.6, 2.0])
def test_a_wrong_unit_of_time_is_found(case: Case, layout: Layout, share: float) -> None:
    assert "wrong_clock" in taints(case, layout, training(100, 0.02 * share, 0.02), 4.5)


def test_some_iterations_that_end_early_are_found(case: Case, layout: Layout) -> None:
    """40 % of the iterations report 1 ms: most of them are right, and the median nearly."""
    lines = [{**line, "dur_s": 0.001} if line.get("i", 0) % 5 > 2 else line for line in training(100, 0.02, 0.02)]
    assert "wrong_clock" in taints(case, layout, lines, 4.5)


@pytest.mark.parametrize(
    "lines",
    [
        training(100, 0.0495, 0.05),
        training(100, 0.0475, 0.05),  # 5 % goes into logging
        training(100, 0.0002, 0.0005),  # a line takes as long as the iteration
        training(20, 0.05, 0.05, every=10),  # every tenth is logged
        training(100, 0.001, 0.05, dur_is="mean"),  # of a micro-benchmark's sample
        training(4, 0.001, 0.05),  # too few to say
        [
            {**line, "t": 9.0} if line["type"] == "iter" else line for line in training(100, 0.05, 0.05)
        ],  # all at the end
    ],
    ids=["whole", "logging", "tiny", "every tenth", "mean", "few", "at once"],
)
def test_what_the_clock_does_not_contradict_is_believed(case: Case, layout: Layout, lines: list[Line]) -> None:
    assert "wrong_clock" not in taints(case, layout, lines, 12.0)


def test_evaluations_between_iterations_are_not_missing_time(case: Case, layout: Layout) -> None:
    lines: list[Line] = []
    for line in training(40, 0.05, 0.5):
        lines.append(line)
        t = line["t"]
        if line["type"] == "iter" or line.get("edge") == "begin":
            lines += [phase("eval", "begin", t + 0.002), phase("eval", "end", t + 0.448)]
    assert "wrong_clock" not in taints(case, layout, lines, 25.0)


def test_whether_the_clock_waited_is_unknown_unless_said(case: Case, layout: Layout) -> None:
    lines = [{k: v for k, v in line.items() if k != "synced"} for line in training(20, 0.05, 0.05)]
    found = taints(case, layout, lines, 3.0)
    assert "sync_unknown" in found and "unsynced" not in found
    with read.reading(layout.db) as connection:
        assert {row["synced"] for row in connection.execute("SELECT synced FROM v_iteration")} == {None}


def test_a_dropped_field_of_hello_is_told_and_the_others_are_kept(case: Case, layout: Layout) -> None:
    lines = training(20, 0.05, 0.05, workload="mine", params={"a": 1})
    found = taints(case, layout, [*lines, lines[0]], 3.0, steps=3)
    assert found["field_dropped"] == "ignored in the trainer's report: hello: params: expected int | null, got object"
    with read.reading(layout.db) as connection:
        (row,) = named_rows.runs(connection)
        texts = [note["text"] for note in named_rows.detail(connection, "notes", case.run.run_id)]
    assert (row["workload"], row["params"], row["valid"]) == ("mine", None, 1)
    assert texts.count("hello: params: expected int | null, got object") == 1


def test_what_measured_iterations_compiled_is_told(case: Case, layout: Layout) -> None:
    compiled: list[Line] = [
        {"type": "metric", "t": 2.0, "name": "recompilations", "value": 2, "i": 7},
        {"type": "metric", "t": 2.0, "name": "graph_breaks", "value": 1, "i": 7},
        {"type": "metric", "t": 2.1, "name": "recompilations", "value": 1, "i": 12},
    ]
    found = taints(case, layout, [*training(20, 0.05, 0.05), *compiled], 3.0)
    assert found["recompiled"] == ("2 of 20 measured iterations compiled again (first: 7): 3 graphs, 1 graph break")
