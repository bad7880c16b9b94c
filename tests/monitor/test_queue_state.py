"""The state of a run as its folder shows it: whether a signal has stopped its trainer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from queue_runner.host import processes, warden_records
from queue_runner.host.run_dir import RunDir
from queue_runner.monitor.queue_state import stopped_trainer
from tests.queue_support import until

pytestmark = pytest.mark.process


@pytest.fixture
def folder(tmp_path: Path) -> RunDir:
    (tmp_path / "warden").mkdir()
    return RunDir(tmp_path)


@pytest.fixture
def pid() -> Iterator[int]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process.pid
        process.kill()


def note(folder: RunDir, *noted: tuple[int, float]) -> None:
    folder.noted_pids.write_text("".join(json.dumps({"pid": pid, "start": start}) + "\n" for pid, start in noted))


def test_a_signal_that_stopped_the_trainer(folder: RunDir, pid: int) -> None:
    start = processes.start_time(pid)
    assert start is not None
    assert stopped_trainer(folder) is None, "not seen yet"
    note(folder, (pid, start))
    assert stopped_trainer(folder) is None, "it goes on"
    os.kill(pid, signal.SIGSTOP)
    until(lambda: stopped_trainer(folder) == pid, "the stop")
    suspended = folder.path / "warden/suspended"
    suspended.write_text(json.dumps({"v": 1, "at": 1.0, "processes": 1}))
    assert stopped_trainer(folder) is None, "by mpsq pause --now, also where mpsq resume is not obeyed yet"
    suspended.unlink()
    note(folder, (pid, start + 1))
    assert stopped_trainer(folder) is None, "another process of that pid"
    note(folder, (os.getpid(), 1.0), (pid, start))
    assert stopped_trainer(folder) is None, "a child of the trainer"
    (folder.path / "warden/prepared").write_text(json.dumps({"noted": 1}))
    assert stopped_trainer(folder) == pid, "the first after the preparation"


def test_of_thousands_of_processes_only_the_trainers_note_is_read(
    folder: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a job that has started 50,000 would make each look at the queue take 150 ms."""
    note(folder, *((2**30 + n, 1.0) for n in range(1000)))
    decoded = []
    decode_noted = warden_records.decode_noted

    def counting(data: bytes) -> Iterator[warden_records.NotedProcess]:
        for process in decode_noted(data):
            decoded.append(process)
            yield process

    monkeypatch.setattr(warden_records, "decode_noted", counting)
    assert stopped_trainer(folder) is None
    assert len(decoded) == 1
