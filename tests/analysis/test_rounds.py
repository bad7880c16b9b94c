"""Which runs form a round, which pairs a question counts, and what the verdict on a pair of rows says."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from queue_runner.analysis.comparison import Family, Question, compare, families, n_words
from queue_runner.analysis.finding import NextStep
from queue_runner.analysis.findings import describe
from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.analysis.rounds import Verdict, Word, mean_interval, rounding_step
from queue_runner.spec import Aim
from tests.compare_support import NAMES, ask, row

pytestmark = pytest.mark.fast
_ids = count(1)
STEADY = (1.0, 1.001, 0.999, 1.0005, 0.9995)


def planned(
    device: str, times: Sequence[float | None], group: int = 1, at: float = 0.0, **more: object
) -> list[ReportedRun]:
    """Return the repeats of a job that start every 2 hours from `at` on; None: the run failed."""
    return [
        row(
            device,
            median_s=time,
            group_id=group,
            repeat=k + 1,
            job_id=next(_ids),
            started_at=(at + 2 * k) * 3600 + 1,
            outcome="SUCCEEDED" if time else "FAILED",
            **more,
        )
        for k, time in enumerate(times)
    ]


def alone(order: str, times: Sequence[float]) -> list[ReportedRun]:
    """Return runs that were submitted one by one: "A" on the cpu, "B" on mps."""
    devices = {"A": "cpu", "B": "mps"}
    return [
        row(devices[letter], median_s=time, job_id=at + 1, group_id=at + 1, repeat=1, started_at=1.0 + at)
        for at, (letter, time) in enumerate(zip(order, times, strict=True))
    ]


def verdict_of(family: Family) -> Verdict:
    (pair,) = family.pairs
    return pair.verdict


def text_of(family: Family) -> str:
    return "\n".join(describe(family, {}))


@pytest.mark.parametrize("n_rounds", [3, 4, 5])
def test_three_rounds_decide_a_large_difference(n_rounds: int) -> None:
    base = [0.2 * x for x in STEADY[:n_rounds]]
    (family,) = ask([*planned("cpu", base), *planned("mps", [x / 2.05 for x in base], at=1)])
    verdict = verdict_of(family)
    assert (verdict.word, verdict.n, verdict.given_after) == (Word.FASTER, n_rounds, 3)
    assert verdict.low is not None and verdict.high is not None and 1 < verdict.low <= verdict.change <= verdict.high
    assert verdict.change == pytest.approx(2.05)


def test_two_rounds_give_a_ratio_and_the_number_of_rounds_that_would_decide() -> None:
    (family,) = ask([*planned("cpu", [0.2, 0.201]), *planned("mps", [0.1, 0.1002], at=1)])
    verdict = verdict_of(family)
    assert (verdict.word, verdict.low, verdict.high) == (Word.UNDECIDED, None, None)
    assert verdict.more is not None and verdict.more >= 1
    assert str(verdict).startswith("undecided (about ")
    assert "was 2.0" in text_of(family) and "undecided" in text_of(family)


def test_a_drift_that_both_rows_share_hides_nothing() -> None:
    """A machine that slows down by 20 % from round to round, and a difference of 3 %."""
    slow = [0.2 * 1.2**k for k in range(6)]
    (family,) = ask([*planned("cpu", slow), *planned("mps", [x / (1.03 + k / 1000) for k, x in enumerate(slow)], at=1)])
    verdict = verdict_of(family)
    assert verdict.word is Word.FASTER and verdict.n == 6
    assert verdict.low is not None and 1 < verdict.low < 1.03 < (verdict.high or 0)


def test_a_pair_in_both_directions_is_one_word_and_mirrors() -> None:
    rows = [*planned("cpu", [0.1 * x for x in STEADY]), *planned("cpu", [0.2 * x for x in STEADY], at=1, compile=1)]
    (family,) = ask([replace(run, compile=k >= 5) for k, run in enumerate(rows)], vs={"compile": True})
    (pair,), (twin,) = family.pairs, family.twins
    assert (pair.verdict.word, twin.verdict.word) == (Word.FASTER, Word.SLOWER)
    assert pair.verdict.low == pytest.approx(1 / (twin.verdict.high or 0))
    assert pair.verdict.value == pytest.approx(twin.verdict.baseline)


def test_hidden_rows_count_as_words() -> None:
    """--where hides ten of twelve rows: the interval is that of all twelve."""
    rows = [*planned("cpu", [0.2 * x for x in STEADY]), *planned("mps", [0.19 * x for x in STEADY[::-1]], at=1)]
    two = verdict_of(ask(rows)[0])
    twelve = verdict_of(ask([replace(run, planned_rows=12, planned_compiled=6) for run in rows])[0])
    assert two.low is not None and twelve.low is not None and twelve.high is not None
    assert twelve.low < two.low < (two.high or 0) < twelve.high


@pytest.mark.parametrize(
    ("hidden", "words"),
    [
        ({"device": "cpu", "job_id": 1}, 3),
        ({"device": "cpu", "job_id": 9}, 3),
        ({"device": "mps", "optimizer": "SGD", "job_id": 1}, 3),
        ({"device": "mps", "optimizer": "SGD", "job_id": 9}, 2),
        ({"device": "mps", "dtype": "bf16", "job_id": 1}, 2),
        ({"device": "cpu", "config": "large", "job_id": 1}, 2),
        ({"device": "cpu", "subject": "other", "job_id": 1}, 2),
    ],
)
def test_hiding_the_baseline_chooses_another_one(hidden: dict[str, Any], words: int) -> None:
    """Whoever hides one row after another compares each with each."""
    rows = [run for k, device in enumerate(("mps", "cuda")) for run in planned(device, [0.1 * (k + 1)] * 3, at=k / 9)]
    rows = [replace(run, job_id=5 + (run.device == "cuda"), planned_rows=3) for run in rows]
    others = [replace(run, **hidden) for run in planned("cpu", [0.4] * 3, at=0.5)]
    question = Question(NAMES)
    (family,) = compare(rows, question, families([*rows, *others], question))
    assert n_words(family) == words


def test_a_part_of_a_question_that_cannot_be_read_whole_counts_each_with_each() -> None:
    rows = [run for k, device in enumerate(("cpu", "mps")) for run in planned(device, [0.1 * (k + 1)] * 3, at=k / 9)]
    (family,) = compare([replace(run, planned_rows=2000) for run in rows], Question(NAMES), [Family({}, [])])
    assert n_words(family) == 2000 * 1999 / 2


def test_another_baseline_counts_all_pairs() -> None:
    rows = [
        run for k, device in enumerate(("cpu", "mps", "cuda")) for run in planned(device, [0.1 * (k + 1)] * 3, at=k / 9)
    ]
    assert n_words(ask(rows)[0]) == 2
    assert n_words(ask(rows, vs={"device": "mps"})[0]) == n_words(ask(rows)[0], each_with_each=True) == 3
    grid = [replace(run, compile=compile) for compile in (0, 1) for run in rows]
    assert n_words(ask(grid)[0]) == 5 + 2


def test_rounds_added_later_continue_the_evidence() -> None:
    base = [0.2 * x for x in STEADY]
    first = [*planned("cpu", base), *planned("mps", base[::-1], at=1)]
    more = [*planned("cpu", base, 2, 50), *planned("mps", base[::-1], 2, 51)]
    before, after = (verdict_of(ask(rows)[0]) for rows in (first, [*first, *more]))
    assert (before.n, after.n) == (5, 10)
    assert (after.low or 0) >= (before.low or 0) and (after.high or 9) <= (before.high or 9)


def test_incomplete_rounds_are_not_compared() -> None:
    base, arm = [0.2 * x for x in STEADY], [0.1, None, 0.1001, 0.1002, 0.0999]
    (family,) = ask([*planned("cpu", base), *planned("mps", arm, at=1)])
    verdict = verdict_of(family)
    assert (verdict.n, verdict.word) == (4, Word.FASTER)
    assert "compared over 4 rounds" in text_of(family)


def test_a_row_that_loses_many_rounds_gets_no_word() -> None:
    """Its slow rounds may be those that were left out."""
    base, arm = [0.2 * x for x in STEADY], [0.1, None, None, 0.1002, 0.0999]
    (family,) = ask([*planned("cpu", base), *planned("mps", arm, at=1)])
    verdict = verdict_of(family)
    assert verdict.word is Word.UNDECIDED and verdict.more is None
    left_out = family.arms[1].left_out[-1].run
    assert verdict.why.startswith("in 2 of 5 rounds") and "of mps eager" in verdict.why
    assert f"mpsq why {left_out} " in verdict.why and "mpsq rerun g1" in verdict.why
    assert verdict.is_final and verdict.why in text_of(family)
    (merged,) = ask([replace(run, merged=1) for run in (*planned("cpu", base), *planned("mps", arm, at=1))])
    assert "rerun" not in verdict_of(merged).why, "runs of a bundle never ran here"


def test_slow_runs_that_were_retried_are_missing() -> None:
    """A time limit and --retries would replace each slow run by a fast one."""
    base = [0.2 * x for x in STEADY]
    slow = planned("mps", [None, None], at=1)
    for outcome, word in (("TIMED_OUT", Word.UNDECIDED), ("FAILED", Word.FASTER)):
        ended = [replace(run, outcome=outcome) for run in slow]
        (family,) = ask([*planned("cpu", base), *planned("mps", [0.1 * x for x in STEADY], at=1), *ended])
        assert verdict_of(family).word is word


def test_a_run_that_never_started_hides_no_slow_round() -> None:
    """A run that a user cancelled in the queue cannot have been slow."""
    base = [0.2 * x for x in (*STEADY, *STEADY)]
    arm = planned("mps", [*(0.1 * x for x in STEADY), *[None] * 5], at=1)
    cancelled = [replace(run, started_at=None, outcome="CANCELLED") for run in arm[5:]]
    (family,) = ask([*planned("cpu", base), *arm[:5], *cancelled])
    assert (verdict_of(family).word, verdict_of(family).n) == (Word.FASTER, 5)


def test_a_round_that_still_runs_is_not_missing() -> None:
    base = [0.2 * x for x in STEADY]
    waiting = [replace(run, state="RUNNING", outcome=None) for run in planned("mps", [None], at=11)]
    running = replace(waiting[0], repeat=6)
    last = replace(planned("cpu", [0.2], at=10)[0], repeat=6)
    (family,) = ask([*planned("cpu", base), *planned("mps", base, at=1), last, running])
    assert verdict_of(family).n == 5 and not verdict_of(family).why


@pytest.mark.parametrize(
    ("order", "n_rounds"),
    [("ABBAABBA", 4), ("ABBABAAB", 4), ("ABBA", 2), ("ABABABAB", 0), ("AAAABBBB", 0), ("BBBA", 0)],
)
def test_runs_of_several_submissions_close_rounds_in_order_of_time(order: str, n_rounds: int) -> None:
    times = [0.2 if letter == "A" else 0.1 for letter in order]
    (family,) = ask(alone(order, [time * (1 + k / 1e4) for k, time in enumerate(times)]))
    verdict = verdict_of(family)
    assert verdict.n == n_rounds
    if not n_rounds:
        assert verdict.word is Word.UNDECIDED and "may favour one side" in verdict.why
        assert verdict.change == pytest.approx(2, rel=0.01)


def test_imported_logs_have_no_order() -> None:
    (family,) = ask([row(device, median_s=t, kind="import") for device, t in (("cpu", 1.98434), ("mps", 0.22074))])
    verdict = verdict_of(family)
    assert verdict.change == pytest.approx(8.99, abs=0.005) and verdict.word is Word.UNDECIDED
    assert "order" in verdict.why


def test_rows_with_several_levels_wait_for_eight_rounds() -> None:
    base = [0.2 * STEADY[k % 5] for k in range(8)]
    rows = [*planned("cpu", base, taints="levels"), *planned("mps", [x / 2 for x in base], at=1)]
    five = [run for run in rows if (run.repeat or 0) <= 5]
    assert verdict_of(ask(five)[0]).word is Word.UNDECIDED and "different speed" in verdict_of(ask(five)[0]).why
    assert (verdict_of(ask(rows)[0]).word, verdict_of(ask(rows)[0]).given_after) == (Word.FASTER, 8)


def test_the_same_within_a_margin() -> None:
    base = [0.2 * x for x in STEADY]
    rows = [*planned("cpu", base), *planned("mps", base[::-1], at=1)]
    assert str(verdict_of(ask(rows)[0])) == "the same within 1 %"
    close = [*planned("cpu", base), *planned("mps", [x * (1.004 + k / 1e5) for k, x in enumerate(base)], at=1)]
    assert re.match("slower .* 1 %", str(verdict_of(ask(close)[0])))
    assert str(verdict_of(ask(close, aim=Aim(margins={"": 0.001}))[0])) == "slower"


def test_rounded_times_give_no_word() -> None:
    """Logs with whole milliseconds: 5 against 5 is not the same, and 5 against 6 in each of three rounds not faster."""
    for other in (0.005, 0.006):
        (family,) = ask([*planned("cpu", [0.005] * 3), *planned("mps", [other] * 3, at=1)])
        assert verdict_of(family).word is Word.UNDECIDED
    assert rounding_step([0.005, 0.006]) == pytest.approx(0.2)
    assert rounding_step([0.0055, 0.006]) == pytest.approx(0.001 / 0.0055)  # the median of 5 and 6 ms
    assert rounding_step([0.22074, 0.1984]) == pytest.approx(1e-5 / 0.1984)
    assert rounding_step([0.220741234, 0.1984]) == 0.0
    assert rounding_step([20e-6, 21e-6]) == pytest.approx(0.05)  # 0.020 and 0.021 ms


def test_one_rounded_row_is_enough_for_a_rounding_step() -> None:
    """A log of whole milliseconds beside a row that was measured: 0.2 ms may be the rounding."""
    base, arm = [0.02] * 5, [0.0198 * x for x in STEADY]
    (family,) = ask([*planned("cpu", base), *planned("mps", arm, at=1)])
    assert verdict_of(family).word is Word.UNDECIDED


def test_the_words_are_seldom_wrong() -> None:
    """Equal rows on a machine with drift and spikes: a look after each round up to 12, with mirrored orders."""
    rng = random.Random(11)
    wrong = 0
    for _ in range(150):
        times = {device: [0.1 * math.exp(rng.gauss(0, 0.02)) for _ in range(12)] for device in ("cpu", "mps")}
        rows = [run for at, (device, xs) in enumerate(times.items()) for run in planned(device, xs, at=at)]
        wrong += verdict_of(ask(rows)[0]).word in (Word.FASTER, Word.SLOWER)
    assert wrong / 150 <= 0.06


def test_the_interval_of_one_row() -> None:
    low, high = mean_interval([0.1 * x for x in STEADY]) or (0.0, 0.0)
    assert low < 0.1 < high < 0.102
    assert mean_interval([0.1, 0.2]) is None
    rng = random.Random(3)
    intervals = [mean_interval([math.exp(rng.gauss(0, 0.05)) for _ in range(5)]) for _ in range(500)]
    assert sum(low <= 1 <= high for low, high in filter(None, intervals)) / 500 >= 0.95


def test_a_word_that_rests_on_disturbed_rounds_says_so() -> None:
    base = [0.2 * x for x in STEADY]
    rows = [*planned("cpu", base), *planned("mps", [x / 2 for x in base], at=1)]
    busy = [replace(run, taints="contended") if run.repeat in (2, 3, 4) else run for run in rows]
    assert verdict_of(ask(busy)[0]).word is Word.FASTER  # disturbed runs count
    text = text_of(ask(busy)[0])
    assert "3 disturbed rounds" in text and "undecided instead of faster" in text
    seldom = [replace(run, taints="battery") if run.repeat == 2 else run for run in rows]
    assert "disturbed" not in text_of(ask(seldom)[0])
    first = [run for run in seldom if (run.repeat or 0) <= 3]  # two rounds have no verdict, whatever they show
    assert verdict_of(ask(first)[0]).word is Word.FASTER and "disturbed" not in text_of(ask(first)[0])


def test_a_margin_is_offered_as_a_command_only_where_that_compares_the_same() -> None:
    """With another baseline, the offered command gave no verdict."""
    rows = [*planned("cpu", [0.1013] * 6), *planned("mps", [0.1013 * (0.98 + k % 3 / 50) for k in range(6)], at=1)]

    def offer(rows: Sequence[ReportedRun], **more: object) -> str:
        (family,) = ask([replace(run, state="DONE") for run in rows], **more)
        (step,) = (line.command for line in describe(family, {}) if isinstance(line, NextStep))
        return step

    whole, option = "mpsq report g1 --same-within 5%", "add --same-within 5%"
    assert offer(rows) == offer(rows, vs={"device": "cpu"}) == whole
    assert offer(rows, vs={"device": "mps"}) == option, "--vs is not in the command"
    assert offer([replace(run, window=(0, 9)) for run in rows]) == option, "nor is --iters"


@pytest.mark.parametrize("speedup", [1.0237, 1.38, 1.98, 7.0])
@pytest.mark.parametrize("sd", [0.0005, 0.005])
def test_the_table_and_the_sentence_have_equally_many_digits(speedup: float, sd: float) -> None:
    rng = random.Random(3)
    times = [[0.1 * scale * math.exp(rng.gauss(0, sd)) for _ in range(8)] for scale in (1, speedup)]
    (family,) = ask([*planned("cpu", times[0]), *planned("mps", times[1])])
    slower = verdict_of(family)
    for shown in (slower.size, slower.mirrored().size):
        assert {len(number.replace(".", "").lstrip("0")) for number in re.findall(r"[\d.]+", shown)} == {digits(slower)}
    assert slower.mirrored().size.partition(" (")[0] in text_of(family)


def digits(verdict: Verdict) -> int:
    assert verdict.low and verdict.high
    return max(3, 1 - math.floor(math.log10(math.log(verdict.high / verdict.low))))


def on(machines: str, times: Sequence[float | None], device: str, at: float = 0.0, **more: object) -> list[ReportedRun]:
    """Return the repeats of a job, each on the machine with this letter."""
    runs = planned(device, times, at=at, **more)
    return [replace(run, machine_hash=machine) for run, machine in zip(runs, machines, strict=True)]


def test_rounds_of_several_machines_of_a_kind_answer_together() -> None:
    """Each ratio is taken within a machine, though b is ten times as fast as a."""
    base = [0.2, 0.02, 0.21, 0.021, 0.2]
    (family,) = ask([*on("abcba", base, "cpu"), *on("abcba", [x / 2.05 for x in base], "mps", at=1)])
    verdict = verdict_of(family)
    assert (verdict.word, verdict.n, verdict.machines) == (Word.FASTER, 5, 3)
    assert verdict.change == pytest.approx(2.05) and "5 rounds on 3 machines" in text_of(family)
    assert [arm.n_machines for arm in family.arms] == [3, 3]


def test_two_machines_do_not_show_what_holds_for_their_kind() -> None:
    base = [0.2 * x for x in STEADY]
    (family,) = ask([*on("ababa", base, "cpu"), *on("ababa", [x / 2.05 for x in base], "mps", at=1)])
    verdict = verdict_of(family)
    assert verdict.word is Word.UNDECIDED and "on a third" in verdict.why and not verdict.is_final


def test_runs_of_two_machines_form_no_round() -> None:
    base = [0.2 * x for x in STEADY]
    (family,) = ask([*on("aaaaa", base, "cpu"), *on("bbbbb", [0.1] * 5, "mps", at=1)])
    assert (verdict_of(family).n, verdict_of(family).word) == (0, Word.UNDECIDED)
    alone_a = [replace(run, machine_hash="a") for run in alone("ABBAABBA", [0.2, 0.1] * 4)]
    mixed = [replace(run, machine_hash="ab"[k % 2]) for k, run in enumerate(alone_a)]
    assert (verdict_of(ask(alone_a)[0]).n, verdict_of(ask(mixed)[0]).n) == (4, 0)


def test_evidence_takes_rounds_by_their_number_and_waits_at_gaps() -> None:
    """The second round is slow: what came after it does not count before it has ended."""
    base = [0.2 * x for x in STEADY]
    rows = [*planned("cpu", base), *planned("mps", [x / 2 for x in base], at=1)]
    late = [replace(run, state="RUNNING", outcome=None, median_s=None) if run.repeat == 2 else run for run in rows]
    assert [verdict_of(ask(some)[0]).n for some in (rows, late)] == [5, 1]
    first = [run for run in rows if (run.repeat or 0) < 3]
    backwards = [replace(run, started_at=1e6 - (run.started_at or 0), ended_at=None) for run in rows]
    assert verdict_of(ask(backwards)[0]).given_after == verdict_of(ask(rows)[0]).given_after == 3
    assert verdict_of(ask(first)[0]).n == 2
    failed = [replace(run, outcome="FAILED", median_s=None) if run.repeat == 2 else run for run in rows]
    assert verdict_of(ask(failed)[0]).n == 4


def test_a_lost_round_counts_where_it_ran_again_whole() -> None:
    base = [0.2 * x for x in STEADY]
    rows = [*on("abcde", base, "cpu"), *on("abcde", [x / 2 for x in base], "mps", at=1)]
    lost = [
        replace(run, outcome="LOST", median_s=None) if (run.repeat, run.device) == (2, "mps") else run for run in rows
    ]
    again = [replace(run, machine_hash="z", started_at=9e5) for run in rows if run.repeat == 2]
    waiting = [replace(run, state="QUEUED", outcome=None, median_s=None, machine_hash=None) for run in again]
    counts = [verdict_of(ask(some)[0]).n for some in (lost, [*lost, *waiting], [*lost, *again])]
    assert counts == [4, 1, 5]
