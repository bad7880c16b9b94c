"""When hooks are called, their variables, and one call: its limit, its output, the processes that it leaves."""

from __future__ import annotations

import os
import signal
import threading
import uuid
from pathlib import Path

import pytest
from msgspec.structs import replace

from queue_runner.config_file import Config
from queue_runner.doctor import queue_checks
from queue_runner.host import processes
from queue_runner.model import DEFAULT_LANE, Condition, Ending, Outcome, State, Verb
from queue_runner.monitor import run_view
from queue_runner.monitor.run_view import RunView
from queue_runner.paths import Layout
from queue_runner.spec import NewJob, Terms, Until
from queue_runner.store import added_rounds, jobs, lane_claims, read, ready
from queue_runner.store.engine import open_engine, writing
from queue_runner.worker import hooks
from tests.cli_support import SPEC, Cli, empty_queue, full_queue
from tests.patience import UNTIL_S, patience
from tests.process_support import SETSID

pytestmark = pytest.mark.process


@pytest.fixture
def queue(home: Path) -> Layout:
    return full_queue(home)


class Caller:
    """Hooks that write each call into a file, and their log."""

    def __init__(self, layout: Layout, **settings: str) -> None:
        self.engine = open_engine(layout.db)
        self.log: list[str] = []
        self.stuck: list[int] = []
        self._calls = layout.home / "calls"
        write = f"echo $MPSQ_HOOK $MPSQ_RUN >> {self._calls}"
        commands = {"hook_done": write, "hook_failed": write, "hook_idle": write}
        config = Config(**{**commands, **settings})  # type: ignore[arg-type]
        self.hooks = hooks.Hooks(layout, config, self.engine, self.log.append, lambda: self.stuck)

    def end_run(self, outcome: Outcome) -> None:
        """End the run that is RUNNING."""
        with writing(self.engine) as connection:
            run = jobs.running(connection, DEFAULT_LANE)
            assert run is not None
            ending = Ending(outcome, 1 if outcome is Outcome.FAILED else None)
            jobs.move(connection, run.run_id, Verb.FINISH, actor="worker", ending=ending, ended_at=1.0)

    def calls(self) -> list[str]:
        """Return the calls of one step."""
        self._calls.unlink(missing_ok=True)
        self.hooks.step()
        return self._calls.read_text().splitlines() if self._calls.exists() else []


def _run(layout: Layout, name: str) -> RunView:
    with read.reading(layout.db) as connection:
        return {run.run: run for run in run_view.runs(connection)}[name]


# -- when they are called ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "calls"),
    [(Outcome.SUCCEEDED, ["done 4.1"]), (Outcome.LOST, ["failed 4.1"]), (Outcome.CANCELLED, [])],
)
def test_each_ending_is_called_once(queue: Layout, outcome: Outcome, calls: list[str]) -> None:
    caller = Caller(queue)
    assert not caller.hooks.busy()
    caller.end_run(outcome)
    assert caller.hooks.busy()
    assert caller.calls() == calls and not caller.hooks.busy()
    assert caller.calls() == []
    assert Caller(queue).calls() == [], "the next worker calls nothing that ended before it started"


def test_no_command_means_no_call(queue: Layout) -> None:
    caller = Caller(queue, hook_failed="")
    caller.end_run(Outcome.FAILED)
    assert caller.calls() == [] and caller.log == []


def test_idle_when_nothing_remains(queue: Layout) -> None:
    caller = Caller(queue)
    with read.reading(queue.db) as connection:
        waiting = [run.run_id for run in run_view.runs(connection) if run.state == State.QUEUED]
    with writing(caller.engine) as connection:
        jobs.request_cancel(connection, waiting[:1], "user")
        jobs.move(connection, waiting[1], Verb.HOLD, actor="user")
    assert caller.calls() == [], "a run is active"
    caller.end_run(Outcome.CANCELLED)
    assert caller.calls() == ["idle"]
    assert caller.calls() == []


def test_not_idle_while_a_run_waits(queue: Layout) -> None:
    caller = Caller(queue)
    caller.end_run(Outcome.SUCCEEDED)
    assert caller.calls() == ["done 4.1"]


def test_idle_once_the_worker_knows_what_waits_for_a_user(queue: Layout) -> None:
    """A call right after the end of a run comes before the worker's next look."""
    caller = Caller(queue)
    caller.end_run(Outcome.SUCCEEDED)
    assert caller.calls() == ["done 4.1"] and not caller.hooks.busy()
    with read.reading(queue.db) as connection:
        caller.stuck += {run.job_id for run in run_view.runs(connection)}
    assert caller.hooks.busy()
    assert caller.calls() == ["idle"] and not caller.hooks.busy()
    assert caller.calls() == []


def test_not_idle_while_a_round_follows(home: Path) -> None:
    engine = open_engine(empty_queue(home).db)
    with writing(engine) as connection:
        group, _ = jobs.submit(connection, "t", 0, [NewJob(SPEC)], [(0, 1)])
        added_rounds.open_until(connection, group, Until())
        jobs.request_cancel(connection, [1], "user")
        assert not ready.is_idle(connection)
        added_rounds.close(connection, group, "decided", 1.0)
        assert ready.is_idle(connection)


def test_idle_when_all_remaining_runs_wait_for_a_held_run(home: Path) -> None:
    engine = open_engine(empty_queue(home).db)
    with writing(engine) as connection:
        jobs.submit(connection, "t", 0, [NewJob(SPEC, terms=Terms(hold=True))], [(0, 1)])
        jobs.submit(connection, "t", 0, [NewJob(SPEC, terms=Terms(after=((1, Condition.ANY),)))], [(0, 1)])
        assert ready.is_idle(connection)


@pytest.mark.parametrize("lane", ["machine", "fast"])
def test_idle_when_all_remaining_runs_are_paused(home: Path, lane: str) -> None:
    engine = open_engine(empty_queue(home).db)
    with writing(engine) as connection:
        jobs.submit(connection, "t", 0, [NewJob(SPEC)], [(0, 1)])
        jobs.submit(connection, "t", 0, [NewJob(SPEC, terms=Terms(after=((1, Condition.ANY),)))], [(0, 1)])
        connection.change("UPDATE jobs SET lane = 'fast' WHERE id = 1", [])
        assert not ready.is_idle(connection)
        lane_claims.pause(connection, lane, "lunch")
        assert ready.is_idle(connection)
        lane_claims.pause(connection, lane, None)
        assert not ready.is_idle(connection)


def test_output_and_failure_are_logged_without_tokens(queue: Layout) -> None:
    caller = Caller(queue, hook_failed="echo one; printf '\\033[31mghp_0123456789abcdefgh\\n'; exit 7")
    caller.end_run(Outcome.FAILED)
    caller.hooks.step()
    name = "hook_failed after run 4.1"
    *output, end = caller.log
    assert output == [f"{name}: one", f"{name}: [hidden]"] and end.startswith(name) and end.endswith("exit code 7")


# -- variables --------------------------------------------------------------------------------------------------------


def test_texts_of_a_job_are_one_harmless_line(queue: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPSQ_TAG", "of somebody else")
    monkeypatch.setenv("MPSQ_STOP_AT", "nowhere")
    run = replace(_run(queue, "2.1"), reason="a\x1b[31m\nb\x00c" + "x" * 9999, tags=())
    variables = hooks.environment(queue, "failed", run)
    assert variables["MPSQ_REASON"].startswith("a bcx") and len(variables["MPSQ_REASON"]) == 4096
    assert (variables["MPSQ_RUN"], variables["MPSQ_JOB"], variables["MPSQ_GROUP"]) == ("2.1", "2", "g1")
    assert (variables["MPSQ_OUTCOME"], variables["MPSQ_EXIT_CODE"], variables["MPSQ_HOOK"]) == ("FAILED", "3", "failed")
    assert variables["MPSQ_TAG"] == hooks.tag_of(queue)
    assert "MPSQ_STOP_AT" not in variables and "MPSQ_SIGNAL" not in variables
    assert variables["PATH"] == os.environ["PATH"]
    assert variables["MPSQ_TAINTS"] == "contended" and variables["MPSQ_TAGS"] == ""
    idle = hooks.environment(queue, "idle", None)
    assert idle["MPSQ_HOOK"] == "idle" and "MPSQ_RUN" not in idle


def test_every_variable_is_documented(queue: Layout) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "hooks.md").read_text()
    variables = hooks.environment(queue, "failed", replace(_run(queue, "2.1"), signal=9, median_s=0.1, loss_last=1.0))
    names = [name for name in variables if name.startswith("MPSQ_") and name not in ("MPSQ_TAG", "MPSQ_LOCKS")]
    assert names and all(name in page for name in names)


# -- one process ------------------------------------------------------------------------------------------------------


TAG = uuid.uuid4().hex
"""The tag of this test process: another one that runs these tests must not end what this one has started."""


def run(script: str, stop: threading.Event | None = None) -> tuple[str, str]:
    env = {"PATH": os.environ["PATH"], "MPSQ_TAG": TAG, "MPSQ_HOME": "/"}
    return hooks.run(["/bin/sh", "-c", script], env, patience(UNTIL_S), stop or threading.Event())


def test_its_end_and_its_output() -> None:
    problem, output = run("echo out; echo err >&2; exit 3")
    assert problem.endswith("exit code 3") and output == "out\nerr"
    assert run("cat; pwd") == ("", "/") and run("true") == ("", "")
    assert run("kill -9 $$")[0].endswith(" -9")


def test_output_is_bounded() -> None:
    problem, output = run("yes 123456789 | head -c 3000000; echo end")
    assert not problem and len(output) <= 8200
    assert output.startswith("[...]\n123456789\n") and output.endswith("end")


def test_its_background_processes_are_ended(tmp_path: Path) -> None:
    problem, _ = run(f"(sleep 60 & echo $! > {tmp_path}/pid) ; exit 0")
    assert "1 process behind" in problem
    assert not processes.find_orphans(processes.Traces(tag=TAG))


def test_one_that_nothing_finds_and_that_keeps_its_output_open_delays_nothing(tmp_path: Path) -> None:
    leaves = f"env -i {SETSID} sh -c 'echo $$ > {tmp_path}/pid; exec sleep 600' &"
    try:
        problem, output = run(f"echo out; {leaves} while [ ! -s {tmp_path}/pid ]; do sleep 0.02; done")
        assert not problem and "keeps it open" in output
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


def test_a_worker_that_stops_ends_it_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "STOP_GRACE_S", 0.1)
    stop = threading.Event()
    threading.Timer(0.1, stop.set).start()
    problem, _ = run("sleep 6000", stop=stop)
    assert "worker was stopped" in problem, "and not at its limit"


def test_a_program_that_cannot_be_started() -> None:
    env = {"MPSQ_TAG": "f", "MPSQ_HOME": "/"}
    problem, output = hooks.run(["/no/such/program"], env, 1.0, threading.Event())
    assert "not be started" in problem and output == ""


# -- settings ------------------------------------------------------------------------------------------------------


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


def test_a_command_of_two_lines_is_refused(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert Cli(capsys)("config", "set", "hook_done", "two\nlines").code == 2
