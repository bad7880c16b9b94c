"""Every process test has locks of its own and leaves no process behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from queue_runner.paths import Layout
from tests.process.queue_support import Queue
from tests.process.support import WardenRun


@pytest.fixture(autouse=True)
def locks_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "locks"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("MPSQ_LOCKS", str(folder))
    monkeypatch.delenv("MPSQ_STOP_AT", raising=False)
    return folder


@pytest.fixture
def warden_run(tmp_path: Path, locks_of_its_own: Path) -> Iterator[Callable[..., WardenRun]]:
    """Makes a run under a warden; what it left is ended after the test."""
    made: list[WardenRun] = []

    def make(argv: list[str], **changes: object) -> WardenRun:
        folder = tmp_path / f"run{len(made)}"
        folder.mkdir()
        made.append(WardenRun(folder, argv, **changes))
        return made[-1]

    yield make
    for run in made:
        assert run.clean_up() == []


@pytest.fixture
def queue(layout: Layout, tmp_path: Path) -> Iterator[Queue]:
    """A queue of its own, and nothing left of it afterwards."""
    queue = Queue(layout, tmp_path)
    yield queue
    queue.close()
