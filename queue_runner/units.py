"""The only formatter of numbers, and the parser of durations and sizes given as options.

Everything inside mpsq is SI (seconds, bytes, FLOP per second); display units are chosen here. A missing number is
`MISSING`, never 0; a non-finite number is shown as such. Values have 3 or 4 significant digits, and beside a spread
never more digits than the spread supports.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from queue_runner.errors import UsageError

MISSING = "-"
BOOLEANS = {"true": True, "on": True, "yes": True, "1": True, "false": False, "off": False, "no": False, "0": False}
PLUS_MINUS = "±"

Number = float | int | None

_NANOSECONDS = (("s", 1e9), ("ms", 1e6), ("µs", 1e3))
_BINARY = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
_RATES = (("PFLOP/s", 1e15), ("TFLOP/s", 1e12), ("GFLOP/s", 1e9), ("MFLOP/s", 1e6))
_COUNTS = (("G", 1e9), ("M", 1e6), ("k", 1e3))
_TIME_UNITS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE_UNITS: dict[str, int] = {"": 1, "b": 1} | {
    f"{prefix}{end}": (1000 if end == "b" else 1024) ** power
    for power, prefix in enumerate("kmgt", start=1)
    for end in ("", "ib", "b")
}
_DURATION_PART = re.compile(r"\s*(\d{1,15}(?:\.\d{0,15})?|\.\d{1,15})\s*(us|µs|ms|min|[smhd])", re.ASCII)
_SIZE = re.compile(r"(\d{1,19}(?:\.\d{0,15})?)\s*([A-Za-z]{0,3})", re.ASCII)
VALUE_DIGITS = 2
"""Least number of significant digits of a value whose interval is wide."""
MOST_RATIO_DIGITS = 6
FAR_RATIO = 1000.0
"""An interval that includes 1 may end beyond this ratio and its inverse: the place then tells nothing."""
MOST_PLACES = 12
"""Numbers in their own unit with more decimals, or more digits before them, have an exponent."""
ROUNDING = 1e-12
"""A width that is a smaller share of the numbers is none: the last bits of floats differ."""
MAX_DURATION_S = 10 * 365.25 * 86400.0
"""The longest duration an option accepts: ten years. Anything longer is more likely a typing error."""
MAX_SIZE_BYTES = 2**63 - 1
"""The largest size an option accepts: the limit of SQLite and of file offsets."""


def not_finite(x: Number) -> str | None:
    """Return the text for a missing or non-finite number (nan, inf, -inf), else None."""
    if x is None:
        return MISSING
    try:
        if math.isfinite(x):
            return None
    except OverflowError:  # an int too large for a float
        return "inf" if x > 0 else "-inf"
    return "nan" if math.isnan(x) else "inf" if x > 0 else "-inf"


def _exponent(x: float, digits: int) -> int:
    """Return the power of ten of the leading digit after rounding to `digits` significant digits: 1 for 9.996 and 3."""
    return int(f"{x:.{digits - 1}e}".split("e")[1])


def _to_place(x: float, places: int) -> str:
    """Round to `places` decimals; to tens, hundreds, ... when negative."""
    if places >= 0:
        text = f"{x:,.{min(places, 30)}f}"
    else:
        text = f"{round(x / 10.0**-places) * 10**-places:,}"
    return text if any(digit in text for digit in "123456789") else text.lstrip("-")


def _rounded(x: float, digits: int) -> float:
    return float(f"{x:.{digits - 1}e}")


def number(x: Number, digits: int = 4) -> str:
    """Format with `digits` significant digits, thousands separators and no exponent: 74222.9 is "74,220"."""
    if (text := not_finite(x)) is not None or x is None:
        return text or MISSING
    return _to_place(x, digits - 1 - _exponent(x, digits)) if x else "0"


def _with_unit(x: Number, digits: int, unit: str) -> str:
    text = number(x, digits)
    return text if text == MISSING else f"{text} {unit}"


def _scaled(x: Number, table: tuple[tuple[str, float], ...], digits: int, below: str) -> str:
    """Format in the first unit of `table` that the rounded value reaches, else unscaled in the unit `below`."""
    if (text := not_finite(x)) is not None or x is None:
        return text or MISSING
    for unit, size in table:
        if abs(_rounded(x / size, digits)) >= 1:
            return f"{number(x / size, digits)} {unit}"
    return f"{count(x) if x == int(x) else number(x, digits)} {below}".rstrip()


def count(n: Number) -> str:
    """Format an exact count: "10,745,088"."""
    return not_finite(n) or (f"{n:,}" if isinstance(n, int) else f"{n:,.0f}")


def counted(n: int, what: str) -> str:
    """Format an exact count with its noun: "1 run", "1,200 runs"."""
    return f"{count(n)} {what}{'s' * (n != 1)}"


def listed(texts: Sequence[str], most: int) -> str:
    """Join texts, of more than `most` the first ones: "a, b and 3 more"."""
    return ", ".join(texts[:most]) + (f" and {count(len(texts) - most)} more" if len(texts) > most else "")


def short_count(n: Number) -> str:
    """Format a rounded count: "10.75 M"; up to 9,999 exact."""
    if n is not None and not_finite(n) is None and abs(n) < 10_000:
        return count(n)
    return _scaled(n, _COUNTS, 4, "")


def ms(x_s: Number) -> str:
    """Format seconds as milliseconds without the unit, for a column that names it: 0.22074 is "220.7"."""
    return number(x_s if x_s is None or not_finite(x_s) else x_s * 1e3, 4)


def short_duration(x_s: Number, digits: int = 4) -> str:
    """Format seconds in the fitting unit, up to a minute: "220.7 ms", "1.984 s"; longer ones as `duration`."""
    if (text := not_finite(x_s)) is not None or x_s is None:
        return text or MISSING
    if abs(_rounded(x_s, digits)) >= 60:
        return duration(x_s)
    return _scaled(x_s / 1e-9, _NANOSECONDS, digits, "ns") if x_s else "0 s"


def duration(x_s: Number) -> str:
    """Format seconds: "1 h 02 min", "59 min 48 s", "3 d 04 h"; below a minute as `short_duration` with 3 digits."""
    if (text := not_finite(x_s)) is not None or x_s is None:
        return text or MISSING
    sign, x_s = ("-" if x_s < 0 else ""), abs(x_s)
    if x_s < 59.95:
        return sign + short_duration(x_s, 3)
    if round(x_s) < 3600:
        return f"{sign}{round(x_s) // 60} min {round(x_s) % 60:02d} s"
    minutes = round(x_s / 60)
    if minutes < 24 * 60:
        return f"{sign}{minutes // 60} h {minutes % 60:02d} min"
    hours = round(x_s / 3600)
    return f"{sign}{hours // 24:,} d {hours % 24:02d} h"


def rough(x_s: float) -> str:
    """Format seconds that pass as `duration`, below a minute as whole ones: "5 s"."""
    whole_s = max(0, round(x_s))
    return f"{whole_s} s" if whole_s < 60 else duration(whole_s)


def typed_duration(x_s: float) -> str:
    """Format seconds as a user types them, for parse_duration: "4h", "90s"."""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if x_s and x_s % size == 0:
            return f"{x_s / size:.0f}{unit}"
    return f"{x_s:.15g}s"


def seconds(x_s: Number, decimals: int = 2) -> str:
    """Format seconds as `time -p` does: "3588.66"."""
    return not_finite(x_s) or f"{x_s:.{decimals}f}"


def plus_minus(x: Number, spread: Number, unit: str = "", scale: float = 1.0) -> str:
    """Format a value with its spread, both divided by `scale`: "220.7 ± 0.3 ms".

    The spread has one significant digit, two if the first is a 1. The value is rounded to the place of the spread's
    last digit and has at most 4 significant digits; then the spread ends there, too, unless it would be 0. Without a
    spread: the value alone.
    """
    if (text := not_finite(x)) is not None or x is None:
        return text or MISSING
    value = x / scale
    tail = f" {unit}" if unit else ""
    if not_finite(spread) is not None or spread is None:
        return number(value) + tail
    width = abs(spread / scale)
    if width == 0:  # the values are rounded, or there is only one
        return number(value) + tail
    places = -_exponent(width, 1)
    if f"{width:.0e}".startswith("1"):
        places += 1
    most = min(places, 3 - _exponent(value, 4))
    places = most if round(width, most) else places
    return f"{_to_place(value, most)} {PLUS_MINUS} {_to_place(width, places)}{tail}"


def without_spread(x: Number, spread: Number, scale: float = 1.0) -> str:
    """Format a value with the digits that `plus_minus` gives it, two at least: 0.8 vs 0.6 contradicts 1.26 x."""
    text = plus_minus(x, spread, "", scale).partition(f" {PLUS_MINUS}")[0]
    return text if x is None or len(text.replace(".", "").lstrip("0")) > 1 else number(x / scale, 2)


def ms_plus_minus(x_s: Number, spread_s: Number) -> str:
    """Format seconds with their spread in milliseconds: "220.7 ± 0.3 ms"."""
    return plus_minus(x_s, spread_s, "ms", 1e-3)


def flops_per_s(x: Number) -> str:
    """Format an arithmetic throughput: "5.27 TFLOP/s"."""
    return _scaled(x, _RATES, 3, "FLOP/s")


def tflops(x: Number) -> str:
    """Format FLOP per second as TFLOP/s without the unit, for a column that names it: "5.27"."""
    return number(x if x is None or not_finite(x) else x / 1e12, 3)


def percent(share: Number, digits: int = 3) -> str:
    """Format a share of 1: 0.0169 is "1.69 %"."""
    return _with_unit(share if share is None or not_finite(share) else share * 100, digits, "%")


def ratio(x: Number, low: Number = None, high: Number = None) -> str:
    """Format a ratio: "8.99 x"; with as many digits as its interval from `low` to `high` needs: "1.024 x"."""
    return _with_unit(x, _ratio_digits(low, high), "x")


def ratio_interval(low: Number, high: Number) -> str:
    """Format an interval of ratios: "8.91 to 9.07 x", "1.021 to 1.027 x", "< 0.001 to > 1,000 x"; "-" when either end
    is missing."""
    if low is None or high is None:
        return MISSING
    digits = _ratio_digits(low, high)
    if digits == MOST_RATIO_DIGITS and low and high and 0 < low < high < math.inf:  # else both ends might look the same
        step = 10.0 ** (math.floor(math.log10(low)) - digits + 1)
        low, high = math.floor(low / step) * step, math.ceil(high / step) * step
    far = low < 1 < high
    first = f"< {number(1 / FAR_RATIO, 1)}" if far and low * FAR_RATIO < 1 else _ratio_end(low, digits)
    last = f"> {count(FAR_RATIO)}" if far and high > FAR_RATIO else _ratio_end(high, digits)
    return f"{first} to {last} x"


def _ratio_end(x: Number, digits: int) -> str:
    """Format an end of an interval, with more digits where it excludes 1 and would read as 1: "1.001"."""
    while x != 1 and float(number(x, digits).replace(",", "")) == 1 and digits < MOST_RATIO_DIGITS:
        digits += 1
    return number(x, digits)


def measured(
    x: Number, low: Number = None, high: Number = None, *, sign: bool = False, least: int = 0, beside: Number = None
) -> str:
    """Format a number in its own unit: with 4 significant digits, or as many decimals as its interval from `low` to
    `high` needs: "2.3104". It has at `least` so many significant digits, or the decimals of a number `beside` it that
    has them. With `sign` it is a difference: "+0.0202"."""
    if (text := not_finite(x)) is not None or x is None:
        return text or MISSING
    largest = max(abs(x), abs(low or 0), abs(high or 0))
    known = low is not None and high is not None and ROUNDING * largest < high - low < math.inf
    places = 1 - _exponent(high - low, 2) if known and low is not None and high is not None else 3 - _exponent(x, 4)
    if known and least and (shown := x if beside is None else beside):
        places = max(places, least - 1 - _exponent(shown, least))
    if places > MOST_PLACES or abs(x) >= 10.0**MOST_PLACES:
        text = f"{x:.{max(0, places + _exponent(x, 4))}e}" if x else "0"
    else:
        text = _to_place(x, places) if known else number(x)
    return f"+{text}" if sign and x > 0 else text


def interval(low: Number, high: Number) -> str:
    """Format an interval as `measured`: "0.190 to 0.214"; empty when either end is missing."""
    return "" if low is None or high is None else f"{measured(low, low, high)} to {measured(high, low, high)}"


def _ratio_digits(low: Number, high: Number) -> int:
    """Return how many significant digits show the width of an interval, 3 to MOST_RATIO_DIGITS. The width is taken in
    logarithms, so that an interval and its mirror image, "1.98 x slower" and 0.504, have equally many."""
    if low is None or high is None or not 0 < low < high < math.inf:
        return 3
    digits = 1 - math.floor(math.log10(math.log(high / low)))
    return min(MOST_RATIO_DIGITS, max(3, digits))


def size(n_bytes: Number) -> str:
    """Format bytes in binary units: "7.10 GiB", "512 MiB", "17 B"."""
    return _scaled(n_bytes, _BINARY, 3, "B")


def loss(x: Number) -> str:
    """Format a loss in nats: "1.7106"; a nan is a finding and shown as "nan"."""
    return not_finite(x) or f"{x:.4f}"


def whole(text: object) -> int | None:
    """Return the number that a text of at most 15 digits is; None for anything else."""
    digits = str(text).strip()
    return int(digits) if re.fullmatch(r"[0-9]{1,15}", digits) else None


def parse_duration(text: str, option: str = "duration") -> float:
    """Parse "90", "90s", "250ms", "2h", "1h30m" or "1.5 h" to seconds; a bare number is seconds.

    Raises: UsageError for anything else, a negative one, or more than MAX_DURATION_S.
    """
    hint = "write it like 90s, 250ms, 15m, 2h or 1h30m"
    cleaned = text.strip()
    if re.fullmatch(r"\d{1,15}(?:\.\d{0,15})?", cleaned, re.ASCII):
        total = float(cleaned)
    else:
        total, at, last = 0.0, 0, math.inf
        while at < len(cleaned):
            part = _DURATION_PART.match(cleaned, at)
            if part is None or _TIME_UNITS[part[2]] >= last:  # large units first, each once
                raise UsageError(f'{option}: "{text}" is not a duration', hint)
            last = _TIME_UNITS[part[2]]
            total, at = total + float(part[1]) * last, part.end()
        if not cleaned:
            raise UsageError(f'{option}: "{text}" is not a duration', hint)
    if total > MAX_DURATION_S:
        raise UsageError(f'{option}: "{text}" is more than ten years', hint)
    return total


def parse_percent(text: str, option: str) -> float:
    """Parse "1%", "0.5 %" or a plain number of percent to a share of 1. Raises: UsageError."""
    try:
        percent = float(text.strip().removesuffix("%"))
    except ValueError:
        percent = 0.0
    if not 0 < percent <= 50:
        raise UsageError(f'{option}: "{text}" is not a percentage up to 50%', f"use for example {option} 1%")
    return percent / 100


def parse_margins(text: str, option: str = "--same-within") -> dict[str, float]:
    """Parse the margin of times, a share of 1 under "", and those of metrics in their units: `1%`, `loss=0.01` or
    `1%,loss=0.01`. Raises: UsageError."""
    margins = {}
    for part in text.split(","):
        name, equals, value = (word.strip() for word in part.rpartition("="))
        example = f"write {option} 1% for the time, loss=0.01 for a metric, or 1%,loss=0.01"
        if name in margins:
            raise UsageError(f"{option} gives {name or 'the time'} two margins", example)
        try:
            margins[name] = float(value) if equals else parse_percent(part, option)
        except (ValueError, UsageError):
            margins[name] = 0.0
        if not (bool(name) == bool(equals) and 0 < margins[name] < math.inf):
            raise UsageError(f'{option}: "{part.strip()}" is not a margin', example)
    return margins


def parse_size(text: str, option: str = "size") -> int:
    """Parse "2GiB", "512M", "10 GB" or "4096" to bytes. K, M, G, T, KiB... are powers of 1024, KB, MB, GB, TB of 1000.

    Raises: UsageError for anything else, or more than MAX_SIZE_BYTES.
    """
    match = _SIZE.fullmatch(text.strip())
    unit = _SIZE_UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise UsageError(f'{option}: "{text}" is not a size', "write it like 2GiB, 512M, 10GB or a number of bytes")
    whole = int(match[1]) * unit if "." not in match[1] else round(float(match[1]) * unit)
    if whole > MAX_SIZE_BYTES:
        raise UsageError(f'{option}: "{text}" is more than a file can hold', "write it like 2GiB or 512M")
    return whole
