"""Peak arithmetic rates of devices, each with its source, and MFU. A device that is not listed has no peak.

Peaks are dense (without structured sparsity) and count a fused multiply-add as two. `fp32` is the rate of true single
precision; a job that allows TF32 reports dtype "tf32".
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

DTYPES = ("fp32", "tf32", "bf16", "fp16")


class Peak(Struct, frozen=True):
    """The peak FLOP per second of a device in a dtype, and its source."""

    flops: float
    source: str


class _Card(Struct, frozen=True):
    """Peaks of one card in TFLOP/s by dtype; `name` must match the whole name that the framework reports."""

    name: str
    tflops: dict[str, float]
    source: str


def _tensor_core(fp32: float, tf32: float | None, half: float) -> dict[str, float]:
    """Return TFLOP/s by dtype; from Ampere on bf16 and fp16 (accumulated in fp32) have the same rate."""
    rates = {"fp32": fp32, "bf16": half, "fp16": half}
    return rates if tf32 is None else {**rates, "tf32": tf32}


_A100 = _tensor_core(19.5, 156, 312)
_HOPPER_SXM = _tensor_core(66.9, 494.7, 989.4)
_HOPPER_NVL = _tensor_core(60, 417.5, 835.5)
_H100_PAPER = "NVIDIA H100 Tensor Core GPU Architecture whitepaper, dense"

# Names match as a whole, because memory sizes, MIG slices, laptop and regional parts differ.
_CARDS = (
    _Card(
        r"NVIDIA A100-SXM4-[48]0GB|NVIDIA A100-PCIE-40GB|NVIDIA A100 80GB PCIe", _A100, "NVIDIA A100 datasheet, dense"
    ),
    _Card(r"NVIDIA H100 80GB HBM3", _HOPPER_SXM, f"{_H100_PAPER}, SXM5"),
    _Card(r"NVIDIA H100 NVL", _HOPPER_NVL, "NVIDIA H100 datasheet, NVL (one card), sparse figures halved"),
    _Card(r"NVIDIA H100 PCIe", _tensor_core(51.2, 378, 756), f"{_H100_PAPER}, PCIe"),
    _Card(r"NVIDIA H200", _HOPPER_SXM, "NVIDIA H200 datasheet, SXM, sparse figures halved (the chip is H100's)"),
    _Card(r"NVIDIA H200 NVL", _HOPPER_NVL, "NVIDIA H200 datasheet, NVL, sparse figures halved"),
    _Card(
        r"NVIDIA GH200 (480GB|144G HBM3e)",
        _tensor_core(67, 494.5, 989.5),
        "NVIDIA GH200 Grace Hopper Superchip datasheet, sparse figures halved",
    ),
    _Card(
        r"NVIDIA B200",
        _tensor_core(75, 1125, 2250),
        "NVIDIA HGX B200 specifications, an eighth of 8 GPUs, sparse figures halved",
    ),
    _Card(r"Tesla V100-SXM2-(16|32)GB", {"fp32": 15.7, "fp16": 125}, "NVIDIA V100 datasheet, SXM2"),
    _Card(r"Tesla V100-PCIE-(16|32)GB", {"fp32": 14.0, "fp16": 112}, "NVIDIA V100 datasheet, PCIe"),
    _Card(r"(NVIDIA |Tesla )?T4|Tesla T4", {"fp32": 8.1, "fp16": 65}, "NVIDIA T4 datasheet"),
    _Card(r"NVIDIA A10", _tensor_core(31.2, 62.5, 125), "NVIDIA A10 datasheet, dense"),
    _Card(r"NVIDIA A30", _tensor_core(10.3, 82, 165), "NVIDIA A30 datasheet, dense"),
    _Card(r"NVIDIA A40", _tensor_core(37.4, 74.8, 149.7), "NVIDIA A40 datasheet, dense"),
    _Card(r"NVIDIA L4", _tensor_core(30.3, 60, 121), "NVIDIA L4 datasheet, sparse figures halved"),
    _Card(r"NVIDIA L40S", _tensor_core(91.6, 183, 362), "NVIDIA L40S datasheet, dense"),
    _Card(r"NVIDIA RTX A6000", _tensor_core(38.7, 77.4, 154.8), "NVIDIA GA102 whitepaper, RTX A6000, dense"),
    _Card(
        r"NVIDIA RTX 6000 Ada Generation",
        _tensor_core(91.1, 182.1, 364.2),
        "NVIDIA Ada GPU architecture whitepaper, RTX 6000 Ada, dense, fp32 accumulate",
    ),
    _Card(r"NVIDIA GeForce RTX 3090", _tensor_core(35.6, 35.6, 71), "NVIDIA GA102 whitepaper, dense, fp32 accumulate"),
    _Card(r"NVIDIA GeForce RTX 4090", _tensor_core(82.6, 82.6, 165.2), "NVIDIA Ada whitepaper, dense, fp32 accumulate"),
    _Card(
        r"NVIDIA GeForce RTX 5090",
        _tensor_core(104.8, 104.8, 209.5),
        "NVIDIA RTX Blackwell GPU architecture whitepaper, dense, fp32 accumulate",
    ),
    _Card(
        r"AMD Instinct MI300X", {"fp32": 163.4, "bf16": 1307.4, "fp16": 1307.4}, "AMD Instinct MI300X datasheet, dense"
    ),
)

_ALUS_PER_CORE = 128
_FLOP_PER_FMA = 2
_APPLE = re.compile(r"Apple (M\d+(?: (?:Pro|Max|Ultra))?)")
_TABLE = "metal-benchmarks table (github.com/philipturner/metal-benchmarks)"
_INFO = "highest state that powermetrics lists (github.com/philipturner/applegpuinfo, issue"
_UNDER_LOAD = "of powermetrics under load, the highest state of AGXAcceleratorG16 (published outputs of M4 and M4 Max)"
# Maximum GPU clock in Hz, each of a chip whose clock somebody measured. No other variant's clock is taken for an M3's,
# which differ: M3 Pro and Ultra have none; nor has M4 Pro. M5 has tensor units, so that the formula is a lower bound.
_APPLE_CLOCKS: dict[str, tuple[float, str]] = {
    "M1": (1.278e9, _TABLE),
    "M1 Pro": (1.296e9, _TABLE),
    "M1 Max": (1.296e9, _TABLE),
    "M1 Ultra": (1.296e9, _TABLE),
    "M2": (1.398e9, _TABLE),
    "M2 Pro": (1.398e9, _TABLE),
    "M2 Max": (1.398e9, _TABLE),
    "M2 Ultra": (1.398e9, _TABLE),
    "M3": (1.338e9, f"{_INFO} 15)"),
    "M3 Max": (1.38e9, f"{_INFO} 4)"),
    "M4": (1.578e9, _UNDER_LOAD),
    "M4 Max": (1.578e9, _UNDER_LOAD),
}
_APPLE_MAX_CORES = 80
"""M3 Ultra; a larger number is a reading error."""


def peak(device_name: str | None, gpu_cores: int | None, dtype: str | None) -> Peak | None:
    """Return the published peak of a device by the name its framework reports ("Apple M1 Max", "NVIDIA H200"), or None.

    Apple's names do not include the number of GPU cores (M1 Max: 24 or 32), so these devices need `gpu_cores`.
    """
    if device_name is None or dtype not in DTYPES:
        return None
    name = " ".join(device_name.split())
    if match := _APPLE.fullmatch(name):
        return _apple(match[1], gpu_cores, dtype)
    for card in _CARDS:
        if re.fullmatch(card.name, name):
            rate = card.tflops.get(dtype)
            return None if rate is None else Peak(rate * 1e12, card.source)
    return None


def known(
    given: Mapping[str, float], device: str | None, name: str | None, gpu_cores: int | None, dtype: str | None
) -> Peak | None:
    """Return the peak that the user gave (TFLOP/s by device or name), else the published one; none for a CPU."""
    for key in (str(device), str(device).partition(":")[0], str(name)):
        if key in given:
            return Peak(given[key] * 1e12, "given by the user")
    if device is None or device == "cpu":  # a CPU may have the name of the chip, and so of its GPU
        return None
    return peak(name, gpu_cores, dtype)


def _apple(chip: str, gpu_cores: int | None, dtype: str) -> Peak | None:
    """Return cores x 128 ALUs x 2 x clock. M1 to M4 have no tensor units, so half precision has the same peak."""
    if gpu_cores is None or not 1 <= gpu_cores <= _APPLE_MAX_CORES or dtype == "tf32" or chip not in _APPLE_CLOCKS:
        return None
    clock_hz, source = _APPLE_CLOCKS[chip]
    flops = gpu_cores * _ALUS_PER_CORE * _FLOP_PER_FMA * clock_hz
    return Peak(flops, f"{gpu_cores} cores x 128 x 2 x {clock_hz / 1e9:.3f} GHz; clock: {source}")


def of_gpus(peak: Peak | None, n: int) -> Peak | None:
    """Return the peak of `n` GPUs of one kind together."""
    return peak if peak is None or n == 1 else Peak(n * peak.flops, f"{n} GPUs, each: {peak.source}")


def mfu(flops_per_iter: float | None, dur_s: float | None, peak: Peak | None) -> float | None:
    """Return the model FLOP utilization (Chowdhery et al. 2022, PaLM, appendix B): the model's FLOP per second as a
    share of the peak, not capped at 1; None if a value is unknown or the time is not positive."""
    if flops_per_iter is None or dur_s is None or peak is None or dur_s <= 0 or peak.flops <= 0:
        return None
    return flops_per_iter / dur_s / peak.flops
