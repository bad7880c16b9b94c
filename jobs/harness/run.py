"""Run a workload from its command line to its exit code, whatever the framework."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from harness import command_line, exit_codes, hello, loop, prepared, processes, sampling
from harness.checkpoints import weights_file
from harness.command_line import Options
from harness.errors import JobError, UsageError
from harness.framework import Build, Evaluate, Framework, Step
from harness.sampling import Sample
from harness.training import REFERENCE, TOLERANCE_NATS, Training
from mpsq_report import Reporter


def main(
    workload: Mapping[str, Any],
    framework: Framework,
    build: Build,
    step: Step,
    evaluate: Evaluate,
    argv: Sequence[str] | None = None,
    sample: Sample | None = None,
    infer: Step | None = None,
) -> int:
    """Run a workload: `build` returns its Training, `step` does one iteration, `evaluate` measures one split of the
    data, `sample` returns the Sampling that mode=sample times instead, `infer` does an iteration of mode=eval, the
    forward alone. The keys of "modes" in the literal name the modes besides training.

    Return the exit code: 0, 1 (failed), 2 (usage), 69 (device unavailable), 71 (out of memory).
    """

    def run(workload: Mapping[str, Any], report: Reporter) -> None:
        words = sys.argv[1:] if argv is None else argv
        options = command_line.parse(workload, words, framework.compiler)
        if prepared.is_asked():
            prepare(framework, build, sample, options, report)
            return
        conclude(_run(workload, framework, build, step, evaluate, sample, infer, options, report), options)

    return exit_codes.run(workload, run)


def prepare(framework: Framework, build: Build, sample: Sample | None, options: Options, report: Reporter) -> None:
    """Build the training on the CPU, which computes and keeps its reference: the accelerator is left alone."""
    device = framework.open_device("cpu")
    framework.set_up(options, device, report)
    (sample if sample is not None and hello.mode(options.settings) == "sample" else build)(options, device)


def _run(
    workload: Mapping[str, Any],
    framework: Framework,
    build: Build,
    step: Step,
    evaluate: Evaluate,
    sample: Sample | None,
    infer: Step | None,
    options: Options,
    report: Reporter,
) -> loop.Result:
    settings = options.settings
    if evaluates := hello.mode(settings) == "eval":
        _refuse_checkpoints(options)
    writes = sample is not None and hello.mode(settings) == "sample"
    if writes:
        sampling.refuse(options)
    folder = _folder(options)
    device = framework.open_device(options.device)
    framework.set_up(options, device, report)
    facts = framework.facts(device)
    report.hello(**hello.request_fields(workload, framework.name, options, device, facts))
    if sample is not None and writes:
        generator = sample(options, device)
        report_computed(report)
        return sampling.run(workload, framework, generator, facts, report)
    training = build(options, device)
    report_computed(report)
    done = framework.restore(training, options.resume) if options.resume else 0
    report.hello(**hello.model_fields(training, workload["unit"]))
    if training.reference.cpu is not None:
        report.metric("reference_loss_cpu", training.reference.cpu, training.loss_unit)
    hello.print_summary(workload, framework.name, framework.compiler, training, facts, done)
    plan = loop.Plan(
        first=done,
        total=settings.max_iters,
        warmup_iters=settings.warmup_iters,
        compile=options.compile,
        eval_interval=settings.eval_interval,
        checkpoint_interval=settings.checkpoint_interval,
        save_at_end=options.out is not None,
        log_interval=settings.log_interval,
        stop_on_nan=settings.stop_on_nan,
        per_iter=training.per_iter,
        unit=workload["unit"],
        eval_at_start=getattr(settings, "eval_at_start", False),
    )
    if done >= plan.total:
        print(f"nothing to do: {done} iterations done, max_iters is {plan.total}")
    report.end("setup")
    initial = _copied(framework.weights(training)) if plan.evaluates_start() else None
    work = _Work(
        framework, training, infer if evaluates and infer is not None else step, evaluate, report, folder, initial
    )
    result = loop.run(plan, work, report)
    for name, peak in zip(("peak_allocated_bytes", "peak_reserved_bytes"), framework.peak_memory(device), strict=True):
        if peak is not None:
            report.metric(name, peak, "B")
    return result


class _Work:
    """loop.Work of a framework and a workload."""

    splits: tuple[str, ...] = ("train", "val")

    def __init__(
        self,
        framework: Framework,
        training: Training,
        step: Step,
        evaluate: Evaluate,
        report: Reporter,
        folder: Path | None,
        initial: Mapping[str, Any] | None,
    ) -> None:
        self._framework, self._training, self._initial = framework, training, initial
        self._step, self._evaluate = step, evaluate
        self._report, self._folder = report, folder
        self._loss: Any = None

    def step(self, i: int) -> Any:
        self._loss = self._step(self._training, i)
        return self._loss

    def synchronize(self) -> None:
        self._framework.wait(self._training, self._loss)

    def read(self, loss: Any) -> float:
        return self._framework.read(self._training, loss)

    def measures(self, loss: Any) -> loop.Measures:
        return {}

    def memory(self) -> tuple[int | None, int | None]:
        return self._framework.memory(self._training.device)

    def evaluate(self, split: str) -> Mapping[str, float]:
        return self._evaluate(self._training, split)

    def save(self, done: int) -> None:
        if self._folder is None or processes.rank():
            return
        path = self._framework.save(self._training, self._folder, done)
        print(f"saved {path} after {done} iterations")
        options = self._training.options
        takes = hasattr(options.settings, "init_from")  # otherwise nothing reads the file, which may be half a gigabyte
        if takes and options.out is not None and done == options.settings.max_iters:
            weights = self._framework.weights(self._training)
            if weights is not None:
                print(f"saved {weights_file.write(self._folder / 'weights.npz', weights)}, for init_from")

    @contextmanager
    def at_start(self) -> Iterator[None]:
        with self._report.phase("setup"):
            now = _copied(self._framework.weights(self._training))
            self._put(self._initial)
        yield
        with self._report.phase("setup"):
            self._put(now)

    def _put(self, weights: Mapping[str, Any] | None) -> None:
        if weights is None:
            raise NotImplementedError("eval_at_start needs a framework whose weights() returns them by name")
        self._framework.put_weights(self._training, weights)

    def after_first(self) -> None:
        after_first(self._framework, self._training, self._report)


def conclude(result: loop.Result, options: Options) -> None:
    """Print the result. Raises: JobError if stop_on_nan ended the training."""
    print(result.sentence())
    if result.diverged and options.settings.stop_on_nan:
        raise JobError("the loss is not a number: stopped by stop_on_nan", "a smaller lr, or --dtype fp32")


def after_first(framework: Framework, training: Training, report: Reporter) -> None:
    """Report the compiler's cache and compare the reference loss, once the first iteration is reported."""
    framework.after_first(training)
    if training.options.compile:
        hello.report_cache(framework, report)
    if training.reference.cpu is None:
        report.note("no_reference", f"{framework.name} has no CPU here to compute the first loss on")
        return
    # With compilation this compiles the forward that evaluations use; without, it is the last step of the set-up.
    compiles = training.options.compile
    with report.phase("compile" if compiles else "setup"):
        found = training.reference.on_device(training)
        if compiles and training.options.settings.eval_interval:
            training.warm_evaluation()
    report.metric("reference_loss_device", found, training.loss_unit)
    expected = training.reference.cpu
    tolerance = TOLERANCE_NATS[training.options.dtype] * training.loss_slope
    if prepared.was_kept(REFERENCE) and not abs(found - expected) <= tolerance:
        expected = training.reference.again(training)  # the kept one may be of other code, outside of the workload's
        prepared.keep(REFERENCE, expected)
        report.metric("reference_loss_cpu", expected, training.loss_unit)
    compare_with_reference(training, expected, found, report)


def report_computed(report: Reporter) -> None:
    """Note that the run had to compute what should have been prepared: its real, user and sys include that."""
    if names := prepared.computed_here():
        report.note("reference_in_run", f"computed within the run, not before it: {', '.join(names)}")


def compare_with_reference(training: Training, expected: float, found: float, report: Reporter) -> None:
    """Print the first batch's loss on the CPU and on the device; warn and report wrong_loss beyond TOLERANCE_NATS."""
    dtype = training.options.dtype
    tolerance = TOLERANCE_NATS[dtype] * training.loss_slope
    how = f"{training.device}, {dtype}" + (", compiled" if training.options.compile else "")
    print(f"loss of the first batch before training: {expected:.6f} on the CPU, {found:.6f} here ({how})")
    if not abs(found - expected) <= tolerance:  # not <=, so that nan is wrong too
        apart = f"more than {tolerance:g} {training.loss_unit} apart"
        text = f"the first batch's loss is {found:.6f} ({how}), {expected:.6f} on the CPU: {apart}"
        report.note("wrong_loss", text, expected=expected, found=found, tolerance=tolerance)
        print(f"warning: {text}", file=sys.stderr)


def _copied(weights: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return the weights in memory of their own: on a CPU those of a framework may be the model's."""
    return None if weights is None else {name: np.array(value) for name, value in weights.items()}


def _folder(options: Options) -> Path | None:
    """Return the folder of checkpoints, None if there is none. Raises: UsageError if checkpoint_interval needs one."""
    folder = options.out or (Path(os.environ["MPSQ_OUT"]) if os.environ.get("MPSQ_OUT") else None)
    if options.settings.checkpoint_interval > 0 and folder is None:
        raise UsageError("checkpoint_interval needs a place for its checkpoints", "give --out DIR")
    return folder


def _refuse_checkpoints(options: Options) -> None:
    """Raise UsageError for options that only a training has."""
    if options.resume is not None or options.out is not None or options.settings.checkpoint_interval:
        raise UsageError(
            "mode=eval neither reads nor writes checkpoints",
            "remove --resume, --out and checkpoint_interval: the speed of a forward does not depend on the weights",
        )
