"""Checks of --gpus: whether the workload, the device and this machine can run on that number of GPUs."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from queue_runner import config_file, lanes
from queue_runner.errors import UsageError
from queue_runner.spec import JobSpec
from queue_runner.submit import environment_axis
from queue_runner.submit.submit_options import Request

if TYPE_CHECKING:
    from queue_runner.workloads.manifest import Workload

_DROP = "remove --gpus"


def requested(request: Request) -> int:
    """Return the number of GPUs of each run. Raises: UsageError for one that no run can have."""
    if request.gpus is None:
        return 1
    if request.gpus < 1:
        raise UsageError(f"--gpus {request.gpus} is not a number of GPUs", "give 1 or more, or leave it out")
    if request.gpus > 1 and request.find_max is not None:
        raise UsageError("--find-max works with one GPU only", _DROP)
    return request.gpus


def lanes_here(request: Request) -> tuple[str, ...]:
    """Return the lanes of this machine as its settings name them; () without lanes."""
    return lanes.parse(config_file.load(environment_axis.home(request).config).lanes)


def refuse(spec: JobSpec, workload: Workload | None, *, here: bool) -> None:
    """Raise UsageError for a cell that cannot run on its number of GPUs. `workload` is None for a command; `here`:
    whether it runs on this machine."""
    if spec.gpus == 1:
        return
    option = f"--gpus {spec.gpus}"
    if spec.device == "mps":
        raise UsageError(f"{option}: --device mps runs on one GPU only", f"{_DROP}, or --device cpu")
    if spec.device is not None and ":" in spec.device:
        raise UsageError(f"{option}: {spec.device} names one GPU", "--device cuda")
    if workload is not None:
        _refuse_workload(spec, workload, option)
    if here and spec.device in ("cuda", "auto") and 0 < (count := _count()) < spec.gpus:
        raise UsageError(f"{option}: this machine has {count}", f"--gpus {count}" if count > 1 else _DROP)


def _refuse_workload(spec: JobSpec, workload: Workload, option: str) -> None:
    if workload.gpus_divide is None:
        raise UsageError(
            f"{option} does not apply: {workload.name} in {workload.framework} trains in one process",
            f"{_DROP}; nanogpt in torch, or a command that starts its own processes, can use several GPUs",
        )
    values = {name: param.default for name, param in workload.params.items()}
    values |= {**workload.configs.get(spec.config or "", {}), **spec.params}
    if (mode := values.get("mode", "train")) != "train":
        raise UsageError(f"{option}: mode={mode} runs in one process", _DROP)
    key = workload.gpus_divide
    value = int(values.get(key) or 1)
    if value % spec.gpus:
        raise UsageError(
            f"{key}={value} is not divisible by {option}: the processes share the batches of an iteration",
            f"for example --set {key}={spec.gpus * max(1, value // spec.gpus)}; a run on one GPU with that "
            f"{key} trains on the same batches",
        )


@functools.cache
def _count() -> int:
    """Return how many GPUs NVML sees, 0 where it cannot be asked."""
    from queue_runner.host import nvidia

    if (library := nvidia.library()) is None:
        return 0
    gpus = nvidia.Nvml(library)
    try:
        return gpus.count()
    finally:
        gpus.close()
