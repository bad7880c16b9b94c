"""The fence of a block: whole or not at all, and of one of all that try, whichever side they are on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from queue_runner.remote import box, fence
from queue_runner.remote.fence import FenceHolder, has_started, make_void, take_fence
from queue_runner.remote.profile import Profile
from queue_runner.remote.slurm.cluster import Slurm

pytestmark = pytest.mark.process

TOKEN = "a" * 32
_KILLED = """
import os, signal, sys
from pathlib import Path
from queue_runner.remote.fence import FenceHolder, take_fence
os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)
take_fence(Path(sys.argv[1]), FenceHolder(pid=1))
"""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_file())


def test_a_start_that_dies_while_it_takes_the_fence_has_not_taken_it(tmp_path: Path) -> None:
    path = tmp_path / "fence"
    done = subprocess.run([sys.executable, "-c", _KILLED, str(path)], check=False)
    assert done.returncode < 0
    assert not path.exists() and not has_started(path)  # else nobody would ever run the block
    assert take_fence(path, FenceHolder(pid=2)) and json.loads(path.read_text()) == {"pid": 2}


def test_a_disk_that_is_full_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            take_fence(tmp_path / "fence", FenceHolder())
    assert names(tmp_path) == [] and take_fence(tmp_path / "fence", FenceHolder())


def test_one_of_many_takes_it_and_the_others_read_whose_it_is(tmp_path: Path) -> None:
    path, count = tmp_path / "fence", 8
    together = threading.Barrier(count)
    won: list[int] = []
    seen: list[object] = []

    def try_it(number: int) -> None:
        together.wait()
        if take_fence(path, FenceHolder(pid=number)):
            won.append(number)
        else:
            seen.append(json.loads(path.read_text()))

    threads = [threading.Thread(target=try_it, args=[number]) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [{"pid": won[0]}] * (count - 1) and len(won) == 1
    assert names(tmp_path) == ["fence"]


def test_a_link_whose_answer_was_lost_on_nfs_is_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for NFS, which repeats the request and is told that the name exists."""
    link = os.link

    def twice(source: Path, target: Path) -> None:
        link(source, target)
        link(source, target)

    monkeypatch.setattr(os, "link", twice)
    assert take_fence(tmp_path / "fence", FenceHolder(pid=1))
    assert not take_fence(tmp_path / "fence", FenceHolder(pid=2))


def test_a_box_and_a_cluster_make_a_block_void_alike(tmp_path: Path) -> None:
    cluster = Slurm(Profile(name="slurm", folder=str(tmp_path / "shared")))
    (tmp_path / "shared" / TOKEN).mkdir(parents=True)
    assert cluster.void(TOKEN) and cluster.void(TOKEN) and not cluster.has_started(TOKEN)
    there = tmp_path / "far" / TOKEN
    assert box.void(there) == box.void(there) == {"void": True}
    assert (there / "fence").read_text() == (tmp_path / "shared" / TOKEN / "fence").read_text()
    assert names(there) == ["fence"]
    other = tmp_path / "far" / ("b" * 32)
    other.mkdir()
    assert take_fence(other / "fence", FenceHolder(pid=1)) and box.void(other) == {"void": False}
    assert has_started(other / "fence") and not make_void(other / "fence")


def test_there_is_one_way_to_make_a_fence() -> None:
    """What else links a file, or creates one that must not exist, in this wing would be another."""
    folder = Path(fence.__file__).parent
    ways = {path.name for path in folder.glob("*.py") for sign in ("os.link(", "O_EXCL") if sign in path.read_text()}
    assert ways == {"fence.py"}
