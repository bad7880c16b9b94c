"""The result of build() of a tinygrad workload, its reference loss, and AdamW with decay on matrices alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from tinygrad import Tensor, dtypes
from tinygrad.nn import optim
from tinygrad.nn.state import get_state_dict

from harness.array_device import Device
from harness.tinygrad_backend.device import why_not
from harness.training import REFERENCE, REFERENCE_ROWS, once
from harness.training import Training as AnyTraining

DTYPES = {"fp32": dtypes.float32, "bf16": dtypes.bfloat16, "fp16": dtypes.float16}


@dataclass(kw_only=True)
class Training(AnyTraining):
    """A model in training on one device. Workloads add fields."""

    device: Device
    params: Mapping[str, Tensor]
    """the weights by name, on the device; assigned to in place"""
    optimizer: optim.OptimizerGroup
    forward: Callable[..., Tensor]
    """(*batch) to the loss with dropout off, in the run's dtype, through TinyJit if it compiles: read it before the
    next call, which writes into the same buffer"""

    def n_params(self) -> int:
        return sum(int(value.numel()) for value in self.params.values())


class Reference:
    """harness.training.Reference in tinygrad. `loss(params, *batch)` is the mean over rows in fp32, dropout off."""

    def __init__(
        self, loss: Callable[..., Tensor], params: Mapping[str, np.ndarray], batch: tuple[np.ndarray, ...]
    ) -> None:
        """Compute the CPU's loss, unless it is kept, if tinygrad has a CPU here. `params` and `batch` are numpy
        arrays."""
        self._params, self._batch, self._loss = params, batch, loss
        self.cpu = once(REFERENCE, lambda: None if why_not("cpu") else self._on_cpu())

    def again(self, training: Training) -> float:
        return self._on_cpu()

    def _on_cpu(self) -> float:
        params = {name: Tensor(value, device="CPU").realize() for name, value in self._params.items()}
        n = len(self._batch[0])
        rows = next(k for k in range(min(n, REFERENCE_ROWS), 0, -1) if n % k == 0)  # each size is compiled anew
        losses = [
            self._loss(params, *(Tensor(part[first : first + rows], device="CPU") for part in self._batch)).item()
            for first in range(0, n, rows)
        ]
        return sum(map(float, losses)) / len(losses)

    def on_device(self, training: Training) -> float:
        options, device = training.options, training.device
        if self.cpu is not None and device.kind == "cpu" and options.dtype == "fp32" and not options.compile:
            return self.cpu  # the same computation
        now = {name: value.numpy() for name, value in training.params.items()}
        put(training.params, self._params)
        batch = (Tensor(part, device=device.handle).realize() for part in self._batch)
        loss = float(training.forward(*batch).item())
        put(training.params, now)
        return loss


def put(tensors: Mapping[str, Tensor], values: Mapping[str, np.ndarray]) -> None:
    """Write values into tensors of the same names, in place, so that a TinyJit that captured them sees the new ones."""
    for name, tensor in tensors.items():
        tensor.assign(Tensor(values[name], device=tensor.device).cast(tensor.dtype)).realize()


def adamw(params: Mapping[str, Tensor], weight_decay: float, betas: tuple[float, float], eps: float) -> Any:
    """Return tinygrad's AdamW, which equals torch's, without decay of vectors.

    Replace the learning rate `lr` of each of its `optimizers`, a tensor of one number, before an update.
    """
    matrices = [value for value in params.values() if value.ndim >= 2]
    vectors = [value for value in params.values() if value.ndim < 2]
    b1, b2 = betas
    return optim.OptimizerGroup(
        *(
            optim.AdamW(some, lr=0.0, b1=b1, b2=b2, eps=eps, weight_decay=decay)
            for some, decay in ((matrices, weight_decay), (vectors, 0.0))
            if some
        )
    )


def named(training: Training) -> dict[str, Tensor]:
    """Return every tensor of weights and optimizer by name."""
    arrays = {f"weights.{name}": value for name, value in training.params.items()}
    for n, optimizer in enumerate(training.optimizer.optimizers):
        state = {"b1_t": optimizer.b1_t, "b2_t": optimizer.b2_t, "m": optimizer.m, "v": optimizer.v}
        arrays |= get_state_dict(state, f"optimizer.{n}")
    return arrays
