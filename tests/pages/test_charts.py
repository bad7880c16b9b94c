"""Places, ticks, dots, time lines and series of the page: numbers in, places in percent out."""

from __future__ import annotations

import math
import random
import re
import tracemalloc
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from queue_runner import units
from queue_runner.analysis import findings
from queue_runner.analysis.comparison import Family
from queue_runner.analysis.finding import Undecided
from queue_runner.pages import axis, dots, iteration_plots, render, timeline, trust
from queue_runner.pages.run_records import RunRecords, gather, of_run
from queue_runner.reports import run
from queue_runner.reports._common.printing import as_text
from queue_runner.reports._common.report_options import read_options
from queue_runner.store import read
from tests.pages.pages_fixture import BEGUN_AT, evening, page_of
from tests.reports.report_fixture import Store

pytestmark = pytest.mark.fast


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "home")


def evidence_of(store: Store, name: str = "devices", **options: Any) -> RunRecords:
    with read.reading(store.layout.db) as connection:
        wanted = read_options(**options)
        return gather(name, run(name, connection, wanted), connection, wanted)


def plots_of(store: Store, **options: Any) -> iteration_plots.Plots:
    with read.reading(store.layout.db) as connection:
        wanted = read_options(**options)
        return iteration_plots.plots(gather("devices", run("devices", connection, wanted), connection, wanted))


def charts_of(store: Store) -> tuple[Family, dots.Chart, dots.Chart]:
    evidence = evidence_of(store)
    (family,) = evidence.families
    forest, chart = dots.forest(family), dots.chart(family, evidence.taints)
    assert forest and chart
    return family, forest, chart


def test_ticks_are_round_and_inside() -> None:
    made = axis.axis([0.0283, 0.0441], units.short_duration)
    assert made and not made.log and "not begin at" in made.about
    assert [tick.text for tick in made.ticks] == ["30 ms", "35 ms", "40 ms"]
    assert all(axis.EDGE <= tick.x <= 100 - axis.EDGE for tick in made.ticks)


def test_far_values_get_a_logarithmic_axis() -> None:
    made = axis.axis([0.02, 0.5], units.short_duration)
    assert made and made.log
    assert made.at(0.02) == axis.EDGE and made.at(0.5) == 100 - axis.EDGE
    assert made.at(0.1) == pytest.approx(50.0, abs=0.1)  # the geometric middle of the two
    assert [tick.text for tick in made.ticks] == ["20 ms", "50 ms", "100 ms", "200 ms", "500 ms"]


def test_a_metric_has_the_digits_that_its_axis_needs() -> None:
    made = axis.axis([1.98, 2.53], units.measured)
    assert made and [tick.text for tick in made.ticks] == ["2", "2.2", "2.4"]
    assert [axis.ticked(text) for text in ("1.200e-10", "100", "+1.000")] == ["1.2e-10", "100", "+1"]


@pytest.mark.parametrize("ratio", [0.05, 6.0])
@pytest.mark.parametrize("seed", range(20))
def test_any_axis_has_few_ticks_that_differ(seed: int, ratio: float) -> None:
    draw = random.Random(seed)
    low = 10 ** draw.uniform(-9, 4)
    made = axis.axis([low, low * 10 ** draw.uniform(ratio / 50, ratio)], units.short_duration)
    assert made and len(made.ticks) <= axis.MOST_TICKS
    places = [tick.x for tick in made.ticks]
    assert places == sorted(set(places))
    assert len({tick.text for tick in made.ticks}) == len(made.ticks)


def test_one_value_and_none() -> None:
    one = axis.axis([3.0], str)
    assert one and one.at(3.0) == 50.0
    zero = axis.axis([0.0], str)
    assert zero and zero.about == "axis from 0"
    assert axis.axis([], str) is None and axis.axis([math.nan, math.inf], str) is None


def _oklab(colour: str) -> list[float]:
    """A colour in the space of Ottosson (2020, A perceptual color space for image processing)."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    red, green, blue = (x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts)
    long = (0.4122214708 * red + 0.5363325363 * green + 0.0514459929 * blue) ** (1 / 3)
    middle = (0.2119034982 * red + 0.6806995451 * green + 0.1073969566 * blue) ** (1 / 3)
    short = (0.0883024619 * red + 0.2817188376 * green + 0.6299787005 * blue) ** (1 / 3)
    return [
        0.2104542553 * long + 0.7936177850 * middle - 0.0040720468 * short,
        1.9779984951 * long - 2.4285922050 * middle + 0.4505937099 * short,
        0.0259040371 * long + 0.7827717662 * middle - 0.8086757660 * short,
    ]


def test_the_colours_of_the_first_rows_differ() -> None:
    """The third was a lighter shade of the first."""
    for scheme in render.asset("style.css").split("@media")[:2]:  # light and dark
        names = dict(re.findall(r"--(\w+): #(\w{6})", scheme))
        colours = [_oklab(names[name]) for name in ("first", "second", "c2", "c3")]
        assert min(math.dist(one, other) for one, other in combinations(colours, 2)) > 0.185
        assert all(math.dist(colour, _oklab(names["ground"])) > 0.3 for colour in colours)


def test_two_runs_have_no_interval_and_the_chart_says_so(store: Store) -> None:
    for k in range(2):
        for device, median_s in (("cpu", 0.2), ("mps", 0.1)):
            store.run(device, False, median_s * (1 + k / 50))
    _, forest, chart = charts_of(store)
    assert all(strip.low is None for strip in (*chart.strips, *forest.strips))
    kinds = [dot.kind for strip in forest.strips for dot in strip.dots]
    assert kinds == ["", "hollow"]  # the baseline, and no word
    (note,) = chart.notes
    assert "each row" in note and "3 valid runs" in note


def test_a_run_that_is_left_out_is_a_cross_and_says_why(store: Store) -> None:
    family, _, far = charts_of(evening(store))
    assert [strip.label for strip in far.strips] == [arm.label for arm in family.arms]
    assert [len(strip.dots) for strip in far.strips] == [5, 5, 5, 4]
    (out,) = [dot for strip in far.strips for dot in strip.dots if dot.kind]
    assert out.kind == "out" and all(x in out.title for x in ("left out", "contended", "40 %"))
    assert any("without a value" in note and note.endswith(": 4.5") for note in far.notes)
    assert far.axis.log and far.title.startswith("time per iteration") and "logarithmic" in far.title


def test_the_forest_has_the_ratio_of_each_row_with_its_interval(store: Store) -> None:
    family, forest, _ = charts_of(evening(store))
    assert [strip.word for strip in forest.strips] == ["baseline", "faster", "faster", "faster"]
    assert forest.zero == forest.axis.at(1.0) == forest.strips[0].dots[0].x
    for strip, pair in zip(forest.strips[1:], family.pairs, strict=True):
        assert strip.low == forest.axis.at(pair.verdict.low or 0) and strip.high == forest.axis.at(
            pair.verdict.high or 0
        )
        assert strip.low < strip.dots[0].x < strip.high and not strip.dots[0].kind and strip.cut == (False, False)
        assert pair.verdict.size in strip.about


def test_of_many_rows_the_fastest_are_drawn(store: Store) -> None:
    """A hundred rows filled ten screens between the answer and its numbers."""
    for n in range(dots.MOST_STRIPS + 20):
        store.run("cpu", False, 0.2 - n / 1e3, params={"width": n})
    family, forest, chart = charts_of(store)
    for drawn in (forest, chart):
        labels = [strip.label for strip in drawn.strips]
        assert labels == [arm.label for arm in (family.arms[0], *family.arms[-dots.MOST_STRIPS + 1 :])]
        assert all(x in drawn.notes[0] for x in ("40 of 60 rows", "fastest"))


def test_needs_that_differ_are_one_range(store: Store) -> None:
    """The status of a sweep named each number of rounds."""
    for k in range(2):
        for n, factor in enumerate((1.0, 1.02, 1.1, 1.5)):
            store.run("cpu", False, 0.2 * factor * (1 + k * n / 100), params={"width": n})
    (family,) = evidence_of(store).families
    numbers = sorted(pair.verdict.more or 0 for pair in family.pairs)
    status = trust.status([family])
    assert status and status.text == f"undecided: about {numbers[0]} to {numbers[-1]} more rounds needed"


def test_only_a_result_without_a_verdict_loses_its_first_word_below_that_status() -> None:
    """A row that a user called "undecided: x" lost its name."""
    named = "undecided: x is 1.5 x faster than y"
    lines = [Undecided("undecided: x was as fast as y", "x was as fast as y").after("A: "), named]
    known = trust.TrustReason("warn", "undecided: about 3 more rounds", undecided=True)
    assert trust.below(known, lines) == ["A: x was as fast as y", named]
    assert trust.below(trust.TrustReason("warn", "1 of 2 decided"), lines) == lines


def test_a_status_names_its_quantity_and_the_others_that_are_undecided(store: Store) -> None:
    """A green "answer" stood above a table that says "undecided" of the time."""
    for k in range(4):
        for device in ("cpu", "mps"):
            run_id = store.run(device, False, 0.1 + (k * (device == "mps") % 3) / 100)
            store.metric(run_id, "val_loss", 2.0 + k / 7e4 + (device == "mps") / 10)
    store.db.execute("UPDATE jobs SET spec_json = json_set(spec_json, '$.seed_by_round', 1)")
    evidence = evidence_of(store, by="val_loss")
    (family,) = evidence.families
    assert {name: x.decided for name, x in family.answers(family.pairs[0]).items()} == {"val_loss": True, "": False}
    status, reason = trust.status([family]), trust.reasons(evidence)[0]
    assert status == trust.TrustReason("good", "val_loss: decided; time: undecided")
    assert reason.kind == "good" and "on val_loss" in reason.text
    with read.reading(store.layout.db) as connection:
        result = run("devices", connection, read_options(by="val_loss"))
    lines = trust.below(status, result.lines)
    assert lines[0].startswith("val_loss of") and not any("faster" in line for line in lines)
    alone = trust.status(evidence_of(store).families)
    assert alone is not None and "time: undecided" in alone.text and "; val_loss: decided" in alone.text


def test_two_rows_that_may_have_the_lowest_loss_leave_the_question_open(store: Store) -> None:
    """Both were below the baseline: "loss: decided" stood in green, and the next step was one about the time."""
    for k in range(5):
        for lr, loss in (("1", 3.0), ("2", 2.0), ("3", 2.001)):
            run_id = store.run("cpu", False, 0.1 + (k * int(lr) % 3) / 100, params={"lr": lr})
            store.metric(run_id, "loss", loss + (k * int(lr) % 4) / 700)
    store.db.execute("UPDATE jobs SET spec_json = json_set(spec_json, '$.seed_by_round', 1)")
    status = trust.status(evidence_of(store, by="loss").families)
    assert status == trust.TrustReason("warn", "loss: the lowest is undecided; time: undecided")
    with read.reading(store.layout.db) as connection:
        reports = [run("devices", connection, read_options(vs=vs, by="loss")) for vs in (None, "lr=2")]
        same = run("devices", connection, read_options(by="loss", same_within="loss=0.02"))
    for result in reports:
        assert any("lr=2 or lr=3; 5 rounds do not tell which" in line for line in result.lines)
        assert any(step.startswith("mpsq rerun g1 --rounds ") for step in result.next_steps)
    assert any(line.startswith("lowest loss: lr=2 and lr=3, the same within 0.02 (") for line in same.lines)
    status = trust.status(same.families)
    assert status is not None and status.kind == "good"
    assert "the lowest is undecided" in trust.reasons(evidence_of(store, by="loss"))[0].text


def test_a_margin_is_offered_with_the_baseline_that_was_named(store: Store) -> None:
    """A user had to guess what to add the option to."""
    for k in range(6):
        for lr in ("1", "2", "3"):
            run_id = store.run("cpu", False, 0.1, params={"lr": lr})
            store.metric(run_id, "loss", 2.0 + (k * int(lr) % 4) / 70)
    store.db.execute("UPDATE jobs SET spec_json = json_set(spec_json, '$.seed_by_round', 1)")
    with read.reading(store.layout.db) as connection:
        result = run("devices", connection, read_options(vs="lr=2", by="loss"))
    text = as_text("devices", result, "table", command="mpsq report g1 --vs lr=2 --same-within 3%")
    assert re.search(r"mpsq report g1 --vs lr=2 --same-within\s+loss=0\.\d+", text), text


def test_a_verdict_that_rests_on_disturbed_rounds_is_doubted(store: Store) -> None:
    """The sentence stood in a closed fold, below a green answer."""
    for k in range(5):
        taints = {"contended": ("caveat", "others used 30 %")} if k in (1, 2, 3) else {}
        for device, s in (("cpu", 0.2), ("mps", 0.1)):
            store.run(device, False, s * (1 + k % 3 / 700), taints=taints)
    reason = trust.reasons(evidence_of(store))[0]
    assert reason.kind == "warn" and "without the 3 disturbed rounds" in reason.text


@pytest.mark.parametrize("doubtful", ["score", "time"])
def test_only_a_doubt_about_the_first_quantity_limits_its_answer(store: Store, doubtful: str) -> None:
    """A doubt about the time limited an answer on a metric, without its name, and none about the metric did."""
    for k in range(8):
        for device in ("cpu", "mps"):
            taints = {"contended": ("caveat", "others used 30 %")} if k >= 4 else {}
            noise = ((k % 2) - 0.5) / 20 if k < 4 else k / 1e4
            changes = {name: (noise + 0.07 if name == doubtful else 0.5 + k / 1e4) for name in ("score", "time")}
            change = {name: x * (device == "mps") for name, x in changes.items()}
            run_id = store.run(device, False, 0.201713 * math.exp(change["time"]), taints=taints)
            store.metric(run_id, "score", change["score"] + k / 10)
    store.db.execute("UPDATE jobs SET spec_json = json_set(spec_json, '$.seed_by_round', 1)")
    evidence = evidence_of(store, by="score")
    reason = trust.reasons(evidence)[0]
    is_first = doubtful == "score"
    assert reason.kind == ("warn" if is_first else "good"), reason.text
    assert ("a verdict on score would change" in reason.text) is is_first
    known = [line for family in evidence.families for line in findings.disturbed(family)]
    assert len(known) == 1 and doubtful in known[0]


def test_an_interval_that_excludes_nothing_does_not_set_the_axis(store: Store) -> None:
    for factor in (1.0, 40.0, 0.03):
        for device, median_s in (("cpu", 0.2), ("mps", 0.2 * factor)):
            store.run(device, False, median_s)
    family, forest, chart = charts_of(store)
    assert (family.pairs[0].verdict.high or 0) > 100
    assert forest.axis.low > 0.05 and forest.axis.high < 20
    assert chart.axis.low > 0.001 and chart.axis.high < 50
    for drawn in (forest, chart):
        assert [strip.cut for strip in drawn.strips] == [(False, False), (True, True)] and len(drawn.notes) == 1


def test_charts_show_the_time_of_a_token_where_it_is_compared(store: Store) -> None:
    for k in range(3):
        for tokens, median_s in ((1000, 0.1), (4000, 0.2)):  # the second takes longer, and is twice as fast per token
            time_s = median_s * (1 + k / 100)
            run_id = store.run(
                "cpu", False, time_s, params={"batch_size": tokens // 1000}, hello={"tokens_per_iter": tokens}
            )
            store.iterations(run_id, [median_s] * 5)
    (family,) = evidence_of(store).families
    assert family.per_work == "token"
    chart = dots.chart(family, {})
    assert chart and chart.title.startswith("time per token")
    slow, fast = chart.strips
    assert fast.dots[0].x < slow.dots[0].x
    (plot,) = plots_of(store).families
    assert plot["unit"] == "token" and {run["dur"][0] for run in plot["runs"]} == {1e-4, 5e-5}


def test_runs_lie_on_the_time_line_where_they_ran(store: Store) -> None:
    evidence = evidence_of(evening(store, 2))
    (course,), n_left = timeline.courses(evidence)
    assert n_left == 0 and len(course.blocks) == 8
    assert [block.kind for block in course.blocks[:5]] == ["c0", "c1", "c2", "c3", "c0 out"]
    assert course.blocks[0].x == 0
    length_s = 8 * 32 - 2
    assert course.blocks[4].x == pytest.approx(100 * 4 * 32 / length_s, abs=0.01)
    assert course.blocks[4].width == pytest.approx(100 * 30 / length_s, abs=0.01)
    assert "contended" in course.blocks[4].title and len(course.notes) == 2, "why a block is pale"
    keys = {sensor.name: sensor.key for sensor in timeline.SENSORS}
    drawn = [keys[line.name] for line in course.lines]
    assert drawn == ["gpu_busy_share", "gpu_temperature_c", "others_cpu_share", "job_cpu_share"]
    assert "to 42 %" in course.lines[2].about


def test_a_line_stops_where_nothing_was_sampled() -> None:
    points = [*((float(t), 0.5) for t in range(10)), *((float(t), 0.5) for t in range(100, 110))]
    path = timeline._path(points, 0.0, 200.0, 0.0, 1.0)
    assert path.count("M") == 2 and path.startswith("M0.0 50.0")


def test_a_line_of_many_samples_is_thinned_in_one_piece() -> None:
    """Thinned neighbours are farther apart than samples are: each was taken for an end, and drawn as a dot."""
    points = [(float(t), 0.2 + t % 5 / 10) for t in range(10_000) if not 4000 <= t < 6000]
    path = timeline._path(points, 0.0, 10_000.0, 0.0, 1.0)
    assert path.count("M") == 2 and 400 < path.count("L") <= timeline.MOST_POINTS


def test_many_samples_keep_their_extremes() -> None:
    points = [(float(t), 1.0 if t == 5001 else 0.2) for t in range(10_000)]
    kept = timeline._thinned(points, 0.0, 10_000.0)
    assert len(kept) <= timeline.MOST_POINTS and (5001.0, 1.0) in kept


@pytest.mark.parametrize(
    ("length_s", "texts"),
    [
        (0.4, ["0 s", "200 ms", "400 ms"]),
        (6.5, ["0", "2 s", "4 s", "6 s"]),
        (640, ["0", "5 min", "10 min"]),
        (9000, ["0", "30 min", "1 h", "1 h 30", "2 h", "2 h 30"]),
        (3 * 86400, ["0", "1 d", "2 d", "3 d"]),
    ],
)
def test_marks_of_time_are_round(length_s: float, texts: Sequence[str]) -> None:
    assert [tick.text for tick in timeline.time_ticks(length_s)] == texts


def test_phases_of_a_run_add_up_to_its_bar(store: Store) -> None:
    bars, _ = timeline.bars(evidence_of(evening(store, 2)))
    first = bars[0]
    assert first.blocks[0].kind == "other" and first.blocks[0].width == 100.0
    parts = {block.kind: block for block in first.blocks[1:]}
    assert parts["measure"].x == pytest.approx(100 * 8 / 30, abs=0.01)
    assert parts["measure"].width == pytest.approx(100 * 18 / 30, abs=0.01)
    ((why,),) = (bar.invalid for bar in bars if bar.invalid)
    assert why.startswith("contended: ") and "40 %" in why
    assert [bar.outcome for bar in bars if bar.outcome] == ["FAILED"]


def test_all_iterations_are_there_where_they_fit(store: Store) -> None:
    """ "All are drawn" stood below a chart that named those outside of its range."""
    made = plots_of(evening(store, 2, 50))
    (family,) = made.families
    assert family["x"] == list(range(51)) and len(family["runs"]) == 7
    assert not any(" are drawn" in note for note in made.notes)
    assert family["outside"] == 7  # the first iteration of each
    (stored,) = store.db.execute("SELECT dur_s FROM iterations WHERE run_id = 1 AND i = 17").fetchone()
    assert family["runs"][0]["dur"][17] == pytest.approx(stored, rel=1e-4)


def test_only_runs_that_are_left_out_are_dashed_and_the_page_says_so(store: Store) -> None:
    """A run that had not ended was dashed, too."""
    store.iterations(store.run("cpu", False, 0.1), [0.1] * 5)
    store.iterations(store.run("cpu", False, None, outcome=None), [0.1] * 3)
    made = plots_of(store)
    assert [run["out"] for run in made.families[0]["runs"]] == [False, False] and not made.notes
    store.iterations(store.run("cpu", False, 0.1, taints={"contended": ("invalid", "others")}), [0.1] * 5)
    made = plots_of(store)
    assert [run["out"] for run in made.families[0]["runs"]] == [False, False, True] and len(made.notes) == 1


def test_too_many_keep_the_extremes_and_the_page_says_so(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iteration_plots, "MOST_POINTS", 400)
    run_id = store.run("cpu", False, 0.1)
    store.iterations(run_id, [9.0 if i == 777 else 0.01 if i == 778 else 0.1 for i in range(1000)])
    made = plots_of(store)
    (family,) = made.families
    (one,) = family["runs"]
    assert len(one["dur"]) == len(family["x"]) == 200  # of every 10 iterations two, for time and loss each
    at = family["x"].index(770)
    assert one["dur"][at : at + 2] == [9.0, 0.01]
    assert all(x in made.notes[0] for x in ("1,000 iterations", "of every 10", "highest"))


def test_the_iterations_of_one_run_are_in_memory_at_a_time(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iteration_plots, "MOST_POINTS", 400)

    def peak_bytes(n_runs: int) -> int:
        monkeypatch.setattr(iteration_plots, "MOST_RUNS", n_runs)
        tracemalloc.start()
        try:
            plots_of(store)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    for _ in range(8):
        store.iterations(store.run("cpu", False, 0.1), [0.1 + i % 7 / 1e3 for i in range(5000)])
    plots_of(store)
    assert peak_bytes(8) < 2 * peak_bytes(1)


def test_a_chart_is_named_by_its_family(store: Store) -> None:
    def ids() -> set[str]:
        return {family["id"] for family in plots_of(store).families}

    before: set[str] = set()
    for n, workload in enumerate(("m", "a", "z"), 1):
        store.iterations(store.run("cpu", False, 0.1, workload=workload), [0.1, 0.2])
        assert len(ids()) == n and before < ids()
        before = ids()


def test_of_too_many_runs_each_row_has_some(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iteration_plots, "MOST_RUNS", 4)
    made = plots_of(evening(store, 3, 20))
    (family,) = made.families
    assert sorted(one["arm"] for one in family["runs"]) == [0, 1, 2, 3]
    assert any("of 12 runs 4" in note for note in made.notes)


def test_losses_that_are_no_numbers_leave_a_gap(store: Store) -> None:
    run_id = store.run("cpu", False, 0.1)
    store.iterations(run_id, [0.1] * 4, losses=[3.0, None, math.inf, 2.0])
    family: Mapping[str, Any] = plots_of(store).families[0]
    assert family["runs"][0]["loss"] == [3.0, None, None, 2.0]


def test_a_line_of_time_begins_where_its_first_run_began(store: Store) -> None:
    evidence = evidence_of(evening(store, 2))
    assert min(run.started_at or 0.0 for run in evidence.runs) == BEGUN_AT


def test_a_row_without_the_metric_that_comes_first_is_not_in_the_forest(store: Store) -> None:
    """The page of its submission could never be shown."""
    for k in range(5):
        store.run("cpu", False, 0.2)
        for device in ("cuda", "mps"):
            store.metric(store.run(device, False, 0.1 + k / 1e5), "score", k + (device == "mps"))
    (family,) = evidence_of(store, by="score", vs="device=cuda").families
    forest = dots.forest(family)
    assert forest is not None and [strip.label for strip in forest.strips] == ["cuda eager", "mps eager"]


def test_the_interval_of_a_metric_that_does_not_differ_is_around_its_zero(store: Store) -> None:
    """The axis went from 0 to 5e-18, and the interval beyond it."""
    for k in range(12):
        for device in ("cuda", "mps"):
            sign = 1 if device == "mps" else -1
            store.metric(store.run(device, False, 0.1 + k / 1e5), "score", 0.5 + sign * (-1) ** k / 100)
    (family,) = evidence_of(store, by="score", vs="device=cuda").families
    forest = dots.forest(family)
    assert forest is not None and abs(family.pairs[0].metrics["score"].change) < 1e-9
    assert forest.zero == pytest.approx(50, abs=1) == forest.strips[1].dots[0].x
    assert not forest.notes and forest.axis.high > 0.01


def test_the_time_line_of_one_run_is_not_called_that_of_its_submission(store: Store) -> None:
    evening(store, 1)
    with read.reading(store.layout.db) as connection:
        (course,), _ = timeline.courses(of_run(connection, 1))
    assert course.title == "run 1.1"
    ((course,), _) = timeline.courses(evidence_of(store))
    assert course.title == "runs of g1"


def test_the_runs_of_a_metric_have_a_mean_and_an_interval(store: Store) -> None:
    """Only those of the time had both."""
    for k in range(4):
        for device in ("cpu", "mps"):
            run_id = store.run(device, False, 0.1)
            store.metric(run_id, "score", -2.0 + k / 100 + (device == "mps"))
    store.db.execute("UPDATE jobs SET spec_json = json_set(spec_json, '$.seed_by_round', 1)")
    (family,) = evidence_of(store, by="score").families
    chart = dots.chart(family, {})
    assert chart is not None
    for strip, mean in zip(chart.strips, (-1.985, -0.985), strict=True):
        assert strip.low is not None and strip.high is not None and strip.middle == chart.axis.at(mean)
        assert strip.low < min(dot.x for dot in strip.dots) < max(dot.x for dot in strip.dots) < strip.high


def test_one_value_needs_no_chart(store: Store) -> None:
    """It stands in the table; a chart of it was an axis around a point."""
    run_id = store.run("cpu", False, 0.1, ended_at=BEGUN_AT + 30)
    store.iterations(run_id, [0.1], losses=[2.0])
    store.courses(run_id, BEGUN_AT, (), [{"others_cpu_share": 0.4}])
    evidence = evidence_of(store)
    (family,) = evidence.families
    assert dots.chart(family, {}) is None
    assert plots_of(store).families == []
    assert timeline.courses(evidence) == ([], 0)
    store.iterations(run_id, [0.1], first=1, losses=[2.0])
    store.run("cpu", False, 0.11)
    assert dots.chart(evidence_of(store).families[0], {}) and plots_of(store).families
    assert "Phases of" not in page_of(store), "no run reported any"
