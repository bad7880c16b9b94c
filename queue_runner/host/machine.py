"""The machine's identity: what must be equal for two runs to be comparable, and is unchanged by a reboot.

Versions of the system and of drivers are not part of it: they are factors of a comparison (`software`). Nothing here
raises.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import sys
from pathlib import Path

from msgspec import structs

from queue_runner.host.command import Ask, ask
from queue_runner.host.filesystem import read_text
from queue_runner.machine_records import AppleGpu, Machine, System
from queue_runner.units import whole

_SALT = "mpsq machine\0"
"""Salt of the hashed machine id: machine-id(5) of systemd asks not to expose the id itself."""
_ARM_PARTS = ("CPU implementer", "CPU part")


def describe(*, ask: Ask = ask, root: Path = Path("/"), system: str = sys.platform) -> Machine:
    """Return the identity. Takes some 300 ms on macOS and where nvidia-smi must be run.

    Args: `ask` runs a command, `root` holds /proc, /sys and /etc, `system` is sys.platform.
    """
    machine = _macos(ask) if system == "darwin" else _linux(ask, root)
    if stand_in := os.environ.get("MPSQ_TEST_MACHINE"):  # tests alone: two nodes that share a host
        return structs.replace(machine, id=_hashed(stand_in))
    return machine


def software(*, ask: Ask = ask, root: Path = Path("/"), system: str = sys.platform) -> System:
    """Return what a system update or setting changes: the version, the kernel, the GPU driver."""
    if system == "darwin":
        return System(
            kernel=platform.release(),
            os="macOS",
            os_version=_line(ask(["/usr/bin/sw_vers", "-productVersion"])),  # mac_ver() is wrong on macOS 26
            gpu_wired_limit_mib=whole(_sysctl(ask, ["iogpu.wired_limit_mb"]).get("iogpu.wired_limit_mb")),
            rosetta=under_rosetta(ask=ask, system=system),
        )
    release = dict(re.findall(r'^(ID|VERSION_ID)="?([^"\n]*)"?$', read_text(root / "etc/os-release"), re.MULTILINE))
    driver = re.search(r"Kernel Module\s+(?:for \S+\s+)?([\d.]+)", read_text(root / "proc/driver/nvidia/version"))
    return System(
        kernel=platform.release(),
        os=release.get("ID"),
        os_version=release.get("VERSION_ID"),
        gpu_driver=driver[1] if driver else None,
    )


def under_rosetta(*, ask: Ask = ask, system: str = sys.platform, machine: str | None = None) -> bool | None:
    """Return whether this Python is an Intel one on Apple silicon: translated, and without any current torch."""
    if system != "darwin":
        return False
    if (machine or platform.machine()) not in ("x86_64", "i386"):  # some builds of Python report i386
        return False
    # sysctl.proc_translated would describe sysctl's own process
    return _sysctl(ask, ["hw.optional.arm64"]).get("hw.optional.arm64") == "1"


# -- macOS ----------------------------------------------------------------------------------------------------------


def _macos(ask: Ask) -> Machine:
    names = ["machdep.cpu.brand_string", "hw.model", "hw.memsize", "hw.physicalcpu", "hw.logicalcpu", "hw.nperflevels"]
    values = _sysctl(ask, [*names, "hw.optional.arm64"])
    levels = min(whole(values.get("hw.nperflevels")) or 0, 4)
    tiers = _sysctl(ask, [f"hw.perflevel{n}.{what}" for n in range(levels) for what in ("name", "physicalcpu")])
    uuid = re.search(
        r'"IOPlatformUUID" = "([^"]+)"', ask(["/usr/sbin/ioreg", "-rd1", "-c", "IOPlatformExpertDevice"]) or ""
    )
    return Machine(
        arch="arm64" if values.get("hw.optional.arm64") == "1" else platform.machine(),
        cores_logical=whole(values.get("hw.logicalcpu")),
        cores_physical=whole(values.get("hw.physicalcpu")),
        # M1 to M4 report Performance and Efficiency, later chips other names: keep the names
        cores_by_tier={
            tiers.get(f"hw.perflevel{n}.name", f"level {n}"): whole(tiers.get(f"hw.perflevel{n}.physicalcpu"))
            for n in range(levels)
        },
        cpu=values.get("machdep.cpu.brand_string"),
        gpus=_apple_gpu(ask, values.get("machdep.cpu.brand_string"))
        or _mac_gpus(ask(["/usr/sbin/system_profiler", "SPDisplaysDataType", "-json"])),
        id=_hashed(uuid[1]) if uuid else None,
        memory_gib=_gib(whole(values.get("hw.memsize"))),
        model=values.get("hw.model"),
        system="macOS",
    )


def _sysctl(ask: Ask, names: list[str]) -> dict[str, str]:
    """Return the values of `names`, without those missing here. Query all at once, then one by one if that fails."""
    values = _pairs(ask(["/usr/sbin/sysctl", *names]) if names else None)
    for name in names:
        if name not in values and len(names) > 1:
            values |= _pairs(ask(["/usr/sbin/sysctl", name]))
    return values


def _pairs(text: str | None) -> dict[str, str]:
    lines = (line.partition(": ") for line in (text or "").splitlines())
    return {name.strip(): value.strip() for name, colon, value in lines if colon}


def _apple_gpu(ask: Ask, chip: str | None) -> list[AppleGpu | str] | None:
    """Return the GPU of an Apple chip, which has the chip's name, by its driver: at login system_profiler can take
    longer than its time limit."""
    output = ask(["/usr/sbin/ioreg", "-r", "-d", "1", "-w", "0", "-c", "AGXAccelerator"])
    cores = re.search(r'"gpu-core-count" = (\d{1,4})\b', output or "")
    return [AppleGpu(cores=int(cores[1]), name=chip)] if cores and chip else None


def _mac_gpus(text: str | None) -> list[AppleGpu | str] | None:
    """Parse the GPUs. `sppci_cores` is a number in a string; M1 Max has 24 or 32 cores under one name."""
    try:
        cards = json.loads(text or "")["SPDisplaysDataType"]
        return [AppleGpu(cores=whole(card.get("sppci_cores")), name=card.get("sppci_model")) for card in cards]
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


# -- Linux ----------------------------------------------------------------------------------------------------------


def _linux(ask: Ask, root: Path) -> Machine:
    cpuinfo = read_text(root / "proc/cpuinfo")
    cores = set(re.findall(r"^physical id\s*: (\d+)$(?:\n.+)*?\ncore id\s*: (\d+)$", cpuinfo, re.MULTILINE))
    memory = re.search(r"^MemTotal:\s*(\d+) kB", read_text(root / "proc/meminfo"), re.MULTILINE)
    limit = whole(read_text(root / "sys/fs/cgroup/memory.max"))
    size = int(memory[1]) * 1024 if memory else None
    machine_id = read_text(root / "etc/machine-id").strip()
    return Machine(
        arch=platform.machine(),
        cores_logical=cpuinfo.count("processor\t:") or os.cpu_count(),
        cores_physical=len(cores) or None,
        cpu=_cpu_name(cpuinfo, root),
        cpu_quota=_quota(read_text(root / "sys/fs/cgroup/cpu.max")),
        gpus=_linux_gpus(ask, root),
        id=_hashed(machine_id) if re.fullmatch(r"[0-9a-f]{32}", machine_id) else None,
        # MemTotal differs by some MB from kernel to kernel
        memory_gib=_gib(min(size, limit) if size and limit else size),
        model=_line(read_text(root / "sys/class/dmi/id/product_name")),
        system=platform.system(),
    )


def _cpu_name(cpuinfo: str, root: Path) -> str | None:
    if match := re.search(r"^model name\s*: (.+)$", cpuinfo, re.MULTILINE):
        return " ".join(match[1].split())
    parts = [re.search(rf"^{name}\s*: (\S+)$", cpuinfo, re.MULTILINE) for name in _ARM_PARTS]
    if all(parts):
        return "ARM implementer {} part {}".format(*(match[1] for match in parts if match))
    return _line(read_text(root / "proc/device-tree/model").rstrip("\0"))


def _quota(text: str) -> float | None:
    """Parse the container's CPU limit (cgroup v2, `quota period` in microseconds); None without a limit."""
    match = re.fullmatch(r"(\d+) (\d+)\s*", text)
    return round(int(match[1]) / int(match[2]), 3) if match and int(match[2]) else None


def _linux_gpus(ask: Ask, root: Path) -> list[AppleGpu | str] | None:
    """Return the names, sorted, from NVIDIA's driver in /proc, or from nvidia-smi where that is hidden."""
    names = []
    for path in sorted((root / "proc/driver/nvidia/gpus").glob("*/information")):
        if match := re.search(r"^Model:\s*(.+?)\s*$", read_text(path), re.MULTILINE):
            names.append(match[1])
    if not names:
        output = ask(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"])
        names = [line.strip() for line in (output or "").splitlines() if line.strip()]
    for path in sorted((root / "sys/class/drm").glob("card?/device")):
        if read_text(path / "vendor").strip() == "0x1002":
            names.append(f"AMD {_line(read_text(path / 'product_name')) or read_text(path / 'device').strip()}")
    return [*sorted(names)] or None


# -- plain values ---------------------------------------------------------------------------------------------------


def _hashed(name: str) -> str:
    return hashlib.sha256((_SALT + name).encode()).hexdigest()[:16]


def _gib(size_bytes: int | None) -> int | None:
    return None if size_bytes is None else max(1, round(size_bytes / 2**30))


def _line(text: str | None) -> str | None:
    return (text or "").strip().split("\n")[0].strip() or None
