# /// script
# requires-python = ">=3.11"
# dependencies = ["tinygrad>=0.14,<0.15", "numpy", "tiktoken>=0.9"]
# ///
"""GPT-2 trained on text, in tinygrad: `python jobs/nanogpt_tinygrad.py --device mps --compile on --set max_iters=20`.

The twin of nanogpt_torch.py: same model, weights, batches, optimizer and schedule (harness/models/nanogpt.py).

Top to bottom: settings, the model, build(), step(), evaluate(), sample().
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

import numpy as np
from tinygrad import Tensor, TinyJit
from tinygrad.helpers import Context

from harness.array_device import Device, refuse_fp16
from harness.command_line import Options
from harness.models import nanogpt, nanogpt_sampling
from harness.models.nanogpt import Problem, Shape
from harness.tinygrad_backend.main import main
from harness.tinygrad_backend.sampling import Cache, Sampling, logits_of
from harness.tinygrad_backend.training import DTYPES, Reference, adamw
from harness.tinygrad_backend.training import Training as TinygradTraining

WORKLOAD = {"like": "nanogpt_torch", "framework": "tinygrad", "without": ["adamw", "threads"]}
Params = Mapping[str, Tensor]


class Linear:
    """A linear layer with fp32 weights that multiplies in the dtype of its input."""

    def __init__(self, params: Params, name: str) -> None:
        self.weight, self.bias = params[f"{name}.weight"], params.get(f"{name}.bias")

    def __call__(self, x: Tensor) -> Tensor:
        y = x @ self.weight.cast(x.dtype).T
        return y if self.bias is None else y + self.bias.cast(x.dtype)


class Norm:
    """Layer normalisation with an optional bias."""

    def __init__(self, params: Params, name: str) -> None:
        self.weight, self.bias = params[f"{name}.weight"], params.get(f"{name}.bias")

    def __call__(self, x: Tensor) -> Tensor:
        y = x.layernorm(eps=nanogpt.NORM_EPS) * self.weight
        return y if self.bias is None else y + self.bias


Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(queries, keys, values) to the output of attention"""


class Attention:
    """Causal self-attention with several heads: each position attends to itself and to those before it."""

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
    """Two linear layers, four times as wide between them, with the exact GELU, as in nanoGPT."""

    def __init__(self, params: Params, name: str, shape: Shape) -> None:
        self.dropout = shape.dropout
        self.widen, self.out = Linear(params, f"{name}.widen"), Linear(params, f"{name}.out")

    def __call__(self, x: Tensor) -> Tensor:
        return self.out(self.widen(x).gelu(approximate="none")).dropout(self.dropout)


class Block:
    """Attention and feed-forward, each with layer normalisation before it and a residual connection around it."""

    def __init__(self, params: Params, name: str, shape: Shape) -> None:
        self.norm1, self.norm2 = Norm(params, f"{name}.norm1"), Norm(params, f"{name}.norm2")
        self.attention = Attention(params, f"{name}.attention", shape)
        self.feed_forward = FeedForward(params, f"{name}.feed_forward", shape)

    def __call__(self, x: Tensor, dtype: Any, attend: Attend | None = None) -> Tensor:
        x = x + self.attention(self.norm1(x).cast(dtype), attend)
        return x + self.feed_forward(self.norm2(x).cast(dtype))


class GPT:
    """A model from tokens (batch, time) to logits (batch, time, vocab). `dtype` is that of products; sums, norms and
    the loss are fp32. Dropout is on while tinygrad's TRAINING is. With a cache the tokens continue those that it holds,
    and only the last one's logits are computed."""

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
        return self.norm(x).cast(self.dtype) @ self.tokens.cast(self.dtype).T  # tied: also the output layer

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the mean cross entropy in nats."""
        return self(x).float().sparse_categorical_crossentropy(y)


@dataclass(kw_only=True)
class Training(TinygradTraining):
    """The harness's Training, with the problem and the update."""

    problem: Problem
    update: Callable[[Tensor, Tensor, Tensor], Tensor]
    """(x, y, lr) to the loss: the iteration but for its batches"""


def build(options: Options, device: Device) -> Training:
    """Build text, model, reference loss and optimizer."""
    refuse_fp16(options, "tinygrad")
    s = options.settings
    problem = nanogpt.problem(options)
    shape, weights = problem.shape, nanogpt.weights(options, problem.shape)
    reference = Reference(lambda params, x, y: GPT(shape, params, DTYPES["fp32"]).loss(x, y), weights, problem.first())
    Tensor.manual_seed(options.seed % 2**32)  # for dropout
    params = {name: Tensor(value, device=device.handle).realize() for name, value in weights.items()}
    model = GPT(shape, params, DTYPES[options.dtype])
    optimizer = adamw(params, s.weight_decay, (s.beta1, s.beta2), nanogpt.ADAM_EPS)

    def update(x: Tensor, y: Tensor, lr: Tensor) -> Tensor:
        """Do forward, backward, clipping and update. `x` and `y` are (grad_accum, batch, time)."""
        losses = [model.loss(x[n], y[n]) / s.grad_accum for n in range(s.grad_accum)]
        loss = sum(losses[1:], losses[0])
        for value, grad in zip(params.values(), clipped(loss.gradient(*params.values()), s.grad_clip), strict=True):
            value.grad = grad
        for part in optimizer.optimizers:
            part.lr = lr
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
        data=problem.text.fields(),
        flops_per_iter=problem.flops_per_iter,
        per_iter=problem.tokens_per_iter,
        problem=problem,
        update=TinyJit(update) if options.compile else update,
    )


def clipped(grads: list[Tensor], limit: float) -> list[Tensor]:
    """Return the gradients, scaled down if their global norm exceeds `limit`, as by torch's clip_grad_norm_."""
    if not limit:
        return grads
    norm = sum((grad.float().square().sum() for grad in grads[1:]), grads[0].float().square().sum()).sqrt()
    scale = (limit / (norm + nanogpt.CLIP_EPS)).minimum(1.0)
    return [grad * scale for grad in grads]


def step(training: Training, i: int) -> Tensor:
    """Do one iteration: batches, forward, backward, clipping, update. Return the mean loss."""
    s, device = training.options.settings, training.device.handle
    x, y = training.problem.batches.of_iteration(i, s.grad_accum)
    lr = np.array([nanogpt.learning_rate(i, s)], np.float32)
    with Context(TRAINING=1):
        return training.update(*(Tensor(part, device=device).realize() for part in (x, y, lr)))


def evaluate(training: Training, split: str) -> dict[str, float]:
    """Return the mean loss over eval_iters batches, dropout off: the same batches at every evaluation of a seed."""
    s, device = training.options.settings, training.device.handle
    total = 0.0
    for batch in zip(*training.problem.batches.of_evaluation(split, s.eval_iters), strict=True):
        total += float(training.forward(*(Tensor(part, device=device).realize() for part in batch)).item())
    return {"loss": total / s.eval_iters}


def sample(options: Options, device: Device) -> Sampling:
    """Build text, model and reference logits for mode=sample."""
    problem = nanogpt.problem(options)
    shape, weights = problem.shape, nanogpt.weights(options, problem.shape)
    right = logits_of(lambda params, x: GPT(shape, params, DTYPES["fp32"])(x), weights)
    dtype = DTYPES[options.dtype]
    params = {}
    for name, value in weights.items():
        there = Tensor(value, device=device.handle)
        params[name] = (
            (there if nanogpt_sampling.stays_fp32(name, value.ndim) else there.cast(dtype)).contiguous().realize()
        )
    return Sampling(
        device=device,
        reference=nanogpt_sampling.reference(options, problem, right),
        params=params,
        logits=GPT(shape, params, dtype),
        **nanogpt_sampling.arguments(options, problem),
    )


if __name__ == "__main__":
    sys.exit(main(WORKLOAD, build, step, evaluate, sample=sample))
