"""tinygrad's side of micro-benchmarks: how calls are issued and awaited, and matrices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from tinygrad import Device as devices
from tinygrad import Tensor, TinyJit, dtypes

from harness.array_device import Device
from harness.command_line import Options
from harness.errors import UsageError
from harness.tinygrad_backend.main import Tinygrad
from mpsq_report import Reporter

TYPES = {"fp32": dtypes.float32, "bf16": dtypes.bfloat16, "fp16": dtypes.float16, "fp64": dtypes.float64}


class BenchTinygrad(Tinygrad):
    """The Framework of harness.microbench.run and the Matrices of harness.microbench.matmul."""

    in_order = True

    def set_up(self, options: Options, device: Device, report: Reporter) -> None:
        # super() tries the training dtypes; the first product tries float64
        super().set_up(replace(options, dtype="fp32") if options.dtype == "fp64" else options, device, report)
        if options.settings.tf32:
            raise UsageError("tinygrad reads its choice of TF32 from the environment", "--env ALLOW_TF32=1 makes it")
        if options.dtype == "fp64" and device.kind == "mps":
            raise UsageError("Metal has no float64", "--device cpu, or --dtype fp32")

    def repeat(self, call: Callable[[], Any], times: int) -> list[Any]:
        for _ in range(times - 1):
            call()
        return [call()]

    def finish(self, device: Device, results: Any) -> None:
        devices[device.handle].synchronize()

    def put(self, values: Any, dtype: str, device: Device) -> Tensor:
        wide = Tensor(values if dtype == "fp64" else values.astype(np.float32), device=device.handle)
        return wide.cast(TYPES[dtype]).contiguous().realize()

    def read(self, matrix: Tensor) -> Any:
        exact = matrix if matrix.dtype == dtypes.float64 else matrix.cast(dtypes.float32)
        return exact.numpy().astype(np.float64)

    def product(self, a: Tensor, b: Tensor, compiled: bool) -> Callable[[], Tensor]:
        """Return a call that starts one product by realizing it, since tinygrad is lazy."""
        if not compiled:
            return lambda: (a @ b).realize()
        multiply = TinyJit(lambda x, y: (x @ y).realize())
        return lambda: multiply(a, b)

    def published(self, a: Tensor, b: Tensor) -> Callable[[], Tensor]:
        return lambda: a @ b
