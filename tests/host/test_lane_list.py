"""The lanes of a machine: GPUs of a stand-in for NVML, and the processors that a stand-in for sysfs calls local."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from queue_runner.errors import MpsqError
from queue_runner.host import lane_list, nvidia
from queue_runner.lanes import parts
from tests.process_support import needs_linux
from tests.stand_in_nvml import Gpu, StandInNvml

UUIDS = [f"GPU-{n}c1a7b9e-0000-1111-2222-333344445555" for n in range(3)]
SLICES = tuple(f"MIG-{n}c1a7b9e-0000-1111-2222-333344445555" for n in range(2))
HERE = range(8)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, StandInNvml]:
    """Two GPUs beside processors 0 to 3, a third beside 4 to 7; the process may use all but 3."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(HERE) - {3}, raising=False)
    gpus = [Gpu(uuid=uuid, place=f"00000000:0{n}:00.0") for n, uuid in enumerate(UUIDS)]
    for n in range(3):
        device = tmp_path / f"sys/bus/pci/devices/0000:0{n}:00.0"
        device.mkdir(parents=True)
        (device / "local_cpulist").write_text("0-3\n" if n < 2 else "4-7\n")
    return tmp_path, StandInNvml(*gpus)


@needs_linux
def test_gpus_that_share_processors_divide_them_and_all_lanes_have_as_many(machine: tuple[Path, StandInNvml]) -> None:
    found, told = lane_list.resolve("auto", *machine)
    assert [(lane.name, lane.cores) for lane in found] == [(UUIDS[0], (0,)), (UUIDS[1], (2,)), (UUIDS[2], (4,))]
    assert not told
    found, _ = lane_list.resolve(f"{UUIDS[0]},{UUIDS[2]}", *machine)
    assert [lane.cores for lane in found] == [(0, 1, 2), (4, 5, 6)]


def cores_of(machine: tuple[Path, StandInNvml], setting: str = "auto") -> list[tuple[int, ...]]:
    return [lane.cores for lane in lane_list.resolve(setting, *machine)[0]]


@needs_linux
def test_threads_of_one_core_stay_together(machine: tuple[Path, StandInNvml], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    root = machine[0]
    for n in range(16):
        topology = root / f"sys/devices/system/cpu/cpu{n}/topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{n % 8},{n % 8 + 8}\n")
    for n, text in enumerate(("0-3,8-11", "0-3,8-11", "4-7,12-15")):
        (root / f"sys/bus/pci/devices/0000:0{n}:00.0/local_cpulist").write_text(text + "\n")
    assert cores_of(machine) == [(0, 1, 8, 9), (2, 3, 10, 11), (4, 5, 12, 13)]


@needs_linux
def test_each_processor_is_of_one_lane(machine: tuple[Path, StandInNvml]) -> None:
    assert cores_of(machine, f"cpu:0+4,{UUIDS[0]},{UUIDS[2]}") == [(0, 4), (1, 2), (5, 6)]
    (machine[0] / "sys/bus/pci/devices/0000:01:00.0/local_cpulist").write_text("2-7\n")
    shares = cores_of(machine)
    assert len({core for cores in shares for core in cores}) == sum(map(len, shares)) == 6
    found, told = lane_list.resolve(f"cpu:0-2+4-7,{UUIDS[0]}", *machine)
    assert found[1].cores == () and "too few processors" in told[0]


@needs_linux
def test_slices_are_lanes_of_their_own(machine: tuple[Path, StandInNvml]) -> None:
    machine[1].gpus[2].slices = SLICES
    found, _ = lane_list.resolve("auto", *machine)
    assert [lane.name for lane in found] == [*UUIDS[:2], *SLICES]


def test_what_is_not_there_is_said(machine: tuple[Path, StandInNvml]) -> None:
    with pytest.raises(MpsqError, match="this machine has no"):
        lane_list.resolve(UUIDS[0].replace("0c1a", "ffff"), *machine)
    with pytest.raises(MpsqError, match="processor 3"):
        lane_list.resolve("cpu:2-3,cpu:4-5", *machine)
    lanes, (note,) = lane_list.resolve("auto", machine[0], StandInNvml())
    assert lanes == [] and "NVML lists none" in note


def test_a_lane_s_gate_looks_at_its_own_gpu(machine: tuple[Path, StandInNvml]) -> None:
    nvml = machine[1]
    nvml.gpus[0].busy_percent, nvml.gpus[1].busy_percent = 90, 5
    reader = nvidia.Nvml(nvml)
    reader.watch(parts(UUIDS[1]))
    assert reader.read().gpu_busy_share == 0.05
