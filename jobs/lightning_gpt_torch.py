# /// script
# requires-python = ">=3.10"
# dependencies = ["torch>=2.9", "lightning>=2.6", "numpy", "tiktoken>=0.9"]
# ///
"""nanogpt under the Trainer of Lightning: `python jobs/lightning_gpt_torch.py --device cpu --set max_iters=20`.

Text, model, weights, batches, AdamW with its groups and the schedule are imported from nanogpt; Lightning does the
rest: it fetches and moves batches, casts, runs the backward, accumulates gradients, steps, validates. The losses equal
those of the plain loop, iteration by iteration, so that the difference in time is the cost of Lightning's loop:

    printf '{"workload":"nanogpt"}\\n{"workload":"lightning_gpt"}\\n' | mpsq submit --from - --repeats 4
    mpsq report --vs workload=nanogpt

The Trainer is as lean as validation allows: no logger, no progress bar, no checkpoints, each of which costs more. Part
of the difference is that it fetches a batch on demand, while the plain loop has prefetched it. In bf16 and fp16
another part is that its autocast does not cache cast weights.

Top to bottom: settings, the data, the module, the callback, train().
"""

from __future__ import annotations

if __name__ == "__main__":  # before the imports of torch and lightning: signals may arrive during them
    from harness import start

    start.quietly("torch", "lightning")

import logging
import platform
import signal
import sys
import time
import warnings
from collections.abc import Sequence
from typing import Any

import lightning.pytorch as pl
import nanogpt_torch as nanogpt
import torch
from lightning.pytorch.accelerators import MPSAccelerator
from lightning.pytorch.plugins.precision import MixedPrecision, Precision
from nanogpt_torch import Training
from torch import nn
from torch.utils.data import DataLoader, Dataset

from harness import external_trainer
from harness.checkpoints import weights_file
from harness.external_trainer import TrainerRun
from harness.installing import unavailable
from harness.models.nanogpt import learning_rate
from harness.torch_backend.device import Device, why_not
from harness.torch_backend.main import Torch
from harness.training import versions

WORKLOAD = {
    "like": "nanogpt_torch",
    "name": "lightning_gpt",
    "about": "nanogpt under the Trainer of Lightning, with its losses: what the Trainer's own loop costs.",
    "source": "github.com/Lightning-AI/pytorch-lightning; model and settings as nanogpt",
    "without": [
        "mode",
        "new_tokens",
        "temperature",
        "top_k",
        "num_samples",
        "start",
        "checkpoint_interval",
        "eval_at_start",
    ],
    "modes": {},
}

SPLITS = ("train", "val")
Batch = tuple[torch.Tensor, torch.Tensor]


class Batches(Dataset[Batch]):
    """The batches of the plain loop in order: those of iteration 0, then those of iteration 1, ..."""

    def __init__(self, training: Training) -> None:
        s = training.options.settings
        self._source, self._parts, self._n = training.problem.batches, s.grad_accum, s.max_iters * s.grad_accum
        self._at, self._drawn = -1, training.problem.batches.of_iteration(0, s.grad_accum)

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, n: int) -> Batch:
        i, part = divmod(n, self._parts)
        if i != self._at:
            self._at, self._drawn = i, self._source.of_iteration(i, self._parts)
        x, y = (torch.from_numpy(whole[part]).long() for whole in self._drawn)
        return x, y


def loader(batches: Any, device: Device) -> DataLoader[Batch]:
    """Return a loader of whole batches in this process, with its own generator: the default one is for dropout."""
    return DataLoader(
        batches, batch_size=None, shuffle=False, pin_memory=device.kind == "cuda", generator=torch.Generator()
    )


class Module(pl.LightningModule):
    """The model of a Training as a LightningModule."""

    def __init__(self, training: Training) -> None:
        super().__init__()
        self.model = training.model
        self.training_of = training

    def training_step(self, batch: Batch, i: int) -> torch.Tensor:
        loss: torch.Tensor = self.training_of.forward(*batch)
        return loss

    def validation_step(self, batch: Batch, i: int, dataloader_idx: int = 0) -> None:
        self.log("loss", self.training_of.forward(*batch), batch_size=len(batch[0]), add_dataloader_idx=True)

    def configure_optimizers(self) -> Any:
        training = self.training_of
        return {
            "optimizer": training.optimizer,
            "lr_scheduler": {"scheduler": Schedule(training), "interval": "step"},
        }

    def configure_gradient_clipping(self, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        """Clip as Lightning does, without its refusal for a fused optimizer in mixed precision. Such an optimizer can
        unscale gradients itself, and skips that if it finds them unscaled."""
        s, scaler = self.training_of.options.settings, self.training_of.scaler
        if not s.grad_clip:
            return
        plain = getattr(optimizer, "optimizer", optimizer)
        if scaler.is_enabled() and getattr(plain, "_step_supports_amp_scaling", False):
            scaler.unscale_(plain)
        nn.utils.clip_grad_norm_(self.model.parameters(), s.grad_clip)


class Schedule(torch.optim.lr_scheduler.LRScheduler):
    """The learning rates of the plain loop, bit by bit: set, not multiplied by factors."""

    def __init__(self, training: Training) -> None:
        self._settings = training.options.settings
        super().__init__(training.optimizer)

    def get_lr(self) -> list[float]:
        return [learning_rate(self.last_epoch, self._settings)] * len(self.optimizer.param_groups)


class Watcher(pl.Callback):
    """Reports the Trainer's progress to the run.

    An iteration goes from the end of the one before to the end of its last batch, so that everything that the Trainer
    does in between is included.
    """

    def __init__(self, training: Training, run: TrainerRun) -> None:
        self._training, self._run = training, run
        self._losses: list[torch.Tensor] = []
        self._begun, self._durations_s = 0.0, dict[int, float]()

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # Lightning's handler would wait for the end of the batch
        self._run.watch.start()

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._losses.append(outputs["loss"])  # divided by accumulate_grad_batches, as the plain loop divides it
        s, watch = self._training.options.settings, self._run.watch
        if len(self._losses) < s.grad_accum:
            return
        watch.stop(trainer.global_step - 1, loss_follows=True)
        losses = self._losses
        watch.loss(float(losses[0] if len(losses) == 1 else torch.stack(losses).sum()))
        self._losses = []
        if self._run.stopping:
            trainer.should_stop = True
        elif trainer.global_step < s.max_iters:
            watch.start()

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._run.watch.pause("eval")

    def on_validation_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        if batch_idx == 0:
            self._training.device.synchronize()
            self._begun = time.perf_counter()

    def on_validation_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        if batch_idx == self._training.options.settings.eval_iters - 1:
            self._training.device.synchronize()
            self._durations_s[dataloader_idx] = time.perf_counter() - self._begun

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        for number, split in enumerate(SPLITS):
            loss = float(trainer.callback_metrics[f"loss/dataloader_idx_{number}"])
            self._run.evaluated(trainer.global_step, split, {"loss": loss}, self._durations_s[number])
        if trainer.global_step < self._training.options.settings.max_iters:
            self._run.watch.start()


def train(training: Training, run: TrainerRun) -> None:
    """Do all iterations and evaluations by the Trainer."""
    options, device, s = training.options, training.device, training.options.settings
    evaluations = [
        loader([tuple(torch.from_numpy(part).long() for part in pair) for pair in zip(*drawn, strict=True)], device)
        for drawn in (training.problem.batches.of_evaluation(split, s.eval_iters) for split in SPLITS)
    ]
    trainer = pl.Trainer(
        accelerator=device.kind,
        devices=[device.handle.index or 0] if device.kind == "cuda" else 1,
        plugins=[precision(training)],
        max_steps=s.max_iters,
        max_epochs=1,
        accumulate_grad_batches=s.grad_accum,
        check_val_every_n_epoch=None,
        val_check_interval=max(1, s.eval_interval) * s.grad_accum,
        limit_val_batches=s.eval_iters if s.eval_interval else 0,
        num_sanity_val_steps=0,
        inference_mode=False,  # no_grad, as in the plain loop: inference mode would make torch.compile compile again
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Watcher(training, run)],
    )
    module = Module(training)
    if s.max_iters:
        trainer.fit(module, loader(Batches(training), device), evaluations)
        if s.eval_interval and s.max_iters % s.eval_interval and not run.stopping:
            trainer.validate(module, evaluations, verbose=False)
    if options.out is not None:
        weights = {name: value.float().cpu().numpy() for name, value in training.model.state_dict().items()}
        print(f"saved {weights_file.write(options.out / 'weights.npz', weights)}, for init_from")


def precision(training: Training) -> Precision:
    """Return mixed precision as requested, with the plain loop's scaler: precision= would replace fp16 by bf16 on a
    CPU."""
    kind, dtype = training.device.kind, training.options.dtype
    if dtype == "fp32":
        return Precision()
    if dtype == "bf16":
        return MixedPrecision("bf16-mixed", kind)
    return MixedPrecision("16-mixed", kind, training.scaler)


class Lightning(Torch):
    """torch as a Framework, with Lightning's own rules for devices, and without its messages."""

    def open_device(self, label: str) -> Device:
        device = super().open_device(label)
        if device.kind == "mps" and not MPSAccelerator.is_available():
            raise unavailable(
                "mps", why_not_mps(), [name for name in ("cpu", "cuda") if why_not(name) is None], "torch"
            )
        return device

    def set_up(self, options: Any, device: Device, report: Any) -> None:
        super().set_up(options, device, report)
        quieten()

    def facts(self, device: Device) -> dict[str, Any]:
        facts = super().facts(device)
        return facts | {"versions": facts["versions"] | versions(("lightning",))}


def why_not_mps() -> str:
    """Return why Lightning does not use the GPU of a Mac on which torch has computed."""
    return (
        f'Lightning uses it only where platform.processor() is arm, and here it is "{platform.processor()}": i386 is '
        "a Python under Rosetta, which one built for arm64 mends; DISABLE_MPS=1 in the environment has the same effect"
    )


def quieten() -> None:
    """Silence Lightning's advertisements, and its hints about intended settings."""
    for name in ("lightning", "lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"lightning\..*")


def main(argv: Sequence[str] | None = None) -> int:
    return external_trainer.main(WORKLOAD, Lightning(), nanogpt.build, train, argv)


if __name__ == "__main__":
    sys.exit(main())
