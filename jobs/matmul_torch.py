# /// script
# requires-python = ">=3.10"
# dependencies = ["torch>=2.9", "numpy"]
# ///
"""Products of n x n matrices in PyTorch: `python jobs/matmul_torch.py --device cpu --set n=1000 --set timing=both`.

Timing, check and output are the same in every framework: harness/microbench/matmul.py; how calls are issued and awaited
is in harness/torch_backend/bench.py.
"""

from __future__ import annotations

if __name__ == "__main__":  # before the import of the framework: signals may arrive during it
    from harness import start

    start.quietly("torch")

import sys
from functools import partial

from harness.microbench import matmul
from harness.microbench.run import main
from harness.torch_backend.bench import BenchTorch

WORKLOAD = {
    "name": "matmul",
    "framework": "torch",
    "about": "Products of n x n matrices: TFLOP/s = 2 n^3 / t, checked against float64. Also --dtype fp64.",
    "source": "the loop that guides to PyTorch on Metal publish (100 of 1000 x 1000); bounds: Higham & Mary 2019",
    "unit": "products",
    "dtypes": ["fp32", "bf16", "fp16", "fp64"],
    "params": {
        "n": {
            "default": 1000, "unit": "rows", "least": 1, "most": 65536,
            "help": "rows and columns of each matrix; n=256,1024,4096 sweeps",
        },
        "mode": {
            "default": "speed", "unit": "", "choices": ["speed", "peak"],
            "help": "speed (of n), or peak: the fastest of several sizes, for report --peak measured",
        },
        "largest": {
            "default": 16384, "unit": "rows", "least": 512,
            "help": "largest size that mode=peak tries",
        },
        "timing": {
            "default": "synced", "unit": "", "choices": ["synced", "naive", "both", "guide"],
            "help": "synced; naive: the loop of many guides, which does not wait for the device; both; guide: both, "
            "after the guide's own block of calls, once, timed by time.time(). All but synced print both",
        },
        "max_iters": {
            "default": 40, "unit": "iterations", "least": 2,
            "help": "number of samples, warm-up included",
        },
        "warmup_iters": 5,
        "calls": {
            "default": 0, "unit": "products", "least": 0,
            "help": "products in a sample; 0: as many as fill it (100 unless timing=synced)",
        },
        "sample_ms": {"default": 20.0, "unit": "ms", "least": 0, "help": "duration of a sample"},
        "tf32": {"default": False, "unit": "", "help": "let fp32 be computed in TF32 where the device has it"},
        "threads": {
            "default": 0, "unit": "threads", "least": 0,
            "help": "threads of the CPU in torch; 0: torch chooses",
        },
    },
    "configs": {"guide": {"n": 1000, "calls": 100, "timing": "guide"}, "peak": {"mode": "peak"}},
}  # fmt: skip

FRAMEWORK = BenchTorch()
build = partial(matmul.build, FRAMEWORK)

if __name__ == "__main__":
    sys.exit(main(WORKLOAD, FRAMEWORK, build))
