"""Counters of energy: RAPL's files with their wraparound, and a stand-in for zeus-apple-silicon."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from queue_runner.host import energy_meters, run_sampler

pytestmark = pytest.mark.fast


def rapl(root: Path, name: str, microjoules: str, of: str = "package-0", span: str = "262143328850") -> None:
    folder = root / "sys/class/powercap" / name
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in (("name", of), ("energy_uj", microjoules), ("max_energy_range_uj", span)):
        (folder / file).write_text(text + "\n")


def test_rapl_counts_packages_and_wraps_around(tmp_path: Path) -> None:
    rapl(tmp_path, "intel-rapl:0", "262143000000")
    rapl(tmp_path, "intel-rapl:0:0", "5", of="core")  # part of the package
    rapl(tmp_path, "intel-rapl:1", "1000", of="psys")  # the platform: the packages again, and more
    meter = energy_meters.Rapl(tmp_path)
    assert meter.read() == {"package-0": 0.0}
    rapl(tmp_path, "intel-rapl:0", "262143300000")
    assert meter.read() == {"package-0": pytest.approx(0.3)}
    rapl(tmp_path, "intel-rapl:0", "1971150")
    assert meter.read() == {"package-0": pytest.approx(0.3 + 0.02885 + 1.97115)}


def test_rapl_that_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    """Since Linux 5.10 the files are root's alone; and where there are none, there is no meter."""
    assert energy_meters.Rapl(tmp_path).read() == {}
    rapl(tmp_path, "intel-rapl:0", "")
    assert energy_meters.Rapl(tmp_path).read() == {}


def test_a_sample_has_the_packages(tmp_path: Path) -> None:
    rapl(tmp_path, "intel-rapl:0", "1000000")
    sampler = run_sampler.Sampler(platform="linux", root=tmp_path)
    assert sampler.sample([]).energy_j == {"package-0": 0.0}
    rapl(tmp_path, "intel-rapl:0", "3500000")
    assert sampler.sample([]).energy_j == {"package-0": 2.5}
    sampler.close()


class StandInMonitor:
    """A stand-in for zeus_apple_silicon.AppleEnergyMonitor, version 1.1, on a chip without a counter for its memory."""

    def get_cumulative_energy(self) -> SimpleNamespace:
        return SimpleNamespace(cpu_total_mj=1500, gpu_mj=20_000, ane_mj=0, dram_mj=None, gpu_sram_mj=3)


def test_a_mac_counts_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zeus_apple_silicon", SimpleNamespace(AppleEnergyMonitor=StandInMonitor))  # type: ignore[arg-type]
    meter = energy_meters.apple_energy()
    assert meter is not None and meter.read() == {"cpu": 1.5, "gpu": 20.0, "ane": 0.0}
    monkeypatch.setitem(sys.modules, "zeus_apple_silicon", None)
    assert energy_meters.apple_energy() is None


def test_a_chip_that_does_not_tell() -> None:
    def refuse() -> None:
        raise RuntimeError("no IOReport channels")

    assert energy_meters.AppleEnergy(refuse).read() == {}
