"""torch as a Framework, and main() of workloads in torch."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from harness import loop
from harness.command_line import Options
from harness.device import Memory
from harness.torch_backend.device import Device, open_device
from harness.torch_backend.training import Training
from harness.training import versions
from mpsq_report import Reporter

if TYPE_CHECKING:
    from harness.framework import Build, Evaluate, Step


def main(
    workload: Mapping[str, Any],
    build: Build,
    step: Step,
    evaluate: Evaluate,
    argv: Sequence[str] | None = None,
    sample: Build | None = None,
    infer: Step | None = None,
) -> int:
    """Run a workload in torch. The arguments and the exit code are those of harness.loop.main."""
    words = sys.argv[1:] if argv is None else argv

    def run(report: Reporter | None = None, failed: Any = None) -> int:
        return loop.main(workload, Torch(), build, step, evaluate, words, sample, infer, report, failed)

    if "MPSQ_RANKS" in os.environ or any(word.partition("=")[0] == "--gpus" for word in words):
        from harness.torch_backend import launch

        return launch.run(workload, words, run)
    return run()


class Torch:
    """torch's side of the harness: a harness.framework.Framework."""

    name = "torch"
    compiler = "torch.compile"

    def __init__(self) -> None:
        self._largest: Memory | None = None
        """the memory of the process with the most, where several train together"""

    def open_device(self, label: str) -> Device:
        return open_device(label)

    def set_up(self, options: Options, device: Device, report: Reporter) -> None:
        if device.kind == "mps":
            from harness.torch_backend import fallbacks

            fallbacks.watch(report)
        if threads := getattr(options.settings, "threads", 0):
            from harness.parallel import check_threads

            check_threads(threads)
            torch.set_num_threads(threads)
        if device.kind == "cuda":
            # fp32 means fp32: by torch's default cuDNN would round the operands of convolutions to 10 bits (TF32)
            torch.backends.cudnn.allow_tf32 = False
            torch.backends.cudnn.benchmark = getattr(options.settings, "cudnn_benchmark", False)

    def facts(self, device: Device) -> dict[str, Any]:
        packages = [name for name in ("transformers",) if name in sys.modules]
        by_name = versions(("numpy", "tiktoken", "triton", *packages)) | {"torch": torch.__version__}
        if device.kind == "cuda":
            by_name |= {"cuda": str(torch.version.cuda), "cudnn": str(torch.backends.cudnn.version())}
        facts = {
            "versions": by_name,
            "threads": torch.get_num_threads(),
            "float32_matmul_precision": torch.get_float32_matmul_precision(),
        }
        if device.kind == "mps":
            facts["recommended_memory_bytes"] = torch.mps.recommended_max_memory()
        if device.group.size > 1:
            facts |= {"gpus": device.group.size, "ddp_backend": device.group.backend}
        return facts

    def read(self, training: Training, loss: torch.Tensor) -> float:
        device = training.device
        if device.group.size == 1:
            return float(loss.item())
        mean, self._largest = device.group.mean_and_largest(float(loss.item()), device.memory())
        return mean

    def memory(self, device: Device) -> Memory:
        return self._largest or device.memory()

    def peak_memory(self, device: Device) -> Memory:
        return device.peak_memory()

    def wait(self, training: Training, loss: Any) -> None:
        training.device.synchronize()

    def cache_state(self) -> tuple[str, dict[str, int]]:
        from harness.torch_backend import compiling

        return compiling.cache_state()

    def after_first(self, training: Training) -> None:
        if training.options.compile_mode:
            from harness.torch_backend import compiling

            compiling.refuse_unused_mode(training.options)
        if training.device.kind == "mps":
            torch.set_warn_always(False)

    def save(self, training: Training, folder: Path, done: int) -> Path | None:
        if training.device.group.rank:
            return None
        from harness.torch_backend import checkpoints

        return checkpoints.save(training, folder / "checkpoint.pt", done)

    def restore(self, training: Training, path: Path) -> int:
        from harness.torch_backend import checkpoints

        return checkpoints.restore(training, path)

    def weights(self, training: Training) -> dict[str, Any]:
        return {name: value.float().cpu().numpy() for name, value in training.model.state_dict().items()}

    @torch.no_grad()
    def put_weights(self, training: Training, weights: Mapping[str, Any]) -> None:
        for name, value in training.model.state_dict().items():
            value.copy_(torch.from_numpy(weights[name]))
