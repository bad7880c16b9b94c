"""Notes that hold for every submission are said once a day; warnings about one submission each time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from queue_runner import standing
from queue_runner.paths import Layout
from queue_runner.standing import Standing, news
from tests.cli_support import Cli, use_toy_workloads

pytestmark = pytest.mark.fast

NO_PARSER = "no --parser"


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    found = Layout(tmp_path / "home")
    found.cache.mkdir(parents=True)
    return found


def test_a_standing_note_is_said_again_when_it_changes_or_a_day_has_passed(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = ["of this one", Standing("of all")]
    assert news(layout, notes) == notes
    assert news(layout, notes) == ["of this one"]
    assert news(layout, [Standing("of all, changed")]) == ["of all, changed"]
    monkeypatch.setattr(standing, "EVERY_S", 0.0)
    assert news(layout, notes) == notes
    assert len(json.loads(layout.said.read_text())) == 1  # what is old was forgotten


@pytest.mark.parametrize("broken", ["", "[1]", '{"a": "b"}', '{"a": null}'])
def test_a_broken_record_costs_a_repetition_only(layout: Layout, broken: str) -> None:
    layout.said.write_text(broken)
    assert news(layout, [Standing("of all")]) == ["of all"]
    assert news(layout, [Standing("of all")]) == []


def test_without_a_place_for_the_record_a_note_is_said_each_time(tmp_path: Path) -> None:
    nowhere = Layout(tmp_path / "nowhere")
    assert [news(nowhere, [Standing("of all")]) for _ in range(2)] == [["of all"]] * 2


def test_submit_says_a_standing_note_once_and_a_warning_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MPSQ_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("sys.platform", "linux")
    use_toy_workloads(tmp_path / "jobs", monkeypatch)
    run = Cli(capsys)
    command = ("submit", "--cwd", tmp_path, "--device", "mps", "--", "true")
    first, second, program = run.ok(*command), run.ok(*command), run.ok("submit", "--json", *command[1:])
    assert NO_PARSER in first.err and NO_PARSER not in second.err
    outside = "outside of a git repository"  # a line is broken where the folder's name ends it
    assert outside in " ".join(first.err.split()) and outside not in " ".join(second.err.split())
    assert all("mps exists on Apple silicon only" in one.err for one in (first, second, program))
    assert NO_PARSER in program.err  # a program is told all, each time
    assert NO_PARSER in run.ok("submit", "--dry-run", *command[1:]).err
