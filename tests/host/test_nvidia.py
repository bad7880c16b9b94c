"""NVIDIA GPUs through a stand-in for NVML: whose load it is, what slows it, and drivers that do not answer."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest

from queue_runner.host import linux_sensors, nvidia, run_sampler
from queue_runner.host.background import BackgroundReader
from queue_runner.machine_records import SensorSample
from tests.patience import UNTIL_S, patience
from tests.stand_in_nvml import Gpu, StandInNvml

pytestmark = pytest.mark.fast
RUN, CHILD, FOREIGN = 5000, 5001, 6000
PARENTS = {RUN: 4999, CHILD: RUN, FOREIGN: 1, 4999: 1}


def reader(*gpus: Gpu, own: int = RUN) -> nvidia.Nvml:
    found = nvidia.Nvml(StandInNvml(*gpus), parent=PARENTS.get, clock=lambda: 1e9 - 5)
    found.use_pids([own])
    return found


def test_what_a_gpu_says() -> None:
    gpu = Gpu(busy_percent=97, energy_mj=2_500, power_mw=699_500, heat_c=92, slowdown_c=87, sm_mhz=990, reasons=0x45)
    gpu.held, gpu.used_percent = {RUN: 1 << 30}, {RUN: 97}
    found = reader(gpu).read().known()
    assert found == {
        "gpu_busy_share": 0.97,
        "gpu_temperature_c": 92.0,
        "gpu_thermal_margin_c": -5.0,
        "gpu_clock_share": 0.5,
        "gpu_slowed_by": ["power cap", "thermal slowdown by hardware"],
        "gpus_used": [0],
        "energy_j": {"gpu0": 2.5},
        "power_w": {"gpu0": 699.5},
        "gpu_others_busy_share": 0.0,
    }
    assert set(found) <= {*SensorSample.__struct_fields__}


def test_load_of_others_is_what_neither_the_run_nor_the_queue_started() -> None:
    gpu = Gpu(
        held={RUN: 1, CHILD: 2, FOREIGN: 3 << 30, os.getpid(): 9}, used_percent={CHILD: 50, FOREIGN: 45, os.getpid(): 3}
    )
    found = reader(gpu).read().known()
    assert (found["gpu_others"], found["gpu_others_bytes"], found["gpu_others_busy_share"]) == (1, 3 << 30, 0.45)


def test_what_a_process_of_the_run_used_before_it_ended_is_not_foreign() -> None:
    gpu = Gpu(held={RUN: 1, CHILD: 2}, used_percent={RUN: 10, CHILD: 80})
    parents: dict[int, int] = dict(PARENTS)
    gpus = nvidia.Nvml(StandInNvml(gpu), parent=parents.get, clock=lambda: 1e9 - 5)
    gpus.use_pids([RUN])
    assert gpus.read().known()["gpu_others_busy_share"] == 0.0
    del parents[CHILD]
    gpu.held = {RUN: 1}
    found = gpus.read().known()
    assert found["gpu_others_busy_share"] == 0.0 and "gpu_others" not in found


def test_load_on_a_gpu_that_the_run_does_not_use_is_nobodys() -> None:
    mine = Gpu(held={RUN: 1}, used_percent={RUN: 99}, energy_mj=1_000)
    other = Gpu(busy_percent=100, heat_c=95, held={FOREIGN: 1}, used_percent={FOREIGN: 100}, energy_mj=7_000)
    gpus = reader(other, mine)
    found = gpus.read().known()
    assert (found["gpus_used"], found["gpu_busy_share"], found["gpu_temperature_c"]) == ([1], 0.97, 60.0)
    assert found["gpu_others_busy_share"] == 0.0 and found["energy_j"] == {"gpu0": 7.0, "gpu1": 1.0}
    mine.held, mine.used_percent = {}, {}
    assert gpus.read().known()["gpus_used"] == [1], "once used, a GPU stays the run's: it may be between two kernels"


def test_before_the_run_uses_a_gpu_nothing_is_said_of_others() -> None:
    found = reader(Gpu(held={FOREIGN: 1, os.getppid(): 2}, used_percent={FOREIGN: 80})).read().known()
    assert "gpus_used" not in found and "gpu_others_busy_share" not in found


@pytest.mark.parametrize("held", [{}, {2**22 + 7: 5}])
def test_processes_without_names_are_hidden_and_not_foreign(held: dict[int, int]) -> None:
    """In a container the driver names the host's pids, or none."""
    found = reader(Gpu(held=held, used_percent=None)).read().known()
    assert found["gpu_pids_hidden"] is True and "gpu_others" not in found


def test_a_driver_that_answers_little_leaves_the_rest_out() -> None:
    gpu = Gpu(None, None, None, None, None, None, reasons=None, held=None, used_percent=None)
    assert reader(gpu).read().known() == {}
    gpus = nvidia.Nvml(broken := StandInNvml())

    def refuse() -> None:
        raise broken.NVMLError(9)

    broken.nvmlInit = refuse  # type: ignore[method-assign]
    assert gpus.read().known() == {} and gpus.count() == 0
    gpus.close()


def test_unknown_use_by_others_keeps_their_memory() -> None:
    found = reader(Gpu(held={RUN: 1, FOREIGN: 8 << 30}, used_percent=None)).read().known()
    assert found["gpu_others_bytes"] == 8 << 30 and "gpu_others_busy_share" not in found


def test_without_a_driver_the_library_is_not_even_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)  # an import of it fails
    assert nvidia.library(tmp_path) is None and not nvidia.is_missing(tmp_path)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()
    assert nvidia.library(tmp_path) is None and nvidia.is_missing(tmp_path)
    monkeypatch.setitem(sys.modules, "pynvml", StandInNvml(Gpu(busy_percent=43)))  # type: ignore[arg-type]
    assert not nvidia.is_missing(tmp_path) and nvidia.busy_share(tmp_path) == 0.43
    asked: list[float] = []
    assert run_sampler.gpu_use_before(0.1, platform="linux", root=tmp_path, sleep=asked.append) == 0.43
    assert asked == [1.0, 1.0], "above the limit it is looked up again: it may be the run before"
    monkeypatch.setitem(sys.modules, "pynvml", StandInNvml(Gpu(), Gpu()))  # type: ignore[arg-type]
    assert nvidia.busy_share(tmp_path) is None


def test_a_sample_has_what_nvml_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()
    nvml = StandInNvml(Gpu(held={os.getpid(): 1}, used_percent={os.getpid(): 90}))
    monkeypatch.setitem(sys.modules, "pynvml", nvml)  # type: ignore[arg-type]
    sampler = run_sampler.Sampler(platform="linux", root=tmp_path)
    sample = sampler.sample([os.getpid()]).known()
    sampler.close()
    assert sample["energy_j"] == {"gpu0": 1000.0} and sample["gpus_used"] == [0] and "energy_at" in sample
    assert set(sample) <= {*SensorSample.__struct_fields__} and nvml.opened == 0


def test_after_a_run_whose_processes_were_hidden_the_gpu_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sandbox names no process: whoever computes after the run's end computed beside it."""
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()
    waited: list[float] = []
    monkeypatch.setattr(linux_sensors.time, "sleep", waited.append)
    for held, after, wanted in (({}, 88, 0.88), ({}, 0, 0.0), ({os.getpid(): 1}, 88, None)):
        nvml = StandInNvml(gpu := Gpu(held=held, used_percent=None))
        monkeypatch.setitem(sys.modules, "pynvml", nvml)
        sampler = run_sampler.Sampler(platform="linux", root=tmp_path)
        sampler.sample([])
        gpu.busy_percent = after
        assert sampler.gpu_busy_after() == wanted
        sampler.close()
    assert len(waited) == 3 + 1


def test_energy_is_counted_to_the_end_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However soon after the last sample it ends, and however late the worker looks."""
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()
    nvml = StandInNvml(gpu := Gpu(held={os.getpid(): 1}))
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    sampler = run_sampler.Sampler(platform="linux", root=tmp_path, clock=lambda: 0.0, fresh=True)
    sampler.sample([os.getpid()])
    gpu.energy_mj = 4_000_000
    assert sampler.at_end(None).energy_j == sampler.at_end(1.0).energy_j == {"gpu0": 4000.0}
    sampler.close()


def test_a_driver_that_hangs_holds_nobody() -> None:
    go_on, values = threading.Event(), iter([1, 2, 3])

    def read() -> int:
        value = next(values)
        if value == 2:
            go_on.wait(patience(UNTIL_S))
        return value

    beside = BackgroundReader(read)
    assert beside.latest(patience(UNTIL_S)) is not None
    assert (beside.latest(0.0) or (0, 0))[1] == 1 and beside.is_busy(), "the old answer, while the new one is awaited"
    assert (beside.latest(0.0) or (0, 0))[1] == 1, "and no second thread"
    go_on.set()
    assert (beside.latest(patience(UNTIL_S)) or (0, 0))[1] == 2
