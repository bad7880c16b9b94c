"""The machine's identity from what systems really print; what is not there is None and never an error."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from queue_runner.host import machine
from queue_runner.machine_records import read_machine

MAC = {
    "machdep.cpu.brand_string": "Apple M1 Max",
    "hw.model": "MacBookPro18,2",
    "hw.memsize": "68719476736",
    "hw.physicalcpu": "10",
    "hw.logicalcpu": "10",
    "hw.nperflevels": "2",
    "hw.optional.arm64": "1",
    "hw.perflevel0.name": "Performance",
    "hw.perflevel0.physicalcpu": "8",
    "hw.perflevel1.name": "Efficiency",
    "hw.perflevel1.physicalcpu": "2",
    "iogpu.wired_limit_mb": "0",
}
DISPLAYS = {
    "SPDisplaysDataType": [
        {"sppci_cores": "32", "sppci_model": "Apple M1 Max", "spdisplays_mtlgpufamilysupport": "spdisplays_metal3"}
    ]
}


AGX = """+-o AGXAcceleratorG13X  <class AGXAcceleratorG13X, id 0x1000004d1, registered, matched, active, busy 0>
    {
      "gpu-core-count" = 32
      "model" = "Apple M1 Max"
      "GPUConfigurationVariable" = {"num_gps"=4,"gpu_gen"=13,"num_cores"=32}
    }
"""


class Mac:
    """The tools of a Mac. sysctl prints what it knows; `strict` is one that gives up at a name it does not know."""

    def __init__(self, sysctl: dict[str, str] = MAC, *, strict: bool = False, accelerator: str = AGX) -> None:
        self.sysctl, self.strict, self.accelerator = sysctl, strict, accelerator
        self.asked: list[str] = []

    def __call__(self, argv: Sequence[str]) -> str | None:
        tool, *rest = argv
        self.asked.append(Path(tool).name)
        match Path(tool).name:
            case "sysctl":
                if self.strict and not set(rest) <= set(self.sysctl):
                    return None
                return "".join(f"{name}: {self.sysctl[name]}\n" for name in rest if name in self.sysctl)
            case "sw_vers":
                return "26.1\n"
            case "system_profiler":
                return json.dumps(DISPLAYS)
            case "ioreg" if "AGXAccelerator" in rest:
                return self.accelerator
            case "ioreg":
                return '  | {\n  |   "IOPlatformUUID" = "0A1B2C3D-0000-1111-2222-333344445555"\n  | }\n'
        raise AssertionError(argv)


def test_a_mac_is_described() -> None:
    found = machine.describe(ask=Mac(), system="darwin")
    facts = json.loads(json.dumps(found.facts()))
    assert facts == {
        "arch": "arm64",
        "cores_by_tier": {"Performance": 8, "Efficiency": 2},
        "cores_logical": 10,
        "cores_physical": 10,
        "cpu": "Apple M1 Max",
        "gpus": [{"cores": 32, "name": "Apple M1 Max"}],
        "id": machine._hashed("0A1B2C3D-0000-1111-2222-333344445555"),
        "memory_gib": 64,
        "model": "MacBookPro18,2",
        "system": "macOS",
    }
    assert found.gpu_cores == 32 and read_machine(json.dumps(facts)) == found
    assert "0A1B" not in json.dumps(facts), "the machine's own id is shown to nobody"


def test_the_identity_of_a_mac_does_not_wait_for_system_profiler() -> None:
    """At login it can take longer than its time limit, and the GPU's cores would be unknown: another machine."""
    mac = Mac()
    found = machine.describe(ask=mac, system="darwin")
    assert "system_profiler" not in mac.asked
    other = Mac(accelerator="")
    assert machine.describe(ask=other, system="darwin") == found and "system_profiler" in other.asked


def test_a_sysctl_that_gives_up_is_asked_name_by_name() -> None:
    few = {name: value for name, value in MAC.items() if name != "hw.physicalcpu"}
    found = machine.describe(ask=Mac(few, strict=True), system="darwin")
    assert found.cpu == "Apple M1 Max" and found.cores_physical is None
    assert found.cores_by_tier == {"Performance": 8, "Efficiency": 2}


def test_a_mac_without_tools_is_unknown() -> None:
    found = machine.describe(ask=lambda _: None, system="darwin")
    assert found.cpu is found.gpus is found.id is found.memory_gib is None
    assert found.gpu_cores is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"SPDisplaysDataType": 3}', '{"SPDisplaysDataType": ["x"]}', "\x00"])
def test_odd_displays_are_unknown(text: str) -> None:
    assert machine._mac_gpus(text) is None


def test_versions_of_a_mac_are_software() -> None:
    found = machine.software(ask=Mac(), system="darwin")
    assert (found.os, found.os_version, found.gpu_wired_limit_mib) == ("macOS", "26.1", 0)


@pytest.mark.parametrize(
    ("system", "architecture", "sysctl", "answer"),
    [
        ("darwin", "x86_64", MAC, True),
        ("darwin", "x86_64", {}, False),  # an Intel Mac has no such name
        ("darwin", "arm64", MAC, False),
        ("linux", "x86_64", {}, False),
    ],
)
def test_rosetta(system: str, architecture: str, sysctl: dict[str, str], answer: bool) -> None:
    assert machine.under_rosetta(ask=Mac(sysctl), system=system, machine=architecture) is answer


@pytest.fixture
def root(tmp_path: Path) -> Path:
    blocks = [
        f"processor\t: {n}\nmodel name\t: AMD  EPYC 7B13\nphysical id\t: {n // 4}\nsiblings: 4\ncore id\t\t: {n % 2}\n"
        for n in range(8)
    ]
    for name, text in {
        "proc/cpuinfo": "\n".join(blocks),
        "proc/meminfo": "MemTotal:       65831228 kB\nMemFree: 1 kB\n",
        "etc/machine-id": "3d1219c7c4c5404aaa1f6d2a48adfda4\n",
        "etc/os-release": 'PRETTY_NAME="Debian"\nID=debian\nVERSION_ID="12"\n',
        "sys/class/dmi/id/product_name": "ProLiant\n",
        "proc/driver/nvidia/gpus/0000:01:00.0/information": "Model: \t\t NVIDIA H200\nIRQ:   12\nGPU UUID: GPU-1\n",
        "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu\nGCC 12\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def no_tools(argv: Sequence[str]) -> str | None:
    return None


def test_a_linux_box_is_described(root: Path) -> None:
    found = machine.describe(ask=no_tools, root=root, system="linux")
    assert (found.cpu, found.cores_logical, found.cores_physical) == ("AMD EPYC 7B13", 8, 4)
    assert (found.memory_gib, found.gpus, found.model, found.cpu_quota) == (
        63,
        ["NVIDIA H200"],
        "ProLiant",
        None,
    )
    assert found.id and "3d1219c7" not in json.dumps(found.facts())


def test_some_kilobytes_less_are_the_same_machine(root: Path) -> None:
    before = machine.describe(ask=no_tools, root=root, system="linux")
    (root / "proc/meminfo").write_text("MemTotal:       65829999 kB\n")
    (root / "etc/os-release").write_text("ID=debian\nVERSION_ID=13\n")
    assert machine.describe(ask=no_tools, root=root, system="linux") == before
    (root / "etc/machine-id").write_text("f" * 32)
    assert machine.describe(ask=no_tools, root=root, system="linux") != before


def test_a_container_has_what_it_was_given(root: Path) -> None:
    (root / "sys/fs/cgroup").mkdir(parents=True)
    (root / "sys/fs/cgroup/cpu.max").write_text("150000 100000\n")
    (root / "sys/fs/cgroup/memory.max").write_text(f"{8 * 2**30}\n")
    found = machine.describe(ask=no_tools, root=root, system="linux")
    assert (found.cpu_quota, found.memory_gib) == (1.5, 8)
    (root / "sys/fs/cgroup/cpu.max").write_text("max 100000\n")
    (root / "sys/fs/cgroup/memory.max").write_text("max\n")
    found = machine.describe(ask=no_tools, root=root, system="linux")
    assert (found.cpu_quota, found.memory_gib) == (None, 63)


def test_nvidia_smi_is_asked_where_the_driver_hides(root: Path) -> None:
    (root / "proc/driver/nvidia/gpus/0000:01:00.0/information").unlink()
    asked = []

    def tool(argv: Sequence[str]) -> str | None:
        asked.append(argv[0])
        return "NVIDIA L4\nNVIDIA A10\n"

    assert machine.describe(ask=tool, root=root, system="linux").gpus == ["NVIDIA A10", "NVIDIA L4"]
    assert asked == ["nvidia-smi"]


def test_an_arm_board_has_a_name(root: Path) -> None:
    (root / "proc/cpuinfo").write_text("processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n")
    assert machine.describe(ask=no_tools, root=root, system="linux").cpu == "ARM implementer 0x41 part 0xd0c"


def test_versions_of_linux_are_software(root: Path) -> None:
    found = machine.software(root=root, system="linux")
    assert (found.os, found.os_version, found.gpu_driver) == ("debian", "12", "570.86.15")
    of_an_h200 = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (x@y)  \n"
    (root / "proc/driver/nvidia/version").write_text(of_an_h200)
    assert machine.software(root=root, system="linux").gpu_driver == "580.159.04"


def test_an_empty_root_is_unknown_and_no_error(tmp_path: Path) -> None:
    found = machine.describe(ask=no_tools, root=tmp_path, system="linux")
    assert found.cpu is found.id is found.gpus is found.memory_gib is None
    machine.software(root=tmp_path, system="linux")


def test_this_machine_answers_twice_alike() -> None:
    found = machine.describe()
    assert found == machine.describe() and found.cores_logical
    assert read_machine(json.dumps(found.facts())) == found
