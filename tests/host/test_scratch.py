"""Folders of commands in the temporary folder: gone with their command, also after its death, and not before."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from queue_runner.host import scratch

pytestmark = pytest.mark.process


def test_the_next_command_removes_what_a_killed_one_has_left_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in ("mpsq-scratch-left", "elsewhere", "mpsq-other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    (tmp_path / "mpsq-scratch-link").symlink_to(tmp_path / "elsewhere")
    with scratch.folder() as used:
        assert not (tmp_path / "mpsq-scratch-left").exists()
        (used / "file").touch()
        assert used.stat().st_mode & 0o777 == 0o700
        code = "from queue_runner.host import scratch\nwith scratch.folder() as mine: print(mine, mine.is_dir())"
        other = [sys.executable, "-c", f"import tempfile; tempfile.tempdir = {str(tmp_path)!r}\n{code}"]
        path, is_there = subprocess.run(other, capture_output=True, text=True, check=True).stdout.split()
        assert is_there == "True" and not Path(path).exists() and (used / "file").exists()
    assert {entry.name for entry in tmp_path.iterdir()} - {"locks"} == {"elsewhere", "mpsq-scratch-link", "mpsq-other"}
    assert (tmp_path / "elsewhere/file").exists()
