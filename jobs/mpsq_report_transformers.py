"""A callback that reports the training of a Hugging Face Trainer to mpsq (docs/protocol.md):

    from mpsq_report import TrainerCallback

    trainer = Trainer(..., callbacks=[TrainerCallback()])

Import it from an installed mpsq, or copy mpsq_report.py, mpsq_report_watch.py and this file beside your program. It
does nothing without MPSQ_EVENTS, and never raises into the training.

An iteration goes from the end of the one before it to the end of its optimizer step: its batches are fetched, forward,
backward, update. The Trainer's logs, evaluations and checkpoints, and what other callbacks do there, are in none. The
Trainer tells the losses that it logs: of each iteration with logging_steps=1, else means of those since its last log.
One of fewer examples, at the end of an epoch that the others do not divide, is left out: it would look fast.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import transformers

from mpsq_report import Reporter
from mpsq_report_watch import WARMUP_ITERS, Watch, facts_of_torch, harmless, of_torch

PACKAGES = ("transformers", "accelerate", "datasets", "tokenizers")
_SPEEDS = ("runtime", "samples_per_second", "steps_per_second", "model_preparation_time")
_DTYPES = {"torch.float32": "fp32", "torch.bfloat16": "bf16", "torch.float16": "fp16"}


class TrainerCallback(transformers.TrainerCallback):
    """Reports iterations, losses, evaluations and phases. `warmup_iters` after the first are not measured.

    For a Trainer of one's own: `loss` returns the loss of the iteration that has just ended, where it keeps it; `watch`
    and its report are taken instead of new ones.
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
        self._logged_at = 0
        self._trains = False
        self._says_hello = watch is None
        if self._says_hello:
            self.report.begin("setup", since_start=True)

    def evaluated(self, done: int, split: str, metrics: Mapping[str, float], dur_s: float | None) -> None:
        """An evaluation after `done` iterations is over."""
        self.report.eval(done, split, dict(metrics), dur_s)

    @harmless
    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self.off = not state.is_world_process_zero
        self._logged_at, self._trains = state.global_step, True
        if self.off or not self._says_hello or not self.report.active:
            return
        told = of_torch(args.device)
        self.watch = Watch(self.report, **told, warmup_iters=self._warmup_iters, compiled=bool(args.torch_compile))
        self.report.hello(**facts_of_torch(args.device, PACKAGES), **_asked(args, state, more.get("model")))
        self.report.end("setup")

    @harmless
    def on_epoch_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        if self.watch:
            self.watch.start()

    @harmless
    def on_step_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        if self.watch and not self.watch.running:  # what was to follow the last one, or to end it, did not come
            self.watch.start()

    @harmless
    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        if (watch := self.watch) is None:
            return
        if _cut_short(args, state, more.get("train_dataloader")):
            if self._loss is not None:
                self._loss()  # else its batches' losses would be added to those of the next one
        else:
            watch.stop(state.global_step - 1, loss_follows=control.should_log or self._loss is not None)
            if self._loss is not None and watch.waiting:
                watch.loss(self._loss())
        if not control.should_log:  # the default callbacks came first: what is to follow is decided
            self._go_on(control)

    @harmless
    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **more: Any) -> None:
        if (watch := self.watch) is None or not logs or "loss" not in logs:
            return
        since, self._logged_at = state.global_step - self._logged_at, state.global_step
        i, loss, norm = state.global_step - 1, float(logs["loss"]), float(logs.get("grad_norm") or 0.0)
        if self._loss is None:
            if watch.waiting and since == 1:
                watch.loss(loss)
            else:
                self.report.metric("loss_mean", loss, "nats", i)
            if (
                not math.isfinite(norm) and not args.fp16
            ):  # scaled gradients of fp16 overflow now and then, and are left
                self.report.note("nan_loss", f"the norm of the gradient is {norm} in iteration {i}")
        self._go_on(control)

    @harmless
    def on_epoch_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        if control.should_evaluate or control.should_save:
            self._go_on(control)

    @harmless
    def on_prediction_step(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        if self.watch:
            self.watch.pause("eval")

    @harmless
    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: Mapping[str, Any] | None = None, **more: Any
    ) -> None:
        if self.watch:
            self.watch.resume()
            self.evaluated(state.global_step, *_measured(metrics or {}))
            self._go_on(control)

    @harmless
    def on_predict(self, args: Any, state: Any, control: Any, metrics: Any = None, **more: Any) -> None:
        if self.watch:
            self.watch.resume()

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

    def _go_on(self, control: Any) -> None:
        """An iteration or what followed it is over: what comes next?"""
        if self.watch is None or not self._trains:
            return
        if control.should_evaluate:
            self.watch.pause("eval")
        elif control.should_save:
            self.watch.pause("checkpoint")
        elif not control.should_training_stop:
            self.watch.start()


def _cut_short(args: Any, state: Any, loader: Any) -> bool:
    """Whether the update that is over was of fewer examples than the others: an epoch's last, of what was left."""
    try:
        batches, n = len(loader), len(loader.dataset)
    except (AttributeError, TypeError):  # a stream of examples: nobody knows its length
        return False
    updates = math.ceil(batches / args.gradient_accumulation_steps)
    if updates < 2 or state.global_step % updates:
        return False
    if batches % args.gradient_accumulation_steps:
        return True
    rows = args.train_batch_size
    # where several processes share an epoch, accelerate fills their last batches up
    return args.world_size == 1 and batches == math.ceil(n / rows) and n % rows != 0


def _asked(args: Any, state: Any, model: Any) -> dict[str, Any]:
    """hello's fields that are in the Trainer's arguments, its state and its model."""
    said = {
        "framework": "torch",
        "dtype": "fp16" if args.fp16 else "bf16" if args.bf16 else _DTYPES.get(str(getattr(model, "dtype", ""))),
        "seed": args.seed,
        "compile": bool(args.torch_compile),
        "optimizer": str(getattr(args.optim, "value", args.optim)),
        "planned_iters": state.max_steps,
        "samples_per_iter": args.train_batch_size * args.gradient_accumulation_steps * args.world_size,
        "processes": args.world_size,
    }
    if model is not None:
        said["workload"] = type(model).__name__
        said["params"] = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return {key: value for key, value in said.items() if value is not None}


def _measured(metrics: Mapping[str, Any]) -> tuple[str, dict[str, float], float | None]:
    """Split, measures and seconds of {"eval_loss": 0.7, "eval_runtime": 1.2}; the Trainer's "eval" is called val."""
    prefix = next((key.removesuffix("_runtime") for key in metrics if key.endswith("_runtime")), "eval")
    measured = {
        key.removeprefix(f"{prefix}_"): float(value)
        for key, value in metrics.items()
        if key.startswith(f"{prefix}_") and isinstance(value, (int, float))
    }
    dur_s = measured.get("runtime")
    kept = {key: value for key, value in measured.items() if key not in _SPEEDS}
    return prefix.removeprefix("eval_") if prefix != "eval" else "val", kept, dur_s
