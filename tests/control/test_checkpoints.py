"""Going on from a checkpoint: which one, what is agreed, and how reports keep the parts of a training apart."""

from __future__ import annotations

import errno
import os
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from queue_runner.analysis.points import EvalPoint, IterationPoint, PhaseMark
from queue_runner.analysis.summary import summarize
from queue_runner.control import checkpoints
from queue_runner.errors import UsageError
from queue_runner.host.run_dir import RunDir
from queue_runner.model import PHASES, Ending, Outcome, RunId
from queue_runner.paths import Layout
from queue_runner.spec import JobSpec, NewJob, Terms
from queue_runner.store import jobs, read, retries
from queue_runner.store.engine import Engine, looking, open_engine, writing
from queue_runner.submit import plan
from queue_runner.worker import finish
from tests import named_rows
from tests.reports.report_fixture import Store, words
from tests.store_support import claim_next
from tests.submit_support import requested


def torch_file(path: Path, cut: int = 0) -> Path:
    """A file as torch.save writes it: a zip."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data.pkl", b"x" * 1000)
    if cut:
        path.write_bytes(path.read_bytes()[:-cut])
    return path


def at(path: Path, time_s: float) -> None:
    os.utime(path, (time_s, time_s))


def test_the_newest_that_is_whole(tmp_path: Path) -> None:
    assert checkpoints.in_folder(tmp_path / "nowhere") is None
    old, new = torch_file(tmp_path / "checkpoint.pt"), torch_file(tmp_path / "ckpt.pt")
    at(old, 100), at(new, 200)
    assert checkpoints.in_folder(tmp_path) == new
    torch_file(new, cut=20)
    at(new, 200)
    assert checkpoints.in_folder(tmp_path) == old
    (tmp_path / ".checkpoint-x1").write_bytes(b"half")
    (tmp_path / "checkpoint.txt").write_bytes(b"")
    (tmp_path / "checkpoint-link").symlink_to(new)
    os.mkfifo(tmp_path / "checkpoint-pipe")
    (tmp_path / "checkpoint-9").mkdir()
    of_several_disks = b"PK\x06\x07" + bytes(12) + b"\x02\0\0\0" + b"PK\x05\x06" + bytes(18)
    (tmp_path / "last.pt").write_bytes(of_several_disks)
    torch_file(tmp_path / "model.pt")
    assert checkpoints.in_folder(tmp_path) == old, "whole, named so, neither hidden nor a link nor empty"
    (tmp_path / "checkpoint-500").mkdir()
    (tmp_path / "checkpoint-500" / "weights").write_text("w")
    assert checkpoints.in_folder(tmp_path) == tmp_path / "checkpoint-500", "as Hugging Face's Trainer leaves them"


@pytest.mark.parametrize("name", ["model.pt", "epoch=3.ckpt", "w.safetensors", "state.npz"])
def test_names_that_say_less_will_do(tmp_path: Path, name: str) -> None:
    torch_file(tmp_path / name)
    (tmp_path / "log.txt").write_text("no checkpoint")
    assert checkpoints.in_folder(tmp_path) == tmp_path / name


def test_a_copy_leaves_the_old_run_as_it_was(layout: Layout) -> None:
    source = torch_file(layout.run_dir("1.1") / "out" / "checkpoint.pt")
    before = source.read_bytes()
    layout.run_dir("1.2").mkdir(parents=True)
    copied = checkpoints.copy(layout, RunId(1, 1), RunDir(layout.run_dir("1.2")).resume)
    assert copied.read_bytes() == before and copied.parent.stat().st_mode & 0o077 == 0
    copied.write_bytes(b"changed")
    assert source.read_bytes() == before
    source.unlink()
    with pytest.raises(checkpoints.Gone, match=r"run 1\.1"):
        checkpoints.copy(layout, RunId(1, 1), layout.run_dir("1.2") / "again")


@pytest.fixture
def engine(layout: Layout) -> Iterator[Engine]:
    engine = open_engine(layout.db, keep_open=True)
    yield engine
    engine.dispose()


def fail_once(engine: Engine, layout: Layout) -> None:
    with writing(engine) as connection:
        run = claim_next(connection)
    assert run is not None
    finish.finish(engine, run, RunDir(layout.run_dir(run.id)), Ending(Outcome.FAILED, 1), None)


def test_an_agreed_retry_goes_on_from_the_newest_checkpoint_of_all_before(engine: Engine, layout: Layout) -> None:
    spec = JobSpec(kind="command", name="x", argv=("true",), resume=True)
    with writing(engine) as connection:
        jobs.submit(connection, "test", 0, [NewJob(spec, 1, Terms(retries=4))], [(0, 1)])
    fail_once(engine, layout)  # 1.1 leaves nothing: 1.2 begins anew
    torch_file(layout.run_dir("1.2") / "out" / "checkpoint.pt")
    fail_once(engine, layout)
    fail_once(engine, layout)  # 1.3 went on from 1.2 and leaves nothing
    torch_file(layout.run_dir("1.4") / "out" / "checkpoint.pt")
    fail_once(engine, layout)
    with read.reading(layout.db) as connection:
        rows = named_rows.runs(connection)
        chain = retries.chain(connection, rows[3]["run_id"])
        taints = [taint["kind"] for taint in named_rows.detail(connection, "taints", rows[2]["run_id"])]
    ids = [row["run_id"] for row in rows]
    assert [row["resumed_from"] for row in rows] == [None, None, ids[1], ids[1], ids[3]]
    assert [part.run for part in chain] == ["1.2", "1.3", "1.4", "1.5"] and taints == ["resumed"]
    with looking(engine) as connection:
        assert [str(name) for _, name in retries.segments(connection, ids[4])] == ["1.5", "1.4", "1.2"]
        assert checkpoints.find(connection, layout, ids[4]).run == RunId(1, 4)
        with pytest.raises(UsageError, match=r"run 1\.1 left no checkpoint") as refused:
            checkpoints.find(connection, layout, ids[0])
        assert "mpsq retry 1.1" in refused.value.hint


def test_how_often_it_is_tried_is_no_part_of_the_question() -> None:
    spec = JobSpec(kind="command", name="x", argv=("true",))
    assert spec.changed(resume=True).content_hash() == spec.content_hash()


def planned(**options: Any) -> plan.Plan:
    return plan.plan(requested(argv=("/usr/bin/true",), **options))


def test_what_submit_makes_of_it() -> None:
    job = planned(resume=True, retries=2).jobs[0]
    assert job.spec.resume and job.terms.retry_on == ("failed", "lost")
    assert planned(resume=True, retries=2, retry_on="stalled").jobs[0].terms.retry_on == ("stalled",)
    assert planned(retries=2).jobs[0].terms.retry_on == ("failed",)
    with pytest.raises(UsageError, match="--resume need --retries"):
        planned(resume=True)
    workload = requested(workload="nanogpt", device="cpu", retries=1, resume=True)
    assert any("checkpoint_interval" in warning for warning in plan.plan(workload).warnings)
    saving = replace(workload, sets={"checkpoint_interval": ("10",)})
    assert not any("checkpoint_interval" in warning for warning in plan.plan(saving).warnings)


def rows(first: int, last: int, dur_s: float = 0.5) -> list[IterationPoint]:
    measure, warmup = PHASES.index("measure"), PHASES.index("warmup")
    rest = [IterationPoint(i, dur_s, 2.0, measure, 1) for i in range(first + 1, last + 1)]
    return [IterationPoint(first, 3.0, 2.0, warmup, 1), *rest]


def test_the_summary_of_a_part() -> None:
    """Iterations 400 to 999 of 1,000 took 310 s: all of them would take 400 medians more."""
    part = summarize(iterations=rows(400, 999), real_s=310.0, planned_iters=1000, resumed=True)
    assert (part.n_iters, part.median_s, part.first_iter_s, part.first_iter_excess_s) == (600, 0.5, 3.0, 2.5)
    assert part.projected_real_s == 310.0 + 400 * 0.5
    assert summarize(iterations=rows(0, 999), real_s=510.0, planned_iters=1000).projected_real_s is None
    evals = [EvalPoint(i, "val", "loss", 2.0) for i in (500, 750, 1000)]
    marks = [PhaseMark(10.0, "eval", "begin"), PhaseMark(16.0, "eval", "end")]
    part = summarize(
        iterations=rows(400, 999), evals=evals, phases=marks, real_s=316.0, planned_iters=1000, eval_interval=250,
        resumed=True,
    )  # fmt: skip
    assert part.projected_real_s == 316.0 + 400 * 0.5 + 2.0, "and the evaluation at 250"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "home")


def resumed(store: Store, median_s: float, origin: int, device: str = "cpu") -> int:
    run_id = store.run(device, median_s=median_s)
    store.db.execute("UPDATE runs SET resumed_from = ? WHERE id = ?", [origin, run_id])
    return run_id


def test_parts_of_a_training_are_a_row_of_their_own(store: Store) -> None:
    first = store.run(median_s=0.1)
    store.run(median_s=0.1)
    resumed(store, 0.3, first)
    store.run("mps", median_s=0.05)
    found = {row["label"]: row for row in store.report().rows}
    assert {label: (row["median_s"], row["n_runs"]) for label, row in found.items()} == {
        "cpu eager": (0.1, 2),
        "cpu eager resumed": (0.3, 1),
        "mps eager": (0.05, 1),
    }
    assert found["cpu eager"]["is_baseline"]
    grouped = store.report(group_by="device").rows
    assert sorted(row["median_s"] for row in grouped) == [0.05, 0.1, 0.3], "not even --group-by pools them"
    against = {row["label"]: row["is_baseline"] for row in store.report(vs="device=cpu").rows}
    assert against == {"cpu eager": True, "cpu eager resumed": False, "mps eager": False}


def test_iterations_of_all_parts_each_counted_once(store: Store) -> None:
    other = store.run(median_s=0.2)
    store.iterations(other, [0.2] * 2)
    first = store.run("mps")
    store.iterations(first, [0.1] * 6)
    second = resumed(store, 0.1, first, "mps")
    store.iterations(second, [0.1] * 6, first=4)
    result = store.report("iterations")
    parts = [(row["run"], row["i"]) for row in result.rows]
    assert len(parts) == 12 and "from a checkpoint" in words(result)
    once = [row["i"] for row in result.rows if row["redone_by"] is None]
    assert once == list(range(10))
    assert result.columns[-1].key == "redone_by"
    alone = store.report("iterations", selectors=["1"])
    assert [row["i"] for row in alone.rows] == [0, 1] and alone.columns[-1].key != "redone_by"


def test_what_cannot_be_copied_ends_the_run_and_does_not_hold_the_lane(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = layout.run_dir("1.1") / "out" / "checkpoint-5"
    source.mkdir(parents=True)
    (source / "weights").write_text("w")
    (source / "link").symlink_to("nowhere")
    os.mkfifo(source / "pipe")
    layout.run_dir("1.2").mkdir(parents=True)
    copied = checkpoints.copy(layout, RunId(1, 1), layout.run_dir("1.2") / "resume")
    assert sorted(path.name for path in copied.iterdir()) == ["link", "weights"]

    def refuse(number: int) -> None:
        def copyfile(old: str, new: str, **_: object) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(checkpoints.shutil, "copyfile", copyfile)

    refuse(errno.EACCES)
    with pytest.raises(checkpoints.Gone, match="cannot be read"):
        checkpoints.copy(layout, RunId(1, 1), layout.run_dir("1.2") / "denied")
    refuse(errno.ENOSPC)
    with pytest.raises(OSError, match="No space") as full:
        checkpoints.copy(layout, RunId(1, 1), layout.run_dir("1.2") / "full")
    assert full.value.errno == errno.ENOSPC
