"""Classification in torch: what resnet50, vgg16 and bert share apart from the model and its data.

mode=train times forward, backward and update; mode=eval the forward alone, as in inference: in the model's evaluation
mode (no dropout, batch normalisation with its running statistics), under torch.inference_mode(). Both compute the loss
and the number of correct predictions, on the same batches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import nn

from harness.command_line import Options
from harness.data.examples import Examples, Order, in_turn
from harness.torch_backend.compiling import compiled
from harness.torch_backend.device import Device
from harness.torch_backend.flops import BACKWARD_TIMES
from harness.torch_backend.training import Reference, batch_norms
from harness.torch_backend.training import Training as TorchTraining

SETTLING_ROWS = 32
"""Examples that determine batch normalisation's running statistics in mode=eval."""
Batch = tuple[torch.Tensor, torch.Tensor]


class Classifier(nn.Module):
    """A model from inputs (batch, ...) and labels (batch,) to the mean cross entropy in nats and the number of correct
    predictions. Training, evaluation and reference use the same forward: it is compiled once for each mode."""

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits, (batch, classes)."""
        raise NotImplementedError

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.logits(x).float()
        return F.cross_entropy(logits, labels), (logits.argmax(1) == labels).sum()


class Pool:
    """The examples as tensors: all on the device, or on the host, from which each batch is copied in its iteration."""

    def __init__(self, examples: Examples, device: Device, on_device: bool) -> None:
        self._device, self._on_device = device, on_device
        self._parts = {
            split: tuple(torch.from_numpy(part).to(device.handle if on_device else "cpu") for part in parts)
            for split, parts in examples.parts.items()
        }

    def take(self, split: str, which: NDArray[np.int64]) -> Batch:
        """Return a batch on the device; asynchronously from pinned memory on CUDA."""
        x, y = self._parts[split]
        at = torch.from_numpy(which)
        if self._on_device:
            at = at.to(self._device.handle)
            return x[at], y[at]
        cuda = self._device.kind == "cuda"
        parts = [part[at].pin_memory() if cuda else part[at] for part in (x, y)]
        x, y = (part.to(self._device.handle, non_blocking=cuda) for part in parts)
        return x, y


@dataclass(kw_only=True)
class Training(TorchTraining):
    """The harness's Training, with the data and their order."""

    pool: Pool
    order: Order
    n_val: int
    """examples that are kept for evaluation"""

    def warm_evaluation(self) -> None:
        """Run an evaluation batch if the model has batch normalisation.

        The reference's forward is that of evaluations except for batch normalisation, which runs in training mode
        there; without it everything is compiled by now.
        """
        if batch_norms(self.model):
            _measured(self, "train", 1)


def build(
    options: Options,
    device: Device,
    model: Classifier,
    examples: Examples,
    optimizer: Callable[[nn.Module], tuple[torch.optim.Optimizer, str]],
    forward_flops: float,
    layout: torch.memory_format = torch.preserve_format,
) -> Training:
    """Compute the reference loss on the CPU, then move the model to the device.

    `forward_flops` is the FLOP of one example, `layout` the memory format of the weights on the device.
    """
    s = options.settings
    evaluates = options.mode == "eval"
    x, y = examples.parts["train"]
    order = Order(len(x), options.seed, s.batch_size)
    at = order.of_iteration(0)
    first = torch.from_numpy(x[at]), torch.from_numpy(y[at])
    if evaluates:
        calibrate_batch_norm(model, first[0][:SETTLING_ROWS])
    model.train(not evaluates)
    reference = Reference(model, first)
    model.to(device.handle, memory_format=layout)
    made, name = optimizer(model)
    return Training(
        options=options,
        device=device,
        model=model,
        forward=compiled(model, options),
        optimizer=made,
        optimizer_name="" if evaluates else name,
        scaler=torch.amp.GradScaler(device.kind, enabled=options.dtype == "fp16"),
        reference=reference,
        data=examples.fields(),
        flops_per_iter=s.batch_size * forward_flops * (1 if evaluates else 1 + BACKWARD_TIMES),
        per_iter=s.batch_size,
        pool=Pool(examples, device, s.pool == "device"),
        order=order,
        n_val=len(examples.parts["val"][0]),
    )


def calibrate_batch_norm(model: nn.Module, x: torch.Tensor) -> None:
    """Set the running statistics of batch normalisation to those of `x`, as a trained model has those of its data.

    With the initial ones, means of 0 and variances of 1, each residual block adds to the variance: the losses of an
    untrained model in evaluation would be hundreds of nats, and rounding could not be distinguished from a fault.
    """
    norms = batch_norms(model)
    if not norms:
        return
    was_training, momenta = model.training, [norm.momentum for norm in norms]
    model.eval()
    for norm in norms:
        norm.train()
        norm.momentum = 1.0  # the running statistics become those of the last batch
    with torch.no_grad():
        model.logits(x)  # type: ignore[operator]
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    model.train(was_training)


def step(training: Training, i: int) -> torch.Tensor:
    """Do one iteration: batch, forward, backward, update. Return the loss, still on the device."""
    optimizer, scaler = training.optimizer, training.scaler
    x, y = training.pool.take("train", training.order.of_iteration(i))
    with training.device.autocast(training.options.dtype):
        loss, _ = training.forward(x, y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach()


@torch.inference_mode()
def infer(training: Training, i: int) -> torch.Tensor:
    """Do one iteration of mode=eval: the batch that training would take, and the forward. Return its loss."""
    x, y = training.pool.take("train", training.order.of_iteration(i))
    with training.device.autocast(training.options.dtype):
        loss, _ = training.forward(x, y)
    return loss


def evaluate(training: Training, split: str) -> dict[str, float]:
    """Return mean loss and accuracy over eval_iters batches, the same every time."""
    return _measured(training, split, training.options.settings.eval_iters)


def _measured(training: Training, split: str, batches: int) -> dict[str, float]:
    s, model = training.options.settings, training.model
    n = training.n_val if split == "val" else min(training.n_val, s.eval_iters * s.batch_size)
    total, right = torch.zeros((), device=training.device.handle), torch.zeros((), device=training.device.handle)
    was_training = model.training
    model.eval()
    with torch.no_grad() if was_training else torch.inference_mode():
        for k in range(batches):
            x, y = training.pool.take(split, in_turn(n, k, s.batch_size))
            with training.device.autocast(training.options.dtype):
                loss, correct = training.forward(x, y)
            total += loss
            right += correct
    model.train(was_training)
    return {"loss": float(total) / batches, "accuracy": float(right) / (batches * s.batch_size)}


PARTS: dict[str, Any] = {"step": step, "evaluate": evaluate, "infer": infer}
"""Arguments of main() in torch_backend/main.py besides a workload's own build()."""
