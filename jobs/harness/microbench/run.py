"""Run a micro-benchmark, whatever the framework: cells are called repeatedly, timed and checked.

A cell is one operation at one size. An iteration times every cell in turn, so that a machine that warms up does so for
all of them alike; its time is the sum, over the cells, of the time of one call. That is the mean of a sample: as many
consecutive calls as last `sample_ms` together, from an idle device to an idle device. An asynchronous device is kept
busy this way, as in a program, and the two synchronisations weigh little.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from harness import command_line
from harness.command_line import Options
from harness.errors import UsageError
from harness.microbench.rounding import Check
from mpsq_report import Reporter

MAX_CALLS = 1000
"""Calls in a sample at most: one of less than 20 us is timed over fewer milliseconds."""
MAX_KEPT_BYTES = 1 << 30
"""Bytes of results that one sample may keep until the device is waited for."""


def median(values: Sequence[float]) -> float:
    """Return the median."""
    return statistics.median(values)


def quick_s(framework: Framework, device: Any, call: Callable[[], Any], at_least_s: float = 0.05) -> float:
    """Return the seconds of one call to choose by: the median of three short samples, after three untimed calls."""
    framework.finish(device, framework.repeat(call, 3))
    calls, times_s = 1, list[float]()
    while len(times_s) < 3:
        dur_s = timed(framework, device, call, calls)[0]
        if dur_s < at_least_s and calls < MAX_CALLS:
            calls = min(MAX_CALLS, calls * 4)
        else:
            times_s.append(dur_s / calls)
    return median(times_s)


def timed(framework: Framework, device: Any, call: Callable[[], Any], calls: int) -> tuple[float, Any]:
    """Return the seconds of `calls` calls from an idle device to an idle device, and their results."""
    framework.finish(device, None)
    begun = time.perf_counter()
    results = framework.repeat(call, calls)
    framework.finish(device, results)
    return time.perf_counter() - begun, results


class Framework(Protocol):
    """The operations of harness.framework.Framework that are needed here, and how to wait."""

    name: str
    compiler: str
    in_order: bool
    """whether calls complete in the order of their issue, so that the last one's end is that of all"""

    def open_device(self, label: str) -> Any: ...

    def set_up(self, options: Options, device: Any, report: Reporter) -> None: ...

    def facts(self, device: Any) -> Mapping[str, Any]: ...

    def memory(self, device: Any) -> tuple[int | None, int | None]: ...

    def cache_state(self) -> tuple[str, dict[str, int]] | None: ...

    def repeat(self, call: Callable[[], Any], times: int) -> Any:
        """Issue `times` calls. Return what to wait for, the last result last."""

    def finish(self, device: Any, results: Any) -> None:
        """Return when the device is idle; `results` is what repeat() returned, or None."""


@dataclass
class Cell:
    """One operation at one size. `call` issues it to the device once and returns its result, not waited for."""

    name: str
    call: Callable[[], Any]
    check: Callable[[Any], Check]
    flops: float
    """of one call"""
    bytes: float
    """bytes that one call must read and write, each once"""
    result_bytes: float = 0.0
    calls: int = 0
    """in a sample; 0: as many as fill it"""
    untimed_first: bool = False
    """whether an untimed call precedes each sample: else a short one pays for cache lines that its neighbour evicted"""
    as_published: Callable[[], Any] | None = None
    """the call as guides write it, where that differs"""
    times_s: list[float] = field(default_factory=list)
    """of one call, of each measured iteration"""
    naive_s: list[float] = field(default_factory=list)
    """the same by a clock that does not wait for the device"""
    block_s: tuple[float, float] | None = None
    """timing=guide: of its block of calls, as the guide's clock says and until the device was done"""

    @property
    def median_s(self) -> float:
        """Return the median seconds of one call."""
        return median(self.times_s)


@dataclass
class Bench:
    """The result of build() of a workload. `show` prints the results; `timing` is synced, naive, both or guide."""

    cells: list[Cell]
    about: str
    show: Callable[[Bench], None]
    facts: Mapping[str, Any] = field(default_factory=dict)
    """further fields of hello"""
    timing: str = "synced"
    ended: Callable[[Bench], None] | None = None
    """called after the last iteration, when all results were right"""


Build = Callable[[Options, Any, Reporter], Bench]


def main(workload: Mapping[str, Any], framework: Framework, build: Build, argv: Sequence[str] | None = None) -> int:
    """Run a micro-benchmark: `build` returns its cells. Return the exit code, as harness.loop.main does."""

    def run(workload: Mapping[str, Any], report: Reporter) -> None:
        options = parse(workload, sys.argv[1:] if argv is None else argv, framework.compiler)
        _run(workload, framework, build, options, report)

    return command_line.run(workload, run)


def parse(workload: Mapping[str, Any], argv: Sequence[str], compiler: str) -> Options:
    """Parse the common command line, and `--dtype fp64`, which no training has. Raises: UsageError."""
    words = list(argv)
    double = False
    for at, word in enumerate(words):
        if word == "--dtype=fp64" or (word == "fp64" and at and words[at - 1] == "--dtype"):
            words[at], double = word.replace("fp64", "fp32"), True
    options = command_line.parse(workload, words, compiler)
    settings = options.settings
    if settings.max_iters <= settings.warmup_iters + 1:
        raise UsageError(
            f"max_iters={settings.max_iters} leaves nothing to measure",
            f"it must be more than {settings.warmup_iters + 1}: the first iteration and warmup_iters",
        )
    if options.resume or options.out:
        raise UsageError("this workload has no checkpoints", "remove --resume and --out")
    return replace(options, dtype="fp64") if double else options


def _run(workload: Mapping[str, Any], framework: Framework, build: Build, options: Options, report: Reporter) -> None:
    device = framework.open_device(options.device)
    framework.set_up(options, device, report)
    facts = framework.facts(device)
    report.hello(**_hello(workload, framework, options, device, facts))
    bench = build(options, device, report)
    report.hello(flops_per_iter=sum(cell.flops for cell in bench.cells), **bench.facts)
    how = f"{framework.compiler} {options.compile_mode}".rstrip() if options.compile else "eager"
    threads = f", {facts['threads']} threads" if "threads" in facts else ""
    print(f"{workload['name']}: {bench.about}")
    print(f"device {device}: {device.name}{threads}, {options.dtype}, {how}")
    print(f"{framework.name:<6} {facts['versions'].get(framework.name, '')}, seed {options.seed}")
    report.end("setup")
    _Runner(framework, device, bench, options, report).run()


def _hello(
    workload: Mapping[str, Any], framework: Framework, options: Options, device: Any, facts: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "workload": workload["name"],
        "framework": framework.name,
        "device": str(device),
        "device_name": device.name,
        "dtype": options.dtype,
        "seed": options.seed,
        "compile": options.compile,
        **({"compile_mode": options.compile_mode} if options.compile_mode else {}),
        "config": options.config,
        "planned_iters": options.settings.max_iters,
        **facts,
        "settings": vars(options.settings),
        "dur_is": "mean",
    }


class _Runner:
    """The iterations of one benchmark: the first, the warm-up with its choice of calls, the measured ones."""

    def __init__(self, framework: Framework, device: Any, bench: Bench, options: Options, report: Reporter) -> None:
        self._framework, self._device, self._bench = framework, device, bench
        self._options, self._report = options, report
        self._right = True

    def run(self) -> None:
        options, report, cells = self._options, self._report, self._bench.cells
        phase = "compile" if options.compile else "warmup"
        if self._bench.timing == "guide":
            with report.phase("warmup"):
                for cell in cells:
                    self._block(cell)
        with report.phase(phase):
            first = [self._timed(cell, 1) for cell in cells]
            self._tell(0, sum(dur_s for dur_s, _ in first), phase)
            self._tell_cache()
            with report.phase("setup"):
                for cell, (_, result) in zip(cells, first, strict=True):
                    self._check(cell, result, first=True)
        with report.phase("warmup"):
            for cell in cells:
                cell.calls = cell.calls or self._enough(cell)
            for i in range(1, 1 + options.settings.warmup_iters):
                self._tell(i, sum(self._sample(cell)[0] for cell in cells), "warmup")
        with report.phase("measure"):
            for i in range(1 + options.settings.warmup_iters, options.settings.max_iters):
                self._measure(i)
        with report.phase("setup"):
            for cell in cells:
                self._check(cell, self._timed(cell, 1)[1], first=False)
                self._facts(cell)
        self._bench.show(self._bench)
        if self._right and self._bench.ended:
            self._bench.ended(self._bench)

    def _measure(self, i: int) -> None:
        """Do one iteration. Events are written when all its cells are timed."""
        cells, naive = self._bench.cells, self._bench.timing != "synced"
        for cell in cells:
            if naive:
                cell.naive_s.append(self._unsynced(cell))
            cell.times_s.append(self._sample(cell)[0])
        if self._bench.timing == "naive":
            self._tell(i, sum(cell.naive_s[-1] for cell in cells), "measure", synced=False)
        else:
            self._tell(i, sum(cell.times_s[-1] for cell in cells), "measure")
        for cell in cells:
            self._report.metric(f"{cell.name}.time", cell.times_s[-1], "s", i=i)
            if naive:
                self._report.metric(f"{cell.name}.time_unsynced", cell.naive_s[-1], "s", i=i)

    def _timed(self, cell: Cell, calls: int) -> tuple[float, Any]:
        return timed(self._framework, self._device, cell.call, calls)

    def _sample(self, cell: Cell) -> tuple[float, Any]:
        """Return the seconds of one call, as the mean of a sample, and the results."""
        if cell.untimed_first:
            self._timed(cell, 1)
        dur_s, results = self._timed(cell, cell.calls)
        return dur_s / cell.calls, results

    def _unsynced(self, cell: Cell) -> float:
        """Return the seconds of one call by an unsynchronised clock: the device may not even have started."""
        call = cell.as_published or cell.call
        self._framework.finish(self._device, None)
        begun = time.perf_counter()
        results: deque[Any] = deque(maxlen=1 if self._framework.in_order else None)
        for _ in range(cell.calls):
            results.append(call())
        dur_s = time.perf_counter() - begun
        self._framework.finish(self._device, list(results))
        return dur_s / cell.calls

    def _block(self, cell: Cell) -> None:
        """Time the block of calls as guides publish it: the first of the process, by time.time(), one result kept, and
        nothing waited for. What the device still had to do is timed behind it."""
        call = cell.as_published or cell.call
        results: deque[Any] = deque(maxlen=1 if self._framework.in_order else None)
        begun, start = time.perf_counter(), time.time()
        for _ in range(cell.calls):
            results.append(call())
        said_s = time.time() - start
        self._framework.finish(self._device, list(results))
        cell.block_s = said_s, time.perf_counter() - begun
        self._report.metric(f"{cell.name}.block_unsynced", cell.block_s[0], "s")
        self._report.metric(f"{cell.name}.block", cell.block_s[1], "s")

    def _enough(self, cell: Cell) -> int:
        """Return the number of calls that last sample_ms together."""
        sample_s = self._options.settings.sample_ms / 1e3
        most = min(MAX_CALLS, int(MAX_KEPT_BYTES // max(cell.result_bytes, 1.0)) or 1)
        calls = 1
        while calls < most:
            dur_s = self._timed(cell, calls)[0]
            if dur_s >= sample_s / 2:
                return max(1, min(most, round(calls * sample_s / dur_s)))
            calls = min(most, calls * 4)
        return calls

    def _tell(self, i: int, dur_s: float, phase: str, synced: bool = True) -> None:
        allocated, reserved = self._framework.memory(self._device)
        self._report.iter(i, dur_s, None, synced, phase, allocated, reserved)

    def _tell_cache(self) -> None:
        if self._options.compile and (cache := self._framework.cache_state()) is not None:
            state, counts = cache
            self._report.note("compile_cache", state, **counts)
            self._report.hello(compile_cache=state)

    def _check(self, cell: Cell, results: Any, first: bool) -> None:
        """Compare the first call and the last, which may be the replay of a graph, with float64."""
        check = cell.check(results[-1])
        if first:
            self._report.metric(f"{cell.name}.error", check.share, "of its bound")
        if first and check.arithmetic == "tf32":  # so that it is not related to the peak of fp32
            self._report.hello(dtype="tf32")
            self._report.note("reduced_precision", f"{cell.name}: fp32 was asked for and TF32 computed")
        if first:
            print(f"check  {cell.name}: {check.text}")
        if not check.ok and self._right:
            self._right = False
            self._report.note("wrong_result", f"{cell.name}: {check.text}", share=check.share)
            print(f"warning: {cell.name}: {check.text}", file=sys.stderr)

    def _facts(self, cell: Cell) -> None:
        self._report.metric(f"{cell.name}.flop", cell.flops, "FLOP")
        self._report.metric(f"{cell.name}.bytes", cell.bytes, "B")
        self._report.metric(f"{cell.name}.calls", cell.calls, "calls")
