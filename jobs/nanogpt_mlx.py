# /// script
# requires-python = ">=3.10"
# dependencies = [
#     "mlx>=0.32; sys_platform == 'darwin'", "mlx[cpu]>=0.32; sys_platform == 'linux'", "numpy", "tiktoken>=0.9",
# ]
# ///
"""GPT-2 trained on text, in MLX: `python jobs/nanogpt_mlx.py --device mps --compile on --set max_iters=20`.

The twin of nanogpt_torch.py: same model, weights, batches, optimizer and schedule (harness/models/nanogpt.py).

Top to bottom: settings, the model, build(), step(), evaluate(), sample().
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
from mlx.utils import tree_flatten, tree_map, tree_unflatten

from harness.array_device import Device, refuse_fp16
from harness.command_line import Options
from harness.mlx_backend.main import main
from harness.mlx_backend.sampling import Cache, Sampling, logits_of
from harness.mlx_backend.training import DTYPES, Reference, adamw
from harness.mlx_backend.training import Training as MlxTraining
from harness.models import nanogpt, nanogpt_sampling
from harness.models.nanogpt import Problem, Shape

WORKLOAD = {"like": "nanogpt_torch", "framework": "mlx", "without": ["adamw", "threads"]}


class Linear(nn.Module):
    """A linear layer with fp32 weights that multiplies in the dtype of its input."""

    def __init__(self, width: int, out: int, bias: bool) -> None:
        super().__init__()
        self.weight = mx.zeros((out, width))
        if bias:
            self.bias = mx.zeros((out,))

    def __call__(self, x: mx.array) -> mx.array:
        y = x @ self.weight.astype(x.dtype).T
        return y + self.bias.astype(x.dtype) if "bias" in self else y


class Dropout:
    """Drops a share of an array's numbers, different ones at each call; nothing without a key. Use one per forward."""

    def __init__(self, rate: float, key: mx.array | None, calls: int) -> None:
        self.on = key is not None and rate > 0
        self._rate = rate
        self._keys = iter(mx.random.split(key, calls)) if self.on else iter(())

    def __call__(self, x: mx.array) -> mx.array:
        if not self.on:
            return x
        mask = mx.random.bernoulli(1 - self._rate, x.shape, key=next(self._keys))
        return mx.where(mask, x / (1 - self._rate), mx.zeros((), x.dtype))


Attend = Callable[..., mx.array]
"""(queries, keys, values, scale) to the output of attention"""


class Attention(nn.Module):
    """Causal self-attention with several heads: each position attends to itself and to those before it."""

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
        else:  # the fused one has no dropout of its weights
            scores = (q * scale) @ k.swapaxes(-1, -2)
            scores = mx.where(mx.tri(T, dtype=mx.bool_), scores, -mx.inf)
            y = drop(mx.softmax(scores, axis=-1, precise=True)) @ v
        return drop(self.out(y.transpose(0, 2, 1, 3).reshape(B, T, C)))


class FeedForward(nn.Module):
    """Two linear layers, four times as wide between them, with the exact GELU, as in nanoGPT."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.widen = Linear(shape.width, 4 * shape.width, shape.bias)
        self.out = Linear(4 * shape.width, shape.width, shape.bias)

    def __call__(self, x: mx.array, drop: Dropout) -> mx.array:
        return drop(self.out(nn.gelu(self.widen(x))))


def norm_of(shape: Shape) -> nn.LayerNorm:
    return nn.LayerNorm(shape.width, eps=nanogpt.NORM_EPS, bias=shape.bias)


class Block(nn.Module):
    """Attention and feed-forward, each with layer normalisation before it and a residual connection around it."""

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
    """A model from tokens (batch, time) to logits (batch, time, vocab). `dtype` is that of products; sums, norms and
    the loss are fp32. With a cache the tokens continue those that it holds, and only the last one's logits are
    computed."""

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
        return self.norm(x).astype(dtype) @ self.tokens.weight.astype(dtype).T  # tied: also the output layer

    def loss(self, x: mx.array, y: mx.array, dtype: mx.Dtype = mx.float32, key: mx.array | None = None) -> mx.array:
        """Return the mean cross entropy in nats. Without a key there is no dropout."""
        return nn.losses.cross_entropy(self(x, dtype, key).astype(mx.float32), y, reduction="mean")


def model_of(shape: Shape, weights: nanogpt.Weights) -> GPT:
    """Return the model with these weights."""
    model = GPT(shape)
    model.update(tree_unflatten([(name, mx.array(value)) for name, value in weights.items()]))
    return model


@dataclass(kw_only=True)
class Training(MlxTraining):
    """The harness's Training, with the problem and the update."""

    problem: Problem
    update: Callable[[mx.array, mx.array, mx.array], mx.array]
    """(x, y, key) to the loss: the iteration but for its batches and learning rate"""


def build(options: Options, device: Device) -> Training:
    """Build text, model, reference loss and optimizer."""
    refuse_fp16(options, "mlx")
    s, dtype = options.settings, DTYPES[options.dtype]
    problem = nanogpt.problem(options)
    model = model_of(problem.shape, nanogpt.weights(options, problem.shape))
    reference = Reference(model, model.loss, problem.first())
    optimizer = adamw(model, s.weight_decay, [s.beta1, s.beta2], nanogpt.ADAM_EPS)
    loss_and_grad = nn.value_and_grad(model, lambda x, y, key: model.loss(x, y, dtype, key))

    def update(x: mx.array, y: mx.array, key: mx.array) -> mx.array:
        """Do forward, backward, clipping and update. `x` and `y` are (grad_accum, batch, time)."""
        total: Any = None
        for n, part in enumerate(mx.random.split(key, s.grad_accum)):
            loss_and_grads = loss_and_grad(x[n], y[n], part)
            total = loss_and_grads if total is None else tree_map(mx.add, total, loss_and_grads)
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
        data=problem.text.fields(),
        flops_per_iter=problem.flops_per_iter,
        per_iter=problem.tokens_per_iter,
        problem=problem,
        update=update,
    )


def clip(grads: Any, limit: float) -> Any:
    """Return the gradients, scaled down if their global norm exceeds `limit`, as by torch's clip_grad_norm_."""
    norm = mx.sqrt(sum(mx.square(value).sum() for _, value in tree_flatten(grads)))
    scale = mx.minimum(limit / (norm + nanogpt.CLIP_EPS), 1.0)
    return tree_map(lambda value: value * scale, grads)


def step(training: Training, i: int) -> mx.array:
    """Do one iteration: batches, forward, backward, clipping, update. Return the mean loss, not yet computed."""
    options = training.options
    x, y = map(mx.array, training.problem.batches.of_iteration(i, options.settings.grad_accum))
    training.optimizer.learning_rate = nanogpt.learning_rate(i, options.settings)
    return training.update(x, y, mx.random.key((options.seed << 32 | i) % 2**64))


def evaluate(training: Training, split: str) -> dict[str, float]:
    """Return the mean loss over eval_iters batches, dropout off: the same batches at every evaluation of a seed."""
    s = training.options.settings
    batches = training.problem.batches.of_evaluation(split, s.eval_iters)
    losses = [training.forward(mx.array(x), mx.array(y)) for x, y in zip(*batches, strict=True)]
    return {"loss": float(mx.stack(losses).mean().item())}


def sample(options: Options, device: Device) -> Sampling:
    """Build text, model and reference logits for mode=sample."""
    problem = nanogpt.problem(options)
    shape, dtype = problem.shape, DTYPES[options.dtype]
    model = model_of(shape, nanogpt.weights(options, shape))
    right = logits_of(lambda tokens: model(tokens, mx.float32))
    reference = nanogpt_sampling.reference(options, problem, right)
    for name, value in tree_flatten(model.parameters()):
        if not nanogpt_sampling.stays_fp32(name, value.ndim):
            model.update(tree_unflatten([(name, value.astype(dtype))]), strict=False)
    return Sampling(
        device=device,
        reference=reference,
        model=model,
        logits=lambda tokens, cache: model(tokens, dtype, cache=cache),
        **nanogpt_sampling.arguments(options, problem),
    )


if __name__ == "__main__":
    sys.exit(main(WORKLOAD, build, step, evaluate, sample=sample))
