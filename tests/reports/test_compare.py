"""mpsq compare: two selections of runs side by side."""

from __future__ import annotations

from typing import Any

import pytest

from queue_runner import reports
from queue_runner.analysis.finding import Finding
from queue_runner.errors import UsageError
from queue_runner.reports._common import printing
from queue_runner.reports._common.document import Result
from queue_runner.reports._common.report_options import read_options, read_side
from queue_runner.store import read
from tests.reports.report_fixture import Store
from tests.reports.test_reports import store  # noqa: F401  (fixture)

NOISE = (0.0, 0.002, -0.001, 0.001)


def compare(queue: Store, first: str, second: str, **more: Any) -> Result:
    with read.reading(queue.layout.db) as connection:
        options = read_options(sides=[read_side(first), read_side(second)], **more)
        return reports.run(reports.COMPARE, connection, options)


def lines(result: Result, kind: str) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in result.rows if row["kind"] == kind}


def grid(queue: Store, **values: float) -> None:
    """Add rounds of these values of the setting n, by their median times."""
    for noise in NOISE:
        for value, median_s in values.items():
            queue.run(params={"n": value}, median_s=median_s * (1 + noise))


def test_jobs_of_one_submission_have_words(store: Store) -> None:  # noqa: F811
    grid(store, a=0.1, b=0.2)
    result = compare(store, "1", "2")
    assert lines(result, "differs").keys() == {"n"}
    assert (lines(result, "differs")["n"]["first"], lines(result, "differs")["n"]["second"]) == ("a", "b")
    time = lines(result, "measured")["ms/iter"]
    assert time["verdict"] == "slower" and time["speedup"] == pytest.approx(0.5) and time["low"] < 0.5 < time["high"]
    assert result.families[0].why == "the first side", "compare has no --vs"
    (mirrored,) = [lines(compare(store, "2", "1"), "measured")["ms/iter"]]
    assert mirrored["verdict"] == "faster"


def test_values_name_rows_of_the_newest_submission_with_both(store: Store) -> None:  # noqa: F811
    grid(store, a=0.1, b=0.2)
    by_value, by_job = compare(store, "n=a", "n=b"), compare(store, "1", "2")
    assert by_value.rows == by_job.rows


def test_rows_of_two_groups_are_matched_by_what_they_share(store: Store) -> None:  # noqa: F811
    for group in (1, 2):
        for compiled in (False, True):
            for noise in NOISE:
                store.run(compile=compiled, group=group, median_s=0.1 * group + noise / 10, params={"n": group})
    result = compare(store, "g1", "g2")
    times = [row for row in result.rows if row["name"] == "ms/iter"]
    assert [row["row"] for row in times] == ["eager", "compiled"]
    assert all(row["verdict"] == "undecided" and row["undecided_because"] for row in times)
    assert lines(result, "differs")["n"]["second"] == 2


def test_all_pairs_count(store: Store) -> None:  # noqa: F811
    grid(store, a=0.1, b=0.2)
    few = lines(compare(store, "1", "2"), "measured")["ms/iter"]
    grid(store, c=0.3, d=0.4, e=0.5)
    many = lines(compare(store, "1", "2"), "measured")["ms/iter"]
    assert many["high"] / many["low"] > few["high"] / few["low"]


@pytest.mark.parametrize("others", [{}, {"c": 0.3, "d": 0.35}])
def test_a_pair_has_the_answer_of_the_report_with_that_baseline(store: Store, others: dict[str, float]) -> None:  # noqa: F811
    """It was judged by its own noise alone, so that its interval was another one."""
    grid(store, a=0.1, b=0.2)
    grid(store, **others)
    (reported,) = (row for row in store.report(vs="n=b").rows if row["label"] == "n=a")
    compared = lines(compare(store, "2", "1"), "measured")["ms/iter"]
    keys = [("speedup", "speedup"), ("low", "speedup_low"), ("high", "speedup_high"), ("verdict", "verdict")]
    assert [compared[key] for key, _ in keys] == [reported[key] for _, key in keys]


def test_times_of_more_runs_than_the_ratio_are_named(store: Store) -> None:  # noqa: F811
    """The table had 1.17 and 0.74 s, and 1.73 x between them."""
    grid(store, a=0.1, b=0.2)
    assert not any("complete rounds" in line for line in store.report().lines)
    store.run(params={"n": "b"}, median_s=0.4)
    for result in (store.report(), compare(store, "1", "2")):
        (line,) = (line for line in result.lines if "complete rounds" in line)
        assert "4 rounds" in line and not isinstance(line, Finding), (
            "it stands below the answer, in the short report too"
        )


def test_metrics_of_more_runs_than_the_difference_are_named(store: Store) -> None:  # noqa: F811
    """The table of the report had 6 and 5.75, and +0.25 between them."""
    for name, n_rounds in (("a", 4), ("b", 5)):
        for k in range(n_rounds):
            run = store.run(params={"n": name}, hello={"seed": k})
            store.metric(run, "score", k + (name == "b") * (1 + k % 2) / 4)
    assert any("complete rounds" in line and not isinstance(line, Finding) for line in store.report().lines)
    assert not any("complete rounds" in line for line in compare(store, "1", "2").lines)


@pytest.mark.parametrize("groups", [(1, 1), (1, 2)])
def test_losses_and_metrics_of_other_seeds_are_not_compared(store: Store, groups: tuple[int, int]) -> None:  # noqa: F811
    """A third round, of another seed, counted on one side alone."""
    for group, name, n_rounds in zip(groups, "ab", (2, 3), strict=True):
        for k in range(n_rounds):
            summary = {"loss_last": 2.0 + k}
            run = store.run(params={"n": name}, group=group, hello={"seed": k}, summary=summary)
            store.metric(run, "score", 5.0 + k + (name == "b") / 4)
    result = compare(store, "1", "2")
    measured = lines(result, "measured")
    assert measured["batch loss"]["first"] == measured["batch loss"]["second"] == 2.5
    assert (measured["score"]["first"], measured["score"]["second"]) == (5.5, 5.75)
    assert measured["score"]["difference"] == pytest.approx(0.25)
    (line,) = (line for line in result.lines if "2 seeds" in line)
    assert "score" in line and "batch loss" in line


def test_the_difference_of_a_metric_is_that_of_the_values_beside_it(store: Store) -> None:  # noqa: F811
    """The second side has another run with a seed that both have, in a round of its own."""
    for name, seeds in (("a", (0, 1)), ("b", (0, 1, 1))):
        for seed in seeds:
            run = store.run(params={"n": name}, hello={"seed": seed})
            store.metric(run, "score", 5.0 + seed + (name == "b") / 4)
    score = lines(compare(store, "1", "2"), "measured")["score"]
    assert (score["first"], score["second"], score["difference"]) == (5.5, 5.75, 0.25)


def test_iterations_of_another_size_are_compared_by_their_rate(store: Store) -> None:  # noqa: F811
    """100 and 190 ms stood beside "1.05 x", which is per token."""
    for noise in NOISE:
        for size, median_s in ((8, 0.1), (16, 0.19)):
            store.run(
                params={"batch_size": size}, hello={"tokens_per_iter": 10.0 * size}, median_s=median_s * (1 + noise)
            )
    measured = lines(compare(store, "1", "2"), "measured")
    assert measured["tokens/s"]["verdict"] == "faster" and measured["ms/iter"]["verdict"] is None
    assert measured["tokens/s"]["second"] == pytest.approx(842, rel=0.01)


def test_each_pair_of_two_grids_is_compared_by_its_own_unit_of_work(store: Store) -> None:  # noqa: F811
    """A row without tokens beside rows that differ in them had no verdict and no reason for that."""
    for group in (1, 2):
        for noise in NOISE:
            for size in (8, 16):
                hello = {"tokens_per_iter": 10.0 * size * group if size == 16 else 80.0}
                store.run(params={"batch_size": size}, hello=hello, median_s=0.1 * group + noise / 10, group=group)
            images = {"tokens_per_iter": None, "samples_per_iter": 4}
            store.run(workload="resnet50", hello=images, median_s=0.1 * group + noise / 10, group=group)
    answered = {row["row"]: row["name"] for row in compare(store, "g1", "g2").rows if row["verdict"]}
    assert [*answered.values()] == ["ms/iter", "tokens/s", "ms/iter"] and len(answered) == 3


def test_names_of_commands_are_sides(store: Store) -> None:  # noqa: F811
    names = [f"python train.py --an-option-with-a-long-name=0.00{k}" for k in (1, 2)]
    for noise in NOISE:
        for name in names:
            store.run(name=name, workload=None, argv=("sh", "-c", name), median_s=0.1 + noise)
    result = compare(store, *names)
    text = printing.as_text(reports.COMPARE, result, "table", explain=True)
    assert max(map(len, text.splitlines())) <= 80 and "…" in text
    with pytest.raises(UsageError, match="is on both sides"):
        compare(store, names[0], names[0])


def test_machines_and_code_are_named_and_not_compared(store: Store) -> None:  # noqa: F811
    store.run(params={"n": 1}, software={"code": "a" * 64})
    store.run(params={"n": 2}, software={"code": "b" * 64}, machine={"chip": "another"})
    result = compare(store, "1", "2")
    assert {"code", "machine", "n"} <= lines(result, "differs").keys()
    assert lines(result, "measured")["ms/iter"]["verdict"] is None
    assert any("two machines" in line for line in result.lines)


def test_times_of_two_kinds_are_named(store: Store) -> None:  # noqa: F811
    store.run(exit={"real_s": None})
    store.run(None, None, None, workload=None, framework=None, name="a.py", argv=["a.py"])
    text = "".join(compare(store, "1", "2").lines)
    assert "1 (of one iteration)" in text and "2 (of one run)" in text


def test_rows_of_two_submissions_need_rounds_of_both_together(store: Store) -> None:  # noqa: F811
    """The rounds that it asked for changed nothing where they were those of one submission."""
    for k, group in enumerate((1, 2, 2, 1, 1, 2, 2, 1)):
        store.run(median_s=0.1013 + (k % 3 - group) * 0.0073, group=group, ended_at=1e9 + 10 * k)
    assert any("needed, of both submitted together" in line for line in compare(store, "g1", "g2").lines)


@pytest.mark.parametrize(("first", "second"), [("1", "1.1"), ("1", "n=zzz"), ("1", "99"), ("1", "x y")])
def test_sides_that_cannot_be_compared_are_refused(store: Store, first: str, second: str) -> None:  # noqa: F811
    grid(store, a=0.1, b=0.2)
    with pytest.raises(UsageError) as error:
        compare(store, first, second)
    assert error.value.hint


def test_the_wall_time_of_commands_is_one_number(store: Store) -> None:  # noqa: F811
    """Their median stood beside the geometric mean, and said the opposite."""
    known = {"framework": None, "config": None, "dtype": None, "device": None, "compile": None, "workload": None}
    for name, times in (("a", (0.1, 0.1, 0.4)), ("b", (0.15, 0.15, 0.15))):
        for real_s in times:
            store.run(median_s=None, argv=(name,), name=name, exit={"real_s": real_s}, **known)  # type: ignore[arg-type]
    measured = lines(compare(store, "1", "2"), "measured")
    assert measured["wall s"]["first"] == pytest.approx(0.1587, rel=1e-3) and "real, s" not in measured


def test_rows_without_a_counterpart_come_with_a_command_that_compares_them(store: Store) -> None:  # noqa: F811
    grid(store, a=0.1, b=0.2)
    for k in range(2):
        store.run(params={"n": "c"}, median_s=0.3 + k / 100, group=2)
    (line,) = (line for line in compare(store, "g1", "g2").lines if "on one side only" in line)
    assert "2 rows of g1" in line and "1 row of g2" in line
    _, _, jobs = line.partition("mpsq compare ")
    assert lines(compare(store, *jobs.split()[:2]), "measured").keys() >= {"ms/iter"}


def test_a_side_that_has_not_started_is_to_be_waited_for(store: Store) -> None:  # noqa: F811
    store.run(params={"n": 1})
    store.run(params={"n": 2}, outcome=None, median_s=None)
    store.run(params={"n": 3}, outcome="FAILED", exit_code=1, median_s=None)
    (waits,), (failed,) = (compare(store, "1", other).lines for other in ("2", "3"))
    assert "no valid run yet" in waits and "mpsq why 2.1" in waits
    assert "yet" not in failed and "mpsq why 3.1" in failed


def test_an_open_answer_is_called_undecided_once(store: Store) -> None:  # noqa: F811
    """Its sentence and what would decide it both began with the word."""
    store.run(params={"n": 1}, median_s=0.1)
    store.run(params={"n": 2}, median_s=0.11)
    answer, needs = compare(store, "1", "2").lines
    assert "undecided" in answer and "more rounds needed" in needs and "undecided" not in needs


def test_the_change_is_named_after_its_meaning(store: Store) -> None:  # noqa: F811
    """ "two over one" was read as a ratio of the times, and is a speedup."""
    grid(store, a=0.1, b=0.2)
    titles = [column.title for column in compare(store, "1", "2").sections[1].columns]
    assert "speedup of job 2 (95 % CI)" in titles


def test_a_command_has_a_name_and_is_not_a_workload(store: Store) -> None:  # noqa: F811
    for name in ("one", "two"):
        store.run(name=name, workload=None, argv=("true",), median_s=0.1)
    differs = lines(compare(store, "one", "two"), "differs")
    assert "name" in differs and "workload" not in differs
