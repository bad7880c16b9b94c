"""What `mpsq workloads new` writes: through the queue as it is, by hand, and after a change."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from queue_runner.paths import Layout
from tests.forked_programs import work
from tests.jobs.conftest import JOBS
from tests.jobs.test_through_the_queue import mpsq, rows

pytestmark = pytest.mark.slow

SMALL = ["--set", "max_iters=16", "--set", "warmup_iters=2", "--set", "eval_interval=8", "--set", "batch_size=32"]


def test_it_runs_through_the_queue_and_learns(layout: Layout) -> None:
    file = Path(mpsq("workloads", "new", "mine").strip())
    mpsq("submit", "--no-gate", "--no-preflight", "mine", "--device", "cpu", "--dtype", "fp32,bf16", *SMALL)
    file.write_text("raise SystemExit('changed after the submit')")
    work()
    stored = rows(layout)
    assert [row["outcome"] for row in stored] == ["SUCCEEDED"] * 2
    for row in stored:
        assert (row["workload"], row["framework"], row["n_iters"], row["n_measure"]) == ("mine", "torch", 16, 13)
        assert row["loss_last"] < row["loss_first"] and row["val_loss_last"] > 0
        vocab = (row["params"] - (256 * 128 + 128)) // (32 + 128 + 1)  # this Python's help texts decide it
        assert row["flops_per_iter"] == 6 * (256 * 128 + 128 * vocab) * 32 and row["tokens_per_iter"] == 32
        assert "wrong_loss" not in (row["taints"] or "")
    assert "mine small" in mpsq("report", "--all")


def test_it_runs_by_hand_and_resumes(layout: Layout, tmp_path: Path) -> None:
    file = Path(mpsq("workloads", "new", "mine").strip())
    command = [sys.executable, str(file), "--device", "cpu", *SMALL]
    env = {**os.environ, "PYTHONPATH": str(JOBS)}

    def by_hand(*more: str) -> str:
        return subprocess.run([*command, *more], env=env, capture_output=True, text=True, check=True).stdout

    whole = by_hand("--out", str(tmp_path))
    assert "the loss of" not in whole and "val loss" in whole
    resumed = by_hand("--resume", str(tmp_path / "checkpoint.pt"), "--set", "max_iters=20")
    assert "resumed after 16 iterations" in resumed and "iter     19" in resumed
