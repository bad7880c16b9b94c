"""mpsq run, with real workers: one is started where none is, followed to the end, and Ctrl-C ends the jobs."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import psutil
import pytest
import typer
from jsonschema import Draft202012Validator

from queue_runner.cli import run as run_command
from queue_runner.cli import typer_options
from queue_runner.client import Client
from queue_runner.host import locks
from queue_runner.host.low_priority import NICE
from queue_runner.monitor import listing, round_table
from queue_runner.monitor.awaiting import Awaited
from queue_runner.monitor.follow import Follower
from queue_runner.monitor.round_table import RoundTable
from queue_runner.paths import Layout
from queue_runner.store.read import reading
from queue_runner.submit import plan
from tests import forked_programs
from tests.cli_support import schemas
from tests.queue_support import Queue, until
from tests.store.test_many_processes import check_serial
from tests.submit_support import requested

pytestmark = pytest.mark.process


@pytest.fixture
def queue(layout: Layout, tmp_path: Path) -> Iterator[Queue]:
    queue = Queue(layout, tmp_path)
    yield queue
    lock = locks.worker_lock_path(layout.home)
    if locks.is_held(lock):  # a worker that `mpsq run` started and that still waits for something
        os.kill(int((locks.read_holder(lock) or {})["pid"]), signal.SIGTERM)
        until(lambda: not locks.is_held(lock), "the end of the worker")
    queue.close()


def run(queue: Queue, *arguments: str) -> forked_programs.Command:
    return queue.command("run", *arguments)


def workers(queue: Queue) -> list[str]:
    """The process ids of the workers that had this queue."""
    return re.findall(r"worker (\d+) on ", queue.layout.worker_log.read_text())


def test_it_just_works_where_no_worker_runs(queue: Queue) -> None:
    before = queue.submit("echo before >> $J")
    out, err = (process := run(queue, "--repeats", "2", "--", "sh", "-c", "echo out; echo err >&2")).communicate()
    assert process.returncode == 0, err
    assert out.startswith("out\nout\n") and "real " in out and "err" not in out
    assert err.count("err\n") == 2 and ": SUCCEEDED" in err and "started process" in err
    assert queue.written() == ["before"] and queue.rows()[0]["job_id"] == before
    until(lambda: not locks.is_held(locks.worker_lock_path(queue.layout.home)), "the end of its worker")
    assert len(workers(queue)) == 1


def test_a_failure_is_exit_3_and_json_is_one_object(queue: Queue) -> None:
    out, err = (process := run(queue, "--json", "--", "sh", "-c", "echo out; exit 7")).communicate()
    assert process.returncode == 3 and "out\n" in err and "did not succeed" in err
    said = json.loads(out)
    Draft202012Validator(schemas()["mpsq.run/1"]).validate(said)
    assert (said["schema"], said["ok"], said["runs"][0]["exit_code"]) == ("mpsq.run/1", False, 7)


def test_two_at_once_have_one_worker(queue: Queue) -> None:
    both = [run(queue, "--", "sh", "-c", "sleep 0.2") for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0], [process.communicate() for process in both]
    for process in both:
        process.communicate()
    check_serial(queue.rows())
    assert len(queue.rows()) == 2


def test_ctrl_c_ends_the_jobs(queue: Queue) -> None:
    process = run(queue, "--repeats", "2", "--", "sh", "-c", "echo begun; sleep 60")
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130 and "press Ctrl-C again" in err, err
    assert [row["outcome"] for row in queue.rows()] == ["CANCELLED", "CANCELLED"]
    assert "Traceback" not in err


def test_ctrl_c_prints_no_answer_of_another_command(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """mpsq contest try --json printed mpsq.run/1."""
    ends = iter([KeyboardInterrupt(), Awaited([])])

    def follow(_follower: Follower) -> Awaited:
        if isinstance(end := next(ends), KeyboardInterrupt):
            raise end
        return end

    monkeypatch.setattr(Follower, "follow", follow)
    planned = plan.plan(requested(argv=("true",), snapshot="off"))
    with pytest.raises(typer.Exit) as left:
        run_command.follow_to_the_end(
            queue.layout, lambda _: planned, verbose=False, json=True, finish=lambda *_: pytest.fail("no answer")
        )
    assert left.value.exit_code == 130 and capsys.readouterr().out == ""


def test_ctrl_c_twice_leaves_at_once(queue: Queue) -> None:
    """The job is deaf to SIGINT and SIGTERM: its warden ends it all the same, and somebody records it."""
    process = run(queue, "--", "sh", "-c", "trap '' INT TERM; echo begun; while :; do sleep 0.05; done")
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGINT)
    while "cancelling" not in (line := process.stderr.readline()):
        assert line
    process.send_signal(signal.SIGINT)
    process.communicate()
    assert process.returncode == 130
    assert queue.done()[0]["outcome"] == "CANCELLED"


def test_a_worker_that_dies_is_replaced(queue: Queue) -> None:
    worker = queue.worker()
    until(lambda: locks.is_held(locks.worker_lock_path(queue.layout.home)), "the worker")
    process = run(queue, "--", "sh", "-c", "echo begun; while [ ! -e go ]; do sleep 0.02; done")
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    worker.kill()
    worker.wait()
    (queue.folder / "go").touch()
    _, err = process.communicate()
    assert process.returncode == 0 and "process" in err and queue.rows()[0]["outcome"] == "SUCCEEDED", err


def test_a_worker_that_cannot_run_is_said(queue: Queue) -> None:
    queue.layout.config.write_text("nonsense = 1\n")
    _, err = (process := run(queue, "--", "true")).communicate()
    assert process.returncode == 1 and "nonsense" in err and "Traceback" not in err, err


def test_what_runs_is_not_nice_because_its_follower_is(queue: Queue) -> None:
    """Nor is what a second worker starts, when the first was killed in mid-run."""
    process = run(
        queue, "--repeats", "2", "--", "sh", "-c", "echo nice $(nice); while [ ! -e go ]; do sleep 0.02; done"
    )
    assert process.stdout is not None
    first = process.stdout.readline()
    assert psutil.Process(process.pid).nice() == min(os.nice(0) + NICE, 19)
    (worker,) = workers(queue)
    os.kill(int(worker), signal.SIGKILL)
    until(lambda: len(workers(queue)) == 2, "another worker")
    (queue.folder / "go").touch()
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert [first, out.splitlines(keepends=True)[0]] == [f"nice {os.nice(0)}\n"] * 2
    assert err.count("started process") == 2


def test_ctrl_c_shows_the_last_words_of_a_job(queue: Queue) -> None:
    script = "trap 'echo saved; exit 0' INT; echo begun; while :; do sleep 0.02; done"
    process = run(queue, "--", "sh", "-c", script)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert process.returncode == 130 and out == "saved\n", err
    assert err.count("--- run 1.1: sh") == 1 and "--- run 1.1: CANCELLED" in err


def test_it_waits_without_a_worker_for_what_only_a_hand_can_change(queue: Queue) -> None:
    """No worker comes and goes for a paused lane, nor for a job that waits for a held one."""
    held = queue.submit("true", hold=True)
    client = Client(queue.layout.home)
    client.pause()
    process = run(queue, "--after", str(held), "--", "echo", "out")
    assert process.stderr is not None
    while f"waits: job {held} must succeed first" not in (line := process.stderr.readline()):
        assert line
    client.resume()
    client.pause("2")
    while "run 2.1 is held" not in (line := process.stderr.readline()):
        assert line and "no worker" not in line
        assert not queue.layout.worker_log.read_bytes()
    client.resume("2", str(held))
    out, err = process.communicate()
    assert process.returncode == 0 and out.startswith("out\n"), err
    assert len(workers(queue)) == 1


def test_a_reader_that_leaves_lets_the_jobs_go_on(queue: Queue) -> None:
    process = run(queue, "--", "sh", "-c", "echo one; while [ ! -e go ]; do sleep 0.02; done")
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline() == "one\n"
    process.stdout.close()
    assert process.wait() == 141  # while the job says nothing
    err = process.stderr.read()
    assert "mpsq logs -f g1" in err and "Traceback" not in err
    (queue.folder / "go").touch()
    assert queue.done()[0]["outcome"] == "SUCCEEDED"


def test_what_never_starts_has_an_end_and_no_beginning(queue: Queue) -> None:
    failed = queue.submit("exit 1")
    _, err = (process := run(queue, "--after", str(failed), "--", "true")).communicate()
    assert process.returncode == 3, err
    (line,) = [line for line in err.splitlines() if line.startswith("--- ")]
    assert f"2.1: SKIPPED(dependency): job {failed} " in line


def test_a_number_in_the_output_is_an_answer(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["sh", "-c", "for i in 9 1; do echo loss $i.$((MPSQ_SEED * 7 % 10)); done; : {x}"]
    options = ["--no-gate", "--repeats", "3", "--set", "x=1,2", "--metric", r"loss=loss ([0-9.]+)"]
    out, err = (process := run(queue, *options, "--metric", r"absent=absent (\d)", "--", *command)).communicate()
    assert process.returncode == 0, err
    assert "loss" in out
    report = forked_programs.run("report", "--by", "loss", "--same-within", "loss=0.5", "--json")
    rows = json.loads(report.stdout)["rows"]
    (compared,) = [row for row in rows if not row["is_baseline"]]
    assert compared["metrics"].pop("absent")["value"] is None
    metric = compared["metrics"]["loss"]
    last = [1 + (seed * 7 % 10) / 10 for seed in (1337, 1338, 1339)]
    assert metric["value"] == pytest.approx(sum(last) / 3)
    assert (metric["verdict"], metric["difference"], metric["same_within"]) == ("the same", 0.0, 0.5)
    assert compared["verdict"] == "the same"
    with reading(queue.layout.db) as connection:
        notes = connection.execute("SELECT DISTINCT text FROM notes WHERE kind = 'metric_absent'").fetchall()
    assert len(notes) == 1 and "absent" in notes[0]["text"]
    hints: list[str] = []
    monkeypatch.setattr(run_command, "hint", hints.append)
    runs = [SimpleNamespace(run=name, job_id=job) for job, name in enumerate(("1.1", "2.1"))]
    run_command._suggest_metric(queue.layout, cast(Awaited, SimpleNamespace(runs=runs)))
    assert len(hints) == 1 and "--metric 'loss=" in hints[0]


def test_two_rows_get_rounds_until_they_are_decided(queue: Queue) -> None:
    out, err = (process := run(queue, "--set", "s=0.01,0.5", "--", "sleep", "{s}")).communicate()
    assert process.returncode == 0, err
    rounds = max(row["repeat"] for row in queue.rows())
    assert rounds >= 3 and len(queue.rows()) == 2 * rounds
    assert "s=0.01 is " in out and "x faster than s=0.5" in " ".join(out.split())


ROUNDS = ("--no-gate", "--set", "s=0.02,0.4", "--", "sh", "-c", "echo out; sleep {s}")


def test_a_pipe_gets_a_line_for_each_round_and_no_output_of_runs(queue: Queue) -> None:
    process = run(queue, *ROUNDS)
    output, messages = process.communicate(timeout=110)
    assert process.returncode == 0, messages
    lines = [line for line in messages.splitlines() if line.startswith("--- round ")]
    rounds = [int(line.split()[2]) for line in lines]
    assert rounds == sorted({*rounds}) and rounds[-1] >= 3, lines  # two that end between two looks get one line
    assert "slower" in lines[-1] and "out" not in output.splitlines()
    output, messages = run(queue, "-v", *ROUNDS).communicate(timeout=110)
    assert output.splitlines().count("out") >= 6
    assert re.search(r"^--- round \d+ .*most 20", messages, re.MULTILINE) and " runs ended" not in messages


def test_a_wait_for_a_quiet_machine_has_a_reason_and_an_end(queue: Queue) -> None:
    queue.layout.config.write_text(queue.layout.config.read_text().replace("gate_cpu_share = 1", "gate_cpu_share = 0"))
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        _, messages = run(queue, "--gate-timeout", "1s", "--", "true").communicate(timeout=110)
    finally:
        busy.kill()
        busy.wait()
    assert "run 1.1 waits" in messages and "1.00 s at most: other" in messages and "quiet machine" in messages
    assert "starting anyway after" in messages and "--- run 1.1: SUCCEEDED after" in messages


def test_a_failed_run_is_named_among_the_rounds(queue: Queue) -> None:
    process = run(queue, "--no-gate", "--set", "code=0,3", "--", "sh", "-c", "exit {code}")
    _, messages = process.communicate(timeout=110)
    assert process.returncode == 3 and "run 2.1: FAILED" in messages and "run 1.1: " not in messages


def test_rounds_beyond_the_budget_count_neither_as_rounds_nor_as_failures(queue: Queue, tmp_path: Path) -> None:
    """Each row runs once at once; the third run outlasts the budget."""
    script = f"echo {{s}} >> {tmp_path}/runs; [ $(wc -l < {tmp_path}/runs) -lt 3 ] || sleep 10"
    process = run(queue, "--no-gate", "--budget", "9s", "--set", "s=1,2", "--", "sh", "-c", script)
    output, messages = process.communicate(timeout=110)
    assert any(row["reason"] and row["reason"].startswith("budget") for row in queue.rows())
    assert process.returncode == 0 and "undecided" in output and "error" not in messages
    assert "round 1 of" in messages and "round 3 of" not in messages


def test_a_terminal_has_one_table_of_rounds(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(queue, *ROUNDS).wait(110) == 0

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    with sqlite3.connect(queue.layout.db) as connection:
        connection.execute("UPDATE runs SET started_at = started_at - 7200")
    table = RoundTable(queue.layout, 1, 600.0, screen)
    assert table.step() == "" and "●" in screen.getvalue() and " of at most 20" in screen.getvalue()
    assert ", 2 h 0" in screen.getvalue(), "the time that --budget limits, not that of looking"
    monkeypatch.setattr(round_table, "REDRAW_S", 3600.0)
    length = len(screen.getvalue())
    assert table.step() == "" and len(screen.getvalue()) == length, "no other round has ended"
    monkeypatch.setattr(round_table, "REDRAW_S", 0.0)
    assert table.step() == "" and " runs ended" in screen.getvalue()
    table.say("a message")
    table.close()
    assert "a message" in screen.getvalue()


def test_ctrl_c_reports_the_rounds_so_far(queue: Queue) -> None:
    process = run(queue, "--no-gate", "--set", "s=0.5,0.500001", "--", "sleep", "{s}")
    assert process.stderr is not None
    while not process.stderr.readline().startswith("--- round 1"):
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=110)
    assert process.returncode == 130 and "s=0.5 " in output


def test_quoted_commands_are_rows(queue: Queue) -> None:
    process = run(queue, "--no-gate", "sleep 0.01", "echo a | cat; sleep 0.1")
    output, messages = process.communicate(timeout=110)
    assert process.returncode == 0, messages
    assert "sleep 0.01 is " in output and "faster than echo a | cat; sleep 0.1" in " ".join(output.split())
    assert {row["name"] for row in queue.rows()} == {"sleep 0.01", "echo a | cat; sleep 0.1"}
    with reading(queue.layout.db) as connection:
        listed = listing.table(listing.jobs(connection, listing.Filter()))
    assert listed.count("sleep 0.01") == listed.count("echo a") == 1, "a name that is the command stands once"


def test_paths_of_programs_are_commands(tmp_path: Path) -> None:
    for name in ("a.sh", "b.sh"):
        (tmp_path / name).write_text("#!/bin/sh\n")
    (tmp_path / "a.sh").chmod(0o755)
    assert not typer_options._are_commands(["./a.sh", "./b.sh"], str(tmp_path))
    (tmp_path / "b.sh").chmod(0o755)
    assert typer_options._are_commands(["./a.sh", "./b.sh"], str(tmp_path))
    assert not typer_options._are_commands(["/bin/sh", "./b.sh"], str(tmp_path)), "it runs its argument"
    assert not typer_options._are_commands(["./a.sh"], str(tmp_path))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["true", "false"], 'run takes one workload, not "true false"'),
        (["sh", "./a.sh"], 'run takes one workload, not "sh ./a.sh"'),
        (["sleep 1", "--", "true"], "and another one after --"),
        (["echo 'a", "sleep 1"], "is not a command line"),
    ],
)
def test_commands_that_cannot_be_compared(queue: Queue, words: list[str], message: str) -> None:
    process = run(queue, *words)
    assert message in process.communicate(timeout=60)[1] and process.returncode == 2
