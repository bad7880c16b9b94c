# /// script
# requires-python = ">=3.10"
# dependencies = ["torch>=2.9", "transformers>=5", "numpy"]
# ///
"""BERT that classifies sequences, in PyTorch: `python jobs/bert_torch.py --device cpu --config toy`.

The model is transformers' BertForSequenceClassification (Devlin et al., "BERT: Pre-training of Deep Bidirectional
Transformers for Language Understanding", 2019), built from its configuration: nothing is downloaded, weights are drawn.
base is bert-base-uncased with 2 classes, 109,483,778 parameters. A batch has 64 sequences as in "Accelerated PyTorch
training on Mac". Sequences are synthetic, all of the same length, without padding.

Top to bottom: settings, the data, the model, build(). Iterations: harness/torch_backend/classifying.py.
"""

from __future__ import annotations

if __name__ == "__main__":  # before the import of torch: signals may arrive during it
    from harness import start

    start.quietly("torch", "transformers")

import sys
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

from harness.command_line import Options
from harness.data.examples import STREAMS, Examples
from harness.errors import UsageError
from harness.torch_backend import classifying
from harness.torch_backend.classifying import Classifier, Training
from harness.torch_backend.device import Device
from harness.torch_backend.main import main
from harness.torch_backend.training import adamw

WORKLOAD = {
    "name": "bert",
    "framework": "torch",
    "about": "BERT that classifies sequences: throughput of training, and of evaluation with mode=eval.",
    "source": "Devlin et al. 2019 (BERT), as transformers' BertForSequenceClassification",
    "prepares": True,
    "unit": "samples",
    "params": {
        "mode": {
            "default": "train", "unit": "", "choices": ["train", "eval"],
            "help": "train, or eval: only the forward pass, as in inference",
        },
        "sequences": {
            "default": 1024, "unit": "sequences", "least": 2,
            "help": "number of sequences drawn; an eighth of them is for evaluation",
        },
        "pool": {
            "default": "device", "unit": "", "choices": ["device", "host"],
            "help": "where the sequences are kept: device, or host (each batch is copied in its iteration)",
        },
        "vocab": {"default": 30522, "unit": "tokens", "help": "size of the vocabulary"},
        "block_size": {
            "default": 128, "unit": "tokens", "least": 3, "most": 512,
            "help": "length of a sequence",
        },
        "n_layer": {"default": 12, "unit": "blocks", "least": 1, "help": "depth"},
        "n_head": {"default": 12, "unit": "heads", "least": 1, "help": "attention heads in a block; divides n_embd"},
        "n_embd": {
            "default": 768, "unit": "features", "least": 1, "multiple_of": "n_head",
            "help": "width; 4 times as much within a block",
        },
        "classes": {"default": 2, "unit": "classes", "least": 2, "help": "number of classes"},
        "dropout": {
            "default": 0.1, "unit": "share", "least": 0, "below": 1,
            "help": "share of the activations that training drops",
        },
        "attention": {
            "default": "sdpa", "unit": "", "choices": ["sdpa", "eager"],
            "help": "sdpa (torch's), or eager (two products and a softmax)",
        },
        "batch_size": {"default": 64, "unit": "sequences", "least": 1, "help": "sequences in an iteration"},
        "max_iters": {
            "default": 30, "unit": "iterations", "least": 0,
            "help": "number of updates, or of forward passes with mode=eval",
        },
        "warmup_iters": 4,
        "eval_interval": 0,
        "eval_iters": {"default": 1, "unit": "batches", "least": 1, "help": "batches of each split in an evaluation"},
        "log_interval": 5,
        "checkpoint_interval": 0,
        "lr": {"default": 5e-5, "unit": "", "least": 0, "help": "learning rate, constant"},
        "weight_decay": {
            "default": 0.01, "unit": "", "least": 0,
            "help": "weight decay of matrices; vectors have none",
        },
        "adamw": {
            "default": "auto", "unit": "", "choices": ["auto", "fused", "foreach", "loop"],
            "help": "implementation of AdamW; auto: fused if the device has it and it is correct",
        },
        "stop_on_nan": False,
        "threads": 0,
    },
    "configs": {
        "base": {"n_layer": 12, "n_head": 12, "n_embd": 768, "block_size": 128, "batch_size": 64},
        "toy": {
            "n_layer": 2, "n_head": 2, "n_embd": 32, "vocab": 512, "block_size": 16, "batch_size": 8, "sequences": 64,
            "max_iters": 40, "warmup_iters": 2, "eval_interval": 40, "lr": 3e-3,
        },
    },
    "modes": {"eval": {"eval_interval": 0}},
}  # fmt: skip

POSITIONS = 512
"""Positions of bert-base: the length of the longest sequence."""
OWN_SHARE = 4
"""One token of this many is drawn from those of its class."""
OWN = 16
"""Tokens reserved for each class."""
FIRST, BEGIN, END = 103, 101, 102
"""Tokens of bert-base's vocabulary: the first word, [CLS] and [SEP]."""


def sequences(s: SimpleNamespace, seed: int) -> Examples:
    """Draw random words between [CLS] and [SEP], some of which reveal the class."""
    stream = np.random.PCG64([seed, STREAMS["examples"]])

    def draw(below: int, *shape: int) -> np.ndarray:
        return (stream.random_raw(int(np.prod(shape))) % np.uint64(below)).astype(np.int64).reshape(shape)

    n, n_words = s.sequences, s.block_size - 2
    labels = draw(s.classes, n)
    common = FIRST + s.classes * OWN  # the first words that every class has
    words = common + draw(s.vocab - common, n, n_words)
    tell = draw(OWN_SHARE, n, n_words) == 0
    words[tell] = (FIRST + labels[:, None] * OWN + draw(OWN, n, n_words))[tell]
    ends = [np.full((n, 1), token) for token in (BEGIN, END)]
    x = np.concatenate([ends[0], words, ends[1]], axis=1)
    n_val = max(1, n // 8)
    parts = {"train": (x[n_val:], labels[n_val:]), "val": (x[:n_val], labels[:n_val])}
    about = f"{n - n_val:,} sequences of {s.block_size} tokens and {n_val:,} to evaluate, {s.classes} classes"
    return Examples("synthetic", about, parts)


class Bert(Classifier):
    """A model from tokens (batch, time) to logits (batch, classes)."""

    def __init__(self, s: SimpleNamespace) -> None:
        super().__init__()
        config = BertConfig(
            vocab_size=s.vocab,
            hidden_size=s.n_embd,
            num_hidden_layers=s.n_layer,
            num_attention_heads=s.n_head,
            intermediate_size=4 * s.n_embd,
            hidden_dropout_prob=s.dropout,
            attention_probs_dropout_prob=s.dropout,
            max_position_embeddings=POSITIONS,
            num_labels=s.classes,
            attn_implementation=s.attention,
        )
        self.bert = BertForSequenceClassification(config)

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        return self.bert(input_ids=x).logits


def forward_flops(s: SimpleNamespace) -> float:
    """Return the FLOP of a sequence of T tokens (a multiply-add counts as two), as in harness/models/nanogpt.py.

    Each of L blocks has 12 C^2 weights, multiplied once for each token: queries, keys, values and output of attention
    (4 C^2) and two layers of 4 C features (8 C^2). Attention's own two products, queries by keys and scores by values,
    are 4 C T for each token. The pooler (C^2) and the classes (C each) see the first token only.
    """
    C, T = s.n_embd, s.block_size
    return float(s.n_layer * (2 * 12 * C * C * T + 4 * C * T * T) + 2 * C * C + 2 * C * s.classes)


def build(options: Options, device: Device) -> Training:
    """Build sequences, model, reference loss and optimizer."""
    s = options.settings
    check(s)
    torch.manual_seed(options.seed)  # for the weights, drawn on the CPU, and for dropout

    def optimizer(model: nn.Module) -> tuple[torch.optim.Optimizer, str]:
        parameters = list(model.parameters())
        groups = [
            {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": s.weight_decay},
            {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
        ]
        return adamw(groups, s.adamw, device, options.dtype, lr=s.lr)

    return classifying.build(options, device, Bert(s), sequences(s, options.seed), optimizer, forward_flops(s))


def check(s: SimpleNamespace) -> None:
    """Raise UsageError for settings that the model does not support."""
    if s.n_embd % s.n_head:
        raise UsageError(f"n_embd={s.n_embd} is not divisible by n_head={s.n_head}", "it must be a multiple")
    if s.vocab <= (least := FIRST + s.classes * OWN):
        raise UsageError(f"vocab={s.vocab}: with {s.classes} classes it must be more than {least}")


if __name__ == "__main__":
    sys.exit(main(WORKLOAD, build, **classifying.PARTS))
