"""Grouping, baselines, twins and verdicts, without a store."""

from __future__ import annotations

import math

import pytest

from queue_runner.analysis.comparison import Family
from queue_runner.analysis.curves import CurvePoint
from queue_runner.analysis.grouping import Arm, group
from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.analysis.rounds import Word
from queue_runner.errors import UsageError
from queue_runner.reports._common.report_options import read_options
from tests.compare_support import NAMES, ask, row


def labels(family: Family) -> list[str]:
    return [arm.label for arm in family.arms]


def by_label(family: Family) -> dict[str, Arm]:
    return {arm.label: arm for arm in family.arms}


def test_cells_come_cpu_first_and_eager_before_compiled() -> None:
    (family,) = ask([row("mps", 1), row("mps", 0), row("cpu", 1), row("cpu", 0)])
    assert labels(family) == ["cpu eager", "cpu compiled", "mps eager", "mps compiled"]


def test_a_label_has_only_what_differs() -> None:
    (family,) = ask([row("mps", dtype="fp32"), row("mps", dtype="bf16"), row("cpu", dtype="fp32")])
    assert labels(family) == ["cpu eager fp32", "mps eager fp32", "mps eager bf16"]


def test_details_are_in_a_label_only_where_two_rows_would_look_alike() -> None:
    (family,) = ask([row("cpu", optimizer="AdamW"), row("mps", optimizer="AdamW(fused)")])
    assert labels(family) == ["cpu eager", "mps eager"]
    (family,) = ask([row("mps", optimizer="AdamW"), row("mps", optimizer="AdamW(fused)")])
    assert labels(family) == ["mps eager AdamW", "mps eager AdamW(fused)"]


def test_labels_are_unique_even_where_a_setting_is_missing() -> None:
    rows = [row(factors={"n_layer": 4}), row(factors={})]
    (family,) = ask(rows, vs={"n_layer": "4"})
    assert sorted(labels(family)) == ["cpu eager", "cpu eager n_layer=4"]


def test_runs_of_two_machines_configs_or_workloads_are_never_compared() -> None:
    rows = [row("cpu"), row("mps"), row("mps", machine="other"), row("mps", config="big"), row("mps", subject="bert")]
    families = ask(rows)
    assert len(families) == 4
    assert sum(len(family.pairs) for family in families) == 1


def test_workloads_that_do_the_same_work_are_compared_where_the_baseline_names_one() -> None:
    work = {"flops_per_iter": 1e9}
    rows = [row(**work), row(subject="lightning_gpt", median_s=0.2, **work), row(subject="bert", flops_per_iter=2e9)]
    assert len(ask(rows)) == 3
    other, same = sorted(ask(rows, vs={"subject": "nanogpt"}), key=lambda family: len(family.arms))
    assert labels(same) == ["cpu eager lightning_gpt", "cpu eager nanogpt"] and len(other.arms) == 1
    assert [pair.verdict.change for pair in same.pairs] == pytest.approx([0.5])


def test_settings_stay_within_a_family_unless_the_baseline_names_them() -> None:
    rows = [row("cpu", factors={"n_layer": n}) for n in (2, 4)]
    assert len(ask(rows)) == 2
    (family,) = ask(rows, vs={"n_layer": "2"})
    assert [pair.arm.key["n_layer"] for pair in family.pairs] == [4]


@pytest.mark.parametrize(
    ("rows", "baseline", "why"),
    [
        ([row("mps", 0, 0.1), row("cpu", 0, 0.2), row("cpu", 1, 0.3)], "cpu eager", "--vs selects another"),
        ([row("mps", 0, 0.1), row("cuda", 0, 0.2), row("cuda", 1, 0.3)], "mps eager", "the first eager row submitted"),
        ([row("mps", 1, 0.2), row("cuda", 1, 0.1)], "mps compiled", "the first row submitted;"),
        (
            [row("cuda", 1, 0.1), row("cuda", 1, 0.2, framework="jax")],
            "cuda compiled torch",
            "the first row of torch submitted;",
        ),
        ([row("cpu", 0, 0.1, dtype="bf16"), row("cpu", 0, 0.05)], "cpu eager fp32", "--vs selects another"),
    ],
)
def test_the_default_baseline(rows: list[ReportedRun], baseline: str, why: str) -> None:
    (family,) = ask(rows)
    assert family.baseline is not None and family.baseline.label == baseline
    assert family.why.startswith(why)


def test_a_baseline_that_is_no_row_or_several_is_an_error_that_says_which_there_are() -> None:
    rows = [row("cpu", 0), row("cpu", 1), row("mps", 0)]
    with pytest.raises(UsageError, match="device=cuda matches none of the rows") as error:
        ask(rows, vs={"device": "cuda"})
    assert all(x in error.value.hint for x in ("cpu eager", "cpu compiled", "mps eager"))
    with pytest.raises(UsageError, match="matches 2 rows: cpu eager, cpu compiled") as error:
        ask(rows, vs={"device": "cpu"})
    assert "device=cpu,compile=off" in error.value.hint


def test_one_run_each_gives_the_plain_ratio_and_no_verdict() -> None:
    (family,) = ask([row("cpu", 0, 1.98434), row("mps", 0, 0.22074)])
    (pair,) = family.pairs
    assert pair.ratio == pytest.approx(1.98434 / 0.22074)
    assert pair.verdict.word is Word.UNDECIDED and pair.verdict.low is None and pair.verdict.more == 2


def grid(n_runs: int) -> list[ReportedRun]:
    """2 x 2 cells of which compiled is 1.3 times slower and mps 10 times faster."""
    cells = [(d, c, t * (1.3 if c else 1)) for d, t in (("cpu", 2.0), ("mps", 0.2)) for c in (0, 1)]
    return [row(d, c, t * (1 + k / 1000)) for d, c, t in cells for k in range(n_runs)]


def test_four_rounds_of_a_grid_give_all_its_verdicts() -> None:
    (family,) = ask(grid(4))
    assert [pair.verdict.word for pair in family.pairs] == [Word.SLOWER, Word.FASTER, Word.FASTER]
    assert [pair.verdict.word for pair in family.twins] == [Word.SLOWER, Word.SLOWER]
    assert family.twins[0].verdict == family.pairs[0].verdict
    judged = [pair.verdict for pair in [*family.pairs, *family.twins]]
    assert all(v.low is not None and v.high is not None and v.low <= v.change <= v.high for v in judged)


def test_the_default_baseline_is_not_chosen_by_its_time() -> None:
    """The slowest of 12 equal rows seems slow in 8 to 9 % of families."""
    times = [0.1, 0.12, 0.11]
    for order in (times, times[::-1]):
        rows = [row("cuda", median_s=time, optimizer=f"o{k}", job_id=k) for k, time in enumerate(order)]
        (family,) = ask(rows)
        assert family.baseline is not None and family.baseline.median_s == pytest.approx(order[0])
        assert family.why.startswith("the first eager")


@pytest.mark.parametrize(("text", "margin"), [("1%", 0.01), ("0.5 %", 0.005), ("2", 0.02)])
def test_same_within(text: str, margin: float) -> None:
    assert read_options(same_within=text).aim.margins == {"": pytest.approx(margin)}
    for wrong in ("x", "0%", "-1%", "80%", "nan%"):
        with pytest.raises(UsageError, match="same-within"):
            read_options(same_within=wrong)


def test_invalid_and_failed_runs_do_not_count_unless_asked_for() -> None:
    rows = [row("cpu", 0, 0.1), row("cpu", 0, 0.5, valid=0), row("cpu", 0, 0.9, outcome="FAILED")]
    (cell,) = group(rows, NAMES)
    assert cell.times == [0.1] and len(cell.left_out) == 2 and len(cell.ended) == 3
    (cell,) = group(rows, NAMES, include_invalid=True)
    assert sorted(cell.times) == [0.1, 0.5, 0.9]


def test_a_cell_of_invalid_runs_alone_shows_their_numbers_and_compares_nothing() -> None:
    (family,) = ask([row("cpu", 0, 0.1), row("mps", 0, 0.05, valid=0)])
    cell = by_label(family)["mps eager"]
    assert cell.median_s == 0.05 and cell.times == [] and not family.pairs


def test_a_run_without_numbers_goes_with_its_question() -> None:
    """It failed before it could say what `auto` was."""
    good = row("mps", spec_hash="q")
    bad = row("auto", 0, None, spec_hash="q", outcome="FAILED", optimizer=None)
    (cell,) = group([bad, good], NAMES)
    assert len(cell.runs) == 2 and cell.key["device"] == "mps"


def test_a_run_without_numbers_joins_no_row_of_another_name() -> None:
    """One command in two folders has one spec; mpsq judge and --from name its rows."""
    good = row(spec_hash="q", name="champion", subject="champion")
    bad = row(None, 0, None, spec_hash="q", outcome="FAILED", name="candidate", subject="candidate")
    assert [len(arm.runs) for arm in group([bad, good], NAMES)] == [1, 1]


def test_the_spread_is_over_runs_where_there_are_several() -> None:
    (cell,) = group([row(median_s=0.1, mad_s=0.007)], NAMES)
    assert cell.spread_s == (0.007, "iterations")
    (cell,) = group([row(median_s=t) for t in (0.1, 0.2, 0.4)], NAMES)
    assert cell.spread_s == (pytest.approx(0.2 * math.log(2)), "runs")


def test_most_runs_lie_within_the_spread_around_the_mean() -> None:
    """A MAD around a geometric mean held none of these four: 30.5 ± 0.7."""
    times_s = (44.4e-3, 27.5e-3, 27.2e-3, 26.1e-3)
    (arm,) = group([row(median_s=time_s) for time_s in times_s], NAMES)
    spread_s, _ = arm.spread_s
    assert arm.median_s is not None and spread_s is not None
    assert sum(abs(time_s - arm.median_s) <= spread_s for time_s in times_s) == 3


def test_the_noise_of_a_point_is_a_standard_deviation() -> None:
    """Over runs the spread is one already; the MAD of one run's iterations estimates it."""
    several, alone = (
        group(runs, NAMES)[0] for runs in ([row(median_s=t) for t in (0.1, 0.11, 0.12)], [row(mad_s=0.001)])
    )
    for arm, noise in ((several, 0.0912), (alone, 0.0148)):
        assert CurvePoint(arm.key, arm.runs, arm.used).noise == pytest.approx(noise, abs=1e-4)


def test_iterations_of_different_size_are_compared_per_token() -> None:
    twice = row(median_s=0.15, tokens_per_iter=200.0, factors={"n_layer": 2})
    rows = [row(median_s=0.1, factors={"n_layer": 1}), twice]
    (family,) = ask(rows, vs={"n_layer": "1"})
    assert family.per_work and family.pairs[0].ratio == pytest.approx(2 / 1.5)


def test_compile_cost_is_over_the_eager_twin_and_by_state_of_the_cache() -> None:
    rows = [row("mps", 0, 0.2, first_iter_excess_s=0.5)]
    rows += [row("mps", 1, 0.1, first_iter_excess_s=e, compile_cache=c) for e, c in ((20.5, "cold"), (3.5, "warm"))]
    (family,) = ask(rows)
    cell = by_label(family)["mps compiled"]
    twin = family.twin(cell)
    assert twin is by_label(family)["mps eager"]
    assert cell.main_cache == "cold" and cell.compile_cost_s(twin, "cold") == 20.0
    assert cell.compile_cost_s(twin, "warm") == 3.0
    assert cell.break_even_iters(twin, 20.0) == pytest.approx(200)
    assert twin.break_even_iters(cell, 20.0) is None


def test_where_the_state_of_the_cache_is_unknown_there_is_no_compile_cost() -> None:
    """Of commands a cold start and warm ones were mixed: 3.7 s told, 38 s true."""
    rows = [row("mps", 0, 0.2, first_iter_excess_s=0.5)]
    rows += [row("mps", 1, 0.1, first_iter_excess_s=e, compile_cache=None) for e in (38.5, 4.2, 4.1)]
    (family,) = ask(rows)
    cell = by_label(family)["mps compiled"]
    assert cell.main_cache is None and cell.compile_cost_s(family.twin(cell), None) is None


def test_without_a_twin_there_is_no_compile_cost() -> None:
    (family,) = ask([row("mps", 1)])
    assert family.twin(family.arms[0]) is None and family.arms[0].compile_cost_s(None, "cold") is None
