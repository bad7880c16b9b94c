"""Rounds that are added to a submission later: `mpsq rerun g4 --rounds N`."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from queue_runner.control import cancellation, deletion, resubmission
from queue_runner.errors import MpsqError, UsageError
from queue_runner.host import job_environments
from queue_runner.model import parse_selector
from queue_runner.submit import plan, run_order
from tests.patience import patience
from tests.queue_support import Queue
from tests.submit_support import requested

pytestmark = pytest.mark.process

WRITES = 'echo "$MPSQ_RUN $MPSQ_SEED" >> {journal}; exit {{x}}'


def submit(queue: Queue, **options: Any) -> None:
    """Queue three jobs; `sets` has their exit codes."""
    argv = ("/bin/sh", "-c", WRITES.format(journal=queue.journal))
    given = {"cwd": str(queue.folder), "order_seed": 7, "sets": ("x=0,00,000",), "repeats": 3, **options}
    plan.store(queue.layout, plan.plan(requested(argv=argv, **given)))


def add(queue: Queue, count: int, *selectors: str) -> plan.Submitted:
    return resubmission.add_rounds(queue.layout, [parse_selector(text) for text in selectors or ("g1",)], count)


def run_all(queue: Queue, count: int) -> list[str]:
    assert queue.worker("", "--until-idle").wait(patience(60)) == 0
    queue.done(count)
    return queue.written()


def test_added_rounds_continue_the_order_the_numbers_and_the_seeds(queue: Queue) -> None:
    """The fourth round reverses the third, which was drawn before the first look."""
    submit(queue)
    run_all(queue, 9)
    added = add(queue, 2)
    expected = [f"{cell + 1}.{repeat}" for cell, repeat in run_order.rounds([5] * 3, 7)]
    assert added.group == 1 and added.jobs == (1, 2, 3) and list(added.runs) == expected[9:]
    lines = run_all(queue, 15)
    assert [line.split()[0] for line in lines] == expected
    assert [line.split()[1] for line in lines[9:]] == ["1340"] * 3 + ["1341"] * 3
    rows = {row["run"]: row for row in queue.rows()}
    assert {row["group_id"] for row in rows.values()} == {1} and rows["2.5"]["repeat"] == 5


def test_added_rounds_of_edited_code_say_that_they_run_in_a_copy(queue: Queue) -> None:
    script = queue.folder / "a.sh"
    script.write_text("true")
    planned = plan.plan(requested(argv=("/bin/sh", "a.sh"), cwd=str(queue.folder)))
    plan.store(queue.layout, planned)
    assert not add(queue, 1).notes
    script.write_text("false")
    (note,) = add(queue, 1).notes
    assert "a copy of the code" in note and "a.sh" in note


def test_a_retried_run_does_not_shift_the_rounds(queue: Queue) -> None:
    submit(queue, retries=1, repeats=1, sets=("x=0,00,1",))
    run_all(queue, 4)  # 3.1 has failed twice
    added = add(queue, 1, "@last")
    assert set(added.runs) == {"1.2", "2.2", "3.3"}
    assert {row["repeat"] for row in queue.rows() if row["run"] in added.runs} == {2}


def test_rounds_are_added_behind_those_that_wait(queue: Queue) -> None:
    submit(queue, repeats=1, hold=True)
    queue.submit("true")
    add(queue, 1)
    place = {row["run"]: row["position"] for row in queue.rows()}
    assert min(place[run] for run in ("1.2", "2.2", "3.2")) > place["4.1"] > place["1.1"]


def test_a_crash_before_the_commit_adds_nothing(queue: Queue) -> None:
    submit(queue, repeats=1)
    process = queue.command("rerun", "g1", "--rounds", "2", stop_at="submit.before_commit")
    os.kill(queue.stopped("submit.before_commit"), signal.SIGKILL)
    process.wait()
    assert {row["repeat"] for row in queue.rows()} == {1}
    add(queue, 2)
    assert sorted(row["repeat"] for row in queue.rows()) == [1, 1, 1, 2, 2, 2, 3, 3, 3]


@pytest.mark.parametrize("selectors", [("1",), ("1.1",), ("g1", "g2")])
def test_only_a_whole_submission_gets_rounds(queue: Queue, selectors: tuple[str, ...]) -> None:
    submit(queue, repeats=1)
    with pytest.raises(UsageError, match="one whole group"):
        add(queue, 1, *selectors)
    assert len(queue.rows()) == 3


def cancel(queue: Queue) -> None:
    cancellation.cancel(queue.layout, [parse_selector("g1")], grace_s=0, within_s=0)


def test_missing_parts_are_refused(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    submit(queue, repeats=1)
    cancel(queue)
    with pytest.raises(UsageError, match="would run nothing"):
        add(queue, 0)
    for path in job_environments.files(queue.layout):
        path.unlink()
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    with pytest.raises(MpsqError, match="OMP_NUM_THREADS was unset, and is 3 now"):
        add(queue, 1)
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setenv("MY_SHELL", "other")
    assert len(add(queue, 1).runs) == 3
    cancel(queue)
    deletion.delete(queue.layout, [parse_selector("3")], results=False)
    with pytest.raises(UsageError, match="job 3 was deleted"):
        add(queue, 1)
    assert len(queue.rows()) == 6
