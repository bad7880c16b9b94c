"""A callback that reports the training of a Hugging Face Trainer to mpsq (docs/protocol.md):

    from mpsq_report import TrainerCallback

    trainer = Trainer(..., callbacks=[TrainerCallback()])

Import it from an installed mpsq, or copy mpsq_report.py, mpsq_report_watch.py and this file beside your program. It
does nothing without MPSQ_EVENTS, and never raises into the training.

An iteration goes from the end of the one before it to the end of its optimizer step: its batches are fetched, forward,
backward, update. The Trainer's logs, evaluations and checkpoints are in none; what other callbacks do at the end of a
step is in one. The Trainer tells the losses that it logs: of each iteration with logging_steps=1, else means of those
since its last log. Left out are one of fewer examples, at the end of an epoch that the others do not divide (it would
look fast; of a stream, whose length nobody knows, each epoch's last), and one that an evaluation interrupts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import accelerate
import transformers

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

PACKAGES = ("transformers", "accelerate", "datasets", "tokenizers")
_SPEEDS = ("runtime", "samples_per_second", "steps_per_second", "model_preparation_time")
_DTYPES = {"torch.float32": "fp32", "torch.bfloat16": "bf16", "torch.float16": "fp16"}


class TrainerCallback(transformers.TrainerCallback):
    """Reports iterations, losses, evaluations and phases. `warmup_iters` after the first are not measured.

    For a subclass of Trainer: `loss` returns the loss of the iteration that has just ended, if the trainer keeps it;
    `watch` and its report are used instead of new ones.
    """

    def __init__(
        self,
        report: Reporter | None = None,
        *,
        warmup_iters: int = WARMUP_ITERS,
        watch: Watch | None = None,
        loss: Callable[[], float] | None = None,
    ) -> None:
        self.off = False
        """whether something went wrong, or another process reports"""
        self.watch = watch
        self.report = watch.report if watch is not None else report or Reporter()
        self._warmup_iters, self._loss = warmup_iters, loss
        self._logged_at = self._reached = self._before = 0
        self._trains = self._inside = self._torn = self._evaluates = self._diverged = False
        self._says_hello, self._sets_up = watch is None, watch is None and is_first_process()
        if self._sets_up:
            self.report.begin("setup", since_start=True)

    def evaluated(self, done: int, split: str, metrics: Mapping[str, float], dur_s: float | None) -> None:
        """Report an evaluation after `done` iterations."""
        self.report.eval(done, split, dict(metrics), dur_s)

    @harmless
    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self._logged_at, self._trains = state.global_step, True
        self._inside = self._torn = self._evaluates = False
        # a second training of a process continues the numbering; one resumed from a checkpoint has later numbers
        self._before = self._reached if state.global_step < self._reached else 0
        self._open(args, state, more.get("model"), more.get("train_dataloader"))

    @harmless
    def on_epoch_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self._inside = self._torn = False
        if self.watch:
            self.watch.start()

    @harmless
    def on_step_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        if self.watch and not self.watch.running:  # the expected event after the last step did not occur
            self.watch.start()
        self._inside, self._evaluates = True, False

    @harmless
    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        left_out = self._torn or _cut_short(args, state, more.get("train_dataloader"))
        self._inside = self._torn = False
        if (watch := self.watch) is None:
            return
        self._reached = self._before + state.global_step
        if left_out:
            watch.drop()
            if self._loss is not None:
                self._loss()  # otherwise its batches' losses would be added to those of the next one
        else:
            watch.stop(self._reached - 1, loss_follows=control.should_log or self._loss is not None)
            if self._loss is not None and watch.waiting:
                watch.loss(self._loss())
        if not control.should_log:  # the default callbacks ran first and have set what follows
            self._go_on(control)

    @harmless
    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **more: Any) -> None:
        # a subclass's compute_loss() may log a "loss" too; the Trainer's comes with a learning rate
        if (watch := self.watch) is None or self._inside or not logs or not {"loss", "learning_rate"} <= logs.keys():
            return
        since, self._logged_at = state.global_step - self._logged_at, state.global_step
        if self._loss is None:
            i, loss, norm = self._before + state.global_step - 1, float(logs["loss"]), logs.get("grad_norm")
            finite = norm is None or math.isfinite(float(norm))
            if loss == 0.0 and not finite and args.logging_nan_inf_filter:
                loss = math.nan  # the filter replaces it by the mean of the losses before, of which there are none
            if watch.waiting and since == 1:
                watch.loss(loss)
            else:
                self.report.metric("loss_mean", loss, "nats", i)
            # scaled gradients of fp16 overflow occasionally, and are skipped
            if not (self._diverged or finite or (args.fp16 and math.isfinite(loss))):
                self._diverged = True
                self.report.note("nan_loss", f"the norm of the gradient is {norm} in iteration {i}")
        self._go_on(control)

    @harmless
    def on_epoch_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        if control.should_evaluate or control.should_save:
            self._go_on(control)

    @harmless
    def on_prediction_step(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        if self.watch is None:  # an evaluation before any training
            self._open(args, state, more.get("model"), None)
        # a callback's own evaluation: whether the next batch was fetched before is unknown
        self._torn = self._torn or (self._trains and not self._evaluates)
        if self.watch:
            self.watch.pause("eval")

    @harmless
    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: Mapping[str, Any] | None = None, **more: Any
    ) -> None:
        if self.watch:
            self.watch.resume()
            self.evaluated(self._before + state.global_step, *_measured(metrics or {}))
            self._go_on(control)

    @harmless
    def on_predict(self, args: Any, state: Any, control: Any, metrics: Any = None, **more: Any) -> None:
        if self.watch:
            self.watch.resume()
            self._go_on(control)

    @harmless
    def on_save(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        if self.watch:
            self.watch.resume()
        self._go_on(control)

    @harmless
    def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self._trains = False
        if self.watch:
            self.watch.close()

    def _open(self, args: Any, state: Any, model: Any, loader: Any) -> None:
        """End the set-up and report hello, now that everything is known."""
        self.off = not state.is_world_process_zero
        if self.off or not self._says_hello or not self.report.active:
            return
        if self.watch:  # of an evaluation, or of an earlier training, which may have been interrupted
            self.watch.close()
        compiled = bool(args.torch_compile) or is_compiled(model)
        clock = of_torch(args.device)
        self.watch = Watch(self.report, **clock, warmup_iters=self._warmup_iters, compiled=compiled)
        fields = _asked(args, model) | {"compile": compiled}
        if loader is not None:
            fields |= {"planned_iters": self._before + state.max_steps}
            if (n := _examples(args, loader)) is not None:
                fields["samples_per_iter"] = n
        self.report.hello(**facts_of_torch(args.device, PACKAGES), **fields)
        if args.fp16 and "fused" in fields["optimizer"] and (trouble := fused_trouble(args.device.type, "fp16")):
            self.report.note("wrong_loss", f"{trouble}: --optim adamw_torch, or --bf16")
        if self._sets_up:
            self._sets_up = False
            self.report.end("setup")

    def _go_on(self, control: Any) -> None:
        """Begin what follows an iteration, evaluation or checkpoint."""
        if self.watch is None or not self._trains or self._inside:
            return
        if control.should_evaluate:
            self._evaluates = True
            self.watch.pause("eval")
        elif control.should_save:
            self.watch.pause("checkpoint")
        elif not control.should_training_stop:
            self.watch.start()


def _rows(args: Any, loader: Any) -> int | None:
    """Return the examples in a batch, over all processes; None if batches differ. The loader knows better than the
    arguments: it may be the user's own, or auto_find_batch_size has halved the size."""
    sampler = getattr(loader, "batch_sampler", None)
    rows = getattr(loader if sampler is None else sampler, "batch_size", None)
    return rows * args.world_size if isinstance(rows, int) else None


def _of_epoch(loader: Any) -> tuple[int, int] | None:
    """Return the batches and examples of an epoch; None for a stream, whose length is unknown."""
    try:
        return len(loader), len(loader.dataset)
    except (AttributeError, TypeError):
        return None


def _examples(args: Any, loader: Any) -> int | None:
    """Return the examples of an iteration: of the accumulated batches, or of a whole epoch that has fewer."""
    rows, known = _rows(args, loader), _of_epoch(loader)
    if rows is None or known is None or known[0] > args.gradient_accumulation_steps:
        return None if rows is None else rows * args.gradient_accumulation_steps
    batches, n = known
    return n if args.world_size == 1 and batches == math.ceil(n / rows) else batches * rows


def _cut_short(args: Any, state: Any, loader: Any) -> bool:
    """Return whether the finished update had fewer examples than the others: the remainder of an epoch."""
    rows, known = _rows(args, loader), _of_epoch(loader)
    if known is None:
        return bool(accelerate.state.GradientState().end_of_dataloader)
    batches, n = known
    if state.epoch != int(state.epoch) or batches <= args.gradient_accumulation_steps:
        return False
    if batches % args.gradient_accumulation_steps:
        return True
    # if several processes share an epoch, accelerate pads their last batches
    return args.world_size == 1 and rows is not None and batches == math.ceil(n / rows) and n % rows != 0


def _asked(args: Any, model: Any) -> dict[str, Any]:
    """Return the fields of hello that follow from the Trainer's arguments and its model."""
    fields = {
        "framework": "torch",
        "dtype": "fp16" if args.fp16 else "bf16" if args.bf16 else _DTYPES.get(str(getattr(model, "dtype", ""))),
        "seed": args.seed,
        "optimizer": str(getattr(args.optim, "value", args.optim)),
        "processes": args.world_size,
    }
    if model is not None:
        fields["workload"] = type(model).__name__
        fields["params"] = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return {key: value for key, value in fields.items() if value is not None}


def _measured(metrics: Mapping[str, Any]) -> tuple[str, dict[str, float], float | None]:
    """Return split, metrics and seconds of {"eval_loss": 0.7, "eval_runtime": 1.2}; the split "eval" is called val."""
    prefix = next((key.removesuffix("_runtime") for key in metrics if key.endswith("_runtime")), "eval")
    measured = {
        key.removeprefix(f"{prefix}_"): float(value)
        for key, value in metrics.items()
        if key.startswith(f"{prefix}_") and isinstance(value, (int, float))
    }
    dur_s = measured.get("runtime")
    values = {key: value for key, value in measured.items() if key not in _SPEEDS}
    return prefix.removeprefix("eval_") if prefix != "eval" else "val", values, dur_s
