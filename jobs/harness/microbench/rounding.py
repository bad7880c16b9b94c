"""How far a computed result may be from the exact one: rounding-error bounds, and the arithmetic that a result reveals.

Bounds are not tuned: they follow from the dtype's unit roundoff and the length of the sums.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

UNIT = {"fp64": 2.0**-53, "fp32": 2.0**-24, "tf32": 2.0**-11, "fp16": 2.0**-11, "bf16": 2.0**-8}
"""Unit roundoff: half the distance from 1 to the next number (IEEE 754-2019 table 3.5; bfloat16 has 8 significant
bits, TF32 11)."""
SMALLEST = {"fp64": 2.0**-1074, "fp32": 2.0**-149, "fp16": 2.0**-24, "bf16": 2.0**-133}
"""The smallest positive (subnormal) number of each dtype: the error of an underflow."""
ACCUMULATES = {"fp64": "fp64", "fp32": "fp32", "fp16": "fp32", "bf16": "fp32"}
"""The dtype in which sums are expected to be accumulated."""
LAMBDA = 9.0
"""With it the bound holds for 1e11 inner products together with a probability of 1 - 1e-6: 2 exp(-LAMBDA^2 / 2) is
5e-18 for each operation. Source: as `gamma`."""
TF32_FROM = 2.0**-14
"""Relative error (Frobenius) from which a product is not one in fp32: rounding the factors to TF32 costs about 3e-4,
whatever n; sums in fp32 cost less than 1e-5 up to n = 16384 where terms have both signs."""


def gamma(k: int, unit: float) -> float:
    """Return the bound on the relative error of a sum of `k` products in any order: exp(LAMBDA sqrt(k) u + k u^2 / (1 -
    u)) - 1.

    Source: Higham & Mary 2019, "A New Approach to Probabilistic Rounding Error Analysis", SIAM J. Sci. Comput. 41,
    A2815, theorem 2.4. The deterministic bound has k u in its place (Higham 2002, "Accuracy and Stability of Numerical
    Algorithms", 2nd ed., eq. 3.4), and is so wide that a product in TF32 passes for one in fp32.
    """
    return math.expm1(LAMBDA * math.sqrt(k) * unit + k * unit * unit / (1 - unit))


@dataclass(frozen=True)
class Check:
    """The result of a comparison with float64."""

    ok: bool
    arithmetic: str
    """such as fp32 or tf32, for half precision with the dtype of sums: "bf16, sums in fp32"; empty when not ok"""
    share: float
    """the largest error as a share of its bound"""
    relative: float
    """norm of the error over norm of the exact result (Frobenius)"""
    text: str


def judge_product(product: Any, exact: Any, magnitude: Any, k: int, dtype: str) -> Check:
    """Compare a product A B in `dtype` with `exact`; `magnitude` is |A| |B|, all in float64, sums of `k` terms.

    Bound, element by element: |found - exact| <= gamma(k, u_sum) |A| |B| + u_dtype |exact| + underflow (Higham 2002,
    section 3.5, with the final rounding to the dtype separate). The arithmetic is the strictest that fits. A coarser
    one than requested must show in the median element too: a single wrong number does not make an arithmetic.
    """
    error, size = np.abs(product - exact), float(np.linalg.norm(exact)) or 1.0
    relative = float(np.linalg.norm(product - exact)) / size
    typical = float(np.median(error)) * math.sqrt(exact.size) / size
    rest = UNIT[dtype] * np.abs(exact) + SMALLEST[dtype]
    shares = []
    for arithmetic, factor, least, most in _arithmetics(dtype, k):
        share = float(np.max(error / (factor * magnitude + rest)))
        shares.append(share)
        if share <= 1 and relative <= most and typical >= least:
            text = f"largest error {share:.2g} of its bound, relative error {relative:.1e}: {arithmetic}"
            return Check(True, arithmetic, share, relative, text)
    text = f"the product is not float64's: relative error {relative:.1e}, largest error {shares[0]:.3g} of its bound"
    return Check(False, "", shares[0], relative, text)


def _arithmetics(dtype: str, k: int) -> list[tuple[str, float, float, float]]:
    """Return, strictest first: name, factor of |A| |B|, the least error of the median element relative to the norm's
    share of one, the highest relative error of all."""
    sums = ACCUMULATES[dtype]
    exact = gamma(k, UNIT[sums])
    if dtype == "fp32":  # some devices truncate the factors: twice the unit roundoff, for both of them
        return [("fp32", exact, 0.0, TF32_FROM), ("tf32", exact + 4 * UNIT["tf32"], TF32_FROM / 2, 2.0**-10)]
    if dtype == "fp64":
        return [("fp64", exact, 0.0, 1e-9)]
    bound = gamma(k, UNIT[dtype])
    return [
        (f"{dtype}, sums in {sums}", exact, 0.0, 2 * UNIT[dtype]),
        (f"{dtype}, sums in {dtype}", bound, UNIT[dtype], 2 * UNIT[dtype] * math.sqrt(k)),
    ]


def judge_norm(result: Any, exact: Any, k: int, roundings: int, dtype: str) -> Check:
    """Compare any result with `exact` by its norm: sums of up to `k` terms, `roundings` to the dtype on the way.

    Bound: ||found - exact|| <= (gamma(k, u_sum) + roundings u_dtype) ||exact|| in the Frobenius norm, for results that
    are not a small difference of large sums.
    """
    sums = ACCUMULATES[dtype]
    bound = gamma(k, UNIT[sums]) + roundings * UNIT[dtype]
    relative = float(np.linalg.norm(result - exact)) / (float(np.linalg.norm(exact)) or 1.0)
    ok = relative <= bound  # false for nan
    text = f"relative error {relative:.1e}, bound {bound:.1e}"
    return Check(ok, dtype if ok else "", relative / bound, relative, text if ok else f"not float64's result: {text}")
