"""Numbers become words in one place, and never with more digits than they have."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queue_runner import units
from queue_runner.errors import UsageError

FORMATTERS = [
    units.number,
    units.count,
    units.short_count,
    units.ms,
    units.short_duration,
    units.duration,
    units.seconds,
    units.flops_per_s,
    units.tflops,
    units.percent,
    units.ratio,
    units.size,
    units.loss,
]


@pytest.mark.parametrize(
    ("x_s", "text"),
    [
        (0.0, "0 s"),
        (12e-9, "12 ns"),
        (12.34e-9, "12.3 ns"),
        (0.5e-6, "500 ns"),
        (2.5e-6, "2.50 µs"),
        (0.22074, "221 ms"),
        (0.9996, "1.00 s"),
        (25.614, "25.6 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 00 s"),
        (65, "1 min 05 s"),
        (3588.66, "59 min 49 s"),
        (3599.7, "1 h 00 min"),
        (3720, "1 h 02 min"),
        (39039.74, "10 h 51 min"),
        (86400 * 3 + 4 * 3600, "3 d 04 h"),
        (-90, "-1 min 30 s"),
    ],
)
def test_durations_for_people(x_s: float, text: str) -> None:
    assert units.duration(x_s) == text


def test_each_quantity_has_its_words() -> None:
    assert units.short_duration(0.22074) == "220.7 ms"
    assert units.short_duration(1.98434) == "1.984 s"
    assert units.ms(1.98434) == "1,984"
    assert units.flops_per_s(5.2725e12) == "5.27 TFLOP/s"
    assert units.flops_per_s(64.3e9) == "64.3 GFLOP/s"
    assert units.tflops(5.2725e12) == "5.27"
    assert units.percent(0.0169) == "1.69 %"
    assert units.percent(1.28) == "128 %"
    assert units.ratio(8.9895) == "8.99 x"
    assert units.ratio(1 / 1.3836) == "0.723 x"
    assert units.ratio_interval(8.913, 9.07) == "8.91 to 9.07 x"
    assert units.ratio_interval(1.021, 1.027) == "1.021 to 1.027 x"
    assert units.ratio_interval(1.02, 1.020000001) == "1.02000 to 1.02001 x"
    assert [units.without_spread(*x) for x in ((0.8077, 0.2), (0.6387, 0.2), (0.9525, 0.02))] == [
        "0.81",
        "0.64",
        "0.95",
    ]
    assert units.without_spread(0.2015, 0.0013) == "0.2015" and units.without_spread(0.2210, 0.0003, 1e-3) == "221.0"
    assert units.ratio_interval(0.626, 0.99944) == "0.626 to 0.999 x"
    assert units.ratio_interval(1.00055, 1.597) == "1.001 to 1.60 x", "1.00 is excluded"
    assert units.ratio_interval(3.12e-12, 4.78e12) == "< 0.001 to > 1,000 x"
    assert units.ratio_interval(0.5, 4.78e12) == "0.500 to > 1,000 x"
    assert units.ratio_interval(1954, 2046.2) == "1,950 to 2,050 x", "a verdict has its interval"
    assert units.size(7.1 * 2**30) == "7.10 GiB"
    assert units.size(512 << 20) == "512 MiB"
    assert units.size(17) == "17 B"
    assert units.count(10_745_088) == "10,745,088"
    assert units.short_count(10_745_088) == "10.75 M"
    assert units.short_count(768) == "768"
    assert units.loss(1.71059) == "1.7106"
    assert units.seconds(3588.66) == "3588.66"


@pytest.mark.parametrize(
    ("x", "spread", "text"),
    [
        (220.74, 0.3, "220.7 ± 0.3 ms"),
        (221, 0.3, "221.0 ± 0.3 ms"),
        (1984.34, 4.6, "1,984 ± 5 ms"),
        (30.52, 1.23, "30.5 ± 1.2 ms"),
        (31.0, 120.0, "30 ± 120 ms"),
        (221.0, 0.0003, "221.0 ± 0.0003 ms"),
        (1.1043, 0.0008, "1.104 ± 0.001 ms"),
        (221.0, 0, "221.0 ms"),
        (1984, 97, "1,980 ± 100 ms"),
        (221.0, None, "221.0 ms"),
        (None, 3, "-"),
        (math.nan, 3, "nan"),
    ],
)
def test_a_value_has_no_more_digits_than_its_spread_supports(x: float | None, spread: float | None, text: str) -> None:
    assert units.plus_minus(x, spread, "ms") == text


@pytest.mark.parametrize(
    ("text", "number"),
    [(" 07\n", 7), ("9" * 15, 10**15 - 1), *((text, None) for text in ("1" * 16, "-1", "1_0", "", None))],
)
def test_a_whole_number_has_digits_alone_and_not_too_many(text: str | None, number: int | None) -> None:
    assert units.whole(text) == number


def test_plus_minus_scales_both() -> None:
    assert units.ms_plus_minus(0.22074, 0.0003) == "220.7 ± 0.3 ms"


@pytest.mark.parametrize("words", FORMATTERS, ids=lambda f: f.__name__)
def test_missing_is_a_dash_and_not_finite_says_so(words) -> None:  # type: ignore[no-untyped-def]
    assert words(None) == "-"
    assert words(math.nan).startswith("nan")
    assert words(math.inf).startswith("inf")
    assert words(-math.inf).startswith("-inf")


@given(st.one_of(st.floats(), st.integers(-(10**400), 10**400)))
def test_every_number_has_words_without_an_exponent(x: float) -> None:
    for words in FORMATTERS:
        assert "e+" not in words(x) and "e-" not in words(x)


@given(st.floats(1e-9, 1e9), st.floats(0, 1e9))
def test_plus_minus_never_fails(x: float, spread: float) -> None:
    assert ("±" in units.plus_minus(x, spread, "ms")) == (spread > 0)


@given(st.floats(1e-6, 1e9))
def test_four_digits_are_within_half_of_the_last_one(x: float) -> None:
    assert float(units.number(x).replace(",", "")) == pytest.approx(x, rel=0.5e-3 + 1e-9)


@pytest.mark.parametrize(
    ("text", "x_s"),
    [
        ("90", 90),
        ("90s", 90),
        ("1.5h", 5400),
        ("1h30m", 5400),
        ("1 h 30 min", 5400),
        ("250ms", 0.25),
        ("2d", 172800),
        ("0", 0),
    ],
)
def test_durations_are_read(text: str, x_s: float) -> None:
    assert units.parse_duration(text) == pytest.approx(x_s)


@pytest.mark.parametrize(
    "text", ["", " ", "h", "-5s", "5 parsecs", "1m1h", "1h1h", "nan", "inf", "1e3", "99999d", "٣s", "1h30"]
)
def test_what_is_no_duration_gets_a_sentence(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        units.parse_duration(text, "--timeout")
    assert "--timeout" in caught.value.message and caught.value.hint


@pytest.mark.parametrize(
    ("text", "n"),
    [
        ("4096", 4096),
        ("2GiB", 2**31),
        ("512M", 512 << 20),
        ("10 GB", 10**10),
        ("1.5k", 1536),
        ("7B", 7),
        ("1TiB", 2**40),
    ],
)
def test_sizes_are_read(text: str, n: int) -> None:
    assert units.parse_size(text) == n


@pytest.mark.parametrize("text", ["", "G", "-1", "2 XB", "1e9", "99999999TB", "9" * 30])
def test_what_is_no_size_gets_a_sentence(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        units.parse_size(text, "--output-limit")
    assert "--output-limit" in caught.value.message and caught.value.hint


@given(st.text("0123456789.hmsudGiBkM -+e٣²", max_size=12))
def test_options_never_crash_the_reader(text: str) -> None:
    for read in (units.parse_duration, units.parse_size):
        try:
            assert read(text) >= 0
        except UsageError:
            pass


def test_a_time_that_passes_has_no_parts_of_seconds() -> None:
    assert [units.rough(x) for x in (0.1, 5.32, 59.6, 7500.0)] == ["0 s", "5 s", "1 min 00 s", "2 h 05 min"]


def test_an_interval_of_rounding_errors_adds_no_digits() -> None:
    """A metric had 18: 2.31040000000000001e+00."""
    x = 2.3104
    assert units.measured(x, x, math.nextafter(x, 3)) == units.measured(x, -1e-17, 1e-17) == "2.310"
    assert units.interval(0.1, math.nextafter(0.1, 1)) == "0.1000 to 0.1000"
    assert units.measured(x, x - 1e-9, x + 1e-9) == "2.3104000000"


def test_tiny_and_huge_metrics_have_an_exponent() -> None:
    assert [units.measured(x) for x in (3.2e-13, -2e15, 0.0)] == ["3.200e-13", "-2.000e+15", "0"]
    assert units.measured(3.21e-13, 3.1e-13, 3.4e-13, sign=True) == "+3.21e-13"
    assert [units.measured(x, 9, 60, least=2) for x in (0.126, 35.4, 120.4)] == ["0.13", "35", "120"], "not 0"
    assert units.interval(3.1e-13, 3.4e-13) == "3.10e-13 to 3.40e-13" and units.measured(0.0, -1e-14, 1e-14) == "0"
