"""A callback that reports a training under Lightning's Trainer to mpsq (docs/protocol.md):

    from mpsq_report import LightningCallback

    trainer = lightning.Trainer(..., callbacks=[LightningCallback(workload="mine", tokens_per_iter=16384)])

Import it from an installed mpsq, or copy mpsq_report.py, mpsq_report_watch.py and this file beside your program.
Without MPSQ_EVENTS it does nothing, and it never raises into the training.

An iteration is an update of the weights, with accumulate_grad_batches=4 over four batches. It goes from the end of the
one before to its own end: so it holds the fetching of batches, and what the Trainer, its loggers, bars and other
callbacks do between batches. In none: validation, checkpoints, the time between epochs, these reports. Behind a
checkpoint it begins with its batch at hand, because Lightning does not say when the writing is over. One that a
validation cuts in two is left out, and so is one of fewer batches, or with a smaller batch, at the end of an epoch that
they do not divide.
"""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Mapping
from typing import Any

import torch

from mpsq_report import Reporter
from mpsq_report_watch import WARMUP_ITERS, Watch, facts_of_torch, harmless, of_torch

if "pytorch_lightning" in sys.modules and "lightning" not in sys.modules:
    import pytorch_lightning as pl
else:
    import lightning.pytorch as pl

PACKAGES = ("lightning", "pytorch-lightning", "torchmetrics")
DTYPES = {"32": "fp32", "32-true": "fp32", "16-mixed": "fp16", "16-true": "fp16", "bf16-mixed": "bf16",
          "bf16-true": "bf16", "64": "fp64", "64-true": "fp64"}  # fmt: skip
"""Lightning's names of precisions, and the queue's."""


class LightningCallback(pl.Callback):
    """Reports who trains, phases, every iteration with its loss, validations and tests.

    `warmup_iters` after the first are not measured. Further arguments are fields of hello, and go before what the
    callback finds out by itself: workload, config, seed, tokens_per_iter, samples_per_iter, flops_per_iter, ...
    """

    def __init__(self, report: Reporter | None = None, *, warmup_iters: int = WARMUP_ITERS, **hello: Any) -> None:
        self.off = False
        """whether something went wrong, or another process reports"""
        self.report = report or Reporter()
        self.watch: Watch | None = None
        self._warmup_iters, self._hello = warmup_iters, hello
        self._i = self._step = self._batches = 0
        self._losses: list[torch.Tensor] = []
        self._torn = False
        self._known: set[str] = set()
        self._measures: dict[str, set[str]] = {"val": set(), "test": set()}
        self._began = 0.0
        self.report.begin("setup", since_start=True)

    @harmless
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._open(trainer, pl_module)
        self._step = trainer.global_step
        self._i = max(self._i, self._step)  # a second fit of a process is numbered on

    @harmless
    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.watch:
            self.watch.start()

    @harmless
    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if self.watch and not self.watch.running:  # a checkpoint was written
            self.watch.start()

    @harmless
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self.watch is None or not self.watch.active:
            return
        self._batches += 1
        self._torn = self._torn or _is_short(trainer, batch_idx)
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if isinstance(loss, torch.Tensor):
            self._losses.append(loss.detach())
        if trainer.global_step == self._step:
            return  # gradients are still being added up
        self._step = trainer.global_step
        if not self._torn and self._batches >= trainer.accumulate_grad_batches:
            self.watch.stop(self._i, loss_follows=bool(self._losses))
            if self._losses:
                self.watch.loss(self._loss(pl_module.automatic_optimization))
        self._losses, self._batches, self._torn = [], 0, False
        self._i += 1
        self.watch.start()

    @harmless
    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._evaluates(trainer, pl_module)

    @harmless
    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._evaluated(trainer, "val")

    @harmless
    def on_test_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._evaluates(trainer, pl_module)

    @harmless
    def on_test_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._evaluated(trainer, "test")

    @harmless
    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        if self.watch and self.watch.running:
            self._torn = self._batches > 0
            self.watch.pause("checkpoint")

    @harmless
    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.watch:
            self.watch.pause("setup")  # of the next epoch, which ends it

    @harmless
    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.watch:
            self.watch.close()

    @harmless
    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        kind = "oom" if "out of memory" in str(exception).lower() else "error"
        self.report.note(kind, f"{type(exception).__name__}: {exception}")
        if self.watch:
            self.watch.close()

    def _open(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """The end of the set-up: everything is known now."""
        self.off = not trainer.is_global_zero  # one process speaks for all
        if self.off or not self.report.active:
            return
        device, compiled = trainer.strategy.root_device, _is_compiled(module)
        first = self.watch is None
        self.watch = Watch(self.report, **of_torch(device), warmup_iters=self._warmup_iters, compiled=compiled)
        found = facts_of_torch(device, PACKAGES) | _asked(trainer, module) | {"compile": compiled}
        if "tokens_per_iter" in self._hello:  # speed is in the one or the other
            found.pop("samples_per_iter", None)
        self.report.hello(**found | self._hello)
        if (reason := mps_unused(device)) is not None:
            self.report.note("mps_unused", reason)
        if first:
            self.report.end("setup")

    def _loss(self, automatic: bool) -> float:
        """Of an iteration over several batches: Lightning has divided the loss of each by their number, unless the
        module steps by itself."""
        total = sum(float(loss) for loss in self._losses)
        return total if automatic else total / len(self._losses)

    def _evaluates(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if trainer.sanity_checking:
            return  # a part of setup
        if self.watch is None:
            self._open(trainer, module)
        if self.watch is None:
            return
        self._torn = self._torn or self._batches > 0
        self._known = set(trainer.callback_metrics)
        self.watch.pause("eval")
        self._began = time.perf_counter()

    def _evaluated(self, trainer: pl.Trainer, split: str) -> None:
        """Lightning has read the measures by now, and waited for the device with that."""
        if self.watch is None or trainer.sanity_checking:
            return
        dur_s = time.perf_counter() - self._began
        told = trainer.callback_metrics
        names = self._measures[split]
        names |= {name for name in told if split in name.lower() or name not in self._known}
        metrics = {_short(name, split): float(told[name]) for name in sorted(names & told.keys())}
        self.report.eval(self._i, split, metrics, dur_s)
        if trainer.state.fn == "fit":
            self.watch.start()
        else:
            self.watch.close()


def _is_short(trainer: pl.Trainer, batch_idx: int) -> bool:
    """Whether this batch is an epoch's last, of what was left: it would look fast."""
    loader = trainer.train_dataloader
    try:
        rows, batches, n = loader.batch_size, len(loader), len(loader.dataset)
    except (AttributeError, TypeError):  # several loaders, or a stream of examples
        return False
    if not isinstance(rows, int) or batches < 2 or batch_idx + 1 != batches or trainer.world_size > 1:
        return False  # several processes share an epoch that is filled up
    return batches == -(-n // rows) and n % rows != 0


def mps_unused(device: torch.device) -> str | None:
    """Why the Trainer is on the CPU of a Mac, in a sentence; None elsewhere.

    Lightning takes MPS for available only where platform.processor() is arm: under Rosetta it is i386, and then
    accelerator="auto" is the CPU, without a word.
    """
    if device.type != "cpu" or platform.system() != "Darwin":
        return None
    if platform.processor() not in ("arm", "arm64"):
        return (
            f'the Trainer computes on the CPU: platform.processor() is "{platform.processor()}" here, and Lightning '
            "finds MPS only where it is arm; i386 is a Python under Rosetta, which one built for arm64 mends"
        )
    return "the Trainer computes on the CPU, and MPS is there" if torch.backends.mps.is_available() else None


def _asked(trainer: pl.Trainer, module: pl.LightningModule) -> dict[str, Any]:
    """hello's fields that the Trainer and the module know."""
    said: dict[str, Any] = {
        "workload": type(module).__name__,
        "framework": "torch",
        "dtype": DTYPES.get(str(trainer.precision), str(trainer.precision)),
        "params": sum(p.numel() for p in module.parameters() if p.requires_grad),
        "processes": trainer.world_size,
    }
    if trainer.strategy.root_device.type == "mps":
        said["device"] = "mps"
    if trainer.optimizers:
        said["optimizer"] = ", ".join(map(_name, trainer.optimizers))
        planned = trainer.max_steps if trainer.max_steps > 0 else trainer.estimated_stepping_batches
        if isinstance(planned, int):  # else it is inf
            said["planned_iters"] = planned
    rows = getattr(trainer.train_dataloader, "batch_size", None)
    if isinstance(rows, int):
        said["samples_per_iter"] = rows * trainer.accumulate_grad_batches * trainer.world_size
    return said


def _name(optimizer: torch.optim.Optimizer) -> str:
    how = next((name for name in ("fused", "foreach") if optimizer.defaults.get(name)), None)
    return type(optimizer).__name__ + (f"({how})" if how else "")


def _is_compiled(module: pl.LightningModule) -> bool:
    """Whether the module, or a part of it, went through torch.compile."""
    return getattr(module, "_compiler_ctx", None) is not None or any(
        hasattr(part, "_orig_mod") or getattr(part, "_compiled_call_impl", None) is not None
        for part in module.modules()
    )


def _short(name: str, split: str) -> str:
    """val_loss and val/loss are the loss of the split val."""
    if name.lower().startswith(split) and name[len(split) : len(split) + 1] in ("_", "/", "-", "."):
        return name[len(split) + 1 :]
    return name
