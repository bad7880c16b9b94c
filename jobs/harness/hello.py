"""What a workload says of itself before it trains: to the queue in hello, to a reader in four lines."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Iterable, Mapping
from typing import Any

from harness.command_line import Options
from harness.training import Named, Training


def asked(
    workload: Mapping[str, Any], framework: str, options: Options, device: Named, facts: Mapping[str, Any]
) -> dict[str, Any]:
    """hello's first part: known before anything can go wrong with the model. `facts`: the framework's own fields."""
    settings = options.settings
    return {
        "workload": workload["name"],
        "framework": framework,
        "device": str(device),
        "device_name": device.name,
        "dtype": options.dtype,
        "seed": options.seed,
        "compile": options.compile,
        "config": options.config,
        "planned_iters": settings.max_iters,
        "full_iters": options.full_iters,
        "eval_interval": settings.eval_interval,
        **facts,
        "settings": vars(settings),
    }


def built(training: Training) -> dict[str, Any]:
    """hello's second part: the model and its data."""
    return {
        "params": training.n_params(),
        "flops_per_iter": training.flops_per_iter,
        "tokens_per_iter": training.per_iter,
        "optimizer": training.optimizer_name,
        "data": training.data,
    }


def versions(names: Iterable[str]) -> dict[str, str]:
    """Python's, those of the packages that are installed, and the system's where a GPU's driver comes with it."""
    found = {"python": platform.python_version()}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            pass
    if platform.system() == "Darwin":
        found["macos"] = platform.mac_ver()[0]
    return found


def show(
    workload: Mapping[str, Any], framework: str, compiler: str, training: Training, facts: Mapping[str, Any], done: int
) -> None:
    """Print the question: model, data, device, dtype."""
    options, data, device = training.options, training.data, training.device
    how = compiler if options.compile else "eager"
    work = f"{training.flops_per_iter:.4e} FLOP and {training.per_iter:,} {workload['unit']} an iteration"
    tokens = f"{data['bytes']:,} bytes, {data['vocab_size']:,} different tokens"
    threads = f", {facts['threads']} threads" if "threads" in facts else ""
    version = facts["versions"].get(framework, "")
    last = options.settings.max_iters
    print(f"{workload['name']} {options.config}: {training.n_params():,} parameters, {work}")
    print(f"data   {data['name']}: {tokens}, sha256 {data['sha256'][:16]}")
    print(f"device {device}: {device.name}{threads}, {options.dtype}, {how}, {training.optimizer_name}")
    print(f"{framework:<6} {version}, Python {platform.python_version()}, seed {options.seed}, to iteration {last}")
    if done:
        print(f"resumed after {done} iterations")
