"""A training in any framework: the result of a workload's build(), and the fields by which a run describes it."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any, TypeVar

from harness.command_line import Options

if TYPE_CHECKING:
    from harness.framework import NamedDevice, Reference

Value = TypeVar("Value", float, list[Any], None)
TOLERANCE_NATS = {"fp32": 1e-3, "fp16": 2e-2, "bf16": 5e-2}
"""How far the first loss may be from the CPU's in fp32. Sums in another order differ by 1e-5 or so in fp32; 8 bits of
mantissa cost bf16 about 1e-2 before averaging; a wrong kernel changes it far more."""
REFERENCE = "reference_loss"
"""Name under which the reference loss is kept (prepared.py)."""
REFERENCE_ROWS = 8
"""Rows of a batch that the CPU evaluates at once for the reference loss: a batch that fills a GPU may be too large for
the host."""


@dataclass(kw_only=True)
class Described:
    """The part of a training, or of a model that generates text, that a run reports."""

    options: Options
    device: Any
    data: Mapping[str, Any]
    """fields of hello about the data: name, sha256 and others"""
    flops_per_iter: float
    per_iter: int
    """tokens or samples in an iteration"""
    optimizer_name: str = ""
    """empty if there is none"""
    loss_unit: str = "nats"

    def n_params(self) -> int:
        """Return the number of trained parameters."""
        raise NotImplementedError


@dataclass(kw_only=True)
class Training(Described):
    """A model in training on one device. Frameworks and workloads add fields."""

    reference: Reference
    loss_slope: float = 1.0
    """by how much an error of the model's output changes the loss: about 1 for a cross-entropy"""

    def warm_evaluation(self) -> None:
        """Compile what evaluations run, if the reference's forward has not, so that the first evaluation does not pay
        for it.

        Called once, after the first iteration of a compiled training that will evaluate.
        """


def is_checked() -> bool:
    """Return whether the device has computed the CPU's loss in an earlier round of the same job: another round has
    other weights and batches, and the CPU would take longer for its loss than many a run lasts."""
    return os.environ.get("MPSQ_CHECKED") == "1"


def once(name: str, compute: Callable[[], Value]) -> Value | None:
    """Return a value that the queue had computed before the run (prepared.py), else compute it; None if the run is not
    to be checked."""
    if is_checked():
        return None
    if "MPSQ_PREPARED" not in os.environ:
        return compute()
    from harness import prepared

    return prepared.once(name, compute)


def request_fields(
    workload: Mapping[str, Any], framework: str, options: Options, device: NamedDevice, facts: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the fields of hello that are known before the model is built. `facts` are the framework's own fields."""
    settings = options.settings
    return {
        "workload": workload_name(workload, options),
        "framework": framework,
        "device": str(device),
        "device_name": device.name,
        "dtype": options.dtype,
        "seed": options.seed,
        "compile": options.compile,
        **({"compile_mode": options.compile_mode} if options.compile_mode else {}),
        "config": options.config,
        "planned_iters": settings.max_iters,
        "full_iters": options.full_iters,
        "eval_interval": settings.eval_interval,
        **facts,
        "settings": vars(settings),
    }


def workload_name(workload: Mapping[str, Any], options: Options) -> str:
    """Return the workload's name, with the mode appended unless it is train.

    Another mode is another workload, so that no report and no query over the store pools the two.
    """
    return str(workload["name"]) + ("" if options.mode == "train" else f"-{options.mode}")


def model_fields(training: Described, unit: str) -> dict[str, Any]:
    """Return the fields of hello about model and data. `unit` is tokens or samples, as counted by per_iter."""
    return {
        "params": training.n_params(),
        "flops_per_iter": training.flops_per_iter,
        f"{unit}_per_iter": training.per_iter,
        **({"optimizer": training.optimizer_name} if training.optimizer_name else {}),
        "data": training.data,
    }


def versions(names: Iterable[str]) -> dict[str, str]:
    """Return the versions of Python, of the packages that are installed, and of macOS, which ships the GPU's driver."""
    by_name = {"python": platform.python_version()}
    for name in names:
        try:
            by_name[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            pass
    if platform.system() == "Darwin":
        from harness.apple import macos_version

        by_name["macos"] = macos_version()
    return by_name


def print_summary(
    workload: Mapping[str, Any], framework: str, compiler: str, training: Described, facts: Mapping[str, Any], done: int
) -> None:
    """Print model, data, device and framework in four lines, and how many iterations are done if resumed."""
    options, data, device = training.options, training.data, training.device
    how = f"{compiler} {options.compile_mode}".rstrip() if options.compile else "eager"
    optimizer = f", {training.optimizer_name}" if training.optimizer_name else ""
    work = f"{training.flops_per_iter:.4e} FLOP and {training.per_iter:,} {workload['unit']} an iteration"
    about = data.get("about") or f"{data['bytes']:,} bytes, {data['vocab_size']:,} different tokens"
    threads = f", {facts['threads']} threads" if "threads" in facts else ""
    version = facts["versions"].get(framework, "")
    last = options.settings.max_iters
    print(f"{workload_name(workload, options)} {options.config}: {training.n_params():,} parameters, {work}")
    print(f"data   {data['name']}: {about}, sha256 {data['sha256'][:16]}")
    several = f", {facts['gpus']} processes over {facts['ddp_backend']}" if "gpus" in facts else ""
    print(f"device {device}: {device.name}{several}{threads}, {options.dtype}, {how}{optimizer}")
    print(f"{framework:<6} {version}, Python {platform.python_version()}, seed {options.seed}, to iteration {last}")
    if done:
        print(f"resumed after {done} iterations")
