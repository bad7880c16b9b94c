"""The observations: what they say, and that none says more than its runs allow."""

from __future__ import annotations

import re
from typing import Any

import pytest

from queue_runner.analysis.comparison import Question, compare
from queue_runner.analysis.findings import Step0, describe, tenths
from queue_runner.analysis.grouping import MAIN
from queue_runner.analysis.reported_run import ReportedRun
from tests.compare_support import in_rounds, row


def said(rows: list[ReportedRun], step0: Step0 | None = None, **more: Any) -> str:
    (family,) = compare(in_rounds(rows), Question((*MAIN, "optimizer", "version"), **more))
    return "\n".join(describe(family, step0 or {}))


def run(device: str | None, compile: int, median_s: float, **more: Any) -> ReportedRun:
    quiet = {
        "real_s": 10.0,
        "n_iters": 50,
        "loss_first": 4.2,
        "loss_last": 2.0,
    }
    return row(device, compile, median_s, **{**quiet, **more})


def test_one_run_each_says_so_in_the_same_sentence() -> None:
    text = said([run("cpu", 0, 1.98434), run("mps", 0, 0.22074), run("mps", 1, 0.30541)])
    assert all(x in text for x in ("mps eager was 8.99", "8.99 x faster", "220.7 vs 1,984", "(1 round)"))
    assert "was 6.50 x faster" in text and "was 1.38 x slower" in text
    assert "about 2 more rounds" in text
    for line in text.splitlines():
        if re.search(r"\d x (faster|slower)", line):
            assert "undecided" in line


def test_what_has_no_verdict_is_measured_and_what_has_one_is() -> None:
    one = said([run("cpu", 0, 0.1), run("mps", 0, 0.2), run("mps", 1, 0.4)])
    assert " is 2.00 x" not in one and "cpu eager was 2.00 x" in one
    assert "compile makes" not in one and "mps compiled was 2.00 x" in one


def test_rows_without_a_device_are_named_by_their_mode() -> None:
    """Logs that name no device: "it compiled was 1.28 x faster" once."""
    text = said([run(None, 0, 0.2), run(None, 1, 0.1)])
    assert "\nundecided: compiled was 2.00 x" in f"\n{text}" and "it compiled" not in text


def test_what_took_as_long_is_neither_faster_nor_slower() -> None:
    text = said([run("cpu", 0, 0.1), run("mps", 0, 0.100001)])
    assert "as fast as" in text and "100.0 vs 100.0 ms" in text
    assert "as fast as" in said([run("cpu", 0, 0.1), run("mps", 0, 0.1003)]), "1.00 x, and 0.997 turned round"


def test_the_interval_of_equal_rows_is_that_of_the_table() -> None:
    """It was turned round, although the sentence names neither of them as slower."""
    rows = [run("cpu", 0, 0.2013 * (1 + k % 3 / 20)) for k in range(6)]
    rows += [run("mps", 0, 0.2014 * (1 + (k + 1) % 3 / 20)) for k in range(6)]
    (family,) = compare(in_rounds(rows), Question(MAIN))
    (pair,) = family.pairs
    (sentence,) = [line for line in describe(family, {}) if "was about as fast as" in line]
    assert pair.ratio < 1 and pair.verdict.interval in sentence


def test_several_rounds_give_an_interval() -> None:
    rows = [run(d, 0, t * (1 + k / 1000)) for d, t in (("cpu", 2.0), ("mps", 0.2)) for k in range(4)]
    text = said(rows)
    assert re.search(r"mps eager is 10\.0+ x", text) and re.search(r"95 % CI \S+ to \S+ x, 4 rounds\)", text)
    assert "undecided" not in text


def test_the_faster_row_comes_first_with_ratio_and_interval_turned_round() -> None:
    """The question which is faster was answered by which is slower."""
    rows = [run(d, 0, t * (1 + k / 1000)) for d, t in (("cpu", 0.2), ("mps", 0.4)) for k in range(4)]
    text = said(rows)
    assert "cpu eager is 2.000 x faster than mps eager, 200.3 vs 400.6 ms" in text
    low, high = map(float, re.search(r"95 % CI (\S+) to (\S+) x", text).groups())  # type: ignore[union-attr]
    assert low <= 2.0 <= high


def test_undecided_and_the_same() -> None:
    noisy = [
        run(d, 0, t) for d, ts in (("cpu", (0.10, 0.12, 0.14, 0.11)), ("mps", (0.12, 0.1, 0.11, 0.14))) for t in ts
    ]
    text = said(noisy)
    assert "was about as fast" in text and "undecided" in text
    steady = [run(d, 0, 0.1 + k * 1e-5 + 1e-8) for d in ("cpu", "mps") for k in range(4)]
    assert "same within 1 %: 1.0000 x" in said(steady)


def test_compilation_pays_or_never_does_where_a_difference_is_shown() -> None:
    def cells(compiled_s: float, n_runs: int) -> list[ReportedRun]:
        eager = [run("cpu", 0, 0.2 + k / 1e4, first_iter_excess_s=1.0) for k in range(n_runs)]
        more = {"first_iter_excess_s": 21.0, "compile_cache": "cold"}
        return eager + [run("cpu", 1, compiled_s + k / 1e4, **more) for k in range(n_runs)]

    costs = "costs 20.0 s"
    assert all(x in said(cells(0.1, 4)) for x in (costs, "cold cache", "pays off after 200"))
    assert all(x in said(cells(0.3, 4)) for x in (costs, "never pays off"))
    for undecided in (cells(0.1, 1), cells(0.2, 4)):
        assert costs in said(undecided) and "pays off" not in said(undecided)
    unknown = [run("cpu", 0, 0.2, first_iter_excess_s=1.0), run("cpu", 1, 0.1, first_iter_excess_s=21.0)]
    assert "compiling" not in said(unknown)


def test_compiled_rows_are_as_fast_or_differ_by_a_number_that_shows_it() -> None:
    noisy = (2.0137, 2.0537, 1.9738, 2.0138)
    rows = [run("cpu", compile, time_s) for compile in (0, 1) for time_s in noisy[:: 1 - 2 * compile]]
    mps = [run("mps", 0, 0.20137 + k % 2 / 1e6) for k in range(4)] + [run("mps", 1, 0.20097) for _ in range(4)]
    assert "1.00 x" not in (text := said([*rows, *mps]))
    assert all(f"as fast on {device} (undecided)" in text for device in ("cpu", "mps"))
    steady = [run("cpu", compile, 2.0137 + k % 2 / 1e5) for compile in (0, 1) for k in range(4)]
    assert "1.0020 x faster on mps" in said([*steady, *mps])


@pytest.mark.parametrize(("median_s", "which"), [(0.1, "only cpu eager"), (None, "no row")])
def test_a_valid_run_without_a_time_is_not_called_invalid(median_s: float | None, which: str) -> None:
    rows = [row("cpu", median_s=median_s), row("mps", median_s=None)]
    assert f"nothing to compare: {which} has a time" in said(rows)


def test_a_cold_cache_on_mps_is_not_metals() -> None:
    """The short report has no footnote about it: only the sentence tells."""
    for state in ("cold", "warm"):
        compiled = run("mps", 1, 0.1, first_iter_excess_s=21.0, compile_cache=state)
        told = said([run("mps", 0, 0.2, first_iter_excess_s=1.0), compiled])
        assert all(x in told for x in ("costs 20.0 s", f"compiler cache {state}", "Metal", "unknown"))


def test_real_time_that_grew_beyond_the_iterations() -> None:
    eager, compiled = run("mps", 0, 0.221, real_s=3588.66), run("mps", 1, 0.3057, real_s=39039.74)
    (line,) = (line for line in said([eager, compiled]).splitlines() if "real time" in line)
    assert "39,039.7 s of mps compiled" in line and "3,588.7 s of mps eager" in line
    assert "10.9" not in line and " x" not in line  # a ratio would need an interval


def test_real_time_is_not_compared_where_the_runs_differ_in_length() -> None:
    text = said([run("mps", 0, 0.2, real_s=10.0), run("mps", 1, 0.2, real_s=99.0, n_iters=500)])
    assert "real time" not in text


@pytest.mark.parametrize(
    ("losses", "dtype", "sentence"),
    [
        ((4.2823, 4.2824), "fp32", "losses before the first step agree within 0.1 %: 4.2823 to 4.2824 (val)"),
        ((4.2823, 4.3500), "fp32", "differ by 1.6 % (tolerance 0.1 %; val): 4.2823 cpu eager, 4.3500 mps eager"),
        ((4.2823, 4.2900), "bf16", "losses before the first step agree within 1 %"),
    ],
)
def test_step_0_losses(losses: tuple[float, float], dtype: str, sentence: str) -> None:
    rows = [run("cpu", 0, 0.2, dtype=dtype), run("mps", 0, 0.1, dtype=dtype)]
    assert sentence in said(rows, {r.run_id: {"val": loss} for r, loss in zip(rows, losses, strict=True)})


@pytest.mark.parametrize(
    "another",
    [{"tokens_per_iter": 1024.0}, {"flops_per_iter": 7e9}],
    ids=["batch size", "model"],
)
def test_another_batch_size_or_model_begins_with_another_loss(another: dict[str, float]) -> None:
    """A sweep of batch_size was told that its rows may not compute the same."""
    work = {"tokens_per_iter": 512.0, "flops_per_iter": 1e9}
    rows = [run("cpu", 0, 0.2, **more) for more in (work, {**work, **another})]
    step0 = {r.run_id: {"on the device": loss} for r, loss in zip(rows, (4.539, 4.5535), strict=True)}
    assert "before the first step" not in said(rows, step0)


def test_a_loss_that_did_not_fall_is_told() -> None:
    text = said([run("cpu", 0, 0.1, loss_last=4.3)])
    assert "did not decrease" in text and "first 4.2000, last 4.3000" in text


def test_what_differs_besides_device_and_mode_is_named() -> None:
    text = said([run("cpu", 0, 0.2), run("mps", 0, 0.1, optimizer="AdamW(fused)", factors={"version": "2.14"})])
    both = "cpu eager: AdamW, unset; mps eager: AdamW(fused), 2.14"
    assert f"optimizer and version ({both})" in text


def test_a_single_row_has_nothing_to_compare() -> None:
    assert said([run("cpu", 0, 0.1)]) == ""


@pytest.mark.parametrize(("x_s", "text"), [(1255.91573, "1,255.9"), (33.01, "33.0"), (0.44, "0.44"), (9.99, "10.0")])
def test_tenths(x_s: float, text: str) -> None:
    assert tenths(x_s) == text


def test_a_loss_of_single_batches_has_no_trend() -> None:
    rising = {"loss_first": 2.0, "loss_last": 2.5}
    assert "did not decrease" in said([run("cpu", 0, 0.1, **rising), run("mps", 0, 0.2)])
    evaluated = [run(device, 0, 0.1, workload="resnet50-eval", **rising) for device in ("cpu", "mps")]
    assert "did not decrease" not in said(evaluated)
