"""mpsq report trend: the steps of each row over weeks, what changed at them, and how it ends."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.cli.main import main
from queue_runner.errors import UsageError
from queue_runner.reports._common import printing
from queue_runner.reports._common.document import Result
from queue_runner.reports.trend import TrendRow, TrendStep
from tests.reports.report_fixture import Store

DAY_S = 86_400.0
pytestmark = pytest.mark.fast


class Nights(Store):
    """A store with a submission of two runs each night."""

    def night(self, k: int, median_s: float, device: str = "mps", **more: object) -> None:
        for noise in (0.998, 1.002):
            self.run(device, median_s=median_s * noise, group=k + 1, ended_at=1.7e9 + k * DAY_S, **more)  # type: ignore[arg-type]

    def nights(self, of_night: Callable[[int], float], n: int = 20, **more: object) -> None:
        rng = random.Random(5)
        for k in range(n):
            system = {"os": "macOS", "os_version": "26.1" if k < 12 else "26.2"}
            version = "2.12.0" if k < 5 else "2.13.0"
            software = {"versions": {"torch": version}, "system": system}
            self.night(k, of_night(k) * math.exp(rng.gauss(0, 0.01)), software=software, version=version, **more)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Nights]:
    made = Nights(tmp_path / "home")
    yield made
    made.db.close()


def row(result: Result) -> dict[str, object]:
    (only,) = result.rows
    return only


def test_a_step_has_its_size_its_place_and_what_changed_there(store: Nights) -> None:
    store.nights(lambda k: 0.1 if k < 12 else 0.106)
    result = store.report("trend")
    (step,) = row(result)["steps"]  # type: ignore[misc]
    assert step["since"] == "g13" and step["low"] < 0.06 < step["high"]
    assert step["changes"] == ["macOS 26.1 -> 26.2"]
    assert result.exit_code == 1 and row(result)["n_points"] == 20
    text = printing.as_text("trend", result, "table")
    assert "slower" in text and "macOS 26.1 -> 26.2" in text and "torch" not in text
    assert "2.12.0 -> 2.13.0" in str(row(result)["points"])


def test_only_a_newest_step_to_the_worse_fails(store: Nights) -> None:
    store.nights(lambda k: 0.1 if k < 6 else 0.11 if k < 14 else 0.1)
    result = store.report("trend")
    assert [step["change"] > 0 for step in row(result)["steps"]] == [True, False]  # type: ignore[attr-defined]
    assert result.exit_code == 0


def test_an_even_history_has_no_step(store: Nights) -> None:
    store.nights(lambda k: 0.1)
    result = store.report("trend")
    assert row(result)["steps"] == [] and result.exit_code == 0
    assert result.lines[0].startswith("no step in 1 ")


def test_a_few_points_say_what_adds_more(store: Nights) -> None:
    store.nights(lambda k: 0.1, n=4)
    result = store.report("trend")
    assert result.items == [] and "mpsq schedule add" in result.lines[0] and result.exit_code == 0


def test_rows_are_labelled_by_their_settings(store: Nights) -> None:
    for batch in (8, 16):
        store.nights(lambda k: 0.1, n=9, params={"batch_size": batch})
    labels = [str(row["label"]).split()[-1] for row in store.report("trend").rows]
    assert labels == ["batch_size=8", "batch_size=16"]


def test_steps_of_the_wall_time_of_a_command_and_of_a_metric(store: Nights) -> None:
    for k in range(16):
        loss = 2.0 + 0.003 * (k % 3) + (0.5 if k >= 10 else 0)
        store.night(k, 0.1, summary={"val_loss_last": loss}, exit={"real_s": 30.0 + k % 3 + (9 if k >= 8 else 0)})
        times = {"real_s": 30.0 + 0.1 * (k % 3) + (9 if k >= 8 else 0)}
        store.run(None, None, None, workload=None, framework=None, argv=["a.py"], group=k + 1, exit=times,
                  ended_at=1.7e9 + k * DAY_S, name="a.py")  # fmt: skip
    by_label = {row["label"]: row for row in store.report("trend").rows}
    command = next(row for label, row in by_label.items() if "a.py" in str(label))
    assert command["time_of"] == "run" and [step["since"] for step in command["steps"]] == ["g9"]
    result = store.report("trend", by="val_loss")
    (step,) = row(result)["steps"]  # type: ignore[misc]
    assert step["since"] == "g11" and step["change"] == pytest.approx(0.5, abs=0.01) and result.exit_code == 1
    assert "higher" in result.lines[0]


def test_a_clock_that_cannot_be_trusted_is_in_no_history(store: Nights) -> None:
    """The iterations claim to be faster from the ninth night on; their phase took as long as before."""
    for k in range(16):
        taints = {"wrong_clock": ("caveat", "the detail")} if k >= 8 else {}
        summary = {"measure_s": 10.0 + k % 3 / 100, "n_measure": 100}
        store.night(k, 0.1 if k < 8 else 0.01, summary=summary, taints=taints)
    result = store.report("trend")
    assert row(result)["time_of"] == "phase" and not row(result)["steps"]
    assert row(result)["value"] == pytest.approx(0.1, rel=0.01)
    assert any("doubtful" in line for line in result.lines)
    store.db.execute("UPDATE summaries SET measure_s = NULL")
    assert row(store.report("trend"))["time_of"] == "run" and row(store.report("trend"))["value"] == pytest.approx(30)


@pytest.mark.parametrize(
    ("ends", "text"),
    [((0.1, 0.4), "25 % slower (10 % to 40 %)"), ((-0.1, 0.4), "25 % slower (-10 % to 40 %)")],
)
def test_an_interval_that_holds_no_change_shows_it(ends: tuple[float, float], text: str) -> None:
    low, high = ends
    places = {"since": "g4", "since_at": 0.0, "after": "g3", "before": "g4", "changes": []}
    newest = ReportedRun(run_id=1, run="1.1")
    row = TrendRow(label="", newest=newest, by="", time_of=None, points=[], steps=[], value=1.0)
    assert row.size(TrendStep(change=0.25, low=low, high=high, **places)) == text
    faster = row.size(TrendStep(change=-0.25, low=-high, high=-low, **places))
    assert faster == text.replace("slower", "faster")


def test_json_is_plain_and_bad_options_are_refused(store: Nights) -> None:
    store.nights(lambda k: 0.1, n=9)
    read = json.loads(printing.as_text("trend", store.report("trend"), "json"))
    assert len(read["rows"][0]["points"]) == 9 and read["rows"][0]["points"][5]["changes"]
    assert "|" in printing.as_text("trend", store.report("trend"), "md")
    with pytest.raises(UsageError):
        store.report("trend", vs="device=cpu")
    with pytest.raises(UsageError, match="no run has a metric"):
        store.report("trend", by="nothing")


def test_the_command_ends_with_the_answer(
    store: Nights, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MPSQ_HOME", str(store.layout.home))
    store.nights(lambda k: 0.1)
    assert main(["report", "trend"]) == 0
    store.nights(lambda k: 0.4 if k < 12 else 0.43, device="cpu")
    assert main(["report", "trend", "--format", "md"]) == 1
    assert "slower" in capsys.readouterr().out
    assert main(["report", "trend", "--json", "--where", "device=mps"]) == 0
    assert main(["report", "time", "--by", "loss"]) == 2
