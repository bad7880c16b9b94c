"""Disk use: measured once, remembered, bounded; never wrong without saying so."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from queue_runner.host.home import ensure_home
from queue_runner.monitor import disk_usage
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


def look(layout: Layout, active: Sequence[str] = (), budget_s: float = 60.0) -> disk_usage.DiskUse:
    """Without what others do to the disk meanwhile."""
    use = disk_usage.look(layout, active, budget_s=budget_s)
    assert use.free_bytes
    return replace(use, free_bytes=None)


def blocks(folder: Path) -> int:
    """As du -s counts, but for the folder's own folders above the entries that are measured."""
    found = [Path(at) / name for at, folders, files in os.walk(folder) for name in (*folders, *files)]
    return sum(path.lstat().st_blocks * 512 for path in found)


def test_it_is_what_du_says(layout: Layout) -> None:
    use = look(layout)
    assert use.exact
    assert (use.runs_bytes, use.snapshots_bytes) == (blocks(layout.runs), blocks(layout.snapshots))
    assert use.cache_bytes == blocks(layout.cache / "data")
    assert look(layout, budget_s=0) == use  # remembered


def test_without_time_it_is_a_lower_bound(layout: Layout) -> None:
    assert look(layout, budget_s=0) == disk_usage.DiskUse(0, 0, 0, None, False)


def test_what_runs_is_measured_each_time(layout: Layout) -> None:
    before = look(layout, ["2.1"])
    (layout.run_dir("2.1") / "more").write_bytes(b"x" * 1_000_000)
    (layout.run_dir("1.1") / "more").write_bytes(b"x" * 1_000_000)
    after = look(layout, ["2.1"])
    assert 1_000_000 <= after.runs_bytes - before.runs_bytes < 2_000_000
    disk_usage.remember(layout, "1.1")
    assert look(layout, ["2.1"]).runs_bytes == blocks(layout.runs)


def test_what_is_gone_counts_no_more(layout: Layout) -> None:
    look(layout)
    (layout.snapshots / "abc" / "train.py").unlink()
    (layout.snapshots / "abc").rmdir()
    assert look(layout).snapshots_bytes == 0


def test_its_memory_may_be_lost_torn_or_read_only(layout: Layout) -> None:
    whole = look(layout)
    layout.sizes.write_bytes(b"\xff\n12 x 1 runs/1.1\n99\n" + layout.sizes.read_bytes()[:-20])
    assert look(layout) == whole
    layout.sizes.unlink()
    layout.sizes.mkdir()
    assert look(layout) == whole


def test_its_memory_stays_small(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_usage, "_TIDY_BYTES", 1000)
    for _ in range(150):
        disk_usage.remember(layout, "1.1")
    (layout.snapshots / "new").mkdir()
    use = look(layout)
    assert len(layout.sizes.read_text().splitlines()) == 6
    assert look(layout, budget_s=0) == use


def test_links_are_not_followed(layout: Layout, tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b"x" * 10_000_000)
    (layout.run_dir("1.1") / "link").symlink_to(tmp_path / "big")
    (layout.run_dir("1.1") / "loop").symlink_to(layout.run_dir("1.1"))
    (layout.run_dir("3.1")).symlink_to(tmp_path)
    assert look(layout).runs_bytes < 1_000_000


def test_a_giant_is_given_up_and_tried_again_when_old(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_usage, "_ONE_S", -1.0)
    first = look(layout)
    assert not first.exact and not look(layout).exact
    monkeypatch.setattr(disk_usage, "_ONE_S", 1.0)
    monkeypatch.setattr(disk_usage, "_OLD_S", 0.0)
    assert look(layout).exact
