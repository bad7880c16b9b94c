"""The GPU of a Mac by a stand-in for ioreg: published outputs, with counts that move."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import pytest

from queue_runner.analysis import gpu_use, validity
from queue_runner.analysis.points import PhaseMark
from queue_runner.host import apple_gpu, cpu_time, processes, run_sampler
from queue_runner.host.apple_gpu import GpuClient, GpuMeter, GpuReading
from queue_runner.machine_records import read_samples

ACCELERATOR = (
    '+-o AGXAcceleratorG13X  <class AGXAcceleratorG13X, id 0x1000004d1>\n  | {\n  |   "PerformanceStatistics" = '
    '{"In use system memory (driver)"=0,"Alloc system memory"=52967440384,"Tiler Utilization %"=10,"recoveryCount"=0,'
    '"Device Utilization %"=16,"In use system memory"=2363801600}\n  | }\n'
)
TRAINER, HELPER, WINDOWS, GAME = 4245, 4246, 440, 808


def entry(id: int, pid: int, *gpu_s: float) -> str:
    """A client as ioreg prints it: keys in order, a count for each API."""
    used = ",".join(f'{{"API"="Metal","lastSubmittedTime"=306,"accumulatedGPUTime"={s * 1e9:.0f}}}' for s in gpu_s)
    return (
        f"+-o AGXDeviceUserClient  <class AGXDeviceUserClient, id 0x100{id:06x}, !registered, !matched>\n"
        f'    {{\n      "IOUserClientEntitlements" = No\n      "AppUsage" = ({used})\n'
        f'      "IOUserClientCreator" = "pid {pid}, python3.12"\n      "CommandQueueCount" = 1\n    }}\n    \n'
    )


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (ACCELERATOR, 0.16),
        (ACCELERATOR + ACCELERATOR.replace("=16,", "=98,"), 0.98),
        ('"Device Utilization %"=0}', 0.0),
        ("", None),
        (None, None),
    ],
)
def test_the_hint_of_the_busiest(text: str | None, wanted: float | None) -> None:
    assert apple_gpu.hinted_share(text) == wanted


def test_clients() -> None:
    text = entry(1, TRAINER, 1.0, 0.5) + entry(2, WINDOWS) + entry(3, TRAINER, 2.0) + ACCELERATOR
    wanted = {"0x100000001": GpuClient(TRAINER, 1_500_000_000), "0x100000002": GpuClient(WINDOWS, 0)}
    assert apple_gpu.clients(text) == {**wanted, "0x100000003": GpuClient(TRAINER, 2_000_000_000)}
    below = f"  | | +-o AGXDeviceUserClient  <id 0x5>\n  | | |   {entry(5, GAME, 3.0).split('{', 1)[1]}"
    assert apple_gpu.clients(below) == {"0x5": GpuClient(GAME, 3_000_000_000)}
    for broken in (None, "", "something new in macOS 27", '+-o A <id 0x1>\n "IOUserClientCreator" = "kernel"\n'):
        assert apple_gpu.clients(broken) == {}


def others(meter: GpuMeter, text: str | None, at_s: float, run_pids: list[int]) -> float | None:
    reading = meter.read(text, at_s, run_pids)
    return reading.others_busy_share if reading is not None else None


def test_the_time_of_the_clients_is_the_use_by_all() -> None:
    meter = GpuMeter()
    assert meter.read(entry(1, TRAINER, 5.0) + entry(2, WINDOWS, 100.0), 10.0) is None, "one list shows no use"
    assert meter.read(entry(1, TRAINER, 5.5) + entry(2, WINDOWS, 100.25), 11.0) == GpuReading(11.0, 1.0, 0.75)
    assert meter.read(entry(1, TRAINER, 5.5) + entry(2, WINDOWS, 100.25), 11.0) is None, "the same list"
    assert meter.read(entry(1, TRAINER, 9.5) + entry(2, WINDOWS, 100.25), 13.0) == GpuReading(13.0, 2.0, 1.0)


def test_whose_use_it_is() -> None:
    alive = {WINDOWS, GAME}
    meter = GpuMeter(is_alive=alive.__contains__, parent={}.get)
    assert others(meter, entry(1, TRAINER, 5.0) + entry(2, WINDOWS, 100.0), 10.0, [TRAINER]) is None
    second = entry(1, TRAINER, 9.0) + entry(2, WINDOWS, 100.25)
    assert others(meter, second, 15.0, [TRAINER]) == 0.05
    began = entry(1, TRAINER, 12.0) + entry(2, WINDOWS, 100.25) + entry(3, GAME, 2.0) + entry(4, HELPER, 1.0)
    assert others(meter, began, 20.0, [TRAINER, HELPER]) == 0.4, "all of a new program's use is of this time"
    ended = entry(2, WINDOWS, 100.25) + entry(3, GAME, 12.0) + entry(4, HELPER, 3.0)
    assert others(meter, ended, 25.0, []) == 1.0, "at most all; what was the run's is still its"
    alive.remove(GAME)
    assert others(meter, entry(2, WINDOWS, 100.25) + entry(3, GAME, 14.0), 30.0, []) == 0.0, "may be the run's"
    assert others(meter, None, 35.0, []) is None
    assert others(meter, entry(2, WINDOWS, 101.25), 40.0, []) == 0.1, "over the whole time since the last list"


def test_the_use_by_others_is_nothing_to_a_run_that_does_not_use_the_gpu() -> None:
    """Else a film beside a run on the CPU would make that run invalid. torch opens a client only to look."""
    meter = GpuMeter(is_alive=lambda pid: True, parent={}.get)
    shares = [
        others(meter, entry(1, TRAINER, own_s) + entry(2, WINDOWS, 100.0 + at_s), at_s, [TRAINER])
        for at_s, own_s in ((5.0, 0.0), (10.0, 0.0), (15.0, 1.0), (20.0, 1.0))
    ]
    assert shares == [None, None, 1.0, 1.0]


def test_a_child_that_the_warden_has_not_noted_yet_is_the_runs() -> None:
    """It notes new processes every half second or, where a look at all of them takes long, more rarely."""
    parents = {HELPER: 4240, 4240: TRAINER, TRAINER: 1}
    meter = GpuMeter(is_alive=lambda pid: True, parent=parents.get)
    assert others(meter, entry(2, WINDOWS, 100.0), 10.0, [TRAINER]) is None
    assert others(meter, entry(2, WINDOWS, 100.1) + entry(4, HELPER, 1.0), 11.0, [TRAINER]) == 0.1
    del parents[4240]
    assert others(meter, entry(2, WINDOWS, 100.2) + entry(4, HELPER, 2.0), 12.0, [TRAINER]) == 0.1, "an orphan"


class Ioreg:
    """ioreg on a Mac whose trainer is busy in seconds 10 to 21, and whose "Device Utilization %" flips."""

    def __init__(self) -> None:
        self.now = 0.0
        self.n_asked: dict[str, int] = {}

    def print(self, argv: Sequence[str]) -> str:
        kind = argv[-1]
        self.n_asked[kind] = self.n_asked.get(kind, 0) + 1
        if kind == "IOAccelerator":
            return ACCELERATOR.replace("=16,", f"={self.n_asked[kind] % 2 * 100},")
        used_s = min(max(self.now - 10, 0.0), 11.0)
        return entry(1, TRAINER, used_s) + entry(2, WINDOWS, 50.0 + 0.01 * self.now)


class Answered:
    """A PolledCommand whose answer to a query is there at the next call."""

    ioreg: Ioreg

    def __init__(self, argv: Sequence[str], every_s: float) -> None:
        self.argv, self.every_s, self.due = argv, every_s, 0.0
        self.answered_s: float | None = None
        self.answer: str | None = None
        self.query: tuple[float, str] | None = None

    def latest(self, now: float) -> str | None:
        if "ioreg" not in self.argv[0]:
            return None
        if self.query is not None:
            (self.answered_s, self.answer), self.query = self.query, None
        if now >= self.due:
            self.due, self.query = now + self.every_s, (now, self.ioreg.print(self.argv))
        return self.answer


@pytest.fixture
def ioreg(monkeypatch: pytest.MonkeyPatch) -> Ioreg:
    Answered.ioreg = Ioreg()
    monkeypatch.setattr(run_sampler, "PolledCommand", Answered)
    monkeypatch.setattr(apple_gpu.processes, "exists", lambda pid: True)
    monkeypatch.setattr(processes, "parent", {}.get)
    monkeypatch.setattr(cpu_time, "rusage_darwin", lambda pid: None)
    return Answered.ioreg


def readings(ioreg: Ioreg, until_s: float, step_s: float) -> list[tuple[float, dict[str, Any]]]:
    """What a run's observer stores that looks every `step_s`, with the seconds since the start as times."""
    sampler = run_sampler.Sampler(platform="darwin", clock=lambda: ioreg.now)
    rows = []
    while ioreg.now < until_s:
        at_s = ioreg.now
        began = time.time()
        if (reading := sampler.gpu_reading(lambda: [(TRAINER, 1.0)])) is not None:
            rows.append((round(at_s + reading.at - began, 1), reading.known()))
        ioreg.now = round(ioreg.now + step_s, 6)
    return rows


def test_a_busy_phase_of_eleven_seconds_is_busy(ioreg: Ioreg) -> None:
    """It was asked every 10 s, and its answer was stored with every sample of the next 10 s: 0 % of this phase."""
    rows = readings(ioreg, 25.0, 0.5)
    assert [at_s for at_s, _ in rows] == [float(at_s) for at_s in range(1, 25)], "each query once, at its own time"
    assert {data["over_s"] for _, data in rows} == {1.0} and ioreg.n_asked == {"AGXDeviceUserClient": 25}
    marks = [PhaseMark(t_s, "measure", edge) for t_s, edge in ((10.0, "begin"), (21.0, "end"))]
    samples = read_samples((at_s, json.dumps(data)) for at_s, data in rows)
    use = gpu_use.measured(samples, marks, 0.0, 25.0)
    assert use is not None and use.busy_share == 1.0 and use.dips_share == 0.0 and use.n_samples == 11
    assert validity.mean_over(samples, "gpu_others_busy_share") == pytest.approx(0.01)


def test_a_step_of_the_worker_that_takes_long_makes_one_long_reading(ioreg: Ioreg) -> None:
    rows = readings(ioreg, 25.0, 4.0)
    assert [(at_s, data["over_s"], data["gpu_busy_share"]) for at_s, data in rows] == [
        (4.0, 4.0, 0.01), (8.0, 4.0, 0.01), (12.0, 4.0, 0.51), (16.0, 4.0, 1.0), (20.0, 4.0, 1.0),
    ]  # fmt: skip


def test_the_hint_counts_only_where_no_client_is_listed(ioreg: Ioreg, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apple_gpu, "clients", lambda text: {})
    rows = readings(ioreg, 6.0, 0.5)
    assert [data["gpu_busy_share"] for _, data in rows] == [1.0, 0.0, 1.0, 0.0, 1.0]
    assert all("gpu_others_busy_share" not in data for _, data in rows)


def test_the_use_of_the_gpu_now() -> None:
    at = iter((100.0, 100.5))
    lists = [entry(2, WINDOWS, 50.0), entry(2, WINDOWS, 50.2)]
    assert apple_gpu.use_now(lambda argv: lists.pop(0), sleep=lambda s: None, clock=lambda: next(at)) == 0.4
    at = iter((100.0, 100.5))
    hint = {apple_gpu.CLIENTS: "", apple_gpu.HINT: ACCELERATOR}
    assert apple_gpu.use_now(lambda argv: hint[tuple(argv)], sleep=lambda s: None, clock=lambda: next(at)) == 0.16
