"""The queue from Python: the same verbs, words and errors as the command line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import get_type_hints

import pytest

import mpsq
from mpsq import Client, Group, MpsqError, UsageError, WaitTimeout
from queue_runner import client
from queue_runner.store.editing import Where
from queue_runner.submit.submit_options import OPTIONS, Kind
from tests.cli_support import full_queue, use_toy_workloads

pytestmark = pytest.mark.process


@pytest.fixture
def queue(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Client:
    use_toy_workloads(tmp_path / "jobs", monkeypatch)
    full_queue(home)
    return Client()


def test_a_grid_is_submitted_with_its_terms(queue: Client) -> None:
    group = queue.submit(
        "toy", device=["cpu", "mps"], set={"lr": [0.1, 0.2], "fused": False}, repeats=2, after=[(1, "any")], hold=True
    )
    assert isinstance(group, Group) and str(group) == "g3" and len(group.jobs) == 4
    runs = queue.runs(group)
    assert len(runs) == 8 and {run["state"] for run in runs} == {"HELD"}
    assert {(run["device"], run["sets"]["lr"], run["sets"]["fused"]) for run in runs} == {
        (device, lr, False) for device in ("cpu", "mps") for lr in (0.1, 0.2)
    }
    released = [change.run for change in queue.resume(group)]
    assert [run for run in released if not run.endswith(".0")] == [run["run"] for run in runs]  # .0: its preflight
    assert all(one.result == "cancelled" for one in queue.cancel(group))
    assert queue.wait(group) is False


def test_every_option_has_the_type_of_its_kind() -> None:
    types = {
        Kind.TEXT: str,
        Kind.DURATION: client.Time,
        Kind.LIST: client.Values,
        Kind.NUMBER: int,
        Kind.FLAG: bool,
        Kind.SWITCH: bool,
        Kind.WORDS: client.Words,
        Kind.PAIRS: client.Pairs,
    }
    others = ("workload", "command", "after")
    declared = {name: types[option.kind] for name, option in OPTIONS.items() if name not in others}
    assert get_type_hints(mpsq.SubmitOptions) == declared


def test_a_command_is_submitted(queue: Client) -> None:
    group = queue.submit(command=["true"], name="mine", priority=3, tags=["x"])
    (run,) = queue.runs(tag="x")
    assert (run["job_id"], run["name"], run["priority"]) == (group.jobs[0], "mine", 3)


def test_runs_are_chosen_as_on_the_command_line(queue: Client) -> None:
    assert [run["run"] for run in queue.runs("1.2", 3)] == ["1.2", "3.1"]
    assert [run["run"] for run in queue.runs("1.2", "g1")] == [run["run"] for run in queue.runs("g1")]
    assert {"1.2", "2.1"} == {run["run"] for run in queue.runs("1.2", "failed")}, "a name"
    assert [run["run"] for run in queue.runs(state="failed")] == ["2.1", "3.1"]
    assert len(queue.runs()) == 7
    assert len(queue.iterations("1.1")) == 20
    # Rows are called what --name says.
    report = queue.report("devices", "g1", include_invalid=True)
    assert [row["workload"] for row in report] == ["failed", "killed", "ok", "running"]
    night = queue.report("devices", tag="night", where="device=cpu", include_invalid=True)
    assert {row["workload"] for row in night} <= {"failed", "killed", "ok", "running"}
    assert queue.status().running is not None
    assert queue.why(2)[0].run == "2.1" and "it failed" in queue.why(2)[0].sentence


def test_order_and_second_tries(queue: Client) -> None:
    queue.move(6, where=Where.TOP)
    assert [run.run for run in queue.status().waiting] == ["6.1", "5.1"]
    assert queue.edit(6, note="why", priority=-1) == [6]
    assert [run.run for run in queue.status().waiting] == ["5.1", "6.1"]
    assert [one.new for one in queue.retry(2)] == ["2.2"]
    queue.pause()
    assert queue.status().queue.paused_at is not None
    queue.resume()
    assert queue.status().queue.paused_at is None


def test_what_is_asked_again_and_what_is_removed(queue: Client) -> None:
    group = queue.submit(command=["true"], set={}, repeats=2)
    queue.cancel(group)
    again = queue.rerun(group, repeats=1)
    (run,) = queue.runs(again)
    assert run["rerun_of"] == group.jobs[0]
    queue.delete(group)
    with pytest.raises(MpsqError, match="waits: nothing was deleted"):
        queue.delete(again, results=True)


def test_errors_are_sentences(queue: Client) -> None:
    with pytest.raises(UsageError, match="no job 99"):
        queue.runs(99)
    with pytest.raises(UsageError, match='no option "prioritty"') as error:
        queue.submit("toy", prioritty=3)
    assert "priority" in error.value.hint
    with pytest.raises(UsageError, match="no job 99"):
        queue.pause(99)
    with pytest.raises(WaitTimeout):
        queue.wait(4, timeout_s=0)
    with pytest.raises(MpsqError, match="no queue here yet"):
        Client("/nowhere").status()


def test_rows_become_a_frame(queue: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = queue.runs().to_pandas()
    assert frame.groupby("name")["median_s"].median()["ok"] == 0.02
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError, match="pandas is not installed"):
        queue.runs().to_pandas()
