"""A result that becomes visible late, as on NFS: sbatch and squeue are stand-ins here, and the node is this test."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from queue_runner import config_file
from queue_runner.paths import Layout
from queue_runner.remote import block
from queue_runner.remote.dispatcher import Dispatcher
from queue_runner.remote.fence import FenceHolder, take_fence
from queue_runner.remote.json_files import write_json
from queue_runner.store import read
from queue_runner.store.engine import open_engine
from queue_runner.submit import plan
from tests import named_rows
from tests.queue_support import until
from tests.remote.block_support import write_result
from tests.remote.slurm_support import TIMES
from tests.submit_support import requested

pytestmark = pytest.mark.process

GONE = '{"why": "", "at": 0}'


def front(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grace: str
) -> tuple[Dispatcher, block.Folder]:
    """A front that has sent a block of one run, and the folder of that block."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "sbatch").write_text("#!/bin/sh\necho 7\n")
    (programs / "squeue").write_text("#!/bin/sh\n")
    for program in programs.iterdir():
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setattr("queue_runner.remote.dispatcher.PATIENCE_S", 60.0)
    profile = f'[on.slurm]\nfolder = "{tmp_path}/shared"\npoll = "0s"\ngrace = "{grace}"\n'
    layout.config.write_text(profile)
    plan.store(layout, plan.plan(requested(argv=("true",), cwd=str(tmp_path), on="slurm")))
    blocks = Dispatcher(layout, config_file.load(layout.config), open_engine(layout.db), lambda _: None)
    blocks.step()
    return blocks, block.Folder(next((tmp_path / "shared").glob("*/block.json")).parent)


def ending(layout: Layout) -> named_rows.Row:
    with read.reading(layout.db) as connection:
        return named_rows.runs(connection)[0]


def run_begins(folder: block.Folder) -> None:
    assert take_fence(folder.fence, FenceHolder())
    (folder.run("1.1").path / "warden").mkdir(parents=True)
    write_json(folder.run("1.1").path / "began.json", {"at": 10.0, "started": 11.0})


@pytest.mark.parametrize("time", range(TIMES))
@pytest.mark.parametrize("ended", [True, False])
def test_a_result_that_is_late_by_less_than_the_grace_counts(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: bool, time: int
) -> None:
    """Whether the node says that it has ended, or the scheduler has forgotten it."""
    blocks, folder = front(layout, tmp_path, monkeypatch, "1h")
    run_begins(folder)
    if ended:
        folder.ended.write_text(GONE)
    for _ in range(3):
        blocks.step()
        assert ending(layout)["outcome"] is None
    folder.result("1.1").write_bytes(b"no bundle")
    blocks.step()
    assert ending(layout)["outcome"] is None
    write_result(folder)
    blocks.step()
    assert ending(layout)["outcome"] == "SUCCEEDED"


@pytest.mark.parametrize("removed", [True, False])
def test_without_a_result_it_is_lost_after_the_grace(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removed: bool
) -> None:
    """Whether the node is silent, or the block's folder is gone."""
    blocks, folder = front(layout, tmp_path, monkeypatch, "0s")
    run_begins(folder)
    if removed:
        shutil.rmtree(folder.path)
    until(lambda: (blocks.step(), ending(layout)["outcome"])[1], "the end")
    ended = ending(layout)
    assert ended["outcome"] == "LOST"
    assert ended["reason"].startswith("folder_removed" if removed else "forgotten")
    assert removed or not take_fence(folder.fence, FenceHolder())  # it cannot be started again


def test_a_folder_that_is_not_mounted_is_waited_for(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks, folder = front(layout, tmp_path, monkeypatch, "0s")
    run_begins(folder)
    write_result(folder)
    away = folder.path.parent.rename(tmp_path / "away")
    folder.path.parent.mkdir()  # the mount point
    for _ in range(5):
        blocks.step()
        assert ending(layout)["outcome"] is None
    folder.path.parent.rmdir()
    away.rename(folder.path.parent)
    blocks.step()
    assert ending(layout)["outcome"] == "SUCCEEDED"
