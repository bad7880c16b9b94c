"""Report a training under Lightning's Trainer to mpsq: one callback in your own script, nothing else changes.

    import lightning as L
    import mpsq_report

    trainer = L.Trainer(..., callbacks=[mpsq_report.LightningCallback(workload="mine", tokens_per_iter=16384)])

Beside mpsq_report.py this one file is all that is needed; without MPSQ_EVENTS the callback does nothing, and it never
raises into training. Written against Lightning 2.6, as `lightning` or `pytorch_lightning`.

An iteration is an update of the weights: with accumulate_grad_batches=4 that is four batches. Its time goes from the end
of the one before to its own end, the device waited for at both: so it holds the fetching of batches and whatever the
Trainer, its loggers, bars and other callbacks do between two batches. Not in it: validation, checkpoints, the time
between two epochs, and this callback's own reports. Behind a checkpoint it begins with its batch at hand, because
Lightning does not say when the writing is over.
"""

from __future__ import annotations

import atexit
import functools
import platform
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from mpsq_report import Reporter

if "pytorch_lightning" in sys.modules and "lightning" not in sys.modules:
    import pytorch_lightning as pl
else:
    import lightning.pytorch as pl

DTYPES = {"32": "fp32", "32-true": "fp32", "16-mixed": "fp16", "16-true": "fp16", "bf16-mixed": "bf16",
          "bf16-true": "bf16", "64": "fp64", "64-true": "fp64"}  # fmt: skip
"""Lightning's names of precisions, and the queue's."""


def _safely(hook: Callable[..., None]) -> Callable[..., None]:
    """The hook, which ends the reporting when something in it fails, and never the training."""

    @functools.wraps(hook)
    def safe(self: LightningCallback, *args: Any, **kwargs: Any) -> None:
        if not self._on:
            return
        try:
            hook(self, *args, **kwargs)
        except Exception as error:
            self._on = False
            print(
                f"mpsq_report: {type(error).__name__} in LightningCallback.{hook.__name__}: {error}; the training goes "
                "on, its events are no longer reported",
                file=sys.stderr,
            )

    return safe


class LightningCallback(pl.Callback):
    """Reports a fit: who trains, phases, every iteration with its loss, validations, tests.

    workload: its name in the queue's reports
    warmup_iters: how many iterations behind the first are not to be measured
    further fields are those of hello: tokens_per_iter, samples_per_iter, flops_per_iter, config, seed, ...
    """

    def __init__(self, workload: str = "lightning", warmup_iters: int = 10, **hello: Any) -> None:
        self._report = Reporter()
        self._on = self._report.active
        self._hello = {"workload": workload, **hello}
        self._warmup_iters = warmup_iters
        self._phases: list[str] = []
        self._first = self._i = -1
        self._step = 0
        self._compiles = False
        self._losses: list[torch.Tensor] = []
        self._spent_s, self._since = 0.0, None
        self._synchronize: Callable[[], None] | None = None
        self._evaluation_began = 0.0
        self._failed = False
        if self._on:
            self._begin("setup", since_start=True)
            atexit.register(self._bye)

    # The hooks, in the order of a fit.

    @_safely
    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self._on = trainer.is_global_zero  # one process speaks for all
        self._synchronize = _waits_for(trainer.strategy.root_device)

    @_safely
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Behind the sanity check, before the first batch."""
        self._compiles = _is_compiled(pl_module)
        self._step = trainer.global_step
        if self._i < trainer.global_step:  # else a second fit of this process: numbered on
            self._i = trainer.global_step
        self._first = self._i
        self._report.hello(**self._facts(trainer, pl_module) | self._hello)
        if (reason := why_not_mps(trainer.strategy.root_device)) is not None:
            self._report.note("mps_unused", reason)
        self._end("setup")

    @_safely
    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._enter(self._phase())
        self._resume()

    @_safely
    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, i: int) -> None:
        if "checkpoint" in self._phases:
            self._end("checkpoint")
            self._resume()

    @_safely
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, i: int
    ) -> None:
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if isinstance(loss, torch.Tensor):
            self._losses.append(loss.detach())
        if trainer.global_step == self._step:
            return  # gradients are still being added up
        self._step = trainer.global_step
        self._pause()
        phase, dur_s = self._phase(), self._spent_s
        self._enter(phase)
        memory = _memory(trainer.strategy.root_device)
        total = sum(float(one) for one in self._losses) if self._losses else None
        if total is not None and not pl_module.automatic_optimization:  # else Lightning has divided each by their number
            total /= len(self._losses)
        self._report.iter(self._i, dur_s, total, self._synchronize is not None, phase, *memory)
        self._i += 1
        self._losses, self._spent_s = [], 0.0
        self._enter(self._phase())
        self._resume()

    @_safely
    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._evaluate_from(trainer)

    @_safely
    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._evaluated(trainer, "val")

    @_safely
    def on_test_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._evaluate_from(trainer)

    @_safely
    def on_test_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._evaluated(trainer, "test")

    @_safely
    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        if self._since is not None:
            self._pause()
            self._begin("checkpoint")

    @_safely
    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._pause()

    @_safely
    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._close()

    @_safely
    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._failed = True
        kind = "oom" if "out of memory" in str(exception).lower() else "error"
        self._report.note(kind, f"{type(exception).__name__}: {exception}")
        self._close()

    # What they share.

    def _facts(self, trainer: pl.Trainer, module: pl.LightningModule) -> dict[str, Any]:
        device, planned = trainer.strategy.root_device, trainer.max_steps
        if planned < 0:
            planned = trainer.estimated_stepping_batches  # of all epochs; inf where nothing ends
        batch = getattr(trainer.train_dataloader, "batch_size", None)
        facts: dict[str, Any] = {
            "framework": "torch",
            "versions": {"python": platform.python_version(), "torch": torch.__version__, "lightning": pl.__version__},
            "device": device.type if device.type == "mps" else str(device),
            "device_name": _device_name(device),
            "dtype": DTYPES.get(str(trainer.precision), str(trainer.precision)),
            "params": sum(p.numel() for p in module.parameters() if p.requires_grad),
            "optimizer": ", ".join(_optimizer_name(optimizer) for optimizer in trainer.optimizers),
            "compile": self._compiles,
            "accumulate_grad_batches": trainer.accumulate_grad_batches,
            "processes": trainer.world_size,
        }
        if isinstance(planned, int) and planned > 0:
            facts["planned_iters"] = planned
        if isinstance(batch, int) and not self._hello.keys() & {"samples_per_iter", "tokens_per_iter"}:
            facts["samples_per_iter"] = batch * trainer.accumulate_grad_batches * trainer.world_size
        return facts

    def _phase(self) -> str:
        """Of the iteration that comes next."""
        behind = self._i - self._first
        if behind == 0 and self._compiles:
            return "compile"
        return "warmup" if behind <= self._warmup_iters else "measure"

    def _resume(self) -> None:
        if self._synchronize is not None:
            self._synchronize()
        self._since = time.perf_counter()

    def _pause(self) -> None:
        if self._since is None:
            return
        if self._synchronize is not None:
            self._synchronize()
        self._spent_s += time.perf_counter() - self._since
        self._since = None

    def _evaluate_from(self, trainer: pl.Trainer) -> None:
        if trainer.sanity_checking:
            return  # a part of setup
        self._pause()
        self._begin("eval")
        if self._synchronize is not None:
            self._synchronize()
        self._evaluation_began = time.perf_counter()

    def _evaluated(self, trainer: pl.Trainer, split: str) -> None:
        if trainer.sanity_checking:
            return
        if self._synchronize is not None:
            self._synchronize()
        dur_s = time.perf_counter() - self._evaluation_began
        metrics = {name: float(value) for name, value in trainer.logged_metrics.items() if _is_of(name, split)}
        metrics |= {name: float(value) for name, value in trainer.callback_metrics.items() if _is_of(name, split)}
        self._report.eval(max(self._i, 0), split, {_short(name, split): value for name, value in metrics.items()}, dur_s)
        self._end("eval")
        if trainer.state.fn == "fit":
            self._resume()

    def _begin(self, phase: str, since_start: bool = False) -> None:
        self._phases.append(phase)
        self._report.begin(phase, since_start=since_start)

    def _end(self, phase: str) -> None:
        """Close the innermost phase of this name, and what is still open inside it."""
        while phase in self._phases:
            last = self._phases.pop()
            self._report.end(last)
            if last == phase:
                return

    def _enter(self, phase: str) -> None:
        """In this one phase, and in no other."""
        if self._phases != [phase]:
            self._close()
            self._begin(phase)

    def _close(self) -> None:
        self._since = None
        while self._phases:
            self._report.end(self._phases.pop())

    def _bye(self) -> None:
        """At the end of the process, so that a test behind the fit is reported too."""
        self._close()
        self._report.bye(not self._failed and getattr(sys, "last_value", None) is None)


def why_not_mps(device: torch.device) -> str | None:
    """A sentence when the Trainer computes on the CPU of a Mac whose GPU torch could use; None when all is well.

    Lightning takes MPS for available only where platform.processor() is arm: under Rosetta it is i386, and the
    accelerator "auto" is then the CPU, without a word.
    """
    if device.type != "cpu" or platform.system() != "Darwin":
        return None
    if platform.processor() in ("arm", "arm64"):
        return "the Trainer computes on the CPU" if torch.backends.mps.is_available() else None
    return (
        f'this Python is {platform.machine()} (platform.processor() is "{platform.processor()}"): under Rosetta '
        "Lightning finds no MPS accelerator and takes the CPU; use a Python built for arm64"
    )


def _waits_for(device: torch.device) -> Callable[[], None] | None:
    """What returns when the device is idle; None for a device that nobody here knows how to wait for."""
    if device.type == "cuda":
        return lambda: torch.cuda.synchronize(device)
    if device.type == "mps":
        return torch.mps.synchronize
    return _nothing if device.type == "cpu" else None


def _nothing() -> None:
    """The CPU has finished when the call returns."""


def _memory(device: torch.device) -> tuple[int | None, int | None]:
    """Bytes in tensors and bytes taken from the system."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)
    if device.type == "mps":
        return torch.mps.current_allocated_memory(), torch.mps.driver_allocated_memory()
    return None, None


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return platform.processor() or platform.machine()


def _optimizer_name(optimizer: torch.optim.Optimizer) -> str:
    name, settings = type(optimizer).__name__, optimizer.defaults
    return name + ("(fused)" if settings.get("fused") else "(foreach)" if settings.get("foreach") else "")


def _is_compiled(module: pl.LightningModule) -> bool:
    """Whether the module or a part of it went through torch.compile."""
    return getattr(module, "_compiler_ctx", None) is not None or any(
        hasattr(part, "_orig_mod") or getattr(part, "_compiled_call_impl", None) is not None
        for part in module.modules()
    )


def _is_of(name: str, split: str) -> bool:
    return split in name.lower()


def _short(name: str, split: str) -> str:
    """val_loss and val/loss are the loss of the split val."""
    for separator in ("_", "/", "-", "."):
        if name.lower().startswith(split + separator):
            return name[len(split) + 1 :]
    return name
