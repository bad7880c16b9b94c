"""The result of build() of a JAX workload, its reference loss, and AdamW, which JAX does not include."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from harness.array_device import Device
from harness.jax_backend.device import cpu as cpu_device
from harness.training import REFERENCE, REFERENCE_ROWS, once
from harness.training import Training as AnyTraining

Params = dict[str, jax.Array]
DTYPES = {"fp32": jnp.float32, "bf16": jnp.bfloat16, "fp16": jnp.float16}


@dataclass(kw_only=True)
class Training(AnyTraining):
    """A model in training on one device. Workloads add fields, and replace params and state."""

    device: Device
    params: Params
    """the weights by name, on the device"""
    state: Any
    """the optimizer's, a tree of arrays"""
    forward: Callable[..., jax.Array]
    """(params, *batch) to the loss with dropout off, in the run's dtype, through jax.jit if it compiles"""

    def n_params(self) -> int:
        return sum(value.size for value in self.params.values())


class Reference:
    """harness.training.Reference in JAX. `loss(params, *batch)` is the mean over rows in fp32, dropout off."""

    def __init__(self, loss: Callable[..., jax.Array], params: dict[str, np.ndarray], batch: tuple[np.ndarray, ...]):
        """Compute the CPU's loss, unless it is kept. `params` and `batch` are numpy arrays, on no device yet."""
        self._params, self._batch, self._loss = params, batch, loss
        self.cpu = once(REFERENCE, self._on_cpu)

    def again(self, training: Training) -> float:
        loss = self._on_cpu()
        assert loss is not None  # there was a CPU before
        return loss

    def _on_cpu(self) -> float | None:
        if (device := cpu_device()) is None:
            return None
        params = jax.device_put(self._params, device)
        n, total = len(self._batch[0]), 0.0
        with jax.default_device(device):
            for first in range(0, n, REFERENCE_ROWS):
                rows = [jax.device_put(part[first : first + REFERENCE_ROWS], device) for part in self._batch]
                total += float(self._loss(params, *rows)) * len(rows[0])
        return total / n

    def on_device(self, training: Training) -> float:
        handle = training.device.handle
        return float(training.forward(jax.device_put(self._params, handle), *jax.device_put(self._batch, handle)))


def adamw_state(params: Params) -> dict[str, Any]:
    """Return the state before the first update: zero steps, zero moments."""
    zeros = {name: jnp.zeros_like(value) for name, value in params.items()}
    return {"steps": jnp.zeros((), jnp.int32), "mean": zeros, "square": {k: v.copy() for k, v in zeros.items()}}


def adamw(
    params: Params,
    grads: Params,
    state: dict[str, Any],
    lr: jax.Array | float,
    betas: tuple[float, float],
    eps: float,
    decay: dict[str, float],
) -> tuple[Params, dict[str, Any]]:
    """Return params and state after one update by AdamW (Loshchilov & Hutter 2019, algorithm 2), as torch.optim.AdamW
    does it.

    `decay` is the weight decay of each tensor by name.
    """
    b1, b2 = betas
    steps = state["steps"] + 1
    unbias1, unbias2 = 1 - b1 ** steps.astype(jnp.float32), 1 - b2 ** steps.astype(jnp.float32)
    mean = {k: b1 * state["mean"][k] + (1 - b1) * g for k, g in grads.items()}
    square = {k: b2 * state["square"][k] + (1 - b2) * g * g for k, g in grads.items()}
    new = {
        k: p * (1 - lr * decay[k]) - lr * (mean[k] / unbias1) / (jnp.sqrt(square[k] / unbias2) + eps)
        for k, p in params.items()
    }
    return new, {"steps": steps, "mean": mean, "square": square}


def clip(grads: Params, limit: float, eps: float) -> Params:
    """Return the gradients, scaled down if their global norm exceeds `limit`, as by torch's clip_grad_norm_."""
    norm = jnp.sqrt(sum((jnp.sum(g * g) for g in grads.values()), jnp.zeros(())))
    scale = jnp.minimum(limit / (norm + eps), 1.0)
    return {name: g * scale for name, g in grads.items()}
