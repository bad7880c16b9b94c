# /// script
# requires-python = ">=3.10"
# dependencies = ["torch>=2.9", "numpy"]
# ///
"""The operations that networks consist of, in PyTorch: `python jobs/kernels_torch.py --device cpu --set op=all`.

Each operation, forward and backward, is a cell: it is timed, compared with float64 on the CPU, and related to the
device's roofline. Top to bottom: settings, the operations with their FLOP and bytes, cells, the roofline.
"""

from __future__ import annotations

if __name__ == "__main__":  # before the import of torch: signals may arrive during it
    from harness import start

    start.quietly("torch")

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch._functorch import config as functorch

from harness.command_line import Options
from harness.errors import UsageError
from harness.microbench import roofline
from harness.microbench.matmul import ITEM_BYTES
from harness.microbench.rounding import Check, judge_norm
from harness.microbench.run import Bench, Cell, main
from harness.torch_backend.bench import TYPES, BenchTorch
from harness.torch_backend.compiling import compiled
from harness.torch_backend.device import Device
from mpsq_report import Reporter

WORKLOAD = {
    "name": "kernels",
    "framework": "torch",
    "about": "conv2d, linear, softmax, reduction, elementwise, attention, forward and backward: TFLOP/s or GB/s.",
    "source": "roofline: Williams, Waterman & Patterson 2009, CACM 52(4), 65-76",
    "unit": "calls",
    "dtypes": ["fp32", "bf16", "fp16", "fp64"],
    "params": {
        "op": {
            "default": "all", "unit": "",
            "choices": ["all", "conv2d", "linear", "softmax", "reduction", "elementwise", "attention"],
            "help": "the operation; op=linear,softmax makes a run for each",
        },
        "direction": {
            "default": "both", "unit": "", "choices": ["forward", "backward", "both"],
            "help": "the part of the operation that is timed",
        },
        "batch": {
            "default": 8, "unit": "sequences", "least": 1,
            "help": "sequences of linear, softmax, ...; images of conv2d",
        },
        "length": {"default": 256, "unit": "tokens", "least": 1, "help": "length of a sequence"},
        "width": {
            "default": 512, "unit": "features", "least": 1,
            "help": "width for linear, softmax, reduction and elementwise",
        },
        "heads": {"default": 8, "unit": "heads", "least": 1, "help": "attention heads; divides width"},
        "channels": {
            "default": 64, "unit": "channels", "least": 1,
            "help": "input and output channels of conv2d, whose kernel is 3 x 3",
        },
        "image": {"default": 28, "unit": "pixels", "least": 1, "help": "height and width of an image"},
        "max_iters": {
            "default": 30, "unit": "iterations", "least": 2,
            "help": "samples of each cell, warm-up included",
        },
        "warmup_iters": 4,
        "calls": {"default": 0, "unit": "calls", "least": 0, "help": "calls in a sample; 0: as many as fill it"},
        "sample_ms": {"default": 20.0, "unit": "ms", "least": 0, "help": "duration of a sample"},
        "tf32": {"default": False, "unit": "", "help": "let fp32 be computed in TF32 where the device has it"},
        "threads": 0,
    },
    "configs": {
        "small": {"batch": 8, "length": 256, "width": 512, "heads": 8, "channels": 64, "image": 28},
        "large": {"batch": 32, "length": 1024, "width": 1024, "heads": 16, "channels": 256, "image": 56},
        "tiny": {"batch": 2, "length": 16, "width": 32, "heads": 2, "channels": 4, "image": 8},
    },
}  # fmt: skip


@dataclass(frozen=True)
class Op:
    """An operation. `function` takes the inputs and returns one tensor, and is differentiated by all of them.

    FLOP and elements moved count one forward, and one backward to all those gradients.
    """

    inputs: Sequence[tuple[int, ...]]
    function: Callable[..., torch.Tensor]
    flops: float
    moved: float
    backward_flops: float
    backward_moved: float
    longest_sum: int
    roundings: int
    """to the dtype on the way to a result, at most: the steps between which it may be stored"""


def ops(s: SimpleNamespace) -> dict[str, Op]:
    """Return all operations at the sizes of the settings.

    Elements moved are each input and each result once, as with a perfect cache. A transcendental function of an element
    counts as one FLOP; 5 or 20 would change no bound, since these operations move 4 bytes an element.
    """
    rows, n = s.batch * s.length, s.batch * s.length * s.width
    weights, head = s.width * s.width, s.width // s.heads
    pixels = s.batch * s.image * s.image * s.channels
    filters = s.channels * s.channels * 9
    conv = 2.0 * pixels * s.channels * 9
    linear = 2.0 * rows * weights
    scores = 4.0 * s.batch * s.heads * s.length**2 * head
    return {
        # Dumoulin & Visin 2016: stride 1 and padding 1 keep height and width
        "conv2d": Op(
            [(s.batch, s.channels, s.image, s.image), (s.channels, s.channels, 3, 3)],
            lambda x, w: F.conv2d(x, w, padding=1),
            conv, 2 * pixels + filters, 2 * conv, 3 * pixels + 2 * filters,
            max(9 * s.channels, s.batch * s.image**2), 2,
        ),
        "linear": Op(
            [(rows, s.width), (s.width, s.width)],
            F.linear,
            linear, 2 * n + weights, 2 * linear, 3 * n + 2 * weights, max(s.width, rows), 2,
        ),
        # maximum, difference, exp, sum, quotient; backward y (g - sum(g y))
        "softmax": Op([(rows, s.width)], lambda x: F.softmax(x, dim=-1), 5.0 * n, 2 * n, 4.0 * n, 3 * n, s.width, 6),
        # sqrt(sum of squares) of each row; backward x g / norm
        "reduction": Op(
            [(rows, s.width)],
            lambda x: torch.linalg.vector_norm(x, dim=-1),
            2.0 * n, n + rows, 2.0 * n, 2 * n + 2 * rows, s.width, 4,
        ),
        "elementwise": Op([(rows, s.width)], F.gelu, 5.0 * n, 2 * n, 8.0 * n, 3 * n, 1, 6),
        # Q K^T and P V; backward twice that, without the recomputation of a fused kernel
        "attention": Op(
            [(s.batch, s.heads, s.length, head)] * 3,
            F.scaled_dot_product_attention,
            scores, 4 * n, 2 * scores, 8 * n, max(s.length, head), 12,
        ),
    }  # fmt: skip


class Kernel:
    """One operation in one direction: its call, and its check."""

    def __init__(self, name: str, op: Op, backward: bool, options: Options, device: Device) -> None:
        self.op, self.backward, self.dtype = op, backward, options.dtype
        self.name = f"{name}.{'backward' if backward else 'forward'}"
        generator = torch.Generator().manual_seed(options.seed)
        drawn = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in op.inputs]
        if len(drawn) == 2:  # the usual initial scale of weights, so that results have the scale of inputs
            drawn[1] *= drawn[1][0].numel() ** -0.5
        self.inputs = [x.to(TYPES[options.dtype]) for x in drawn]
        there = [x.to(device.handle).requires_grad_(backward) for x in self.inputs]
        function = compiled(op.function, options, dynamic=False)
        self.gradient = torch.Tensor()
        if not backward:
            self.call: Callable[[], Sequence[torch.Tensor]] = lambda: (function(*there),)
            return
        with torch.enable_grad():
            result = function(*there)
        self.gradient = torch.randn(result.shape, generator=generator, dtype=torch.float64).to(TYPES[options.dtype])
        given = self.gradient.to(device.handle)
        self.call = lambda: torch.autograd.grad(result, there, given, retain_graph=True)

    def check(self, results: Sequence[torch.Tensor]) -> Check:
        """Return the worst comparison of the results with the same operation in float64 on the CPU."""
        exact = [x.double().requires_grad_(self.backward) for x in self.inputs]
        expected: Sequence[torch.Tensor] = (self.op.function(*exact),)
        if self.backward:
            expected = torch.autograd.grad(expected[0], exact, self.gradient.double())
        checks = [
            judge_norm(
                there.detach().cpu().double().numpy(),
                right.detach().numpy(),
                self.op.longest_sum,
                self.op.roundings + 2 * self.backward,
                self.dtype,
            )
            for there, right in zip(results, expected, strict=True)
        ]
        return max(checks, key=lambda check: (not check.ok, check.share))

    def cell(self) -> Cell:
        """Return the cell that times it."""
        op = self.op
        moved = op.backward_moved if self.backward else op.moved
        return Cell(
            name=self.name,
            call=self.call,
            check=self.check,
            flops=op.backward_flops if self.backward else op.flops,
            bytes=float(moved * ITEM_BYTES[self.dtype]),
        )


def build(options: Options, device: Device, report: Reporter) -> Bench:
    """Return the cells of the selected operations, and measure the roofline of the device. Raises: UsageError."""
    s = options.settings
    chosen, backwards = _asked(s)
    if options.compile:
        # one forward serves many backwards: its saved tensors must not be donated to the first of them
        functorch.donated_buffer = False
    kernels = [
        Kernel(name, op, backward, options, device)
        for name, op in ops(s).items()
        if name in chosen
        for backward in backwards
    ]
    roof = roofline.measure(FRAMEWORK, replace(options, compile=False), device)
    report.metric("roof.flops", roof.flops_per_s, "FLOP/s")
    report.metric("roof.bytes", roof.bytes_per_s, "B/s")
    return Bench([kernel.cell() for kernel in kernels], roof.sentence(), lambda done: _show(done, roof))


def _asked(s: SimpleNamespace) -> tuple[list[str], list[bool]]:
    if s.width % s.heads:
        raise UsageError(f"width={s.width} is not divisible by heads={s.heads}", "it must be a multiple")
    directions = {"forward": [False], "backward": [True], "both": [False, True]}
    return list(ops(s)) if s.op == "all" else [s.op], directions[s.direction]


def _show(done: Bench, roof: roofline.Roofline) -> None:
    for cell in done.cells:
        t = cell.median_s
        rate = f"{cell.flops / t / 1e12:>9.4f} TFLOP/s  {cell.bytes / t / 1e9:>8.2f} GB/s"
        print(f"{cell.name:<21}{1e3 * t:>10.4f} ms  {rate}  {roof.bound(cell.flops, cell.bytes)}")


FRAMEWORK = BenchTorch()

if __name__ == "__main__":
    sys.exit(main(WORKLOAD, FRAMEWORK, build))
