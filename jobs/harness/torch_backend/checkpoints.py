"""Checkpoints of a torch training: everything that the next iteration depends on."""

from __future__ import annotations

import os
import tempfile
import zipfile
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from harness.errors import JobError
from harness.torch_backend.device import Device
from harness.torch_backend.training import Training


def save(training: Training, path: Path, done: int) -> Path:
    """Write a checkpoint atomically and return its path. Raises: JobError if it cannot be written."""
    state = {
        "done": done,
        "shape": {name: list(value.shape) for name, value in training.model.state_dict().items()},
        "model": training.model.state_dict(),
        "optimizer": training.optimizer.state_dict(),
        "scaler": training.scaler.state_dict(),
        "batches": None if training.generator is None else training.generator.get_state(),
        "rng": torch.get_rng_state(),
        "device": training.device.kind,
        "device_rng": _rng_state(training.device),
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
        return Path(partial).replace(path)
    except (OSError, RuntimeError) as error:  # torch's zip writer turns a full disk into RuntimeError
        if partial:
            Path(partial).unlink(missing_ok=True)
        raise JobError(
            f"the checkpoint {path} cannot be written: {error}",
            "give --out a folder with room",
            note="checkpoint_failed",
        ) from None


def restore(training: Training, path: Path) -> int:
    """Load a checkpoint into the training. Return the number of iterations done.

    Raises: JobError if it cannot be read, belongs to another model or other data, or was written by a program that drew
    batches in another way.
    """
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        shape = {name: list(value.shape) for name, value in training.model.state_dict().items()}
        same_model, same_data = state["shape"] == shape, state["data_sha256"] == training.data["sha256"]
    except OSError as error:
        raise JobError(f"the checkpoint {path} cannot be read: {error.strerror}", exit_code=2) from None
    except (RuntimeError, EOFError, KeyError, TypeError, UnpicklingError, zipfile.BadZipFile, ValueError):
        raise JobError(f"{path} is not a complete checkpoint of this program", exit_code=2) from None
    if not same_model:
        hint = "resume with the --config and --set it was written with"
        raise JobError(f"{path} holds a model of another shape", hint, 2)
    if not same_data:
        raise JobError(f"{path} was trained on another text", "resume with the same data", 2)
    if (state["batches"] is None) != (training.generator is None):
        raise JobError(f"{path} was written by a version of this program that drew other batches", exit_code=2)
    training.model.load_state_dict(state["model"])
    _load(training.optimizer, state["optimizer"])
    training.scaler.load_state_dict(state["scaler"])
    if training.generator is not None:
        training.generator.set_state(state["batches"])
    torch.set_rng_state(state["rng"])
    done = int(state["done"])
    _set_rng_state(training.device, state, training.options.seed + done)
    if rank := training.device.group.rank:  # the random numbers in the checkpoint, for dropout, are those of rank 0
        torch.manual_seed(training.options.seed + rank + done)
    return done


def _load(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load what the optimizer has accumulated. Its settings and implementation remain those that were requested; they
    also decide on which device load_state_dict() puts the counts of steps."""
    saved = zip(optimizer.param_groups, state["param_groups"], strict=True)
    optimizer.load_state_dict({**state, "param_groups": [{**ours, "params": its["params"]} for ours, its in saved]})


def _rng_state(device: Device) -> torch.Tensor | None:
    """Return the state of the device's random number generator (dropout); None on the CPU."""
    if device.kind == "cuda":
        return torch.cuda.get_rng_state(device.handle)
    return torch.mps.get_rng_state() if device.kind == "mps" else None


def _set_rng_state(device: Device, state: dict[str, Any], seed: int) -> None:
    """Restore the device's random number generator, or seed it if the checkpoint was written on another kind."""
    now, saved = _rng_state(device), state["device_rng"]
    if now is None:
        return
    if saved is None or len(saved) != len(now) or state.get("device", device.kind) != device.kind:
        (torch.cuda if device.kind == "cuda" else torch.mps).manual_seed(seed)
    elif device.kind == "cuda":
        torch.cuda.set_rng_state(saved, device.handle)
    else:
        torch.mps.set_rng_state(saved)
