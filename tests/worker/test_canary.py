"""The canary before real workers. Its interpreter is a stand-in that says how long the work took, except in the last
test, which does the work."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from queue_runner.control import cancellation
from queue_runner.host import locks
from queue_runner.model import DEFAULT_LANE, parse_selector
from queue_runner.monitor import run_details, run_view
from queue_runner.store import read
from queue_runner.submit import plan
from tests.cli_support import Cli
from tests.process_support import state_of
from tests.queue_support import Queue, until
from tests.submit_support import requested

pytestmark = pytest.mark.process

STAND_IN = "tests.machine_stand_in"
INTERPRETER = """#!{python}
import os, pathlib, sys, time
folder = pathlib.Path({folder!r})
if "canary_torch.py" not in sys.argv[1]:
    if "-c" not in sys.argv and "MPSQ_PREPARE" not in os.environ:  # not what submit asks it, nor the preparation
        (folder / "ran").open("a").write("run\\n")
    sys.exit(0)
(folder / "asked").open("a").write(" ".join([str(os.getpid()), *sys.argv[2:]]) + "\\n")
while (said := (folder / "said").read_text().split()) in ([], ["hang"]):
    time.sleep(0.05)
(folder / "said").write_text(" ".join(said[1:] or said))
print('{{"count": 500, "dur_s": %s, "device": "a", "torch": "1"}}' % said[0])
sys.exit(0 if said[0] != "broken" else 3)
"""


class Device:
    """A stand-in for a device: `says` are the durations of its next canaries, of which the last repeats."""

    def __init__(self, queue: Queue, folder: Path) -> None:
        self.queue, self.folder = queue, folder
        self.python = folder / "python"
        self.python.write_text(INTERPRETER.format(python=sys.executable, folder=str(folder)))
        self.python.chmod(0o755)
        self.settings("on")

    def settings(self, canary: str) -> None:
        lines = f"grace_int_s = 0.3\ngrace_term_s = 0.3\nmin_free_bytes = 0\npoll_s = 0.2\ncanary = '{canary}'\n"
        self.queue.layout.config.write_text(lines)

    def says(self, *words: object) -> None:
        (self.folder / "said").write_text(" ".join(map(str, words)))

    def asked(self) -> list[list[str]]:
        path = self.folder / "asked"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def submit(self, **options: Any) -> int:
        given = {"gate_timeout_s": 3600.0, "device": "cpu", "repeats": 1, **options}
        request = requested(workload="nanogpt", python=str(self.python), cwd=str(self.folder), **given)
        return plan.store(self.queue.layout, plan.plan(request)).jobs[0]

    def start(self, run: str) -> dict[str, Any]:
        with read.reading(self.queue.layout.db) as connection:
            (view,) = run_view.select(connection, [parse_selector(run)])
            details = run_details.details(self.queue.layout, connection, view)
        return {**details.start, "taints": [taint.kind for taint in details.taints]}


@pytest.fixture
def device(queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Device:
    path = tmp_path / "machine.json"
    path.write_text(json.dumps({"cpu": 0.0}))
    monkeypatch.setenv("MPSQ_MACHINE", str(path))
    return Device(queue, tmp_path)


def blocked(queue: Queue) -> str:
    with read.reading(queue.layout.db) as connection:
        return read.lane(connection, DEFAULT_LANE).blocked_reason or ""


def test_each_run_is_preceded_by_the_same_work(queue: Queue, device: Device, mpsq: Cli) -> None:
    device.says(1.0, 1.01, 0.99)
    device.submit(repeats=3)
    queue.worker(module=STAND_IN)
    queue.done(3)
    assert [words[1:] for words in device.asked()] == [
        ["--device", "cpu"],
        *[["--device", "cpu", "--count", "500"]] * 2,
    ]
    starts = [device.start(run) for run in ("1.1", "1.2", "1.3")]
    assert [one["canary_s"] for one in starts] == [1.0, 1.01, 0.99]
    assert [one["canary_level_s"] for one in starts] == [1.0, 1.0, 1.005]
    assert "canary 1,010 ms (level 1,000 ms)" in mpsq.ok("show", "1.2").out
    assert not any("not_quiet" in one["taints"] for one in starts)


def test_a_slow_device_is_cooled_until_it_is_at_its_level(queue: Queue, device: Device) -> None:
    device.says(1.0, 1.2, 1.1, 1.2, 1.2)
    device.submit(repeats=2)
    queue.worker(module=STAND_IN)
    until(lambda: "% more than its level" in blocked(queue), "the reason")
    assert len((device.folder / "ran").read_text().split()) == 1
    assert locks.is_held(locks.lane_lock_path(DEFAULT_LANE)), "another queue would heat it again"
    device.says(1.02)
    queue.done(2)
    again = device.start("1.2")
    assert again["canary_tries"] > 1 and again["canary_s"] == 1.02 and "not_quiet" not in again["taints"]
    assert again["gate_waited_s"] > 0 and not blocked(queue)


@pytest.mark.parametrize("variable", ["OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"])
def test_other_threads_or_another_gpu_have_a_level_of_their_own(queue: Queue, device: Device, variable: str) -> None:
    """One arm has half of the threads: that its canary takes twice as long is no heat."""
    device.says(1.0, 2.0, 2.0)
    for value in ("1", "2", "2"):
        device.submit(env=(f"{variable}={value}",))
    queue.worker(module=STAND_IN)
    queue.done(3)
    assert [device.start(run)["canary_level_s"] for run in ("1.1", "2.1", "3.1")] == [1.0, 2.0, 2.0]
    assert f"{variable}=2" in device.start("2.1")["canary_of"]
    assert not any("not_quiet" in device.start(run)["taints"] for run in ("1.1", "2.1", "3.1"))


def test_another_torch_has_a_level_of_its_own(queue: Queue, device: Device) -> None:
    """An upgrade of torch in the same interpreter left every later run of this boot waiting for the old level."""
    device.says(1.0)
    device.submit()
    queue.worker(module=STAND_IN)
    queue.done(1)
    device.python.write_text(device.python.read_text().replace('"torch": "1"', '"torch": "2"'))
    device.says(1.2)
    device.submit()
    queue.done(2)
    assert device.start("2.1")["canary_level_s"] == 1.2 and "not_quiet" not in device.start("2.1")["taints"]


def test_a_device_that_stays_slow_is_a_caveat(queue: Queue, device: Device) -> None:
    device.says(1.0, 1.2)
    device.submit(repeats=2, gate_timeout_s=0.5)
    queue.worker(module=STAND_IN)
    queue.done(2)
    assert "not_quiet" in device.start("1.2")["taints"] and "not_quiet" not in device.start("1.1")["taints"]


def test_a_canary_that_fails_is_left_out(queue: Queue, device: Device) -> None:
    device.says("broken")
    device.submit(repeats=2)
    queue.worker(module=STAND_IN)
    queue.done(2)
    assert len(device.asked()) == 1 and "canary_s" not in device.start("1.2")
    assert "the canary failed and is left out" in queue.log()


def test_a_cancelled_run_ends_its_canary(queue: Queue, device: Device) -> None:
    device.says("hang")
    job = device.submit()
    queue.worker(module=STAND_IN)
    ((pid, *_),) = until(device.asked, "the canary")
    cancellation.cancel(queue.layout, [parse_selector(str(job))], grace_s=None, within_s=5.0)
    until(lambda: state_of(int(pid)) in ("gone", "Z"), "its end")
    until(lambda: not locks.is_held(locks.lane_lock_path(DEFAULT_LANE)), "the lane")


def test_a_canary_holds_the_lane_when_its_worker_is_killed(queue: Queue, device: Device) -> None:
    device.says("hang")
    device.submit()
    worker = queue.worker(module=STAND_IN)
    until(device.asked, "the canary")
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    assert locks.is_held(locks.lane_lock_path(DEFAULT_LANE))
    queue.worker(module=STAND_IN)
    until(lambda: "another queue of this machine is running" in blocked(queue), "the next worker to wait for it")
    assert not (device.folder / "ran").exists()
    device.says(1.0)
    queue.done(1)
    assert len(device.asked()) == 2, "the one whose worker is gone tells nobody"


@pytest.mark.parametrize(
    ("canary", "lengths_s", "asked"),
    [("auto", (), False), ("auto", (300.0,), True), ("auto", (300.0, 100.0), False), ("off", (300.0,), False)],
)
def test_it_is_off_where_it_is_long_beside_a_run(
    queue: Queue, device: Device, canary: str, lengths_s: Sequence[float], asked: bool
) -> None:
    """Known durations of each arm's question: as if they had run before."""
    device.settings("off")
    device.says(1.0)
    arms = {"sets": tuple(f"lr={n}" for n in ["0.1,0.2"[: 3 + 4 * (len(lengths_s) - 1)]])} if lengths_s else {}
    device.submit(**arms)
    first = queue.worker(module=STAND_IN)
    queue.done(max(1, len(lengths_s)))
    first.terminate()
    first.wait()
    with sqlite3.connect(queue.layout.db) as connection:
        if not lengths_s:
            connection.execute("UPDATE exits SET real_s = NULL")
        for run, real_s in enumerate(lengths_s, start=1):
            connection.execute("UPDATE exits SET real_s = ?, slept_s = 0 WHERE run_id = ?", [real_s, run])
    connection.close()
    device.settings(canary)
    device.submit(**arms)
    queue.worker(module=STAND_IN)
    queue.done(2 * max(1, len(lengths_s)))
    assert bool(device.asked()) == asked


def test_the_work_is_as_long_as_its_count() -> None:
    script = str(Path(__file__).resolve().parents[2] / "jobs" / "canary_torch.py")

    def asked(*words: str) -> dict[str, Any]:
        alone = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
        }  # threads that wait for one another take minutes on a busy machine
        ran = subprocess.run(
            [sys.executable, script, "--device", "cpu", *words], capture_output=True, check=True, env=alone
        )
        return dict(json.loads(ran.stdout))

    found = asked()
    assert found["count"] >= 10 and found["dur_s"] > 0
    more, fewer = asked("--count", "200"), asked("--count", "20")
    assert (more["count"], fewer["count"]) == (200, 20) and more["dur_s"] > fewer["dur_s"]
