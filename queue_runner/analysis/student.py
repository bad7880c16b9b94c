"""Student's t for whole degrees of freedom, in closed form: reports start too often to load scipy for one quantile."""

from __future__ import annotations

import math
from functools import lru_cache

SMALLEST_P = 1e-12
"""1 - A(t) holds about 15 digits after the point: smaller tails are this."""


def two_sided(t: float, df: int) -> float:
    """Return P(|T| >= t) for `df` degrees of freedom: 1 - A(t | df) of Abramowitz & Stegun 1964, "Handbook of
    Mathematical Functions", 26.7.3 (odd) and 26.7.4 (even)."""
    if not math.isfinite(t):
        return SMALLEST_P
    angle = math.atan(abs(t) / math.sqrt(df))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = df % 2
    term = cosine if odd else 1.0
    total = 0.0
    for k in range(2 + odd, df + 1, 2):
        total += term
        term *= cosine * cosine * (k - 1) / k
    within = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return max(SMALLEST_P, 1 - within)


@lru_cache(maxsize=64)
def normal_quantile(p: float) -> float:
    """Return z with P(Z <= z) = p for a standard normal Z, by bisection."""
    low, high = -9.0, 9.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if (1 + math.erf(middle / math.sqrt(2))) / 2 < p else (low, middle)
    return high


@lru_cache(maxsize=1024)
def quantile(p: float, df: int) -> float:
    """Return t with P(|T| >= t) = p, by bisection."""
    low, high = 0.0, 1.0
    while two_sided(high, df) > p and high < 1e12:
        low, high = high, high * 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if two_sided(middle, df) > p else (low, middle)
    return high
