"""MLX as a Framework, and main() of workloads in MLX."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten

from harness import loop
from harness.array_device import Device
from harness.checkpoints import npz
from harness.command_line import Options
from harness.framework import Framework
from harness.mlx_backend.device import open_device
from harness.mlx_backend.training import Training, named
from harness.training import versions
from mpsq_report import Reporter

_BACKENDS = ("mlx-metal", "mlx-cpu", "mlx-cuda-12", "mlx-cuda-13")


def main(workload: Mapping[str, Any], *parts: Any, **more: Any) -> int:
    """Run a workload in MLX. The other arguments are those of harness.loop.main."""
    return loop.main(workload, Mlx(), *parts, **more)


class Mlx(Framework):
    """MLX's side of the harness."""

    name = "mlx"
    compiler = "mx.compile"

    def __init__(self) -> None:
        self._before: int | None = None

    def open_device(self, label: str) -> Device:
        return open_device(label)

    def set_up(self, options: Options, device: Device, report: Reporter) -> None:
        self._before = _kept() if device.kind == "cpu" else None

    def facts(self, device: Device) -> dict[str, Any]:
        recommended = mx.device_info().get("max_recommended_working_set_size")
        return {
            "versions": versions(("mlx", "mlx-metal", "mlx-cpu", "mlx-cuda-12", "mlx-cuda-13", "numpy", "tiktoken")),
            "backend": device.backend,
            **({"recommended_memory_bytes": recommended} if device.kind == "mps" and recommended else {}),
            "float32_matmul_precision": "highest" if os.environ.get("MLX_ENABLE_TF32") == "0" else "default",
        }

    def wait(self, training: Training, loss: Any) -> None:
        """Evaluate loss, weights and optimizer, since MLX is lazy, and wait for them."""
        mx.eval(loss, training.model.parameters(), training.optimizer.state)
        mx.synchronize()

    def cache_state(self) -> tuple[str, dict[str, int]] | None:
        """Return the state of the kernel cache in the folder of temporary files, which MLX has on the CPU only; None
        elsewhere.

        It is mixed as well if all kernels in it belong to another program.
        """
        if self._before is None:
            return None
        new = _kept() - self._before
        state = "warm" if not new else "mixed" if self._before else "cold"
        return state, {"cache_misses": new} if new else {}

    def save(self, training: Training, folder: Path, done: int) -> Path:
        path = folder / "checkpoint.npz"
        npz.save(path, named(training), done, training.data["sha256"])
        return path

    def restore(self, training: Training, path: Path) -> int:
        like = {name: tuple(value.shape) for name, value in named(training).items()}
        done, arrays = npz.load(path, like, training.data["sha256"])
        weights, state = (
            tree_unflatten(
                [(name.removeprefix(part), mx.array(arrays[name])) for name in like if name.startswith(part)]
            )
            for part in ("weights.", "optimizer.")
        )
        training.model.update(weights)
        for optimizer, its in zip(training.optimizer.optimizers, state["states"], strict=True):
            optimizer.state.update(its)  # in place: a compiled update holds references to these dicts
        return done

    def weights(self, training: Training) -> dict[str, Any]:
        return {name: np.array(value, np.float32) for name, value in tree_flatten(training.model.parameters())}

    def put_weights(self, training: Training, weights: Mapping[str, Any]) -> None:
        training.model.update(tree_unflatten([(name, mx.array(value)) for name, value in weights.items()]))


def _kept() -> int:
    return sum(1 for _ in Path(tempfile.gettempdir(), "mlx", mx.__version__, "cpu").glob("*.so"))
