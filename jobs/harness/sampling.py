"""mode=sample: how fast a model reads a prompt and generates text, and whether it does so correctly.

An iteration reads a prompt at once (prefill), then generates tokens one by one (decode), on the device: the most likely
one each time (greedy), or with a temperature one drawn as nanoGPT's sample.py draws it: from the softmax of the logits,
divided by the temperature, of the top_k most likely ones. The random numbers are numpy's, one a token, so that the four
frameworks write the same text but for rounding. Keys and values are cached in arrays of their final length. The device
is synchronised before each reading of the clock: around the prefill, and around the whole loop of the decode.
"""

from __future__ import annotations

import sys
import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness import hello, loop, prepared
from harness.command_line import Options
from harness.errors import JobError, UsageError
from harness.framework import Framework
from harness.training import TOLERANCE_NATS
from mpsq_report import Reporter

Tokens = NDArray[np.int32]
Losses = NDArray[np.float64]

CHECKED_ROWS = 2
"""Sequences of the first batch whose logits are compared with those of the training's model: more than one, to detect
keys and values of the wrong sequence."""
SHOWN_CHARACTERS = 2000
BETWEEN = "-" * 15
"""The line that sample.py prints after each text."""


@dataclass(frozen=True)
class Check:
    """Sequences to read token by token, and the loss of each target by the training's model on the CPU, in fp32."""

    tokens: Tokens
    """(batch, block), the first batch of the training"""
    targets: Tokens
    """(rows, new_tokens + 1): the successors of the prompt and of each token after it, in the first rows"""
    losses: Losses | None
    """cross entropy of the targets in nats; None if the framework has no CPU here"""


@dataclass(kw_only=True)
class Sampling:
    """A generating model on one device, as a workload's sample() returns it. Each framework has a subclass."""

    options: Options
    device: Any
    data: Mapping[str, Any]
    """fields of hello about the data: name, sha256 and others"""
    flops_per_iter: float
    per_iter: int
    """tokens that pass through the model in an iteration: block_size of each sequence"""
    check: Check
    prompt: Callable[[int], Tokens]
    """of iteration i: (batch, block - new_tokens)"""
    read: Callable[[Sequence[int]], str]
    """tokens as text"""
    optimizer_name: str = ""

    def n_params(self) -> int:
        """Return the number of parameters."""
        raise NotImplementedError

    def prefill(self, tokens: Tokens) -> Any:
        """Start over with a prompt (batch, time). Return the logits of its last position, (batch, vocab)."""
        raise NotImplementedError

    def step(self, tokens: Tokens) -> Any:
        """Append one token to each sequence, (batch,). Return the logits of its position, (batch, vocab)."""
        raise NotImplementedError

    def draw(self, numbers: NDArray[np.float32]) -> None:
        """Copy the random numbers in [0, 1) of the next prefill and write to the device, (batch, n + 1), a number for
        each token. Only called with a temperature."""
        raise NotImplementedError

    def write(self, logits: Any, n: int) -> Any:
        """Return the token chosen by `logits`, and `n` more, each fed to the model: (batch, n + 1), not waited for."""
        raise NotImplementedError

    def wait(self, *values: Any) -> None:
        """Return when these values, and the cached keys and values, are computed."""
        raise NotImplementedError

    def numpy(self, values: Any) -> NDArray[Any]:
        """Return logits in fp32, or tokens, as a numpy array."""
        raise NotImplementedError


Sample = Callable[[Options, Any], Sampling]
"""(options, device) to a Sampling of the framework: everything done before the first iteration"""


def reference_check(x: Tokens, y: Tokens, new_tokens: int, logits: Callable[[Tokens], NDArray[Any]] | None) -> Check:
    """Return the check on the first batch: tokens `x` and their successors `y`, both (batch, block).

    `logits` is the training's model on the CPU in fp32: tokens (1, block) to logits (1, block, vocab).
    """
    targets = y[:CHECKED_ROWS, -new_tokens - 1 :]
    if logits is None:
        return Check(x, targets, None)

    def compute() -> list[Any]:
        one_by_one = [logits(x[row : row + 1])[0, -new_tokens - 1 :] for row in range(len(targets))]
        return [losses(found, row).tolist() for found, row in zip(one_by_one, targets, strict=True)]

    return Check(x, targets, np.array(prepared.once("sample_losses", compute)))


def losses(logits: NDArray[Any], targets: Tokens) -> Losses:
    """Return the cross entropy of each target in nats: logits (n, vocab), targets (n,)."""
    wide = logits.astype(np.float64)
    top = wide.max(axis=-1)
    total = np.log(np.exp(wide - top[:, None]).sum(axis=-1)) + top
    return np.asarray(total - wide[np.arange(len(targets)), targets], np.float64)


def refuse(options: Options) -> None:
    """Raise UsageError for options that mode=sample does not support."""
    s = options.settings
    if s.num_samples > s.batch_size * s.max_iters:
        raise UsageError(
            f"num_samples={s.num_samples}: {s.max_iters} iterations of batch_size={s.batch_size} write fewer",
            f"--set max_iters={-(-s.num_samples // s.batch_size)}",
        )
    if s.top_k and not s.temperature:
        raise UsageError("top_k has no effect without a temperature", "--set temperature=0.8, as sample.py has it")
    if s.new_tokens >= s.block_size:
        raise UsageError(
            f"new_tokens={s.new_tokens}: with block_size={s.block_size} it must be less than that",
            "what is left of block_size is the prompt",
        )
    if options.resume is not None:
        raise UsageError(
            "mode=sample does not resume from a checkpoint",
            "the weights.npz that a training leaves in its --out is what init_from takes: --set init_from=PATH",
        )
    if s.checkpoint_interval:
        raise UsageError("mode=sample writes no checkpoints", "set checkpoint_interval=0")


def run(
    workload: Mapping[str, Any],
    framework: Framework,
    sampling: Sampling,
    facts: Mapping[str, Any],
    report: Reporter,
) -> loop.Result:
    """Prefill and decode max_iters times; check the first, show the text of the last. Ends the phase `setup`."""
    options, settings = sampling.options, sampling.options.settings
    report.hello(**hello.model_fields(sampling))
    if sampling.check.losses is not None:
        report.metric("reference_loss_cpu", float(sampling.check.losses.mean()), "nats")
    hello.print_summary(workload, framework.name, framework.compiler, sampling, facts, 0)
    n_prompt = sampling.prompt(0).shape[1]
    how = (
        f"temperature {settings.temperature:g}, top_k {settings.top_k or 'all'}"
        if settings.temperature
        else "likeliest"
    )
    print(
        f"sample: {settings.batch_size} x {n_prompt} tokens read at once, {settings.new_tokens} more one by one ({how})"
    )
    plan = loop.Plan(
        first=0,
        total=settings.max_iters,
        warmup_iters=settings.warmup_iters,
        compile=options.compile,
        eval_interval=0,
        checkpoint_interval=0,
        save_at_end=False,
        log_interval=settings.log_interval,
        stop_on_nan=False,
        per_iter=sampling.per_iter,
        unit=workload["unit"],
    )
    work = _Work(framework, sampling, report)
    report.end("setup")
    result = loop.run(plan, work, report)
    work.show(options.out)
    return result


@dataclass(frozen=True)
class _Generation:
    prefill_s: float
    decode_s: float
    tokens: Any


class _Work:
    """loop.Work of a generating model."""

    splits: tuple[str, ...] = ()

    def __init__(self, framework: Framework, sampling: Sampling, report: Reporter) -> None:
        self._framework, self._sampling, self._report = framework, sampling, report
        self._n_prompt = sampling.prompt(0).shape[1]
        s = sampling.options.settings
        self._kept: deque[tuple[Tokens, _Generation]] = deque(maxlen=max(1, -(-s.num_samples // s.batch_size)))
        """the last iterations: as many as have num_samples texts"""

    def step(self, i: int) -> _Generation:
        sampling, n = self._sampling, self._sampling.options.settings.new_tokens
        prompt = sampling.prompt(i)
        if sampling.options.settings.temperature:
            sampling.draw(random_numbers(sampling.options.seed, i, len(prompt), n))
        state: list[Any] = []

        def synchronize() -> None:
            sampling.wait(*state)

        def prefill() -> None:
            state.append(sampling.prefill(prompt))

        def decode() -> None:
            state.append(sampling.write(state[0], n))

        prefill_s, _ = loop.timed(prefill, synchronize)
        decode_s, _ = loop.timed(decode, synchronize)
        written = _Generation(prefill_s, decode_s, state[1])
        self._kept.append((prompt, written))
        return written

    def read(self, loss: _Generation) -> None:
        """Return None: generation has no loss."""

    def measures(self, loss: _Generation) -> dict[str, tuple[float, str]]:
        s = self._sampling.options.settings
        n_read, n_written = s.batch_size * self._n_prompt, s.batch_size * s.new_tokens
        return {
            "prefill_tokens_per_s": (n_read / max(loss.prefill_s, 1e-9), "tokens/s"),
            "decode_tokens_per_s": (n_written / max(loss.decode_s, 1e-9), "tokens/s"),
        }

    def synchronize(self) -> None:
        self._sampling.wait()

    def memory(self) -> tuple[int | None, int | None]:
        return self._framework.memory(self._sampling.device)

    def evaluate(self, split: str) -> Mapping[str, float]:
        raise NotImplementedError("mode=sample has no splits to evaluate")

    def save(self, done: int) -> None:
        raise NotImplementedError("mode=sample has nothing to save")

    def at_start(self) -> AbstractContextManager[None]:
        raise NotImplementedError("mode=sample has nothing to evaluate")

    def after_first(self) -> None:
        self._framework.after_first(self._sampling)
        if self._sampling.options.compile:
            hello.report_cache(self._framework, self._report)
        if self._sampling.check.losses is None:
            self._report.note("no_reference", f"{self._framework.name} has no CPU here to compute the logits on")
            return
        with self._report.phase("compile" if self._sampling.options.compile else "setup"):
            found = on_device(self._sampling)
        self._report.metric("reference_loss_device", float(found.mean()), "nats")
        _compare_with_reference(self._sampling, self._sampling.check.losses, found, self._report)

    def _texts(self) -> list[tuple[str, str]]:
        """Return prompt and text of the last num_samples sequences, in the order in which they were written."""
        found = [
            (self._sampling.read(prompt.tolist()), self._sampling.read(tokens.tolist()))
            for prompts, written in self._kept
            for prompt, tokens in zip(prompts, self._sampling.numpy(written.tokens), strict=True)
        ]
        s = self._sampling.options.settings
        return found[-s.num_samples :] if s.num_samples > 1 else found[-s.batch_size :][:1]

    def show(self, folder: Path | None) -> None:
        """Print the last num_samples texts, several with a line of dashes below each as sample.py has it; report them
        as notes, and write them to sample.txt in --out. Raises: JobError."""
        if not self._kept:
            return
        several = self._sampling.options.settings.num_samples > 1
        texts = self._texts()
        for begun, text in texts:
            print(f"after the prompt {begun[-60:]!r} it wrote:\n{text[:SHOWN_CHARACTERS]}")
            if several:
                print(BETWEEN)
            self._report.note("sample", text[:SHOWN_CHARACTERS], prompt=begun[-SHOWN_CHARACTERS:])
        if not self._sampling.options.settings.init_from:
            print("(its weights are not trained: --set init_from=PATH takes the weights.npz of a training's --out)")
        if folder is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                (folder / "sample.txt").write_text(
                    f"\n{BETWEEN}\n".join(begun + text for begun, text in texts), "utf-8"
                )
            except OSError as error:
                raise JobError(f"{folder / 'sample.txt'} cannot be written: {error}", "give --out a folder") from None
            print(f"saved {folder / 'sample.txt'}")


def random_numbers(seed: int, i: int, rows: int, n: int) -> NDArray[np.float32]:
    """Return the random numbers of iteration i, (rows, n + 1): at most 1 - 1e-6, so that in fp32 a product with a sum
    of probabilities stays below that sum."""
    draw = np.random.Generator(np.random.PCG64([seed, zlib.crc32(b"sample"), i]))
    return np.minimum(draw.random((rows, n + 1), np.float32), np.float32(1 - 1e-6))


def on_device(sampling: Sampling) -> Losses:
    """Return the losses of the check's targets, computed by the prefill and steps that are timed."""
    check = sampling.check
    rows, n = check.targets.shape
    n_prompt = check.tokens.shape[1] - n + 1
    found = [sampling.numpy(sampling.prefill(check.tokens[:, :n_prompt]))]
    found += [sampling.numpy(sampling.step(check.tokens[:, at])) for at in range(n_prompt, check.tokens.shape[1])]
    return np.stack([losses(logits[:rows], check.targets[:, at]) for at, logits in enumerate(found)], axis=1)


def _compare_with_reference(sampling: Sampling, expected: Losses, found: Losses, report: Reporter) -> None:
    dtype = sampling.options.dtype
    tolerance = TOLERANCE_NATS[dtype]
    how = f"{sampling.device}, {dtype}" + (", compiled" if sampling.options.compile else "")
    right, here = float(expected.mean()), float(found.mean())
    apart = float(np.abs(found - expected).mean())  # per token, so that differences do not cancel
    print(f"loss of {expected.size:,} tokens of the first batch: {right:.6f} by the training's model on the CPU,")
    print(f"  {here:.6f} here with keys and values kept ({how}); {apart:.1e} apart")
    if not apart <= tolerance:  # not <=, so that nan is wrong too
        text = (
            f"tokens of the first batch cost {here:.6f} nats with keys and values kept ({how}), {right:.6f} by the "
            f"training's model on the CPU: {apart:.3g} nats apart each, more than {tolerance:g}"
        )
        report.note("wrong_loss", text, expected=right, found=here, tolerance=tolerance)
        print(f"warning: {text}", file=sys.stderr)
