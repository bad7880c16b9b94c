"""The result of build() of an MLX workload, its reference loss, and AdamW with decay on matrices alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx import optimizers
from mlx.utils import tree_flatten, tree_map

from harness.array_device import Device
from harness.training import REFERENCE, REFERENCE_ROWS, once
from harness.training import Training as AnyTraining

DTYPES = {"fp32": mx.float32, "bf16": mx.bfloat16, "fp16": mx.float16}


@dataclass(kw_only=True)
class Training(AnyTraining):
    """A model in training on one device. Workloads add fields."""

    device: Device
    model: nn.Module
    optimizer: optimizers.MultiOptimizer
    forward: Callable[..., mx.array]
    """(*batch) to the loss with dropout off, in the run's dtype, through mx.compile if it compiles"""

    def n_params(self) -> int:
        return sum(value.size for _, value in tree_flatten(self.model.parameters()))


class Reference:
    """harness.training.Reference in MLX. `loss(*batch)` is the mean over the batch's rows by `model`, in fp32, dropout
    off; `batch` holds numpy arrays."""

    def __init__(self, model: nn.Module, loss: Callable[..., mx.array], batch: tuple[np.ndarray, ...]) -> None:
        """Compute the CPU's loss, unless it is kept."""
        self._batch, self._loss = batch, loss
        self._weights = tree_map(lambda value: value, model.parameters())
        self.cpu = once(REFERENCE, self._on_cpu)

    def _on_cpu(self) -> float:
        with mx.stream(mx.cpu):  # memory is shared on Apple silicon; elsewhere MLX copies
            return _in_parts(self._loss, self._batch)

    def again(self, training: Training) -> float:
        model = training.model
        now = tree_map(lambda value: value, model.parameters())
        model.update(self._weights)
        loss = self._on_cpu()
        model.update(now)
        return loss

    def on_device(self, training: Training) -> float:
        model = training.model
        now = tree_map(lambda value: value, model.parameters())
        model.update(self._weights)
        loss = float(training.forward(*map(mx.array, self._batch)).item())
        model.update(now)
        return loss


def _in_parts(loss: Callable[..., mx.array], batch: tuple[np.ndarray, ...]) -> float:
    n, total = len(batch[0]), 0.0
    for first in range(0, n, REFERENCE_ROWS):
        rows = [mx.array(part[first : first + REFERENCE_ROWS]) for part in batch]
        total += loss(*rows).item() * len(rows[0])
    return total / n


def adamw(model: nn.Module, weight_decay: float, betas: list[float], eps: float) -> optimizers.MultiOptimizer:
    """Return AdamW as torch has it: with bias correction, which MLX does by request only, and without decay of vectors.

    Set the learning rate before each update.
    """

    def made(decay: float) -> optimizers.Optimizer:
        return optimizers.AdamW(0.0, betas=betas, eps=eps, weight_decay=decay, bias_correction=True)

    both = optimizers.MultiOptimizer([made(weight_decay), made(0.0)], [lambda name, value: value.ndim >= 2])
    both.init(model.trainable_parameters())
    return both


def named(training: Training) -> dict[str, Any]:
    """Return every array of weights and optimizer by name."""
    arrays = {f"weights.{name}": value for name, value in tree_flatten(training.model.parameters())}
    return arrays | {f"optimizer.{name}": value for name, value in tree_flatten(training.optimizer.state)}
