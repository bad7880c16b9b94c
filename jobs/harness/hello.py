"""The workload's description of itself before it trains: fields of hello for the queue, four lines for the reader."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any, Protocol

from harness import machine
from harness.command_line import Options
from harness.framework import Framework
from harness.training import Named
from mpsq_report import Reporter


class Subject(Protocol):
    """The subject of hello: a Training, or the Sampling of mode=sample."""

    options: Options
    device: Any
    data: Mapping[str, Any]
    flops_per_iter: float
    per_iter: int
    optimizer_name: str
    """empty if there is none"""

    def n_params(self) -> int: ...


def request_fields(
    workload: Mapping[str, Any], framework: str, options: Options, device: Named, facts: Mapping[str, Any]
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
    said = mode(options.settings)
    return str(workload["name"]) + ("" if said == "train" else f"-{said}")


def mode(settings: SimpleNamespace) -> str:
    """Return the mode that was requested; train if the workload has no modes."""
    return str(getattr(settings, "mode", "train"))


def model_fields(training: Subject, unit: str = "tokens") -> dict[str, Any]:
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
    found = {"python": platform.python_version()}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            pass
    if platform.system() == "Darwin":
        found["macos"] = machine.macos_version()
    return found


def print_summary(
    workload: Mapping[str, Any], framework: str, compiler: str, training: Subject, facts: Mapping[str, Any], done: int
) -> None:
    """Print model, data, device and framework in four lines, and how many iterations are done if resumed."""
    options, data, device = training.options, training.data, training.device
    how = ", ".join(
        filter(
            None,
            (f"{compiler} {options.compile_mode}".rstrip() if options.compile else "eager", training.optimizer_name),
        )
    )
    work = f"{training.flops_per_iter:.4e} FLOP and {training.per_iter:,} {workload['unit']} an iteration"
    about = data.get("about") or f"{data['bytes']:,} bytes, {data['vocab_size']:,} different tokens"
    threads = f", {facts['threads']} threads" if "threads" in facts else ""
    version = facts["versions"].get(framework, "")
    last = options.settings.max_iters
    print(f"{workload_name(workload, options)} {options.config}: {training.n_params():,} parameters, {work}")
    print(f"data   {data['name']}: {about}, sha256 {data['sha256'][:16]}")
    several = f", {facts['gpus']} processes over {facts['ddp_backend']}" if "gpus" in facts else ""
    print(f"device {device}: {device.name}{several}{threads}, {options.dtype}, {how}")
    print(f"{framework:<6} {version}, Python {platform.python_version()}, seed {options.seed}, to iteration {last}")
    if done:
        print(f"resumed after {done} iterations")


def report_cache(framework: Framework, report: Reporter) -> None:
    """Report the state of the compiler's cache, once the first iteration has compiled."""
    if (cache := framework.cache_state()) is None:
        return
    state, counts = cache
    report.note("compile_cache", state, **counts)
    report.hello(compile_cache=state)
    print(f"compiled; the compiler's cache was {state}")
