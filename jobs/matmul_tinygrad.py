# /// script
# requires-python = ">=3.10"
# dependencies = ["tinygrad>=0.14", "numpy"]
# ///
"""Products of n x n matrices in tinygrad: `python jobs/matmul_tinygrad.py --device cpu --set n=1000 --set timing=both`.

Timing, check and output are the same in every framework: harness/microbench/matmul.py; how calls are issued and awaited
is in harness/tinygrad_backend/bench.py.
"""

from __future__ import annotations

if __name__ == "__main__":  # before the import of the framework: signals may arrive during it
    from harness import start

    start.quietly("tinygrad")

import sys
from functools import partial

from harness.microbench import matmul
from harness.microbench.run import main
from harness.tinygrad_backend.bench import BenchTinygrad

WORKLOAD = {"like": "matmul_torch", "framework": "tinygrad"}

FRAMEWORK = BenchTinygrad()
build = partial(matmul.build, FRAMEWORK)

if __name__ == "__main__":
    sys.exit(main(WORKLOAD, FRAMEWORK, build))
