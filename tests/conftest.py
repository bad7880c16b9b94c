"""A queue of its own for each test: MPSQ_HOME and MPSQ_LOCKS in the test's folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from queue_runner.paths import Layout
from tests import system_packages
from tests.cli_support import empty_queue


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before any fixture of the test."""
    for mark in item.iter_markers("needs_program"):
        for program in mark.args:
            system_packages.require(program)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An MPSQ_HOME that does not exist yet."""
    monkeypatch.setenv("MPSQ_LOCKS", str(tmp_path / "locks"))
    monkeypatch.setenv("MPSQ_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def layout(home: Path) -> Layout:
    """A home with an empty database."""
    return empty_queue(home)
