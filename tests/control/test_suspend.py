"""Suspend and continue: whole trees stand still, whatever they are made of, and go on as if nothing had been."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from queue_runner.control import cancellation, pausing
from queue_runner.host import processes
from queue_runner.host.processes import Process
from queue_runner.host.run_dir import RunDir
from queue_runner.model import Selector, parse_selector
from queue_runner.store import read
from tests import forked_programs, named_rows
from tests.events_support import whole_lines
from tests.process_support import SETSID, WardenRun, is_alive, python, state_of
from tests.queue_support import Queue, until, warden_pid

pytestmark = pytest.mark.process

Make = Callable[..., WardenRun]
TREES = {
    "pipeline": "count a & (count b; true) | cat & wait",
    "sessions": f"{SETSID} sh -c '. ./count.sh; count a' & ({SETSID} sh -c '. ./count.sh; count b' &); wait; sleep 60",
    "breeder": "while :; do (echo a >> a; sleep 0.03 & sleep 0.01; wait); echo b >> b; done",
}
"""Processes of one group with pipes between; of other sessions, one of them an orphan; and ever new ones."""
COUNT = "count() { while :; do echo x >> $1; sleep 0.02; done; }\n"


def named(text: str) -> list[Selector]:
    return [parse_selector(text)]


def mpsq(*arguments: str, code: int = 0) -> str:
    done = forked_programs.run(*arguments)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def tree_of(run: WardenRun) -> list[Process]:
    """All that belongs to the run but its warden."""
    assert run.process is not None
    return [process for process in run.leftovers() if process.pid != run.process.pid]


def states(run: WardenRun) -> set[str]:
    """Letters of their states."""
    found = set()
    for process in tree_of(run):
        found.add(state_of(process.pid))
    return found


def sizes(folder: Path) -> list[int]:
    return [(folder / name).stat().st_size if (folder / name).exists() else 0 for name in ("a", "b")]


def grown(folder: Path, since: list[int]) -> bool:
    return all(now > then for now, then in zip(sizes(folder), since, strict=True))


@pytest.mark.parametrize("tree", TREES)
def test_a_tree_stands_still_and_goes_on(warden_run: Make, tree: str) -> None:
    run = warden_run(["/bin/sh", "-c", COUNT + TREES[tree]], grace_s={"int": 0.0, "term": 5.0})  # deaf to SIGINT
    folder = Path(run.spec["cwd"])
    (folder / "count.sh").write_text(COUNT)
    run.start()
    until(lambda: grown(folder, [0, 0]), "the tree to work")
    (run.folder / "suspend").touch()
    until(lambda: run.read("suspended"), "the warden's word")
    until(lambda: states(run) <= {"T", "D"}, "all to stand still")  # D: between vfork and exec
    before = sizes(folder)
    looks = time.monotonic() + 0.6  # longer than two looks of the warden
    until(lambda: time.monotonic() > looks, "time to pass")
    assert sizes(folder) == before and states(run) <= {"T", "D"}
    (run.folder / "suspend").unlink()
    until(lambda: grown(folder, before), "the tree to go on")
    until(lambda: run.read("suspended") is None and "T" not in states(run), "nobody to be forgotten")
    run.cancel()
    exit_ = run.wait()
    assert exit_["paused_s"] >= 0.6 and exit_["stop"]["cause"] == "cancel"
    assert run.leftovers() == set() and run.log == ""


def test_who_is_woken_by_hand_stands_still_again(warden_run: Make) -> None:
    run = warden_run(python("import signal\nwhile True: signal.pause()")).start()
    trainer = run.trainer()
    (run.folder / "suspend").touch()
    until(lambda: states(run) == {"T"}, "the pause")
    os.kill(trainer.pid, signal.SIGCONT)
    until(lambda: run.read("suspended") and states(run) == {"T"}, "the pause to come back")
    (run.folder / "suspend").unlink()
    until(lambda: states(run) == {"S"}, "the end of the pause")


def test_what_the_job_stopped_itself_stays_so(warden_run: Make) -> None:
    run = warden_run(
        python("import os, signal\nif os.fork() == 0: os.kill(os.getpid(), signal.SIGSTOP)\nwhile True: signal.pause()")
    ).start()
    until(lambda: states(run) == {"S", "T"}, "the child to stop itself")
    (run.folder / "suspend").touch()
    until(lambda: run.read("suspended") and states(run) == {"T"}, "the pause")
    (run.folder / "suspend").unlink()
    until(lambda: run.read("suspended") is None and states(run) == {"S", "T"}, "the end of the pause")


def test_timeout_and_stall_stand_still_with_it(warden_run: Make) -> None:
    run = warden_run(python("import signal; signal.pause()"), timeout_s=1.2, stall_s={"*": 1.0})
    (run.folder / "suspend").touch()  # before its start: it stands still at once
    run.start()
    until(lambda: states(run) == {"T"}, "the pause")
    since = time.monotonic()
    until(lambda: time.monotonic() - since > 1.5, "a pause longer than both limits")
    assert run.read("stop") is None
    (run.folder / "suspend").unlink()
    exit_ = run.wait()
    assert exit_["stop"]["cause"] == "stall" and exit_["real_s"] - exit_["paused_s"] >= 1.0


def test_a_trainer_that_waits_for_its_child_to_exec_counts_as_stopped(warden_run: Make, tmp_path: Path) -> None:
    """Between vfork and exec the kernel holds the parent (state D): it stops only after the child has gone on."""
    way = tmp_path / "way"  # the stand-in for a slow exec: the child opens it first
    program = f"""
import os
first = [(os.POSIX_SPAWN_OPEN, 0, {str(way)!r}, os.O_RDONLY, 0)]
print("child")
os.waitpid(os.posix_spawn("/bin/sh", ["sh", "-c", "sleep 60"], os.environ, file_actions=first), 0)
"""
    os.mkfifo(way)
    run = warden_run(python(program), timeout_s=2.0).start()
    until(lambda: states(run) == {"D", "S"}, "the child on its way to exec")
    (run.folder / "suspend").touch()
    until(lambda: run.read("suspended") and states(run) == {"D", "T"}, "the pause")
    since = time.monotonic()
    until(lambda: time.monotonic() - since > 2.5, "a pause longer than the limit")
    assert run.read("stop") is None
    (run.folder / "suspend").unlink()
    until(lambda: run.read("suspended") is None and states(run) == {"D", "S"}, "the end of the pause")
    os.close(os.open(way, os.O_WRONLY))
    exit_ = run.wait()
    assert exit_["stop"]["cause"] == "timeout" and exit_["paused_s"] >= 2.0
    assert exit_["real_s"] - exit_["paused_s"] >= 2.0 and run.log == ""


def test_a_trainer_that_waits_for_its_own_exec_is_suspended(warden_run: Make) -> None:
    run = warden_run(python("import signal; signal.pause()"), timeout_s=2.0)
    run.stand_in = "import os, signal; os.chdir = lambda _: signal.pause()  # for a folder that macOS guards"
    run.start()
    until(lambda: run.read("started"), "the fence")
    (run.folder / "suspend").touch()
    until(lambda: run.read("suspended") and states(run) == {"T"}, "the pause")
    since = time.monotonic()
    until(lambda: time.monotonic() - since > 2.5, "a pause longer than the limit")
    assert run.read("stop") is None
    until(RunDir(run.folder).waits_for_exec, "what it waits for to be told")
    (run.folder / "suspend").unlink()
    until(lambda: run.read("suspended") is None and states(run) == {"S"}, "the end of the pause")
    exit_ = run.wait()
    assert exit_["stop"]["cause"] == "timeout" and exit_["paused_s"] >= 2.5
    assert not RunDir(run.folder).waits_for_exec() and run.read("waits") is None
    assert exit_["real_s"] - exit_["paused_s"] >= 2.0 and run.log == "" and run.leftovers() == set()


@pytest.mark.parametrize("grace_s", [5.0, 0.0])
def test_a_suspended_tree_can_be_cancelled(warden_run: Make, grace_s: float) -> None:
    """The signal is delivered, and acted upon: it is not only the KILL that gets through."""
    program = "import os, signal\nsignal.signal(2, lambda *_: os._exit(7))\nos.fork()\nwhile True: signal.pause()"
    run = warden_run(python(program), grace_s={"int": grace_s, "term": 0.0}).start()
    until(lambda: len(tree_of(run)) == 2, "the child")
    (run.folder / "suspend").touch()
    until(lambda: states(run) == {"T"}, "the pause")
    run.cancel()
    exit_ = run.wait()
    assert (exit_["exit_code"], exit_["signal"]) == ((7, None) if grace_s else (None, signal.SIGKILL))
    assert exit_["stopped"] and exit_["paused_s"] > 0 and run.leftovers() == set()


def test_a_trainer_that_is_killed_while_suspended_leaves_its_daemon_awake(warden_run: Make) -> None:
    program = "import os, signal\nif os.fork() == 0: os.setsid()\nwhile True: signal.pause()"
    run = warden_run(python(program), allow_daemons=True).start()
    trainer = run.trainer()
    until(lambda: len(tree_of(run)) == 2, "the daemon")
    (run.folder / "suspend").touch()
    until(lambda: states(run) == {"T"}, "the pause")
    os.kill(trainer.pid, signal.SIGKILL)
    assert run.wait()["signal"] == signal.SIGKILL
    assert not is_alive(trainer) and states(run) == {"S"}


# -- through the queue ----------------------------------------------------------------------------------------------

COUNTING = "while :; do echo x >> $J; sleep 0.02; done"


def stands_still(queue: Queue) -> bool:
    before = len(queue.written())
    end = time.monotonic() + 0.4
    until(lambda: time.monotonic() > end, "time to pass")
    return len(queue.written()) == before


def test_suspend_and_continue_from_the_command_line(queue: Queue) -> None:
    queue.submit("while [ ! -e go ]; do echo x >> $J; sleep 0.02; done")
    queue.submit("echo second >> $J")
    queue.worker()
    until(queue.written, "the job")
    assert "run 1.1 is suspended: " in mpsq("pause", "1", "--now")
    assert stands_still(queue)
    assert "run 1.1 is suspended: " in mpsq("pause", "1.1", "--now"), "twice is once"
    assert queue.rows()[1]["state"] == "QUEUED", "the lane stays taken"
    assert "suspended" in mpsq("status") and "mpsq resume 1.1" in mpsq("why", "1")
    assert "RUNNING (suspended)" in mpsq("show", "1")
    before = len(queue.written())
    assert "run 1.1 continues" in mpsq("resume", "1")
    until(lambda: len(queue.written()) > before, "the job to go on")
    (queue.folder / "go").touch()
    rows = queue.done(2)
    assert [row["outcome"] for row in rows] == ["SUCCEEDED"] * 2 and queue.written()[-1] == "second"
    assert rows[0]["paused_s"] > 0.4 and not rows[0]["valid"] and rows[1]["paused_s"] == 0
    shown = mpsq("show", "1")
    assert "run was stopped" in shown and "SUCCEEDED" in shown
    assert queue.verbs(1).count("suspend") == 1 and queue.verbs(1).count("continue") == 1
    assert rows[0]["paused_at"] is None


def test_a_waiting_job_is_held_and_released(queue: Queue) -> None:
    queue.submit("true")
    assert "run 1.1 is held" in mpsq("pause", "1", "--now")
    assert "held already" in mpsq("pause", "1")
    assert queue.rows()[0]["state"] == "HELD"
    assert "run 1.1 is no longer held" in mpsq("resume", "1")
    assert "not paused" in mpsq("resume", "1")
    queue.worker("", "--until-idle").wait()
    assert "ended (SUCCEEDED)" in mpsq("pause", "1", "--now", code=1)
    assert "no job 7" in mpsq("pause", "7", code=2)


def test_pause_stops_no_process_unless_now_is_given(queue: Queue) -> None:
    queue.submit(COUNTING)
    queue.worker()
    until(queue.written, "the job")
    assert "running: --now" in mpsq("pause", "1", code=1)
    mpsq("pause")
    assert not stands_still(queue)
    assert "run 1.1 is suspended: " in mpsq("pause", "--now")
    assert stands_still(queue)
    resumed = mpsq("resume")
    assert "queue is resumed" in resumed and "run 1.1 continues" in resumed
    assert not stands_still(queue)
    cancellation.cancel(queue.layout, named("1"), grace_s=0.0, within_s=20)


def test_it_works_without_a_worker_and_the_next_one_finds_it_suspended(queue: Queue) -> None:
    queue.submit(COUNTING)
    worker = queue.worker()
    until(queue.written, "the job")
    worker.kill()
    worker.wait()
    assert pausing.pause(queue.layout, named("1"), now=True)[0].did
    assert stands_still(queue)
    queue.worker()
    assert stands_still(queue)
    assert queue.rows()[0]["paused_at"] is not None and "suspended" in mpsq("status")
    cancellation.cancel(queue.layout, named("1"), grace_s=None, within_s=0)
    (row,) = queue.done()
    assert row["outcome"] == "CANCELLED" and row["paused_at"] is None


@pytest.mark.parametrize("verb", ["pause", "resume"])
def test_a_request_that_was_stored_and_not_filed_is_filed_by_the_worker(queue: Queue, verb: str) -> None:
    queue.submit(COUNTING)
    queue.worker()
    until(queue.written, "the job")
    if verb == "resume":
        pausing.pause(queue.layout, named("1"), now=True)
    died = queue.command(verb, "1", *(["--now"] if verb == "pause" else []), stop_at="suspend.committed")
    os.kill(queue.stopped("suspend.committed"), signal.SIGKILL)
    died.wait()
    told = queue.layout.run_dir("1.1") / "warden" / "suspended"
    until(lambda: told.exists() == (verb == "pause"), "the worker to file it")
    cancellation.cancel(queue.layout, named("1"), grace_s=0.0, within_s=20)


def test_a_warden_that_dies_leaves_no_sleeping_tree(queue: Queue) -> None:
    queue.submit("sleep 300 & while :; do sleep 0.02; done")
    queue.worker()
    warden = warden_pid(queue.layout, "1.1")
    pids = queue.layout.run_dir("1.1") / "warden" / "pids.jsonl"
    until(lambda: pids.exists() and pids.read_text().count("\n") >= 2, "the tree to be noted")
    pausing.pause(queue.layout, named("1"), now=True)
    noted = [line["pid"] for line in whole_lines(pids)]
    os.kill(warden, signal.SIGKILL)
    (row,) = queue.done()
    assert row["outcome"] == "LOST" and row["paused_at"] is None
    for pid in noted:
        seen = processes.look(pid)
        assert seen is None or seen.ended


def test_a_wish_before_the_start_is_kept_through_it(queue: Queue) -> None:
    """Between claim and start there is no folder yet to file it in."""
    queue.submit(COUNTING)
    worker = queue.worker("worker.claimed")
    queue.stopped("worker.claimed")
    pausing.pause(queue.layout, named("1"), now=True, within_s=0.0)
    worker.send_signal(signal.SIGCONT)
    told = queue.layout.run_dir("1.1") / "warden" / "suspended"
    until(told.exists, "the pause")
    assert stands_still(queue)
    cancellation.cancel(queue.layout, named("1"), grace_s=0.0, within_s=20)


@pytest.mark.parametrize("what", ["file", "folder"])
def test_a_job_that_suspends_itself_is_let_go_on(queue: Queue, what: str) -> None:
    make = {"file": ": >", "folder": "mkdir -p"}[what]
    queue.submit(f"{make} $(dirname $MPSQ_OUT)/suspend; while [ ! -e go ]; do echo x >> $J; sleep 0.02; done")
    queue.worker()
    until(queue.written, "the job")
    (queue.folder / "go").touch()
    (row,) = queue.done()
    with read.reading(queue.layout.db) as connection:
        assert row["outcome"] == "SUCCEEDED" and named_rows.runs(connection)[0]["paused_s"] is not None
