# /// script
# requires-python = ">=3.10"
# dependencies = ["torch>=2.9", "numpy", "transformers>=5", "accelerate>=1.10", "datasets>=4"]
# ///
"""BERT fine-tuned by the Trainer of Hugging Face's transformers to tell whether two sentences say the same:
`python jobs/glue_torch.py --device cpu --config toy`.

The task, its settings and its measures are those of transformers' example run_glue.py with MRPC; the code is our own.
The loop is the Trainer's. Its iterations are timed as everywhere, through the callback that anybody may give to a
Trainer of his own (mpsq_report_transformers.py).

Top to bottom: what can be set, data and model, build(), train().
"""

from __future__ import annotations

if __name__ == "__main__":  # before torch, whose import takes a second in which a signal may come
    from harness import start

    start.quietly("torch", "transformers", "accelerate")

import math
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertConfig, TrainingArguments

from harness import foreign, hello, pairs_data, torch_main, torch_training
from harness.command_line import Options
from harness.foreign import Course
from harness.pairs_data import Pair, Pairs
from harness.problems import JobError, UsageError
from harness.torch_device import Device
from harness.training import Training as AnyTraining
from harness.word_pieces import tokenizer_of
from mpsq_report_transformers import PACKAGES, TrainerCallback

WORKLOAD = {
    "name": "glue",
    "framework": "torch",
    "about": "BERT fine-tuned on pairs of sentences by Hugging Face's Trainer, as run_glue.py does it with MRPC.",
    "source": "Devlin et al. 2018 (BERT); settings: github.com/huggingface/transformers, examples, run_glue.py",
    "unit": "samples",
    "params": {
        "data": {
            "default": "mrpc", "unit": "", "path_or": ["mrpc", "paraphrases"],
            "help": "mrpc (from the Hugging Face hub), paraphrases (generated), or the path of a csv or jsonl file "
            "with sentence1, sentence2 and label",
        },
        "train_pairs": {
            "default": 3668, "unit": "pairs", "least": 1,
            "help": "of data=paraphrases; as many as MRPC has",
        },
        "eval_pairs": {
            "default": 408, "unit": "pairs", "least": 1,
            "help": "of data=paraphrases, held out; as many as MRPC has",
        },
        "model": {
            "default": "bert-base-cased", "unit": "",
            "help": "a model's name on the hub, the path of its folder, or random: a BERT of the size below",
        },
        "n_layer": {"default": 12, "unit": "blocks", "least": 1, "help": "depth of model=random"},
        "n_head": {
            "default": 12, "unit": "heads", "least": 1,
            "help": "attention heads of model=random; divides n_embd",
        },
        "n_embd": {"default": 768, "unit": "features", "least": 1, "help": "width of model=random"},
        "vocab_size": {  # the letters, by themselves and inside of words
            "default": 30522, "unit": "tokens", "least": 100,
            "help": "at most, of model=random; made of the data",
        },
        "max_length": {  # up to 4 are none of a pair's words
            "default": 128, "unit": "tokens", "least": 8,
            "help": "of a pair: longer ones are cut, shorter ones padded",
        },
        "batch_size": {"default": 32, "unit": "pairs", "least": 1, "help": "pairs in one forward and backward"},
        "eval_batch_size": {"default": 8, "unit": "pairs", "least": 1, "help": "in an evaluation"},
        "grad_accum": {"default": 1, "unit": "batches", "least": 1, "help": "batches whose gradients make one update"},
        "epochs": {
            "default": 3, "unit": "epochs", "least": 1,
            "help": "how often each pair is seen, unless max_iters is given",
        },
        "max_iters": {
            "default": 0, "unit": "iterations", "least": 0,
            "help": "updates to make; 0: those of the epochs",
        },
        "warmup_iters": {
            "default": 10, "unit": "iterations", "least": 0, "help": "iterations after the first that are not measured",
        },
        "eval_interval": {
            "default": 0, "unit": "iterations", "least": 0,
            "help": "evaluate each time so many are done, besides the evaluation at the end",
        },
        "log_interval": {
            "default": 10, "unit": "iterations", "least": 1,
            "help": "print every so many; all of them are reported",
        },
        "lr": {"default": 2e-5, "unit": "", "least": 0, "help": "learning rate at the start; it falls linearly to 0"},
        "weight_decay": {"default": 0.0, "unit": "", "least": 0, "help": "on matrices"},
        "optim": {"default": "adamw_torch_fused", "unit": "", "help": "the Trainer's name of its optimizer"},
        "workers": {
            "default": 0, "unit": "processes", "least": 0,
            "help": "that load batches; 0: the training process does",
        },
        "stop_on_nan": {"default": False, "unit": "", "help": "end when a loss is not a number"},
        "threads": {"default": 0, "unit": "threads", "least": 0, "help": "of the CPU; 0: torch's own choice"},
    },
    "configs": {
        "mrpc": {"data": "mrpc", "model": "bert-base-cased"},
        "offline": {"data": "paraphrases", "model": "random"},
        "toy": {
            "data": "paraphrases", "model": "random", "train_pairs": 960, "eval_pairs": 200, "n_layer": 1, "n_head": 2,
            "n_embd": 32, "vocab_size": 400, "max_length": 48, "batch_size": 16, "eval_batch_size": 50, "epochs": 3,
            "lr": 3e-3, "warmup_iters": 5,
        },
    },
    "gone": {
        "use_mps_device": "the Trainer takes mps by itself where it is available: write --device mps",
        "no_cuda": "write --device cpu (in TrainingArguments of transformers 5: use_cpu)",
        "use_cpu": "write --device cpu",
        "evaluation_strategy": "transformers 5 calls it eval_strategy; here: --set eval_interval=N",
        "eval_strategy": "write --set eval_interval=N; one evaluation comes at the end in any case",
        "per_gpu_train_batch_size": "write --set batch_size=N",
        "per_device_train_batch_size": "write --set batch_size=N",
        "per_device_eval_batch_size": "write --set eval_batch_size=N",
        "gradient_accumulation_steps": "write --set grad_accum=N",
        "learning_rate": "write --set lr=X",
        "num_train_epochs": "write --set epochs=N",
        "max_steps": "write --set max_iters=N",
        "max_seq_length": "write --set max_length=N",
        "model_name_or_path": "write --set model=NAME",
        "task_name": "write --set data=mrpc",
        "fp16": "write --dtype fp16",
        "bf16": "write --dtype bf16",
        "torch_compile": "write --compile on",
        "seed": "write --seed N",
        "output_dir": "leave it away: a run's folder is its own (by hand: --out DIR)",
    },
}  # fmt: skip


class Loss(nn.Module):
    """A batch in the order of `names` to the mean loss of the classifier, in nats."""

    def __init__(self, classifier: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.classifier, self.names = classifier, tuple(names)

    def forward(self, *batch: torch.Tensor) -> torch.Tensor:
        return self.classifier(**dict(zip(self.names, batch, strict=True))).loss


class Trainer(transformers.Trainer):
    """The Trainer, which keeps the losses of the batches: it tells those only that it logs, and hides those of nan."""

    loss_is_scaled_for_ga = False
    """Else it takes BERT's loss, which is a mean, for a sum already divided by all examples of grad_accum batches."""

    losses: list[torch.Tensor]

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        loss = super().training_step(*args, **kwargs)
        self.losses.append(loss)
        return loss

    def loss_of_iteration(self) -> float:
        """The loss of the batches since the last call, each divided by their number already."""
        total, self.losses = torch.stack(self.losses).sum(), []
        return float(total)


@dataclass(kw_only=True)
class Training(AnyTraining):
    """The harness's Training, and what the Trainer takes."""

    device: Device
    model: Loss
    """the weights, on the device"""
    forward: Callable[..., Any]
    trainer: Trainer
    pairs: Pairs

    def n_params(self) -> int:
        return sum(p.numel() for p in self.model.parameters() if p.requires_grad)


class Glue(torch_main.Torch):
    """torch's side of the harness, with the versions of what the Trainer is made of."""

    def facts(self, device: Device) -> dict[str, Any]:
        facts = super().facts(device)
        return {**facts, "versions": facts["versions"] | hello.versions(PACKAGES)}


def classifier_of(options: Options, pairs: Pairs) -> tuple[Any, Any]:
    """The tokenizer and the model with its weights, on the CPU. Raises: JobError, UsageError."""
    s = options.settings
    torch.manual_seed(options.seed)  # for what is drawn: all weights of a random model, those of the last layer else
    if s.model != "random":
        if (missing := _missing(s.model)) is not None:
            raise JobError(f'the model "{s.model}" cannot be had: {missing}', _MODEL_HINT)
        try:
            tokenizer = AutoTokenizer.from_pretrained(s.model)
            model = AutoModelForSequenceClassification.from_pretrained(s.model, num_labels=2, dtype="float32")
        except (OSError, ValueError, KeyError) as error:
            said = _first_line(error)
            raise JobError(
                f'the model "{s.model}" cannot be had: {said}', _MODEL_HINT, note="download_failed"
            ) from None
        if len(tokenizer) <= len(tokenizer.all_special_ids):  # transformers makes an empty one of a folder without any
            raise JobError(f'the model "{s.model}" has no tokenizer', "save it beside the model: save_pretrained()")
        return tokenizer, model
    if s.n_embd % s.n_head:
        raise UsageError(f"n_embd={s.n_embd} cannot be divided into n_head={s.n_head} heads", "768 has 12, for example")
    texts = (text for pair in pairs.train for text in (pair.first, pair.second))
    tokenizer = tokenizer_of(texts, s.vocab_size, s.max_length)
    shape = BertConfig(
        vocab_size=max(s.vocab_size, len(tokenizer)),
        hidden_size=s.n_embd,
        num_hidden_layers=s.n_layer,
        num_attention_heads=s.n_head,
        intermediate_size=4 * s.n_embd,
        max_position_embeddings=max(512, s.max_length),
        num_labels=2,
    )
    return tokenizer, AutoModelForSequenceClassification.from_config(shape)


_MODEL_HINT = "--set model=random needs no network; model=PATH takes the folder of a model that is here"


def _missing(name: str) -> str | None:
    """What a folder lacks to be that of a model; None where all may be well, or `name` is of the hub."""
    folder = Path(name)
    if folder.is_dir():
        return (
            None
            if (folder / "config.json").is_file()
            else "the folder holds no config.json, as save_pretrained() writes it"
        )
    if folder.is_file():
        return "it is a file, not the folder of a model"
    return "there is no such folder" if folder.is_absolute() or name.startswith((".", "~")) else None


def rows_of(pairs: Sequence[Pair], tokenizer: Any, length: int) -> list[dict[str, torch.Tensor]]:
    """The pairs as a Trainer takes them: each of the same length, as run_glue.py pads them."""
    first, second = [pair.first for pair in pairs], [pair.second for pair in pairs]
    made = tokenizer(first, second, padding="max_length", truncation=True, max_length=length, return_tensors="pt")
    labels = torch.tensor([pair.label for pair in pairs])
    return [{**{name: made[name][n] for name in made}, "labels": labels[n]} for n in range(len(pairs))]


def flops(shape: Any, batch: int, length: int) -> float:
    """FLOP of one iteration, forward and twice as many backward; a multiplication and an addition are two.

    A block: queries, keys, values and output (4 d^2), feed-forward (2 d f), scores and their sums of values (2 T d),
    for each token. The pooler (d^2) and the classifier see one token of a pair. Embeddings are looked up.
    """
    d, labels = shape.hidden_size, shape.num_labels
    f = getattr(shape, "intermediate_size", None) or getattr(shape, "hidden_dim", None) or 4 * d
    token = shape.num_hidden_layers * (4 * d * d + 2 * d * f + 2 * length * d)
    return 3 * 2.0 * batch * (length * token + d * d + d * labels)


def measures(predicted: Any) -> dict[str, float]:
    """Accuracy, and F1 of the paraphrases: 2 TP / (2 TP + FP + FN). `predicted`: logits (n, 2) and labels (n,)."""
    found, labels = np.argmax(predicted.predictions, axis=-1), predicted.label_ids
    both = int(np.sum((found == 1) & (labels == 1)))
    either = int(np.sum(found == 1)) + int(np.sum(labels == 1))
    return {"accuracy": float(np.mean(found == labels)), "f1": 2 * both / either if either else 0.0}


def arguments_of(options: Options, device: Device, folder: str) -> TrainingArguments:
    """What run_glue.py would get on its command line. Raises: UsageError."""
    s = options.settings
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
            use_cpu=device.kind == "cpu",
            dataloader_num_workers=s.workers,
            dataloader_pin_memory=device.kind == "cuda",
        )
        chosen = arguments.device
    except (ValueError, ImportError) as error:
        raise UsageError(f"the Trainer refuses: {_first_line(error)}") from None
    if chosen.type != device.kind:
        raise UsageError(f"the Trainer takes {chosen} here, not {device}", f"--device {chosen.type}")
    arguments._n_gpu = min(arguments._n_gpu, 1)  # else it spreads each batch over all GPUs that it sees
    return arguments


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


def build(options: Options, device: Device) -> Training:
    """Data, tokenizer, model, reference loss, Trainer: all that is done once."""
    s = options.settings
    arguments = arguments_of(options, device, str(options.out or Path(tempfile.gettempdir(), "mpsq-glue")))
    pairs = pairs_data.load(s.data, s.train_pairs, s.eval_pairs, options.seed)
    if (pairs_per_iter := s.batch_size * s.grad_accum) > len(pairs.train):
        raise UsageError(
            f"an iteration of {pairs_per_iter:,} pairs is more than an epoch, {len(pairs.train):,} pairs",
            "a smaller batch_size or grad_accum; with generated pairs a larger train_pairs",
        )
    tokenizer, classifier = classifier_of(options, pairs)
    train_set, eval_set = (rows_of(part, tokenizer, s.max_length) for part in (pairs.train, pairs.val))
    names = tuple(train_set[0])
    model = Loss(classifier, names)
    reference = torch_training.Reference(
        model, tuple(torch.stack([row[name] for row in train_set[: s.batch_size]]) for name in names)
    )
    try:
        trainer = Trainer(
            model=classifier,
            args=arguments,
            data_collator=transformers.default_data_collator,  # as in run_glue.py: all rows are padded already
            train_dataset=train_set,
            eval_dataset=eval_set,
            processing_class=tokenizer,  # to be saved beside the model
            compute_metrics=measures,
        )
    except ValueError as error:  # such as a dtype that accelerate has not for this device
        raise JobError(f"the Trainer refuses: {_first_line(error)}", "--dtype fp32, --compile off") from None
    except OSError as error:
        raise JobError(f"the folder {arguments.output_dir} cannot be made: {error.strerror}", "another --out") from None
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
        optimizer_name=f"AdamW({s.optim})" if s.optim.startswith("adamw") else s.optim,
        reference=reference,
        data=pairs.said(),
        flops_per_iter=flops(classifier.config, pairs_per_iter, s.max_length),
        per_iter=pairs_per_iter,
    )


class Callback(TrainerCallback):
    """The callback that any Trainer may have, telling this workload's course."""

    def __init__(self, training: Training, course: Course) -> None:
        super().__init__(watch=course.watch, loss=training.trainer.loss_of_iteration)
        self._course = course

    def evaluated(self, done: int, split: str, metrics: Mapping[str, float], dur_s: float | None) -> None:
        self._course.evaluated(done, split, metrics, dur_s)

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        super().on_step_end(args, state, control, **more)
        control.should_training_stop = control.should_training_stop or self._course.stopping


def train(training: Training, course: Course) -> None:
    """All iterations, then one evaluation of the pairs held out."""
    trainer, options = training.trainer, training.options
    trainer.add_callback(Callback(training, course))
    try:
        trainer.train()
    except ImportError as error:  # of a package that makes the optimizer
        hint = "install it there, or --set optim=adamw_torch_fused, which needs none"
        raise JobError(f"the Trainer refuses: {_first_line(error)}", hint) from None
    course.report.metric("majority_accuracy", training.pairs.majority(), "share")
    if not options.settings.eval_interval or options.settings.max_iters % options.settings.eval_interval:
        trainer.evaluate()
    if options.out is not None:
        with course.report.phase("checkpoint"):
            trainer.save_model(str(options.out))
        print(f"saved {options.out}")


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    sys.exit(foreign.main(WORKLOAD, Glue(), build, train))
