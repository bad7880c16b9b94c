"""What a torch workload's build() returns, and what the harness does with it: reference loss and checkpoints."""

from __future__ import annotations

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

from harness.errors import JobError
from harness.torch_backend.device import Device
from harness.training import REFERENCE_ROWS
from harness.training import Training as AnyTraining

Batch = tuple[torch.Tensor, ...]
Optimizer = TypeVar("Optimizer", bound=torch.optim.Optimizer)
_FLAGS: dict[str, dict[str, bool]] = {
    "fused": {"fused": True},
    "foreach": {"foreach": True},
    "loop": {"foreach": False},
}
"""What adamw() and sgd() take besides auto."""


@dataclass(kw_only=True)
class Training(AnyTraining):
    """A model in training on one device. A workload adds its own fields to these."""

    device: Device
    model: nn.Module
    """the weights, on the device"""
    forward: Callable[..., Any]
    """the model, or what torch.compile made of it"""
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    generator: torch.Generator | None = None
    """draws what the workload draws in torch, on the CPU so that every device gets the same; saved with a checkpoint"""

    def n_params(self) -> int:
        return sum(p.numel() for p in self.model.parameters())


def adamw(groups: list[dict[str, Any]], implementation: str, **settings: Any) -> tuple[torch.optim.AdamW, str]:
    """AdamW and its name for hello. `implementation`: fused, foreach, loop, or auto: fused where the device has it.

    Raises: JobError when the one asked for does not exist on this device.
    """
    return _optimizer(torch.optim.AdamW, "adamw", groups, implementation, settings)


def sgd(groups: list[dict[str, Any]], implementation: str, **settings: Any) -> tuple[torch.optim.SGD, str]:
    """Stochastic gradient descent and its name for hello; `implementation` as in adamw(). Raises: JobError likewise."""
    return _optimizer(torch.optim.SGD, "sgd", groups, implementation, settings)


def _optimizer(
    kind: type[Optimizer], key: str, groups: list[dict[str, Any]], implementation: str, settings: Mapping[str, Any]
) -> tuple[Optimizer, str]:
    wanted = ("fused", "loop") if implementation == "auto" else (implementation,)
    for name in wanted:
        try:
            return kind(groups, **settings, **_FLAGS[name]), f"{kind.__name__}({name})"
        except RuntimeError as error:  # torch says so when the parameters' device has no such kernel
            reason = str(error).splitlines()[0]
    hint = f"--set {key}=auto takes what the device has"
    raise JobError(f"there is no {wanted[-1]} {kind.__name__} here: {reason}", hint)


class Reference:
    """The loss of one batch at the weights that training starts from, dropout off: on the CPU in fp32, which is taken
    for true, and later as the device computes it, compiled if it is compiled.

    Batch normalisation does as in the iterations that are timed: with the statistics of the batch where the model is in
    training, so that the kernels of training are checked; then rows depend on each other, and the CPU computes the
    whole batch at once. With those that the model keeps where it is not (mode=eval).
    """

    def __init__(self, model: nn.Module, batch: Batch) -> None:
        """Compute the CPU's loss. `model` and `batch` are on the CPU, and nothing was compiled yet."""
        self.batch = batch
        self.weights = {name: value.detach().clone() for name, value in model.state_dict().items()}
        together = model.training and any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in model.modules())
        self.cpu = first_loss(model, model, batch) if together else _in_parts(model, batch)
        _put(model, self.weights)  # what batch normalisation keeps has moved

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


def _in_parts(model: nn.Module, batch: Batch) -> float:
    """The mean loss of a batch, a few rows at a time: a batch that fills a GPU may be too large for the host."""
    n = len(batch[0])
    parts = zip(*(part.split(REFERENCE_ROWS) for part in batch), strict=True)
    return sum(first_loss(model, model, part) * len(part[0]) for part in parts) / n


def first_loss(forward: Callable[..., Any], model: nn.Module, batch: Batch) -> float:
    """The loss of `batch` with dropout off, and batch normalisation as it is. Where the model is not in training the
    forward is that of mode=eval, without anything kept for a backward."""
    was_training = model.training
    _without_dropout(model)
    with torch.no_grad() if was_training else torch.inference_mode():
        loss = float(loss_of(forward(*batch)))
    model.train(was_training)
    return loss


def loss_of(result: Any) -> torch.Tensor:
    """What a forward returns: the loss, or a tuple that begins with it."""
    found: torch.Tensor = result[0] if isinstance(result, tuple) else result
    return found


def _without_dropout(model: nn.Module) -> None:
    """Evaluation, but for batch normalisation, which stays as it is."""
    norms = [part for part in model.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.training]
    if not norms:
        model.eval()
        return
    for part in model.modules():  # all in training but what drops: the forward that was compiled for training fits
        if isinstance(part, nn.modules.dropout._DropoutNd):
            part.eval()


def calibrate_batch_norm(model: nn.Module, x: torch.Tensor) -> None:
    """Let batch normalisation keep the statistics of `x`, as a trained model keeps those of its data.

    With those that it is made with, means of 0 and variances of 1, each residual block adds to the variance: the losses
    of an untrained model in evaluation would be in the hundreds of nats, and no rounding could be told from a fault.
    """
    norms = [part for part in model.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]
    if not norms:
        return
    was_training, momenta = model.training, [norm.momentum for norm in norms]
    model.eval()
    for norm in norms:
        norm.train()
        norm.momentum = 1.0  # what is kept is what was seen last
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
    """Write all that the next iteration depends on. The file appears under its name whole or not at all.

    Raises: JobError when it cannot be written.
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
    """Read a checkpoint (on the CPU) and put its weights into `model`.

    Raises: JobError when it cannot be read, or belongs to another model or other data.
    """
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        shape = {name: list(value.shape) for name, value in model.state_dict().items()}
        same_model, same_data = state["shape"] == shape, state["data_sha256"] == data_sha256
    except OSError as error:
        raise JobError(f"the checkpoint {path} cannot be read: {error.strerror}", exit_code=2) from None
    except (RuntimeError, EOFError, KeyError, TypeError, UnpicklingError, zipfile.BadZipFile, ValueError):
        raise JobError(f"{path} is not a checkpoint of this program, or not a whole one", exit_code=2) from None
    if not same_model:
        raise JobError(
            f"{path} is of a model of another shape", "resume with the --config and --set it was written with", 2
        )
    if not same_data:
        raise JobError(f"{path} was trained on another text", "resume with the same data", 2)
    model.load_state_dict(state["model"])
    return state


def restore(training: Training, state: Mapping[str, Any]) -> None:
    """Put the rest of a loaded checkpoint back: all but the weights, which load() has put.

    Raises: JobError when the program that wrote it drew its batches in another way.
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
