# /// script
# requires-python = ">=3.10"
# dependencies = [
#     "mlx>=0.32; sys_platform == 'darwin'", "mlx[cpu]>=0.32; sys_platform == 'linux'", "numpy", "tiktoken>=0.9",
# ]
# ///
"""GPT-2 trained on text, in MLX: `python jobs/nanogpt_mlx.py --device mps --compile on --set max_iters=20`.

The twin of nanogpt_torch.py: same model, weights, batches, optimizer and schedule (nanogpt_common.py).

Top to bottom: what can be set, the model, build(), step(), evaluate().
"""

from __future__ import annotations

if __name__ == "__main__":  # before mlx, which on Linux may be installed without any device's library
    from harness import start

    start.quietly("mlx")

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import nanogpt_common as common
from mlx.utils import tree_flatten, tree_map, tree_unflatten
from nanogpt_common import Problem, Shape

from harness import mlx_main, mlx_sampling, mlx_training, sampling
from harness.command_line import Options
from harness.device import Device
from harness.mlx_sampling import Cache
from harness.mlx_training import DTYPES

WORKLOAD = {
    "name": "nanogpt",
    "framework": "mlx",
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


class Linear(nn.Module):
    """A linear layer whose weights are fp32 and which multiplies in the dtype of what comes in."""

    def __init__(self, width: int, out: int, bias: bool) -> None:
        super().__init__()
        self.weight = mx.zeros((out, width))
        if bias:
            self.bias = mx.zeros((out,))

    def __call__(self, x: mx.array) -> mx.array:
        y = x @ self.weight.astype(x.dtype).T
        return y + self.bias.astype(x.dtype) if "bias" in self else y


class Dropout:
    """Drops a share of an array's numbers, others at each call; nothing without a key. One serves one forward."""

    def __init__(self, rate: float, key: mx.array | None, calls: int) -> None:
        self.on = key is not None and rate > 0
        self._rate = rate
        self._keys = iter(mx.random.split(key, calls)) if self.on else iter(())

    def __call__(self, x: mx.array) -> mx.array:
        if not self.on:
            return x
        kept = mx.random.bernoulli(1 - self._rate, x.shape, key=next(self._keys))
        return mx.where(kept, x / (1 - self._rate), mx.zeros((), x.dtype))


Attend = Callable[..., mx.array]
"""queries, keys, values and their scale to what attention makes of them"""


class Attention(nn.Module):
    """Causal self-attention: each position looks at itself and at those before it, with several heads at once."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.qkv = Linear(shape.width, 3 * shape.width, shape.bias)
        self.out = Linear(shape.width, shape.width, shape.bias)

    def __call__(self, x: mx.array, drop: Dropout, attend: Attend | None = None) -> mx.array:
        B, T, C = x.shape
        q, k, v = (
            part.reshape(B, T, self.heads, C // self.heads).transpose(0, 2, 1, 3)
            for part in mx.split(self.qkv(x), 3, axis=-1)
        )
        scale = (C // self.heads) ** -0.5
        if attend is not None:
            y = attend(q, k, v, scale)
        elif not drop.on:
            y = mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask="causal")
        else:  # the fused one drops none of its weights
            scores = (q * scale) @ k.swapaxes(-1, -2)
            scores = mx.where(mx.tri(T, dtype=mx.bool_), scores, -mx.inf)
            y = drop(mx.softmax(scores, axis=-1, precise=True)) @ v
        return drop(self.out(y.transpose(0, 2, 1, 3).reshape(B, T, C)))


class FeedForward(nn.Module):
    """Two layers, four times as wide between them. GELU is the exact one, as in nanoGPT."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.widen = Linear(shape.width, 4 * shape.width, shape.bias)
        self.out = Linear(4 * shape.width, shape.width, shape.bias)

    def __call__(self, x: mx.array, drop: Dropout) -> mx.array:
        return drop(self.out(nn.gelu(self.widen(x))))


def norm_of(shape: Shape) -> nn.LayerNorm:
    return nn.LayerNorm(shape.width, eps=common.NORM_EPS, bias=shape.bias)


class Block(nn.Module):
    """Attention, then feed-forward, each added to what came in and fed with its normalisation."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norm1 = norm_of(shape)
        self.attention = Attention(shape)
        self.norm2 = norm_of(shape)
        self.feed_forward = FeedForward(shape)

    def __call__(self, x: mx.array, dtype: mx.Dtype, drop: Dropout, attend: Attend | None = None) -> mx.array:
        x = x + self.attention(self.norm1(x).astype(dtype), drop, attend)
        return x + self.feed_forward(self.norm2(x).astype(dtype), drop)


class GPT(nn.Module):
    """Tokens (batch, time) to logits (batch, time, vocab). `dtype` is that of the products; sums, norms and the loss
    are fp32. With a cache the tokens go on from those that it knows, and only the last one's logits are computed."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.tokens = nn.Embedding(shape.vocab, shape.width)
        self.positions = nn.Embedding(shape.block, shape.width)
        self.blocks = [Block(shape) for _ in range(shape.layers)]
        self.norm = norm_of(shape)

    def __call__(
        self, tokens: mx.array, dtype: mx.Dtype, key: mx.array | None = None, cache: Cache | None = None
    ) -> mx.array:
        drop, n = Dropout(self.shape.dropout, key, 1 + 3 * self.shape.layers), tokens.shape[1]
        places = self.positions.weight
        x = drop(self.tokens(tokens) + (places[:n] if cache is None else places[cache.positions(n)]))
        for layer, block in enumerate(self.blocks):
            x = block(x, dtype, drop, None if cache is None else partial(cache.attend, layer))
        x = x if cache is None else x[:, -1:]
        return self.norm(x).astype(dtype) @ self.tokens.weight.astype(dtype).T  # tied: it is the output layer too

    def loss(self, x: mx.array, y: mx.array, dtype: mx.Dtype = mx.float32, key: mx.array | None = None) -> mx.array:
        """Mean cross entropy in nats. Without a key there is no dropout."""
        return nn.losses.cross_entropy(self(x, dtype, key).astype(mx.float32), y, reduction="mean")


def model_of(shape: Shape, weights: common.Weights) -> GPT:
    """The model with these weights."""
    model = GPT(shape)
    model.update(tree_unflatten([(name, mx.array(value)) for name, value in weights.items()]))
    return model


@dataclass(kw_only=True)
class Training(mlx_training.Training):
    """The harness's Training, and what is trained on and how."""

    problem: Problem
    update: Callable[[mx.array, mx.array, mx.array], mx.array]
    """(x, y, key) to the loss: the iteration but for its batches and learning rate"""


def build(options: Options, device: Device) -> Training:
    """Text, model, reference loss, optimizer: all that is done once."""
    common.refuse_fp16(options, "mlx")
    s, dtype = options.settings, DTYPES[options.dtype]
    problem = common.problem(options)
    model = model_of(problem.shape, common.weights(options, problem.shape))
    reference = mlx_training.Reference(model, model.loss, problem.first())
    optimizer = mlx_training.adamw(model, s.weight_decay, [s.beta1, s.beta2], common.ADAM_EPS)
    loss_and_grad = nn.value_and_grad(model, lambda x, y, key: model.loss(x, y, dtype, key))

    def update(x: mx.array, y: mx.array, key: mx.array) -> mx.array:
        """Forward, backward, clipping, update. `x` and `y` are (grad_accum, batch, time)."""
        total: Any = None
        for n, part in enumerate(mx.random.split(key, s.grad_accum)):
            found = loss_and_grad(x[n], y[n], part)
            total = found if total is None else tree_map(mx.add, total, found)
        loss, grads = tree_map(lambda value: value / s.grad_accum, total) if s.grad_accum > 1 else total
        if s.grad_clip:
            grads = clip(grads, s.grad_clip)
        optimizer.update(model, grads)
        return loss

    def forward(x: mx.array, y: mx.array) -> mx.array:
        return model.loss(x, y, dtype)

    if options.compile:
        state = [model.state, optimizer.state]
        update = mx.compile(update, inputs=state, outputs=state)
        forward = mx.compile(forward, inputs=model.state)
    return Training(
        options=options,
        device=device,
        model=model,
        forward=forward,
        optimizer=optimizer,
        optimizer_name="AdamW(mlx)",
        reference=reference,
        data=problem.text.said(),
        flops_per_iter=problem.flops_per_iter,
        per_iter=problem.tokens_per_iter,
        problem=problem,
        update=update,
    )


def clip(grads: Any, limit: float) -> Any:
    """The gradients, scaled down where their norm together is above `limit`, as torch's clip_grad_norm_ does."""
    norm = mx.sqrt(sum(mx.square(value).sum() for _, value in tree_flatten(grads)))
    scale = mx.minimum(limit / (norm + common.CLIP_EPS), 1.0)
    return tree_map(lambda value: value * scale, grads)


def step(training: Training, i: int) -> mx.array:
    """One iteration: batches, forward, backward, clipping, update. Returns the mean loss, not computed yet."""
    options = training.options
    x, y = map(mx.array, training.problem.batches.of_iteration(i, options.settings.grad_accum))
    training.optimizer.learning_rate = common.learning_rate(i, options.settings)
    return training.update(x, y, mx.random.key((options.seed << 32 | i) % 2**64))


def evaluate(training: Training, split: str) -> dict[str, float]:
    """The mean loss over eval_iters batches, dropout off: the same batches at every evaluation of a seed."""
    s = training.options.settings
    batches = training.problem.batches.of_evaluation(split, s.eval_iters)
    losses = [training.forward(mx.array(x), mx.array(y)) for x, y in zip(*batches, strict=True)]
    return {"loss": float(mx.stack(losses).mean().item())}


def sample(options: Options, device: Device) -> mlx_sampling.Sampling:
    """Text, model, what its logits should be: all that is done once for mode=sample."""
    problem = common.problem(options)
    shape, dtype = problem.shape, DTYPES[options.dtype]
    model = model_of(shape, common.weights(options, shape))
    right = mlx_sampling.logits_of(lambda tokens: model(tokens, mx.float32))
    check = sampling.prepared(*problem.first(), options.settings.new_tokens, right)
    for name, value in tree_flatten(model.parameters()):
        if not common.stays_fp32(name, value.ndim):
            model.update(tree_unflatten([(name, value.astype(dtype))]), strict=False)
    return mlx_sampling.Sampling(
        device=device,
        check=check,
        model=model,
        logits=lambda tokens, cache: model(tokens, dtype, cache=cache),
        heads=shape.heads,
        layers=shape.layers,
        width=shape.width,
        **common.sampling(options, problem),
    )


if __name__ == "__main__":
    sys.exit(mlx_main.main(WORKLOAD, build, step, evaluate, sample=sample))
