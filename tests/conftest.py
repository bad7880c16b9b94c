"""A queue of its own for each test: MPSQ_HOME and MPSQ_LOCKS in the test's folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from queue_runner.paths import Layout, ensure_home
from queue_runner.store import migrate


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An MPSQ_HOME that does not exist yet."""
    monkeypatch.setenv("MPSQ_LOCKS", str(tmp_path / "locks"))
    monkeypatch.setenv("MPSQ_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def layout(home: Path) -> Layout:
    """A home with an empty database."""
    layout = ensure_home(home)
    migrate.ensure(layout)
    return layout
