"""The workload matmul, whatever the framework: C = A B of n x n matrices, timed, and compared with float64.

One product is 2 n^3 FLOP: n^2 sums of n products, a multiply and an add each. TFLOP/s = 2 n^3 / t / 10^12.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np

from harness.command_line import Options
from harness.errors import UsageError
from harness.microbench.rounding import Check, judge_product
from harness.microbench.run import Bench, Cell, Framework, median, quick_s
from mpsq_report import Reporter

ITEM_BYTES = {"fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2}
PUBLISHED_CALLS = 100
"""Products in the snippet that guides publish."""
PEAK_SIZES = (512, 1024, 2048, 4096, 8192, 16384)
PEAK_CALL_S = 1.0
"""The search for the peak stops before a size at which one product would last longer."""
_CHECKED = 4e9
"""Multiplications of the check, at most: all rows up to about n = 1587, fewer of larger matrices."""
_BLOCK = 1024


class Matrices(Framework, Protocol):
    """The operations that this workload needs of a framework, in addition to run.Framework."""

    def put(self, values: Any, dtype: str, device: Any) -> Any:
        """Return float64 values on the device, rounded to `dtype`. Raises: UsageError if the device lacks it."""

    def read(self, matrix: Any) -> Any:
        """Return a matrix of the device as numpy's float64, exactly."""

    def product(self, a: Any, b: Any, compiled: bool) -> Callable[[], Any]:
        """Return a call that issues one product to the device."""

    def published(self, a: Any, b: Any) -> Callable[[], Any]:
        """Return the product as guides write it: a lazy framework does not even start it."""


def build(framework: Matrices, options: Options, device: Any, report: Reporter) -> Bench:
    """Return the benchmark of n x n; with mode=peak that of the fastest size. Raises: UsageError."""
    s = options.settings
    _check(s)
    if s.mode == "peak":
        n = _fastest(framework, options, device, report)
        about = f"the fastest size is n={n}: it is measured again as this device's attainable peak"
    else:
        n, about = s.n, f"{s.n} x {s.n}, {2 * s.n**3:.4g} FLOP each (2 n^3)"
    cell = _cell(framework, options, device, n)
    if s.timing != "synced":
        cell.calls = s.calls or PUBLISHED_CALLS
    return Bench(
        cells=[cell],
        about=about,
        show=lambda done: _show(done, n, framework),
        facts={"n": n},
        timing=s.timing,
        ended=(lambda done: _tell_peak(done, report)) if s.mode == "peak" else None,
    )


def _check(s: SimpleNamespace) -> None:
    if s.mode == "peak" and s.timing != "synced":
        raise UsageError("a peak is measured with a synchronised clock", "remove timing")


def draw(n: int, seed: int) -> tuple[Any, Any]:
    """Return two matrices of normal numbers, the same in every framework."""
    generator = np.random.default_rng([seed, n])
    return tuple(generator.standard_normal((n, n)) for _ in range(2))  # type: ignore[return-value]


def _cell(framework: Matrices, options: Options, device: Any, n: int) -> Cell:
    dtype = options.dtype
    a, b = (framework.put(values, dtype, device) for values in draw(n, options.seed))
    size = float(n * n * ITEM_BYTES[dtype])
    return Cell(
        name=f"n{n}",
        call=framework.product(a, b, options.compile),
        check=Oracle(framework, a, b, dtype),
        flops=2.0 * n**3,
        bytes=3 * size,
        result_bytes=size,
        calls=options.settings.calls,
        as_published=framework.published(a, b),
    )


class Oracle:
    """numpy's product in float64 of the factors as they are on the device, for all rows or some spread evenly."""

    def __init__(self, framework: Matrices, a: Any, b: Any, dtype: str) -> None:
        self._framework, self._a, self._b, self._dtype = framework, a, b, dtype
        self._expected: tuple[Any, Any] | None = None
        n = int(a.shape[0])
        self.rows = np.unique(np.linspace(0, n - 1, max(1, min(n, int(_CHECKED / n**2)))).round().astype(int))

    def __call__(self, product: Any) -> Check:
        if self._expected is None:
            self._expected = self._multiply()
        exact, magnitude = self._expected
        rows = self._framework.read(product)[self.rows]
        return judge_product(rows, exact, magnitude, exact.shape[1], self._dtype)

    def _multiply(self) -> tuple[Any, Any]:
        """Return A B and |A| |B|, in blocks of columns: float64 copies of large matrices would fill the host."""
        a, b = self._framework.read(self._a)[self.rows], self._framework.read(self._b)
        blocks = [b[:, at : at + _BLOCK] for at in range(0, b.shape[1], _BLOCK)]
        return (
            np.concatenate([a @ block for block in blocks], axis=1),
            np.concatenate([np.abs(a) @ np.abs(block) for block in blocks], axis=1),
        )


def _fastest(framework: Matrices, options: Options, device: Any, report: Reporter) -> int:
    """Return the size with the most FLOP/s, and report all. The caller measures it again, since the maximum of noisy
    numbers is biased upwards."""
    rates: dict[int, float] = {}
    last_s = 0.0
    for n in PEAK_SIZES:
        if n > options.settings.largest or last_s * 8 > PEAK_CALL_S:
            break
        last_s = quick_s(framework, device, _cell(framework, options, device, n).call)
        rates[n] = 2.0 * n**3 / last_s
        report.metric(f"n{n}.rate", rates[n], "FLOP/s")
        print(f"n {n:>6}  {1e3 * last_s:>10.3f} ms  {rates[n] / 1e12:>8.3f} TFLOP/s")
    return max(rates, key=lambda n: rates[n])


def _tell_peak(done: Bench, report: Reporter) -> None:
    (cell,) = done.cells
    rate = cell.flops / cell.median_s
    report.metric("peak", rate, "FLOP/s")
    print(f"peak   {rate / 1e12:.3f} TFLOP/s: mpsq report --peak measured takes it for MFU on this machine")


def _show(done: Bench, n: int, framework: Matrices) -> None:
    (cell,) = done.cells
    print(f"{'synced':<7}{_line(cell.flops, cell.times_s)}")
    t = f"the median of {len(cell.times_s)} samples, each the mean of {cell.calls} calls"
    print(f"       TFLOP/s is 2 n^3 / t, n = {n}, t {t}")
    if done.timing == "synced":
        return
    if cell.block_s is not None:
        said_s, done_s = cell.block_s
        print(
            f"guide  {cell.calls} products in {said_s:.6f} s by time.time(); the device was done after {done_s:.6f} s"
        )
        print("       (its first block: loading of kernels is part of it, as in the guide)")
    print(f"{'naive':<7}{_line(cell.flops, cell.naive_s)}")
    times = cell.median_s / max(median(cell.naive_s), 1e-12)
    print(f"error  the clock that does not wait says {times:,.4g} times the speed{_why(times, framework)}")


def _why(times: float, framework: Matrices) -> str:
    if times < 1.05:
        return ": no error here, where the call returns when the product is there"
    if framework.name in ("mlx", "tinygrad"):
        return ": it times the building of a graph, of which nothing was computed"
    return ": it times the handing over of work"


def _line(flops: float, times_s: list[float]) -> str:
    middle = median(times_s)
    spread = median([abs(t - middle) for t in times_s])
    line = f"{1e3 * middle:>11.4f} ms a product (MAD {1e3 * spread:.4f})"
    return f"{line}  {flops / max(middle, 1e-12) / 1e12:,.4g} TFLOP/s"
