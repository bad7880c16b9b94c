"""nanogpt with a fault planted in one process of several: RANK_FAILS="1 memory" (or error, or exit)."""

from __future__ import annotations

import os
import sys

import torch

sys.path.insert(0, os.environ["JOBS"])

import nanogpt_torch as job

from harness.torch_backend.main import main


def step(training: job.Training, i: int) -> torch.Tensor:
    which, kind = os.environ["RANK_FAILS"].split()
    if i == 2 and os.environ["RANK"] == which:
        if kind == "memory":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
        if kind == "error":
            raise ValueError("planted")
        os._exit(7)
    return job.step(training, i)


if __name__ == "__main__":
    sys.exit(main(job.WORKLOAD, job.build, step, job.evaluate, sample=job.sample))
