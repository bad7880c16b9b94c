"""Rounds until a question is answered: `mpsq submit --until decided`."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from queue_runner import reports
from queue_runner.control import cancellation, changes, deletion, pausing
from queue_runner.errors import UsageError
from queue_runner.model import parse_selector
from queue_runner.monitor import answers, awaiting, progress, queue_status, run_view
from queue_runner.monitor.answers.run_query import Options
from queue_runner.monitor.explanation import explain_all
from queue_runner.spec import OF_TIME, Aim, Until
from queue_runner.store import added_rounds, read, ready
from queue_runner.store.added_rounds import OpenGroup
from queue_runner.store.engine import open_engine, writing
from queue_runner.submit import plan, run_order
from queue_runner.worker import next_round
from tests.patience import patience
from tests.queue_support import Queue, until
from tests.reports.report_fixture import Store
from tests.submit_support import requested

pytestmark = pytest.mark.process

SLEEPS = "sleep {s}; echo $MPSQ_RUN >> $J"
ENDLESS = {"until": "0.01%", "budget": "1h"}
"""No noise makes intervals so narrow; two equal rows, however, may be decided after four rounds."""


def submit(queue: Queue, script: str = SLEEPS, **options: Any) -> None:
    """Queue a row for each value of s, `--until decided` unless the options say otherwise."""
    argv = ("/bin/sh", "-c", script.replace("$J", str(queue.journal)))
    given = {"cwd": str(queue.folder), "order_seed": 7, "sets": ("s=0.01,0.4",), "until": "decided", **options}
    plan.store(queue.layout, plan.plan(requested(argv=argv, **given)))


def end(worker: Any) -> None:
    """End a worker that stands at a stop point; it may stop there once more."""
    worker.send_signal(signal.SIGCONT)
    worker.terminate()
    until(lambda: worker.send_signal(signal.SIGCONT) or worker.poll() is not None, "the end of the worker")


def work(queue: Queue) -> None:
    assert queue.worker("", "--until-idle").wait(patience(120)) == 0, queue.log()


def ending(queue: Queue) -> tuple[int, str]:
    """The number of rounds, and why no further one follows."""
    with read.reading(queue.layout.db) as connection:
        sql = "SELECT (SELECT max(repeat) FROM runs), closed_why FROM groups"
        rounds, why = read.tuples(connection, sql).fetchone()
        return rounds, why


def test_rounds_follow_until_each_row_is_decided_and_the_report_says_the_same(queue: Queue) -> None:
    submit(queue)
    work(queue)
    rounds, why = ending(queue)
    assert why == "decided" and 3 <= rounds < 20
    with read.reading(queue.layout.db) as connection:
        (family,) = answers.of_group(connection, 1)
        result = reports.run("devices", connection, Options(selectors=[parse_selector("g1")]))
    (pair,) = family.pairs
    assert {row["label"]: row["verdict"] for row in result.rows if not row["is_baseline"]} == {
        pair.arm.label: str(pair.verdict)
    }
    assert len(queue.written()) == 2 * rounds


def test_equal_rows_end_with_the_budget_and_the_order_stays_mirrored(queue: Queue) -> None:
    submit(queue, sets=("s=0,00",), budget=f"{patience(10):.0f}s")
    work(queue)
    rounds, why = ending(queue)
    assert why == "decided" or ((rounds == 20 or why.startswith("the budget of")) and "would be needed" in why)
    of_round = [[run for run in queue.written() if run.endswith(f".{number}")] for number in range(1, rounds + 1)]
    firsts = [runs[0].split(".")[0] for runs in of_round]
    assert all(len(runs) == 2 for runs in of_round)
    assert all(first != second for first, second in zip(firsts[::2], firsts[1::2], strict=False))


@pytest.mark.parametrize(
    ("until", "repeat", "took_s", "is_closed"),
    [
        (Until(), 6, 100.0, True),
        (Until(), 5, 100.0, False),
        (Until(), 6, 10.0, False),
        (Until(budget_s=600.0), 6, 100.0, False),
        (Until(), 3, 220.0, False),
        (Until(), 3, 230.0, True),
        (Until(budget_s=600.0), 3, 230.0, False),
    ],
)
def test_a_question_that_needs_far_too_many_rounds_ends_early(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, until: Until, repeat: int, took_s: float, is_closed: bool
) -> None:
    """How many more are needed is the answer of a stand-in: real noise may decide two equal rows."""
    for name, answer in (("reached", ""), ("obstacle", ""), ("rounds_left", 71)):
        monkeypatch.setattr(answers, name, lambda *_, answer=answer: answer)
    submit(queue)
    group = OpenGroup(until, repeat, 1e9, frozenset({"SUCCEEDED"}), is_whole=True)
    _, why = next_round._judged(queue.layout, 1, group, 1e9 + took_s)
    assert "71 more rounds" in why if is_closed else why == ""


def test_a_goal_that_cannot_be_read_ends_its_rounds(queue: Queue) -> None:
    submit(queue)
    group = OpenGroup(Until('bisect {"key": null}'), 3, 1e9, frozenset({"SUCCEEDED"}), is_whole=True)
    _, why = next_round._judged(queue.layout, 1, group, 1e9)
    assert "(ValidationError: " in why


def test_a_question_that_its_time_may_still_decide_goes_on(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, answer in (("reached", ""), ("obstacle", ""), ("rounds_left", 3)):
        monkeypatch.setattr(answers, name, lambda *_, answer=answer: answer)
    submit(queue)
    group = OpenGroup(Until(), 4, 1e9, frozenset({"SUCCEEDED"}), is_whole=True)
    (_, soon), (_, late) = (next_round._judged(queue.layout, 1, group, 1e9 + at_s) for at_s in (330.0, 400.0))
    assert not soon and "3 more rounds" in late and "mpsq rerun g1 --rounds 3 " in late


@pytest.mark.parametrize(
    ("more", "needed", "offered"),
    [
        (71, ["about 71"], []),
        (None, ["over 200"], []),
        (4, ["about 4"], ["mpsq rerun g1 --rounds 4"]),
        (0, [], ["mpsq rerun g1 --rounds 3"]),
    ],
)
def test_after_the_last_round_as_many_are_offered_as_would_decide(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, more: int | None, needed: list[str], offered: list[str]
) -> None:
    """It offered three where over 200 were needed."""
    for name, answer in (("reached", ""), ("obstacle", ""), ("rounds_left", more)):
        monkeypatch.setattr(answers, name, lambda *_, answer=answer: answer)
    submit(queue)
    group = OpenGroup(Until(), 20, 1e9, frozenset({"SUCCEEDED"}), is_whole=True)
    _, why = next_round._judged(queue.layout, 1, group, 1e9 + 30)
    assert "limit of 20 rounds" in why
    assert re.findall(r"(\w+ \d+) more", why) == needed and re.findall(r"mpsq .*? --rounds \d+", why) == offered


def test_a_verdict_that_is_missing_is_named_where_another_is_given(
    home: Path,
) -> None:
    """A verdict was called missing beside the verdict on the loss."""
    store = Store(home)
    for k in range(6):
        for device in ("cpu", "mps"):
            median_s = 0.10137 + 0.0307 * ((k + (device == "mps")) % 2) + k / 1e5
            store.metric(
                store.run(device, False, median_s, hello={"seed": k}), "score", 2 + k / 100 - (device == "mps")
            )
    store.db.execute("UPDATE groups SET aim = ?", [Aim("score", {"score": 0.01}).to_json()])
    for repeat, took_s in ((20, 30), (6, 700), (6, 100)):
        group = OpenGroup(Until(), repeat, 1e9, frozenset({"SUCCEEDED"}), is_whole=True)
        _, why = next_round._judged(store.layout, 1, group, 1e9 + took_s)
        assert "a verdict on the time" in why and "score" not in why


@pytest.mark.parametrize(("more", "at_once", "n_added"), [(5, 1, 1), (5, 20, 5), (5, 4, 4), (None, 4, 4), (30, 20, 17)])
def test_rounds_that_run_at_once_are_added_together(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, more: int | None, at_once: int, n_added: int
) -> None:
    submit(queue)
    group = OpenGroup(Until(), 3, 1e9, frozenset({"SUCCEEDED"}), is_whole=True, at_once=at_once)
    monkeypatch.setattr(added_rounds, "open_group", lambda *_: group)
    monkeypatch.setattr(next_round, "_judged", lambda *_: ((3, more), ""))
    next_round.follow(queue.layout, open_engine(queue.layout.db), 1, 3, 1e9, lambda _: None)
    assert max(row["repeat"] for row in queue.rows()) == 3 + n_added


def test_a_budget_ends_a_question_within_its_first_rounds(queue: Queue) -> None:
    """The run that is over it ends by itself; no other starts."""
    submit(queue, sets=("s=1,01",), budget="0.5s")
    work(queue)
    rounds, why = ending(queue)
    assert rounds == 3 and why.startswith("the budget of") and "mpsq rerun g1" in why
    assert len(queue.written()) == 1
    skipped = [row for row in queue.rows() if row["outcome"] == "SKIPPED"]
    assert len(skipped) == 5 and all(row["reason"].startswith("budget: ") for row in skipped)
    assert re.search(r"used up \(run \d\.1 took 1\.\d+ s\)", why)
    assert "6 of 6 runs ended (5 skipped)" in progress.of_submission(queue.layout, parse_selector("g1"))
    with read.reading(queue.layout.db) as connection:
        result = reports.run("devices", connection, Options(selectors=[parse_selector("g1")]))
    assert not any("missing" in step for step in result.next_steps)  # rerun adds rounds: one way is enough
    with read.reading(queue.layout.db) as connection:
        (reason,) = explain_all(queue.layout, connection, [parse_selector("2.3")])
    assert "mpsq rerun g1 --rounds 3" in reason.next_step


@pytest.mark.parametrize(("budget", "n_ended"), [(None, 0), ("1h", 6)])
def test_only_a_budget_that_was_given_ends_first_rounds(queue: Queue, budget: str | None, n_ended: int) -> None:
    submit(queue, budget=budget)
    started_at = 1e9
    with writing(open_engine(queue.layout.db)) as connection:
        connection.change("UPDATE runs SET started_at = ? WHERE id = 1", [started_at])
        assert not ready.unsatisfiable(connection, started_at + 3599)
        assert len(ready.unsatisfiable(connection, started_at + 3600)) == n_ended
        assert ready.next_change_at(connection, started_at) == (started_at + 3600 if n_ended else None)


@pytest.mark.parametrize(("budget", "limit_s"), [(None, 600), ("1h", 3600)])
def test_a_later_round_that_waited_until_the_budget_was_over_does_not_start(
    queue: Queue, budget: str | None, limit_s: int
) -> None:
    """It was added in time, waited for another queue of the machine, and started long after the end."""
    submit(queue, budget=budget)
    over_at = 1e9 + limit_s
    with writing(open_engine(queue.layout.db)) as connection:
        connection.change("UPDATE runs SET started_at = 1e9, state = 'DONE', outcome = 'SUCCEEDED'")
        added = added_rounds.add(connection, 1, 1, run_order.round_order, "worker")
        ids = connection.column("SELECT id FROM runs WHERE repeat = 4 ORDER BY id")
        assert len(ids) == len(added) == 2 and not ready.unsatisfiable(connection, over_at - 1)
        assert {run_id for run_id, _ in ready.unsatisfiable(connection, over_at)} == {*ids}
        connection.change("UPDATE runs SET started_at = 1e9 WHERE id = ?", ids[:1])
        assert not ready.unsatisfiable(connection, over_at), "a round that has begun is completed"


@pytest.mark.parametrize("hold", [False, True])
def test_a_round_of_a_user_starts_after_the_budget_and_one_that_was_paused_does_not(queue: Queue, hold: bool) -> None:
    """`mpsq rerun --rounds` queued rounds that were skipped, of a question without --budget."""
    submit(queue)
    with writing(open_engine(queue.layout.db)) as connection:
        connection.change("UPDATE runs SET started_at = 1e9, state = 'DONE', outcome = 'SUCCEEDED'")
        added_rounds.add(connection, 1, 4, run_order.round_order, "user", hold=hold)
        assert len(ready.unsatisfiable(connection, 1e9 + 600)) == (8 if hold else 0)


def test_rounds_of_a_fixed_number_all_run(queue: Queue) -> None:
    """`mpsq contest confirm` confirmed a gain after 3 of its 6 rounds, and called them 6."""
    planned = plan.plan(requested(argv=("sleep", "{s}"), cwd=str(queue.folder), sets=("s=0,1",)))
    plan.store(queue.layout, plan.in_rounds(planned, Until("confirm {}"), first=6))
    with writing(open_engine(queue.layout.db)) as connection:
        connection.change("UPDATE runs SET started_at = 1e9 WHERE id = 1")
        assert not ready.unsatisfiable(connection, 1e9 + 600)
        assert len(connection.column("SELECT id FROM runs WHERE repeat = 6")) == 2


def test_rows_that_fail_end_it(queue: Queue) -> None:
    submit(queue, "echo $MPSQ_RUN >> $J; exit 3 {s}")
    work(queue)
    rounds, why = ending(queue)
    assert rounds == 3 and "run of round 3" in why and "mpsq why g1" in why


@pytest.mark.parametrize(
    ("options", "values"), [({}, "0,1"), ({"until": "50%"}, "0,1"), ({"same_within": "50%"}, "0,00,1")]
)
def test_a_row_that_always_fails_is_not_repeated_for_ever(queue: Queue, options: dict[str, Any], values: str) -> None:
    """The others may need more rounds; the report says why there is none for it."""
    submit(queue, "echo $MPSQ_RUN >> $J; sleep 0.2; exit {s}", sets=(f"s={values}",), **options)
    work(queue)
    rounds, why = ending(queue)
    assert rounds < 20 and why.startswith("no run of") and " job " in why, why
    with read.reading(queue.layout.db) as connection:
        result = reports.run("devices", connection, Options(selectors=[parse_selector("g1")]))
    assert any(line.endswith(f" g1: {why}") for line in result.lines)


@pytest.mark.parametrize("point", ["round.computed", "round.before_commit"])
def test_a_worker_that_dies_neither_repeats_nor_loses_a_round(queue: Queue, point: str) -> None:
    submit(queue, sets=("s=0,00",), **ENDLESS)
    worker = queue.worker(point)
    pid = queue.stopped(point)
    assert len(queue.written()) == 6
    os.kill(pid, signal.SIGKILL)
    worker.wait(patience(30))  # until then it holds the lock of the queue
    queue.worker("")
    queue.done(8)
    cancellation.cancel(queue.layout, [parse_selector("g1")], grace_s=None, within_s=0.0)
    assert awaiting.until_done(queue.layout, [parse_selector("g1")], patience(60), lambda _: None).is_over
    rounds = [(row["job_id"], row["repeat"]) for row in queue.rows()]
    assert len(rounds) == len(set(rounds)) and ending(queue)[1] == "cancelled"


def test_a_row_that_is_cancelled_gets_no_further_round(queue: Queue) -> None:
    """Nor does a user who cancels a row have to cancel it in each round again."""
    submit(queue, sets=("s=0,00,000",), **ENDLESS)
    worker = queue.worker("round.computed")
    queue.stopped("round.computed")
    with writing(open_engine(queue.layout.db)) as connection:
        added_rounds.add(connection, 1, 1, run_order.round_order, "user")
    cancellation.cancel(queue.layout, [parse_selector("2")], grace_s=None, within_s=0.0)
    end(worker)
    work(queue)
    rounds, why = ending(queue)
    assert rounds == 4 and "round 4 was cancelled" in why and "mpsq rerun g1 --rounds 3" in why


def test_a_question_that_is_deleted_while_it_is_judged_gets_no_further_round(queue: Queue) -> None:
    submit(queue, sets=("s=0,00",), **ENDLESS)
    worker = queue.worker("round.computed")
    queue.stopped("round.computed")
    deletion.delete(queue.layout, [parse_selector("g1")], results=False)
    end(worker)
    work(queue)
    assert ending(queue) == (3, "a job was deleted") and len(queue.written()) == 6


def test_a_question_that_is_paused_within_the_last_run_of_a_round_stays_so(queue: Queue) -> None:
    """The next round would follow at once: nothing of the question waits that could be held."""
    submit(queue, sets=("s=0,00",), **ENDLESS)
    worker = queue.worker("round.computed")
    queue.stopped("round.computed")
    changed = pausing.pause(queue.layout, [parse_selector("g1")])
    assert {change.run for change in changed if change.did} == {"1.4", "2.4"}
    assert changes.edit(queue.layout, [parse_selector("1")], changes.Edit(priority=3)) == [1]
    end(worker)
    work(queue)
    assert len(queue.written()) == 6 and queue_status.read_status(queue.layout).waiting_count == 2
    pausing.resume(queue.layout, [parse_selector("g1")])
    queue.worker("")
    queue.done(8)
    cancellation.cancel(queue.layout, [parse_selector("g1")], grace_s=None, within_s=0.0)


def test_a_pause_of_the_queue_holds_no_round(queue: Queue) -> None:
    """`mpsq resume` releases only what `mpsq pause` has stopped: the round stayed held, and the question open."""
    script = "[ $MPSQ_RUN != 1.3 ] || { echo >> $J; until [ -e $J.go ]; do sleep 0.05; done; }"
    submit(queue, script, sets=(), until="1%", budget="1h")
    queue.worker("")
    until(queue.written, "the last run of the first rounds")
    (paused,) = pausing.pause(queue.layout, pausing.running(queue.layout), now=True)
    assert paused.did and len(queue.rows()) == 3
    cancellation.cancel(queue.layout, [parse_selector("g1")], grace_s=None, within_s=0.0)


def test_others_wait_for_the_answer_not_for_the_first_rounds(queue: Queue) -> None:
    submit(queue)
    job = queue.submit("echo after >> $J", after=("1",))
    work(queue)
    assert queue.written()[-1] == "after" and job == 3


def test_who_waits_for_an_answer_that_does_not_come_is_skipped_at_once(queue: Queue) -> None:
    """The history has no entry that a question was closed."""
    submit(queue, "exit 3; : $J {s}")
    queue.submit("echo after >> $J", after=("1",))
    work(queue)
    assert queue.rows()[-1]["outcome"] == "SKIPPED" and not queue.written()


def test_a_round_that_is_added_between_two_reads_is_not_the_end(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """`mpsq run` printed its report after 11 of 20 rounds: it saw all runs ended, and no open group a moment later."""
    submit(queue, sets=("s=0,00",), **ENDLESS)
    worker = queue.worker("round.computed")
    pid = queue.stopped("round.computed")
    select = run_view.select

    def add_a_round_then(connection: Any, selectors: Any) -> Any:
        runs = select(connection, selectors)
        os.kill(pid, signal.SIGCONT)
        until(lambda: len(queue.rows()) > 6, "the next round")
        return runs

    monkeypatch.setattr(run_view, "select", add_a_round_then)
    with read.reading(queue.layout.db) as connection:
        assert not awaiting.look(connection, [parse_selector("g1")]).is_over
    cancellation.cancel(queue.layout, [parse_selector("g1")], grace_s=None, within_s=0.0)
    worker.kill()
    worker.wait(patience(60))


def test_a_group_that_is_open_is_waited_for(queue: Queue) -> None:
    submit(queue, sets=("s=0,00",))
    worker = queue.worker("round.computed")
    pid = queue.stopped("round.computed")
    with read.reading(queue.layout.db) as connection:
        awaited = awaiting.look(connection, [parse_selector("g1")])
        assert not awaited.pending and not awaited.is_over
        assert awaiting.look(connection, [parse_selector("1.1")]).is_over
    assert queue_status.read_status(queue.layout).undecided[1] == "g1: a verdict needs 3 rounds"
    cancellation.cancel(queue.layout, [parse_selector("g1")], grace_s=None, within_s=0.0)
    os.kill(pid, signal.SIGCONT)
    with read.reading(queue.layout.db) as connection:
        assert awaiting.look(connection, [parse_selector("g1")]).is_over
    worker.terminate()
    worker.wait(patience(60))
    assert ending(queue) == (3, "cancelled")


def test_the_reports_know_what_the_submission_asks_about(queue: Queue) -> None:
    """A margin of a metric decides it, and neither the report nor a later one has to repeat it."""
    script = "sleep {s}; echo loss 1.00$MPSQ_SEED; : $J"
    given = {"metric": ("loss=loss ([0-9.]+)",), "by": "loss", "same_within": "5%,loss=0.5"}
    submit(queue, script, sets=("s=0.05,0.2",), **given)
    work(queue)
    assert ending(queue)[1] == "decided"
    with read.reading(queue.layout.db) as connection:
        result = reports.run("devices", connection, Options(selectors=[parse_selector("g1")]))
        by_time = reports.run("devices", connection, Options(selectors=[parse_selector("g1")], aim=Aim(OF_TIME)))
    (row,) = (row for row in result.items if not row.is_baseline)
    assert row.judged.same_within == 0.05 and str(row.answer) == "the same within 0.5"
    assert result.lines[0].startswith("loss of") and by_time.lines[0].startswith("s=0.05 is")


def test_the_width_of_one_row(queue: Queue) -> None:
    submit(queue, sets=("s=0.2",), until="50%")
    work(queue)
    assert "at most 50% wide" in ending(queue)[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sets": ("s=1",)}, "needs two jobs"),
        ({"repeats": 4}, "contradict"),
        ({"until": "soon"}, "nor an interval width like 1%"),
        ({"by": " "}, "names no metric"),
        ({"budget": "0"}, "would run nothing"),
        ({"same_within": "1%,2%"}, "the time two margins"),
        ({"same_within": "loss"}, '"loss" is not a margin'),
        ({"same_within": "loss=nan"}, '"loss=nan" is not a margin'),
        ({"metric": ("loss",)}, "loss has no pattern"),
        ({"until": None, "budget": "1m"}, "needs --until"),
    ],
)
def test_what_cannot_work_is_refused(queue: Queue, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        submit(queue, **options)


def test_a_step_looks_at_the_open_groups_not_at_all_runs(queue: Queue) -> None:
    submit(queue)
    with read.reading(queue.layout.db) as connection:
        looks = str(read.tuples(connection, f"EXPLAIN QUERY PLAN {added_rounds.ENDED}").fetchall())
    assert "groups_open" in looks and "SCAN r" not in looks
