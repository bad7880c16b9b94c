"""A run that has ended while no worker lives is shown with its end, which the next worker stores."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from queue_runner.host import locks
from queue_runner.host.run_dir import RunDir
from queue_runner.host.warden_records import RunEnd
from queue_runner.paths import Layout
from tests.cli_support import Cli, full_queue


@pytest.fixture
def layout(home: Path) -> Layout:
    """A queue without a worker, whose run 4.1 has ended."""
    layout = full_queue(home)
    folder = RunDir(layout.run_dir("4.1"))
    (folder.path / "warden/exit.json").write_text(RunEnd(exit_code=3, real_s=6.5, ended_at=2e9).to_json())
    folder.stderr.write_text("Traceback (most recent call last):\nValueError: no data\n")
    return layout


@pytest.mark.parametrize("command", ["list", "show", "why", "status"])
def test_an_end_without_a_worker_is_shown(layout: Layout, mpsq: Cli, command: str) -> None:
    text = mpsq.ok(command, *([] if command == "status" else ["4"])).out
    if command == "why":
        assert all(x in text for x in ("has ended", "exit code 3", " 6.50 s", "ValueError: no data", "next worker"))
    else:
        assert "FAILED(3) (unsaved)" in text
    assert "RUNNING" not in text.replace("claim -> RUNNING", "")


def test_who_waits_for_it_learns_that_a_worker_is_missing(layout: Layout, mpsq: Cli) -> None:
    """Its error was that the run had not ended."""
    waits = mpsq("wait", "4", "--timeout", "1ms").err
    assert all(x in waits for x in ("4.1 has ended", "no worker is", "mpsq worker"))


def test_json_has_its_outcome_and_no_end_is_expected(layout: Layout, mpsq: Cli) -> None:
    run = mpsq.ok("show", "4.1", "--json").json()["runs"][0]["run"]
    assert (run["state"], run["outcome"], run["exit_code"], run["real_s"]) == ("RUNNING", "FAILED", 3, 6.5)
    status = mpsq.ok("status", "--json").json()
    assert status["running"] is None
    assert status["ended"][0]["run"] == "4.1"
    assert "4.1" not in [turn["run"] for turn in status["eta"]["turns"]]


@pytest.mark.parametrize("runs", [(), ("--runs",)])
def test_a_list_finds_it_by_its_end(layout: Layout, mpsq: Cli, runs: tuple[str, ...]) -> None:
    for state in ("failed", "done"):
        assert 4 in [job["job"] for job in mpsq.ok("list", "--state", state, "--json").json()["jobs"]]
        assert "(unsaved)" in mpsq.ok("list", "--state", state, *runs).out
    for state in ("running", "killed", "succeeded"):
        assert "4" not in mpsq("list", "--state", state, "4", *runs).out


def test_a_living_worker_stores_it_within_a_moment(layout: Layout, mpsq: Cli) -> None:
    lock = locks.try_lock(locks.worker_lock_path(layout.home))
    assert lock is not None
    try:
        assert mpsq.ok("show", "4.1", "--json").json()["runs"][0]["run"]["outcome"] is None
    finally:
        lock.close()


def test_a_record_that_no_warden_writes_is_none(layout: Layout, mpsq: Cli) -> None:
    (RunDir(layout.run_dir("4.1")).path / "warden/exit.json").write_text(json.dumps({"exit_code": "all is well"}))
    assert "RUNNING" in mpsq.ok("list", "4").out
