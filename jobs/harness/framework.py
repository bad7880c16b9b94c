"""What a framework gives to the harness: a class each in the main.py of torch_backend, mlx_backend, tinygrad_backend
and jax_backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from harness.command_line import Options
from harness.training import Training
from mpsq_report import Reporter

Build = Callable[[Options, Any], Any]
"""(options, device) to a Training of the framework: all that is done once"""
Step = Callable[[Any, int], Any]
"""(training, i) to the loss of iteration i, in the framework's own type, not waited for"""
Evaluate = Callable[[Any, str], Mapping[str, float]]
"""(training, split) to measures of the model on that split of the data"""


class Framework(Protocol):
    """A framework's side of the course that run.py prescribes."""

    name: str
    """of the package, as it is imported and as versions are listed under it"""
    compiler: str
    """what --compile on means, in a word"""

    def open_device(self, asked: str) -> Any:
        """The device called cpu, cuda, cuda:1, mps or auto. Raises: JobError with exit code 69 when it does not
        compute."""

    def set_up(self, options: Options, device: Any, report: Reporter) -> None:
        """Called once, before hello. Raises: UsageError for options that this framework cannot meet."""

    def facts(self, device: Any) -> Mapping[str, Any]:
        """Further fields of hello: versions (by name, with the framework's own), threads, ..."""

    def memory(self, device: Any) -> tuple[int | None, int | None]:
        """Bytes in arrays and bytes taken from the system, now; None on the CPU."""

    def wait(self, training: Training, loss: Any) -> None:
        """Return when all that an iteration asked for is computed: its loss, the weights, the optimizer's state.

        Called before both readings of the clock; `loss` is None before the first iteration.
        """

    def cache_state(self) -> tuple[str, dict[str, int]] | None:
        """cold, warm or mixed, and the counts that say so; None where this framework keeps nothing between runs.

        Called once, after a first iteration with --compile on.
        """

    def after_first(self, training: Training) -> None:
        """Called once, when the process's first iteration is over."""

    def save(self, training: Training, folder: Path, done: int) -> Path:
        """Write a checkpoint after `done` iterations. Returns its path. Raises: JobError."""

    def restore(self, training: Training, path: Path) -> int:
        """Go on where the checkpoint was written. Returns how many iterations are done. Raises: JobError."""

    def weights(self, training: Training) -> Mapping[str, Any] | None:
        """The weights by name as numpy arrays, for weights.npz; None where a workload's have no such names."""
