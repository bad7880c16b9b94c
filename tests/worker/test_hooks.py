"""Calls of hooks in the store, what a hook is told, and one process: its limit, its output, what it leaves."""

from __future__ import annotations

import os
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from queue_runner import redact
from queue_runner.config import Config
from queue_runner.doctor import queue_checks
from queue_runner.host import processes
from queue_runner.model import DEFAULT_LANE, Condition, Ending, Outcome, State, Verb
from queue_runner.paths import Layout
from queue_runner.spec import NewJob, Terms
from queue_runner.store import hook_calls, jobs, read
from queue_runner.store.engine import Engine, open_engine, writing
from queue_runner.store.hook_calls import Call, Orders
from queue_runner.worker import hook_process, hooks
from tests.cli_support import SPEC, Cli, empty_queue, full_queue

pytestmark = pytest.mark.process

ALL = Orders("d", "f", "i", frozenset({"done", "idle"}))


@pytest.fixture
def queue(home: Path) -> Layout:
    return full_queue(home)


def calls(layout: Layout) -> list[tuple[str, str | None, str, str]]:
    with read.reading(layout.db) as connection:
        return [(r["kind"], r["run"], r["command"], r["state"]) for r in read.hook_calls(connection)]


def run_id(connection: Any) -> int:
    found = jobs.running(connection, DEFAULT_LANE)
    assert found is not None
    return found.run_id


# -- the store ------------------------------------------------------------------------------------------------------


def test_what_each_ending_orders(queue: Layout) -> None:
    engine = open_engine(queue.db)
    with writing(engine) as connection:
        hook_calls.note_end(connection, run_id(connection), Outcome.SUCCEEDED, ALL)
        hook_calls.note_end(connection, run_id(connection), Outcome.LOST, ALL)
        hook_calls.note_end(connection, run_id(connection), Outcome.CANCELLED, ALL)
        hook_calls.note_end(connection, run_id(connection), Outcome.FAILED, Orders())
    engine.dispose()
    assert calls(queue) == [
        ("done", "4.1", "d", "pending"),
        ("notify", "4.1", "done", "pending"),
        ("failed", "4.1", "f", "pending"),
    ]


def test_idle_is_when_nothing_is_left(queue: Layout) -> None:
    engine = open_engine(queue.db)
    with writing(engine) as connection:
        run = run_id(connection)
        jobs.move(connection, run, Verb.FINISH, actor="worker", ending=Ending(Outcome.CANCELLED), ended_at=1.0)
        hook_calls.note_end(connection, run, Outcome.CANCELLED, ALL)
        waiting = [row["run_id"] for row in _rows(queue) if row["state"] == State.QUEUED]
        jobs.request_cancel(connection, waiting[:1], "user")
        hook_calls.note_idle(connection, ALL)
    assert calls(queue) == []
    with writing(engine) as connection:
        jobs.move(connection, waiting[1], Verb.HOLD, actor="user")
        hook_calls.note_idle(connection, ALL)
    engine.dispose()
    assert calls(queue) == [("idle", None, "i", "pending"), ("notify", None, "idle", "pending")]


def test_idle_is_when_all_that_is_left_waits_for_a_held_run(home: Path) -> None:
    layout = empty_queue(home)
    engine = open_engine(layout.db)
    with writing(engine) as connection:
        jobs.submit(connection, "t", 0, [NewJob(SPEC, terms=Terms(hold=True))], [(0, 1)])
        jobs.submit(connection, "t", 0, [NewJob(SPEC, terms=Terms(after=((1, Condition.ANY),)))], [(0, 1)])
        hook_calls.note_idle(connection, ALL)
    engine.dispose()
    assert calls(layout)[:1] == [("idle", None, "i", "pending")]


def _rows(layout: Layout) -> list[read.Row]:
    with read.reading(layout.db) as connection:
        return read.runs(connection)


def test_a_call_is_taken_once(queue: Layout) -> None:
    engine = open_engine(queue.db)
    with writing(engine) as connection:
        hook_calls.note_end(connection, run_id(connection), Outcome.FAILED, ALL)
        first = hook_calls.first_pending(connection, 0)
        assert first is not None
        assert hook_calls.take(connection, first) == Call(first, "failed", run_id(connection), "f")
        assert hook_calls.take(connection, first) is None and hook_calls.running(connection) == [first]
        hook_calls.end(connection, first, "ok", exit_code=0, dur_s=0.5, output="")
        hook_calls.end(connection, first, "lost", exit_code=None, dur_s=None, output="")  # too late
        assert hook_calls.first_pending(connection, 0) is None
    engine.dispose()
    assert calls(queue) == [("failed", "4.1", "f", "ok")]


def test_a_secret_of_a_hook_is_in_the_settings_alone(queue: Layout, tmp_path: Path) -> None:
    """It was in the database and its backups, and in what mpsq show prints."""
    line = f"echo ghp_0123456789abcdefgh >> {tmp_path}/called"
    engine = open_engine(queue.db)
    for said, output in ((line, ""), (line.replace("abcdef", "ijklmn"), ""), ("true", "another command")):
        with writing(engine) as connection:
            hook_calls.note_end(connection, run_id(connection), Outcome.SUCCEEDED, Orders(done=line))
        hooks.Hooks(queue, Config(hook_done=said), engine, lambda _: None).step()
        with read.reading(queue.db) as connection:
            call = read.hook_calls(connection)[-1]
        assert call["command"] == line.replace("ghp_0123456789abcdefgh", redact.HIDDEN) and output in (
            call["output"] or ""
        )
        assert call["state"] == ("failed" if output else "ok")
    assert (tmp_path / "called").read_text() == "ghp_0123456789abcdefgh\nghp_0123456789ijklmngh\n"


def test_orders_of_the_settings() -> None:
    assert hooks.orders(Config()) == Orders()
    assert hooks.orders(Config(notify="done, failed idle")).notify == {"done", "failed", "idle"}


# -- what it is told ------------------------------------------------------------------------------------------------


def test_texts_of_a_job_are_one_harmless_line(queue: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPSQ_TAG", "of somebody else")
    monkeypatch.setenv("MPSQ_STOP_AT", "nowhere")
    row = {row["run"]: row for row in _rows(queue)}["2.1"] | {"reason": "a\x1b[31m\nb\x00c" + "x" * 9999, "tags": None}
    told = hooks.environment(queue, Call(1, "failed", 3, "f"), row, "tag")
    assert told["MPSQ_REASON"].startswith("a bcx") and len(told["MPSQ_REASON"]) == 4096
    assert (told["MPSQ_RUN"], told["MPSQ_JOB"], told["MPSQ_GROUP"]) == ("2.1", "2", "g1")
    assert (told["MPSQ_OUTCOME"], told["MPSQ_EXIT_CODE"], told["MPSQ_HOOK"]) == ("FAILED", "3", "failed")
    assert told["MPSQ_TAG"] == "tag" and "MPSQ_STOP_AT" not in told and "MPSQ_SIGNAL" not in told
    assert told["PATH"] == os.environ["PATH"] and told["MPSQ_TAINTS"] == "contended" and told["MPSQ_TAGS"] == ""
    idle = hooks.environment(queue, Call(1, "notify", None, "idle"), None, "tag")
    assert idle["MPSQ_HOOK"] == "idle" and "MPSQ_RUN" not in idle


def test_every_variable_is_documented(queue: Layout) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "hooks.md").read_text()
    row = {name: "x" for name in _rows(queue)[0]}
    told = hooks.environment(queue, Call(1, "failed", 3, "f"), row, "tag")
    assert all(name in page for name in told if name.startswith("MPSQ_") and name not in ("MPSQ_TAG", "MPSQ_LOCKS"))


# -- one process ----------------------------------------------------------------------------------------------------


TAG = uuid.uuid4().hex
"""Of this test process: another one that runs these tests beside it must not end what this one has started."""


def run(script: str, timeout_s: float = 10.0, stop: threading.Event | None = None, **env: str) -> hook_process.Ended:
    return hook_process.run(
        ["/bin/sh", "-c", script],
        {"PATH": os.environ["PATH"], "MPSQ_TAG": TAG, **env},
        cwd="/",
        timeout_s=timeout_s,
        stop=stop or threading.Event(),
        started=lambda pid: None,
    )


def test_its_end_and_its_output() -> None:
    ended = run("echo out; echo err >&2; exit 3")
    assert (ended.state, ended.exit_code, ended.output) == ("failed", 3, "out\nerr")
    assert run("cat; pwd").output == "/" and run("true").state == "ok"
    assert run("kill -9 $$").exit_code == -9


def test_output_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook_process, "_SLOW_S", 0.0)
    ended = run("yes 123456789 | head -c 3000000; echo end")
    assert ended.state == "ok" and len(ended.output) <= 8200
    assert ended.output.startswith("[...]\n123456789\n") and ended.output.endswith("end")


def test_what_it_leaves_in_the_background_is_ended(tmp_path: Path) -> None:
    ended = run(f"(sleep 60 & echo $! > {tmp_path}/pid) ; exit 0")
    assert ended.state == "ok" and "1 process behind" in ended.output
    assert not processes.find_orphans(processes.Traces(tag=TAG))


def test_a_worker_that_stops_ends_it_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook_process, "STOP_GRACE_S", 0.1)
    stop = threading.Event()
    threading.Timer(0.1, stop.set).start()
    began = time.monotonic()
    ended = run("sleep 60", stop=stop)
    assert ended.state == "lost" and "the worker was stopped" in ended.output and time.monotonic() - began < 5.0


def test_what_cannot_be_started() -> None:
    ended = hook_process.run(
        ["/no/such/program"], {"MPSQ_TAG": "f"}, cwd="/", timeout_s=1.0, stop=threading.Event(), started=lambda _: None
    )
    assert (ended.state, ended.exit_code, ended.missing) == ("failed", None, True)


# -- where they are seen --------------------------------------------------------------------------------------------


def test_show_and_status(queue: Layout, capsys: pytest.CaptureFixture[str]) -> None:
    engine: Engine = open_engine(queue.db)
    with writing(engine) as connection:
        for _ in range(2):
            hook_calls.note_end(connection, run_id(connection), Outcome.FAILED, ALL)
        first = hook_calls.first_pending(connection, 0)
        assert first is not None
        hook_calls.take(connection, first)
        hook_calls.end(
            connection, first, "failed", exit_code=7, dur_s=0.5, output="one\ntwo \x1b[31mred\nthree\nfour " * 3
        )
    engine.dispose()
    mpsq = Cli(capsys)
    status = mpsq.ok("status").out
    assert "1 pending" in status and "after run 4.1, hook_failed: its command failed with exit code 7" in status
    shown = mpsq.ok("show", "4.1").out
    assert "hook_failed: its command failed with exit code 7 after 500 ms" in shown
    assert "hook_failed: pending: f" in shown and "\x1b" not in shown
    assert mpsq.ok("show", "4.1", "--json").json()["runs"][0]["hooks"][0]["exit_code"] == 7


@pytest.mark.parametrize(
    ("line", "missing"),
    [
        ("no-such-program-xyz arg", "no-such-program-xyz"),
        ("/no/such/program", "/no/such/program"),
        ("echo hello", None),
        ("cd / && ls", None),
        ("X=1 whatever", None),
        ("'unbalanced", None),
        ("", None),
    ],
)
def test_doctor_looks_for_their_programs(home: Path, line: str, missing: str | None) -> None:
    layout = empty_queue(home)
    layout.config.write_text(f'hook_failed = "{line}"\n')
    (found,) = list(queue_checks.hooks(layout))
    assert (missing in found.finding and found.verdict == "warn") if missing else found.verdict == "ok"


def test_doctor_looks_for_the_desktop(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = empty_queue(home)
    layout.config.write_text('notify = "failed"\n')
    monkeypatch.setenv("PATH", str(home))
    assert [found.verdict for found in queue_checks.hooks(layout)] == ["ok", "warn"]


@pytest.mark.parametrize("value", ["on", "done;failed", "off,done", "", "done failed idle always"])
def test_what_notify_does_not_take(value: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ran = Cli(capsys)("config", "set", "notify", value)
    assert ran.code == 2 and "off, or a comma-separated list of done, failed, idle" in ran.err
    assert Cli(capsys)("config", "set", "hook_done", "two\nlines").code == 2
