"""What torch 2.13's macOS build says of operators, word for word: texts of a library that no Linux build has."""

from __future__ import annotations

NO_KERNEL = (
    "The operator '{}' is not currently implemented for the MPS device. If you want this op to be considered for "
    "addition please comment on https://github.com/pytorch/pytorch/issues/141287 and mention use-case, that resulted "
    "in missing op as well as commit hash cf30153c4c13. As a temporary fix, you can set the environment variable "
    "`PYTORCH_ENABLE_MPS_FALLBACK=1` to use the CPU as a fallback for this op. WARNING: this will be slower than "
    "running natively on MPS."
)
FALLS_BACK = (
    "The operator '{}' is not currently supported on the MPS backend and will fall back to run on the CPU. This may "
    "have performance implications."
)
OTHER_FALLBACK = (
    "avg_pool2d: int64 is not supported on MPS backend. Falling back on CPU. This may have performance implications."
)
DISTRIBUTED = (
    "The distributed operator '{}' is not currently implemented for the MPS device. Please note, that distributed "
    "operators can not fall back to CPU"
)
NO_MEMORY = (
    "MPS backend out of memory (MPS allocated: 7.93 GB, other allocations: 1.00 MB, max allowed: 9.07 GB). Tried to "
    "allocate 2.00 GB on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory "
    "allocations (may cause system failure)."
)
NO_FLOAT64 = (
    "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64. Please use float32 "
    "instead."
)
PROFILED = "CPU Fallback::{}:MPS:Float[5, 5] (id=1, run=1, CopyOverhead=200 bytes)"
"""What PYTORCH_MPS_LOG_PROFILE_INFO=4 logs, by the source of its profiler (ATen/mps/MPSProfiler.mm)."""
