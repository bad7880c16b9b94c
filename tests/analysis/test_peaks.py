"""Peaks have sources; an unknown device has none; MFU reproduces what nanoGPT printed on its A100 scale."""

from __future__ import annotations

import pytest

from queue_runner import units
from queue_runner.analysis import peaks
from queue_runner.analysis.peaks import Peak, mfu, peak

STEP_FLOP = 1.1626e12
"""FLOP of one shakespeare_char iteration (docs/methodology.md)."""


@pytest.mark.parametrize(("dur_s", "printed"), [(0.2205, "1.69 %"), (0.3048, "1.22 %"), (1.9738, "0.19 %")])
def test_the_printed_mfu_of_the_post(dur_s: float, printed: str) -> None:
    a100 = peak("NVIDIA A100-SXM4-40GB", None, "bf16")
    assert a100 is not None and a100.flops == 312e12
    share = mfu(STEP_FLOP, dur_s, a100)
    assert share is not None and f"{share * 100:.2f} %" == printed


@pytest.mark.parametrize(
    ("name", "cores", "tflops"),
    [
        ("Apple M1", 8, 2.6),
        ("Apple M1 Pro", 16, 5.3),
        ("Apple M1 Max", 32, 10.6),
        ("Apple M1 Max", 24, 7.96),
        ("Apple M1 Ultra", 64, 21.2),
        ("Apple M2", 10, 3.6),
        ("Apple M2 Pro", 19, 6.8),
        ("Apple M2 Max", 38, 13.6),
        ("Apple M2 Ultra", 76, 27.2),
        ("Apple M3", 10, 3.43),
        ("Apple M3 Max", 40, 14.1),
        ("Apple M4", 10, 4.04),
        ("Apple M4 Max", 40, 16.2),
    ],
)
def test_apple_by_core_count(name: str, cores: int, tflops: float) -> None:
    found = peak(name, cores, "fp32")
    assert found is not None and found.flops / 1e12 == pytest.approx(tflops, rel=0.02)
    assert "GHz" in found.source
    half = peak(name, cores, "fp16")
    assert half is not None and half.flops == found.flops


@pytest.mark.parametrize(
    ("name", "dtype", "tflops"),
    [
        ("NVIDIA H200", "bf16", 989.4),
        ("NVIDIA H200", "fp32", 66.9),
        ("NVIDIA H100 80GB HBM3", "tf32", 494.7),
        ("NVIDIA H100 PCIe", "bf16", 756),
        ("NVIDIA A100 80GB PCIe", "fp32", 19.5),
        ("NVIDIA GeForce RTX 4090", "fp16", 165.2),
        ("NVIDIA GeForce RTX 5090", "bf16", 209.5),
        ("NVIDIA RTX 6000 Ada Generation", "bf16", 364.2),
        ("NVIDIA H100 NVL", "bf16", 835.5),
        ("NVIDIA H200 NVL", "tf32", 417.5),
        ("NVIDIA GH200 480GB", "bf16", 989.5),
        ("NVIDIA B200", "bf16", 2250),
        ("NVIDIA B200", "fp32", 75),
        ("NVIDIA A30", "fp32", 10.3),
        ("NVIDIA A40", "bf16", 149.7),
    ],
)
def test_cards(name: str, dtype: str, tflops: float) -> None:
    found = peak(name, None, dtype)
    assert found is not None and found.flops == pytest.approx(tflops * 1e12) and found.source


@pytest.mark.parametrize(
    ("name", "cores", "dtype"),
    [
        (None, None, "fp32"),
        ("", None, "fp32"),
        ("Apple M1 Max", None, "fp32"),  # 24 or 32 cores: the name does not say
        ("Apple M1 Max", 0, "fp32"),
        ("Apple M1 Max", 4096, "fp32"),
        ("Apple M1", 8, "tf32"),
        ("Apple M5", 10, "fp32"),
        ("Apple M11", 10, "fp32"),
        ("AMD EPYC 7B13", 2, "fp32"),
        ("Apple M3 Pro", 18, "fp32"),  # no measured clock
        ("Apple M4 Pro", 20, "fp32"),
        ("NVIDIA GB200", None, "bf16"),
        ("NVIDIA RTX 6000 Blackwell", None, "bf16"),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None, "bf16"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None, "fp32"),
        ("NVIDIA GeForce RTX 4090 D", None, "fp32"),
        ("Tesla T4", None, "bf16"),
        ("NVIDIA H200", None, "int8"),
        ("NVIDIA H200", None, None),
    ],
)
def test_what_is_not_known_has_no_peak(name: str | None, cores: int | None, dtype: str | None) -> None:
    found = peak(name, cores, dtype)
    assert found is None
    assert units.percent(mfu(STEP_FLOP, 0.2, found)) == "-"


def test_every_card_has_a_source_and_ordered_rates() -> None:
    for card in peaks._CARDS:
        assert card.source and set(card.tflops) <= set(peaks.DTYPES)
        assert card.tflops["fp32"] <= card.tflops["fp16"]


def test_mfu_needs_all_three() -> None:
    of = Peak(1e12, "given by the user")
    assert mfu(None, 1, of) is None and mfu(1, None, of) is None and mfu(1, 0, of) is None
    assert mfu(2e12, 1, of) == 2
