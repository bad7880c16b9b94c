"""MLX's side of micro-benchmarks: how calls are issued and awaited, and matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np

from harness.array_device import Device
from harness.command_line import Options
from harness.errors import UsageError
from harness.mlx_backend.main import Mlx
from mpsq_report import Reporter

TYPES = {"fp32": mx.float32, "bf16": mx.bfloat16, "fp16": mx.float16, "fp64": mx.float64}


class BenchMlx(Mlx):
    """The Framework of harness.microbench.run and the Matrices of harness.microbench.matmul."""

    in_order = True

    def set_up(self, options: Options, device: Device, report: Reporter) -> None:
        super().set_up(options, device, report)
        if options.settings.tf32:
            raise UsageError("MLX reads its choice of TF32 when it is imported", "--env MLX_ENABLE_TF32=1 makes it")
        if options.dtype == "fp64" and device.kind != "cpu":
            raise UsageError("MLX has float64 on the CPU only", "--device cpu, or --dtype fp32")

    def repeat(self, call: Callable[[], Any], times: int) -> list[Any]:
        """Start each product by asking for it, since MLX is lazy, and drop all results but the last."""
        result = None
        for _ in range(times):
            result = call()
            mx.async_eval(result)
        return [result]

    def finish(self, device: Device, results: Any) -> None:
        if results is not None:
            mx.eval(results)
        mx.synchronize()

    def put(self, values: Any, dtype: str, device: Device) -> mx.array:
        wide = mx.array(values, mx.float64) if dtype == "fp64" else mx.array(values.astype(np.float32))
        there = wide.astype(TYPES[dtype])
        mx.eval(there)
        return there

    def read(self, matrix: mx.array) -> Any:
        exact = matrix if matrix.dtype == mx.float64 else matrix.astype(mx.float32)
        return np.array(exact).astype(np.float64)

    def product(self, a: mx.array, b: mx.array, compiled: bool) -> Callable[[], mx.array]:
        multiply = mx.compile(lambda x, y: x @ y) if compiled else mx.matmul
        return lambda: multiply(a, b)

    def published(self, a: mx.array, b: mx.array) -> Callable[[], mx.array]:
        return lambda: mx.matmul(a, b)
