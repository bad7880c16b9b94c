"""The result of build() of a torch workload, its optimizers and its reference loss."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import nn

from harness.errors import JobError, UsageError
from harness.torch_backend.device import Device
from harness.training import REFERENCE, REFERENCE_ROWS, once
from harness.training import Training as AnyTraining

Batch = tuple[torch.Tensor, ...]
Optimizer = TypeVar("Optimizer", bound=torch.optim.Optimizer)
FLAGS: dict[str, dict[str, bool]] = {
    "fused": {"fused": True},
    "foreach": {"foreach": True},
    "loop": {"foreach": False},
}
"""Implementations of adamw() and sgd() besides auto, and their arguments."""


@dataclass(kw_only=True)
class Training(AnyTraining):
    """A model in training on one device. Workloads add fields."""

    device: Device
    model: nn.Module
    """the weights, on the device"""
    forward: Callable[..., Any]
    """the model, or what torch.compile made of it"""
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    generator: torch.Generator | None = None
    """the workload's random numbers, drawn on the CPU so that every device gets the same; saved in checkpoints"""

    def __post_init__(self) -> None:
        if isinstance(self.reference, Reference):
            self.reference.copy_shared(self.model)

    def n_params(self) -> int:
        return sum(p.numel() for p in self.model.parameters())


def adamw(
    groups: list[dict[str, Any]],
    implementation: str,
    device: Device | None = None,
    dtype: str = "fp16",
    **settings: Any,
) -> tuple[torch.optim.AdamW, str]:
    """Return AdamW and its name for hello. `implementation`: fused, foreach, loop, or auto (fused if the device has one
    that is correct in `dtype`). Without `device`, as in workloads made by version 0.1, it is that of the parameters.

    Raises: JobError if the implementation does not exist on this device, UsageError if it is wrong there.
    """
    return _optimizer(torch.optim.AdamW, "adamw", groups, implementation, device, dtype, settings)


def sgd(
    groups: list[dict[str, Any]],
    implementation: str,
    device: Device | None = None,
    dtype: str = "fp16",
    **settings: Any,
) -> tuple[torch.optim.SGD, str]:
    """Return stochastic gradient descent and its name for hello; arguments and errors as of adamw()."""
    return _optimizer(torch.optim.SGD, "sgd", groups, implementation, device, dtype, settings)


def _optimizer(
    kind: type[Optimizer],
    key: str,
    groups: list[dict[str, Any]],
    implementation: str,
    device: Device | None,
    dtype: str,
    settings: Mapping[str, Any],
) -> tuple[Optimizer, str]:
    trouble, names = "", ("fused", "loop") if implementation == "auto" else (implementation,)
    device_kind = device.kind if device else next(iter(groups[0]["params"])).device.type
    if device_kind == "mps" and dtype == "fp16":
        from mpsq_report_watch import fused_trouble

        trouble = fused_trouble(device_kind, dtype)
    if trouble and implementation == "fused":
        raise UsageError(trouble, f"--set {key}=loop, --dtype bf16, or torch 2.13")
    if trouble and implementation == "auto":
        print(f"{trouble}: {kind.__name__}(loop) instead")
        names = ("loop",)
    for name in names:
        try:
            return kind(groups, **settings, **FLAGS[name]), f"{kind.__name__}({name})"
        except RuntimeError as error:  # raised by torch where the parameters' device has no such kernel
            reason = str(error).splitlines()[0]
    hint = f"--set {key}=auto takes an implementation that the device has"
    raise JobError(f"this device has no {names[-1]} {kind.__name__}: {reason}", hint)


class Reference:
    """The loss of one batch at the initial weights, dropout off: on the CPU in fp32, which is taken as true, and later
    as the device computes it, compiled if the training is.

    Batch normalisation works as in the timed iterations. In training it uses the statistics of the batch, so that the
    kernels of training are checked; rows depend on each other then, and the CPU computes the whole batch at once. In
    mode=eval it uses its running statistics.
    """

    def __init__(self, model: nn.Module, batch: Batch) -> None:
        """Compute the CPU's loss, unless it is kept. `model` and `batch` are on the CPU, and nothing has been
        compiled."""
        self.batch = batch
        self.cpu = once(REFERENCE, lambda: _on_cpu(model, batch))
        self.weights = {name: value.detach() for name, value in model.state_dict().items()}

    def copy_shared(self, model: nn.Module) -> None:
        """Copy the weights that still share the model's memory, because no move to a device has copied them."""
        shared = {value.data_ptr() for value in model.state_dict().values()}
        self.weights = {
            name: value.clone() if value.data_ptr() in shared else value for name, value in self.weights.items()
        }

    def again(self, training: Training) -> float:
        model = copy.deepcopy(training.model).to("cpu")
        _put(model, self.weights)
        return _on_cpu(model, self.batch)

    def on_device(self, training: Training) -> float | None:
        dtype, device = training.options.dtype, training.device
        other_kernels = getattr(training.options.settings, "channels_last", False)
        if device.kind == "cpu" and dtype == "fp32" and training.forward is training.model and not other_kernels:
            return self.cpu  # the same computation
        now = {name: value.detach().clone() for name, value in training.model.state_dict().items()}
        _put(training.model, self.weights)
        with device.autocast(dtype):
            loss = first_loss(training.forward, training.model, tuple(part.to(device.handle) for part in self.batch))
        _put(training.model, now)
        return loss


def _on_cpu(model: nn.Module, batch: Batch) -> float:
    """Return the loss on the CPU, in fp32, and leave the model as it is."""
    if not (model.training and batch_norms(model)):
        return _in_parts(model, batch)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    loss = first_loss(model, model, batch)
    _put(model, before)  # the running statistics have changed
    return loss


def _in_parts(model: nn.Module, batch: Batch) -> float:
    """Return the mean loss of a batch in parts of REFERENCE_ROWS: a batch for a GPU may exceed the host's memory."""
    n = len(batch[0])
    parts = zip(*(part.split(REFERENCE_ROWS) for part in batch), strict=True)
    return sum(first_loss(model, model, part) * len(part[0]) for part in parts) / n


def first_loss(forward: Callable[..., Any], model: nn.Module, batch: Batch) -> float:
    """Return the loss of `batch` with dropout off and batch normalisation unchanged. If the model is not in training
    mode, the forward is that of mode=eval, under torch.inference_mode()."""
    was_training = model.training
    _without_dropout(model)
    with torch.no_grad() if was_training else torch.inference_mode():
        loss = float(loss_of(forward(*batch)))
    model.train(was_training)
    return loss


def batch_norms(model: nn.Module) -> list[nn.Module]:
    """Return the model's layers of batch normalisation."""
    return [part for part in model.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]


def loss_of(result: Any) -> torch.Tensor:
    """Return the loss of a forward's result: the result, or the first element of a tuple."""
    loss: torch.Tensor = result[0] if isinstance(result, tuple) else result
    return loss


def _without_dropout(model: nn.Module) -> None:
    """Switch to evaluation mode, except for batch normalisation that is in training mode."""
    if not any(part.training for part in batch_norms(model)):
        model.eval()
        return
    for part in model.modules():  # everything but dropout stays in training mode, for which the forward was compiled
        if isinstance(part, nn.modules.dropout._DropoutNd):
            part.eval()


@torch.no_grad()
def _put(model: nn.Module, weights: Mapping[str, torch.Tensor]) -> None:
    for name, value in model.state_dict().items():
        value.copy_(weights[name])
