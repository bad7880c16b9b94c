"""What a torch workload says of itself before it trains: to the queue in hello, to a reader in four lines."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Mapping
from typing import Any

import torch

from harness.command_line import Options
from harness.torch_device import Device
from harness.torch_training import Training


def asked(workload: Mapping[str, Any], options: Options, device: Device) -> dict[str, Any]:
    """hello's first part: known before anything can go wrong with the model."""
    settings = options.settings
    return {
        "workload": workload["name"],
        "framework": "torch",
        "versions": _versions(device),
        "device": str(device),
        "device_name": device.name,
        "dtype": options.dtype,
        "seed": options.seed,
        "compile": options.compile,
        "config": options.config,
        "planned_iters": settings.max_iters,
        "full_iters": options.full_iters,
        "eval_interval": settings.eval_interval,
        "threads": torch.get_num_threads(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "settings": vars(settings),
    }


def built(training: Training) -> dict[str, Any]:
    """hello's second part: the model and its data."""
    return {
        "params": sum(p.numel() for p in training.model.parameters()),
        "flops_per_iter": training.flops_per_iter,
        "tokens_per_iter": training.per_iter,
        "optimizer": training.optimizer_name,
        "data": training.data,
    }


def _versions(device: Device) -> dict[str, str]:
    found = {"python": platform.python_version(), "torch": torch.__version__}
    for name in ("numpy", "tiktoken", "triton"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            pass
    if device.kind == "cuda":
        found |= {"cuda": str(torch.version.cuda), "cudnn": str(torch.backends.cudnn.version())}
    if platform.system() == "Darwin":
        found["macos"] = platform.mac_ver()[0]
    return found


def show(workload: Mapping[str, Any], training: Training, done: int) -> None:
    """Print the question: model, data, device, dtype."""
    options, data = training.options, training.data
    params = sum(p.numel() for p in training.model.parameters())
    how = "torch.compile" if options.compile else "eager"
    work = f"{training.flops_per_iter:.4e} FLOP and {training.per_iter:,} {workload['unit']} an iteration"
    tokens = f"{data['bytes']:,} bytes, {data['vocab_size']:,} different tokens"
    machine = f"{training.device.name}, {torch.get_num_threads()} threads"
    last = options.settings.max_iters
    print(f"{workload['name']} {options.config}: {params:,} parameters, {work}")
    print(f"data   {data['name']}: {tokens}, sha256 {data['sha256'][:16]}")
    print(f"device {training.device}: {machine}, {options.dtype}, {how}, {training.optimizer_name}")
    print(f"torch  {torch.__version__}, Python {platform.python_version()}, seed {options.seed}, to iteration {last}")
    if done:
        print(f"resumed after {done} iterations")
