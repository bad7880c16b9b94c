"""Schedules in a real store: what is due is submitted once, what cannot be submitted is said."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from queue_runner.cli.main import main
from queue_runner.errors import UsageError
from queue_runner.host import job_environments
from queue_runner.monitor import queue_status
from queue_runner.paths import Layout
from queue_runner.source import verify
from queue_runner.store import read
from queue_runner.store.engine import open_engine
from queue_runner.submit import plan, timetable
from queue_runner.worker import due
from queue_runner.worker.due import DueSchedules
from tests import named_rows
from tests.cli_support import Cli, empty_queue
from tests.process_support import is_there, needs_linux, until
from tests.submit_support import requested

pytestmark = pytest.mark.process

DAY_S = 86_400.0


@pytest.fixture
def layout(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return empty_queue(home)


@pytest.fixture
def mpsq(capsys: pytest.CaptureFixture[str], layout: Layout) -> Cli:
    return Cli(capsys)


def add(name: str = "nightly", *options: str, line: str = "0 2 * * *") -> None:
    words = [*options, "--", "/bin/sh", "-c", "exit 0"]
    assert main(["schedule", "add", line, "--name", name, "--timezone", "UTC", "--", *words]) == 0


def make_due(layout: Layout, late_s: float = 3 * DAY_S, name: str = "nightly") -> None:
    with sqlite3.connect(layout.db) as connection:
        connection.execute("UPDATE schedules SET next_at = ? WHERE name = ?", [time.time() - late_s, name])


def change(layout: Layout, assignments: str) -> None:
    """Change every stored schedule, as another version or a damaged disk might."""
    with sqlite3.connect(layout.db) as connection:
        connection.execute(f"UPDATE schedules SET {assignments}")


def work(layout: Layout, log: Callable[[str], None] = lambda _: None) -> None:
    engine = open_engine(layout.db, check=False)
    DueSchedules(layout, engine, log).submit(patience_s=60)
    engine.dispose()


def row(layout: Layout, name: str = "nightly") -> read.ScheduleRow:
    with read.reading(layout.db) as connection:
        return next(row for row in read.schedules(connection) if row.name == name)


@needs_linux
def test_a_folder_whose_name_is_not_utf8_is_refused(mpsq: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / os.fsdecode(b"p\xff")
    folder.mkdir()
    monkeypatch.chdir(folder)
    ran = mpsq("schedule", "add", "0 2 * * *", "--", "--", "true")
    assert ran.code == 2 and "not valid UTF-8" in ran.err


def submitted(layout: Layout) -> list[named_rows.Row]:
    with read.reading(layout.db) as connection:
        return named_rows.runs(connection)


def test_what_is_not_due_waits(layout: Layout) -> None:
    add()
    work(layout)
    assert submitted(layout) == []
    next_at = row(layout).next_at
    assert next_at is not None and 0 < next_at - time.time() <= DAY_S


def test_many_missed_times_are_made_up_for_once(layout: Layout) -> None:
    add("nightly", "--repeats", "2")
    make_due(layout)
    for _ in range(3):
        work(layout)
    runs, now = submitted(layout), row(layout)
    assert [(run["run"], run["schedule_id"]) for run in runs] == [("1.1", 1), ("1.2", 1)]
    assert now.next_at and now.last_at and now.next_at > time.time() >= now.last_at and now.last_group_id == 1
    with read.reading(layout.db) as connection:
        (event,) = named_rows.events(connection, 1)
        (group,) = connection.execute("SELECT title FROM groups")
    assert (event["actor"], event["verb"]) == ("schedule", "submit")
    assert group["title"] == "mpsq schedule nightly: --repeats 2 -- /bin/sh -c 'exit 0'"


def test_it_submits_with_what_was_there_when_it_was_added(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLAVOUR", "of then")
    monkeypatch.setenv("HF_TOKEN", "hunter2")
    add()
    monkeypatch.setenv("FLAVOUR", "of the worker")
    monkeypatch.chdir(tmp_path)
    make_due(layout)
    work(layout)
    with sqlite3.connect(layout.db) as connection:
        assert "hunter2" not in "\n".join(connection.iterdump())
    spec = json.loads(submitted(layout)[0]["spec_json"])
    assert job_environments.read(layout, spec["env_file"])["FLAVOUR"] == "of then" and spec["cwd"] == str(
        tmp_path / "work"
    )


def test_what_cannot_be_submitted_any_more_is_said_and_the_next_time_comes(
    layout: Layout, tmp_path: Path, mpsq: Cli
) -> None:
    add()
    with contextlib.chdir(tmp_path):
        add("other")
    (tmp_path / "work").rmdir()
    make_due(layout)
    make_due(layout, name="other")
    said: list[str] = []
    work(layout, said.append)
    assert "/work: No such" in str(row(layout).last_error) and (row(layout).next_at or 0) > time.time()
    assert [run["schedule_id"] for run in submitted(layout)] == [2]
    assert any("/work: No such" in line for line in said)
    for command in (["schedule", "list"], ["status"]):
        assert "nightly submitted nothing" in " ".join(mpsq.ok(*command).out.split())
    (tmp_path / "work").mkdir()
    make_due(layout)
    work(layout)
    assert row(layout).last_error is None


def test_a_broken_schedule_does_not_stop_the_worker(layout: Layout) -> None:
    add()
    make_due(layout)
    change(layout, "command_json = '[\"--from-the-future\"]'")
    work(layout)
    assert "from-the-future" in str(row(layout).last_error)
    change(layout, "timezone = 'Mars/Phobos', next_at = 1")
    work(layout)
    assert "Mars/Phobos" in str(row(layout).last_error) and row(layout).next_at is None
    change(layout, "last_at = 1, last_group_id = 1")
    assert main(["schedule", "list"]) == 0
    assert submitted(layout) == []


def test_a_submission_that_the_store_refuses_is_tried_again(layout: Layout) -> None:
    add()
    make_due(layout)
    before = row(layout).next_at
    with sqlite3.connect(layout.db) as connection:
        connection.execute("CREATE TRIGGER full BEFORE INSERT ON jobs BEGIN SELECT RAISE(ABORT, 'disk is full'); END")
    work(layout)
    assert submitted(layout) == [] and row(layout).next_at == before and "disk is full" in str(row(layout).last_error)
    with sqlite3.connect(layout.db) as connection:
        connection.execute("DROP TRIGGER full")
    work(layout)
    assert len(submitted(layout)) == 1 and row(layout).last_error is None


def test_a_schedule_that_is_removed_in_the_middle_submits_nothing(layout: Layout) -> None:
    add()
    make_due(layout)
    planned, due = plan.plan(requested(argv=("/usr/bin/true",))), timetable.due_time(layout, 1)
    timetable.remove(layout, "nightly")
    with pytest.raises(UsageError, match="no longer due"):
        plan.store(layout, planned, due)
    assert submitted(layout) == []


def test_one_time_is_answered_once(layout: Layout) -> None:
    add()
    make_due(layout)
    planned, due = plan.plan(requested(argv=("/usr/bin/true",))), timetable.due_time(layout, 1)
    plan.store(layout, planned, due)
    with pytest.raises(UsageError, match="no longer due"):
        plan.store(layout, planned, due)
    with pytest.raises(UsageError, match="not due"):
        timetable.due_time(layout, 1)
    assert len(submitted(layout)) == 1


def test_a_folder_that_does_not_answer_keeps_nobody(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker goes on meanwhile: what is read is in a child, and is given up in the end."""
    (tmp_path / "work" / ".git").mkdir()
    git = tmp_path / "bin" / "git"  # the stand-in waits for the answer to a privacy prompt
    git.parent.mkdir()
    git.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 60\n")
    git.chmod(0o755)
    monkeypatch.setenv("PATH", str(git.parent), prepend=os.pathsep)
    add()
    make_due(layout)
    engine = open_engine(layout.db, check=False)
    due = DueSchedules(layout, engine, lambda _: None)
    due.submit(patience_s=0)
    pid = int(until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), "git"))
    due.submit()
    assert due.is_submitting and row(layout).last_error is None
    due.close()  # the end of the worker
    until(lambda: not is_there(pid), "the end of git")
    monkeypatch.setattr(verify, "READ_S", 1.0)
    until(lambda: due.submit() or not due.is_submitting, "the end")
    assert submitted(layout) == []
    assert "not submitted within 1 s" in str(row(layout).last_error)
    engine.dispose()


def test_a_clock_that_was_wrong_for_a_while_stops_no_schedule(layout: Layout) -> None:
    """As of a machine whose clock is years ahead until it finds the network."""
    for name in ("nightly", "tomorrow", "paused", "broken"):
        add(name)
    assert main(["schedule", "pause", "paused"]) == 0
    soonest = row(layout).next_at
    with sqlite3.connect(layout.db) as connection:
        connection.execute("UPDATE schedules SET next_at = next_at + 86400 WHERE name = 'tomorrow'")
        connection.execute("UPDATE schedules SET next_at = 4e9 WHERE name IN ('nightly', 'broken')")
        connection.execute("UPDATE schedules SET timezone = 'Mars/Phobos' WHERE name = 'broken'")
    after = row(layout, "tomorrow").next_at
    engine = open_engine(layout.db, check=False)
    DueSchedules(layout, engine, lambda _: None).set_right(time.time())
    engine.dispose()
    assert row(layout).next_at == soonest and row(layout, "tomorrow").next_at == after
    assert row(layout, "paused").next_at is None


def test_the_worker_does_not_enter_its_folder(layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands for a folder on a network drive that is gone: whoever enters it waits in the kernel."""
    entered: list[object] = []

    class Started(subprocess.Popen[bytes]):
        def __init__(self, argv: list[str], *, cwd: str | None = None, **options: Any) -> None:
            entered.append(cwd)
            super().__init__(argv, cwd=cwd, **options)

    add()
    make_due(layout)
    monkeypatch.setattr(due.subprocess, "Popen", Started)
    work(layout)
    assert entered == ["/"] and json.loads(submitted(layout)[0]["spec_json"])["cwd"] == str(tmp_path / "work")


def test_an_interpreter_that_is_gone_is_named_and_the_next_time_comes(layout: Layout) -> None:
    add()
    make_due(layout)
    change(layout, "python = '/no/such/python'")
    work(layout)
    assert "/python: No such" in str(row(layout).last_error) and (row(layout).next_at or 0) > time.time()


def test_a_job_that_it_waits_for_and_that_is_gone(layout: Layout) -> None:
    plan.store(layout, plan.plan(requested(argv=("/usr/bin/true",))))
    add("nightly", "--after=1")
    make_due(layout)
    change(layout, "command_json = replace(command_json, '--after=1', '--after=77')")
    work(layout)
    assert "77" in str(row(layout).last_error) and len(submitted(layout)) == 1


def test_paused_and_resumed(layout: Layout, mpsq: Cli) -> None:
    add()
    make_due(layout)
    assert timetable.pause(layout, "1") == "nightly"
    work(layout)
    assert submitted(layout) == [] and "paused" in mpsq.ok("schedule", "list").out
    resumed = timetable.resume(layout, "nightly")
    assert resumed.name == "nightly" and resumed.next_at is not None and resumed.next_at > time.time()
    assert timetable.resume(layout, "nightly") == resumed
    work(layout)
    assert submitted(layout) == []


def test_relative_times_are_read_at_each_submission(layout: Layout) -> None:
    add("nightly", "--at", "+2h", "--deadline", "+9h")
    add("evening", "--at", "23:00")
    make_due(layout)
    work(layout)
    assert 7100 < submitted(layout)[0]["not_before_at"] - time.time() <= 7200


def test_names(layout: Layout, mpsq: Cli) -> None:
    for name in ("12", "", "a b", "-x", "a\n", "x" * 61):
        assert mpsq("schedule", "add", "@daily", f"--name={name}", "--", "--", "/bin/sh").code == 2
    assert mpsq.ok("schedule", "add", "@daily", "--", "--", "/bin/sh").out.startswith("sh: ")
    assert "already exists" in mpsq("schedule", "add", "@daily", "--name", "sh", "--", "--", "/bin/sh").err
    with pytest.raises(UsageError, match=r'no schedule "shh"') as caught:
        timetable.remove(layout, "shh")
    assert '"sh"' in caught.value.hint


def test_the_command_line_is_that_of_submit(mpsq: Cli, layout: Layout) -> None:
    line = [
        "--env",
        "MYTOKEN=x",
        "--parser",
        "nanogpt",
        "--device",
        "cpu",
        "--tag",
        "night",
        "--",
        "sh",
        "-c",
        "exit 3",
    ]
    said = mpsq.ok("schedule", "add", "0", "2", "*", "*", "mon-fri", "--timezone", "Europe/Berlin", "--", *line)
    assert said.out.startswith("sh: 1 run ") and said.out.endswith("(Europe/Berlin)\n")
    assert "no worker" in said.err
    make_due(layout, name="sh")
    work(layout)
    (run,) = submitted(layout)
    assert (run["device"], run["tags"]) == ("cpu", "night")
    spec = json.loads(run["spec_json"])
    assert spec["argv"] == ["sh", "-c", "exit 3"] and spec["env"]["MYTOKEN"] == spec["variables"]["MYTOKEN"] != "x"
    assert job_environments.read(layout, spec["env_file"])["MYTOKEN"] == "x"
    listed = mpsq.ok("schedule", "list").out
    assert "0 2 * * mon-fri" in listed and "g1 " in listed and "=x" not in listed and "MYTOKEN" in listed
    assert "by schedule sh" in mpsq.ok("why", "1").out
    assert "schedule     sh" in mpsq.ok("show", "1").out
    mpsq.ok("schedule", "remove", "sh")
    assert "number 1, removed since" in mpsq.ok("show", "1").out


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["0 2 * * *"], "needs a command line after --"),
        (["0 2 * * *", "--"], "needs a command line after --"),
        (["0 2 * * *", "--", "nanogtp"], "nanogtp"),
        (["0 2 * * *", "--", "nanogpt", "--device", "cup"], "cup"),
        (["0 2 * * *", "--", "nanogpt", "--nonsense"], "no such option"),
        (["0 2 * * *", "--", "--", "no-such-program"], "no-such-program"),
        (["0 2 * * *", "--", "nanogpt", "--json"], "no such option"),
        (["0 2 * * *", "--", "nanogpt", "--after", "12"], "12"),
        (["0 2 * *", "--", "nanogpt"], "4 fields"),
        (["0 2 * * *", "--timezone", "Mars", "--", "nanogpt"], "unknown time zone"),
    ],
)
def test_everything_is_checked_when_it_is_added(line: list[str], said: str, mpsq: Cli) -> None:
    ran = mpsq("schedule", "add", *line)
    assert ran.code == 2 and said in ran.err and "hint:" in ran.err
    assert json.loads(mpsq.ok("schedule", "list", "--json").out)["schedules"] == []


def test_the_next_time_is_that_of_the_zone_that_it_names(mpsq: Cli) -> None:
    for zone in ("Pacific/Kiritimati", "Pacific/Honolulu"):  # a day apart
        shown = mpsq.ok("schedule", "add", "30 2 * * *", "--timezone", zone, "--name", zone[8:], "--", "--", "sh").out
        assert shown.endswith(f"02:30 ({zone})\n")
        (line,) = (line for line in mpsq.ok("schedule", "list").out.splitlines() if zone in line)
        assert line.count("02:30") == 1
        mpsq.ok("schedule", "pause", zone[8:])
        assert mpsq.ok("schedule", "resume", zone[8:]).out.endswith(f"02:30 ({zone})\n")


def test_a_machine_whose_zone_has_no_name(mpsq: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tzlocal.get_localzone_name", lambda: None)
    add()
    assert "0 2 * * * (UTC)" in mpsq.ok("schedule", "list").out
    refused = mpsq("schedule", "add", "0 2 * * *", "--", "--", "sh")
    assert refused.code == 2 and "is not known" in refused.err and "--timezone" in refused.err


def test_status_tells_the_next_one(layout: Layout, mpsq: Cli) -> None:
    add()
    assert queue_status.read_status(layout).schedules[0].name == "nightly"
    assert "nightly submits jobs" in mpsq.ok("status").out
    make_due(layout)
    assert "when a worker" in mpsq.ok("status").out
    assert " due " in mpsq.ok("schedule", "list").out


@pytest.mark.parametrize("verb", ["remove", "pause", "resume"])
def test_without_a_queue(verb: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ran = Cli(capsys)("schedule", verb, "nightly")
    assert ran.code == 1 and "no queue here" in ran.err and not home.exists()
