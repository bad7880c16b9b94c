"""Hugging Face's Trainer as the harness runs it: arguments, callback, metrics, and the loss of each batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import transformers
from transformers import TrainingArguments

from harness.command_line import Options
from harness.errors import UsageError, first_line
from harness.external_trainer import TrainerRun
from harness.torch_backend import compiling
from harness.torch_backend.device import Device
from mpsq_report_transformers import TrainerCallback
from mpsq_report_watch import fused_trouble


class Trainer(transformers.Trainer):
    """A Trainer that keeps the loss of each batch; the original reports only those that it logs, and filters nan."""

    loss_is_scaled_for_ga = False
    """Otherwise the Trainer treats BERT's loss, a mean, as a sum divided by the examples of all grad_accum batches."""

    losses: list[torch.Tensor]

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        loss = super().training_step(*args, **kwargs)
        self.losses.append(loss)
        return loss

    def loss_of_iteration(self) -> float:
        """Return the loss of the batches since the last call, each divided by their number already."""
        total, self.losses = torch.stack(self.losses).sum(), []
        return float(total)


class Callback(TrainerCallback):
    """The public TrainerCallback, connected to a workload's run."""

    def __init__(self, trainer: Trainer, run: TrainerRun) -> None:
        super().__init__(watch=run.watch, loss=trainer.loss_of_iteration)
        self._run = run

    def evaluated(self, done: int, split: str, metrics: Mapping[str, float], dur_s: float | None) -> None:
        self._run.evaluated(done, split, metrics, dur_s)

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        super().on_step_end(args, state, control, **more)
        control.should_training_stop = control.should_training_stop or self._run.stopping


def arguments_of(options: Options, device: Device, folder: str) -> TrainingArguments:
    """Return the TrainingArguments that run_glue.py would parse from its command line. Raises: UsageError."""
    s = options.settings
    if "fused" in s.optim and (trouble := fused_trouble(device.kind, options.dtype)):
        raise UsageError(trouble, "--set optim=adamw_torch, --dtype bf16, or torch 2.13")
    if device.handle.index:
        raise UsageError(
            f"the Trainer takes the first GPU that it sees, not {device}",
            f"CUDA_VISIBLE_DEVICES={device.handle.index} in the environment, and --device cuda",
        )
    try:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=s.batch_size,
            per_device_eval_batch_size=s.eval_batch_size,
            gradient_accumulation_steps=s.grad_accum,
            num_train_epochs=s.epochs,
            max_steps=s.max_iters or -1,
            learning_rate=s.lr,
            weight_decay=s.weight_decay,
            optim=s.optim,
            eval_strategy="steps" if s.eval_interval else "no",
            eval_steps=s.eval_interval or None,
            logging_strategy="no",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            seed=options.seed,
            bf16=options.dtype == "bf16",
            fp16=options.dtype == "fp16",
            torch_compile=options.compile,
            torch_compile_mode=compiling.named_mode(options),
            use_cpu=device.kind == "cpu",
            dataloader_num_workers=s.workers,
            dataloader_pin_memory=device.kind == "cuda",
        )
        chosen = arguments.device
    except (ValueError, ImportError) as error:
        raise UsageError(f"the Trainer refuses: {first_line(error)}") from None
    if chosen.type != device.kind:
        raise UsageError(f"the Trainer takes {chosen} here, not {device}", f"--device {chosen.type}")
    arguments._n_gpu = min(arguments._n_gpu, 1)  # otherwise it spreads each batch over all visible GPUs
    return arguments
