"""tinygrad as a Framework, and main() of workloads in tinygrad."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tinygrad import Device as devices
from tinygrad import Tensor
from tinygrad.helpers import CACHEDB, NUM_CPU_THREADS

from harness import loop
from harness.array_device import Device
from harness.checkpoints import npz
from harness.command_line import Options
from harness.errors import UsageError
from harness.framework import Framework
from harness.tinygrad_backend.device import open_device, why_not_dtype
from harness.tinygrad_backend.training import DTYPES, Training, named, put
from harness.training import versions
from mpsq_report import Reporter


def main(workload: Mapping[str, Any], *parts: Any, **more: Any) -> int:
    """Run a workload in tinygrad. The other arguments are those of harness.loop.main."""
    return loop.main(workload, Tinygrad(), *parts, **more)


class Tinygrad(Framework):
    """tinygrad's side of the harness."""

    name = "tinygrad"
    compiler = "TinyJit"

    def __init__(self) -> None:
        self._before = _kept()

    def open_device(self, label: str) -> Device:
        return open_device(label)

    def set_up(self, options: Options, device: Device, report: Reporter) -> None:
        if options.compile and options.settings.warmup_iters < 1:
            raise UsageError(
                "warmup_iters=0: TinyJit captures its kernels in the second iteration, which would be measured",
                "warmup_iters must be at least 1 with --compile on",
            )
        if reason := why_not_dtype(str(device), DTYPES[options.dtype]):
            raise UsageError(
                f"tinygrad cannot multiply in {options.dtype} on {device} here: {reason}",
                "--dtype fp32; on an x86 processor bf16 needs clang 15 or newer",
            )

    def facts(self, device: Device) -> dict[str, Any]:
        return {
            "versions": versions(("tinygrad", "numpy", "tiktoken")),
            "backend": device.backend,
            "float32_matmul_precision": "highest",  # unless ALLOW_TF32 is set, which is recorded with the environment
            **({"threads": NUM_CPU_THREADS.value} if device.kind == "cpu" else {}),
        }

    def wait(self, training: Training, loss: Any) -> None:
        """Realize loss, weights and optimizer, since tinygrad is lazy, and wait for them."""
        if loss is not None:
            Tensor.realize(loss, *named(training).values())
        devices[training.device.handle].synchronize()

    def cache_state(self) -> tuple[str, dict[str, int]]:
        """Return the state of the kernel cache, which tinygrad keeps with and without compilation.

        It is mixed as well if all kernels in it belong to another program.
        """
        new = _kept() - self._before
        state = "warm" if not new else "mixed" if self._before else "cold"
        return state, {"cache_misses": new} if new else {}

    def save(self, training: Training, folder: Path, done: int) -> Path:
        path = folder / "checkpoint.npz"
        arrays = {name: value.numpy() for name, value in named(training).items()}
        npz.save(path, arrays, done, training.data["sha256"])
        return path

    def restore(self, training: Training, path: Path) -> int:
        tensors = named(training)
        like = {name: tuple(map(int, value.shape)) for name, value in tensors.items()}
        done, arrays = npz.load(path, like, training.data["sha256"])
        put(tensors, arrays)
        Tensor.manual_seed((training.options.seed + done) % 2**32)  # otherwise dropout would repeat the first masks
        return done

    def weights(self, training: Training) -> dict[str, Any]:
        return {name: value.numpy().astype(np.float32) for name, value in training.params.items()}

    def put_weights(self, training: Training, weights: Mapping[str, Any]) -> None:
        put(training.params, weights)


def _kept() -> int:
    """Return the number of kernels in tinygrad's cache: the rows of its tables compile_*."""
    with contextlib.suppress(sqlite3.Error), sqlite3.connect(f"file:{CACHEDB}?mode=ro", uri=True) as database:
        tables = database.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'compile%'")
        return sum(database.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0] for (name,) in tables.fetchall())
    return 0
