"""Parts shared by the nanogpt workloads of all frameworks: shape, weights, batches, schedule, FLOP.

The same seed gives the same weights and the same batches in torch, mlx, tinygrad and jax: numpy draws both, here.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.checkpoints import weights_file
from harness.checkpoints.nanogpt import is_supported as is_foreign_checkpoint
from harness.checkpoints.nanogpt import read as read_checkpoint
from harness.command_line import Options
from harness.data.batches import Batches
from harness.data.text import Text
from harness.data.text import load as load_text
from harness.errors import UsageError

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
        found: dict[str, tuple[int, ...]] = {"tokens.weight": (self.vocab, C), "positions.weight": (self.block, C)}
        for n in range(self.layers):
            for name, shape in (
                ("norm1", (C,)),
                ("attention.qkv", (3 * C, C)),
                ("attention.out", (C, C)),
                ("norm2", (C,)),
                ("feed_forward.widen", (4 * C, C)),
                ("feed_forward.out", (C, 4 * C)),
            ):
                found |= self._layer(f"blocks.{n}.{name}", shape)
        return found | self._layer("norm", (C,))

    def _layer(self, name: str, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        return {f"{name}.weight": shape} | ({f"{name}.bias": shape[:1]} if self.bias else {})

    def n_params(self, positions: bool = True) -> int:
        """Return the number of trained parameters, with or without the positional embedding."""
        found = sum(math.prod(shape) for shape in self.tensors().values())
        return found if positions else found - self.block * self.width


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
    check(s)
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
    source = options.settings.init_from
    return read_weights(Path(source).expanduser(), shape) if source else initial_weights(shape, options.seed)


def initial_weights(shape: Shape, seed: int) -> Weights:
    """Draw the initial weights as GPT-2 does: normal(0, 0.02), with the layers that write into the residual stream
    scaled by 1 / sqrt(2 layers), so that its variance does not grow with depth (Radford et al. 2019, section 2.3).
    Norms start at 1, biases at 0.

    Each tensor has its own stream of random numbers, keyed by its name, and is independent of the others.
    """
    found: Weights = {}
    for name, size in shape.tensors().items():
        if len(size) == 1:
            found[name] = np.full(size, float(name.endswith("weight")), np.float32)
            continue
        std = INITIAL_STD / math.sqrt(2 * shape.layers) if name.endswith("out.weight") else INITIAL_STD
        draw = np.random.Generator(np.random.PCG64([seed, zlib.crc32(name.encode())]))
        found[name] = draw.standard_normal(size, np.float32)
        found[name] *= np.float32(std)  # in place: the largest are hundreds of megabytes
    return found


def read_weights(path: Path, shape: Shape) -> Weights:
    """Return the weights of a .npz file written by any of the four (--out) or with the same names, of a checkpoint of
    ours or nanoGPT's, or of Hugging Face's gpt2.

    Raises: UsageError if it cannot be read, or is of another model.
    """
    if is_foreign_checkpoint(path):
        return read_checkpoint(path, shape.tensors(), shape.heads)
    return weights_file.fitting(weights_file.read(path, "init_from"), shape.tensors(), path)


def flops_per_iter(shape: Shape, sequences: int) -> float:
    """Return the FLOP of one iteration over `sequences` sequences of T = block tokens (a multiply-add counts as two).

    Per token, each weight is multiplied and added once in the forward: 2 N, with N excluding the positional embedding,
    which is only looked up. The token embedding is looked up too, but multiplied once as the output layer. The backward
    costs twice the forward (gradients by inputs, and by weights): 6 N a token, 6 N T a sequence.

    Attention has two products without weights, queries by keys and scores by values. With H heads of Q features each
    takes 2 H Q T FLOP a token, both 4 H Q T; with the backward 12 H Q T, hence 12 L H Q T^2 a sequence over L layers
    and T tokens. The half that the causal mask discards is counted, as in Chowdhery et al. 2022 (PaLM), appendix B.

    Excluded, as is usual: normalisations, softmax, GELU, dropout, the optimizer.
    """
    T, Q = shape.block, shape.width // shape.heads
    weights = 6 * shape.n_params(positions=False) * T
    attention = 12 * shape.layers * shape.heads * Q * T * T
    return float(sequences * (weights + attention))


def sampling_flops(shape: Shape, sequences: int, prompt: int, new_tokens: int) -> float:
    """Return the FLOP of reading `prompt` tokens and generating new_tokens, by the forward of flops_per_iter.

    The output layer is computed for the prompt's last position, then for each new token. Scores within the prompt are
    counted in full, as in training; a new token attends to the keys that exist, not to masked ones.
    """
    T, Q = prompt + new_tokens, shape.width // shape.heads
    output = shape.vocab * shape.width
    weights = 2 * (shape.n_params(positions=False) - output) * T + 2 * output * (new_tokens + 1)
    met = prompt * prompt + sum(range(prompt + 1, T + 1))
    return float(sequences * (weights + 4 * shape.layers * shape.heads * Q * met))


def stays_fp32(name: str, dimensions: int) -> bool:
    """Return whether a tensor stays in fp32 when the model generates in another dtype.

    Matrices are converted once instead of in each product. The positions determine the dtype of the residual stream.
    """
    return dimensions < 2 or name == "positions.weight"


def sampling(options: Options, problem: Problem) -> dict[str, Any]:
    """Return the arguments of Sampling that are the same in every framework; `check` is not among them."""
    s = options.settings
    begun, n_prompt = started(options, problem.text), prompt_length(options, problem.text)

    def prompt(i: int) -> NDArray[np.int32]:
        if begun is not None:
            return np.tile(begun, (s.batch_size, 1))
        return problem.batches.of_iteration(i)[0][0, :, :n_prompt]

    return {
        "options": options,
        "data": problem.text.said(),
        "flops_per_iter": sampling_flops(problem.shape, s.batch_size, n_prompt, s.new_tokens),
        "per_iter": s.batch_size * (n_prompt + s.new_tokens),
        "prompt": prompt,
        "read": problem.text.decoded,
    }


def started(options: Options, text: Text) -> NDArray[np.int32] | None:
    """Return the tokens of `start`, a text or FILE:PATH as in nanoGPT's sample.py; None if it is empty. Of a text
    longer than block_size - new_tokens the end is taken, since the model has no positions for more.

    Raises: UsageError for a file that cannot be read, or characters that the training text does not have.
    """
    s = options.settings
    if not s.start:
        return None
    words = s.start
    if words.startswith("FILE:"):
        path = Path(words.removeprefix("FILE:")).expanduser()
        try:
            words = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = f"{path}: {error.strerror.lower()}" if isinstance(error, OSError) else "it is not UTF-8"
            raise UsageError(f"start={s.start} cannot be read: {reason}", "FILE: is followed by a text file") from None
    tokens = text.encoded(words, "start")
    if not tokens:
        raise UsageError(f"start={s.start} is empty", "give a text, or leave start out: prompts are of the data then")
    return np.array(tokens[-(s.block_size - s.new_tokens) :], np.int32)


def prompt_length(options: Options, text: Text) -> int:
    """Return the tokens of a prompt: those of `start`, else what new_tokens leaves of block_size."""
    begun = started(options, text)
    return options.settings.block_size - options.settings.new_tokens if begun is None else len(begun)


def checked(options: Options, problem: Problem) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return tokens and successors of the first batch for reference_check, as long as what an iteration reads and
    writes, so that the check runs what is timed."""
    length = prompt_length(options, problem.text) + options.settings.new_tokens
    x, y = problem.first()
    return x[:, :length], y[:, :length]


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


def check(s: SimpleNamespace) -> None:
    """Raise UsageError for settings that the model does not support."""
    if s.n_embd % s.n_head:
        raise UsageError(f"n_embd={s.n_embd} is not divisible by n_head={s.n_head}", "it must be a multiple")


def refuse_fp16(options: Options, framework: str) -> None:
    """Raise UsageError for fp16: its gradients underflow without loss scaling, which only torch has of the four."""
    if options.dtype == "fp16":
        raise UsageError(
            f"{framework} has no loss scaling, without which gradients in fp16 vanish",
            "--dtype bf16 has the range of fp32 and needs none; fp16 trains in torch",
        )
