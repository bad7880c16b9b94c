"""mode=sample: how fast a model reads a prompt and generates text, and whether it does so correctly.

An iteration reads a prompt at once (prefill), then generates tokens one by one (decode), the most likely one each time
(greedy), on the device. Keys and values are cached there in arrays of their final length. The device is synchronised
before each reading of the clock: around the prefill, and around the whole loop of the decode.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness import hello, loop
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

    def greedy(self, logits: Any, n: int) -> Any:
        """Return the most likely token by `logits`, and `n` more, each fed to the model: (batch, n + 1), not waited
        for."""
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
    one_by_one = [logits(x[row : row + 1])[0, -new_tokens - 1 :] for row in range(len(targets))]
    return Check(x, targets, np.stack([losses(found, row) for found, row in zip(one_by_one, targets, strict=True)]))


def losses(logits: NDArray[Any], targets: Tokens) -> Losses:
    """Return the cross entropy of each target in nats: logits (n, vocab), targets (n,)."""
    wide = logits.astype(np.float64)
    top = wide.max(axis=-1)
    total = np.log(np.exp(wide - top[:, None]).sum(axis=-1)) + top
    return np.asarray(total - wide[np.arange(len(targets)), targets], np.float64)


def refuse(options: Options) -> None:
    """Raise UsageError for options that mode=sample does not support."""
    s = options.settings
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
    n_prompt = settings.block_size - settings.new_tokens
    print(f"sample: {settings.batch_size} x {n_prompt} tokens read at once, {settings.new_tokens} more one by one")
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
        self._last: tuple[Tokens, _Generation] | None = None

    def step(self, i: int) -> _Generation:
        sampling, n = self._sampling, self._sampling.options.settings.new_tokens
        prompt = sampling.prompt(i)
        state: list[Any] = []

        def synchronize() -> None:
            sampling.wait(*state)

        def prefill() -> None:
            state.append(sampling.prefill(prompt))

        def decode() -> None:
            state.append(sampling.greedy(state[0], n))

        prefill_s, _ = loop.timed(prefill, synchronize)
        decode_s, _ = loop.timed(decode, synchronize)
        written = _Generation(prefill_s, decode_s, state[1])
        self._last = prompt, written
        return written

    def read(self, loss: _Generation) -> None:
        """Return None: generation has no loss."""

    def measures(self, loss: _Generation) -> dict[str, tuple[float, str]]:
        s = self._sampling.options.settings
        n_read, n_written = s.batch_size * (s.block_size - s.new_tokens), s.batch_size * s.new_tokens
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

    def show(self, folder: Path | None) -> None:
        """Print the last text, report it as a note, and write sample.txt to --out. Raises: JobError."""
        if self._last is None:
            return
        prompt, written = self._last
        begun, text = (
            self._sampling.read(tokens[0].tolist()) for tokens in (prompt, self._sampling.numpy(written.tokens))
        )
        print(f"after the prompt {begun[-60:]!r} it wrote:\n{text[:SHOWN_CHARACTERS]}")
        if not self._sampling.options.settings.init_from:
            print("(its weights are not trained: --set init_from=PATH takes the weights.npz of a training's --out)")
        self._report.note("sample", text[:SHOWN_CHARACTERS], prompt=begun[-SHOWN_CHARACTERS:])
        if folder is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                (folder / "sample.txt").write_text(begun + text, "utf-8")
            except OSError as error:
                raise JobError(f"{folder / 'sample.txt'} cannot be written: {error}", "give --out a folder") from None
            print(f"saved {folder / 'sample.txt'}")


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
