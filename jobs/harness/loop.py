"""Run a workload from its command line to its exit code: build it, time its iterations, evaluate, save.

An iteration is a batch fetched, forward, backward and update. The device is synchronised before both readings of the
clock: before the first so that earlier work is not counted, before the second so that this iteration's work is. Losses
are read, events written and lines printed after the second reading; evaluations and checkpoints are phases of their
own.
"""

from __future__ import annotations

import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from harness import command_line
from harness.command_line import Failed, Options
from harness.errors import JobError
from harness.training import (
    REFERENCE,
    TOLERANCE_NATS,
    Training,
    is_checked,
    model_fields,
    print_summary,
    request_fields,
)
from mpsq_report import Reporter

if TYPE_CHECKING:
    from harness.framework import Build, Evaluate, Framework, Step

T = TypeVar("T")
SPLITS = ("train", "val")
READING_SHARE = 0.1
"""Share of the time of an iteration that reading its loss may take after the clock has stopped,"""
READING_S = 5e-4
"""and so many seconds besides: a copy of four bytes takes less."""


@dataclass
class Result:
    """The outcome of a loop. `measured_s` are the seconds of the iterations in phase measure."""

    measured_s: list[float] = field(default_factory=list)
    metrics: dict[str, Mapping[str, float]] = field(default_factory=dict)
    """of the last evaluation, by split"""
    diverged: bool = False
    """whether a loss was not a number"""

    def sentence(self, *speeds: str) -> str:
        """Return the result in words; `speeds` follow the median time."""
        parts = []
        if self.measured_s:
            median_ms = 1e3 * statistics.median(self.measured_s)
            parts += [f"median {median_ms:.2f} ms over {len(self.measured_s)} measured iterations", *speeds]
        for split, metrics in self.metrics.items():
            parts += [f"{split} {name} {value:.4f}" for name, value in metrics.items()]
        return "; ".join(parts) or "no iteration was measured"


def main(
    workload: Mapping[str, Any],
    framework: Framework,
    build: Build,
    step: Step,
    evaluate: Evaluate,
    argv: Sequence[str] | None = None,
    sample: Build | None = None,
    infer: Step | None = None,
    report: Reporter | None = None,
    failed: Failed | None = None,
) -> int:
    """Run a workload: `build` returns its Training, `step` does one iteration, `evaluate` measures one split of the
    data, `sample` returns the Sampling that mode=sample times instead, `infer` does an iteration of mode=eval, the
    forward alone. The keys of "modes" in the literal name the modes besides training.

    Return the exit code: 0, 1 (failed), 2 (usage), 69 (device unavailable), 71 (out of memory).
    """

    def work(workload: Mapping[str, Any], report: Reporter) -> None:
        options = command_line.parse(workload, sys.argv[1:] if argv is None else argv, framework.compiler)
        samples = options.mode == "sample" and sample is not None
        if is_preparing():
            prepare(framework, sample if samples else build, options, report)
            return
        if samples:
            from harness import sampling

            sampling.run(workload, framework, sample, options, report)
            return
        folder = None
        if options.resume or options.out or options.settings.checkpoint_interval or os.environ.get("MPSQ_OUT"):
            from harness.checkpoints.saving import folder_of

            folder = folder_of(options)
        training, done = set_up(workload, framework, build, options, report)
        iterate = infer if options.mode == "eval" and infer is not None else step
        result = train(workload, framework, training, iterate, evaluate, report, folder, done)
        print(result.sentence())
        refuse_divergence(result, options)

    return command_line.run(workload, work, report, failed)


def is_preparing() -> bool:
    """Return whether this process prepares a run (prepared.py) instead of being one."""
    return os.environ.get("MPSQ_PREPARE") == "1"


def prepare(framework: Framework, build: Build, options: Options, report: Reporter) -> None:
    """Build the training on the CPU, which computes and keeps its reference: the accelerator is not used."""
    device = framework.open_device("cpu")
    framework.set_up(options, device, report)
    build(options, device)


def set_up(
    workload: Mapping[str, Any], framework: Framework, build: Build, options: Options, report: Reporter
) -> tuple[Training, int]:
    """Open the device, build the training (or the Sampling) and describe it. Return it and the iterations done before a
    resume."""
    device = framework.open_device(options.device)
    framework.set_up(options, device, report)
    facts = framework.facts(device)
    report.hello(**request_fields(workload, framework.name, options, device, facts))
    training = build(options, device)
    report_computed(report)
    done = framework.restore(training, options.resume) if options.resume else 0
    report.hello(**model_fields(training, workload["unit"]))
    if training.reference.cpu is not None:
        report.metric("reference_loss_cpu", training.reference.cpu, training.loss_unit)
    print_summary(workload, framework.name, framework.compiler, training, facts, done)
    return training, done


def timed(
    work: Callable[[], T], synchronize: Callable[[], None], clock: Callable[[], float] = time.perf_counter
) -> tuple[float, T]:
    """Return the seconds from an idle device to an idle device, and the result of `work`."""
    synchronize()
    start = clock()
    result = work()
    synchronize()
    return clock() - start, result


def phase_of(n: int, options: Options) -> str:
    """Return the phase of the n-th iteration of this process, from 0: compile (the first, with compilation), warmup or
    measure. `warmup_iters` iterations after the first are not measured, the same with and without compilation."""
    if n == 0 and options.compile:
        return "compile"
    return "warmup" if n <= options.settings.warmup_iters else "measure"


def train(
    workload: Mapping[str, Any],
    framework: Framework,
    training: Training,
    step: Step,
    evaluate: Evaluate,
    report: Reporter,
    folder: Path | None = None,
    done: int = 0,
) -> Result:
    """Do the iterations from `done` to max_iters, evaluate and save between them. Ends the phase `setup`.

    Returns early at a loss that is not a number, with stop_on_nan. An interval of 0 means never.
    """
    options, s, device = training.options, training.options.settings, training.device
    if done >= s.max_iters:
        print(f"nothing to do: {done} iterations done, max_iters is {s.max_iters}")
    report.end("setup")
    at_start = getattr(s, "eval_at_start", False) and s.eval_interval > 0 and done == 0
    initial = _copy(framework.weights(training)) if at_start else None
    result, phase, loss, proof = Result(), "", None, SyncProof()

    def iterate() -> None:
        nonlocal loss
        loss = step(training, i)

    def wait() -> None:
        framework.wait(training, loss)

    def evaluate_splits(steps: int) -> None:
        with report.phase("eval"):
            for split in SPLITS:
                dur_s, metrics = timed(partial(evaluate, training, split), wait)
                report.eval(steps, split, dict(metrics), dur_s)
                result.metrics[split] = metrics
                words = "  ".join(f"{name} {value:.4f}" for name, value in metrics.items())
                print(f"eval {steps:>6}  {words}  {1e3 * dur_s:>10.2f} ms  {split}")

    try:
        for i in range(done, s.max_iters):
            if (current := phase_of(i - done, options)) != phase:
                if phase:
                    report.end(phase)
                phase = current
                report.begin(phase)
            dur_s, _ = timed(iterate, wait)
            stopped = time.perf_counter()
            value = framework.read(training, loss)
            read_s = time.perf_counter() - stopped
            report.iter(i, dur_s, value, True, phase, *framework.memory(device))
            if phase == "measure":
                result.measured_s.append(dur_s)
                proof.add(dur_s, read_s)
            check_loss(result, i, value, report)
            if i % s.log_interval == 0 or i == s.max_iters - 1:
                print_iteration(
                    i, dur_s, value, phase, f"{training.per_iter / max(dur_s, 1e-9):>12,.0f} {workload['unit']}/s"
                )
            if not math.isfinite(value) and s.stop_on_nan:
                break
            if i == done:
                after_first(framework, training, report)
                if at_start:  # not earlier: the first iteration is to pay for what it pays for elsewhere
                    with report.phase("setup"):
                        now = _copy(framework.weights(training))
                        framework.put_weights(training, initial)
                    evaluate_splits(0)
                    with report.phase("setup"):
                        framework.put_weights(training, now)
            steps = i + 1
            if s.eval_interval and (steps % s.eval_interval == 0 or steps == s.max_iters):
                evaluate_splits(steps)
            last = options.out is not None and steps == s.max_iters
            if last or (s.checkpoint_interval and steps % s.checkpoint_interval == 0):
                from harness.checkpoints.saving import save

                with report.phase("checkpoint"):
                    save(framework, training, folder, steps)
    finally:
        if phase:
            report.end(phase)
    if device.kind != "cpu" and "WORLD_SIZE" not in os.environ:  # several processes read together
        proof.write(report)
    for name, peak in zip(("peak_allocated_bytes", "peak_reserved_bytes"), framework.peak_memory(device), strict=True):
        if peak is not None:
            report.metric(name, peak, "B")
    return result


@dataclass
class SyncProof:
    """Whether the clock waits for the device. To read a result back waits in any case: after a wait that works it takes
    almost no time. Sums over measured iterations, in seconds."""

    n: int = 0
    iterating_s: float = 0.0
    reading_s: float = 0.0

    def add(self, dur_s: float, reading_s: float) -> None:
        self.n, self.iterating_s, self.reading_s = self.n + 1, self.iterating_s + dur_s, self.reading_s + reading_s

    def write(self, report: Reporter) -> None:
        """Report the sums as a note: `not_synced` if the results came after the clock had stopped."""
        if not self.n:
            return
        text = (
            f"{self.n} iterations took {self.iterating_s:.3f} s by the clock; reading their results back took"
            f" {self.reading_s:.3f} s more"
        )
        late = self.reading_s > READING_SHARE * (self.iterating_s + self.reading_s) + READING_S * self.n
        report.note("not_synced" if late else "sync_proof", text)


def check_loss(result: Result, i: int, loss: float, report: Reporter | None = None) -> None:
    """Report and print the first loss that is not a number. Without `report` another part reports it."""
    if math.isfinite(loss) or result.diverged:
        return
    result.diverged = True
    if report is not None:
        report.note("nan_loss", f"the loss of iteration {i} is {loss}")
    print(f"iter {i:>6}  the loss is {loss}: speeds from here on are meaningless")


def print_iteration(i: int, dur_s: float, loss: float | None, phase: str, *speeds: str) -> None:
    """Print a line about iteration i."""
    losses = [] if loss is None else [f"loss {loss:<7.4f}"]
    remark = [] if phase == "measure" else [phase]
    print("  ".join([f"iter {i:>6}", *losses, f"{1e3 * dur_s:>10.2f} ms", *speeds, *remark]))


def refuse_divergence(result: Result, options: Options) -> None:
    """Raise JobError if stop_on_nan ended the training."""
    if result.diverged and options.settings.stop_on_nan:
        raise JobError("the loss is not a number: stopped by stop_on_nan", "a smaller lr, or --dtype fp32")


def after_first(framework: Framework, training: Training, report: Reporter) -> None:
    """Report the compiler's cache and compare the reference loss, once the first iteration is reported."""
    framework.after_first(training)
    compiles = training.options.compile
    if compiles:
        report_cache(framework, report)
    expected = training.reference.cpu
    if expected is None and not is_checked():
        report.note("no_reference", f"{framework.name} has no CPU here to compute the first loss on")
        return
    # With compilation this compiles the forward that evaluations use; without, it is the last step of the set-up.
    with report.phase("compile" if compiles else "setup"):
        loss = training.reference.on_device(training)
        if compiles and training.options.settings.eval_interval:
            training.warm_evaluation()
    if expected is None:
        return
    report.metric("reference_loss_device", loss, training.loss_unit)
    tolerance = TOLERANCE_NATS[training.options.dtype] * training.loss_slope
    if "MPSQ_PREPARED" in os.environ and not abs(loss - expected) <= tolerance:
        from harness import prepared

        if prepared.was_kept(REFERENCE):  # perhaps by other code, outside of the workload's
            expected = training.reference.again(training)
            prepared.keep(REFERENCE, expected)
            report.metric("reference_loss_cpu", expected, training.loss_unit)
    how = f"{training.device}, {training.options.dtype}" + (", compiled" if compiles else "")
    print(f"loss of the first batch before training: {expected:.6f} on the CPU, {loss:.6f} here ({how})")
    if not abs(loss - expected) <= tolerance:  # not >, so that nan is wrong too
        difference = f"more than {tolerance:g} {training.loss_unit} apart"
        report_wrong_loss(
            f"the first batch's loss is {loss:.6f} ({how}), {expected:.6f} on the CPU: {difference}",
            expected, loss, tolerance, report,
        )  # fmt: skip


def report_wrong_loss(text: str, expected: float, loss: float, tolerance: float, report: Reporter) -> None:
    """Report and print that the device computes another loss than the CPU."""
    report.note("wrong_loss", text, expected=expected, found=loss, tolerance=tolerance)
    print(f"warning: {text}", file=sys.stderr)


def report_cache(framework: Framework, report: Reporter) -> None:
    """Report the state of the compiler's cache, once the first iteration has compiled."""
    if (cache := framework.cache_state()) is None:
        return
    state, counts = cache
    report.note("compile_cache", state, **counts)
    report.hello(compile_cache=state)
    print(f"compiled; the compiler's cache was {state}")


def report_computed(report: Reporter) -> None:
    """Note that the run had to compute what should have been prepared: its real, user and sys include that."""
    if "MPSQ_PREPARED" not in os.environ:
        return
    from harness import prepared

    if names := prepared.computed_here():
        report.note(
            "reference_in_run",
            f"the run itself computed {', '.join(names)}, so its real, user and sys times include that",
        )


def _copy(weights: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return a copy of the weights: on a CPU those of a framework may be the model's own memory."""
    if weights is None:
        raise NotImplementedError("eval_at_start needs a framework whose weights() returns them by name")
    return {name: np.array(value) for name, value in weights.items()}
