"""nanogpt with a lack of memory planted in the process of several that RANK_FAILS names."""

from __future__ import annotations

import os
import sys

import torch

sys.path.insert(0, os.environ["JOBS"])

import nanogpt_torch as job

from harness.torch_backend.main import main


def step(training: job.Training, i: int) -> torch.Tensor:
    if i == 2 and os.environ["RANK"] == os.environ["RANK_FAILS"]:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
    return job.step(training, i)


if __name__ == "__main__":
    sys.exit(main(job.WORKLOAD, job.build, step, job.evaluate, sample=job.sample))
