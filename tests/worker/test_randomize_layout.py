"""What is drawn for each run: reproducible, independent, and never over the user's own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from queue_runner.control import resubmission
from queue_runner.model import RunId, parse_selector
from queue_runner.monitor import run_details, run_view
from queue_runner.spec import JobSpec
from queue_runner.store import read
from queue_runner.worker import randomize_layout
from tests.cli_support import Cli
from tests.queue_support import Queue

SPEC = JobSpec(kind="command", name="a", argv=("true",), layout_seed=7, randomize=True)


def paddings(spec: JobSpec, n: int = 400) -> list[int]:
    return [randomize_layout.draw(spec, RunId(1, number))["env_padding_bytes"] for number in range(1, n + 1)]


def test_it_is_drawn_for_each_run_by_the_seed() -> None:
    assert paddings(SPEC) == paddings(SPEC), "the same again"
    assert paddings(SPEC) != paddings(replace(SPEC, layout_seed=8))
    assert paddings(SPEC) != paddings(replace(SPEC, argv=("false",))), "arms of one submission differ"
    assert randomize_layout.draw(SPEC, RunId(1, 2)) == randomize_layout.draw(SPEC, RunId(9, 2)), (
        "not by the id of the job"
    )


def test_every_length_is_equally_likely() -> None:
    found = paddings(SPEC)
    assert min(found) >= 0 and max(found) < randomize_layout.PADDING_BYTES
    quarters = [sum(n * 4 // randomize_layout.PADDING_BYTES == quarter for n in found) for quarter in range(4)]
    assert all(70 < count < 130 for count in quarters), quarters


def test_the_seed_of_hashing_is_drawn_only_if_asked_for_and_free() -> None:
    assert 0 < int(randomize_layout.variables(SPEC, RunId(1, 1))["PYTHONHASHSEED"]) < 2**32
    assert "PYTHONHASHSEED" not in randomize_layout.variables(replace(SPEC, randomize=False), RunId(1, 1))
    assert "PYTHONHASHSEED" not in randomize_layout.variables(replace(SPEC, env={"PYTHONHASHSEED": "1"}), RunId(1, 1))
    assert randomize_layout.variables(replace(SPEC, layout_seed=None), RunId(1, 1)) == {}


def start(queue: Queue, run: str) -> dict[str, Any]:
    with read.reading(queue.layout.db) as connection:
        (view,) = run_view.select(connection, [parse_selector(run)])
        return dict(run_details.details(queue.layout, connection, view).start)


@pytest.mark.process
def test_runs_have_it_and_show_it(queue: Queue, mpsq: Cli) -> None:
    queue.submit('echo "${#MPSQ_PADDING} ${PYTHONHASHSEED-none}" >> $J', repeats=3)
    queue.submit('echo "${#MPSQ_PADDING} $PYTHONHASHSEED" >> $J', randomize=True, env=("PYTHONHASHSEED=3",))
    queue.submit('echo "${MPSQ_PADDING-none}" >> $J')
    queue.worker("", "--until-idle").wait()
    runs = ["1.1", "1.2", "1.3"]
    drawn = [start(queue, run)["env_padding_bytes"] for run in runs]
    assert len(set(drawn)) == 3 and queue.written()[:3] == [f"{n} none" for n in drawn]
    assert queue.written()[3:] == [f"{start(queue, '2.1')['env_padding_bytes']} 3", "none"]
    assert f"environment padded with {drawn[0]:,} bytes" in mpsq.ok("show", "1.1").out
    assert "start " not in mpsq.ok("show", "3.1").out


@pytest.mark.process
def test_a_rerun_draws_anew_and_is_the_same_question(queue: Queue) -> None:
    queue.submit("true", repeats=2, allow_changed=True)
    queue.worker("", "--until-idle").wait()
    resubmission.rerun(queue.layout, [parse_selector("1")], resubmission.RerunOptions(allow_changed=True), "again")
    queue.worker("", "--until-idle").wait()
    assert start(queue, "2.1") != start(queue, "1.1")
    assert len({row["spec_hash"] for row in queue.rows()}) == 1
