"""Run a workload whose loop belongs to a trainer (transformers, Lightning): the trainer calls back, and its callbacks
become iterations, phases and evaluations as in loop.py.

The workload gives build(), like any other, and train(training, run), which hands `run.watch` to a callback of its
trainer and starts it. Iterations are timed by the same rule; losses, reference and cache are reported alike.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from harness import command_line, loop
from harness.command_line import Options
from harness.errors import UsageError
from harness.framework import Build, Framework
from harness.training import Training
from mpsq_report import Reporter
from mpsq_report_watch import Iteration, Watch

Train = Callable[[Any, "TrainerRun"], None]
"""(training, run): all iterations and evaluations. It ends early when `run.stopping` says so."""


class TrainerRun:
    """The run as a trainer's callbacks see it. `watch` times the iterations; `report` takes everything else."""

    def __init__(self, workload: Mapping[str, Any], framework: Framework, training: Training, report: Reporter) -> None:
        options = training.options
        self.report = report
        self.result = loop.Result()
        self.stopping = False
        """whether a loss was not a number and stop_on_nan asks to end: the trainer must stop"""
        self.watch = Watch(
            report,
            synchronize=lambda: framework.wait(training, None),
            memory=lambda: framework.memory(training.device),
            warmup_iters=options.settings.warmup_iters,
            compiled=options.compile,
            on_iteration=self._report,
        )
        self._unit, self._framework, self._training = workload["unit"], framework, training
        self._is_first = True

    def evaluated(self, done: int, split: str, metrics: Mapping[str, float], dur_s: float | None = None) -> None:
        """Report and print the metrics of a model after `done` iterations."""
        self.report.eval(done, split, dict(metrics), dur_s)
        self.result.metrics[split] = dict(metrics)
        words = ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())
        print(f"eval {done:>6}  {split}: {words}")

    def _report(self, iteration: Iteration) -> None:
        settings = self._training.options.settings
        i, loss = iteration.i, iteration.loss
        if iteration.phase == "measure":
            self.result.measured_s.append(iteration.dur_s)
        if loss is not None:
            loop.check_loss(self.result, i, loss)  # the watch notes it
        self.stopping = self.stopping or (self.result.diverged and settings.stop_on_nan)
        if i % settings.log_interval == 0:
            speed = f"{self._training.per_iter / max(iteration.dur_s, 1e-9):>12,.0f} {self._unit}/s"
            loop.print_iteration(i, iteration.dur_s, loss, iteration.phase, speed)
        if self._is_first:
            self._is_first = False
            loop.after_first(self._framework, self._training, self.report)


def main(
    workload: Mapping[str, Any], framework: Framework, build: Build, train: Train, argv: Sequence[str] | None = None
) -> int:
    """Run a workload whose trainer has its own loop. Return the exit code, as harness.loop.main does."""

    def run(workload: Mapping[str, Any], report: Reporter) -> None:
        options = command_line.parse(workload, sys.argv[1:] if argv is None else argv, framework.compiler)
        if loop.is_preparing():
            loop.prepare(framework, build, options, report)
            return
        result = _run(workload, framework, build, train, options, report)
        print(result.sentence())
        loop.refuse_divergence(result, options)

    return command_line.run(workload, run)


def _run(
    workload: Mapping[str, Any],
    framework: Framework,
    build: Build,
    train: Train,
    options: Options,
    report: Reporter,
) -> loop.Result:
    if options.resume:
        raise UsageError("this workload does not resume from a checkpoint", "remove --resume")
    training, _ = loop.set_up(workload, framework, build, options, report)
    report.hello(planned_iters=options.settings.max_iters)  # build() may have derived it from epochs
    run = TrainerRun(workload, framework, training, report)
    report.end("setup")
    try:
        train(training, run)
    finally:
        run.watch.close()
    return run.result
