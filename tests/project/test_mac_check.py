"""tests.mac_check by a stand-in: a Mac that is made of published outputs, and one check of every kind."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from queue_runner.paths import Layout
from tests import mac_check, mac_checks, mac_checks_jobs
from tests.mac_check import Check, Unknown

pytestmark = pytest.mark.process

DOCS = Path(__file__).resolve().parents[2] / "docs" / "macos.md"
TOLD = {
    "mount": "/dev/disk3s1s1 on / (apfs, sealed, local, read-only)\n//me@nas/x on /Volumes/x (smbfs, nodev)\n",
    "pmset -g batt": "Now drawing from 'AC Power'\n -InternalBattery-0 (id=1)\t100%; charged; 0:00\n",
    "pmset -g": "Currently in use:\n standby 1\n lowpowermode         1\n",
    "notifyutil": "com.apple.system.thermalpressurelevel 0\n",
    "ioreg -r -d 1 -w 0 -c AGX": "+-o AGXDeviceUserClient  <class AGXDeviceUserClient, id 0x101, !registered>\n    {\n"
    '      "AppUsage" = ({"API"="Metal","lastSubmittedTime"=306241409,"accumulatedGPUTime"=38738170958})\n'
    '      "IOUserClientCreator" = "pid 440, WindowServer"\n    }\n',
    "ioreg": '"PerformanceStatistics" = {"Device Utilization %"=16,"In use system memory"=2363801600}\n',
    "ps": " 31T\n",
    "vm_stat": "Mach Virtual Memory Statistics: (page size of 16384 bytes)\nSwapins: 2.\nSwapouts: 3.\n",
    "plutil": "/var/folders/x.plist: OK\n",
    "xcode-select": "/Library/Developer/CommandLineTools\n",
}


def published(argv: Sequence[str]) -> str | None:
    command = " ".join([Path(argv[0]).name, *argv[1:]])
    return next((text for start, text in TOLD.items() if command.startswith(start)), None)


@pytest.fixture
def mac(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mac_checks, "ask", published)


@pytest.mark.parametrize(
    "name",
    [
        "mounts",
        "battery",
        "low_power",
        "thermal",
        "gpu_use",
        "gpu_clients",
        "priority",
        "swap",
        "definition",
        "developer_tools",
    ],
)
def test_what_was_published_of_apples_tools_holds(mac: None, name: str) -> None:
    result = mac_check.examine(Check("system", name, getattr(mac_checks, name)))
    assert result.word == mac_check.HELD, result.seen


@pytest.mark.parametrize(("priority", "holds"), [("31", True), ("37T", True), ("20", False), ("", False)])
def test_every_interactive_priority_of_a_service_holds(
    monkeypatch: pytest.MonkeyPatch, priority: str, holds: bool
) -> None:
    def run(argv: Sequence[str]) -> tuple[int, str]:
        if argv[0] == "/bin/ps":
            return 0, f"{priority:>3}\n"
        return (113, "gone") if uninstalled else (0, "\tspawn type = interactive (4)\n")

    uninstalled: list[str] = []
    monkeypatch.setattr(mac_checks_jobs, "_run", run)
    text = "installed and running (process 7, user/501); nothing was changed"
    monkeypatch.setattr(mac_checks_jobs, "_checked", lambda *_: text)
    monkeypatch.setattr(mac_checks_jobs, "_mpsq", lambda *words: (0, str(uninstalled.append(" ".join(words)))))
    result = mac_check.examine(Check("service", "install", mac_checks_jobs.service))
    assert (result.word == mac_check.HELD) == holds, result.seen
    assert uninstalled == ["service uninstall"]


def test_another_output_does_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mac_checks, "ask", lambda argv: "something new in macOS 27\n")
    for name in ("mounts", "battery", "thermal", "gpu_use", "gpu_clients", "priority", "swap", "definition"):
        result = mac_check.examine(Check("system", name, getattr(mac_checks, name)))
        assert (result.word, "something new" in result.seen) == (mac_check.NOT, True), name
    assert mac_check.examine(Check("system", "x", mac_checks.low_power)).word == mac_check.UNKNOWN


@pytest.mark.parametrize(
    "name",
    ["two_clocks", "one_counter", "own_process", "a_zombie", "a_stop", "a_tag", "every_process", "footprint",
     "left_reader"],
)  # fmt: skip
def test_what_both_systems_have_holds_here(name: str) -> None:
    result = mac_check.examine(Check("system", name, getattr(mac_checks, name)))
    assert result.word == mac_check.HELD, result.seen


def test_the_table_and_its_file(tmp_path: Path) -> None:
    def not_so() -> str:
        raise AssertionError("4 instead of 31\nand more of it")

    def not_here() -> str:
        raise Unknown("no torch")

    shown: list[str] = []
    checks = [
        Check("system", "a", lambda: "31\nall"),
        Check("torch", "b", not_here),
        Check("jobs", "c", lambda: 1 // 0),
    ]
    assert mac_check.run([*checks[:2]], tmp_path / "out", shown.append) == 0
    assert mac_check.run([*checks, Check("system", "d", not_so)], tmp_path / "out", shown.append) == 1
    words = [line.split()[0] for line in shown[3:7]]
    assert words == ["held", "unknown", "NOT", "NOT"] and shown[-1].startswith("1 held, 2 NOT, 1 unknown")
    assert "ZeroDivisionError" in shown[5] and shown[6].endswith("4 instead of 31")
    assert "and more of it" in (tmp_path / "out").read_text() and max(map(len, shown[3:7])) <= 120


def test_no_check_starts_after_ten_minutes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr(mac_check, "MOST_S", 0.0)
    assert mac_check.run([Check("jobs", "a", lambda: 1 // 0)], tmp_path / "out", shown.append) == 0
    assert shown[0].startswith("unknown") and "--match 'a'" in shown[0]


def test_a_command_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mac_checks_jobs, "LIMIT_S", 0.1)
    program = "import time; time.sleep(600)"
    result = mac_check.examine(Check("torch", "a", lambda: mac_checks_jobs._python(program)))
    assert result.word == mac_check.UNKNOWN and "timed out" in result.seen


def test_its_runs_never_wait_for_a_quiet_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[tuple[str, ...]] = []
    monkeypatch.setattr(mac_checks_jobs, "_checked", lambda *words: str(commands.append(words)) and '"SUCCEEDED" {}')
    monkeypatch.setattr(mac_checks_jobs.json, "loads", lambda text: {})
    mac_checks_jobs.through_the_queue("mps")
    mac_checks_jobs.leaves_nothing()
    runs = [words for words in commands if words[0] == "run"]
    assert len(runs) == 2 and all("--no-gate" in words for words in runs)


def test_submit_refuses_several_processes_as_the_check_expects(layout: Layout) -> None:
    assert "torch.distributed.run" in mac_checks_jobs.launcher_is_refused()


def test_the_programs_for_torch_can_be_read() -> None:
    for name in (
        "MEMORY",
        "TIMED",
        "STATE",
        "EIG",
        "MANY",
        "RECOMMENDED",
        "SCALED",
        "SHADER",
        "PEAKS",
        "GPU_TIME",
        "LITTLE",
        "ONE",
    ):
        ast.parse(getattr(mac_checks_jobs, name))
    assert not list(mac_checks_jobs.of_torch("cpu")) and len(list(mac_checks_jobs.of_torch("mps"))) > 10


def test_the_texts_of_torch_that_are_asked_for_are_those_of_its_library() -> None:
    from tests import mps_texts

    text = "\n".join(
        [
            mps_texts.NO_KERNEL.format("aten::linalg_eig"), mps_texts.FALLS_BACK.format("aten::linalg_eig"),
            mps_texts.FALLS_BACK.format("aten::linalg_eig"), mps_texts.PROFILED.format("aten::linalg_eig"),
            mps_texts.NO_FLOAT64, f"RuntimeError: {mps_texts.NO_MEMORY}",
        ]
    )  # fmt: skip
    patterns = {
        check.name: check.run.args[0] for check in mac_checks_jobs.of_torch("mps") if hasattr(check.run, "args")
    }
    for name in ("an operator without a kernel", "a fallback warns", "each fallback warns, if asked", "no float64",
                 "the profiler names the fallback", "no memory"):  # fmt: skip
        assert re.search(patterns[name], text, re.MULTILINE | re.DOTALL), name


def test_the_page_names_every_check() -> None:
    page = DOCS.read_text("utf-8")
    assert "python -m tests.mac_check" in page and "--service" in page
    checks = [*mac_checks.system(), *mac_checks_jobs.of_torch("mps"), *mac_checks_jobs.of_jobs("mps")]
    missing = [check.name for check in checks if check.name not in page]
    assert not missing, missing
    n_checks = len([*checks, *mac_checks_jobs.of_queue("mps")])
    assert f"[{n_checks} assumptions" in (DOCS.parents[1] / "README.md").read_text("utf-8")
