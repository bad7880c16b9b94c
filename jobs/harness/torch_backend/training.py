"""The result of build() of a torch workload, its optimizers, its reference loss and its checkpoints."""

from __future__ import annotations

import copy
import os
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, TypeVar

import torch
from torch import nn

from harness import prepared
from harness.errors import JobError, UsageError
from harness.torch_backend.device import Device
from harness.training import REFERENCE, REFERENCE_ROWS
from harness.training import Training as AnyTraining
from mpsq_report_watch import fused_trouble

Batch = tuple[torch.Tensor, ...]
Optimizer = TypeVar("Optimizer", bound=torch.optim.Optimizer)
_FLAGS: dict[str, dict[str, bool]] = {
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
            self.reference.part_from(self.model)

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
    trouble = fused_trouble(device.kind if device else next(iter(groups[0]["params"])).device.type, dtype)
    if trouble and implementation == "fused":
        raise UsageError(trouble, f"--set {key}=loop, --dtype bf16, or torch 2.13")
    wanted = ("fused", "loop") if implementation == "auto" else (implementation,)
    if trouble and implementation == "auto":
        print(f"{trouble}: {kind.__name__}(loop) instead")
        wanted = ("loop",)
    for name in wanted:
        try:
            return kind(groups, **settings, **_FLAGS[name]), f"{kind.__name__}({name})"
        except RuntimeError as error:  # torch says so when the parameters' device has no such kernel
            reason = str(error).splitlines()[0]
    hint = f"--set {key}=auto takes what the device has"
    raise JobError(f"there is no {wanted[-1]} {kind.__name__} here: {reason}", hint)


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
        self.cpu = prepared.once(REFERENCE, lambda: _on_cpu(model, batch))
        self.weights = {name: value.detach() for name, value in model.state_dict().items()}

    def part_from(self, model: nn.Module) -> None:
        """Copy the weights that the model still shares, those that no move to a device has copied."""
        now = {value.data_ptr() for value in model.state_dict().values()}
        self.weights = {
            name: value.clone() if value.data_ptr() in now else value for name, value in self.weights.items()
        }

    def again(self, training: Training) -> float:
        model = copy.deepcopy(training.model).to("cpu")
        _put(model, self.weights)
        return _on_cpu(model, self.batch)

    def on_device(self, training: Training) -> float:
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
    norms = [part for part in model.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]
    if not (model.training and norms):
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


def loss_of(result: Any) -> torch.Tensor:
    """Return the loss of a forward's result: the result, or the first element of a tuple."""
    found: torch.Tensor = result[0] if isinstance(result, tuple) else result
    return found


def _without_dropout(model: nn.Module) -> None:
    """Switch to evaluation mode, except for batch normalisation that is in training mode."""
    norms = [part for part in model.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.training]
    if not norms:
        model.eval()
        return
    for part in model.modules():  # everything but dropout stays in training mode, for which the forward was compiled
        if isinstance(part, nn.modules.dropout._DropoutNd):
            part.eval()


def calibrate_batch_norm(model: nn.Module, x: torch.Tensor) -> None:
    """Set the running statistics of batch normalisation to those of `x`, as a trained model has those of its data.

    With the initial ones, means of 0 and variances of 1, each residual block adds to the variance: the losses of an
    untrained model in evaluation would be hundreds of nats, and rounding could not be told from a fault.
    """
    norms = [part for part in model.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]
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


@torch.no_grad()
def _put(model: nn.Module, weights: Mapping[str, torch.Tensor]) -> None:
    for name, value in model.state_dict().items():
        value.copy_(weights[name])


def save(training: Training, path: Path, done: int) -> None:
    """Write everything that the next iteration depends on, atomically.

    Raises: JobError if it cannot be written.
    """
    state = {
        "done": done,
        "shape": {name: list(value.shape) for name, value in training.model.state_dict().items()},
        "model": training.model.state_dict(),
        "optimizer": training.optimizer.state_dict(),
        "scaler": training.scaler.state_dict(),
        "batches": None if training.generator is None else training.generator.get_state(),
        "rng": torch.get_rng_state(),
        "device_rng": training.device.rng_state(),
        "data_sha256": training.data["sha256"],
    }
    partial = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, partial = tempfile.mkstemp(dir=path.parent, prefix=".checkpoint-")
        with os.fdopen(descriptor, "wb") as stream:
            torch.save(state, stream)
            stream.flush()
            os.fsync(stream.fileno())
        Path(partial).replace(path)
    except (OSError, RuntimeError) as error:  # torch's zip writer turns a full disk into RuntimeError
        if partial:
            Path(partial).unlink(missing_ok=True)
        raise JobError(
            f"the checkpoint {path} cannot be written: {error}",
            "give --out a folder with room",
            note="checkpoint_failed",
        ) from None


def load(path: Path, model: nn.Module, data_sha256: str) -> dict[str, Any]:
    """Read a checkpoint (on the CPU) and load its weights into `model`.

    Raises: JobError if it cannot be read, or belongs to another model or other data.
    """
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        shape = {name: list(value.shape) for name, value in model.state_dict().items()}
        same_model, same_data = state["shape"] == shape, state["data_sha256"] == data_sha256
    except OSError as error:
        raise JobError(f"the checkpoint {path} cannot be read: {error.strerror}", exit_code=2) from None
    except (RuntimeError, EOFError, KeyError, TypeError, UnpicklingError, zipfile.BadZipFile, ValueError):
        raise JobError(f"{path} is not a complete checkpoint of this program", exit_code=2) from None
    if not same_model:
        raise JobError(
            f"{path} is of a model of another shape", "resume with the --config and --set it was written with", 2
        )
    if not same_data:
        raise JobError(f"{path} was trained on another text", "resume with the same data", 2)
    model.load_state_dict(state["model"])
    return state


def restore(training: Training, state: Mapping[str, Any]) -> None:
    """Restore the rest of a loaded checkpoint: everything but the weights, which load() has restored.

    Raises: JobError if it was written by a program that drew batches in another way.
    """
    if (state["batches"] is None) != (training.generator is None):
        raise JobError("the checkpoint is of a version of this program that drew other batches", exit_code=2)
    training.optimizer.load_state_dict(state["optimizer"])
    training.scaler.load_state_dict(state["scaler"])
    if training.generator is not None:
        training.generator.set_state(state["batches"])
    torch.set_rng_state(state["rng"])
    if state["device_rng"] is not None:
        training.device.set_rng_state(state["device_rng"])
