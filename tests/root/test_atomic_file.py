"""The replacement of files: what has got its name is on the disk."""

import fcntl
import os
from pathlib import Path

import pytest

from queue_runner.atomic_file import replacing
from queue_runner.source import snapshot


def test_the_medium_is_flushed_and_not_only_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for macOS, where fsync leaves data in the cache of the drive."""
    flushed: list[int] = []
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", lambda fd, _: flushed.append(os.fstat(fd).st_ino))
    with replacing(tmp_path / "a", durable=True) as partial:
        partial.write_text("new")
    assert flushed == [(tmp_path / "a").stat().st_ino, tmp_path.stat().st_ino]


def test_the_code_of_a_workload_is_whole_when_it_is_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda fd: sizes.append(os.fstat(fd).st_size))
    code = tmp_path / "jobs" / "job.py"
    code.parent.mkdir()
    code.write_text("print(1)\n")
    snapshot.of_workloads(code.parent, tmp_path / "store", None)
    assert sizes == [code.stat().st_size]
