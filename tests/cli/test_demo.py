"""`make demo`: its commands."""

from __future__ import annotations

import pytest

from tests import demo


@pytest.mark.parametrize(
    ("ended", "code", "commands"),
    [(0, 0, ["bench", "report"]), (3, 0, ["bench", "report"]), (2, 2, ["bench"])],
    ids=["decided", "out of budget", "refused"],
)
def test_it_benches_and_reports(monkeypatch: pytest.MonkeyPatch, ended: int, code: int, commands: list[str]) -> None:
    ran: list[str] = []

    def mpsq(arguments: str) -> int:
        ran.append(arguments.split()[0])
        return ended if ran[-1] == "bench" else 0

    monkeypatch.setenv("MPSQ_HOME", "/nowhere/demo")
    monkeypatch.setattr(demo, "mpsq", mpsq)
    assert demo.main() == code and ran == commands
