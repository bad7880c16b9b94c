"""Notes that hold for every submission are shown once a day, warnings about one submission every time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from queue_runner.host import once_a_day
from queue_runner.host.once_a_day import RepeatedNote, new
from queue_runner.paths import Layout
from tests.cli_support import Cli, use_toy_workloads

pytestmark = pytest.mark.fast

NO_PARSER = "add --parser"


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    layout = Layout(tmp_path / "home")
    layout.cache.mkdir(parents=True)
    return layout


def test_a_repeated_note_is_shown_again_when_it_changes_or_after_a_day(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = ["of this one", RepeatedNote("of all")]
    assert new(layout, notes) == notes
    assert new(layout, notes) == ["of this one"]
    assert new(layout, [RepeatedNote("of all, changed")]) == ["of all, changed"]
    monkeypatch.setattr(once_a_day, "EVERY_S", 0.0)
    assert new(layout, notes) == notes
    assert len(json.loads(layout.shown_notes.read_text())) == 1  # what is old was forgotten


@pytest.mark.parametrize("broken", ["", "[1]", '{"a": "b"}', '{"a": null}'])
def test_a_broken_record_costs_a_repetition_only(layout: Layout, broken: str) -> None:
    layout.shown_notes.write_text(broken)
    assert new(layout, [RepeatedNote("of all")]) == ["of all"]
    assert new(layout, [RepeatedNote("of all")]) == []


def test_without_a_place_for_the_record_a_note_is_shown_every_time(tmp_path: Path) -> None:
    nowhere = Layout(tmp_path / "nowhere")
    assert [new(nowhere, [RepeatedNote("of all")]) for _ in range(2)] == [["of all"]] * 2


def test_submit_shows_a_repeated_note_once_and_a_warning_every_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MPSQ_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("sys.platform", "linux")
    use_toy_workloads(tmp_path / "jobs", monkeypatch)
    run = Cli(capsys)
    command = ("submit", "--cwd", tmp_path, "--device", "mps", "--", "true")
    first, second, program = run.ok(*command), run.ok(*command), run.ok("submit", "--json", *command[1:])
    assert NO_PARSER in first.err and NO_PARSER not in second.err
    where = "folder's code changes"
    assert where in first.err and where not in second.err
    assert all("Apple silicon only" in result.err for result in (first, second, program))
    assert NO_PARSER in program.err  # with --json every note is printed
    assert NO_PARSER in run.ok("submit", "--dry-run", *command[1:]).err
