# /// script
# requires-python = ">=3.10"
# dependencies = ["torch>=2.9", "numpy", "tiktoken>=0.9"]
# ///
"""GPT-2 trained on text, in PyTorch: `python jobs/nanogpt_torch.py --device cpu --set max_iters=20`.

The model is that of Radford et al., "Language Models are Unsupervised Multitask Learners" (2019): a decoder of
pre-normalised blocks with learned positions and tied embeddings. Presets, optimizer settings and schedule are those of
nanoGPT (github.com/karpathy/nanoGPT), so that numbers can be compared; the code is our own.

Weights, batches and schedule are those of its twins in mlx, tinygrad and jax: harness/models/nanogpt.py.

Top to bottom: the model, its batches, build(), step(), evaluate(), sample(), the settings.
"""

from __future__ import annotations

if __name__ == "__main__":  # before the import of torch: signals may arrive during it
    from harness import start

    start.quietly("torch")

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from harness.command_line import Options
from harness.models import nanogpt
from harness.models.nanogpt import Problem, Shape
from harness.torch_backend.device import DTYPES, Device
from harness.torch_backend.main import main
from harness.torch_backend.training import Reference, adamw
from harness.torch_backend.training import Training as TorchTraining

if TYPE_CHECKING:
    from harness.torch_backend.sampling import Cache, LayerCache, Sampling


class Attention(nn.Module):
    """Causal self-attention with several heads: each position attends to itself and to those before it."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.dropout = shape.dropout
        self.qkv = nn.Linear(shape.width, 3 * shape.width, bias=shape.bias)
        self.out = nn.Linear(shape.width, shape.width, bias=shape.bias)

    def forward(self, x: torch.Tensor, cache: LayerCache | None = None) -> torch.Tensor:
        B, T, C = x.shape
        q, k, v = (part.view(B, T, self.heads, C // self.heads).transpose(1, 2) for part in self.qkv(x).split(C, dim=2))
        if cache is None:
            dropout = self.dropout if self.training else 0.0
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        else:
            y = cache.attend(q, k, v)
        y = self.out(y.transpose(1, 2).reshape(B, T, C))
        return F.dropout(y, self.dropout, self.training)


class FeedForward(nn.Module):
    """Two linear layers, four times as wide between them, with the exact GELU, as in nanoGPT."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.dropout = shape.dropout
        self.widen = nn.Linear(shape.width, 4 * shape.width, bias=shape.bias)
        self.out = nn.Linear(4 * shape.width, shape.width, bias=shape.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(self.out(F.gelu(self.widen(x))), self.dropout, self.training)


class Block(nn.Module):
    """Attention and feed-forward, each with layer normalisation before it and a residual connection around it."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(shape.width, bias=shape.bias)
        self.attention = Attention(shape)
        self.norm2 = nn.LayerNorm(shape.width, bias=shape.bias)
        self.feed_forward = FeedForward(shape)

    def forward(self, x: torch.Tensor, cache: LayerCache | None = None) -> torch.Tensor:
        x = x + self.attention(self.norm1(x), cache)
        return x + self.feed_forward(self.norm2(x))


class GPT(nn.Module):
    """A model from tokens (batch, time) to logits (batch, time, vocab), or with targets to their mean cross entropy in
    nats.

    With a cache the tokens continue those that it holds, and only the last one's logits are computed.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.tokens = nn.Embedding(shape.vocab, shape.width)
        self.positions = nn.Embedding(shape.block, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width, bias=shape.bias)

    def forward(
        self, tokens: torch.Tensor, targets: torch.Tensor | None = None, cache: Cache | None = None
    ) -> torch.Tensor:
        n = tokens.shape[1]
        positions = torch.arange(n, device=tokens.device) if cache is None else cache.positions(n)
        x = self.tokens(tokens) + self.positions(positions)
        x = F.dropout(x, self.shape.dropout, self.training)
        for layer, block in enumerate(self.blocks):
            x = block(x, None if cache is None else cache.layer(layer))
        x = x if cache is None else x[:, -1:]
        logits = F.linear(self.norm(x), self.tokens.weight)  # tied: the embedding is also the output layer
        return logits if targets is None else F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def model_of(shape: Shape, weights: nanogpt.Weights) -> GPT:
    """Return the model with these weights, on the CPU: every device starts from the same ones."""
    with torch.device("meta"):  # so that torch initialises no weights
        model = GPT(shape)
    model.load_state_dict({name: torch.from_numpy(value) for name, value in weights.items()}, assign=True)
    return model


Batch = tuple[torch.Tensor, torch.Tensor]


@dataclass(kw_only=True)
class Training(TorchTraining):
    """The harness's Training, with the problem and the batches fetched ahead."""

    problem: Problem
    replica: Any
    """the function that step() calls: `forward`, or its replica in DistributedDataParallel"""
    fetched: tuple[int, list[Batch]] = (-1, [])
    """an iteration and its batches, prefetched; (-1, []) before the first"""


def to_device(x: np.ndarray, y: np.ndarray, device: Device) -> Batch:
    """Copy a batch to the device; to CUDA asynchronously, from pinned memory."""
    parts = [torch.from_numpy(part).long() for part in (x, y)]
    if device.kind == "cuda":
        parts = [part.pin_memory() for part in parts]
    x_device, y_device = (part.to(device.handle, non_blocking=device.kind == "cuda") for part in parts)
    return x_device, y_device


def fetch(training: Training, i: int) -> list[Batch]:
    """Return the batches of iteration i, on their way to the device: of several processes this one's share."""
    n, share = training.options.settings.grad_accum, training.device.group.share
    parts = training.problem.batches.of_iteration(i, n, share)
    return [to_device(*batch, training.device) for batch in zip(*parts, strict=True)]


def build(options: Options, device: Device) -> Training:
    """Build text, model, reference loss and optimizer."""
    s = options.settings
    problem = nanogpt.problem(options)
    torch.manual_seed(options.seed + device.group.rank)  # for dropout
    model = model_of(problem.shape, nanogpt.weights(options, problem.shape))
    x, y = (torch.from_numpy(part).long() for part in problem.first())
    reference = Reference(model, (x, y))
    model.to(device.handle)
    groups = [
        {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": s.weight_decay},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer, name = adamw(
        groups, s.adamw, device, options.dtype, lr=s.lr, betas=(s.beta1, s.beta2), eps=nanogpt.ADAM_EPS
    )
    forward = model
    if options.compile:
        from harness.torch_backend.compiling import compiled

        forward = compiled(model, options)
    return Training(
        options=options,
        device=device,
        model=model,
        forward=forward,
        replica=device.group.replica(forward, device.handle),
        optimizer=optimizer,
        optimizer_name=name,
        scaler=torch.amp.GradScaler(device.kind, enabled=options.dtype == "fp16"),
        reference=reference,
        data=problem.text.fields(),
        flops_per_iter=problem.flops_per_iter,
        per_iter=problem.tokens_per_iter,
        problem=problem,
    )


def step(training: Training, i: int) -> torch.Tensor:
    """Do one iteration: forward, backward, clipping, update, and fetch the next batches. Return the mean loss, on the
    device."""
    s, optimizer, scaler = training.options.settings, training.optimizer, training.scaler
    for group in optimizer.param_groups:
        group["lr"] = nanogpt.learning_rate(i, s)
    losses = []
    fetched_for, batches = training.fetched
    batches = batches if fetched_for == i else fetch(training, i)
    for n, (x, y) in enumerate(batches, start=1):
        with training.device.group.averaging(training.replica, n == len(batches)):
            with training.device.autocast(training.options.dtype):
                loss = training.replica(x, y) / len(batches)
            scaler.scale(loss).backward()
        losses.append(loss.detach())
    if s.grad_clip:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(training.model.parameters(), s.grad_clip)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    training.fetched = i + 1, fetch(training, i + 1)  # while the device computes
    return losses[0] if len(losses) == 1 else torch.stack(losses).sum()


@torch.no_grad()
def evaluate(training: Training, split: str) -> dict[str, float]:
    """Return the mean loss over eval_iters batches, dropout off: the same batches at every evaluation of a seed, of
    which several processes take turns."""
    s, group = training.options.settings, training.device.group
    total = torch.zeros((), device=training.device.handle)
    training.model.eval()
    for batch in zip(*training.problem.batches.of_evaluation(split, s.eval_iters, group.share), strict=True):
        x, y = to_device(*batch, training.device)
        with training.device.autocast(training.options.dtype):
            total += training.forward(x, y)
    training.model.train()
    return {"loss": group.mean(float(total), s.eval_iters)}


def sample(options: Options, device: Device) -> Sampling:
    """Build text, model and reference logits for mode=sample."""
    from harness.models import nanogpt_sampling
    from harness.torch_backend.sampling import Sampling, logits_of

    problem = nanogpt.problem(options)
    shape = problem.shape
    model = model_of(shape, nanogpt.weights(options, shape))
    reference = nanogpt_sampling.reference(options, problem, logits_of(model))
    for name, value in model.named_parameters():
        if not nanogpt_sampling.stays_fp32(name, value.ndim):
            value.data = value.data.to(DTYPES[options.dtype])
    model.eval().to(device.handle)
    return Sampling(
        device=device,
        reference=reference,
        model=model,
        forward=model,
        **nanogpt_sampling.arguments(options, problem),
    )


WORKLOAD = {
    "name": "nanogpt",
    "framework": "torch",
    "about": "GPT-2 on text, character by character or with GPT-2's byte pairs: nanoGPT's shakespeare_char and gpt2.",
    "source": "Radford et al. 2019 (GPT-2); presets: github.com/karpathy/nanoGPT, config/train_shakespeare_char.py",
    "prepares": True,
    "gpus_divide": "grad_accum",
    "unit": "tokens",
    "params": {
        "mode": {
            "default": "train", "unit": "", "choices": ["train", "sample"],
            "help": "train, or sample: generate text. An iteration of sample reads block_size - new_tokens tokens, "
            "then writes new_tokens; by default with batch_size=1 and max_iters=24",
        },
        "new_tokens": {
            "default": 32, "unit": "tokens", "least": 1,
            "help": "tokens written one by one in each iteration of mode=sample; less than block_size",
        },
        "temperature": {
            "default": 0.0, "unit": "", "least": 0,
            "help": "mode=sample: temperature of the draw; 0: always the likeliest token (sample.py: 0.8)",
        },
        "top_k": {
            "default": 0, "unit": "tokens", "least": 0,
            "help": "mode=sample with a temperature: draw from this many likeliest tokens; 0: all (sample.py: 200)",
        },
        "num_samples": {
            "default": 1, "unit": "texts", "least": 1,
            "help": "mode=sample: texts to show, at most batch_size times max_iters (sample.py: 10)",
        },
        "start": {
            "default": "", "unit": "",
            "help": "mode=sample: the prompt, or FILE:PATH; empty: the text that a training would read",
        },
        "data": {
            "default": "pydoc", "unit": "", "path_or": ["pydoc", "shakespeare"],
            "help": "pydoc (Python's own help texts), shakespeare (downloaded once), or the path of a text file",
        },
        "tokens": {
            "default": "char", "unit": "", "choices": ["char", "bpe"],
            "help": "char (every character is a token) or bpe (GPT-2's byte pairs, by tiktoken)",
        },
        "n_layer": {"default": 4, "unit": "blocks", "least": 1, "help": "depth"},
        "n_head": {"default": 4, "unit": "heads", "least": 1, "help": "attention heads in a block; divides n_embd"},
        "n_embd": {"default": 128, "unit": "features", "least": 1, "multiple_of": "n_head", "help": "width"},
        "block_size": {"default": 64, "unit": "tokens", "least": 1, "help": "length of a sequence"},
        "batch_size": {
            "default": 12, "unit": "sequences", "least": 1,
            "help": "sequences in one forward and backward pass",
        },
        "grad_accum": {"default": 1, "unit": "batches", "least": 1, "help": "batches whose gradients make one update"},
        "dropout": {
            "default": 0.0, "unit": "share", "least": 0, "below": 1,
            "help": "share of the activations that training drops",
        },
        "bias": {"default": False, "unit": "", "help": "biases in linear and normalisation layers, as in GPT-2"},
        "pad_vocab": {
            "default": 1, "unit": "tokens", "least": 1,
            "help": "round the vocabulary up to a multiple of this, for matrix units; nanoGPT: 64 for bpe",
        },
        "init_from": {
            "default": "", "unit": "", "path_or": [""],
            "help": "start from weights.npz or checkpoint.pt of a training, nanoGPT's ckpt.pt, or Hugging Face's gpt2; "
            "empty: random weights",
        },
        "max_iters": 150,
        "warmup_iters": {
            "default": 10, "unit": "iterations", "least": 0,
            "help": "iterations after the first that are not measured (for the schedule: lr_warmup_iters)",
        },
        "eval_interval": 50,
        "eval_at_start": False,
        "eval_iters": {"default": 5, "unit": "batches", "least": 1, "help": "batches of each split in an evaluation"},
        "log_interval": 10,
        "checkpoint_interval": 0,
        "lr": {"default": 1e-3, "unit": "", "least": 0, "help": "highest learning rate"},
        "min_lr": {"default": 1e-4, "unit": "", "least": 0, "help": "learning rate at the end of the cosine"},
        "lr_warmup_iters": {
            "default": 10, "unit": "iterations", "least": 0,
            "help": "iterations in which the learning rate rises linearly",
        },
        "lr_decay_iters": {
            "default": 0, "unit": "iterations", "least": 0,
            "help": "iteration at which the cosine ends; 0: max_iters",
        },
        "weight_decay": {"default": 0.1, "unit": "", "least": 0, "help": "weight decay of matrices; vectors have none"},
        "beta1": {"default": 0.9, "unit": "", "least": 0, "below": 1, "help": "AdamW's decay of the mean"},
        "beta2": {"default": 0.99, "unit": "", "least": 0, "below": 1, "help": "AdamW's decay of the mean square"},
        "grad_clip": {"default": 1.0, "unit": "", "least": 0, "help": "largest norm of the gradient; 0: no limit"},
        "adamw": {
            "default": "auto", "unit": "", "choices": ["auto", "fused", "foreach", "loop"],
            "help": "implementation of AdamW; auto: fused if the device has it and it is correct",
        },
        "stop_on_nan": False,
        "threads": 0,
    },
    "configs": {
        "tiny": {
            "data": "pydoc", "n_layer": 4, "n_head": 4, "n_embd": 128, "block_size": 64, "batch_size": 12,
            "max_iters": 150,
        },
        "shakespeare_char": {
            "data": "shakespeare", "n_layer": 6, "n_head": 6, "n_embd": 384, "block_size": 256, "batch_size": 64,
            "dropout": 0.2, "max_iters": 5000, "eval_interval": 250, "eval_iters": 200,
            "eval_at_start": True, "new_tokens": 128,
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


if __name__ == "__main__":
    sys.exit(main(WORKLOAD, build, step, evaluate, sample=sample))
