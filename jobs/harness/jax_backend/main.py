"""JAX as a Framework, and main() of workloads in JAX."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from harness import loop
from harness.array_device import Device
from harness.checkpoints import npz
from harness.command_line import Options
from harness.framework import Framework
from harness.jax_backend.device import open_device
from harness.jax_backend.training import Training
from harness.training import versions
from mpsq_report import Reporter

_PLUGINS = ("jax-cuda12-plugin", "jax-cuda13-plugin", "jax-mps")
_ASKED = "/jax/compilation_cache/compile_requests_use_cache"
_HITS = "/jax/compilation_cache/cache_hits"


def main(workload: Mapping[str, Any], *parts: Any, **more: Any) -> int:
    """Run a workload in JAX. The other arguments are those of harness.loop.main."""
    return loop.main(workload, Jax(), *parts, **more)


class Jax(Framework):
    """JAX's side of the harness."""

    name = "jax"
    compiler = "jax.jit"

    def __init__(self) -> None:
        self._events: Counter[str] = Counter()

    def open_device(self, label: str) -> Device:
        return open_device(label)

    def set_up(self, options: Options, device: Device, report: Reporter) -> None:
        if options.dtype == "fp32":  # otherwise a GPU rounds to TF32, unlike torch
            jax.config.update("jax_default_matmul_precision", "highest")
        jax.monitoring.register_event_listener(self._count)

    def _count(self, event: str, **extra: Any) -> None:
        self._events[event] += 1

    def facts(self, device: Device) -> dict[str, Any]:
        return {
            "versions": versions(("jax", "jaxlib", *_PLUGINS, "numpy", "tiktoken")),
            "backend": device.backend,
            "float32_matmul_precision": str(jax.config.jax_default_matmul_precision or "default"),
        }

    def wait(self, training: Training, loss: Any) -> None:
        jax.block_until_ready((loss, training.params, training.state))

    def cache_state(self) -> tuple[str, dict[str, int]]:
        """Return the state of the compilation cache: cold without JAX_COMPILATION_CACHE_DIR, which keeps nothing."""
        requests, hits = self._events[_ASKED], self._events[_HITS]
        counts = {"cache_hits": hits, "cache_misses": requests - hits}
        state = "cold" if not hits else "warm" if hits == requests else "mixed"
        return state, {name: count for name, count in counts.items() if count}

    def save(self, training: Training, folder: Path, done: int) -> Path:
        path = folder / "checkpoint.npz"
        npz.save(path, _named(training), done, training.data["sha256"])
        return path

    def restore(self, training: Training, path: Path) -> int:
        like = {name: value.shape for name, value in _named(training).items()}
        done, arrays = npz.load(path, like, training.data["sha256"])
        leaves = jax.device_put(list(map(arrays.__getitem__, like)), training.device.handle)
        tree = jax.tree.structure((training.params, training.state))
        training.params, training.state = jax.tree.unflatten(tree, leaves)
        return done

    def weights(self, training: Training) -> dict[str, Any]:
        return {name: np.asarray(value, np.float32) for name, value in training.params.items()}

    def put_weights(self, training: Training, weights: Mapping[str, Any]) -> None:
        training.params = jax.device_put(dict(weights), training.device.handle)


def _named(training: Training) -> dict[str, Any]:
    """Return every array of weights and optimizer by its path in the tree, in the order of the tree."""
    leaves, _ = jax.tree_util.tree_flatten_with_path((training.params, training.state))
    return {jax.tree_util.keystr(path): value for path, value in leaves}
