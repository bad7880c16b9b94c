# /// script
# requires-python = ">=3.10"
# dependencies = ["torch>=2.9", "numpy", "transformers>=5", "accelerate>=1.10", "datasets>=4"]
# ///
"""BERT fine-tuned by Hugging Face's Trainer to recognise paraphrases, or on another task of GLUE:
`python jobs/glue_torch.py --device cpu --config toy`.

The tasks, their settings and metrics are those of transformers' example run_glue.py; the code is our own.
The loop is the Trainer's. Its iterations are timed as everywhere, through the callback that any Trainer can use
(mpsq_report_transformers.py).

Top to bottom: settings, build(), train(). Pairs and model are in harness/torch_backend/pairs.py, the Trainer and its
arguments in harness/torch_backend/trainer.py.
"""

from __future__ import annotations

if __name__ == "__main__":  # before the import of torch: signals may arrive during it
    from harness import start

    start.quietly("torch", "transformers", "accelerate")

import math
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from harness import external_trainer
from harness.command_line import Options
from harness.data.glue import measures
from harness.data.pairs import Pairs
from harness.data.pairs import load as load_pairs
from harness.errors import JobError, UsageError, first_line
from harness.external_trainer import TrainerRun
from harness.torch_backend.device import Device
from harness.torch_backend.main import Torch
from harness.torch_backend.pairs import Loss, classifier_of, flops, rows_of
from harness.torch_backend.trainer import Callback, Trainer, arguments_of
from harness.torch_backend.training import Reference
from harness.training import Training as AnyTraining
from harness.training import versions
from mpsq_report_transformers import PACKAGES

WORKLOAD = {
    "name": "glue",
    "framework": "torch",
    "about": "BERT fine-tuned on pairs of sentences by Hugging Face's Trainer, as run_glue.py does it with MRPC.",
    "source": "Devlin et al. 2018 (BERT); settings: github.com/huggingface/transformers, examples, run_glue.py",
    "prepares": True,
    "unit": "samples",
    "params": {
        "data": {
            "default": "mrpc", "unit": "",
            "path_or": ["mrpc", "cola", "mnli", "qnli", "qqp", "rte", "sst2", "stsb", "wnli", "paraphrases"],
            "help": "a task of GLUE (from the Hugging Face hub), paraphrases (generated), or the path of a csv or "
            "jsonl file with sentence1, sentence2 and label",
        },
        "train_pairs": {
            "default": 3668, "unit": "pairs", "least": 1,
            "help": "training pairs of data=paraphrases; by default as many as MRPC has",
        },
        "eval_pairs": {
            "default": 408, "unit": "pairs", "least": 1,
            "help": "validation pairs of data=paraphrases; by default as many as MRPC has",
        },
        "model": {
            "default": "google-bert/bert-base-cased", "unit": "",
            "help": "a model's name on the hub, the path of its folder, or random: a BERT of the size below",
        },
        "n_layer": {"default": 12, "unit": "blocks", "least": 1, "help": "depth of model=random"},
        "n_head": {
            "default": 12, "unit": "heads", "least": 1,
            "help": "attention heads of model=random; divides n_embd",
        },
        "n_embd": {
            "default": 768, "unit": "features", "least": 1, "multiple_of": "n_head",
            "help": "width of model=random",
        },
        "vocab_size": {  # the least: the letters, alone and within words
            "default": 30522, "unit": "tokens", "least": 100,
            "help": "largest vocabulary of model=random, which is built from the data",
        },
        "max_length": {  # the least: special tokens take up to 4
            "default": 128, "unit": "tokens", "least": 8,
            "help": "length of a pair: longer ones are cut, shorter ones padded",
        },
        "batch_size": {"default": 32, "unit": "pairs", "least": 1, "help": "pairs in one forward and backward pass"},
        "eval_batch_size": {"default": 8, "unit": "pairs", "least": 1, "help": "pairs in a batch of an evaluation"},
        "grad_accum": {"default": 1, "unit": "batches", "least": 1, "help": "batches whose gradients make one update"},
        "epochs": {
            "default": 3, "unit": "epochs", "least": 1,
            "help": "how often each pair is seen, unless max_iters is given",
        },
        "max_iters": {
            "default": 0, "unit": "iterations", "least": 0,
            "help": "number of updates; 0: as many as the epochs have",
        },
        "warmup_iters": {
            "default": 10, "unit": "iterations", "least": 0,
            "help": "iterations after the first that are not measured",
        },
        "eval_interval": {
            "default": 0, "unit": "iterations", "least": 0,
            "help": "iterations between evaluations; there is always one at the end",
        },
        "log_interval": 10,
        "lr": {"default": 2e-5, "unit": "", "least": 0, "help": "learning rate at the start; it falls linearly to 0"},
        "weight_decay": {"default": 0.0, "unit": "", "least": 0, "help": "weight decay of matrices"},
        "optim": {"default": "adamw_torch_fused", "unit": "", "help": "the optimizer, by the Trainer's name for it"},
        "workers": {
            "default": 0, "unit": "processes", "least": 0,
            "help": "processes that load batches; 0: the training process loads them",
        },
        "stop_on_nan": False,
        "threads": 0,
    },
    "configs": {
        "mrpc": {"data": "mrpc", "model": "google-bert/bert-base-cased"},
        "offline": {"data": "paraphrases", "model": "random"},
        "toy": {
            "data": "paraphrases", "model": "random", "train_pairs": 960, "eval_pairs": 200, "n_layer": 1, "n_head": 2,
            "n_embd": 32, "vocab_size": 400, "max_length": 48, "batch_size": 16, "eval_batch_size": 50, "epochs": 3,
            "lr": 3e-3, "warmup_iters": 5,
        },
    },
    "aliases": {
        "task_name": "data", "model_name_or_path": "model", "max_seq_length": "max_length",
        "per_device_train_batch_size": "batch_size", "per_device_eval_batch_size": "eval_batch_size",
        "gradient_accumulation_steps": "grad_accum", "learning_rate": "lr", "num_train_epochs": "epochs",
        "max_steps": "max_iters", "eval_steps": "eval_interval",
    },
    "gone": {
        "use_mps_device": "the Trainer uses mps automatically where it is available: write --device mps",
        "no_cuda": "write --device cpu (in TrainingArguments of transformers 5: use_cpu)",
        "use_cpu": "write --device cpu",
        "evaluation_strategy": "transformers 5 calls it eval_strategy; here: --set eval_interval=N",
        "eval_strategy": "write --set eval_interval=N; one evaluation comes at the end in any case",
        "per_gpu_train_batch_size": "write --set batch_size=N",
        "fp16": "write --dtype fp16",
        "bf16": "write --dtype bf16",
        "torch_compile": "write --compile on",
        "seed": "write --seed N",
        "output_dir": "leave it out: each run has its own folder (without mpsq: --out DIR)",
    },
}  # fmt: skip


@dataclass(kw_only=True)
class Training(AnyTraining):
    """The harness's Training, with the Trainer and its data."""

    device: Device
    model: Loss
    """the weights, on the device"""
    forward: Callable[..., Any]
    trainer: Trainer
    pairs: Pairs
    others: dict[str, list[dict[str, torch.Tensor]]]
    """further held-out data by split"""

    def n_params(self) -> int:
        return sum(p.numel() for p in self.model.parameters() if p.requires_grad)


class Glue(Torch):
    """torch as a Framework, with the versions of the packages behind the Trainer."""

    def facts(self, device: Device) -> dict[str, Any]:
        facts = super().facts(device)
        return {**facts, "versions": facts["versions"] | versions(PACKAGES)}


def build(options: Options, device: Device) -> Training:
    """Build data, tokenizer, model, reference loss and Trainer. Raises: UsageError, JobError."""
    s = options.settings
    arguments = arguments_of(options, device, str(options.out or Path(tempfile.gettempdir(), "mpsq-glue")))
    pairs = load_pairs(s.data, s.train_pairs, s.eval_pairs, options.seed)
    if (pairs_per_iter := s.batch_size * s.grad_accum) > len(pairs.train):
        raise UsageError(
            f"an iteration of {pairs_per_iter:,} pairs is more than an epoch, {len(pairs.train):,} pairs",
            "a smaller batch_size or grad_accum; with generated pairs a larger train_pairs",
        )
    tokenizer, classifier = classifier_of(options, pairs)
    train_set, eval_set = (rows_of(part, tokenizer, s.max_length) for part in (pairs.train, pairs.val))
    others = {split: rows_of(part, tokenizer, s.max_length) for split, part in pairs.others.items()}
    names = tuple(train_set[0])
    model = Loss(classifier, names)
    reference = Reference(model, tuple(torch.stack([row[name] for row in train_set[: s.batch_size]]) for name in names))
    try:
        trainer = Trainer(
            model=classifier,
            args=arguments,
            data_collator=transformers.default_data_collator,  # as in run_glue.py: all rows are padded already
            train_dataset=train_set,
            eval_dataset=eval_set,
            processing_class=tokenizer,  # to be saved beside the model
            compute_metrics=measures(pairs.task),
        )
    except ValueError as error:  # such as a dtype that accelerate does not support on this device
        raise JobError(f"the Trainer refuses: {first_line(error)}", "--dtype fp32, --compile off") from None
    except OSError as error:
        raise JobError(f"the folder {arguments.output_dir} cannot be made: {error.strerror}", "another --out") from None
    reference.copy_shared(model)  # the Trainer has moved it to its device
    trainer.losses = []
    trainer.remove_callback(transformers.PrinterCallback)
    batches = math.ceil(len(train_set) / s.batch_size)
    s.max_iters = s.max_iters or s.epochs * math.ceil(batches / s.grad_accum)
    return Training(
        options=options,
        device=device,
        model=model,
        forward=(lambda *batch: trainer.model_wrapped(**dict(zip(names, batch, strict=True))).loss)
        if options.compile
        else model,
        trainer=trainer,
        pairs=pairs,
        others=others,
        **_loss(pairs, reference),
        optimizer_name=f"AdamW({s.optim})" if s.optim.startswith("adamw") else s.optim,
        reference=reference,
        data=pairs.fields(),
        flops_per_iter=flops(classifier.config, pairs_per_iter, s.max_length),
        per_iter=pairs_per_iter,
    )


def _loss(pairs: Pairs, reference: Reference) -> dict[str, Any]:
    """Return the fields of Training about the loss. That of a score is its squared error, (y - x)^2, which changes by
    2 |y - x| where the model's output x changes by 1."""
    if pairs.task.labels > 1:
        return {}
    return {"loss_unit": "score^2", "loss_slope": max(1.0, 2.0 * math.sqrt(reference.cpu or 0.0))}


def train(training: Training, run: TrainerRun) -> None:
    """Do all iterations, then one evaluation of the held-out pairs. Raises: JobError."""
    trainer, options = training.trainer, training.options
    trainer.add_callback(Callback(trainer, run))
    try:
        trainer.train()
    except ImportError as error:  # a missing package of the optimizer
        hint = "install it there, or --set optim=adamw_torch_fused, which needs none"
        raise JobError(f"the Trainer refuses: {first_line(error)}", hint) from None
    if (majority := training.pairs.majority()) is not None:
        run.report.metric("majority_accuracy", majority, "share")
    state = trainer.state
    if not any("eval_loss" in log and log["step"] == state.global_step for log in state.log_history):
        trainer.evaluate()  # newer Trainers with an interval have evaluated at the end
    for split, rows in training.others.items():
        trainer.evaluate(rows, metric_key_prefix=f"eval_{split}")
    if options.out is not None:
        with run.report.phase("checkpoint"):
            trainer.save_model(str(options.out))
        print(f"saved {options.out}")


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    sys.exit(external_trainer.main(WORKLOAD, Glue(), build, train))
