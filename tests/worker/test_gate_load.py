"""The load of the last few seconds, on a stand-in for the processors, and this machine's own processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import cast

import pytest

from queue_runner.config_file import Config
from queue_runner.host import cpu_time, linux_sensors, run_sampler
from queue_runner.host.cpu_time import CpuTimes, MachineTime, Named, ProcessTime
from queue_runner.machine_records import SensorSample
from queue_runner.worker import gate, gate_load
from queue_runner.worker.gate_load import Load
from tests.process_support import needs_linux
from tests.queue_support import until
from tests.stand_in_nvml import Gpu, StandInNvml


class StandIn(CpuTimes):
    """A machine of two processors and a clock, with one process of ours, and a GPU."""

    def __init__(self) -> None:
        self.at = 100.0
        self.busy_s = self.own_s = 0.0
        self.gpu = 0.0
        self.answers_after_s: float | None = 0.0

    def pass_by(self, seconds: float, *, others: float = 0.0, ours: float = 0.0) -> None:
        """Let time pass in which others, and we, use this many processors."""
        self.at += seconds
        self.busy_s += (others + ours) * seconds
        self.own_s += ours * seconds

    def clock(self) -> float:
        return self.at

    def machine(self) -> MachineTime:
        return MachineTime(self.busy_s, 2 * self.at, None)

    def processes(self, named: Iterable[Named]) -> dict[tuple[int, float], ProcessTime]:
        return {(os.getpid(), 0.0): ProcessTime(1, self.own_s)}

    reads_gpu = True

    def sample(self) -> SensorSample:
        return SensorSample(gpu_busy_share=0.5)  # of a reading that may be too old

    def gpu_use(self) -> tuple[float, SensorSample]:
        return float("inf") if self.answers_after_s is None else self.answers_after_s, SensorSample(
            gpu_busy_share=self.gpu
        )

    def close(self) -> None: ...


@pytest.fixture
def machine() -> StandIn:
    return StandIn()


def of(machine: StandIn) -> Load:
    return Load(source=machine, sampler=cast("run_sampler.Sampler", machine), clock=machine.clock)


def test_no_share_before_a_window_has_passed(machine: StandIn) -> None:
    watch = of(machine)
    watch.sample()
    machine.pass_by(gate_load.WINDOW_S - 0.1)
    assert watch.cpu_share() is None and watch.read(gpu=False) is None
    assert watch.read(cpu=False, gpu=False) is not None, "what does not matter is not waited for"
    machine.pass_by(0.1)
    assert watch.cpu_share() == 0.0


def test_the_queue_does_not_count_as_others(machine: StandIn) -> None:
    watch = of(machine)
    watch.sample()
    machine.pass_by(5.0, others=0.5, ours=1.0)
    assert watch.cpu_share() == pytest.approx(0.25)


def test_only_the_last_seconds_count(machine: StandIn) -> None:
    watch = of(machine)
    for _ in range(20):
        watch.sample()
        machine.pass_by(0.5, others=2.0)
    assert watch.cpu_share() == pytest.approx(1.0)
    for _ in range(6):
        watch.sample()
        machine.pass_by(0.5)
    assert watch.cpu_share() == 0.0, "the load ended a window ago"
    machine.pass_by(gate_load.OLD_S + 1)
    assert watch.cpu_share() is None, "the last sample is too old to say what happens now"


@pytest.mark.parametrize("others", [0.3, 2.0])
def test_calm_is_reported_within_five_seconds(machine: StandIn, others: float) -> None:
    """Whenever the load ends between two looks of the gate, and however heavy it was."""
    for phase in (0.01, 0.17, 0.33, 0.49):
        watch = of(machine)
        for _ in range(20):
            watch.sample()
            machine.pass_by(gate.LOOK_S, others=others)
        machine.pass_by(phase, others=others)
        ended = machine.at
        machine.pass_by(gate.LOOK_S - phase)
        watch.sample()
        assert (watch.cpu_share() or 1.0) > Config().gate_cpu_share, "it has just ended"
        while (share := watch.cpu_share()) is None or share > Config().gate_cpu_share:
            machine.pass_by(gate.LOOK_S)
            watch.sample()
        assert machine.at - ended <= 4.0, "and a second is left for the start"


def test_the_gpu_is_read_again_after_a_run_of_ours(machine: StandIn) -> None:
    watch = of(machine)
    machine.gpu = 0.9
    watch.sample(running=True)
    assert watch.read(cpu=False) is None, "the average may still be of the run"
    machine.pass_by(gate_load.GPU_AFTER_S + 0.1)
    machine.answers_after_s = 1.0
    assert watch.read(cpu=False) is None, "it was asked while that was so"
    machine.pass_by(1.0)
    reading = watch.read(cpu=False)
    assert reading is not None and reading.gpu_busy_share == 0.9 and reading.gpu_temperature_c is None


def test_a_tool_that_does_not_answer_is_not_waited_for(machine: StandIn) -> None:
    watch = of(machine)
    machine.answers_after_s = None
    machine.pass_by(5.0)
    assert watch.read(cpu=False) is None
    machine.pass_by(gate_load.GPU_UNKNOWN_S + 0.1)
    reading = watch.read(cpu=False)
    assert reading is not None and reading.gpu_busy_share is None


def test_nvml_is_dated_by_its_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = StandInNvml(Gpu(busy_percent=37, heat_c=61))
    monkeypatch.setattr(linux_sensors.nvidia, "library", lambda root: library)
    sampler = run_sampler.Sampler(platform="linux", root=tmp_path)
    assert sampler.reads_gpu and sampler.gpu_use()[0] == float("inf"), "nothing was read yet"
    until(lambda: sampler.sample() and sampler.gpu_use()[1].known(), "the first reading")
    age_s, values = sampler.gpu_use()
    assert 0 <= age_s < 60 and values.known() == {"gpu_busy_share": 0.37, "gpu_temperature_c": 61.0}
    sampler.close()
    monkeypatch.setattr(linux_sensors.nvidia, "library", lambda root: None)
    assert not run_sampler.Sampler(platform="linux", root=tmp_path).reads_gpu


@needs_linux
@pytest.mark.process
def test_what_our_children_use_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a run with a warden that has ended, and of a hook that runs: the rest of the machine counts as others'."""
    monkeypatch.setattr(gate_load, "WINDOW_S", 0.5)
    monkeypatch.setattr(gate_load, "OLD_S", 300.0)  # the program takes long where others compute
    program = "import os, time; os.fork() or os._exit(sum(range(20_000_000)) * 0); os.wait()"
    source, watch = CpuTimes(), Load()
    watch.sample()
    before, own_before = source.machine(), sum(os.times()[:4])
    hook = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    subprocess.run([sys.executable, "-c", program], check=True)
    share = until(watch.cpu_share, "the window")
    used_by_hook_s = sum(process.cpu_s for process in source.processes([hook.pid]).values())
    after, own_s = source.machine(), sum(os.times()[:4]) - own_before
    hook.kill()
    hook.wait()
    assert before is not None and after is not None
    total_s = after.total_s - before.total_s
    left_s = after.busy_s - before.busy_s - own_s - used_by_hook_s
    assert own_s + used_by_hook_s > 0.2, "they did use the processors"
    assert share == pytest.approx(left_s / total_s, abs=0.1)


@pytest.mark.process
def test_children_of_children_are_below(monkeypatch: pytest.MonkeyPatch) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import os, time; os.fork(); time.sleep(60)"])
    try:
        until(lambda: len(cpu_time.below([child.pid])) == 2, "the grandchild")
        pids = cpu_time.below([os.getpid()])
        assert {os.getpid(), child.pid} <= pids and cpu_time.below([child.pid]) <= pids

        def unknown(pid: int) -> list[int]:
            raise NotImplementedError

        monkeypatch.setattr(cpu_time, "_children", unknown)
        assert len(cpu_time.below([child.pid])) == 2, "from the process table"
    finally:
        for pid in cpu_time.below([child.pid]):
            os.kill(pid, 9)
        child.wait()
