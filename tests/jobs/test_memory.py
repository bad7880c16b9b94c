"""What a workload tells of memory: on the CPU that of its process, on mps torch's own peaks."""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from harness import apple, device

pytestmark = pytest.mark.slow

MIB = 2**20


def test_the_resident_memory_of_this_process_follows_what_it_touches() -> None:
    allocated, before = device.process_memory()
    assert allocated is None and before is not None and before > 4 * MIB
    with mmap.mmap(-1, 64 * MIB) as pages:  # given back at once, as malloc need not do
        for at in range(0, len(pages), mmap.PAGESIZE):
            pages[at] = 1
        _, with_it = device.process_memory()
    _, after = device.process_memory()
    assert with_it is not None and after is not None
    assert 60 * MIB < with_it - before < 80 * MIB and with_it - after > 60 * MIB


def test_where_the_system_does_not_tell_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: Any) -> int:
        raise FileNotFoundError

    monkeypatch.setattr(os, "open", gone)
    device._memory_reader.cache_clear()
    try:
        assert device.process_memory() == (None, None)
    finally:
        device._memory_reader.cache_clear()


def test_the_memory_of_a_mac_is_the_footprint(monkeypatch: pytest.MonkeyPatch) -> None:
    """The resident size lacks compressed pages and has freed ones. <sys/resource.h>: ri_uuid[16], user and system time,
    two counts of wake-ups, pageins, wired, resident size, physical footprint."""

    class Library:
        def proc_pid_rusage(self, pid: int, flavor: int, buffer: Any) -> int:
            assert pid == os.getpid() and flavor == 0
            numbers = (1, 2, 3, 4, 5, 6, 7 * MIB, 8 * MIB, 9, 10)
            buffer[: 16 + 80] = bytes(16) + b"".join(x.to_bytes(8, "little") for x in numbers)
            return 0

    monkeypatch.setattr(device.platform, "system", lambda: "Darwin")
    monkeypatch.setattr(apple.ctypes, "CDLL", lambda _: Library())
    device._memory_reader.cache_clear()
    try:
        assert device.process_memory() == (None, 8 * MIB)
    finally:
        device._memory_reader.cache_clear()


def test_the_cpu_of_torch_tells_it() -> None:
    from harness.torch_backend.device import open_device

    allocated, reserved = open_device("cpu").memory()
    assert allocated is None and reserved is not None and reserved > 50 * MIB


def test_hello_tells_what_metal_recommends(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a stand-in for torch's device."""
    import torch

    from harness.torch_backend.device import ALONE
    from harness.torch_backend.main import Torch
    from mpsq_report_watch import facts_of_torch

    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 11 * MIB)
    for kind, peak in (("mps", 11 * MIB), ("cpu", None)):
        metal: Any = SimpleNamespace(kind=kind, type=kind, group=ALONE)
        assert Torch().facts(metal).get("recommended_memory_bytes") == peak
        assert facts_of_torch(metal, ()).get("recommended_memory_bytes") == peak


@pytest.mark.parametrize(
    ("kind", "version", "result"),
    [("mps", "2.13.0", (5, 7)), ("mps", "2.12.1", (None, None)), ("cpu", "2.13.0", (None, None))],
)
def test_torch_counts_its_peaks_on_mps(
    monkeypatch: pytest.MonkeyPatch, kind: str, version: str, result: tuple[int | None, int | None]
) -> None:
    """Within iterations too, from torch 2.13 on. By a stand-in for its allocator."""
    import torch
    from torch.torch_version import TorchVersion

    from harness.torch_backend.device import Device
    from harness.torch_backend.main import Torch

    monkeypatch.setattr(torch, "__version__", TorchVersion(version))
    monkeypatch.setattr(torch.accelerator, "max_memory_allocated", lambda: 5)
    monkeypatch.setattr(torch.accelerator, "max_memory_reserved", lambda: 7)
    metal = Device(torch.device(kind), "", lambda: None)
    assert Torch().peak_memory(metal) == result

    def refuse() -> int:
        raise RuntimeError("Cannot access accelerator device when none is available.")

    monkeypatch.setattr(torch.accelerator, "max_memory_reserved", refuse)
    assert Torch().peak_memory(metal) == (None, None)


def test_the_version_of_macos_is_the_true_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """platform.mac_ver() is 16.0 on macOS 26 in a Python that was built for an older system."""
    requested: list[tuple[object, str]] = []

    def run(command: object, env: Mapping[str, str], **_: object) -> SimpleNamespace:
        requested.append((command, env["SYSTEM_VERSION_COMPAT"]))
        return SimpleNamespace(stdout="26.1\n")

    monkeypatch.setattr(apple.subprocess, "run", run)
    assert apple.macos_version() == "26.1" and requested == [(("/usr/bin/sw_vers", "-productVersion"), "0")]
    monkeypatch.setattr(apple.subprocess, "run", raise_not_found)
    assert apple.macos_version() == apple.platform.mac_ver()[0]


def raise_not_found(*_: object, **__: object) -> None:
    raise FileNotFoundError
