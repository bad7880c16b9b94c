"""mpsq service: its commands call the service of this machine, and logs prints the end of the worker's log."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from queue_runner.host import services
from tests.cli_support import Cli


@pytest.fixture
def worker_log(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The log of a stand-in for the service."""
    said = {name: lambda name=name: f"it did {name}" for name in ("install", "start", "stop", "restart", "uninstall")}
    fake = SimpleNamespace(kind="launchd", log=tmp_path / "worker.log", **said)
    monkeypatch.setattr(services, "for_this_machine", lambda *_: fake)
    return tmp_path / "worker.log"


def test_its_commands(mpsq: Cli, worker_log: Path) -> None:
    for command in ("start", "stop", "restart", "uninstall"):
        assert mpsq.ok("service", command).out == f"it did {command}\n"
    assert "Background Items Added" in mpsq.ok("service", "install").err


def test_the_end_of_the_log(mpsq: Cli, worker_log: Path) -> None:
    assert f"nothing to {worker_log}" in mpsq.ok("service", "logs").err
    worker_log.write_text("".join(f"line {number}\n" for number in range(100)))
    assert mpsq.ok("service", "logs").out.splitlines() == [f"line {number}" for number in range(50, 100)]
    assert mpsq.ok("service", "logs", "-n", "1").out == "line 99\n"


def test_the_log_is_followed_until_interrupted(mpsq: Cli, worker_log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker_log.write_text("old\n")
    turns = iter("ab")

    def wait(*_: object) -> None:
        turn = next(turns, None)
        if turn is None:
            raise KeyboardInterrupt
        with worker_log.open("a") as log:
            log.write(f"{turn}\n")

    monkeypatch.setattr("queue_runner.host.low_priority.give_way", lambda: None)
    monkeypatch.setattr("queue_runner.host.low_priority.Wait", lambda _: wait)
    ran = mpsq("service", "logs", "-f")
    assert (ran.out, ran.code) == ("old\na\nb\n", 130)
