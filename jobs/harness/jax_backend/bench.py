"""JAX's side of micro-benchmarks: how calls are issued and awaited, and matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from harness.array_device import Device
from harness.command_line import Options
from harness.jax_backend.main import Jax
from mpsq_report import Reporter

TYPES = {"fp32": jnp.float32, "bf16": jnp.bfloat16, "fp16": jnp.float16, "fp64": jnp.float64}


class BenchJax(Jax):
    """The Framework of harness.microbench.run and the Matrices of harness.microbench.matmul."""

    in_order = False

    def set_up(self, options: Options, device: Device, report: Reporter) -> None:
        super().set_up(options, device, report)
        if options.dtype == "fp64":
            jax.config.update("jax_enable_x64", True)
        if options.settings.tf32:
            jax.config.update("jax_default_matmul_precision", "tensorfloat32")

    def repeat(self, call: Callable[[], Any], times: int) -> list[Any]:
        """Keep all results: on the CPU they complete in any order, so that the last does not imply the others."""
        return [call() for _ in range(times)]

    def finish(self, device: Device, results: Any) -> None:
        jax.block_until_ready(results)

    def put(self, values: Any, dtype: str, device: Device) -> jax.Array:
        return jax.device_put(np.asarray(values, TYPES[dtype]), device.handle).block_until_ready()

    def read(self, matrix: jax.Array) -> Any:
        return np.asarray(matrix).astype(np.float64)

    def product(self, a: jax.Array, b: jax.Array, compiled: bool) -> Callable[[], jax.Array]:
        multiply = jax.jit(jnp.matmul) if compiled else jnp.matmul
        return lambda: multiply(a, b)

    def published(self, a: jax.Array, b: jax.Array) -> Callable[[], jax.Array]:
        return lambda: jnp.matmul(a, b)
