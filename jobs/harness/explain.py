"""Exceptions of the frameworks that users meet, as errors with a hint. Imported when one has been raised."""

from __future__ import annotations

import re
from collections.abc import Collection

from harness.errors import EX_OUT_OF_MEMORY, JobError, first_line

# Texts of torch 2.13, MLX 0.32, JAX 0.10 and tinygrad 0.14. Each framework has its own exception types, some of which
# cannot be imported without a device.
_NO_MEMORY = re.compile(
    r"out of memory|DefaultCPUAllocator: (can't allocate|not enough) memory|Invalid buffer size|Cannot allocate memory"
    r"|RESOURCE_EXHAUSTED|malloc\] (Unable|Attempting) to allocate|Insufficient Memory \(\w+:kIOGPUCommandBuffer",
    re.I,
)
_NO_COMPILER = re.compile(
    r"InvalidCxxCompiler|No working C\+\+ compiler|Compiler: .* is not found|command '.*' not found"
    r"|TritonMissing|Cannot find a working triton installation|Failed to find C compiler",
    re.I,
)
_COMPILE_FAILED = re.compile(
    r"BackendCompilerFailed|CppCompileError|C\+\+ compile error|InductorError|TorchRuntimeError"
)
FALLBACK = re.compile(r"The operator '([^']+)' is not currently supported on the MPS backend and will fall back")
_NO_KERNEL = re.compile(r"The operator '([^']+)' is not currently (?:supported|implemented)")
_LOST_PEER = re.compile(
    r"Connection (closed by peer|reset by peer|refused)|Broken pipe|DistNetworkError|DistStoreError|DistBackendError"
    r"|NCCL error|ncclRemoteError|ncclSystemError|gloo/transport"
)
_NO_FLOAT64 = "MPS framework doesn't support float64"


_SIZE_KEYS = ("block_size", "max_length", "side", "n", "rows", "batch", "length", "width", "largest", "n_embd")
"""Keys of workloads that memory grows with, besides batch_size; the hint names the first two."""


def memory_hint(keys: Collection[str]) -> str:
    """Return a hint about settings that need less memory, among the workload's `keys`; empty if none is known."""
    if {"batch_size", "grad_accum"} <= set(keys):
        return "a smaller batch_size with a larger grad_accum needs less"
    known = [key for key in ("batch_size", *_SIZE_KEYS) if key in keys][:2]
    host = ", and pool=host keeps the examples in main memory" if "pool" in keys else ""
    return f"a smaller {' or '.join(known)} needs less{host}" if known else ""


def explain(error: BaseException, keys: Collection[str] = ()) -> JobError | None:
    """Return the JobError that stands for an exception of a framework; None for one that deserves its traceback.

    `keys` are the settings of the workload, for the hint about memory.
    """
    if isinstance(error, JobError):
        return error
    names = " ".join(kind.__name__ for kind in type(error).__mro__)
    text = f"{names}: {error}"
    line = first_line(error)
    if isinstance(error, MemoryError) or "OutOfMemoryError" in names or _NO_MEMORY.search(str(error)):
        return JobError(
            f"out of memory: {line}",
            memory_hint(keys),
            EX_OUT_OF_MEMORY,
            "oom",
        )
    if "CUDAGraphs that has been overwritten" in text:
        return JobError(
            "a CUDA graph overwrote a result of the model that was still in use",
            "this workload cannot keep results in this mode: --compile no-cudagraphs, or on",
            note="compile_failed",
        )
    if _NO_COMPILER.search(text):
        return JobError(
            f"torch.compile found no working compiler: {line}",
            "install one (macOS: xcode-select --install; Debian: apt-get install g++; CUDA: pip install triton), "
            "name it in CXX, or use --compile off",
            note="no_compiler",
        )
    if match := _NO_KERNEL.search(text):
        return JobError(
            f"{match[1]} has no kernel on this device",
            "mpsq submit --mps fallback=on lets the CPU compute it (slower; the run is marked); without mpsq: "
            "PYTORCH_ENABLE_MPS_FALLBACK=1 in the environment",
            note="op_missing",
        )
    if _NO_FLOAT64 in text:
        return JobError("MPS has no float64, and an operation needs it", "use --dtype fp32", note="float64_on_mps")
    if _COMPILE_FAILED.search(names):
        return JobError(
            f"torch.compile failed: {line}",
            "--compile off runs the model as it is; TORCH_LOGS=+inductor says more",
            note="compile_failed",
        )
    return None


def is_lost_peer(error: BaseException) -> bool:
    """Return whether an error says that another process of a group is gone, by the texts of gloo and c10d."""
    return bool(_LOST_PEER.search(f"{type(error).__name__}: {error}"))
