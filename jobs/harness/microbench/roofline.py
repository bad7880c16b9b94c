"""The measured roofline of a device: what bounds an operation of a given arithmetic intensity (FLOP per byte moved).

Source: Williams, Waterman & Patterson 2009, "Roofline: An Insightful Visual Performance Model for Multicore
Architectures", CACM 52(4), 65-76. Attainable FLOP/s = min(peak FLOP/s, intensity x peak bytes/s).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from harness.command_line import Options
from harness.microbench.run import quick_s
from harness.torch_backend.bench import TYPES, BenchTorch
from harness.torch_backend.device import Device

_SIZES = {"cpu": 512, "mps": 2048, "cuda": 4096}
"""n of the product that measures the peak: large enough to reach it, small enough to be fast."""
_COPIED_BYTES = {"cpu": 1 << 27, "mps": 1 << 28, "cuda": 1 << 28}
"""Bytes of the copy: larger than any cache."""


@dataclass(frozen=True)
class Roofline:
    """The two roofs in FLOP/s and bytes/s."""

    flops_per_s: float
    bytes_per_s: float

    @property
    def ridge(self) -> float:
        """Return the intensity in FLOP per byte at which the roofs meet: above it arithmetic is the limit."""
        return self.flops_per_s / self.bytes_per_s

    def bound(self, flops: float, moved_bytes: float) -> str:
        """Return compute-bound or memory-bound."""
        return "compute-bound" if flops / moved_bytes >= self.ridge else "memory-bound"

    def sentence(self) -> str:
        rates = f"{self.flops_per_s / 1e12:.3g} TFLOP/s and {self.bytes_per_s / 1e9:.3g} GB/s measured"
        return f"{rates}: memory-bound below {self.ridge:.3g} FLOP/byte"


def measure(framework: BenchTorch, options: Options, device: Device) -> Roofline:
    """Time a matrix product in the dtype, and a copy within the device's memory (read and written: twice its bytes)."""
    dtype, n = TYPES[options.dtype], _SIZES[device.kind]
    a = torch.ones(n, n, dtype=dtype, device=device.handle)
    product_s = quick_s(framework, device, framework.product(a, a, compiled=False))
    source = torch.zeros(_COPIED_BYTES[device.kind], dtype=torch.uint8, device=device.handle)
    target = torch.empty_like(source)
    copy_s = quick_s(framework, device, lambda: target.copy_(source))
    return Roofline(2.0 * n**3 / product_s, 2.0 * source.numel() / copy_s)
