# /// script
# requires-python = ">=3.10"
# dependencies = ["torch>=2.9", "numpy", "expecttest", "pyyaml"]
# ///
"""Which of torch's operators a device computes, and whether correctly: `python jobs/opcheck_torch.py`.

Every operator of torch's own tests (OpInfo) with its samples, forward and backward, in each dtype: native, fallback to
the CPU, missing, wrong (against the CPU), or an error. Operators run in child processes: one that crashes or hangs ends
its child, is recorded, and the sweep continues.
"""

from __future__ import annotations

if __name__ == "__main__":  # before the import of torch: signals may arrive during it
    from harness import start

    start.quietly("torch")

import sys

from harness.opcheck.run import main

WORKLOAD = {
    "name": "opcheck",
    "framework": "torch",
    "about": "Operator coverage of a device, forward and backward: native, fallback, missing, wrong or error.",
    "source": "torch.testing._internal: op_db, the operators and samples that torch tests itself by",
    "unit": "operators",
    "dtypes": ["fp32"],
    "params": {
        "types": {
            "default": "fp32+fp16+bf16+int64+bool", "unit": "",
            "each_of": [
                "fp32", "fp16", "bf16", "fp64", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64",
            ],
            "help": "dtypes of tensors",
        },
        "ops": {
            "default": "all", "unit": "",
            "help": "operators, + between, * for any letters: add+linalg_*; all; basic: 40 that networks need",
        },
        "samples": {
            "default": 0, "unit": "samples", "least": 0,
            "help": "samples of each operator at most, in each direction; 0: all",
        },
        "direction": {
            "default": "both", "unit": "", "choices": ["forward", "both"],
            "help": "only forward, or also backward",
        },
        "calls": {
            "default": 5, "unit": "calls", "least": 1,
            "help": "timed calls of each operator, after the checked ones",
        },
        "limit_s": {"default": 120.0, "unit": "s", "above": 0, "help": "time limit of one operator in one dtype"},
        "fallbacks": {
            "default": "auto", "unit": "", "choices": ["auto", "on", "off"],
            "help": "run missing operators again with fallbacks on, and name their kernels; auto: on MPS",
        },
        "threads": {"default": 1, "unit": "threads", "least": 1, "help": "threads of the CPU for each operator"},
    },
    "configs": {
        "full": {"types": "fp32+fp16+bf16+int64+bool", "ops": "all", "samples": 0},
        "quick": {"types": "fp32+fp16", "ops": "all", "samples": 4, "calls": 3},
        "toy": {"types": "fp32", "ops": "basic", "samples": 2, "calls": 3},
    },
}  # fmt: skip

if __name__ == "__main__":
    sys.exit(main(WORKLOAD))
