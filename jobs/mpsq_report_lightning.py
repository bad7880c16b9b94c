"""A callback that reports a training under Lightning's Trainer to mpsq (docs/protocol.md):

    from mpsq_report import LightningCallback

    trainer = lightning.Trainer(..., callbacks=[LightningCallback(workload="mine", tokens_per_iter=16384)])

Import it from an installed mpsq, or copy mpsq_report.py, mpsq_report_watch.py and this file beside your program.
Without MPSQ_EVENTS it does nothing, and it never raises into the training.

An iteration is an update of the weights, with accumulate_grad_batches=4 over four batches. It goes from the end of the
one before to its own end: so it holds the fetching of batches, and what the Trainer, its loggers, bars and other
callbacks do between batches. In none: validation, checkpoints, the time between epochs, these reports. Left out are
those that would look fast: one of fewer batches than the others, or with a smaller batch, at the end of an epoch that
they do not divide (of a stream, whose length nobody knows, each epoch's last); one whose training_step returned
nothing; one that a validation or an epoch's end cuts in two; and the one behind a checkpoint, because Lightning does
not say when the writing is over.
"""

from __future__ import annotations

import platform
import re
import sys
import time
from collections.abc import Mapping
from typing import Any

import torch

from mpsq_report import Reporter
from mpsq_report_watch import (
    WARMUP_ITERS,
    Watch,
    facts_of_torch,
    fused_trouble,
    harmless,
    is_compiled,
    is_first_process,
    of_torch,
)

if "pytorch_lightning" in sys.modules and "lightning" not in sys.modules:
    import pytorch_lightning as pl
else:
    import lightning.pytorch as pl

PACKAGES = ("lightning", "pytorch-lightning", "torchmetrics")
DTYPES = {"32": "fp32", "32-true": "fp32", "16-mixed": "fp16", "16-true": "fp16", "bf16-mixed": "bf16",
          "bf16-true": "bf16", "64": "fp64", "64-true": "fp64"}  # fmt: skip
"""Lightning's names of precisions, and the queue's."""
_NO_MEMORY = re.compile(r"out of memory|Invalid buffer size: \d", re.IGNORECASE)


class LightningCallback(pl.Callback):
    """Reports hello, phases, every iteration with its loss, validations and tests.

    `warmup_iters` after the first are not measured. Further arguments are fields of hello, and override those that the
    callback finds itself: workload, config, seed, tokens_per_iter, samples_per_iter, flops_per_iter, ...
    """

    def __init__(self, report: Reporter | None = None, *, warmup_iters: int = WARMUP_ITERS, **hello: Any) -> None:
        self.off = False
        """whether something went wrong, or another process reports"""
        self.report = report or Reporter()
        self.watch: Watch | None = None
        self._warmup_iters, self._hello = warmup_iters, hello
        self._i = self._step = self._batches = 0
        self._size: int | None = None
        """batches of an iteration; None until a module that steps by itself has done so"""
        self._losses: list[torch.Tensor] = []
        self._fits = self._torn = False
        self._known: set[str] = set()
        self._measures: dict[str, set[str]] = {"val": set(), "test": set()}
        self._began = 0.0
        self._sets_up = is_first_process()
        if self._sets_up:
            self.report.begin("setup", since_start=True)

    @harmless
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._step = trainer.global_step
        self._i = max(self._i, self._step)  # a second fit of a process continues the numbering
        self._size = _batches(trainer) if pl_module.automatic_optimization else None
        self._losses, self._batches, self._torn, self._fits = [], 0, False, True
        self._open(trainer, pl_module)

    @harmless
    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._torn = self._batches > 0
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
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if isinstance(loss, torch.Tensor):
            self._losses.append(loss.detach())
        # a step that returns nothing is skipped, except in manual optimization
        skipped = loss is None and pl_module.automatic_optimization
        self._torn = self._torn or skipped or _is_short(trainer, batch_idx)
        if trainer.global_step == self._step:
            return  # gradients are still being accumulated
        self._step = trainer.global_step
        if self._torn or self._batches != (self._size or self._batches):
            self.watch.drop()
        else:
            self.watch.stop(self._i, loss_follows=bool(self._losses))
            if self._losses:
                self.watch.loss(self._loss(trainer.accumulate_grad_batches))
            if self._size is None:
                self._size = self._batches
                self.report.hello(**self._samples(trainer) | self._hello)
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
    def on_predict_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._evaluates(trainer, pl_module)

    @harmless
    def on_predict_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.watch:
            self.watch.close()

    @harmless
    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        if self.watch and self._fits:
            self._torn = True
            self.watch.pause("checkpoint")

    @harmless
    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.watch:
            self.watch.pause("setup")  # the next epoch ends it

    @harmless
    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._fits = False
        if self.watch:
            self.watch.close()

    @harmless
    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        if isinstance(exception, Exception):  # otherwise it was interrupted
            kind = "oom" if _NO_MEMORY.search(str(exception)) else "error"
            self.report.note(kind, f"{type(exception).__name__}: {exception}")
        self._fits = False
        if self.watch:
            self.watch.close()

    def _open(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """End the set-up and report hello, now that everything is known."""
        self.off = not trainer.is_global_zero  # one process reports for all
        if self.off or not self.report.active:
            return
        device, compiled = trainer.strategy.root_device, is_compiled(module)
        self.watch = Watch(self.report, **of_torch(device), warmup_iters=self._warmup_iters, compiled=compiled)
        fields = facts_of_torch(device, PACKAGES) | _asked(trainer, module) | {"compile": compiled}
        if self._size is not None and (planned := _planned(trainer)) is not None:
            fields["planned_iters"] = self._i + planned - self._step
        self.report.hello(**fields | self._samples(trainer) | self._hello)
        if (reason := mps_unused(device)) is not None:
            self.report.note("mps_unused", reason)
        fused = any(one.defaults.get("fused") for one in trainer.optimizers)
        scaled = str(trainer.precision) == "16-mixed"
        if fused and scaled and (trouble := fused_trouble(device.type, "fp16")):
            self.report.note("wrong_loss", trouble)
        if self._sets_up:
            self._sets_up = False
            self.report.end("setup")

    def _samples(self, trainer: pl.Trainer) -> dict[str, int]:
        """Return hello's samples_per_iter, if it is known and no speed in tokens is requested."""
        rows = getattr(trainer.train_dataloader, "batch_size", None)
        if self._size is None or not isinstance(rows, int) or "tokens_per_iter" in self._hello:
            return {}
        rest = _rest(trainer) if _is_whole_epoch(trainer) else 0
        return {"samples_per_iter": (rows * self._size - (rows - rest if rest else 0)) * trainer.world_size}

    def _loss(self, divided_by: int) -> float:
        """Return the mean loss over the batches of an iteration. Lightning has divided each by the number of batches to
        accumulate, even if an epoch has fewer, unless the module optimizes manually."""
        return sum(float(loss) for loss in self._losses) * (divided_by / len(self._losses))

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
        """Report metrics; Lightning has read them by now, and so waited for the device."""
        if self.watch is None or trainer.sanity_checking:
            return
        dur_s = time.perf_counter() - self._began
        logged = trainer.callback_metrics
        names = self._measures[split]
        names |= {name for name in logged if split in name.lower() or name not in self._known}
        metrics = {_short(name, split): float(logged[name]) for name in sorted(names & logged.keys())}
        self.report.eval(self._i, split, metrics, dur_s)
        if trainer.state.fn == "fit":
            self.watch.start()
        else:
            self.watch.close()


def _batches(trainer: pl.Trainer) -> int:
    """Return the batches of an iteration: those accumulated, or all of an epoch that has fewer."""
    return int(min(trainer.accumulate_grad_batches, trainer.num_training_batches))


def _is_whole_epoch(trainer: pl.Trainer) -> bool:
    """Return whether an iteration covers a whole epoch."""
    return bool(trainer.num_training_batches <= trainer.accumulate_grad_batches)


def _rest(trainer: pl.Trainer) -> int | None:
    """Return the examples in a smaller last batch of an epoch: 0 if there is none, None if unknown."""
    loader = trainer.train_dataloader
    try:
        rows, batches, n = loader.batch_size, len(loader), len(loader.dataset)
    except (AttributeError, TypeError):  # several loaders, or a stream of examples
        return None
    if not isinstance(rows, int) or trainer.world_size > 1 or trainer.num_training_batches != batches:
        return 0  # several processes share a padded epoch; limit_train_batches stops before its end
    return n % rows if batches == -(-n // rows) else 0


def _is_short(trainer: pl.Trainer, batch_idx: int) -> bool:
    """Return whether this batch is an epoch's smaller last one, while other iterations have none."""
    if _is_whole_epoch(trainer):
        return False
    rest = _rest(trainer)
    if rest is None:
        return bool(trainer.is_last_batch) and trainer.num_training_batches == float("inf")
    return rest > 0 and batch_idx + 1 == trainer.num_training_batches


def _planned(trainer: pl.Trainer) -> int | None:
    """Return the planned number of updates; None for a stream. For manual optimization each optimizer's step counts,
    although several may belong to one iteration."""
    planned = trainer.max_steps if trainer.max_steps > 0 else trainer.estimated_stepping_batches
    return planned if isinstance(planned, int) and planned > 0 else None


def mps_unused(device: torch.device) -> str | None:
    """Return why the Trainer is on the CPU of a Mac, in a sentence; None elsewhere.

    Lightning takes MPS for available only if platform.processor() is arm: under Rosetta it is i386, and
    accelerator="auto" selects the CPU without a message.
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
    """Return the fields of hello that the Trainer and the module know."""
    fields: dict[str, Any] = {
        "workload": type(module).__name__,
        "framework": "torch",
        "dtype": DTYPES.get(str(trainer.precision), str(trainer.precision)),
        "params": sum(p.numel() for p in module.parameters() if p.requires_grad),
        "processes": trainer.world_size,
    }
    if trainer.strategy.root_device.type == "mps":
        fields["device"] = "mps"
    if trainer.optimizers:
        fields["optimizer"] = ", ".join(map(_name, trainer.optimizers))
    return fields


def _name(optimizer: torch.optim.Optimizer) -> str:
    how = next((name for name in ("fused", "foreach") if optimizer.defaults.get(name)), None)
    return type(optimizer).__name__ + (f"({how})" if how else "")


def _short(name: str, split: str) -> str:
    """Return a metric's name without its split: loss of val_loss and val/loss."""
    if name.lower().startswith(split) and name[len(split) : len(split) + 1] in ("_", "/", "-", "."):
        return name[len(split) + 1 :]
    return name
