"""Verbs that come too early, too late or in the middle of something: the truth, a remedy, and nothing half done."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest

from queue_runner.control import cancellation
from queue_runner.model import Condition, Ending, Outcome, Verb, parse_selector
from queue_runner.paths import Layout
from queue_runner.spec import JobSpec, NewJob, Terms
from queue_runner.store import backup, editing, jobs, read, resolve, restore, retries
from queue_runner.store.engine import Connection, Engine, open_engine, writing
from tests import named_rows
from tests.cli_support import Cli
from tests.store_support import claim_next

pytestmark = pytest.mark.process

SPEC = JobSpec(kind="command", name="true", argv=("/usr/bin/true",), cwd="/")
FAILED = Ending(Outcome.FAILED, 1, reason="so it said")


@pytest.fixture
def mpsq(capsys: pytest.CaptureFixture[str], layout: Layout) -> Cli:
    return Cli(capsys)


@pytest.fixture
def engine(layout: Layout) -> Iterator[Engine]:
    engine = open_engine(layout.db, keep_open=True)
    yield engine
    engine.dispose()


def submit(engine: Engine, repeats: int = 1, **terms: object) -> int:
    with writing(engine) as connection:
        new = NewJob(SPEC, repeats, Terms(**terms))  # type: ignore[arg-type]
        return jobs.submit(connection, "test", 0, [new], [(0, n + 1) for n in range(repeats)])[1][0]


def end(connection: Connection, ending: Ending = FAILED) -> None:
    """The next run starts and ends."""
    run = claim_next(connection)
    assert run is not None
    jobs.move(connection, run.run_id, Verb.FINISH, actor="worker", ending=ending, ended_at=time.time())
    retries.retry_as_agreed(connection, run.run_id, ending, time.time())


def states(layout: Layout) -> dict[str, str]:
    with read.reading(layout.db) as connection:
        return {row["run"]: row["outcome"] or row["state"] for row in named_rows.runs(connection)}


def test_a_cancel_takes_the_retry_that_is_stored_meanwhile(
    engine: Engine, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(engine, retries=3)
    whole = writing

    def fails_just_before(engine: Engine):  # type: ignore[no-untyped-def]
        monkeypatch.setattr(cancellation, "writing", whole)
        with whole(engine) as connection:
            end(connection)
        return whole(engine)

    monkeypatch.setattr(cancellation, "writing", fails_just_before)
    found = cancellation.cancel(layout, [parse_selector("1")], grace_s=None, within_s=0)
    assert [(one.run, one.result.value) for one in found] == [("1.1", "had already ended"), ("1.2", "cancelled")]
    assert states(layout) == {"1.1": "FAILED", "1.2": "CANCELLED"}


def test_a_cancel_while_the_worker_makes_the_folder_of_its_run(
    engine: Engine, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder was there as soon as the cancel looked why it could not write into it."""
    submit(engine)
    with writing(engine) as connection:
        claim_next(connection)
    folder, real = layout.run_dir("1.1"), os.open

    def open_(path: Any, flags: int, *mode: int, **named: Any) -> int:
        if path == folder / "cancel":
            folder.mkdir(parents=True)
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return real(path, flags, *mode, **named)

    monkeypatch.setattr(os, "open", open_)
    cancellation.cancel(layout, [parse_selector("1")], grace_s=None, within_s=0.0)
    with writing(engine) as connection:
        assert folder.is_dir() and jobs.cancel_requested(connection, 1)


def test_retries_go_before_all_that_waits_the_second_too(engine: Engine) -> None:
    one = submit(engine, retries=9)
    other = submit(engine, retries=9)
    submit(engine)
    with writing(engine) as connection:
        end(connection)
        connection.change("UPDATE runs SET not_before_at = 1e12 WHERE state = 'QUEUED' AND job_id = 1")
        end(connection)
        assert [job for _, job, _ in editing.waiting(connection)] == [other, one, 3]


@pytest.mark.parametrize(
    ("terms", "without"), [({"deadline_at": 5.0}, "the deadline"), ({"after": ((1, Condition.OK),)}, "dependencies")]
)
def test_a_retry_that_would_be_skipped_at_once_is_refused(
    engine: Engine, mpsq: Cli, terms: dict[str, object], without: str
) -> None:
    submit(engine)
    with writing(engine) as connection:
        end(connection)
    submit(engine, **terms)
    with writing(engine) as connection:
        (row,) = resolve.runs_of(connection, [parse_selector("2")])
        skipped = Ending(Outcome.SKIPPED, reason="whatever: it was")
        jobs.move(connection, row.id, Verb.SKIP, actor="worker", ending=skipped, ended_at=1.0)
    ran = mpsq("retry", "2")
    assert ran.code == 2 and "would be skipped" in ran.err
    assert "mpsq rerun 2" in ran.err and f"without {without}" in ran.err
    assert "mpsq rerun 2" in mpsq("edit", "2", "--priority", "1").err
    if "after" in terms:
        out = mpsq.ok("retry", "1", "2").out
        assert out.startswith("2 runs (1.2, 2.2) queued") and out.endswith("2 runs (1.1, 2.1)\n")


def test_a_retry_of_what_is_tried_again_already(engine: Engine, mpsq: Cli) -> None:
    submit(engine, retries=1)
    with writing(engine) as connection:
        end(connection)
    ran = mpsq("retry", "1.1")
    assert ran.code == 2 and "being retried" in ran.err and "run 1.2" in ran.err


def test_a_retry_of_a_run_whose_retry_succeeded(engine: Engine, mpsq: Cli) -> None:
    submit(engine, retries=1)
    with writing(engine) as connection:
        end(connection, Ending(Outcome.KILLED, signal=9))
        end(connection, Ending(Outcome.SUCCEEDED, 0))
    for name in ("1.1", "1"):
        ran = mpsq("retry", name)
        assert ran.code == 2 and "run 1.2 succeeded" in ran.err
    assert "that run succeeded" in mpsq("retry", "1.2").err


def test_why_offers_no_second_retry_of_a_run(engine: Engine, layout: Layout, mpsq: Cli) -> None:
    job = submit(engine)
    with writing(engine) as connection:
        (row,) = resolve.runs_of(connection, [parse_selector(str(job))])
        jobs.move(connection, row.id, Verb.CANCEL, actor="user", ending=Ending(Outcome.CANCELLED))
    assert "mpsq retry 1.1" in mpsq.ok("why", "1.1").out
    mpsq.ok("retry", "1")
    shown = " ".join(mpsq.ok("why", "1.1").out.split())
    assert "retried as run 1.2" in shown and "mpsq why 1.2" in shown and "mpsq retry" not in shown
    shown = " ".join(mpsq.ok("why", "1.2").out.split())
    assert "attempt, run 1.1: " in shown and "it was cancelled" in shown


def test_an_edit_of_an_older_run_changes_the_job_that_waits(engine: Engine, mpsq: Cli) -> None:
    submit(engine, retries=1)
    with writing(engine) as connection:
        end(connection)
    mpsq.ok("edit", "1.1", "--at", "+5h")


def test_a_hold_of_what_mpsq_holds_says_so(engine: Engine, mpsq: Cli) -> None:
    submit(engine, repeats=2)
    with writing(engine) as connection:
        jobs.move(connection, 1, Verb.HOLD, actor="worker", blocked_reason="3 runs in a row failed")
    out = mpsq.ok("pause", "1").out
    assert all(x in out for x in ("run 1.1 was held", "by mpsq", "by you\n", "run 1.2 is held\n"))
    out = mpsq.ok("pause", "1").out
    assert "(1.1, 1.2)" in out and "held already" in out


def test_an_edit_that_changes_nothing_says_so(engine: Engine, mpsq: Cli) -> None:
    submit(engine)
    with writing(engine) as connection:
        claim_next(connection)
    ran = mpsq("edit", "1", "--at", "+5h")
    assert ran.code == 2 and "job 1 has started" in ran.err and "--at" in ran.err
    mpsq.ok("edit", "1", "--retries", "2", "--priority", "3")


def test_a_time_limit_can_be_changed_until_the_job_starts(engine: Engine, layout: Layout, mpsq: Cli) -> None:
    submit(engine, repeats=2)
    for limit, stored in (("1h30m", 5400.0), ("", None), ("2", 2.0)):
        mpsq.ok("edit", "1", "--timeout", limit)
        with read.reading(layout.db) as connection:
            spec_json, digest = read.tuples(connection, "SELECT spec_json, spec_hash FROM jobs").fetchone()
        spec = JobSpec.from_json(spec_json)
        assert spec.timeout_s == stored and spec.content_hash() == digest
    assert mpsq("edit", "1", "--timeout", "0").code == 2
    with writing(engine) as connection:
        claim_next(connection)
    ran = mpsq("edit", "1", "--timeout", "2h")
    assert ran.code == 2 and "job 1 has started" in ran.err and "mpsq rerun 1 --timeout 2h" in ran.err


def test_a_job_is_queued_again_with_another_time_limit(engine: Engine, layout: Layout, mpsq: Cli) -> None:
    submit(engine)
    mpsq.ok("edit", "1", "--timeout", "2")
    with writing(engine) as connection:
        end(connection, Ending(Outcome.TIMED_OUT, reason="it ran longer than 2 s"))
    assert "mpsq rerun 1 --timeout 4s" in mpsq.ok("why", "1").out
    assert "mpsq rerun g1 --timeout 4s" in mpsq.ok("report", "g1", "--explain").out
    mpsq.ok("rerun", "1", "--timeout", "4s")
    mpsq.ok("rerun", "1")
    assert mpsq("rerun", "1", "--timeout", "soon").code == 2
    with read.reading(layout.db) as connection:
        limits = read.tuples(connection, "SELECT json_extract(spec_json, '$.timeout_s') FROM jobs").fetchall()
    assert limits == [(2.0,), (4.0,), (2.0,)]


def test_more_time_is_offered_for_those_that_timed_out_alone(engine: Engine, mpsq: Cli) -> None:
    """Beside it stood all groups with a run that failed, which would fail again."""
    submit(engine)
    mpsq.ok("edit", "1", "--timeout", "2")
    with writing(engine) as connection:
        end(connection, Ending(Outcome.TIMED_OUT, reason="it ran longer than 2 s"))
    submit(engine)
    with writing(engine) as connection:
        end(connection, Ending(Outcome.FAILED, 1))
    step = mpsq.ok("report", "g1", "g2", "--explain").out.rpartition("mpsq rerun g1")[2]
    assert step.split()[:2] == ["--timeout", "4s"]


def test_an_edit_of_a_group_leaves_out_what_has_ended(engine: Engine, layout: Layout, mpsq: Cli) -> None:
    with writing(engine) as connection:
        jobs.submit(connection, "test", 0, [NewJob(SPEC)] * 3, [(0, 1), (1, 1), (2, 1)])
        end(connection)
        claim_next(connection)
    ran = mpsq.ok("edit", "g1", "--priority", "-1")
    assert ran.out == "2 jobs (2, 3) were changed\n" and "are: 1\n" in ran.err
    ran = mpsq.ok("edit", "g1", "--at", "+5h")
    assert ran.out == "job 3 was changed\n" and "are: 1, 2\n" in ran.err
    ran = mpsq("edit", "g1", "1", "--priority", "5")
    assert ran.code == 2 and "job 1 has ended" in ran.err and "--priority" in ran.err
    with read.reading(layout.db) as connection:
        priorities = connection.execute("SELECT id, priority FROM jobs ORDER BY id").fetchall()
    assert [tuple(row.values()) for row in priorities] == [(1, 0), (2, -1), (3, -1)]


def test_an_edit_that_leaves_no_time_to_start_is_refused(engine: Engine, mpsq: Cli) -> None:
    submit(engine)
    mpsq.ok("edit", "1", "--at", "+2h")
    ran = mpsq("edit", "1", "--deadline", "+1h")
    assert ran.code == 2 and "would never run" in ran.err
    mpsq.ok("edit", "1", "--deadline", "+3h")
    assert mpsq("edit", "1", "--at", "+4h").code == 2
    mpsq.ok("edit", "1", "--at", "+4h", "--deadline", "")


def test_the_history_of_a_job_tells_what_was_taken_away(engine: Engine, layout: Layout, mpsq: Cli) -> None:
    for _ in range(2):
        submit(engine)
    mpsq.ok("edit", "2", "--after", "1:any", "--priority", "-2", "--tag", "a", "--tag", "b")
    mpsq.ok("edit", "2", "--after", "", "--at", "", "--deadline", "", "--note", "")
    with read.reading(layout.db) as connection:
        said = [event["reason"].split("; ") for event in named_rows.events(connection, 2) if event["verb"] == "edit"]
    assert said == [["priority -2", "after 1:any", "tags a b"], ["no after", "no at", "no deadline", "no note"]]


def test_a_back_off_is_doubled_up_to_a_day(engine: Engine) -> None:
    waits = {}
    for backoff_s in (3600.0, 200_000.0):
        job = submit(engine, retries=1000, backoff_s=backoff_s)
        with writing(engine) as connection:
            connection.change(f"UPDATE runs SET attempt = 900 WHERE job_id = {job}")
            end(connection)
            (new,) = (r for r in resolve.runs_of(connection, [parse_selector(str(job))]) if r.state == "QUEUED")
            at = connection.value(f"SELECT not_before_at FROM runs WHERE id = {new.id}")
            waits[backoff_s] = round((at - time.time()) / 1000)
    assert waits == {3600.0: 86, 200_000.0: 200}


def test_a_deadline_that_is_now_is_told(engine: Engine, mpsq: Cli) -> None:
    assert "--deadline has passed" in mpsq.ok("submit", "--deadline", "+0s", "--", "true").err


def test_a_run_that_a_restore_removes_while_it_is_cancelled(
    layout: Layout, mpsq: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup.make(layout)
    mpsq.ok("submit", "--", "/usr/bin/true")
    monkeypatch.setattr(cancellation.wakeup, "ring", lambda fifo: restore.restore(layout))
    ran = mpsq("cancel", "1")
    assert ran.code == 1 and "run 1.1" in ran.err and "mpsq list" in ran.err
