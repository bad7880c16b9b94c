# /// script
# requires-python = ">=3.11"
# dependencies = ["tinygrad>=0.14,<0.15", "numpy", "tiktoken>=0.9"]
# ///
"""GPT-2 trained on text, in tinygrad: `python jobs/nanogpt_tinygrad.py --device mps --compile on --set max_iters=20`.

The twin of nanogpt_torch.py: same model, weights, batches, optimizer and schedule (nanogpt_common.py).

Top to bottom: what can be set, the model, build(), step(), evaluate().
"""

from __future__ import annotations

if __name__ == "__main__":
    from harness import start

    start.quietly("tinygrad")

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import nanogpt_common as common
import numpy as np
from nanogpt_common import Problem, Shape
from tinygrad import Tensor, TinyJit
from tinygrad.helpers import Context

from harness import sampling, tinygrad_main, tinygrad_sampling, tinygrad_training
from harness.command_line import Options
from harness.device import Device
from harness.tinygrad_sampling import Cache
from harness.tinygrad_training import DTYPES

WORKLOAD = {
    "name": "nanogpt",
    "framework": "tinygrad",
    "about": "GPT-2 on text, character by character or with GPT-2's byte pairs: nanoGPT's shakespeare_char and gpt2.",
    "source": "Radford et al. 2019 (GPT-2); presets: github.com/karpathy/nanoGPT, config/train_shakespeare_char.py",
    "unit": "tokens",
    "params": {
        "mode": {
            "default": "train", "unit": "",
            "help": "train, or sample: read block_size - new_tokens tokens, then write new_tokens more, one by one, "
            "the likeliest each; of 1 sequence and 24 iterations unless batch_size and max_iters say otherwise",
        },
        "new_tokens": {
            "default": 32, "unit": "tokens",
            "help": "written one by one in each iteration of mode=sample; less than block_size",
        },
        "data": {
            "default": "pydoc", "unit": "",
            "help": "pydoc (Python's own help texts), shakespeare (downloaded once), or the path of a text file",
        },
        "tokens": {
            "default": "char", "unit": "",
            "help": "char (every character is a token) or bpe (GPT-2's byte pairs, by tiktoken)",
        },
        "n_layer": {"default": 4, "unit": "blocks", "help": "depth"},
        "n_head": {"default": 4, "unit": "heads", "help": "attention heads in a block; divides n_embd"},
        "n_embd": {"default": 128, "unit": "features", "help": "width"},
        "block_size": {"default": 64, "unit": "tokens", "help": "length of a sequence"},
        "batch_size": {"default": 12, "unit": "sequences", "help": "sequences in one forward and backward"},
        "grad_accum": {"default": 1, "unit": "batches", "help": "batches whose gradients make one update"},
        "dropout": {"default": 0.0, "unit": "share", "help": "of activations dropped in training, below 1"},
        "bias": {"default": False, "unit": "", "help": "biases in linear and normalisation layers, as in GPT-2"},
        "pad_vocab": {
            "default": 1, "unit": "tokens",
            "help": "round the vocabulary up to a multiple of this, which matrix units like; nanoGPT: 64 for bpe",
        },
        "init_from": {
            "default": "", "unit": "",
            "help": "begin with the weights.npz that any of the four frameworks wrote with --out; empty: draw them",
        },
        "max_iters": {"default": 150, "unit": "iterations", "help": "updates to make"},
        "warmup_iters": {
            "default": 10, "unit": "iterations",
            "help": "iterations after the first that are not measured (for the schedule: lr_warmup_iters)",
        },
        "eval_interval": {
            "default": 50, "unit": "iterations",
            "help": "evaluate each time so many are done, and at the end; 0: never",
        },
        "eval_iters": {"default": 5, "unit": "batches", "help": "of each split in an evaluation"},
        "log_interval": {"default": 10, "unit": "iterations", "help": "print every so many; all of them are reported"},
        "checkpoint_interval": {
            "default": 0, "unit": "iterations",
            "help": "save each time so many are done, and at the end with --out; 0: only that",
        },
        "lr": {"default": 1e-3, "unit": "", "help": "highest learning rate"},
        "min_lr": {"default": 1e-4, "unit": "", "help": "learning rate at the end of the cosine"},
        "lr_warmup_iters": {"default": 10, "unit": "iterations", "help": "linear rise of the learning rate"},
        "lr_decay_iters": {"default": 0, "unit": "iterations", "help": "end of the cosine; 0: max_iters"},
        "weight_decay": {"default": 0.1, "unit": "", "help": "on matrices; vectors have none"},
        "beta1": {"default": 0.9, "unit": "", "help": "AdamW's decay of the mean"},
        "beta2": {"default": 0.99, "unit": "", "help": "AdamW's decay of the mean square"},
        "grad_clip": {"default": 1.0, "unit": "", "help": "greatest norm of the gradient; 0: no limit"},
        "stop_on_nan": {"default": False, "unit": "", "help": "end when a loss is not a number"},
    },
    "configs": {
        "tiny": {
            "data": "pydoc", "n_layer": 4, "n_head": 4, "n_embd": 128, "block_size": 64, "batch_size": 12,
            "max_iters": 150,
        },
        "shakespeare_char": {
            "data": "shakespeare", "n_layer": 6, "n_head": 6, "n_embd": 384, "block_size": 256, "batch_size": 64,
            "dropout": 0.2, "max_iters": 5000, "eval_interval": 250, "eval_iters": 200, "new_tokens": 128,
            "lr": 1e-3, "min_lr": 1e-4, "lr_warmup_iters": 100, "beta2": 0.99,
        },
        "gpt2": {
            "data": "shakespeare", "tokens": "bpe", "n_layer": 12, "n_head": 12, "n_embd": 768, "block_size": 1024,
            "batch_size": 12, "pad_vocab": 64, "new_tokens": 256,
            "max_iters": 200, "eval_interval": 100, "eval_iters": 10,
            "lr": 6e-4, "min_lr": 6e-5, "lr_warmup_iters": 20, "beta2": 0.95,
        },
    },
    "modes": {"sample": {"batch_size": 1, "max_iters": 24, "warmup_iters": 3, "eval_interval": 0}},
}  # fmt: skip
Params = Mapping[str, Tensor]


class Linear:
    """A linear layer whose weights are fp32 and which multiplies in the dtype of what comes in."""

    def __init__(self, params: Params, name: str) -> None:
        self.weight, self.bias = params[f"{name}.weight"], params.get(f"{name}.bias")

    def __call__(self, x: Tensor) -> Tensor:
        y = x @ self.weight.cast(x.dtype).T
        return y if self.bias is None else y + self.bias.cast(x.dtype)


class Norm:
    """Layer normalisation, with a bias or without."""

    def __init__(self, params: Params, name: str) -> None:
        self.weight, self.bias = params[f"{name}.weight"], params.get(f"{name}.bias")

    def __call__(self, x: Tensor) -> Tensor:
        y = x.layernorm(eps=common.NORM_EPS) * self.weight
        return y if self.bias is None else y + self.bias


Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""queries, keys and values to what attention makes of them"""


class Attention:
    """Causal self-attention: each position looks at itself and at those before it, with several heads at once."""

    def __init__(self, params: Params, name: str, shape: Shape) -> None:
        self.heads, self.dropout = shape.heads, shape.dropout
        self.qkv, self.out = Linear(params, f"{name}.qkv"), Linear(params, f"{name}.out")

    def __call__(self, x: Tensor, attend: Attend | None = None) -> Tensor:
        B, T, C = x.shape
        q, k, v = (
            part.reshape(B, T, self.heads, C // self.heads).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1)
        )
        if attend is None:
            y = q.scaled_dot_product_attention(k, v, dropout_p=self.dropout, is_causal=True)
        else:
            y = attend(q, k, v)
        return self.out(y.transpose(1, 2).reshape(B, T, C)).dropout(self.dropout)


class FeedForward:
    """Two layers, four times as wide between them. GELU is the exact one, as in nanoGPT."""

    def __init__(self, params: Params, name: str, shape: Shape) -> None:
        self.dropout = shape.dropout
        self.widen, self.out = Linear(params, f"{name}.widen"), Linear(params, f"{name}.out")

    def __call__(self, x: Tensor) -> Tensor:
        return self.out(self.widen(x).gelu(approximate="none")).dropout(self.dropout)


class Block:
    """Attention, then feed-forward, each added to what came in and fed with its normalisation."""

    def __init__(self, params: Params, name: str, shape: Shape) -> None:
        self.norm1, self.norm2 = Norm(params, f"{name}.norm1"), Norm(params, f"{name}.norm2")
        self.attention = Attention(params, f"{name}.attention", shape)
        self.feed_forward = FeedForward(params, f"{name}.feed_forward", shape)

    def __call__(self, x: Tensor, dtype: Any, attend: Attend | None = None) -> Tensor:
        x = x + self.attention(self.norm1(x).cast(dtype), attend)
        return x + self.feed_forward(self.norm2(x).cast(dtype))


class GPT:
    """Tokens (batch, time) to logits (batch, time, vocab). `dtype` is that of the products; sums, norms and the loss
    are fp32. Dropout is tinygrad's: on where TRAINING is. With a cache the tokens go on from those that it knows, and
    only the last one's logits are computed."""

    def __init__(self, shape: Shape, params: Params, dtype: Any) -> None:
        self.shape, self.dtype = shape, dtype
        self.tokens, self.positions = params["tokens.weight"], params["positions.weight"]
        self.blocks = [Block(params, f"blocks.{n}", shape) for n in range(shape.layers)]
        self.norm = Norm(params, "norm")

    def __call__(self, tokens: Tensor, cache: Cache | None = None) -> Tensor:
        n = int(tokens.shape[1])
        places = self.positions[:n] if cache is None else cache.positions(self.positions, n)
        x = (self.tokens[tokens] + places).dropout(self.shape.dropout)
        for layer, block in enumerate(self.blocks):
            x = block(x, self.dtype, None if cache is None else partial(cache.attend, layer))
        x = x if cache is None else x[:, -1:]
        return self.norm(x).cast(self.dtype) @ self.tokens.cast(self.dtype).T  # tied: it is the output layer too

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Mean cross entropy in nats."""
        return self(x).float().sparse_categorical_crossentropy(y)


@dataclass(kw_only=True)
class Training(tinygrad_training.Training):
    """The harness's Training, and what is trained on and how."""

    problem: Problem
    update: Callable[[Tensor, Tensor, Tensor], Tensor]
    """(x, y, lr) to the loss: the iteration but for its batches"""


def build(options: Options, device: Device) -> Training:
    """Text, model, reference loss, optimizer: all that is done once."""
    common.refuse_fp16(options, "tinygrad")
    s = options.settings
    problem = common.problem(options)
    shape, weights = problem.shape, common.weights(options, problem.shape)
    reference = tinygrad_training.Reference(
        lambda params, x, y: GPT(shape, params, DTYPES["fp32"]).loss(x, y), weights, problem.first()
    )
    Tensor.manual_seed(options.seed % 2**32)  # for dropout
    params = {name: Tensor(value, device=device.handle).realize() for name, value in weights.items()}
    model = GPT(shape, params, DTYPES[options.dtype])
    optimizer = tinygrad_training.adamw(params, s.weight_decay, (s.beta1, s.beta2), common.ADAM_EPS)

    def update(x: Tensor, y: Tensor, lr: Tensor) -> Tensor:
        """Forward, backward, clipping, update. `x` and `y` are (grad_accum, batch, time)."""
        losses = [model.loss(x[n], y[n]) / s.grad_accum for n in range(s.grad_accum)]
        loss = sum(losses[1:], losses[0])
        for value, grad in zip(params.values(), clipped(loss.gradient(*params.values()), s.grad_clip), strict=True):
            value.grad = grad
        for one in optimizer.optimizers:
            one.lr = lr
        Tensor.realize(loss, *optimizer.schedule_step())
        optimizer.zero_grad()
        return loss

    def forward(x: Tensor, y: Tensor) -> Tensor:
        return model.loss(x, y).realize()

    return Training(
        options=options,
        device=device,
        params=params,
        optimizer=optimizer,
        optimizer_name="AdamW(tinygrad)",
        forward=TinyJit(forward) if options.compile else forward,
        reference=reference,
        data=problem.text.said(),
        flops_per_iter=problem.flops_per_iter,
        per_iter=problem.tokens_per_iter,
        problem=problem,
        update=TinyJit(update) if options.compile else update,
    )


def clipped(grads: list[Tensor], limit: float) -> list[Tensor]:
    """The gradients, scaled down where their norm together is above `limit`, as torch's clip_grad_norm_ does."""
    if not limit:
        return grads
    norm = sum((grad.float().square().sum() for grad in grads[1:]), grads[0].float().square().sum()).sqrt()
    scale = (limit / (norm + common.CLIP_EPS)).minimum(1.0)
    return [grad * scale for grad in grads]


def step(training: Training, i: int) -> Tensor:
    """One iteration: batches, forward, backward, clipping, update. Returns the mean loss."""
    s, device = training.options.settings, training.device.handle
    x, y = training.problem.batches.of_iteration(i, s.grad_accum)
    lr = np.array([common.learning_rate(i, s)], np.float32)
    with Context(TRAINING=1):
        return training.update(*(Tensor(part, device=device).realize() for part in (x, y, lr)))


def evaluate(training: Training, split: str) -> dict[str, float]:
    """The mean loss over eval_iters batches, dropout off: the same batches at every evaluation of a seed."""
    s, device = training.options.settings, training.device.handle
    total = 0.0
    for batch in zip(*training.problem.batches.of_evaluation(split, s.eval_iters), strict=True):
        total += float(training.forward(*(Tensor(part, device=device).realize() for part in batch)).item())
    return {"loss": total / s.eval_iters}


def sample(options: Options, device: Device) -> tinygrad_sampling.Sampling:
    """Text, model, what its logits should be: all that is done once for mode=sample."""
    problem = common.problem(options)
    shape, weights = problem.shape, common.weights(options, problem.shape)
    right = tinygrad_sampling.logits_of(lambda params, x: GPT(shape, params, DTYPES["fp32"])(x), weights)
    dtype = DTYPES[options.dtype]
    params = {}
    for name, value in weights.items():
        there = Tensor(value, device=device.handle)
        params[name] = (there if common.stays_fp32(name, value.ndim) else there.cast(dtype)).contiguous().realize()
    return tinygrad_sampling.Sampling(
        device=device,
        check=sampling.prepared(*problem.first(), options.settings.new_tokens, right),
        params=params,
        logits=GPT(shape, params, dtype),
        heads=shape.heads,
        layers=shape.layers,
        width=shape.width,
        **common.sampling(options, problem),
    )


if __name__ == "__main__":
    sys.exit(tinygrad_main.main(WORKLOAD, build, step, evaluate, sample=sample))
