"""What a node passes on of its runs, in this process: they have ended, and their folders are as a job leaves them."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from queue_runner.bundles import reader, run_result
from queue_runner.bundles.run_result import RunResult
from queue_runner.control import checkpoints
from queue_runner.host import job_environments, locks
from queue_runner.host.run_dir import RunDir
from queue_runner.model import Ending, Outcome, RunId, Verb
from queue_runner.paths import Layout
from queue_runner.remote import block, block_store, box, outputs
from queue_runner.remote import node as node_module
from queue_runner.remote.block import Instructions
from queue_runner.remote.json_files import read_struct
from queue_runner.remote.node import Node
from queue_runner.remote.target import Seen
from queue_runner.spec import JobSpec
from queue_runner.store import jobs, results, retries
from queue_runner.store.engine import looking, open_engine, writing
from tests.cli_support import empty_queue
from tests.process_support import needs_linux
from tests.remote.block_support import Front
from tests.stand_in_nvml import Gpu, StandInNvml

pytestmark = pytest.mark.process


def instructions_of(folder: block.Folder) -> Instructions:
    instructions = read_struct(folder.instructions, Instructions)
    assert instructions is not None
    return instructions


def result_of(folder: block.Folder) -> RunResult:
    return run_result.read(reader.frames_of(folder.result("1.1")), RunId(1, 1))


def with_a_claimed_run(front: Front, tmp_path: Path) -> tuple[Node, block.Folder, Layout, int]:
    """A node that has claimed its only run, the folder of its block, its home, and the id of the run there."""
    folder, there = front.folder(), Layout(tmp_path / "there")
    made = Node(folder, instructions_of(folder), there.home)
    made.load()
    with writing(open_engine(there.db)) as connection:
        run_id = connection.value("SELECT id FROM runs")
        jobs.move(connection, run_id, Verb.CLAIM, actor="worker", claimed_at=1.0, token="t", boot_id="b")
    return made, folder, there, run_id


def end_run(there: Layout, run_id: int, ending: Ending) -> None:
    with writing(open_engine(there.db)) as connection:
        hashes = [results.save_fingerprint(connection, kind, {"id": "n"}) for kind in ("machine", "software")]
        results.mark_fingerprint(connection, run_id, *hashes)
        jobs.move(connection, run_id, Verb.FINISH, actor="worker", ending=ending, ended_at=time.time())


@pytest.fixture
def node(layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Node, block.Folder, RunDir]:
    """A node whose only run has ended, the folder of its block, and the folder of the run on the node."""
    front = Front(layout, tmp_path / "shared", monkeypatch)
    front.blocks.step()
    made, folder, there, run_id = with_a_claimed_run(front, tmp_path)
    end_run(there, run_id, Ending(Outcome.SUCCEEDED, 0))
    run = RunDir(there.run_dir("1.1"))
    run.out.mkdir(parents=True)
    return made, folder, run


def test_a_result_that_the_shared_folder_does_not_take_at_once_is_tried_again(
    node: tuple[Node, block.Folder, RunDir], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, folder, _ = node

    def refuse(path: object, **_: object) -> None:
        raise OSError(28, "No space left on device", str(path))

    before = node_module.replacing
    monkeypatch.setattr(node_module, "replacing", refuse)
    with monkeypatch.context() as patch:  # the log of a node is on the same disk
        patch.setattr(sys, "stderr", SimpleNamespace(write=refuse, flush=lambda: None))
        left = made._export()
    assert [row.name for row in left] == ["1.1"]
    assert not made._is_over(left)  # though its worker has nothing more to do
    monkeypatch.setattr(node_module, "replacing", before)
    assert made._export() == []
    assert result_of(folder).ending == Ending(Outcome.SUCCEEDED, 0)


def test_a_shared_folder_that_does_not_answer_ends_no_block(
    node: tuple[Node, block.Folder, RunDir], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a folder that is missing was removed."""
    made, folder, _ = node
    silent = {*map(str, (folder.path, folder.stop, folder.cancels))}

    def of(call: Any) -> Any:
        def stale(path: Any, *arguments: Any, **options: Any) -> Any:
            if str(path) in silent:
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
            return call(path, *arguments, **options)

        return stale

    monkeypatch.setattr(made, "_keep_worker", lambda: True)
    with monkeypatch.context() as patch:
        for name in ("stat", "lstat", "listdir", "scandir"):
            patch.setattr(os, name, of(getattr(os, name)))
        assert made.run() == ""
    assert result_of(folder).ending == Ending(Outcome.SUCCEEDED, 0)


def test_a_supervisor_that_was_restarted_publishes_nothing_twice(node: tuple[Node, block.Folder, RunDir]) -> None:
    """The front may be copying it."""
    made, folder, run = node
    assert made._export() == []
    (run.out / "later").touch()
    inode = folder.result("1.1").stat().st_ino
    again = Node(folder, instructions_of(folder), run.path.parents[1])
    again.load()
    assert again._export() == []
    assert folder.result("1.1").stat().st_ino == inode and not (folder.run("1.1").out / "later").exists()


@pytest.mark.parametrize("is_asked", [True, False])
def test_the_signal_of_a_scheduler_may_reach_the_job_long_before_its_node(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_asked: bool
) -> None:
    """As on a busy node: its result waits for that. A kill that no request follows is the job's own end."""
    front = Front(layout, tmp_path / "shared", monkeypatch)
    front.blocks.step()
    made, folder, there, run_id = with_a_claimed_run(front, tmp_path)
    end_run(there, run_id, Ending(Outcome.KILLED, signal=signal.SIGTERM))
    RunDir(there.run_dir("1.1")).out.mkdir(parents=True)
    monkeypatch.setattr(node_module, "SIGNAL_S", 3600.0)
    made._export()
    assert not folder.result("1.1").exists()
    assert not folder.run("1.1").out.exists()  # it may be large, and is copied once
    if is_asked:
        made.stop(block.TAKEN)
    else:
        monkeypatch.setattr(node_module, "SIGNAL_S", 0.0)
    made._export()
    assert result_of(folder).has_note(block.TAKEN_NOTE) == is_asked


def test_a_block_that_was_removed_is_not_made_anew(node: tuple[Node, block.Folder, RunDir]) -> None:
    """Its node may be writing at that moment."""
    made, folder, _ = node
    with looking(made._engine) as connection:
        (row,) = block_store.all_runs(connection)
    shutil.rmtree(folder.path)
    with pytest.raises(FileNotFoundError):
        made._pass_on(row)
    assert not folder.path.exists()


def test_what_cannot_be_copied_keeps_no_result_back(node: tuple[Node, block.Folder, RunDir], tmp_path: Path) -> None:
    made, folder, run = node
    (run.out / "a").mkdir()
    (run.out / "a" / "kept").write_text("kept")
    (run.out / "dangling").symlink_to("/nowhere/at all")
    (run.out / "loop").symlink_to("loop")
    (run.out / "a" / "up").symlink_to("..")
    os.mkfifo(run.out / "fifo")
    (run.path / "spec.json").mkdir()
    assert made._export() == []
    (note,) = result_of(folder).content.rows["notes"]
    assert note.kind == outputs.NOTE and note.text.endswith(": fifo")
    target = folder.run("1.1")
    assert (target.out / "a" / "kept").read_text() == "kept"
    assert (target.out / "dangling").readlink() == Path("/nowhere/at all")
    here = RunDir(tmp_path / "here")
    for _ in range(2):  # as after a crash in between
        assert block.fetch(target, here, whole=True) == []
    assert (here.out / "a" / "up").readlink() == Path("..") and (here.out / "loop").readlink() == Path("loop")


@pytest.mark.parametrize("name", [*block.STREAMS, "exit.json", "out/file"])
def test_a_file_that_does_not_answer_is_read_again(
    node: tuple[Node, block.Folder, RunDir], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    made, folder, run = node
    (run.out / "file").touch()
    made._export()
    opened = os.open

    def stale(path: Any, *arguments: Any, **options: Any) -> int:
        if Path(path) in (folder.run("1.1").path / name, folder.run("1.1").path / "warden" / name):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return opened(path, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", stale)
        with pytest.raises(OSError, match=os.strerror(errno.ESTALE)):
            block.fetch(folder.run("1.1"), RunDir(tmp_path / "here"), whole=True)
    assert block.fetch(folder.run("1.1"), RunDir(tmp_path / "here"), whole=True) == []


def test_a_node_that_is_killed_while_it_replaces_a_checkpoint_leaves_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two renames there is no folder of that name."""
    there, here = RunDir(tmp_path / "there"), RunDir(tmp_path / "here")
    there.out.mkdir(parents=True)
    (there.out / "ckpt.bin").write_text("one")
    rename = Path.rename

    def killed(path: Path, target: Path) -> Path:
        return 1 / 0 if path.suffix == ".new" else rename(path, target)  # type: ignore[return-value]

    for step in ("two", "three"):  # as after a start that was killed as well
        with monkeypatch.context() as patch, contextlib.suppress(ZeroDivisionError):
            patch.setattr(Path, "rename", killed)
            with outputs.replacing_folder(there.out) as new:
                new.mkdir()
                (new / "ckpt.bin").write_text(step)
        assert not there.out.exists()
        block.fetch(there, here, whole=True)
        assert (here.out / "ckpt.bin").read_text() == "one"
    with outputs.replacing_folder(there.out) as new:
        new.mkdir()
    assert [path.name for path in there.path.iterdir()] == ["out"]


@needs_linux
def test_a_full_disk_is_no_file_that_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "file").write_text("x")
    opened = Path.open

    def full(path: Path, *arguments: Any, **options: Any) -> Any:
        return opened(Path("/dev/full"), "wb") if path.parent.name == "copy" else opened(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(OSError, match="No space left"):
        outputs.copy(tmp_path / "out", tmp_path / "copy")


def test_a_checkpoint_that_its_job_has_removed_does_not_come_back(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    front = Front(layout, tmp_path / "shared", monkeypatch, retries=1, resume=True)
    front.blocks.step()
    made, folder, there, run_id = with_a_claimed_run(front, tmp_path)
    out, target = (run.out for run in (RunDir(there.run_dir("1.1")), folder.run("1.1")))
    out.mkdir(parents=True)
    for step in ("checkpoint-1", "checkpoint-2"):
        for old in out.iterdir():
            shutil.rmtree(old)
        (out / step).mkdir()
        (out / step / "weights").write_text(step)
        made._export()
        assert [path.name for path in target.iterdir()] == [step]
    shutil.rmtree(out / "checkpoint-2")
    (out / "final").touch()
    end_run(there, run_id, Ending(Outcome.SUCCEEDED, 0))
    assert made._export() == []
    assert [path.name for path in target.iterdir()] == ["final"]
    assert {path.name for path in target.parent.iterdir() if path.is_dir()} == {"out", "warden"}


@pytest.mark.parametrize(("there", "taken"), [({"CUDA_VISIBLE_DEVICES": "3", "SLURM_X": "y"}, "3"), (None, "1")])
def test_only_a_scheduler_takes_precedence_over_env(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: dict[str, str] | None, taken: str
) -> None:
    front = Front(layout, tmp_path / "shared", monkeypatch)
    front.blocks.step()
    sent = instructions_of(front.folder())
    spec = json.loads(sent.jobs[0].spec_json)
    sent.environments[spec["env_file"]] = {"CUDA_VISIBLE_DEVICES": "1", "A": "b"}
    home = empty_queue(tmp_path / "node")
    with writing(open_engine(home.db)) as connection:
        block_store.load(connection, home, sent, there, {"CUDA_VISIBLE_DEVICES": "2"}, None)
        stored = JobSpec.from_json(connection.value("SELECT spec_json FROM jobs"))
    env = job_environments.load(home, stored)
    assert (env["CUDA_VISIBLE_DEVICES"], env["A"]) == (taken, "b")


def test_the_checkpoint_of_a_run_that_goes_on_is_published_and_found_by_the_front(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its node is killed without a word; the run that follows takes the checkpoint along, and finds it there."""
    front = Front(layout, tmp_path / "shared", monkeypatch, retries=1, resume=True)
    front.blocks.step()
    made, folder, there, _ = with_a_claimed_run(front, tmp_path)
    out = RunDir(there.run_dir("1.1")).out
    out.mkdir(parents=True)
    for step in ("one", "two"):
        (out / "ckpt.bin").write_text(step)
        made._export()
        assert (folder.run("1.1").out / "ckpt.bin").read_text() == step
    front.begin_fence()
    front.target.seen = Seen("gone", "NODE_FAIL")
    while front.row()["outcome"] is None:
        front.blocks.step()
    assert front.row()["outcome"] == "LOST"
    front.target.seen = Seen("waiting", "PENDING")
    front.blocks.step()
    (sent,) = [path for path in front.shared.glob("*/block.json") if path.parent != folder.path]
    again = block.Folder(sent.parent)
    assert instructions_of(again).origins == {"1.2": "1.1"}
    second = Node(again, instructions_of(again), tmp_path / "second")
    second.load()
    assert [row.name for row in second._export()] == ["1.2"]
    with looking(open_engine(Layout(tmp_path / "second").db)) as connection:
        chain = retries.segments(connection, connection.value("SELECT id FROM runs WHERE number = 2"))
    assert [str(name) for _, name in chain] == ["1.2", "1.1"]
    assert checkpoints.in_folder(RunDir(Layout(tmp_path / "second").run_dir("1.1")).out).read_text() == "two"


def test_the_homes_of_killed_blocks_are_swept_and_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("dead", "alive", "fresh", "worked"):
        (tmp_path / f"mpsq-block-{name}" / "runs").mkdir(parents=True)
        (tmp_path / f"mpsq-block-{name}.lock").touch()
        if name != "fresh":
            os.utime(tmp_path / f"mpsq-block-{name}.lock", (1, 1))
    locks.lane_lock_path("slurm-1").touch()
    alive = locks.try_lock(tmp_path / "mpsq-block-alive.lock")
    with monkeypatch.context() as elsewhere:  # a worker in a container that shares the temporary folder
        elsewhere.setenv("MPSQ_LOCKS", str(tmp_path / "others"))
        worker = locks.try_worker(tmp_path / "mpsq-block-worked")
    assert alive and worker
    running = locks.try_lock(locks.lane_lock_path("slurm-2"))
    assert running
    (tmp_path / "block").mkdir()
    (tmp_path / "block/home").symlink_to(tmp_path / "mpsq-block-worked")
    with alive, worker, running:
        node_module.sweep(tmp_path)
        assert box.is_left(tmp_path / "block")
    assert [path.name for path in locks.lock_dir().glob("lane-slurm-*")] == ["lane-slurm-2.lock"]
    assert {path.name for path in tmp_path.glob("mpsq-block-*") if "dead" in path.name} == set()
    assert len(list(tmp_path.glob("mpsq-block-*/runs"))) == 3


@pytest.mark.parametrize(
    ("visible", "of_job", "confined", "expected"),
    [
        ("1,2", "1,2", False, ["GPU-1", "GPU-2"]),
        ("0", "2", True, ["GPU-2"]),  # a cgroup shows the job its own GPUs alone, counted from 0
        ("0", "2", False, ["GPU-2"]),
        ("MIG-a", "0", False, ["MIG-a"]),
        ("", "", False, ["slurm-7"]),
    ],
)
def test_a_part_of_a_node_is_the_gpus_that_slurm_gave(
    monkeypatch: pytest.MonkeyPatch, visible: str, of_job: str, confined: bool, expected: list[str]
) -> None:
    there = StandInNvml(*(Gpu(uuid=f"GPU-{n}") for n in ([2] if confined else range(4))))
    for name, value in {"CUDA_VISIBLE_DEVICES": visible, "SLURM_JOB_GPUS": of_job, "SLURM_JOB_ID": "7"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    assert node_module.part_given(there) == expected
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1}, raising=False)
    assert node_module.part_given(there) == [*(unit for unit in expected if unit != "slurm-7"), "cpu:1"]
