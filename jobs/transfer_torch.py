# /// script
# requires-python = ">=3.10"
# dependencies = ["torch>=2.9", "numpy"]
# ///
"""Copies between host and device, in PyTorch: `python jobs/transfer_torch.py --device cuda`.

Time of one copy and GB/s, by size, in both directions, from pageable and from pinned memory: what moving a batch costs,
and what unified memory saves. Every byte is compared. Each copy is waited for, because latency is measured.
"""

from __future__ import annotations

if __name__ == "__main__":  # before the import of torch: signals may arrive during it
    from harness import start

    start.quietly("torch")

import sys
from types import SimpleNamespace

import torch

from harness.command_line import Options
from harness.errors import UsageError
from harness.microbench.rounding import Check
from harness.microbench.run import Bench, Cell, main
from harness.torch_backend.bench import BenchTorch
from harness.torch_backend.device import Device
from mpsq_report import Reporter

WORKLOAD = {
    "name": "transfer",
    "framework": "torch",
    "about": "Copies between host and device: latency and GB/s by size; on the CPU a memcpy.",
    "source": "what guides claim of unified memory: that nothing has to be moved",
    "unit": "copies",
    "params": {
        "smallest": {
            "default": 4, "unit": "bytes", "least": 1, "most": 17179869184,
            "help": "the smallest size; its time is the latency",
        },
        "largest": {
            "default": 67108864, "unit": "bytes", "least": 1, "most": 17179869184,
            "help": "the largest size; each is 16 times the one before",
        },
        "memory": {
            "default": "both", "unit": "", "choices": ["pageable", "pinned", "both"],
            "help": "memory of the host: pageable, or on CUDA also pinned",
        },
        "max_iters": {
            "default": 60, "unit": "iterations", "least": 2,
            "help": "copies of each kind, warm-up included",
        },
        "warmup_iters": 5,
        "threads": 0,
    },
    "configs": {"sweep": {}, "tiny": {"largest": 65536}},
}  # fmt: skip

FACTOR = 16
DIRECTIONS = ("to_device", "to_host")


def build(options: Options, device: Device, report: Reporter) -> Bench:
    """Return a cell for each direction, memory and size. Raises: UsageError."""
    s = options.settings
    memories = _memories(s, device)
    generator = torch.Generator().manual_seed(options.seed)
    cells = [
        _cell(direction, memory, size, device, generator)
        for direction in DIRECTIONS
        for memory in memories
        for size in sizes(s)
    ]
    about = f"{s.smallest:,} to {s.largest:,} bytes, host memory {' and '.join(memories)}"
    if device.kind == "cpu":
        text = "host and device are one here: these are copies within the host's memory (memcpy)"
        report.note("memcpy", text)
        about += f"; {text}"
    return Bench(cells, about, _show)


def sizes(s: SimpleNamespace) -> list[int]:
    """Return sizes in bytes, each FACTOR times the one before, the largest last. Raises: UsageError."""
    if s.smallest > s.largest:
        raise UsageError(f"smallest={s.smallest} is more than largest={s.largest}", "the smallest comes first")
    values = [s.smallest]
    while values[-1] * FACTOR < s.largest:
        values.append(values[-1] * FACTOR)
    return values if values[-1] == s.largest else [*values, s.largest]


def _memories(s: SimpleNamespace, device: Device) -> list[str]:
    if device.kind == "cuda":
        return ["pageable", "pinned"] if s.memory == "both" else [s.memory]
    if s.memory == "pinned":
        raise UsageError(f"there is no pinned memory for {device.kind}", "memory=pageable, or --device cuda")
    return ["pageable"]


def _cell(direction: str, memory: str, size: int, device: Device, generator: torch.Generator) -> Cell:
    pattern = torch.randint(256, (size,), dtype=torch.uint8, generator=generator)
    host = torch.zeros(size, dtype=torch.uint8, pin_memory=memory == "pinned")
    there = torch.zeros(size, dtype=torch.uint8, device=device.handle)
    source, target = (host, there) if direction == "to_device" else (there, host)
    source.copy_(pattern)
    return Cell(
        name=f"{direction}.{memory}.{size}",
        call=lambda: target.copy_(source, non_blocking=memory == "pinned"),
        check=lambda result: _same(result, pattern),
        flops=0.0,
        bytes=float(size),
        calls=1,
        untimed_first=True,
    )


def _same(result: torch.Tensor, pattern: torch.Tensor) -> Check:
    n_wrong = int((result.cpu() != pattern).sum())
    if n_wrong:
        return Check(False, "", float(n_wrong), n_wrong / len(pattern), f"{n_wrong:,} of {len(pattern):,} bytes differ")
    return Check(True, "bytes", 0.0, 0.0, f"{len(pattern):,} bytes are equal")


def _show(done: Bench) -> None:
    for cell in done.cells:
        direction, memory, size = cell.name.split(".")
        rate = f"{cell.bytes / cell.median_s / 1e9:>9.4g} GB/s"
        print(f"{direction:<10}{memory:<9}{int(size):>14,} bytes {1e6 * cell.median_s:>12.2f} us  {rate}")


FRAMEWORK = BenchTorch()

if __name__ == "__main__":
    sys.exit(main(WORKLOAD, FRAMEWORK, build))
