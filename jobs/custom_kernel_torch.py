# /// script
# requires-python = ">=3.10"
# dependencies = ["torch>=2.9", "numpy"]
# ///
"""A Metal kernel of our own against torch's operations, on the GPU of a Mac: `python jobs/custom_kernel_torch.py`.

torch.mps.compile_shader compiles Metal source to functions of tensors. The kernel here adds a bias and applies GELU in
one pass; torch needs two, and writes the sum to memory between them. Both are compared with float64 on the CPU and
timed like those of kernels_torch.py. Change the source below and see.

Top to bottom: settings, the kernel, the two cells.
"""

from __future__ import annotations

if __name__ == "__main__":  # before the import of torch: signals may arrive during it
    from harness import start

    start.quietly("torch")

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from harness.command_line import Options
from harness.errors import JobError, UsageError
from harness.microbench.matmul import ITEM_BYTES
from harness.microbench.rounding import Check, judge_norm
from harness.microbench.run import Bench, Cell, main
from harness.torch_backend.bench import TYPES, BenchTorch
from harness.torch_backend.compiling import compiled as in_mode
from harness.torch_backend.device import Device
from mpsq_report import Reporter

WORKLOAD = {
    "name": "custom_kernel",
    "framework": "torch",
    "about": "GELU(x + bias) as one Metal kernel of our own against torch's two operations; on MPS alone.",
    "source": "torch.mps.compile_shader; GELU in its tanh form: Hendrycks & Gimpel 2016, arXiv 1606.08415, section 2",
    "unit": "calls",
    "params": {
        "rows": {"default": 4096, "unit": "tokens", "least": 1, "help": "rows of x"},
        "width": {"default": 3072, "unit": "features", "least": 1, "help": "columns of x, and of the bias"},
        "max_iters": {
            "default": 30, "unit": "iterations", "least": 2,
            "help": "samples of each cell, warm-up included",
        },
        "warmup_iters": 4,
        "calls": {"default": 0, "unit": "calls", "least": 0, "help": "calls in a sample; 0: as many as fill it"},
        "sample_ms": {"default": 20.0, "unit": "ms", "least": 0, "help": "duration of a sample"},
        "threads": 0,
    },
    "configs": {
        "gpt2": {"rows": 4096, "width": 3072},
        "tiny": {"rows": 8, "width": 32},
    },
}  # fmt: skip

SOURCE = """
#include <metal_stdlib>
using namespace metal;
typedef ELEMENT T;

// One thread an element: y = gelu(x + bias), in fp32 whatever the tensors are in.
kernel void bias_gelu(device T* y, device const T* x, device const T* bias, constant long& width,
                      uint i [[thread_position_in_grid]]) {
    float v = float(x[i]) + float(bias[i % uint(width)]);
    float inner = 0.7978845608028654f * (v + 0.044715f * v * v * v);
    // precise: the fast tanh is a quotient of exponentials, which is not a number for large arguments
    y[i] = T(0.5f * v * (1.0f + precise::tanh(inner)));
}
"""
METAL_TYPES = {"fp32": "float", "fp16": "half", "bf16": "bfloat"}
FLOPS = 10.0
"""FLOP of an element: additions and multiplications, and one for tanh."""
ROUNDINGS = 12
"""Roundings to the dtype on the way to a result, at most: torch stores the sum, and each step may round."""


def composed(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Compute the same by torch's own operations."""
    return F.gelu(x + bias, approximate="tanh")


def compiled(dtype: str) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return our kernel as a function. Raises: JobError if Metal does not compile it."""
    try:
        library: Any = torch.mps.compile_shader(SOURCE.replace("ELEMENT", METAL_TYPES[dtype]))
    except (RuntimeError, SyntaxError) as error:
        raise JobError(f"Metal does not compile the kernel: {error}", "bfloat needs macOS 14; --dtype fp32") from None

    def call(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        library.bias_gelu(y, x, bias, x.shape[-1], threads=x.numel())
        return y

    return call


def build(options: Options, device: Device, report: Reporter) -> Bench:
    """Return the two cells, our kernel and torch's operations. Raises: UsageError, JobError."""
    s, dtype = options.settings, options.dtype
    if s.rows * s.width >= 1 << 32:
        raise UsageError(f"rows={s.rows} x width={s.width} is more than a 32-bit number of threads counts")
    generator = torch.Generator().manual_seed(options.seed)
    drawn = (2 * torch.randn(shape, generator=generator) for shape in ((s.rows, s.width), (s.width,)))
    inputs = [one.to(TYPES[dtype]) for one in drawn]
    exact = composed(*(one.double() for one in inputs)).numpy()
    there = [one.to(device.handle) for one in inputs]
    functions = {
        "metal": compiled(dtype),
        "torch": in_mode(composed, options, dynamic=False),
    }

    def check(sums: torch.Tensor) -> Check:
        return judge_norm(sums.cpu().double().numpy(), exact, 1, ROUNDINGS, dtype)

    n = s.rows * s.width
    cells = [
        Cell(
            name=f"bias_gelu.{name}",
            call=lambda function=function: function(*there),  # type: ignore[misc]
            check=check,
            flops=FLOPS * n,
            bytes=float((2 * n + s.width) * ITEM_BYTES[dtype]),
            result_bytes=float(n * ITEM_BYTES[dtype]),
        )
        for name, function in functions.items()
    ]
    return Bench(cells, f"GELU of {s.rows} x {s.width} with a bias, as one Metal kernel and as torch does it", _show)


def _show(done: Bench) -> None:
    for cell in done.cells:
        print(f"{cell.name:<16}{1e3 * cell.median_s:>10.4f} ms  {cell.bytes / cell.median_s / 1e9:>8.2f} GB/s")
    metal, composite = done.cells
    print(f"torch takes {composite.median_s / metal.median_s:.2f} times as long")


class Metal(BenchTorch):
    """torch on the GPU of a Mac only."""

    def open_device(self, label: str) -> Device:
        """Return the device mps. Raises: UsageError for another one; JobError with exit code 69 if MPS does not
        compute."""
        if label not in ("auto", "mps"):
            raise UsageError(
                f'the kernel is written in Metal, which the device "{label}" does not run',
                "--device mps; jobs/kernels_torch.py times torch's own operations on every device",
            )
        return super().open_device("mps")


FRAMEWORK = Metal()

if __name__ == "__main__":
    sys.exit(main(WORKLOAD, FRAMEWORK, build))
