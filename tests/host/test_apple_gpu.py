"""The GPU of a Mac by a stand-in for ioreg: published outputs, with counts that move."""

from __future__ import annotations

import pytest

from queue_runner.host import apple_gpu, cpu_time, processes, run_sampler
from queue_runner.host.apple_gpu import GpuClient

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
def test_the_use_of_the_busiest(text: str | None, wanted: float | None) -> None:
    assert apple_gpu.busy_share(text) == wanted


def test_clients() -> None:
    text = entry(1, TRAINER, 1.0, 0.5) + entry(2, WINDOWS) + entry(3, TRAINER, 2.0) + ACCELERATOR
    wanted = {"0x100000001": GpuClient(TRAINER, 1_500_000_000), "0x100000002": GpuClient(WINDOWS, 0)}
    assert apple_gpu.clients(text) == {**wanted, "0x100000003": GpuClient(TRAINER, 2_000_000_000)}
    below = f"  | | +-o AGXDeviceUserClient  <id 0x5>\n  | | |   {entry(5, GAME, 3.0).split('{', 1)[1]}"
    assert apple_gpu.clients(below) == {"0x5": GpuClient(GAME, 3_000_000_000)}
    for broken in (None, "", "something new in macOS 27", '+-o A <id 0x1>\n "IOUserClientCreator" = "kernel"\n'):
        assert apple_gpu.clients(broken) == {}


def test_whose_use_it_is() -> None:
    alive = {WINDOWS, GAME}
    others = apple_gpu.Others(is_alive=alive.__contains__, parent={}.get)
    first = entry(1, TRAINER, 5.0) + entry(2, WINDOWS, 100.0)
    assert others.busy_share(first, 10.0, [TRAINER]) is None, "one list shows no use"
    second = entry(1, TRAINER, 9.0) + entry(2, WINDOWS, 100.25)
    assert others.busy_share(second, 15.0, [TRAINER]) == 0.05
    assert others.busy_share(second, 15.0, [TRAINER]) is None, "the same list"
    began = entry(1, TRAINER, 12.0) + entry(2, WINDOWS, 100.25) + entry(3, GAME, 2.0) + entry(4, HELPER, 1.0)
    assert others.busy_share(began, 20.0, [TRAINER, HELPER]) == 0.4, "all of a new program's use is of this time"
    ended = entry(2, WINDOWS, 100.25) + entry(3, GAME, 12.0) + entry(4, HELPER, 3.0)
    assert others.busy_share(ended, 25.0, []) == 1.0, "at most all; what was the run's is still its"
    alive.remove(GAME)
    assert others.busy_share(entry(2, WINDOWS, 100.25) + entry(3, GAME, 14.0), 30.0, []) == 0.0, "may be the run's"
    assert others.busy_share(None, 35.0, []) is None
    assert others.busy_share(entry(2, WINDOWS, 101.25), 40.0, []) == 0.1, "over the whole time since the last list"


def test_the_use_by_others_is_nothing_to_a_run_that_does_not_use_the_gpu() -> None:
    """Else a film beside a run on the CPU would make that run invalid. torch opens a client only to look."""
    others = apple_gpu.Others(is_alive=lambda pid: True, parent={}.get)
    shares = [
        others.busy_share(entry(1, TRAINER, own_s) + entry(2, WINDOWS, 100.0 + at_s), at_s, [TRAINER])
        for at_s, own_s in ((5.0, 0.0), (10.0, 0.0), (15.0, 1.0), (20.0, 1.0))
    ]
    assert shares == [None, None, 1.0, 1.0]


def test_a_child_that_the_warden_has_not_noted_yet_is_the_runs() -> None:
    """It notes new processes every half second or, where a look at all of them takes long, more rarely."""
    parents = {HELPER: 4240, 4240: TRAINER, TRAINER: 1}
    others = apple_gpu.Others(is_alive=lambda pid: True, parent=parents.get)
    assert others.busy_share(entry(2, WINDOWS, 100.0), 10.0, [TRAINER]) is None
    assert others.busy_share(entry(2, WINDOWS, 100.1) + entry(4, HELPER, 1.0), 11.0, [TRAINER]) == 0.1
    del parents[4240]
    assert others.busy_share(entry(2, WINDOWS, 100.2) + entry(4, HELPER, 2.0), 12.0, [TRAINER]) == 0.1, "an orphan"


def test_a_run_on_a_mac_has_the_use_by_others_in_its_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the run, and not only before it: a program that begins later makes a taint."""
    used = {TRAINER: 0.0, WINDOWS: 50.0}

    class Answered:
        def __init__(self, argv: list[str], every_s: float) -> None:
            self.is_clients = tuple(argv) == apple_gpu.CLIENTS
            self.answered_s: float | None = None
            self.answer: tuple[float, str] | None = None

        def latest(self, now: float) -> str | None:
            if not self.is_clients:
                return None
            found, self.answer = self.answer, (now, "".join(entry(pid, pid, s) for pid, s in used.items()))
            if found is None:
                return None
            self.answered_s = found[0]
            return found[1]

        def close(self) -> None:
            pass

    monkeypatch.setattr(run_sampler, "PolledCommand", Answered)
    monkeypatch.setattr(apple_gpu, "_is_alive", lambda pid: True)
    monkeypatch.setattr(processes, "parent", {}.get)
    monkeypatch.setattr(cpu_time, "rusage_darwin", lambda pid: None)
    now = [0.0]
    sampler = run_sampler.Sampler(platform="darwin", clock=lambda: now[0])
    shares = []
    for _ in range(6):
        shares.append(sampler.sample([(TRAINER, 1.0)]).get("gpu_others_busy_share"))
        used[TRAINER] += 4.5
        used[WINDOWS] += 0.1 if now[0] < 10 else 2.0
        now[0] += 5.0
    assert shares == [None, None, 0.02, 0.02, 0.4, 0.4]
