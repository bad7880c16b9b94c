"""The interface of a framework: a class in main.py of torch_backend, mlx_backend, tinygrad_backend, jax_backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from harness.command_line import Options
from harness.device import Memory
from harness.training import Training
from mpsq_report import Reporter

Build = Callable[[Options, Any], Any]
"""(options, device) to a Training of the framework: everything done before the first iteration"""
Step = Callable[[Any, int], Any]
"""(training, i) to the loss of iteration i, in the framework's own type, not waited for"""
Evaluate = Callable[[Any, str], Mapping[str, float]]
"""(training, split) to measures of the model on that split of the data"""


class NamedDevice(Protocol):
    """A device as it is printed: str() of it is cpu, cuda:1 or mps."""

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> str: ...


class Reference(Protocol):
    """The loss of one batch at the initial weights, dropout off."""

    cpu: float | None
    """computed on the CPU in fp32, uncompiled, and taken as true; None if the framework has no CPU here, or the run is
    not to be checked"""

    def again(self, training: Any) -> float:
        """Compute the CPU's loss anew, when the device contradicts a kept one. Called after the first iteration; leaves
        the training as it is. `cpu` is not None then."""

    def on_device(self, training: Any) -> float | None:
        """Return the loss as the training computes it, in its dtype, compiled if it is. The weights are restored after
        it.

        Called after the first iteration, so that this one pays for compilation and the first use of kernels as in any
        training; hence the weights are exchanged for a moment.
        """


class Framework(Protocol):
    """The operations that loop.py needs of a framework."""

    name: str
    """of the package, as it is imported and as versions are listed under it"""
    compiler: str
    """what --compile on means, in a word"""

    def open_device(self, label: str) -> Any:
        """Return the device called cpu, cuda, cuda:1, mps or auto. Raises: JobError with exit code 69 if it does not
        compute."""

    def set_up(self, options: Options, device: Any, report: Reporter) -> None:
        """Configure the framework, once, before hello. Raises: UsageError for options that it does not support."""

    def facts(self, device: Any) -> Mapping[str, Any]:
        """Return further fields of hello: versions (by name, the framework's included), threads, ..."""

    def memory(self, device: Any) -> Memory:
        """Return the bytes in arrays and the bytes taken from the system, now; (None, RSS) on the CPU."""
        memory: Memory = device.memory()
        return memory

    def peak_memory(self, device: Any) -> Memory:
        """Return the most of both since the process began, counted by the framework within iterations as well; None
        where it does not count it, and where memory() has it already."""
        return None, None

    def read(self, training: Training, loss: Any) -> float:
        """Return the loss of an iteration as a number; of several processes their mean."""
        return float(loss.item())

    def wait(self, training: Training, loss: Any) -> None:
        """Return when the loss, the weights and the optimizer's state of an iteration are computed.

        Called before both readings of the clock; `loss` is None before the first iteration.
        """

    def cache_state(self) -> tuple[str, dict[str, int]] | None:
        """Return cold, warm or mixed, and the counts behind it; None if the framework keeps no cache between runs.

        Called once, after the first iteration with --compile on.
        """

    def after_first(self, training: Training) -> None:
        """Called once, when the first iteration of the process is over. Does nothing by default."""

    def save(self, training: Training, folder: Path, done: int) -> Path | None:
        """Write a checkpoint after `done` iterations and return its path; None if another process writes it. Raises:
        JobError."""

    def restore(self, training: Training, path: Path) -> int:
        """Load a checkpoint and return the number of iterations done. Raises: JobError."""

    def weights(self, training: Training) -> Mapping[str, Any] | None:
        """Return the weights by name as numpy arrays, for weights.npz; None if the workload's have no common names."""

    def put_weights(self, training: Training, weights: Mapping[str, Any]) -> None:
        """Write what weights() returned into the model; the optimizer's state stays as it is."""
