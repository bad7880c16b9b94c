"""The loop that times every workload, whatever its framework.

An iteration is a batch fetched, forward, backward and update. The device is synchronised before both readings of the
clock: before the first so that earlier work is not counted, before the second so that this iteration's work is. Losses
are read, events written and lines printed after the second reading; evaluations and checkpoints are phases of their
own.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from mpsq_report import Reporter

T = TypeVar("T")
Measures = Mapping[str, tuple[float, str]]
"""Values with their units by name, {"decode_tokens_per_s": (80.0, "tokens/s")}"""


def timed(
    work: Callable[[], T], synchronize: Callable[[], None], clock: Callable[[], float] = time.perf_counter
) -> tuple[float, T]:
    """Return the seconds from an idle device to an idle device, and the result of `work`."""
    synchronize()
    begun = clock()
    result = work()
    synchronize()
    return clock() - begun, result


class Work(Protocol):
    """The operations that the loop times and calls between iterations."""

    splits: tuple[str, ...]

    def step(self, i: int) -> Any:
        """Do iteration i. Return its loss as the framework has it, not waited for."""

    def read(self, loss: Any) -> float | None:
        """Return the loss as a number, None if there is none; may wait for the device."""

    def measures(self, loss: Any) -> Measures:
        """Return further measurements of that iteration."""

    def synchronize(self) -> None: ...

    def memory(self) -> tuple[int | None, int | None]: ...

    def evaluate(self, split: str) -> Mapping[str, float]: ...

    def save(self, done: int) -> None:
        """Write a checkpoint after `done` iterations."""

    def after_first(self) -> None:
        """Called once, when the first iteration of the process is over and reported."""

    def at_start(self) -> AbstractContextManager[None]:
        """Return a context in which the weights are those from before the first iteration; used with eval_at_start."""


@dataclass(frozen=True)
class Plan:
    """Which iterations to do, and what happens between them. An interval of 0 means never."""

    first: int
    total: int
    warmup_iters: int
    compile: bool
    eval_interval: int
    checkpoint_interval: int
    save_at_end: bool
    log_interval: int
    stop_on_nan: bool
    per_iter: float
    """tokens or samples in an iteration"""
    unit: str
    eval_at_start: bool = False
    """evaluate the initial weights, too, as step 0"""

    def phase(self, i: int) -> str:
        """Return the phase of iteration i: compile (the first of the process, with compilation), warmup or measure.

        `warmup_iters` iterations after the first are not measured, the same ones with and without compilation.
        """
        if i == self.first and self.compile:
            return "compile"
        return "warmup" if i - self.first <= self.warmup_iters else "measure"

    def evaluates(self, done: int) -> bool:
        return self.eval_interval > 0 and (done % self.eval_interval == 0 or done == self.total)

    def evaluates_start(self) -> bool:
        return self.eval_at_start and self.eval_interval > 0 and self.first == 0

    def saves(self, done: int) -> bool:
        return (self.checkpoint_interval > 0 and done % self.checkpoint_interval == 0) or (
            self.save_at_end and done == self.total
        )


@dataclass
class Result:
    """The outcome of a loop. `measured_s` are the seconds of the iterations in phase measure."""

    measured_s: list[float] = field(default_factory=list)
    measures: list[Measures] = field(default_factory=list)
    """of the same iterations"""
    metrics: dict[str, Mapping[str, float]] = field(default_factory=dict)
    diverged: bool = False

    def sentence(self) -> str:
        said = []
        if self.measured_s:
            median_ms = 1e3 * statistics.median(self.measured_s)
            said.append(f"median {median_ms:.2f} ms over {len(self.measured_s)} measured iterations")
            for name, (_, unit) in self.measures[0].items():
                said.append(f"{_short(name)} {statistics.median(one[name][0] for one in self.measures):,.0f} {unit}")
        for split, metrics in self.metrics.items():
            said += [f"{split} {name} {value:.4f}" for name, value in metrics.items()]
        return "; ".join(said) or "no iteration was measured"


def run(plan: Plan, work: Work, report: Reporter, say: Callable[[str], None] = print) -> Result:
    """Execute the plan. Returns early at a loss that is not a number, if the plan has stop_on_nan."""
    result = Result()
    phase = ""
    try:
        for i in range(plan.first, plan.total):
            if plan.phase(i) != phase:
                if phase:
                    report.end(phase)
                phase = plan.phase(i)
                report.begin(phase)
            dur_s, loss = timed(lambda i=i: work.step(i), work.synchronize)  # type: ignore[misc]
            if not _tell(plan, work, report, say, result, i, dur_s, loss):
                break
            if i == plan.first:
                work.after_first()
                if plan.evaluates_start():  # not earlier: the first iteration is to pay for what it pays for elsewhere
                    with work.at_start():
                        _evaluate(0, work, report, say, result)
            if plan.evaluates(i + 1):
                _evaluate(i + 1, work, report, say, result)
            if plan.saves(i + 1):
                with report.phase("checkpoint"):
                    work.save(i + 1)
    finally:
        if phase:
            report.end(phase)
    return result


def _tell(
    plan: Plan,
    work: Work,
    report: Reporter,
    say: Callable[[str], None],
    result: Result,
    i: int,
    dur_s: float,
    raw: Any,
) -> bool:
    """Report and print one iteration. Return whether to continue."""
    phase, loss, measures = plan.phase(i), work.read(raw), work.measures(raw)
    allocated, reserved = work.memory()
    report.iter(i, dur_s, loss, True, phase, allocated, reserved)
    if phase == "measure":
        result.measured_s.append(dur_s)
        result.measures.append(measures)
        for name, (value, unit) in measures.items():
            report.metric(name, value, unit, i)
    bad = loss is not None and not math.isfinite(loss)
    if bad and not result.diverged:
        result.diverged = True
        report.note("nan_loss", f"the loss of iteration {i} is {loss}")
        say(f"iter {i:>6}  the loss is {loss}: speeds from here on are meaningless")
    if i % plan.log_interval == 0 or i == plan.total - 1:
        speeds = [f"{plan.per_iter / max(dur_s, 1e-9):>12,.0f} {plan.unit}/s"]
        if measures:
            speeds = [f"{_short(name)} {value:,.0f} {unit}" for name, (value, unit) in measures.items()]
        known = [] if loss is None else [f"loss {loss:<7.4f}"]
        remark = [] if phase == "measure" else [phase]
        say("  ".join([f"iter {i:>6}", *known, f"{1e3 * dur_s:>10.2f} ms", *speeds, *remark]))
    return not (bad and plan.stop_on_nan)


def _short(name: str) -> str:
    """Return a measure's name without its unit: decode of decode_tokens_per_s."""
    return name.partition("_")[0]


def _evaluate(done: int, work: Work, report: Reporter, say: Callable[[str], None], result: Result) -> None:
    with report.phase("eval"):
        for split in work.splits:
            dur_s, metrics = timed(lambda split=split: work.evaluate(split), work.synchronize)  # type: ignore[misc]
            report.eval(done, split, dict(metrics), dur_s)
            result.metrics[split] = metrics
            said = "  ".join(f"{name} {value:.4f}" for name, value in metrics.items())
            say(f"eval {done:>6}  {said}  {1e3 * dur_s:>10.2f} ms  {split}")
