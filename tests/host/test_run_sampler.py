"""Conditions: parsers against published outputs of macOS's tools, Linux's files, and a sample of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from queue_runner.host import apple_gpu, cpu_time, keep_awake, power, run_sampler
from queue_runner.host.background import PolledCommand
from queue_runner.host.command import ask
from queue_runner.host.cpu_time import CpuTimes, MachineTime, ProcessTime, Shares, used_between
from queue_runner.machine_records import SensorSample
from tests.host.test_apple_gpu import entry
from tests.patience import until
from tests.process_support import needs_linux

LAPTOP = (
    "Now drawing from 'Battery Power'\n"
    " -InternalBattery-0 (id=4522083)\t87%; discharging; 4:41 remaining present: true\n"
)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (LAPTOP, power.Power(True, 0.87)),
        ("Now drawing from 'AC Power'\n -InternalBattery-0 (id=1)\t100%; charged; 0:00\n", power.Power(False, 1.0)),
        ("Now drawing from 'AC Power'\n", power.Power(False, None)),
        ("Now drawing from 'Fusion'\n", power.Power(None, None)),
        (None, power.Power()),
    ],
)
def test_battery(text: str | None, wanted: power.Power) -> None:
    assert power.parse_battery(text) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("System-wide power settings:\nCurrently in use:\n standby 1\n lowpowermode         1\n", True),
        ("Currently in use:\n lowpowermode         0\n", False),
        (" powermode            1\n", True),
        (" powermode            2\n", False),
        (" powermode            0\n lowpowermode         0\n", False),
        (" highpowermode        1\n", None),
        (" standby              1\n", None),
        (None, None),
    ],
)
def test_low_power(text: str | None, wanted: bool | None) -> None:
    assert power.parse_low_power(text) is wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("com.apple.system.thermalpressurelevel 1\n", 1),
        ("com.apple.system.thermalpressurelevel 0", 0),
        ("com.apple.system.thermalpressurelevel: Failed with code 7\n", None),
        (None, None),
    ],
)
def test_pressure(text: str | None, wanted: int | None) -> None:
    assert power.parse_pressure(text) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"), [(" 31\n", 31), ("4\n", 4), ("20T\n", 20), ("", None), ("pri", None), (None, None)]
)
def test_priority(text: str | None, wanted: int | None) -> None:
    assert run_sampler.parse_priority(text) == wanted


# -- Linux ----------------------------------------------------------------------------------------------------------


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


MAINS = {"type": "Mains", "online": "1"}
BATTERY = {"type": "Battery", "status": "Discharging", "capacity": "50"}


@pytest.mark.parametrize(
    ("supplies", "wanted"),
    [
        ({}, power.Power()),
        ({"AC": MAINS, "BAT0": {**BATTERY, "status": "Full"}}, power.Power(False, 0.5)),
        ({"AC": {**MAINS, "online": "0"}, "BAT0": BATTERY}, power.Power(True, 0.5)),
        ({"mouse": {**BATTERY, "scope": "Device"}}, power.Power()),
        ({"AC": MAINS}, power.Power(False)),
    ],
)
def test_linux_power(tmp_path: Path, supplies: dict[str, dict[str, str]], wanted: power.Power) -> None:
    for name, files in supplies.items():
        write(tmp_path / "sys/class/power_supply" / name, {k: v + "\n" for k, v in files.items()})
    assert power.linux_power(tmp_path) == wanted


def test_linux_low_power(tmp_path: Path) -> None:
    for profile, wanted in (("low-power", True), ("balanced", False)):
        write(tmp_path, {"sys/firmware/acpi/platform_profile": profile + "\n"})
        assert power.linux_power(tmp_path).low_power is wanted


def test_throttling_is_a_rise_of_a_counter(tmp_path: Path) -> None:
    assert power.ThrottleCounters(tmp_path).level() is None
    cpus = {
        f"sys/devices/system/cpu/cpu{n}/thermal_throttle/{what}_throttle_count": "5\n"
        for n in range(3)
        for what in ("core", "package")
    }
    write(tmp_path, cpus)
    counters = power.ThrottleCounters(tmp_path)
    assert counters.level() == 0
    write(tmp_path, {"sys/devices/system/cpu/cpu2/thermal_throttle/core_throttle_count": "6\n"})
    assert (counters.level(), counters.level()) == (1, 0)


@needs_linux
def test_proc_is_read_as_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    tick = os.sysconf("SC_CLK_TCK")
    after_name = f"S 7 1 1 0 -1 0 0 0 0 0 {tick} {tick} {2 * tick} {3 * tick} 20 0 1 0 4242 0"
    sums = " ".join(str(seconds * tick) for seconds in (10, 1, 2, 100, 5, 1, 1, 4, 3, 0))
    files = {
        "/proc/stat": f"cpu  {sums}\ncpu0 1\n".encode(),
        "/proc/12/stat": f"12 (a ) (b) {after_name} 0 0\n".encode(),
    }
    monkeypatch.setattr(cpu_time, "read", lambda path: files.get(path, b""))
    source = CpuTimes()
    assert source.machine() == MachineTime(pytest.approx(15.0), pytest.approx(124.0), pytest.approx(4.0))  # type: ignore[arg-type]
    assert source.processes([12, 99]) == {(12, 4242.0): ProcessTime(7, pytest.approx(7.0))}  # type: ignore[arg-type]
    assert source.processes([(12, 4242)]) and not source.processes([(12, 4241)]), "a pid used anew is another process"
    files["/proc/stat"] = b"cpu 1 2\n"
    assert source.machine() is None


def test_a_reaped_childs_time_is_counted_once() -> None:
    parent, child, stray = (1, 0.0), (2, 0.0), (3, 0.0)
    before = {parent: ProcessTime(0, 10.0), child: ProcessTime(1, 4.0), stray: ProcessTime(77, 9.0)}
    assert used_between(before, {parent: ProcessTime(0, 10.0 + 4.0 + 1.5)}) == pytest.approx(1.5)
    assert used_between(before, {parent: ProcessTime(0, 11.0), child: ProcessTime(1, 4.5)}) == pytest.approx(1.5)
    assert used_between(before, {}) == 0.0
    grandchild = {(4, 0.0): ProcessTime(2, 3.0)}  # of a warden that waited for its trainer, and ended
    assert used_between(before | grandchild, {parent: ProcessTime(0, 10.0 + 4.0 + 3.0 + 1.5)}) == pytest.approx(1.5)
    assert used_between({}, {(5, 0.0): ProcessTime(1, 0.25)}) == pytest.approx(0.25)


class Scripted(CpuTimes):
    def __init__(self, *looks: tuple[MachineTime | None, dict[tuple[int, float], ProcessTime]]) -> None:
        self.looks = list(looks)

    def machine(self) -> MachineTime | None:
        return self.looks[0][0]

    def processes(self, named: object) -> dict[tuple[int, float], ProcessTime]:
        return self.looks.pop(0)[1]


def test_others_are_what_is_left_of_the_busy_time() -> None:
    run = (5, 1.0)
    shares = Shares(
        Scripted(
            (MachineTime(0.0, 0.0, 0.0), {run: ProcessTime(1, 0.0)}),
            (MachineTime(6.0, 10.0, 1.0), {run: ProcessTime(1, 4.0)}),
            (MachineTime(6.5, 20.0, 1.0), {run: ProcessTime(1, 9.0)}),
            (None, {}),
        )
    )
    assert shares.since_last([5]).known() == {}
    assert shares.since_last([5]).known() == {"job_cpu_share": 0.4, "others_cpu_share": 0.2, "steal_share": 0.1}
    assert shares.since_last([5]).known() == {"job_cpu_share": 0.5, "others_cpu_share": 0.0, "steal_share": 0.0}
    assert shares.since_last([5]).known() == {}


def test_a_run_that_has_just_begun_needs_no_baseline() -> None:
    """Its processes' whole time is since then; the queue's own is nobody's; and at the end wait4 knows the rest."""
    run, queue = (5, 1.0), iter([1.0, 2.0, 2.5, 2.5])
    looks = Scripted(
        (MachineTime(0.0, 0.0, 0.0), {}),
        (MachineTime(7.0, 10.0, 0.0), {run: ProcessTime(1, 4.0)}),
        (MachineTime(12.5, 20.0, 0.0), {}),
    )
    shares = Shares(looks, fresh=True, queue_s=lambda: next(queue))
    looks.looks.pop(0)
    assert shares.since_last([5]).known() == {"job_cpu_share": 0.4, "others_cpu_share": 0.2, "steal_share": 0.0}
    assert shares.at_end(8.0).known() == {"job_cpu_share": 0.4, "others_cpu_share": 0.1, "steal_share": 0.0}
    adopted = Shares(Scripted((MachineTime(0.0, 0.0, 0.0), {})))
    assert adopted.at_end(8.0).known() == {}, "what it used before is not known"


def test_the_queues_own_time_is_without_its_childrens() -> None:
    """Those are the run, and hooks, which are load."""
    before = cpu_time.own_time([os.getpid()])
    child = subprocess.run([sys.executable, "-c", "while __import__('time').process_time() < 0.5: pass"], check=True)
    assert child.returncode == 0 and 0 <= cpu_time.own_time([os.getpid()]) - before < 0.4
    assert cpu_time.own_time([2**22 + 5]) == 0.0 and before > 0


def test_a_short_run_has_a_sample_of_its_end() -> None:
    now = [0.0]
    sampler = run_sampler.Sampler(clock=lambda: now[0], fresh=True)
    assert "others_cpu_share" not in sampler.sample([]).known()
    now[0] = 0.4
    at_once = sampler.at_end(0.0).known().keys()
    assert at_once <= {"energy_j", "energy_at"}, "too short for the kernel's clock; a GPU counts its joules"
    now[0] = 1.5
    found = until(lambda: sampler.at_end(0.01).known(), "the kernel's sums to move")
    assert 0 <= found["others_cpu_share"] <= 1 and set(found) <= {*SensorSample.__struct_fields__}
    sampler.close()


def test_swap(tmp_path: Path) -> None:
    page = os.sysconf("SC_PAGE_SIZE")
    write(
        tmp_path, {"proc/meminfo": "MemTotal: 9 kB\nMemAvailable:   2048 kB\n", "proc/vmstat": "pswpin 3\npswpout 5\n"}
    )
    assert run_sampler.linux_memory(tmp_path) == (2048 * 1024, 3 * page, 5 * page)
    assert run_sampler.linux_memory(tmp_path / "none") == (None, None, None)
    assert run_sampler.swap_rates((0, None), (4096, 5), 2.0).known() == {"swap_in_bytes_per_s": 2048.0}


# -- this machine ---------------------------------------------------------------------------------------------------


def test_a_sample_of_this_machine_tells_the_job_from_the_others() -> None:
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    now = [0.0]
    sampler = run_sampler.Sampler(clock=lambda: now[0])
    try:
        first = sampler.sample([child.pid]).known()
        until(lambda: _used(child.pid) >= 0.15, "the child to compute")
        now[0] += 5.0
        second = sampler.sample([child.pid]).known()
    finally:
        child.kill()
        child.wait()
        sampler.close()
    assert set(first) | set(second) <= {*SensorSample.__struct_fields__}
    assert "others_cpu_share" not in first
    assert second["job_cpu_share"] > 0 and 0 <= second["others_cpu_share"] <= 1
    assert second["memory_available_bytes"] > 0


def _used(pid: int) -> float:
    import psutil

    return sum(psutil.Process(pid).cpu_times()[:2])


def test_samples_too_near_each_other_repeat_the_rates() -> None:
    now = [0.0]
    sampler = run_sampler.Sampler(platform="linux", clock=lambda: now[0])
    assert "swap_out_bytes_per_s" not in sampler.sample([]).known()
    now[0] = 5.0
    second = sampler.sample([]).known()
    if sys.platform == "linux":
        assert "swap_out_bytes_per_s" in second
        now[0] = 5.1
        assert sampler.sample([]).known()["swap_out_bytes_per_s"] == second["swap_out_bytes_per_s"]
    sampler.close()


def test_where_nothing_is_known_a_sample_is_nearly_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    sampler = run_sampler.Sampler(platform="linux", root=tmp_path)
    assert set(sampler.sample([os.getpid()]).known()) <= {"load1", "processors"}


def test_a_mac_is_sampled_through_its_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {
        "batt": LAPTOP,
        "notifyutil": "com.apple.system.thermalpressurelevel 2\n",
        "ps": " 20\n",
    }

    class Answered:
        answered_s = None

        def __init__(self, argv: list[str], every_s: float) -> None:
            self.key = argv[-1] if argv[-1] == "batt" else Path(argv[0]).name

        def latest(self, now: float) -> str | None:
            return answers.get(self.key)

    monkeypatch.setattr(run_sampler, "PolledCommand", Answered)
    monkeypatch.setattr(cpu_time, "rusage_darwin", lambda pid: None)
    sampler = run_sampler.Sampler(platform="darwin")
    sample = sampler.sample([(os.getpid(), 1.0)]).known()
    wanted = {"on_battery": True, "battery_share": 0.87, "thermal_level": 2, "priority": 20}
    assert wanted.items() <= sample.items() and "low_power" not in sample
    assert set(sample) <= {*SensorSample.__struct_fields__}
    sampler.sample([1]).known()


@pytest.mark.parametrize(
    ("answers", "found", "looks"),
    [
        ([3], 0.03, 1),
        ([96, 4], 0.04, 2),  # the end of the run before
        ([96, 40, 38, 1], 0.38, 3),
        ([None], None, 0),
    ],
)
def test_the_gpu_before_a_run(answers: list[int | None], found: float | None, looks: int, tmp_path: Path) -> None:
    """By the time of the GPU's clients, in percent of a look."""
    pauses: list[float] = []
    remaining, now, used_s = list(answers), [0.0], [50.0]

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        now[0] += seconds

    def ask(argv: Sequence[str]) -> str | None:
        if remaining[0] is None or argv[-1] != "AGXDeviceUserClient":
            return None
        if pauses and pauses[-1] == apple_gpu.LOOK_S:
            used_s[0] += remaining.pop(0) / 100 * apple_gpu.LOOK_S
            pauses.append(0.0)
        return entry(1, 440, used_s[0])

    look = run_sampler.gpu_use_before
    assert look(0.1, ask=ask, platform="darwin", sleep=sleep, clock=lambda: now[0]) == found
    assert len(answers) - len(remaining) == looks and pauses.count(1.0) == max(looks - 1, 0)
    assert look(0.1, ask=ask, platform="linux", root=tmp_path) is None


def test_asking_never_waits_and_never_fails(tmp_path: Path) -> None:
    asked = PolledCommand([sys.executable, "-c", "print('x' * 200_000)"], every_s=10)
    assert asked.latest(100.0) is None
    assert len(until(lambda: asked.latest(101.0), "the answer") or "") == 200_001
    missing = PolledCommand([str(tmp_path / "none")], every_s=0)
    assert missing.latest(0.0) is None and missing.latest(1.0) is None
    os.mkfifo(tmp_path / "end")
    slow = PolledCommand(["cat", str(tmp_path / "end")], every_s=1)
    assert slow.latest(0.0) is None and slow.latest(60.0) is None, "one query at a time"
    (tmp_path / "end").write_text("")
    assert ask(["false"]) is None and ask([str(tmp_path)]) is None and ask(["echo", "a"]) == "a\n"
    assert ask(["sleep", "1000"], timeout_s=0.01) is None


# -- awake ----------------------------------------------------------------------------------------------------------


def test_caffeinate_ends_with_the_process() -> None:
    assert keep_awake.command_for(42, platform="darwin") == ["/usr/bin/caffeinate", "-i", "-m", "-w", "42"]


def test_linux_may_have_an_inhibitor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert keep_awake.command_for(42, platform="linux", root=tmp_path) is None
    assert keep_awake.keep_awake(42, platform="linux", root=tmp_path) is None
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    inhibit = tmp_path / "systemd-inhibit"
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    inhibit.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/said\n')
    inhibit.chmod(0o755)
    helper = keep_awake.keep_awake(os.getpid(), platform="linux", root=tmp_path)
    assert helper is not None and helper.wait() == 0
    assert f"--pid={os.getpid()} -f /dev/null" in (tmp_path / "said").read_text()


@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has caffeinate")
def test_a_helper_that_is_not_there_is_no_error() -> None:
    assert keep_awake.keep_awake(1, platform="darwin") is None
