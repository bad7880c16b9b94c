"""mode=sample: how fast a model reads a prompt and generates text, and whether it does so correctly.

An iteration reads a prompt at once (prefill), then generates tokens one by one (decode), on the device. Each token is
the most likely one (greedy), or with a temperature drawn as by nanoGPT's sample.py: from the softmax of the logits,
divided by the temperature, of the top_k most likely ones. The random numbers are numpy's, one a token, so that the four
frameworks write the same text but for rounding. Keys and values are cached in arrays of their final length. The device
is synchronised before each reading of the clock: around the prefill, and around the whole loop of the decode.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness import loop
from harness.command_line import Options
from harness.errors import JobError, UsageError
from harness.framework import Build, Framework
from harness.training import TOLERANCE_NATS, Described, is_checked, once
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

    @property
    def cpu(self) -> float | None:
        """Return the mean loss."""
        return None if self.losses is None else float(self.losses.mean())


@dataclass(kw_only=True)
class Sampling(Described):
    """A generating model on one device, as a workload's sample() returns it. Each framework has a subclass.

    `per_iter` are the tokens that pass through the model in an iteration: block_size of each sequence.
    """

    reference: Check
    heads: int
    layers: int
    width: int
    prompt: Callable[[int], Tokens]
    """of iteration i: (batch, block - new_tokens)"""
    read: Callable[[Sequence[int]], str]
    """tokens as text"""

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


def reference_check(x: Tokens, y: Tokens, new_tokens: int, logits: Callable[[Tokens], NDArray[Any]] | None) -> Check:
    """Return the check on the first batch: tokens `x` and their successors `y`, both (batch, block).

    `logits` is the training's model on the CPU in fp32: tokens (1, block) to logits (1, block, vocab).
    """
    targets = y[:CHECKED_ROWS, -new_tokens - 1 :]
    if logits is None:
        return Check(x, targets, None)

    def compute() -> list[Any]:
        one_by_one = [logits(x[row : row + 1])[0, -new_tokens - 1 :] for row in range(len(targets))]
        return [losses(row_logits, row).tolist() for row_logits, row in zip(one_by_one, targets, strict=True)]

    expected = once("sample_losses", compute)
    return Check(x, targets, None if expected is None else np.array(expected))


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
            "the rest of block_size is the prompt",
        )
    if options.resume is not None:
        raise UsageError(
            "mode=sample does not resume from a checkpoint",
            "the weights.npz that a training leaves in its --out is what init_from takes: --set init_from=PATH",
        )
    if s.checkpoint_interval:
        raise UsageError("mode=sample writes no checkpoints", "set checkpoint_interval=0")


def run(workload: Mapping[str, Any], framework: Framework, sample: Build, options: Options, report: Reporter) -> None:
    """Prefill and decode max_iters times; check the first, print the text of the last."""
    refuse(options)
    s = options.settings
    sampling: Sampling
    sampling, _ = loop.set_up(workload, framework, sample, options, report)
    device = sampling.device
    n_prompt = sampling.prompt(0).shape[1]
    how = f"temperature {s.temperature:g}, top_k {s.top_k or 'all'}" if s.temperature else "likeliest"
    print(f"sample: {s.batch_size} x {n_prompt} tokens read at once, {s.new_tokens} more one by one ({how})")
    report.end("setup")
    texts, phase = deque[tuple[Tokens, Any]](maxlen=max(1, -(-s.num_samples // s.batch_size))), ""
    result, speeds = loop.Result(), list[tuple[float, float]]()
    try:
        for i in range(s.max_iters):
            if (current := loop.phase_of(i, options)) != phase:
                if phase:
                    report.end(phase)
                phase = current
                report.begin(phase)
            dur_s, prefill_s, decode_s, prompt, tokens = _generate(sampling, i)
            texts.append((prompt, tokens))  # as many iterations as have num_samples texts
            report.iter(i, dur_s, None, True, phase, *framework.memory(device))
            speed = s.batch_size * n_prompt / max(prefill_s, 1e-9), s.batch_size * s.new_tokens / max(decode_s, 1e-9)
            if phase == "measure":
                result.measured_s.append(dur_s)
                speeds.append(speed)
                report.metric("prefill_tokens_per_s", speed[0], "tokens/s", i)
                report.metric("decode_tokens_per_s", speed[1], "tokens/s", i)
            if i % s.log_interval == 0 or i == s.max_iters - 1:
                loop.print_iteration(i, dur_s, None, phase, *_words(*speed))
            if i == 0:
                _after_first(framework, sampling, report)
    finally:
        if phase:
            report.end(phase)
    if texts:
        _show(sampling, texts, report)
    medians = (median(part) for part in zip(*speeds, strict=True))
    print(result.sentence(*(_words(*medians) if speeds else ())))


def _words(prefill: float, decode: float) -> tuple[str, str]:
    """Return both speeds in words, in tokens a second."""
    return f"prefill {prefill:,.0f} tokens/s", f"decode {decode:,.0f} tokens/s"


def _generate(sampling: Sampling, i: int) -> tuple[float, float, float, Tokens, Any]:
    """Do iteration i. Return the seconds of the whole, of prefill and of decode, the prompt and the tokens written."""
    s = sampling.options.settings
    state: list[Any] = []

    def wait() -> None:
        sampling.wait(*state)

    def both() -> tuple[float, float, Tokens, Any]:
        prompt = sampling.prompt(i)
        if s.temperature:
            sampling.draw(random_numbers(sampling.options.seed, i, len(prompt), s.new_tokens))
        prefill_s, _ = loop.timed(lambda: state.append(sampling.prefill(prompt)), wait)
        decode_s, _ = loop.timed(lambda: state.append(sampling.write(state[0], s.new_tokens)), wait)
        return prefill_s, decode_s, prompt, state[1]

    dur_s, parts = loop.timed(both, sampling.wait)
    return dur_s, *parts


def _after_first(framework: Framework, sampling: Sampling, report: Reporter) -> None:
    """Compare the losses of the first batch, once the first iteration is reported."""
    compiles, expected = sampling.options.compile, sampling.reference.losses
    framework.after_first(sampling)
    if compiles:
        loop.report_cache(framework, report)
    if expected is None and is_checked():
        return
    if expected is None:
        report.note("no_reference", f"{framework.name} has no CPU here to compute the logits on")
        return
    with report.phase("compile" if compiles else "setup"):
        computed = on_device(sampling)
    report.metric("reference_loss_device", float(computed.mean()), "nats")
    dtype = sampling.options.dtype
    tolerance = TOLERANCE_NATS[dtype]
    how = f"{sampling.device}, {dtype}" + (", compiled" if compiles else "")
    right, loss = float(expected.mean()), float(computed.mean())
    difference = float(np.abs(computed - expected).mean())  # per token, so that differences do not cancel
    print(f"loss of {expected.size:,} tokens of the first batch: {right:.6f} by the training's model on the CPU,")
    print(f"  {loss:.6f} here with keys and values kept ({how}); {difference:.1e} apart")
    if not difference <= tolerance:  # not >, so that nan is wrong too
        text = (
            f"tokens of the first batch cost {loss:.6f} nats with keys and values kept ({how}), {right:.6f} by the "
            f"training's model on the CPU: {difference:.3g} nats apart each, more than {tolerance:g}"
        )
        loop.report_wrong_loss(text, right, loss, tolerance, report)


def _show(sampling: Sampling, texts: Sequence[tuple[Tokens, Any]], report: Reporter) -> None:
    """Print the last num_samples texts, several with a line of dashes below each as sample.py has it; report them as
    notes, and write them to sample.txt in --out. Raises: JobError."""
    s, folder = sampling.options.settings, sampling.options.out
    pairs = [
        (sampling.read(prompt.tolist()), sampling.read(tokens.tolist()))
        for prompts, written in texts
        for prompt, tokens in zip(prompts, sampling.numpy(written), strict=True)
    ]
    pairs = pairs[-s.num_samples :] if s.num_samples > 1 else pairs[-s.batch_size :][:1]
    for prompt, text in pairs:
        print(f"after the prompt {prompt[-60:]!r} it wrote:\n{text[:SHOWN_CHARACTERS]}")
        if s.num_samples > 1:
            print(BETWEEN)
        report.note("sample", text[:SHOWN_CHARACTERS], prompt=prompt[-SHOWN_CHARACTERS:])
    if not s.init_from:
        print("(its weights are not trained: --set init_from=PATH takes the weights.npz of a training's --out)")
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "sample.txt").write_text(f"\n{BETWEEN}\n".join(prompt + text for prompt, text in pairs), "utf-8")
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
    check = sampling.reference
    rows, n = check.targets.shape
    n_prompt = check.tokens.shape[1] - n + 1
    logits = [sampling.numpy(sampling.prefill(check.tokens[:, :n_prompt]))]
    logits += [sampling.numpy(sampling.step(check.tokens[:, at])) for at in range(n_prompt, check.tokens.shape[1])]
    return np.stack([losses(part[:rows], check.targets[:, at]) for at, part in enumerate(logits)], axis=1)
