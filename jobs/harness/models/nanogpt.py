"""Parts shared by the nanogpt workloads of all frameworks: shape, weights, batches, schedule, FLOP.

The same seed gives the same weights and the same batches in torch, mlx, tinygrad and jax: numpy draws both, here.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
from numpy.typing import NDArray

from harness.command_line import Options
from harness.data.text import Batches, Text
from harness.data.text import load as load_text
from harness.errors import UsageError
from harness.user_paths import expanded

ADAM_EPS = 1e-8
"""Added to the root of the mean square, in all four frameworks: torch's default, and nanoGPT's."""
NORM_EPS = 1e-5
"""Added to the variance in layer normalisation."""
CLIP_EPS = 1e-6
"""Added to the norm of the gradient before clipping, as torch does."""
INITIAL_STD = 0.02

Weights = dict[str, NDArray[np.float32]]


@dataclass(frozen=True)
class Shape:
    """The model's hyperparameters, with `vocab` tokens and `block` positions."""

    vocab: int
    block: int
    layers: int
    heads: int
    width: int
    dropout: float = 0.0
    bias: bool = False

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every trained tensor by name, in the order of the model; linear layers are (out, in)."""
        C = self.width
        shapes: dict[str, tuple[int, ...]] = {"tokens.weight": (self.vocab, C), "positions.weight": (self.block, C)}
        for n in range(self.layers):
            for name, shape in (
                ("norm1", (C,)),
                ("attention.qkv", (3 * C, C)),
                ("attention.out", (C, C)),
                ("norm2", (C,)),
                ("feed_forward.widen", (4 * C, C)),
                ("feed_forward.out", (C, 4 * C)),
            ):
                shapes |= self._layer(f"blocks.{n}.{name}", shape)
        return shapes | self._layer("norm", (C,))

    def _layer(self, name: str, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        return {f"{name}.weight": shape} | ({f"{name}.bias": shape[:1]} if self.bias else {})

    def n_params(self, positions: bool = True) -> int:
        """Return the number of trained parameters, with or without the positional embedding."""
        n = sum(math.prod(shape) for shape in self.tensors().values())
        return n if positions else n - self.block * self.width


@dataclass(frozen=True)
class Problem:
    """The training task, independent of the framework: text, batches, shape, work."""

    text: Text
    shape: Shape
    batches: Batches
    flops_per_iter: float
    tokens_per_iter: int

    def first(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return the first training batch and its successors, for the reference loss, both (batch, block)."""
        x, y = self.batches.of_iteration(0)
        return x[0], y[0]


def problem(options: Options) -> Problem:
    """Read the text and derive shape, batches and work. Raises: UsageError for settings; JobError like load_text."""
    s = options.settings
    if s.n_embd % s.n_head:
        raise UsageError(f"n_embd={s.n_embd} is not divisible by n_head={s.n_head}", "it must be a multiple")
    text = load_text(s.data, s.tokens, s.block_size)
    shape = shape_of(s, text)
    sequences = s.batch_size * s.grad_accum
    return Problem(
        text=text,
        shape=shape,
        batches=Batches(text.parts(), options.seed, s.batch_size, s.block_size),
        flops_per_iter=flops_per_iter(shape, sequences),
        tokens_per_iter=sequences * s.block_size,
    )


def shape_of(s: SimpleNamespace, text: Text) -> Shape:
    """Return the model's shape. The rows by which pad_vocab extends the embedding are trained like those of tokens that
    never occur."""
    vocab = -(-text.vocab_size // s.pad_vocab) * s.pad_vocab
    return Shape(vocab, s.block_size, s.n_layer, s.n_head, s.n_embd, s.dropout, s.bias)


def weights(options: Options, shape: Shape) -> Weights:
    """Return the initial weights: those of init_from, else drawn by the seed. Raises: UsageError like read_weights."""
    if not (source := options.settings.init_from):
        return initial_weights(shape, options.seed)
    from harness.checkpoints.gpt2 import read_weights

    return read_weights(expanded(source), shape.tensors(), shape.heads)


def initial_weights(shape: Shape, seed: int) -> Weights:
    """Draw the initial weights as GPT-2 does: normal(0, 0.02), with the layers that write into the residual stream
    scaled by 1 / sqrt(2 layers), so that its variance does not grow with depth (Radford et al. 2019, section 2.3).
    Norms start at 1, biases at 0.

    Each tensor has its own stream of random numbers, keyed by its name, and is independent of the others.
    """
    drawn: Weights = {}
    for name, size in shape.tensors().items():
        if len(size) == 1:
            drawn[name] = np.full(size, float(name.endswith("weight")), np.float32)
            continue
        std = INITIAL_STD / math.sqrt(2 * shape.layers) if name.endswith("out.weight") else INITIAL_STD
        draw = np.random.Generator(np.random.PCG64([seed, zlib.crc32(name.encode())]))
        drawn[name] = draw.standard_normal(size, np.float32)
        drawn[name] *= np.float32(std)  # in place: the largest are hundreds of megabytes
    return drawn


def flops_per_iter(shape: Shape, sequences: int) -> float:
    """Return the FLOP of one iteration over `sequences` sequences of T = block tokens (a multiply-add counts as two).

    Per token, each weight is multiplied and added once in the forward: 2 N, with N excluding the positional embedding,
    which is only looked up. The token embedding is looked up too, but multiplied once as the output layer. The backward
    costs twice the forward (gradients by inputs, and by weights): 6 N a token, 6 N T a sequence.

    Attention has two products without weights, queries by keys and scores by values. With H heads of Q features each
    takes 2 H Q T FLOP a token, both 4 H Q T, and 12 H Q T with the backward. Over L layers and T tokens that is
    12 L H Q T^2 a sequence. The half that the causal mask discards is counted, as in Chowdhery et al. 2022 (PaLM),
    appendix B.

    Excluded, as is usual: normalisations, softmax, GELU, dropout, the optimizer.
    """
    T, Q = shape.block, shape.width // shape.heads
    weights = 6 * shape.n_params(positions=False) * T
    attention = 12 * shape.layers * shape.heads * Q * T * T
    return float(sequences * (weights + attention))


def learning_rate(i: int, s: SimpleNamespace) -> float:
    """Return the learning rate of iteration i: linear warm-up, then cosine decay to min_lr (Loshchilov & Hutter 2017,
    "SGDR", equation 5, without restarts)."""
    end = s.lr_decay_iters or s.max_iters
    if i < s.lr_warmup_iters:
        return float(s.lr * (i + 1) / (s.lr_warmup_iters + 1))
    if i >= end:
        return float(s.min_lr)
    share = (i - s.lr_warmup_iters) / (end - s.lr_warmup_iters)
    return float(s.min_lr + 0.5 * (1 + math.cos(math.pi * share)) * (s.lr - s.min_lr))
