"""torch as a Framework, and main() of workloads in torch."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from harness import errors, hello, processes, run
from harness.command_line import Options
from harness.framework import Framework
from harness.processes import refuse_threads
from harness.torch_backend import compiling, ddp, launch
from harness.torch_backend.device import Device, open_device
from harness.torch_backend.training import Training
from harness.torch_backend.training import load as load_checkpoint
from harness.torch_backend.training import restore as restore_state
from harness.torch_backend.training import save as save_checkpoint
from mpsq_report import Reporter


def main(workload: Mapping[str, Any], *parts: Any, **more: Any) -> int:
    """Run a workload in torch. The arguments and the exit code are those of harness.run.main, less its framework."""
    if (code := launch.ranks(workload, more.get("argv"))) is not None:
        return code
    if processes.rank():
        processes.mute()
    code = run.main(workload, Torch(), *parts, **more)
    if processes.is_rank():
        ddp.leave(code)
    return code


class Torch(Framework):
    """torch's side of the harness."""

    name = "torch"
    compiler = "torch.compile"

    def __init__(self) -> None:
        self._most: tuple[int | None, int | None] | None = None

    def open_device(self, asked: str) -> Device:
        return open_device(asked)

    def set_up(self, options: Options, device: Device, report: Reporter) -> None:
        _watch_warnings(report, device)
        if threads := getattr(options.settings, "threads", 0):
            refuse_threads(threads)
            torch.set_num_threads(threads)
        if device.kind == "cuda":
            # fp32 means fp32: by torch's default cuDNN would round the operands of convolutions to 10 bits (TF32)
            torch.backends.cudnn.allow_tf32 = False
            torch.backends.cudnn.benchmark = getattr(options.settings, "cudnn_benchmark", False)

    def facts(self, device: Device) -> dict[str, Any]:
        used = [name for name in ("transformers",) if name in sys.modules]
        versions = hello.versions(("numpy", "tiktoken", "triton", *used)) | {"torch": torch.__version__}
        if device.kind == "cuda":
            versions |= {"cuda": str(torch.version.cuda), "cudnn": str(torch.backends.cudnn.version())}
        return {
            "versions": versions,
            "threads": torch.get_num_threads(),
            "float32_matmul_precision": torch.get_float32_matmul_precision(),
            **({"recommended_memory_bytes": torch.mps.recommended_max_memory()} if device.kind == "mps" else {}),
            **({"gpus": device.group.size, "ddp_backend": device.group.backend} if device.group.size > 1 else {}),
        }

    def read(self, training: Training, loss: Any) -> float:
        device = training.device
        if device.group.size == 1:
            return super().read(training, loss)
        sizes = (math.nan if size is None else float(size) for size in device.memory())
        losses, allocated, reserved = zip(*device.group.gather(float(loss.item()), *sizes), strict=True)
        self._most = _largest(allocated), _largest(reserved)
        return sum(losses) / len(losses)

    def memory(self, device: Device) -> tuple[int | None, int | None]:
        return self._most or device.memory()

    def peak_memory(self, device: Device) -> tuple[int | None, int | None]:
        return device.peak_memory()

    def wait(self, training: Training, loss: Any) -> None:
        training.device.synchronize()

    def cache_state(self) -> tuple[str, dict[str, int]]:
        return compiling.cache_state()

    def after_first(self, training: Training) -> None:
        compiling.refuse_unused_mode(training.options)
        if training.device.kind == "mps":
            torch.set_warn_always(False)

    def save(self, training: Training, folder: Path, done: int) -> Path:
        path = folder / "checkpoint.pt"
        save_checkpoint(training, path, done)
        return path

    def restore(self, training: Training, path: Path) -> int:
        state = load_checkpoint(path, training.model, training.data["sha256"])
        restore_state(training, state)
        done = int(state["done"])
        if (
            number := training.device.group.rank
        ):  # the random numbers in the checkpoint, of dropout, are those of rank 0
            torch.manual_seed(training.options.seed + number + done)
        return done

    def weights(self, training: Training) -> dict[str, Any]:
        return {name: value.float().cpu().numpy() for name, value in training.model.state_dict().items()}

    @torch.no_grad()
    def put_weights(self, training: Training, weights: Mapping[str, Any]) -> None:
        for name, value in training.model.state_dict().items():
            value.copy_(torch.from_numpy(weights[name]))


def _largest(sizes: Sequence[float]) -> int | None:
    """Return the bytes of the process that has most; None if they are unknown."""
    return None if any(map(math.isnan, sizes)) else int(max(sizes))


def _watch_warnings(report: Reporter, device: Device) -> None:
    """Report each operator that MPS falls back to the CPU for, once.

    torch warns of the first one only, unless told to warn always: so it is in the first iteration, which runs them all.
    """
    show, seen = warnings.showwarning, set[str]()

    def tell(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: Any = None,
        line: str | None = None,
    ) -> None:
        found = errors.FALLBACK.search(str(message))
        if found:
            if found[1] in seen:
                return
            seen.add(found[1])
            report.note("op_fallback", f"{found[1]} has no MPS kernel: the CPU computed it", op=found[1])
        show(message, category, filename, lineno, file, line)

    warnings.showwarning = tell
    warnings.filterwarnings("always", message="The operator '")
    if device.kind == "mps":
        torch.set_warn_always(True)
