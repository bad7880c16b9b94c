"""Processes that open bundles, forked from one that has imported their code."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace

import pytest

from queue_runner.bundles import reading
from tests import forked_programs


@pytest.fixture(autouse=True)
def quick_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = SimpleNamespace(PIPE=subprocess.PIPE, DEVNULL=subprocess.DEVNULL, Popen=forked_programs.reader)
    monkeypatch.setattr(reading, "subprocess", stand_in)
