"""torch's side of micro-benchmarks: how calls are issued and awaited, and matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from harness.command_line import Options
from harness.torch_backend.compiling import torch_mode
from harness.torch_backend.device import DTYPES, Device
from harness.torch_backend.main import Torch
from mpsq_report import Reporter

TYPES = {**DTYPES, "fp64": torch.float64}


class BenchTorch(Torch):
    """The Framework of harness.microbench.run and the Matrices of harness.microbench.matmul."""

    in_order = True
    _mode: str | None = None
    """of torch.compile, set by set_up"""

    def set_up(self, options: Options, device: Device, report: Reporter) -> None:
        super().set_up(options, device, report)
        self._mode = torch_mode(options)
        if getattr(options.settings, "tf32", False):
            torch.set_float32_matmul_precision("high")
            if device.kind == "cuda":
                torch.backends.cudnn.allow_tf32 = True
        # otherwise split-k sums may be accumulated in half precision: fp32, as in the other frameworks
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False

    def repeat(self, call: Callable[[], Any], times: int) -> list[Any]:
        """Drop all results but the last, so that their memory is reused, as in a program."""
        for _ in range(times - 1):
            call()
        return [call()]

    def finish(self, device: Device, results: Any) -> None:
        device.synchronize()

    def put(self, values: Any, dtype: str, device: Device) -> torch.Tensor:
        rounded = torch.from_numpy(values).to(TYPES[dtype])  # on the CPU: not every device has float64
        return rounded.to(device.handle)

    def read(self, matrix: torch.Tensor) -> Any:
        return matrix.cpu().double().numpy()

    def product(self, a: torch.Tensor, b: torch.Tensor, compiled: bool) -> Callable[[], torch.Tensor]:
        multiply = torch.compile(torch.matmul, mode=self._mode, dynamic=False) if compiled else torch.matmul
        return lambda: multiply(a, b)

    def published(self, a: torch.Tensor, b: torch.Tensor) -> Callable[[], torch.Tensor]:
        return lambda: torch.matmul(a, b)
