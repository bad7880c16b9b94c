"""The result of build() of a workload, as far as the harness needs it in every framework."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from harness.command_line import Options

TOLERANCE_NATS = {"fp32": 1e-3, "fp16": 2e-2, "bf16": 5e-2}
"""How far the first loss may be from the CPU's in fp32. Sums in another order differ by 1e-5 or so in fp32; 8 bits of
mantissa cost bf16 about 1e-2 before averaging; what a wrong kernel does is larger by far."""

REFERENCE = "reference_loss"
"""Name under which the reference loss is kept (prepared.py)."""

REFERENCE_ROWS = 8
"""Rows of a batch that the CPU evaluates at once for the reference loss: a batch that fills a GPU may be too large for
the host."""


class Reference(Protocol):
    """The loss of one batch at the initial weights, dropout off."""

    cpu: float | None
    """computed on the CPU in fp32, uncompiled, and taken as true; None if the framework has no CPU here"""

    def again(self, training: Any) -> float:
        """Compute the CPU's loss anew, when the device contradicts a kept one. Called after the first iteration; leaves
        the training as it is. `cpu` is not None then."""

    def on_device(self, training: Any) -> float:
        """Return the loss as the training computes it, in its dtype, compiled if it is. The weights are restored after
        it.

        Called after the first iteration, so that this one pays for compilation and the first use of kernels as in any
        training; hence the weights are exchanged for a moment.
        """


class Named(Protocol):
    """A device as it is shown: str() of it is cpu, cuda:1 or mps."""

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> str: ...


@dataclass(kw_only=True)
class Training:
    """A model in training on one device. Frameworks and workloads add fields."""

    options: Options
    device: Any
    optimizer_name: str
    reference: Reference
    data: Mapping[str, Any]
    """fields of hello about the data: name, sha256 and others"""
    flops_per_iter: float
    per_iter: int
    """tokens or samples in an iteration"""
    loss_unit: str = "nats"
    loss_slope: float = 1.0
    """by how much an error of the model's output changes the loss: about 1 for a cross-entropy"""

    def n_params(self) -> int:
        """Return the number of trained parameters."""
        raise NotImplementedError

    def warm_evaluation(self) -> None:
        """Compile what evaluations run, if the reference's forward has not, so that the first evaluation does not pay
        for it.

        Called once, after the first iteration of a compiled training that will evaluate.
        """
