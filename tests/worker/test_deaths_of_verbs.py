"""The table of deaths, continued: what came with copies, refusals, second tries and suspending."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from queue_runner.control import pausing
from queue_runner.model import parse_selector
from queue_runner.submit import plan
from tests.queue_support import Queue, until
from tests.submit_support import requested

pytestmark = [
    pytest.mark.process,
    pytest.mark.needs_program("git"),
]


def kill_at(queue: Queue, point: str) -> None:
    """A worker comes that far and dies; another one follows."""
    worker = queue.worker(point)
    assert queue.stopped(point) == worker.pid
    worker.kill()
    worker.wait()
    queue.worker()


@pytest.fixture
def code(tmp_path: Path) -> Path:
    root = tmp_path / "code"
    root.mkdir()
    for name in ("a", "b", "c"):
        (root / f"{name}.sh").write_text(f"echo {name} >> $J\n")
    for arguments in (["init", "-q"], ["add", "-A"]):
        subprocess.run(["git", "-C", str(root), *arguments], check=True)
    return root


def queue_it(queue: Queue, code: Path, **options: object) -> None:
    argv = ("/bin/sh", "-c", f"export J={queue.journal}; . ./a.sh; . ./b.sh; . ./c.sh")
    plan.store(queue.layout, plan.plan(requested(argv=argv, cwd=str(code), **options)))  # type: ignore[arg-type]


def test_the_worker_dies_in_the_middle_of_a_copy(queue: Queue, code: Path) -> None:
    queue_it(queue, code, snapshot="copy")
    kill_at(queue, "copy.unpacking")
    assert queue.done()[0]["outcome"] == "SUCCEEDED"
    assert queue.written() == ["a", "b", "c"]


@pytest.mark.parametrize("point", ["worker.refusing", "worker.refused"])
def test_the_worker_dies_while_it_refuses_code_that_is_gone(queue: Queue, code: Path, point: str) -> None:
    queue_it(queue, code)
    (code / "a.sh").write_text("echo changed >> $J\n")
    for content in queue.layout.snapshots.glob("*/content-*"):
        content.unlink()
    queue.submit("echo next >> $J")
    kill_at(queue, point)
    assert [row["outcome"] for row in queue.done(2)] == ["CODE_CHANGED", "SUCCEEDED"]
    assert queue.written() == ["next"]


@pytest.mark.parametrize("point", ["finish.before_retry", "finish.before_commit", "worker.done"])
def test_an_end_and_its_retry_are_stored_together_or_not_at_all(queue: Queue, point: str) -> None:
    queue.submit('echo "$MPSQ_RUN" >> $J; exit 3', retries=1)
    kill_at(queue, point)
    queue.done(2)
    until(lambda: not [row for row in queue.rows() if row["state"] != "DONE"], "the end of all")
    assert [row["run"] for row in queue.rows()] == ["1.1", "1.2"] and queue.written() == ["1.1", "1.2"]


def test_the_worker_dies_before_the_checkpoint_is_copied(queue: Queue) -> None:
    queue.submit(
        'echo "${MPSQ_RESUME:+resumed}" >> $J; [ -n "$MPSQ_RESUME" ] || { mkdir -p $MPSQ_OUT;'
        " echo 1 > $MPSQ_OUT/checkpoint; exit 3; }",
        retries=1,
        resume=True,
    )
    kill_at(queue, "resume.copying")
    assert [row["outcome"] for row in queue.done(2)] == ["FAILED", "SUCCEEDED"]
    assert queue.written() == ["", "resumed"]


@pytest.mark.parametrize(("point", "count"), [("retry.before_commit", 1), ("retry.committed", 2)])
def test_a_retry_by_hand_is_there_or_not(queue: Queue, point: str, count: int) -> None:
    queue.submit("exit 3")
    queue.worker()
    queue.done()
    caller = queue.command("retry", "1", stop_at=point)
    queue.stopped(point)
    caller.kill()
    caller.wait()
    assert len(queue.rows()) == count
    queue.done(count)


def test_a_wish_to_stand_still_outlives_a_start_that_failed_and_can_be_taken_back(queue: Queue) -> None:
    queue.submit("echo started >> $J")
    worker = queue.worker("worker.claimed")
    queue.stopped("worker.claimed")
    named = [parse_selector("1")]
    assert pausing.pause(queue.layout, named, now=True, within_s=0.0)[0].did
    worker.kill()
    worker.wait()
    worker = queue.worker("worker.lane")  # it puts the run back first
    queue.stopped("worker.lane")
    assert [(row["state"], row["paused_at"] is not None) for row in queue.rows()] == [("QUEUED", True)]
    (told,) = pausing.resume(queue.layout, named, within_s=0.0)
    assert told.did and "not be suspended" in told.result
    worker.kill()
    worker.wait()
    queue.worker()
    assert queue.done()[0]["paused_s"] == 0
