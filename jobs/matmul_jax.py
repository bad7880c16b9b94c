# /// script
# requires-python = ">=3.10"
# dependencies = ["jax>=0.10", "numpy"]
# ///
"""Products of n x n matrices in JAX: `python jobs/matmul_jax.py --device cpu --set n=1000 --set timing=both`.

Timing, check and output are the same in every framework: harness/microbench/matmul.py; how calls are issued and awaited
is in harness/jax_backend/bench.py.
"""

from __future__ import annotations

if __name__ == "__main__":  # before the import of the framework: signals may arrive during it
    from harness import start

    start.quietly("jax")

import sys
from functools import partial

from harness.jax_backend.bench import BenchJax
from harness.microbench import matmul
from harness.microbench.run import main

WORKLOAD = {"like": "matmul_torch", "framework": "jax"}

FRAMEWORK = BenchJax()
build = partial(matmul.build, FRAMEWORK)

if __name__ == "__main__":
    sys.exit(main(WORKLOAD, FRAMEWORK, build))
