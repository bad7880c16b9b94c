"""A queue whose worker the commands start, and a repository to judge."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from queue_runner.host import locks
from queue_runner.paths import Layout
from tests.queue_support import Queue, until
from tests.referee.referee_support import FAST, SLOW, WORSE, Repository


@pytest.fixture
def queue(layout: Layout, tmp_path: Path) -> Iterator[Queue]:
    queue = Queue(layout, tmp_path)
    yield queue
    lock = locks.worker_lock_path(layout.home)
    if locks.is_held(lock):
        os.kill(int((locks.read_holder(lock) or {})["pid"]), signal.SIGTERM)
        until(lambda: not locks.is_held(lock), "the end of the worker")
    queue.close()


@pytest.fixture
def repository(queue: Queue, tmp_path: Path) -> Repository:
    repository = Repository(tmp_path / "code")
    repository.commit(SLOW, "slow")
    repository.commit(FAST, "fast")
    repository.commit(WORSE, "worse")
    return repository
