"""Cancel means that nothing is left: trees of children that hide and do not listen.

MPSQ_TREES says how many trees are grown (`make campaign` grows 20).
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from queue_runner.host import processes
from queue_runner.host.processes import Process, Traces
from queue_runner.warden.process_tree import Row, Termination, send
from tests.process_support import WardenRun, identity, is_alive, python, until

pytestmark = pytest.mark.process

Make = Callable[..., WardenRun]
TREES = int(os.environ.get("MPSQ_TREES", "5"))

KINDS = ["group", "session", "daemon", "washed_daemon", "term_deaf", "int_deaf", "deaf", "stopped", "thread_only"]

GROWER = """
import json, os, signal, sys, threading, time
plan = json.loads(sys.argv[1])
out = os.environ["OUT"]

def sit(kind):
    if kind in ("term_deaf", "deaf"): signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if kind in ("int_deaf", "deaf"): signal.signal(signal.SIGINT, signal.SIG_IGN)
    if kind == "trainer" and plan["trainer_deaf"]: signal.signal(signal.SIGINT, signal.SIG_IGN)
    with open(f"{out}/{os.getpid()}.part", "w") as file: file.write(kind)
    os.rename(f"{out}/{os.getpid()}.part", f"{out}/{os.getpid()}.pid")
    if kind == "stopped": os.kill(os.getpid(), signal.SIGSTOP)
    if kind == "thread_only":
        threading.Thread(target=lambda: time.sleep(600)).start()
        import ctypes
        ctypes.CDLL(None).pthread_exit(None)  # the main thread ends, the process does not
    while True: signal.pause()

def grow(kinds):
    if not kinds: return
    kind, *rest = kinds
    if os.fork() == 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if kind in ("session", "daemon", "washed_daemon"): os.setsid()
        if kind in ("daemon", "washed_daemon"):
            if os.fork(): os._exit(0)
        if kind == "washed_daemon":
            program = f"import os, signal; open('{out}/%d.pid' % os.getpid(), 'w').write('washed'); signal.pause()"
            os.execve(sys.executable, [sys.executable, "-ISc", program], {})
        if rest and plan["deep"]: grow(rest)
        sit(kind)
    if not plan["deep"]: grow(rest)

grow(plan["kinds"])
sit("trainer")
"""


def grow(make: Make, seed: int) -> tuple[WardenRun, list[Process]]:
    """A tree, fully grown. A washed daemon ends a deep chain, because what it becomes grows nothing."""
    rng = random.Random(seed)
    deep = rng.random() < 0.5
    kinds = rng.sample(KINDS, len(KINDS))
    if deep:
        kinds = [k for k in kinds if k != "washed_daemon"] + ["washed_daemon"]
    plan = {"kinds": kinds, "deep": deep, "trainer_deaf": rng.random() < 0.5}
    run = make([*python(GROWER), json.dumps(plan)], grace_s={"int": 0.2, "term": 0.2}).start()
    out = Path(run.spec["cwd"])
    grown = len(kinds) + 1

    def all_sit() -> list[Path]:
        sitting = list(out.glob("*.pid"))
        return sitting if len(sitting) == grown else []

    found = until(all_sit, lambda: f"tree {seed} {plan}: {len(list(out.glob('*.pid')))} of {grown}; {run.stderr}")
    tree = [identity(int(path.stem)) for path in found]
    assert all(is_alive(process) for process in tree)
    return run, tree


@pytest.mark.parametrize("seed", range(TREES))
def test_cancel_leaves_nothing(warden_run: Make, seed: int) -> None:
    run, tree = grow(warden_run, seed)
    run.cancel()
    exit_ = run.wait()
    assert exit_["stop"]["cause"] == "cancel"
    assert [p for p in tree if is_alive(p)] == []
    assert run.leftovers() == set() and run.lane_is_free()


@pytest.mark.parametrize("seed", range(TREES))
def test_the_worker_finds_and_ends_a_tree_whose_warden_was_killed(warden_run: Make, seed: int) -> None:
    run, tree = grow(warden_run, 1000 + seed)
    until(lambda: {process.pid for process in tree} <= {note["pid"] for note in run.noted()}, "all to be noted")
    run.kill_warden()
    assert set(tree) <= run.leftovers()
    assert processes.end_all(run.traces(), 0.2, 0.2) == []
    assert [p for p in tree if is_alive(p)] == []
    assert run.lane_is_free()


def test_a_tree_that_grows_while_it_is_cut(warden_run: Make) -> None:
    program = """
import os, signal, time
for number in (2, 15): signal.signal(number, signal.SIG_IGN)
open(os.environ["OUT"] + "/ready", "w")
last = time.monotonic() + 60  # should the test fail, nothing else would end it
while time.monotonic() < last:
    if os.fork() == 0: os.setsid()
    else: time.sleep(0.01); os._exit(0)
"""
    run = warden_run(python(program), grace_s={"int": 0, "term": 0}).start()
    until((Path(run.spec["cwd"]) / "ready").exists, "the first")
    run.cancel()
    run.wait()
    assert run.leftovers() == set()
    until(run.lane_is_free, "the kernel to close the files of the processes that it ended")


def test_only_the_runs_own_are_ended(warden_run: Make) -> None:
    run, tree = grow(warden_run, 1)
    me = identity(os.getpid())
    parent = identity(os.getppid())
    mine = Traces(
        tag=run.tag,
        sessions=frozenset({os.getsid(0)}),
        noted=frozenset({(me.pid, me.start), (parent.pid, parent.start)}),
    )
    found = processes.find_orphans(mine)
    assert me.pid not in found and parent.pid not in found, "neither ourselves nor whom we descend from"
    other = tree[0]
    later = Process(other.pid, other.start + 1)
    send(later.pid, later.start, 9)
    assert is_alive(other), "a later process with the pid of a noted one"
    assert processes.find_orphans(Traces(noted=frozenset({(later.pid, later.start)}))) == {}
    reused = Traces(sessions=frozenset({run.trainer().pid}), noted=frozenset({(run.trainer().pid, 1)}))
    assert processes.find_orphans(reused) == {}, "a later session with the number of a noted one"
    assert processes.find_orphans(Traces(tag=run.tag, boot_id="another boot")) == {}


def test_what_will_not_die_is_returned() -> None:
    assert processes.end_all(Traces(), 0, 0, kill_s=0.1, find=lambda _: ABSENT) == [NOBODY]


class ScriptedLooks:
    """Stands in for looking at the processes: one answer after the other, then nothing."""

    def __init__(self, *answers: bool) -> None:
        self._answers = list(answers)
        self.looks = 0

    def look(self) -> bool:
        self.looks += 1
        return self._answers.pop(0) if self._answers else False

    def find(self) -> dict[int, Row]:
        """As Tree.find: a process that does not exist, or nobody."""
        return ABSENT if self.look() else {}


NOBODY = Process(2**22 + 5, 1)
ABSENT = {NOBODY.pid: Row(1, 1, 1, NOBODY.start, False)}


def test_one_look_that_finds_nothing_is_not_enough_for_the_worker() -> None:
    looks = ScriptedLooks(True, False, True, False)
    assert processes.end_all(Traces(), 0, 0, find=lambda _: looks.find()) == []
    assert looks.looks == 5, "somebody; nobody, somebody; nobody, nobody"


def test_one_look_that_finds_nothing_is_not_enough_for_the_warden() -> None:
    looks = ScriptedLooks(True, False, True, False)
    ending = Termination(looks.find, {"int": 0.0, "term": 0.0})
    assert [ending.step(), ending.step(), ending.step()] == [False, False, True]
    assert looks.looks == 5
