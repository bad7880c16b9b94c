"""What a candidate's rounds decide: the rule by itself, and on the runs that a submission has."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from queue_runner.analysis.comparison import Family
from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.referee import evidence
from queue_runner.referee.decision import FIRST_FUTILE, FIRST_LOST, Choice, Gain, Way, decide
from queue_runner.referee.goal import NAME, Rule, judged, look
from queue_runner.spec import Aim
from tests.compare_support import ask, row
from tests.simulate import judging
from tests.simulate.judging import CANDIDATES, Rates

pytestmark = pytest.mark.fast
BOTH = tuple(Way)
ROUNDS = 16


def gain(low: float, high: float, at: float | None = None) -> Gain:
    """Return a gain with this interval, a margin of 2 and a least gain of 1."""
    return Gain(gain=(low + high) / 2 if at is None else at, low=low, high=high, margin=2.0, least=1.0)


@pytest.mark.parametrize(
    ("ways", "time", "quality", "answer"),
    [
        (BOTH, gain(1, 3), gain(-1, 1), Choice.KEEP),
        (BOTH, gain(1, 3), gain(-3, 1, 0), Choice.UNDECIDED),
        (BOTH, gain(1, 3), gain(-5, -3), Choice.DISCARD),
        (BOTH, gain(-1, 1), gain(1, 3), Choice.KEEP),
        (BOTH, gain(-5, -3), gain(1, 3), Choice.DISCARD),
        (BOTH, gain(-3, -1), gain(-3, -1), Choice.DISCARD),
        (BOTH, gain(-9, 9, 0.6), gain(-9, 9, 0.0), Choice.UNDECIDED),
        (BOTH, gain(-9, 9, 0.4), gain(-9, 9, 0.4), Choice.DISCARD),
        ((Way.FASTER,), gain(-1, 1, 0.0), gain(1, 3), Choice.DISCARD),
        ((Way.BETTER,), gain(1, 3), gain(-1, 1, 0.0), Choice.DISCARD),
        ((Way.FASTER,), gain(1, 3), None, Choice.KEEP),
        ((Way.BETTER,), None, gain(1, 3), Choice.KEEP),
    ],
)
def test_two_ways_to_be_kept(ways: Sequence[Way], time: Gain | None, quality: Gain | None, answer: Choice) -> None:
    decision = decide(FIRST_FUTILE, ways, time, quality)
    assert decision.choice is answer and decision.reasons


def test_a_small_estimate_closes_a_way_only_from_the_fourth_round_on() -> None:
    answers = [decide(n, (Way.FASTER,), gain(-9, 9, 0.0), None).choice for n in (FIRST_FUTILE - 1, FIRST_FUTILE)]
    assert answers == [Choice.UNDECIDED, Choice.DISCARD]


def test_a_small_estimate_in_much_noise_discards_nothing() -> None:
    """Ten times the least gain is possible, and after some rounds more of them are useless."""
    noisy = gain(-30, 30, 0.0)
    answers = [decide(n, (Way.FASTER,), noisy, None) for n in (FIRST_FUTILE, FIRST_LOST - 1, FIRST_LOST)]
    assert [answer.choice for answer in answers] == [Choice.UNDECIDED] * 3
    assert [answer.is_final for answer in answers] == [False, False, True]
    assert "not exclude 10 times" in answers[-1].reasons[0]
    assert decide(FIRST_LOST, (Way.FASTER,), gain(-30, 30, 0.6), None).is_final is False


def test_a_loss_in_much_noise_is_not_seen_by_an_estimate() -> None:
    better = gain(1, 3)
    answers = [decide(FIRST_FUTILE, (Way.BETTER,), gain(-7, high), better).choice for high in (2, 2.5)]
    assert answers == [Choice.DISCARD, Choice.UNDECIDED]


# -- on the runs of a submission --------------------------------------------------------------------------------------


def runs(name: str, times: Sequence[float | None], metric: Sequence[float | None], **more: Any) -> list[ReportedRun]:
    """Return the runs of a row, one a round. A time of None is a run that failed, a metric of None one that is not
    printed."""
    return [
        row(
            median_s=time,
            name=name,
            subject=name,
            kind="command",
            spec_hash="same",
            swept=frozenset({"subject"}),
            group_id=1,
            repeat=number,
            started_at=10.0 * number + (name == "candidate"),
            seed_by_round=True,
            log_metrics_json='{"loss": "loss (.*)"}',
            metrics={} if x is None else {"loss": x},
            **{"outcome": "SUCCEEDED" if time else "FAILED", "exit_code": None if time else 1, **more},
        )
        for number, (time, x) in enumerate(zip(times, metric, strict=True), start=1)
    ]


def noisy(mean: float, spread: float, seed: int, n: int = ROUNDS) -> list[float]:
    return [random.Random(seed + number).gauss(mean, spread) for number in range(n)]


CHAMPION = runs("champion", noisy(1.0, 0.001, 1), noisy(3.0, 0.01, 100))


def families(candidate: Sequence[ReportedRun], champion: Sequence[ReportedRun] = CHAMPION, **more: Any) -> list[Family]:
    return ask([*champion, *candidate], sweeps=True, **more)


def decided(
    times: Sequence[float | None], metric: Sequence[float | None], rule: Rule | None = None, **more: Any
) -> tuple[Choice, str]:
    decision, *_ = judged(families(runs("candidate", times, metric), **more), rule or Rule(metric="loss"))
    return decision.choice, "; ".join(decision.reasons)


def test_a_faster_candidate_is_kept_if_its_metric_is_within_the_margin() -> None:
    times = noisy(0.9, 0.001, 50)
    answer, reasons = decided(times, noisy(3.0, 0.01, 200))
    assert answer is Choice.KEEP and "candidate is faster: 1.1" in reasons and "is not higher" in reasons
    answer, reasons = decided(times, noisy(3.2, 0.01, 200))
    assert answer is Choice.DISCARD and "loss is higher" in reasons
    assert decided(times, noisy(3.2, 0.01, 200), aim=Aim(margins={"loss": 0.5}))[0] is Choice.KEEP
    assert decided(times, noisy(3.2, 0.01, 200), Rule(metric="loss", higher=True))[0] is Choice.KEEP


def test_a_better_candidate_is_kept_at_no_more_time() -> None:
    better = noisy(2.9, 0.01, 200)
    assert decided(noisy(1.0, 0.001, 50), better)[0] is Choice.KEEP
    answer, reasons = decided(noisy(1.2, 0.001, 50), better)
    assert answer is Choice.DISCARD and "is slower by" in reasons and "1.00 %" in reasons
    assert decided(noisy(1.2, 0.001, 50), better, Rule((Way.BETTER,), "loss", timed=False))[0] is Choice.KEEP


def test_the_default_margin_of_the_time_has_a_limit() -> None:
    champion = runs("champion", noisy(1.0, 0.15, 1), noisy(3.0, 0.01, 100))
    candidate = runs("candidate", noisy(1.0, 0.15, 50), noisy(2.9, 0.01, 200))
    decision, *_ = judged(families(candidate, champion), Rule(metric="loss"))
    assert decision.choice is Choice.UNDECIDED and "less than 10.0 %" in " ".join(decision.reasons), decision


def test_the_least_gain_is_the_margin_or_the_one_given() -> None:
    """Lower by one spread is not worth the rounds, unless somebody says so."""
    times, slightly = noisy(1.0, 0.001, 50, 5), noisy(2.995, 0.01, 300, 5)
    champion = runs("champion", noisy(1.0, 0.001, 1, 5), noisy(3.0, 0.01, 100, 5))
    answers: Mapping[float | None, Choice] = {
        least: judged(
            families(runs("candidate", times, slightly), champion),
            Rule(metric="loss", least={"": 0.01} | ({} if least is None else {"loss": least})),
        )[0].choice
        for least in (None, 0.0001)
    }
    assert answers == {None: Choice.DISCARD, 0.0001: Choice.UNDECIDED}


def test_a_failure_of_the_candidate_discards_it_and_one_of_the_champion_says_nothing() -> None:
    times, metric = noisy(0.9, 0.001, 50, 1), noisy(3.0, 0.01, 200, 1)
    good = {name: runs(name, times, metric) for name in ("champion", "candidate")}
    bad = {name: runs(name, [None], [None]) for name in ("champion", "candidate")}
    lost = runs("candidate", [None], [None], outcome="LOST", exit_code=None)
    full = runs("candidate", [None], [None], outcome="DISK_FULL", exit_code=None)
    silent = {name: runs(name, times, [None]) for name in ("champion", "candidate")}
    cases = [
        (good["champion"], bad["candidate"], Choice.DISCARD, True, "candidate did not succeed in round 1, FAILED(1)"),
        (bad["champion"], good["candidate"], Choice.UNDECIDED, True, "champion did not succeed"),
        (bad["champion"], bad["candidate"], Choice.UNDECIDED, True, "champion did not succeed"),
        (good["champion"], lost, Choice.UNDECIDED, False, ""),
        (good["champion"], full, Choice.UNDECIDED, True, "candidate did not run in round 1, DISK_FULL"),
        (good["champion"], silent["candidate"], Choice.DISCARD, True, "candidate printed no number for loss"),
        (silent["champion"], silent["candidate"], Choice.UNDECIDED, True, "champion printed no number for loss"),
    ]
    for champion, candidate, answer, is_final, reason in cases:
        decision, *_ = judged(families(candidate, champion), Rule(metric="loss"))
        assert decision.choice == answer and reason in decision.reasons[0], decision
        assert bool(look(families(candidate, champion), Rule(metric="loss").to_goal(NAME))) == is_final


def test_a_diverged_loss_whose_square_overflows_is_none() -> None:
    answer, reasons = decided(noisy(0.9, 0.001, 50), [1e308, -1e308] * (ROUNDS // 2))
    assert answer is Choice.DISCARD and "candidate printed no" in reasons


@pytest.mark.parametrize(
    ("mark", "what"),
    [("diverged", "diverged"), ("wrong_loss", "computed a wrong loss"), ("unobserved", "reported no iteration")],
)
def test_a_row_whose_runs_never_count_ends_the_judgement_at_once(mark: str, what: str) -> None:
    good = {name: runs(name, [1.0], [3.0]) for name in ("champion", "candidate")}
    wrong = {name: runs(name, [1.0], [3.0], taints=mark, valid=False) for name in good}
    for champion, candidate, answer, role in (
        (good["champion"], wrong["candidate"], Choice.DISCARD, "candidate"),
        (wrong["champion"], good["candidate"], Choice.UNDECIDED, "champion"),
    ):
        decision, *_ = judged(families(candidate, champion), Rule(metric="loss"))
        assert decision.choice is answer and decision.is_final, decision
        assert f"{role} {what} in round 1: " in decision.reasons[0] and "mpsq show" in decision.reasons[0]


def test_a_program_that_ignores_the_seed_is_not_judged_by_its_metric() -> None:
    champion = runs("champion", noisy(1.0, 0.001, 1), [3.0] * ROUNDS)
    candidate = runs("candidate", noisy(0.9, 0.001, 50), [2.0] * ROUNDS)
    decision, *_ = judged(families(candidate, champion), Rule(metric="loss"))
    assert decision.choice is Choice.UNDECIDED and decision.is_final and "MPSQ_SEED" in decision.reasons[0]


@pytest.mark.parametrize(
    ("role", "outcome"), [("champion", "FAILED"), ("candidate", "DISK_FULL"), ("champion", "CODE_CHANGED")]
)
def test_a_retry_that_succeeded_replaces_the_run_that_did_not(role: str, outcome: str) -> None:
    candidate = runs("candidate", noisy(0.9, 0.001, 50), noisy(3.0, 0.01, 200))
    retried = {"champion": CHAMPION, "candidate": candidate}
    failed = runs(role, [None], [None], outcome=outcome)
    retried[role] = [*failed, *(run.changed(run_id=run.run_id + 1_000_000) for run in retried[role])]
    decision, *_ = judged(families(retried["candidate"], retried["champion"]), Rule(metric="loss"))
    assert decision.choice is Choice.KEEP, decision


def test_the_worker_ends_the_rounds_with_the_same_decision() -> None:
    rule = Rule(metric="loss", least={"": 0.02, "loss": 0.001})
    goal = rule.to_goal(NAME)
    assert goal.split()[0] == NAME and Rule.from_goal(goal) == rule
    faster = families(runs("candidate", noisy(0.9, 0.001, 50), noisy(3.0, 0.01, 200)))
    assert look(faster, goal).startswith("keep: ")
    first = families(runs("candidate", noisy(0.9, 0.001, 50, 2), noisy(3.0, 0.01, 200, 2)))
    assert look(first, goal) == ""
    assert evidence.pair(first) is not None


def test_rows_are_compared_whatever_they_say_of_their_device() -> None:
    """The candidate would be the baseline of the report: on the CPU."""
    champion = runs("champion", noisy(1.0, 0.001, 1), noisy(3.0, 0.01, 100), device="mps")
    candidate = runs("candidate", noisy(0.9, 0.001, 50), noisy(3.0, 0.01, 200), device="cpu")
    decision, *_ = judged(families(candidate, champion), Rule(metric="loss"))
    assert decision.choice is Choice.KEEP, decision


def test_a_candidate_that_renames_its_slow_rounds_is_judged_by_all() -> None:
    times = [0.9 if number % 2 else 1.1 for number in range(ROUNDS)]
    rows = [
        run.changed(
            swept=frozenset({"subject", "config"}),
            **({"optimizer": "SGD", "config": "other"} if run.median_s == 1.1 else {}),
        )
        for run in (*CHAMPION, *runs("candidate", times, noisy(3.0, 0.01, 200)))
    ]
    decision, time, _ = judged(ask(rows, sweeps=True), Rule(metric="loss"))
    assert decision.choice is not Choice.KEEP and time is not None and time.n == ROUNDS, decision


# -- simulated --------------------------------------------------------------------------------------------------------


def test_equal_candidates_are_seldom_kept_and_cost_few_rounds() -> None:
    rates = Rates.of(judging.judge(CANDIDATES["equal"], 300))
    assert rates.share_kept <= 0.05 and rates.rounds <= 6


def test_gains_in_noise_are_undecided_and_not_discarded() -> None:
    rates = Rates.of(judging.judge(CANDIDATES["3 % faster, 10 %"], 200))
    assert rates.share_discarded <= 0.2 and rates.rounds <= 16


@pytest.mark.parametrize("name", ["3 % faster", "better by 3 spreads"])
def test_gains_are_kept_in_few_rounds(name: str) -> None:
    rates = Rates.of(judging.judge(CANDIDATES[name], 200))
    assert rates.share_kept >= 0.9 and rates.rounds_kept <= 10


def test_a_faster_candidate_that_loses_the_margin_is_seldom_kept() -> None:
    assert Rates.of(judging.judge(CANDIDATES["10 % faster, worse by the margin"], 300)).share_kept <= 0.05


@pytest.mark.parametrize("noise", ["uniform", "lognormal(0.3)", "two levels 50:50"])
def test_other_noise_keeps_no_more_equal_candidates(noise: str) -> None:
    assert Rates.of(judging.judge(CANDIDATES["equal"], 200, noise)).share_kept <= 0.05
