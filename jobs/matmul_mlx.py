# /// script
# requires-python = ">=3.10"
# dependencies = ["mlx>=0.32; sys_platform == 'darwin'", "mlx[cpu]>=0.32; sys_platform == 'linux'", "numpy"]
# ///
"""Products of n x n matrices in MLX: `python jobs/matmul_mlx.py --device cpu --set n=1000 --set timing=both`.

Timing, check and output are the same in every framework: harness/microbench/matmul.py; how calls are issued and awaited
is in harness/mlx_backend/bench.py.
"""

from __future__ import annotations

if __name__ == "__main__":  # before the import of the framework: signals may arrive during it
    from harness import start

    start.quietly("mlx")

import sys
from functools import partial

from harness.microbench import matmul
from harness.microbench.run import main
from harness.mlx_backend.bench import BenchMlx

WORKLOAD = {"like": "matmul_torch", "framework": "mlx"}

FRAMEWORK = BenchMlx()
build = partial(matmul.build, FRAMEWORK)

if __name__ == "__main__":
    sys.exit(main(WORKLOAD, FRAMEWORK, build))
