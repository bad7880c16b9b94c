"""The course of a torch workload, from its command line to its exit code."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from harness import command_line, compiling, loop, problems, torch_hello, torch_training
from harness.command_line import Options
from harness.problems import JobError, UsageError
from harness.torch_device import Device, open_device
from harness.torch_training import Training
from mpsq_report import Reporter

Build = Callable[[Options, Device], Training]
Step = Callable[[Any, int], torch.Tensor]
Evaluate = Callable[[Any, str], Mapping[str, float]]


def main(
    workload: Mapping[str, Any], build: Build, step: Step, evaluate: Evaluate, argv: Sequence[str] | None = None
) -> int:
    """Run a workload: `build` makes its Training, `step` is one iteration, `evaluate` measures one split of the data.

    Returns the exit code: 0, 1 (failed), 2 (usage), 69 (device not there), 71 (out of memory).
    """
    report = Reporter()
    report.begin("setup", since_start=True)
    try:
        options = command_line.parse(workload, sys.argv[1:] if argv is None else argv)
        result = _run(workload, build, step, evaluate, options, report)
        if result.diverged and options.settings.stop_on_nan:
            raise JobError("the loss is not a number: stopped, as stop_on_nan asks", "a smaller lr, or --dtype fp32")
    except Exception as error:
        problem = problems.explain(error)
        if problem is None:
            traceback.print_exc()
            report.note("error", f"{type(error).__name__}: {error}")
            report.bye(False)
            return problems.EX_ERROR
        if problem.note:
            report.note(problem.note, problem.message)
        report.bye(False)
        return problem.show()
    report.bye(True)
    return 0


def _run(
    workload: Mapping[str, Any], build: Build, step: Step, evaluate: Evaluate, options: Options, report: Reporter
) -> loop.Result:
    settings = options.settings
    folder = _folder(options)
    _check(settings)
    device = open_device(options.device)
    _watch_warnings(report, device)
    if settings.threads:
        torch.set_num_threads(settings.threads)
    report.hello(**torch_hello.asked(workload, options, device))
    training = build(options, device)
    done = 0
    if options.resume:
        done = _resume(training, options.resume)
    report.hello(**torch_hello.built(training))
    report.metric("reference_loss_cpu", training.reference.cpu, "nats")
    torch_hello.show(workload, training, done)
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
    )
    if done >= plan.total:
        print(f"nothing to do: {done} iterations are done, max_iters is {plan.total}")
    report.end("setup")
    result = loop.run(plan, _Work(training, step, evaluate, report, folder), report)
    print(result.sentence())
    return result


class _Work:
    """torch's side of the loop."""

    splits: tuple[str, ...] = ("train", "val")

    def __init__(
        self, training: Training, step: Step, evaluate: Evaluate, report: Reporter, folder: Path | None
    ) -> None:
        self._training, self._step, self._evaluate = training, step, evaluate
        self._report, self._folder = report, folder
        self.synchronize = training.device.synchronize
        self.memory = training.device.memory

    def step(self, i: int) -> torch.Tensor:
        return self._step(self._training, i)

    def read(self, loss: torch.Tensor) -> float:
        return float(loss)

    def evaluate(self, split: str) -> Mapping[str, float]:
        return self._evaluate(self._training, split)

    def save(self, done: int) -> None:
        if self._folder is not None:
            path = self._folder / "checkpoint.pt"
            torch_training.save(self._training, path, done)
            print(f"saved {path} after {done} iterations")

    def after_first(self) -> None:
        training, report = self._training, self._report
        if training.device.kind == "mps":
            torch.set_warn_always(False)
        if training.options.compile:
            state, counts = compiling.cache_state()
            report.note("compile_cache", state, **counts)
            report.hello(compile_cache=state)
            print(f"compiled; the compiler's cache was {state}")
        # With compilation this compiles the forward that evaluations use; without, it is a last piece of set-up.
        with report.phase("compile" if training.options.compile else "setup"):
            found = training.reference.on_device(training)
        report.metric("reference_loss_device", found, "nats")
        _judge(training, found, report)


def _judge(training: Training, found: float, report: Reporter) -> None:
    expected, dtype = training.reference.cpu, training.options.dtype
    tolerance = torch_training.TOLERANCE_NATS[dtype]
    how = f"{training.device}, {dtype}" + (", compiled" if training.options.compile else "")
    print(f"loss of the first batch before training: {expected:.6f} on the CPU, {found:.6f} here ({how})")
    if not abs(found - expected) <= tolerance:  # not <=, so that nan is wrong too
        apart = f"more than {tolerance:g} nats apart"
        text = f"the first batch's loss is {found:.6f} ({how}), {expected:.6f} on the CPU: {apart}"
        report.note("wrong_loss", text, expected=expected, found=found, tolerance=tolerance)
        print(f"warning: {text}", file=sys.stderr)


def _folder(options: Options) -> Path | None:
    """Where checkpoints go. Raises: UsageError when some are wanted and there is no place."""
    folder = options.out or (Path(os.environ["MPSQ_OUT"]) if os.environ.get("MPSQ_OUT") else None)
    if options.settings.checkpoint_interval > 0 and folder is None:
        raise UsageError("checkpoint_interval needs a place for its checkpoints", "give --out DIR")
    return folder


def _check(settings: SimpleNamespace) -> None:
    """The keys that the loop itself reads. Raises: UsageError."""
    for key, least in (
        ("max_iters", 0),
        ("warmup_iters", 0),
        ("eval_interval", 0),
        ("checkpoint_interval", 0),
        ("log_interval", 1),
        ("threads", 0),
    ):
        if getattr(settings, key) < least:
            raise UsageError(f"{key}={getattr(settings, key)}: it cannot be less than {least}")


def _resume(training: Training, path: Path) -> int:
    """Go on where the checkpoint was written. Returns how many iterations are done."""
    state = torch_training.load(path, training.model, training.data["sha256"])
    torch_training.restore(training, state)
    return int(state["done"])


def _watch_warnings(report: Reporter, device: Device) -> None:
    """Report each operator that MPS leaves to the CPU, once.

    torch warns of the first one only, unless told to warn always: so in the first iteration, which meets them all.
    """
    show, seen = warnings.showwarning, set[str]()

    def tell(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: Any = None,
        line: str | None = None,
    ) -> None:
        found = problems.FALLBACK.search(str(message))
        if found:
            if found[1] in seen:
                return
            seen.add(found[1])
            report.note("op_fallback", f"{found[1]} has no MPS kernel: the CPU computed it", op=found[1])
        show(message, category, filename, lineno, file, line)

    warnings.showwarning = tell
    warnings.filterwarnings("always", message="The operator '")
    if device.kind == "mps":
        torch.set_warn_always(True)
