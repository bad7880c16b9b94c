# /// script
# requires-python = ">=3.10"
# dependencies = ["torch>=2.9"]
# ///
"""The canary: a fixed amount of work, whose time reveals a slower device where no sensor does.

    python jobs/canary_torch.py --device cuda --count 5000

It multiplies two matrices `count` times and prints a line of JSON: the count, the time in seconds, the device. Without
--count it finds one that takes about a second. It is not a workload: the queue runs it between two runs.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import time

SIZES = {"cuda": (4096, "bfloat16"), "mps": (2048, "float32"), "cpu": (512, "float32")}
"""Size and type of the matrices by device: large enough for every core of it."""
TARGET_S = 1.0
WARM_S = 0.3
"""Time of untimed work before, in which the library is loaded and the clocks rise."""
PIECES = 10
"""Pieces of the work; the time is that of the median piece, so that a hiccup of one counts for nothing."""
LIMIT_S = 60
"""The process ends itself after this, whatever became of the worker: it holds the lane."""


def main() -> int:
    """Run the canary. Returns 0; errors of torch end the process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", required=True)
    parser.add_argument("--count", type=int, default=0)
    arguments = parser.parse_args()
    signal.alarm(LIMIT_S)

    import torch

    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    device = torch.device(
        next(name for name in there if there[name]) if arguments.device == "auto" else arguments.device
    )
    wait = {"cuda": torch.cuda.synchronize, "mps": torch.mps.synchronize}.get(device.type, lambda: None)
    size, dtype = SIZES.get(device.type, SIZES["cpu"])
    torch.manual_seed(0)
    a, b = (torch.rand(size, size, dtype=getattr(torch, dtype), device=device) for _ in range(2))
    out = torch.empty_like(a)

    def work(count: int) -> float:
        begin = time.perf_counter()
        for _ in range(count):
            torch.mm(a, b, out=out)
        wait()
        return time.perf_counter() - begin

    work(1)
    done, since = 0, time.perf_counter()
    while (passed := time.perf_counter() - since) < WARM_S:
        work(8)
        done += 8
    count = arguments.count or max(PIECES, round(TARGET_S * done / passed / PIECES) * PIECES)
    pieces = [work(max(1, count // PIECES)) for _ in range(PIECES)]
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    result = {"count": count, "dur_s": statistics.median(pieces) * PIECES, "device": name, "torch": torch.__version__}
    print(json.dumps(result), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
