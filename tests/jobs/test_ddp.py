"""nanogpt in two processes over gloo: the losses of one process, and ends that are those of the rank that failed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.cli_support import Cli
from tests.jobs.conftest import JOBS, SCRIPT, SMALL, Ran, Run, arguments, read
from tests.process_support import is_there
from tests.queue_support import Queue, until

pytestmark = pytest.mark.slow

SETTINGS: dict[str, object] = {
    "max_iters": 6, "lr_decay_iters": 6, "eval_interval": 3, "eval_iters": 3, "grad_accum": 4, "grad_clip": 0.5,
}  # fmt: skip
ROUNDING = 1e-5


def two(folder: Path, *words: str, script: Path = SCRIPT, env: dict[str, str] | None = None, **settings: object) -> Ran:
    """Run nanogpt in two processes of the CPU."""
    events = folder / "events.jsonl"
    events.unlink(missing_ok=True)
    command = [sys.executable, str(script), *arguments([*words, "--gpus", "2"], SETTINGS | settings)]
    ours = {**os.environ, "MPSQ_EVENTS": str(events), "JOBS": str(JOBS), **(env or {})}
    done = subprocess.run(command, capture_output=True, text=True, env=ours, check=False)
    assert not list(folder.glob("mpsq-ranks-*")), "nothing of the launch is left"
    return Ran(done.returncode, read(events), done.stdout, done.stderr)


def losses(ran: Ran) -> dict[tuple[object, ...], float]:
    iterations = {("iter", one["i"]): one["loss"] for one in ran.of("iter")}
    return iterations | {(one["split"], one["i"]): one["metrics"]["loss"] for one in ran.of("eval")}


def test_losses_equal_those_of_one_process_and_checkpoints_go_either_way(
    run: Run, tmp_path: Path, quick_inductor: dict[str, str]
) -> None:
    whole = run(**SETTINGS)
    first = two(tmp_path, "--out", str(tmp_path / "two"), max_iters=4)
    assert first.code == 0, first.err
    assert first.hello()["gpus"] == 2 and first.hello()["ddp_backend"] == "gloo"
    assert first.hello()["tokens_per_iter"] == whole.hello()["tokens_per_iter"]
    assert first.out.count("saved ") == 2 and first.out.count("iter      0") == 1, "rank 0 alone speaks"
    assert len(first.of("bye")) == 1 and "wrong_loss" not in first.notes()
    expected = losses(whole)
    assert losses(first) == {at: pytest.approx(expected[at], rel=ROUNDING) for at in losses(first) if at[1] != 4} | {
        at: loss for at, loss in losses(first).items() if at[1] == 4 and at[0] != "iter"
    }
    rest = run("--resume", str(tmp_path / "two" / "checkpoint.pt"), **SETTINGS)
    run("--out", str(tmp_path / "one"), **SETTINGS | {"max_iters": 4})
    words = ["--resume", str(tmp_path / "one" / "checkpoint.pt"), "--compile", "on"]
    resumed = two(tmp_path, *words, env=quick_inductor)
    assert resumed.code == 0, resumed.err
    for later in (rest, resumed):
        assert [one["i"] for one in later.of("iter")] == [4, 5]
        assert losses(later) == {at: pytest.approx(expected[at], rel=ROUNDING) for at in losses(later)}


def test_the_rank_that_failed_first_says_how_the_run_ended(tmp_path: Path) -> None:
    ran = two(tmp_path, script=Path(__file__).with_name("planted_rank.py"), env={"RANK_FAILS": "1"}, eval_interval=0)
    assert ran.code == 71 and list(ran.notes()) == ["oom"], ran.err
    assert "error: rank 1: " in ran.err and "Traceback" not in ran.err
    assert [one["ok"] for one in ran.of("bye")] == [False]


@pytest.mark.parametrize(
    ("codes", "rank_reports", "rank"),
    [
        ({0: 1, 1: 71}, {0: (2.0, True), 1: (1.0, False)}, 1),
        ({0: 1, 1: -9}, {0: (2.0, True)}, 1),  # killed: it could not write
        ({0: 1, 1: -15}, {0: (2.0, False)}, 0),  # the launcher ended the other one
        ({0: -15, 1: 7}, {}, 1),
        ({0: -15, 1: -15}, {}, 0),
        ({0: 1, 1: 1}, {0: (2.0, True), 1: (1.0, True)}, 1),
    ],
)
def test_what_ended_a_launch(codes: dict[int, int], rank_reports: dict[int, tuple[float, bool]], rank: int) -> None:
    from harness.torch_backend import launch

    assert (
        launch.first_failed(codes, {n: {"at": at, "lost_peer": lost} for n, (at, lost) in rank_reports.items()}) == rank
    )


def test_a_killed_rank_ends_the_run_and_a_cancelled_run_leaves_no_process(queue: Queue, mpsq: Cli) -> None:
    settings = SMALL | {"max_iters": 1_000_000, "grad_accum": 4}
    sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    submit = ["submit", "nanogpt", "--device", "cpu", "--gpus", "2", "--repeats", "2", "--no-gate", "--no-preflight"]
    mpsq.ok(*submit, *sets)
    queue.worker()
    killed, *_ = ranks(queue, "1.1")
    killed.kill()
    first = queue.done(1, 90)[0]
    assert (first["outcome"], first["signal"]) == ("KILLED", 9) and first["n_iters"]
    cancelled = ranks(queue, "1.2")
    mpsq.ok("cancel", "1.2")
    assert queue.done(2, 90)[1]["outcome"] == "CANCELLED"
    assert not any(is_there(process.pid) for process in cancelled)


def ranks(queue: Queue, run: str) -> list[psutil.Process]:
    """Return the processes of a run that trains, the last rank first."""
    events = queue.layout.run_dir(run) / "events.jsonl"
    until(lambda: events.exists() and b'"iter"' in events.read_bytes(), f"an iteration of {run}", 120)
    by_rank = {}
    for process in psutil.process_iter():
        try:
            environ = process.environ()
        except psutil.Error:
            continue
        if environ.get("MPSQ_RUN") == run and "RANK" in environ and environ.get("MPSQ_HOME") == str(queue.layout.home):
            by_rank[environ["RANK"]] = process
    assert sorted(by_rank) == ["0", "1"]
    return [by_rank["1"], by_rank["0"]]


def test_ranks_share_the_batches_of_one_process(run: Run) -> None:
    from array import array

    from harness.data.text import Batches

    def drawn() -> Batches:
        return Batches({"train": array("i", range(1000)), "val": array("i", range(99))}, 1, 3, 8)

    whole, parts = drawn(), [drawn(), drawn()]
    for i in (0, 1, 5, 2):
        shares = [part.of_iteration(i, 4, (rank, 2))[0] for rank, part in enumerate(parts)]
        assert np.array_equal(np.concatenate(shares), whole.of_iteration(i, 4)[0])
    turns = [part.of_evaluation("val", 5, (rank, 2))[0] for rank, part in enumerate(parts)]
    assert [len(turn) for turn in turns] == [3, 2] and np.array_equal(turns[1], whole.of_evaluation("val", 5)[0][1::2])
