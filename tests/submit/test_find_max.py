"""--find-max with real workers and a program that nobody adapted: it finds its answer, stops, goes on, survives."""

from __future__ import annotations

import pytest

from queue_runner.control import cancellation, new_attempts
from queue_runner.errors import UsageError
from queue_runner.model import parse_selector
from queue_runner.monitor import awaiting
from queue_runner.spec import JobSpec
from queue_runner.store import read
from queue_runner.submit import plan
from queue_runner.submit.find_max import next_probe
from tests.queue_support import Queue, until
from tests.submit_support import requested

pytestmark = pytest.mark.process

NO_ROOM = "echo 'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.' >&2; exit 1"
TRY = f"echo {{n}} >> $J; if [ {{n}} -gt 11 ]; then {NO_ROOM}; fi"


def sentence(queue: Queue) -> str:
    with read.reading(queue.layout.db) as connection:
        standing = next_probe.state_of_job(connection, 1)
    assert standing is not None
    return standing.sentence("n")


def test_a_search_of_a_plain_program_ends_with_its_answer(queue: Queue) -> None:
    queue.submit(TRY, find_max="n=4", retries=3)
    queue.worker("", "--until-idle").wait()
    assert queue.written() == ["4", "8", "16", "12", "10", "11"], "what does not fit is no failure to be tried again"
    rows = queue.rows()
    outcomes = [str(row["outcome"]) for row in rows]
    assert outcomes == ["SUCCEEDED", "SUCCEEDED", "OUT_OF_MEMORY", "OUT_OF_MEMORY", "SUCCEEDED", "SUCCEEDED"]
    before = sentence(queue)
    with pytest.raises(UsageError, match="nothing failed"):
        new_attempts.retry(queue.layout, [parse_selector("g1")])
    with read.reading(queue.layout.db) as connection:
        assert not awaiting.look(connection, [parse_selector("g1")]).failed
    assert [attempt.old for attempt in new_attempts.retry(queue.layout, [parse_selector("3")])] == ["3.1"]
    assert "n 11 is the largest" in before and "12 does not" in before


def test_another_failure_stops_it_and_a_retry_lets_it_go_on(queue: Queue) -> None:
    queue.submit(f"{TRY}; if [ {{n}} = 8 ] && [ ! -e mended ]; then echo boom >&2; exit 3; fi", find_max="n=4")
    queue.worker("", "--until-idle").wait()
    assert queue.written() == ["4", "8"] and "at 8: FAILED(3): boom" in sentence(queue)
    (queue.folder / "mended").touch()
    new_attempts.retry(queue.layout, [parse_selector("g1")])
    queue.worker("", "--until-idle").wait()
    assert queue.written()[2:] == ["8", "16", "12", "10", "11"] and "n 11 is the largest" in sentence(queue)


def test_a_cancelled_probe_ends_it(queue: Queue) -> None:
    queue.submit("echo {n} >> $J; if [ {n} = 8 ]; then sleep 100; fi", find_max="n=4")
    worker = queue.worker("", "--until-idle")
    until(lambda: queue.written() == ["4", "8"], "the second probe")
    cancellation.cancel(queue.layout, [parse_selector("g1")], grace_s=0.1, within_s=20.0)
    worker.wait()
    assert queue.written() == ["4", "8"] and "stopped at 8: CANCELLED" in sentence(queue)


def test_a_worker_that_dies_between_two_probes_loses_neither(queue: Queue) -> None:
    queue.submit(TRY, find_max="n=4:11")
    worker = queue.worker("finish.before_commit")
    queue.stopped("finish.before_commit")
    worker.kill()
    worker.wait()
    queue.worker("", "--until-idle").wait()
    assert queue.written() == ["4", "8", "11"]
    assert all(x in sentence(queue) for x in ("n 11 works", "largest allowed"))


def test_a_width_is_searched_for_in_steps_of_its_heads() -> None:
    """A width that the heads do not divide is refused by the workload, which would end the search."""

    def probe(asked: str, *sets: str, config: str = "shakespeare_char") -> JobSpec:
        (job,) = plan.plan(requested(workload="nanogpt", config=config, find_max=asked, sets=sets)).jobs
        return job.spec

    assert probe("n_embd").find_max == "n_embd=384::6" and probe("n_embd").params["n_embd"] == 384
    assert probe("n_embd=16:64", "n_head=4").find_max == "n_embd=16:64:4"
    assert probe("n_embd=64:512:32", "n_head=4").find_max == "n_embd=64:512:32"
    assert probe("n_layer", config="gpt2").find_max == "n_layer=12"
    with pytest.raises(UsageError, match="only multiples of 6 are tried"):
        probe("n_embd=100")
