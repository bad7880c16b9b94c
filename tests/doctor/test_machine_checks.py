"""doctor on machines that are not here: stand-ins that answer what docs/macos.md records of real ones."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from queue_runner.checks import Check
from queue_runner.doctor import examine, machine_checks
from queue_runner.host.command import Ask
from queue_runner.host.power import Power
from queue_runner.host.torch_probe import Torch
from queue_runner.machine_records import Machine
from queue_runner.paths import Layout
from tests.stand_in_nvml import Gpu, StandInNvml

SYSCTL = {
    "machdep.cpu.brand_string": "Apple M1 Max",
    "hw.model": "MacBookPro18,2",
    "hw.memsize": str(64 << 30),
    "hw.physicalcpu": "10",
    "hw.logicalcpu": "10",
    "hw.nperflevels": "2",
    "hw.perflevel0.name": "Performance",
    "hw.perflevel0.physicalcpu": "8",
    "hw.perflevel1.name": "Efficiency",
    "hw.perflevel1.physicalcpu": "2",
    "hw.optional.arm64": "1",
}
ACCELERATOR = (
    '"PerformanceStatistics" = {{"In use system memory (driver)"=0,"Alloc system memory"=52967440384,'
    '"Tiler Utilization %"=10,"recoveryCount"=0,"Device Utilization %"={busy},"In use system memory"=2363801600}}'
)


def mac(
    *,
    macos: str = "15.6",
    source: str = "AC Power",
    low_power: int = 0,
    pressure: int = 0,
    busy: int = 3,
    priority: int = 31,
    **sysctl: str,
) -> Ask:
    """A stand-in for the tools of a Mac."""

    def answer(argv: Sequence[str]) -> str | None:
        program, *rest = argv
        name = Path(program).name
        if name == "sysctl":
            known = {**SYSCTL, **sysctl}
            return "".join(f"{one}: {known[one]}\n" for one in rest if one in known) or None
        battery = "\n -InternalBattery-0 (id=1234)\t87%; discharging; 4:41 remaining present: true\n"
        return {
            "sw_vers": f"{macos}\n",
            "ps": f"{priority:>4}\n",
            "notifyutil": f"com.apple.system.thermalpressurelevel {pressure}\n",
            "ioreg": ACCELERATOR.format(busy=busy) if "IOAccelerator" in rest else None,
            "pmset": f"Now drawing from '{source}'{battery}" if "batt" in rest else f" lowpowermode\t{low_power}\n",
        }.get(name)

    return answer


def verdicts(ask: Ask, home: Path) -> dict[str, str]:
    found = machine_checks.of_machine(Layout(home), ask=ask, system="darwin", variables={})
    return {check.name: check.verdict for check in found}


def test_a_quiet_mac(home: Path) -> None:
    found = list(machine_checks.of_machine(Layout(home), ask=mac(), system="darwin", variables={}))
    assert {check.verdict for check in found if check.name != "memory"} == {"ok"}
    told = {check.name: check.finding for check in found}
    assert all(fact in told["cores"] for fact in ("Apple M1 Max", "8 Performance", "2 Efficiency"))
    assert told["memory"].startswith("64 GiB, ") and told["power"] == "mains"
    assert "pressure nominal" in told["thermal"] and told["gpu use"].startswith("3%")
    assert "priority 31" in told["priority"]


@pytest.mark.parametrize(
    ("name", "ask"),
    [
        ("power", mac(source="Battery Power")),
        ("power", mac(low_power=1)),
        ("thermal", mac(pressure=2)),
        ("gpu use", mac(busy=16)),
        ("priority", mac(priority=20)),
        ("priority", mac(priority=4)),
    ],
)
def test_what_spoils_a_measurement_is_a_warning(home: Path, name: str, ask: Ask) -> None:
    assert verdicts(ask, home)[name] == "warn"


def test_every_interactive_priority_is_normal(home: Path) -> None:
    assert {verdicts(mac(priority=priority), home)["priority"] for priority in range(31, 38)} == {"ok"}


def test_what_no_tool_tells_is_unknown_and_no_warning(home: Path) -> None:
    found = verdicts(lambda _: None, home)
    assert {found[name] for name in ("cores", "power", "thermal", "gpu use", "priority")} == {"ok"}


@pytest.mark.parametrize(
    ("torch", "macos", "verdict", "fix"),
    [
        ("2.15.0", "15.1", "ok", ""),
        ("2.15.0", "14.7", "fail", 'update macOS to 15, or install an older torch: pip install "torch<2.15"'),
        ("2.14.1", "14.0", "ok", ""),
        ("2.11.0", "13.6", "fail", "update macOS to 14"),
        ("2.13.0", "26.0", "ok", ""),
        ("2.2.2", "12.3", "ok", ""),
        (None, "26.0", "ok", ""),
    ],
)
def test_macos_against_what_torch_needs(torch: str | None, macos: str, verdict: str, fix: str) -> None:
    found = examine._system(Torch(torch, mps_built=True), ask=mac(macos=macos), system="darwin")
    assert (found.verdict, found.fix) == (verdict, fix)
    assert found.finding.startswith(f"macOS {macos}")


@pytest.mark.parametrize(
    ("built_for", "arm64", "verdict"),
    [("arm64", "1", "ok"), ("x86_64", "1", "fail"), ("i386", "1", "fail"), ("x86_64", "0", "ok")],
)
def test_an_intel_python_on_apple_silicon(built_for: str, arm64: str, verdict: str) -> None:
    ask = mac(**{"hw.optional.arm64": arm64})
    found = examine._python(Torch(python="3.11.7", machine=built_for), ask=ask, system="darwin")
    assert found.verdict == verdict and (verdict == "ok" or "arm64 Python" in found.fix)


@pytest.mark.parametrize(
    ("python", "verdict", "said"),
    [
        (Torch(machine="arm64", processor="arm", translated=False, conda="osx-arm64"), "ok", "from conda (osx-arm64)"),
        (Torch(machine="arm64", processor="arm", translated=False), "ok", "platform.processor() arm"),
        (Torch(machine="arm64", processor="i386", translated=False), "warn", "Lightning takes MPS only where"),
        (Torch(machine="x86_64", processor="i386", translated=True, conda="osx-64"), "fail", "CONDA_SUBDIR=osx-arm64"),
        (Torch(machine="x86_64", processor="i386", translated=True), "fail", "install an arm64 Python"),
        (Torch(machine="x86_64", processor="i386", conda="osx-64"), "ok", "built for x86_64"),
    ],
)
def test_what_a_python_of_a_mac_says_of_itself(python: Torch, verdict: str, said: str) -> None:
    """The last one is of an Intel Mac, whose sysctl has no hw.optional.arm64 and no sysctl.proc_translated."""
    ask = mac(**{"hw.optional.arm64": "1" if "arm" in str(python) or python.translated else "0"})
    found = examine._python(python, ask=ask, system="darwin")
    assert found.verdict == verdict and said in f"{found.finding} {found.fix}"


def test_a_card_that_is_hot_and_used(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()

    def checks() -> dict[str, Check]:
        found = machine_checks.of_machine(
            Layout(home), ask=lambda argv: None, root=tmp_path, system="linux", variables={}
        )
        return {check.name: check for check in found}

    nvml = StandInNvml(Gpu(busy_percent=45, heat_c=88), Gpu(busy_percent=3, heat_c=40))
    monkeypatch.setitem(sys.modules, "pynvml", nvml)  # type: ignore[arg-type]
    found = checks()
    assert found["thermal"].verdict == found["gpu use"].verdict == "warn"
    assert "45%" in found["gpu use"].finding and "88 degrees" in found["thermal"].finding
    monkeypatch.setitem(sys.modules, "pynvml", None)  # not installed
    assert "nvidia-ml-py" in checks()["gpu use"].fix


def test_a_container_that_may_use_half_a_core() -> None:
    machine = Machine(cpu="x", cores_logical=8, cores_physical=4, cpu_quota=0.5)
    assert all(fact in machine_checks.cores(machine).finding for fact in ("4 (8 threads)", "0.5 cores"))


def test_power_that_nobody_knows() -> None:
    assert machine_checks.power_source(Power()).verdict == "ok"


@pytest.mark.parametrize(
    ("variables", "verdict", "word"),
    [
        ({}, "ok", "no variables"),
        ({"OMP_NUM_THREADS": "4"}, "ok", "OMP_NUM_THREADS"),
        ({"PYTORCH_ENABLE_MPS_FALLBACK": "1"}, "warn", "--mps fallback=on"),
        ({"PYTORCH_ENABLE_MPS_FALLBACK": "true"}, "fail", "import of torch fails"),
        ({"PYTORCH_MPS_HIGH_WATERMARK_RATIO": "0.8"}, "fail", "low_watermark 1.4 is above high_watermark 0.8"),
        ({"PYTORCH_MPS_HIGH_WATERMARK_RATIO": "0.0"}, "ok", "HIGH"),
        ({"PYTORCH_MPS_LOW_WATERMARK_RATIO": "x"}, "fail", "is not a number"),
        ({"CUDA_LAUNCH_BLOCKING": "1"}, "warn", "waits for every kernel"),
    ],
)
def test_variables_that_every_job_would_take_along(variables: dict[str, str], verdict: str, word: str) -> None:
    (found,) = machine_checks.of_variables(variables)
    assert found.verdict == verdict and word in found.finding + found.fix


def test_caches_that_questions_would_share(home: Path) -> None:
    assert machine_checks.caches(Layout(home), {}).verdict == "ok"
    assert "TRITON_CACHE_DIR" in machine_checks.caches(Layout(home), {"TRITON_CACHE_DIR": "/x"}).fix


@pytest.mark.process
def test_what_other_programs_use_is_named(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    """doctor had no line on the load: a first answer came with wide intervals, and nobody knew why."""
    monkeypatch.setattr(machine_checks, "_NAMED", 10_000)  # whatever else runs here
    monkeypatch.setattr(machine_checks, "_BUSY_PROCESSORS", 0.0)
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            check = machine_checks.load(layout, 0.5, queue=())
            assert check.name == "load" and check.finding.startswith("other programs use ")
            assert f"(process {busy.pid}) " in check.finding and " processors" in check.finding
            assert f"(process {busy.pid})" not in machine_checks.load(layout, 0.5).finding, "one of ours"
            layout.config.write_text("gate_cpu_share = 0.0001\n")
            check = machine_checks.load(layout, 0.5, queue=())
            assert check.verdict == "warn" and "2 min" in check.fix
        finally:
            busy.kill()
