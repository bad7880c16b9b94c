"""A submission on a cluster as tasks of whole rounds: how they are dealt out, lost, tried again, and refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from queue_runner.errors import UsageError
from queue_runner.model import Outcome
from queue_runner.monitor import queue_status, status_text
from queue_runner.paths import Layout
from queue_runner.remote import block
from queue_runner.remote.fence import FenceHolder, take_fence
from queue_runner.remote.json_files import write_json
from queue_runner.remote.target import Seen
from queue_runner.store.engine import open_engine, writing
from queue_runner.submit import plan
from tests.remote.block_support import Front, write_result
from tests.submit_support import requested

pytestmark = pytest.mark.process
ROWS = {"argv": ("echo", "{x}"), "sets": ("x=0,1,2",), "order_seed": 3}


def front_of(layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Front:
    front = Front(layout, tmp_path / "shared", monkeypatch, **{**ROWS, **options})
    front.target.seen = Seen("running", "RUNNING")
    return front


def rounds_sent(front: Front) -> list[list[tuple[int, int]]]:
    """Return the (round, job) of each run of the blocks, in the order in which these were sent."""
    folders = [block.Folder(front.shared / token) for token in front.target.sent]
    blocks = [json.loads(folder.instructions.read_text()) for folder in folders if folder.instructions.exists()]
    return [[(run["repeat"], run["job_id"]) for run in sent["runs"]] for sent in blocks]


def order_of(front: Front, repeat: int) -> list[int]:
    """Return the jobs in the order in which the round was planned."""
    rows = [row for row in front_rows(front) if row["repeat"] == repeat and row["attempt"] == 1]
    return [row["job_id"] for row in sorted(rows, key=lambda row: row["position"])]


def front_rows(front: Front) -> list[Any]:
    from queue_runner.store import read
    from tests import named_rows

    with read.reading(front.layout.db) as connection:
        return named_rows.runs(connection)


@pytest.mark.parametrize(
    ("at_once", "tasks"), [(2, [[1, 3, 5], [2, 4]]), (9, [[1], [2], [3], [4], [5]]), (1, [[1, 2, 3, 4, 5]])]
)
def test_rounds_are_dealt_out_whole(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int, tasks: list[list[int]]
) -> None:
    front = front_of(layout, tmp_path, monkeypatch, repeats=5, nodes_at_once=at_once)
    front.blocks.step()
    sent = rounds_sent(front)
    status = status_text.text(queue_status.read_status(layout))
    assert at_once == 1 or "0 of 15 runs" in status
    assert sorted(sent) == [[(repeat, job) for repeat in task for job in order_of(front, repeat)] for task in tasks]


def run_row(folder: block.Folder, run: str, *, ends: bool) -> None:
    """Let a run begin on its node and, if it `ends`, succeed."""
    take_fence(folder.fence, FenceHolder(pid=1))
    path = folder.run(run).path
    (path / "warden").mkdir(parents=True)
    write_json(path / "began.json", {"at": 10.0, "started": 11.0})
    if ends:
        write_result(folder, run)


def test_a_lost_round_is_run_again_whole_and_in_its_order(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first row has ended, the second was running, the third had not begun."""
    front = front_of(layout, tmp_path, monkeypatch, repeats=1, retries=1, retry_on=("lost",))
    front.blocks.step()
    (lost,) = rounds_sent(front)
    folder = block.Folder(front.shared / front.target.sent[0])
    names = [f"{job}.1" for _, job in lost]
    run_row(folder, names[0], ends=True)
    front.blocks.step()
    run_row(folder, names[1], ends=False)
    front.blocks.step()
    front.target.seen = Seen("gone", "NODE_FAIL")
    for _ in range(5):
        front.blocks.step()
        if len(front.target.sent) == 2:
            break
    again = rounds_sent(front)[-1]
    assert again == lost and len(front.target.sent) == 2, front.said
    outcomes = {(row["job_id"], row["attempt"]): row["outcome"] for row in front_rows(front)}
    first, second, third = (job for _, job in lost)
    assert (outcomes[first, 1], outcomes[second, 1]) == (Outcome.SUCCEEDED, Outcome.LOST)
    assert {key for key, outcome in outcomes.items() if outcome is None} == {(first, 2), (second, 2), (third, 1)}


def test_other_tasks_wait_for_the_preflight_that_one_of_them_runs(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    front = front_of(layout, tmp_path, monkeypatch, repeats=2, nodes_at_once=2)
    with writing(open_engine(layout.db)) as connection:
        lane = connection.value("SELECT lane FROM runs WHERE repeat = 1 LIMIT 1")
        connection.change("UPDATE runs SET number = 0 WHERE job_id = 1 AND repeat = 1")
    front.blocks.step()
    assert len(front.target.sent) == 1 and any("waits for 1.0" in line for line in front.said), lane


def test_rounds_that_do_not_fit_into_the_time_limit_are_refused(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once runs of the question have ended there: three rows of 1,000 s each, five rounds."""
    front = front_of(layout, tmp_path, monkeypatch, repeats=1)

    def ask(**options: Any) -> plan.Plan:
        given = {**ROWS, "cwd": str(layout.home), "on": "slurm", "repeats": 5, "home": str(layout.home), **options}
        return plan.plan(requested(**given))

    assert ask(time="1h", nodes_at_once=1)
    front.blocks.step()
    for job in (1, 2, 3):
        run_row(front.folder(), f"{job}.1", ends=True)
        front.blocks.step()
    with writing(open_engine(layout.db)) as connection:
        connection.change("UPDATE exits SET real_s = 1000.0")
    with pytest.raises(UsageError, match="5 rounds of 3 rows and needs 4 h 12 min") as refused:
        ask(time="1h", nodes_at_once=1)
    assert "--time 252m" in refused.value.hint and "--nodes-at-once 5" in refused.value.hint
    with pytest.raises(UsageError, match="1 round of 3 rows and needs") as refused:
        ask(time="30m")
    assert "fewer rows" in refused.value.hint
    assert ask(time="1h") and ask(time="5h", nodes_at_once=1)
    with writing(open_engine(layout.db)) as connection:
        connection.change("UPDATE exits SET real_s = 15.0")
    assert ask(time="1m", repeats=1)


def test_a_profile_limits_the_tasks_and_an_option_takes_precedence(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    front_of(layout, tmp_path, monkeypatch, repeats=1)
    config = layout.config.read_text()

    def tasks(**options: Any) -> set[int]:
        given = {**ROWS, "cwd": str(layout.home), "on": "slurm", "repeats": 5, "home": str(layout.home), **options}
        return {job.spec.tasks for job in plan.plan(requested(**given)).jobs}

    layout.config.write_text(config + 'nodes-at-once = "2"\n')
    assert tasks() == {2} and tasks(nodes_at_once=4) == {4}
    layout.config.write_text(config + 'nodes-at-once = "many"\n')
    with pytest.raises(UsageError, match="takes a number of nodes"):
        tasks()
