"""An upgrade from version 0.1 in mid-run: what the old mpsq holds, queued and recorded is carried on by this one.

mpsq-0.1.tar.xz is `git archive 5f532c9 queue_runner migrations pyproject.toml`, the code of the first version.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from queue_runner.paths import Layout
from queue_runner.store import read
from tests.queue_support import ANY_MACHINE, Queue, until, warden_pid

pytestmark = pytest.mark.process

TRAIN = """\
import os, sys, time
from data import WORD
open(os.environ["J"], "a").write(f"{WORD} {sys.argv[1]} {os.getppid()}\\n")
for i in range(2):
    print(f"iter {i}: loss {3 - i}.0000, time 10.00ms, mfu 1.00%", flush=True)
while sys.argv[1] == "first" and not os.path.exists("go"):
    time.sleep(0.02)
"""


class First:
    """Version 0.1: its commands and its worker."""

    def __init__(self, folder: Path, queue: Queue) -> None:
        with tarfile.open(Path(__file__).with_name("mpsq-0.1.tar.xz")) as archive:
            archive.extractall(folder, filter="data")
        self._environment = {**os.environ, "PYTHONPATH": str(folder), "J": str(queue.journal)}
        self._queue = queue

    def submit(self, *arguments: str) -> None:
        subprocess.run(
            [sys.executable, "-m", "queue_runner.cli.main", "submit", "--parser", "nanogpt", *arguments],
            env=self._environment,
            cwd=self._queue.folder,
            check=True,
        )

    def worker(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "queue_runner.daemon"]  # its folder: -m looks in the working directory first
        return subprocess.Popen(command, env=self._environment, cwd=self._queue.folder)


@pytest.fixture
def queue(layout: Layout, tmp_path: Path) -> Iterator[Queue]:
    made = Queue(layout, tmp_path)
    for path in layout.home.glob("mpsq.db*"):
        path.unlink()  # the first version makes its own
    layout.config.write_text(layout.config.read_text().replace(ANY_MACHINE, ""))  # it knows no gate
    yield made
    made.close()


def test_a_run_held_by_its_warden_is_adopted_and_its_snapshots_run(queue: Queue, tmp_path: Path) -> None:
    first = First(tmp_path / "first", queue)
    (queue.folder / "train.py").write_text(TRAIN)
    (queue.folder / "data.py").write_text("WORD = 'old'\n")
    first.submit("--", sys.executable, "train.py", "first")
    first.submit("--snapshot", "copy", "--", sys.executable, "train.py", "second")
    worker = first.worker()
    try:
        until(queue.written, "the job of 0.1")
        held_by = warden_pid(queue.layout, "1.1")
        assert str(queue.layout.run_dir("1.1") / "warden.py") in psutil.Process(held_by).cmdline()
    finally:
        worker.kill()
        worker.wait()
    (queue.folder / "data.py").write_text("WORD = 'new'\n")
    queue.adopted_by(queue.worker("", "--until-idle"))
    (queue.folder / "go").touch()
    until(lambda: read.schema_revision(queue.layout.db) == read.HEAD, "the upgrade, once the run has ended")
    rows = queue.done(2)
    assert [(row["outcome"], row["n_iters"]) for row in rows] == [("SUCCEEDED", 2)] * 2
    assert [line.split()[:2] for line in queue.written()] == [["old", "first"], ["old", "second"]]
    assert int(queue.written()[0].split()[2]) == held_by
