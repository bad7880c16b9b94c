"""Time the iterations of a loop that calls back, such as a trainer's (docs/protocol.md).

    watch = Watch(report, **of_torch(device))
    watch.start()               # the next iteration begins: its batch is fetched from here on
    watch.stop(i, loss)         # it is over
    watch.pause("eval")         # an evaluation begins, outside of all iterations; the next start() ends it
    watch.close()

The device is waited for before both readings of the clock, as the methodology requires. If nobody listens, nothing is
waited for, read or written. Used by mpsq_report_transformers and mpsq_report_lightning; needs mpsq_report beside it.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import platform
import sys
import time
from collections.abc import Callable
from importlib import metadata
from typing import Any, NamedTuple, TypeVar

from mpsq_report import Reporter

WARMUP_ITERS = 10
"""Default number of iterations after the first that are not measured."""

Call = TypeVar("Call", bound=Callable[..., Any])


class Iteration(NamedTuple):
    """A finished iteration. `loss` is None if it is not known."""

    i: int
    dur_s: float
    loss: float | None
    phase: str
    memory: tuple[int | None, int | None]
    """bytes in tensors, and taken from the system"""


def _nothing() -> None:
    """Do nothing: on the CPU a call returns when it has finished."""


def _no_memory() -> tuple[None, None]:
    return None, None


class Watch:
    """The clock of one training. `on_iteration` receives each iteration once it is reported, while no clock runs."""

    def __init__(
        self,
        report: Reporter,
        synchronize: Callable[[], None] = _nothing,
        memory: Callable[[], tuple[int | None, int | None]] = _no_memory,
        *,
        warmup_iters: int = WARMUP_ITERS,
        compiled: bool = False,
        on_iteration: Callable[[Iteration], None] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.report = report
        self._synchronize, self._memory, self._clock = synchronize, memory, clock
        self._warmup_iters, self._compiled, self._on_iteration = warmup_iters, compiled, on_iteration
        self._begun: float | None = None
        self._over: Iteration | None = None
        self._done = 0
        self._diverged = False
        self._phase = ""
        self._paused = ""

    @property
    def active(self) -> bool:
        """Return whether anybody receives the iterations."""
        return self._on_iteration is not None or self.report.active

    @property
    def running(self) -> bool:
        """Return whether an iteration has begun."""
        return self._begun is not None

    @property
    def waiting(self) -> bool:
        """Return whether an iteration is over whose loss may still be given."""
        return self._over is not None

    def start(self) -> None:
        """Begin an iteration. A second call before stop() begins it again: the time between belongs to none."""
        if not self.active:
            return
        self.resume()
        phase = self._phase_of(self._done)
        if phase != self._phase:
            self._leave()
            self.report.begin(phase)
            self._phase = phase
        self._synchronize()
        self._begun = self._clock()

    def stop(self, i: int, loss: float | None = None, *, loss_follows: bool = False) -> None:
        """End iteration `i`. With `loss_follows` it is reported when loss() gives the loss, or at the next call."""
        if self._begun is None:
            return
        self._synchronize()
        dur_s = self._clock() - self._begun
        self._begun = None
        self._over = Iteration(i, dur_s, loss, self._phase, self._memory())
        self._done += 1
        if not loss_follows:
            self._flush()

    def drop(self) -> None:
        """Discard the iteration that has begun, because it is not like the others."""
        self._begun = None

    def loss(self, value: float) -> None:
        """Give the loss of the iteration that is over."""
        if self._over is not None:
            self._over = self._over._replace(loss=value)
            self._flush()

    def pause(self, name: str) -> None:
        """Begin something that belongs to no iteration: an evaluation (eval), a checkpoint, further setup."""
        if not self.active or name == self._paused:
            return
        self.resume()
        self._begun = None
        self.report.begin(name)
        self._paused = name

    def resume(self) -> None:
        """End what pause() began."""
        self._flush()
        if self._paused:
            self.report.end(self._paused)
            self._paused = ""

    def close(self) -> None:
        """End the training."""
        self.resume()
        self._begun = None
        self._leave()

    def _phase_of(self, number: int) -> str:
        if number == 0 and self._compiled:
            return "compile"
        return "warmup" if number <= self._warmup_iters else "measure"

    def _leave(self) -> None:
        if self._phase:
            self.report.end(self._phase)
            self._phase = ""

    def _flush(self) -> None:
        if (over := self._over) is None:
            return
        self._over = None
        if over.loss is not None and not math.isfinite(over.loss) and not self._diverged:
            self._diverged = True
            self.report.note("nan_loss", f"the loss of iteration {over.i} is {over.loss}")
        self.report.iter(over.i, over.dur_s, over.loss, True, over.phase, *over.memory)
        if self._on_iteration is not None:
            self._on_iteration(over)


def of_torch(device: Any) -> dict[str, Callable[[], Any]]:
    """Return how a torch.device is synchronised and its memory read: arguments of Watch.

    torch is imported already, by the code that made the device.
    """
    torch = sys.modules["torch"]
    if device.type == "cuda":
        return {
            "synchronize": lambda: torch.cuda.synchronize(device),
            "memory": lambda: (torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)),
        }
    if device.type == "mps":
        return {
            "synchronize": torch.mps.synchronize,
            "memory": lambda: (torch.mps.current_allocated_memory(), torch.mps.driver_allocated_memory()),
        }
    if device.type == "cpu":
        return {}
    return {"synchronize": lambda: torch.accelerator.synchronize(device)}


def facts_of_torch(device: Any, packages: tuple[str, ...]) -> dict[str, Any]:
    """Return hello's versions, device and device_name; `packages` are further ones whose versions matter."""
    torch = sys.modules["torch"]
    versions = {"python": platform.python_version(), "torch": str(torch.__version__)}
    for name in packages:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    facts: dict[str, Any] = {"versions": versions, "device": str(device), "threads": torch.get_num_threads()}
    if device.type == "cuda":
        versions["cuda"] = str(torch.version.cuda)
        facts["device_name"] = torch.cuda.get_device_name(device)
    elif device.type == "mps":
        with contextlib.suppress(AttributeError, RuntimeError):  # get_name() came with 2.10 or so
            facts["device_name"] = str(torch.backends.mps.get_name())
        with contextlib.suppress(AttributeError, RuntimeError):  # it came with 2.5
            facts["recommended_memory_bytes"] = torch.mps.recommended_max_memory()
    return facts


def fused_trouble(kind: str, dtype: str) -> str:
    """Return why a fused optimizer is wrong with the GradScaler of fp16: on mps torch before 2.13 passes it neither the
    scale, so that steps are about 65,536 times too far, nor that a step must be skipped. Empty if it is right."""
    import torch

    if kind != "mps" or dtype != "fp16" or torch.__version__ >= (2, 13):
        return ""
    return f"a fused optimizer of torch {torch.__version__} on mps ignores the loss scaling of fp16 (issue 186360)"


def is_compiled(model: Any) -> bool:
    """Return whether a torch module or a part of it was compiled by torch.compile; Lightning sets _compiler_ctx."""
    return getattr(model, "_compiler_ctx", None) is not None or any(
        hasattr(part, "_orig_mod") or getattr(part, "_compiled_call_impl", None) is not None
        for part in (model.modules() if hasattr(model, "modules") else ())
    )


def is_first_process() -> bool:
    """Return whether this process reports for those that train together, by the numbers that torchrun, accelerate and
    Lightning give them."""
    return all(os.environ.get(name, "0") == "0" for name in ("RANK", "LOCAL_RANK", "NODE_RANK"))


def harmless(method: Call) -> Call:
    """Wrap a method of a callback so that it never raises into the training: the first error is printed and ends the
    reporting.

    Its object has `off`, which is False until then.
    """

    @functools.wraps(method)
    def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.off:
            return None
        try:
            return method(self, *args, **kwargs)
        except Exception as error:
            self.off = True
            with contextlib.suppress(Exception):
                reason = f"{type(self).__name__}.{method.__name__}: {error!r}"
                print(f"mpsq_report: {reason}; the training goes on, unreported", file=sys.stderr, flush=True)
            return None

    return guarded  # type: ignore[return-value]
