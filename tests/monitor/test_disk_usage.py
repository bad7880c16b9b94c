"""Disk use: measured in bounded time; never wrong without saying so."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from queue_runner.host.home import ensure_home
from queue_runner.monitor import queue_status
from queue_runner.paths import Layout


@pytest.fixture
def layout(home: Path) -> Layout:
    layout = ensure_home(home)
    for run in ("1.1", "1.2", "2.1"):
        (layout.run_dir(run) / "out").mkdir(parents=True)
        (layout.run_dir(run) / "out" / "model").write_bytes(b"x" * 100_000)
    (layout.snapshots / "abc").mkdir()
    (layout.snapshots / "abc" / "train.py").write_bytes(b"x" * 10_000)
    (layout.cache / "data" / "shakespeare").mkdir(parents=True)
    (layout.cache / "data" / "shakespeare" / "input.txt").write_bytes(b"x" * 50_000)
    return layout


def look(layout: Layout, budget_s: float = 60.0) -> queue_status.DiskUse:
    """Without what others do to the disk meanwhile."""
    use = queue_status.disk_use(layout, budget_s=budget_s)
    assert use.free_bytes
    return replace(use, free_bytes=None)


def blocks(folder: Path) -> int:
    """As du -s counts."""
    found = [folder, *(Path(at) / name for at, folders, files in os.walk(folder) for name in (*folders, *files))]
    return sum(path.lstat().st_blocks * 512 for path in found)


def test_it_is_what_du_says(layout: Layout) -> None:
    whole = queue_status.DiskUse(blocks(layout.runs), blocks(layout.snapshots), blocks(layout.cache), None, True)
    assert look(layout) == whole


def test_without_time_it_is_a_lower_bound(layout: Layout) -> None:
    assert look(layout, budget_s=-1.0) == queue_status.DiskUse(0, 0, 0, None, False)


def test_links_are_not_followed(layout: Layout, tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b"x" * 10_000_000)
    (layout.run_dir("1.1") / "link").symlink_to(tmp_path / "big")
    (layout.run_dir("1.1") / "loop").symlink_to(layout.run_dir("1.1"))
    (layout.run_dir("3.1")).symlink_to(tmp_path)
    assert look(layout).runs_bytes < 1_000_000
