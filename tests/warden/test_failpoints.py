"""The table of the warden's stop points: killed exactly there, what is on disk, who has the lane, and what is left.

For each point: is the fence up (started), is there a stop, is there a result, does somebody still hold the lane.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from queue_runner.host import locks, processes
from tests.process_support import WardenRun, is_alive, is_there, needs_linux, python, until

pytestmark = pytest.mark.process

Make = Callable[..., WardenRun]

FOREVER = python("import signal; signal.pause()")
QUICK = python("import os; os._exit(3)")
LEAVES_A_CHILD = python("""
import os, signal
if os.fork() == 0:
    os.setsid()
    for number in (2, 15): signal.signal(number, signal.SIG_IGN)
    while True: signal.pause()
os._exit(3)
""")

TABLE = [
    # point, trainer, cancelled, started, stop, exit, lane held after the kill
    ("warden.locked", FOREVER, False, False, False, False, False),
    ("warden.before_started", FOREVER, False, False, False, False, False),
    ("warden.started", FOREVER, False, True, False, False, False),
    ("warden.spawned", FOREVER, False, True, False, False, True),
    ("warden.before_stop", FOREVER, True, True, False, False, True),
    ("warden.stopped", FOREVER, True, True, True, False, True),
    ("warden.reaped", QUICK, False, True, False, False, False),
    ("warden.reaped", FOREVER, True, True, True, False, False),
    ("warden.reaped", LEAVES_A_CHILD, False, True, False, False, True),
    ("warden.exit_tmp", QUICK, False, True, False, False, False),
    ("warden.exited", QUICK, False, True, False, True, False),
    ("warden.exited", LEAVES_A_CHILD, False, True, False, True, True),
    ("warden.swept", QUICK, False, True, False, True, False),
    ("warden.swept", LEAVES_A_CHILD, False, True, False, True, False),
]


def reach(make: Make, point: str, trainer: list[str], cancelled: bool) -> WardenRun:
    run = make(trainer, grace_s={"int": 0.2, "term": 0.2}).start(stop_at=point)
    if cancelled:
        run.trainer()
        run.cancel()
    run.stopped_at(point)
    return run


@pytest.mark.parametrize(("point", "trainer", "cancelled", "started", "stop", "exit_", "held"), TABLE)
def test_killed_exactly_there(
    warden_run: Make,
    point: str,
    trainer: list[str],
    cancelled: bool,
    started: bool,
    stop: bool,
    exit_: bool,
    held: bool,
) -> None:
    run = reach(warden_run, point, trainer, cancelled)
    assert locks.is_held(run.folder / "warden.lock"), "supervised while it lives, stopped or not"
    assert not run.lane_is_free(), "the lane is closed up to the very end"
    run.kill_warden()
    assert not locks.is_held(run.folder / "warden.lock")
    assert (run.read("started") is not None, run.read("stop") is not None) == (started, stop)
    written = run.read("exit.json")
    assert (written is not None) is exit_
    if written is not None:
        assert (written["exit_code"], written["stop"], written["stopped"]) == (3, None, False)
    assert run.lane_is_free() is not held
    assert bool(run.leftovers()) is held, "whoever keeps the lane is found"
    assert processes.end_all(run.traces(), 0.2, 0.2) == []
    assert run.leftovers() == set()
    lane = locks.try_lock(run.lane)
    assert lane is not None
    lane.close()


def test_killed_after_a_preparation_nothing_is_left_and_nothing_ran(warden_run: Make) -> None:
    run = warden_run(LEAVES_A_CHILD, prepare={"MPSQ_PREPARE": "1"}, grace_s={"int": 0.2, "term": 0.2})
    run.start(stop_at="warden.prepared").stopped_at("warden.prepared")
    run.kill_warden()
    assert run.read("started") is not None and run.read("exit.json") is None
    prepared = run.read("prepared")
    assert prepared is not None and (prepared["exit_code"], prepared["noted"]) == (3, len(run.noted()))
    assert run.lane_is_free() and run.leftovers() == set()


@pytest.mark.parametrize("point", sorted({row[0] for row in TABLE}))
def test_stopped_there_and_continued_nothing_is_lost(warden_run: Make, point: str) -> None:
    cancelled = point in ("warden.before_stop", "warden.stopped")
    run = reach(warden_run, point, FOREVER if cancelled else QUICK, cancelled)
    run.go_on()
    exit_ = run.wait()
    assert (exit_["exit_code"], exit_["signal"]) == ((None, signal.SIGINT) if cancelled else (3, None))
    assert exit_["stopped"] is cancelled
    assert run.lane_is_free() and run.leftovers() == set()


def test_cancel_at_any_point_up_to_the_spawn_starts_nothing_or_stops_it(warden_run: Make) -> None:
    for point in ("warden.locked", "warden.before_started", "warden.started", "warden.spawned"):
        run = reach(warden_run, point, FOREVER, False)
        run.cancel()
        run.go_on()
        exit_ = run.wait()
        assert exit_["stop"]["cause"] == "cancel"
        assert exit_["stopped"] is (point != "warden.locked")
        assert (run.read("started") is None) is (point == "warden.locked")
        assert run.lane_is_free() and run.leftovers() == set()


def test_killed_before_it_could_note_the_trainer_the_trainer_is_found_all_the_same(warden_run: Make) -> None:
    run = reach(warden_run, "warden.spawned", FOREVER, False)
    assert run.noted() == []
    run.kill_warden()
    (found,) = run.leftovers()
    assert found.pid in processes.find_orphans(processes.Traces(tag=run.tag))
    assert processes.end_all(run.traces(), 1, 1) == []
    assert not is_alive(found)


def test_a_holder_of_the_lane_that_washed_off_every_other_trace_is_found(warden_run: Make) -> None:
    program = """
import os, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        ready = os.environ["OUT"] + "/ready"
        os.execve(sys.executable, [sys.executable, "-ISc", f"import signal; open({ready!r}, 'w'); signal.pause()"], {})
    os._exit(0)
os._exit(0)
"""
    run = reach(warden_run, "warden.exited", python(program), False)
    until((Path(run.spec["cwd"]) / "ready").exists, "the holder")
    run.kill_warden()
    assert processes.find_orphans(processes.Traces(tag=run.tag)) == {}, "no tag"
    by_lane = processes.Traces(tag=run.tag, lane=run.lane)
    (holder,) = processes.find_orphans(by_lane)
    noted = locks.read_holder(run.lane)
    run.lane.write_text(f'{{"token":"another run", "pid":{noted["pid"] if noted else 0}}}\n')
    assert processes.find_orphans(by_lane) == {}, "the lane is another run's: its holder is not ours to end"
    run.lane.write_text(f'{{"token":"{run.tag}", "pid":1}}\n')
    assert processes.find_orphans(by_lane) == {}, "taken by another than the one who wrote the note"
    run.lane.write_text(f'{{"token":"{run.tag}", "pid":{os.getpid()}}}\n')
    assert processes.end_all(by_lane, 0.5, 0.5) == []
    assert not is_there(holder)
    assert run.lane_is_free()


def test_disk_space_for_the_result_is_taken_before_the_start(warden_run: Make) -> None:
    run = reach(warden_run, "warden.before_started", QUICK, False)
    for name in ("exit.json.tmp", "stop.tmp"):
        assert (run.folder / "warden" / name).stat().st_blocks * 512 >= 8192
    run.go_on()
    assert run.wait()["exit_code"] == 3


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "mpsq", str(folder)]).returncode:
        pytest.skip("only root can mount a disk that is small enough to fill")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@needs_linux
@pytest.mark.parametrize("cancelled", [False, True])
def test_a_full_disk_does_not_lose_the_result(small_disk: Path, cancelled: bool) -> None:
    program = f"""
import os, time
try:
    while True: os.write(1, b"x" * 512)
except OSError: pass
open("{small_disk.parent}/full", "w")
while {cancelled} or not os.path.exists("{small_disk.parent}/go"): time.sleep(0.01)
os._exit(3)
"""
    run = WardenRun(small_disk, python(program)).start()
    try:
        until((small_disk.parent / "full").exists, "a full disk")
        assert os.statvfs(small_disk).f_bavail == 0
        if cancelled:
            (run.folder / "cancel").touch()  # an empty file needs no space
        else:
            (small_disk.parent / "go").touch()
        exit_ = run.wait()
        assert (exit_["exit_code"], exit_["signal"]) == ((None, signal.SIGINT) if cancelled else (3, None))
        assert exit_["stopped"] is cancelled
        assert (run.read("stop") is not None) is cancelled
    finally:
        assert run.clean_up() == []
