"""The remote lanes of a worker with a stand-in of a target: what is decided when answers are lost or are wrong."""

from __future__ import annotations

import json
import shutil
import sqlite3
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from queue_runner.control import cancellation, pausing
from queue_runner.errors import MpsqError
from queue_runner.host import job_environments
from queue_runner.model import parse_selector
from queue_runner.monitor import awaiting, run_view
from queue_runner.paths import Layout
from queue_runner.remote import block, block_store, targets
from queue_runner.remote.fence import FenceHolder, take_fence
from queue_runner.remote.json_files import write_json
from queue_runner.remote.profile import Profile
from queue_runner.remote.ssh import Ssh
from queue_runner.remote.target import NotSent, Refused, Seen, Unreachable
from queue_runner.store import read, ready, retries
from queue_runner.store.engine import looking, open_engine
from queue_runner.submit import plan
from tests.queue_support import until
from tests.remote.block_support import Front, StandIn, write_result
from tests.submit_support import requested

pytestmark = pytest.mark.process


@pytest.fixture
def front(layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Front:
    return Front(layout, tmp_path / "shared", monkeypatch)


def test_lanes_of_other_machines_are_found_by_their_index(front: Front) -> None:
    """However many runs wait here."""
    statements: list[str] = []
    with sqlite3.connect(front.layout.db) as database:
        database.set_trace_callback(statements.append)
        read.remote_lanes(database)
        connection: Any = SimpleNamespace(column=lambda sql: database.execute(sql).fetchall())
        connection.row = lambda sql: database.execute(sql).fetchone()
        assert block_store.open_lanes(connection) and block_store.something_waits(connection)
        database.set_trace_callback(None)
        first, _, *others = statements
        for sql in (first, *others):
            plan = "; ".join(row[-1] for row in database.execute(f"EXPLAIN QUERY PLAN {sql}"))
            assert "runs_elsewhere" in plan, f"{sql}: {plan}"


def test_a_paused_queue_sends_nothing(front: Front) -> None:
    """Until it is resumed."""
    assert pausing.pause_lane(front.layout, "by hand")
    front.blocks.step()
    assert front.target.sent == [] and front.row()["state"] == "QUEUED"
    assert not front.blocks.busy() and idle(front), "a worker that ends with its work does not wait for mpsq resume"
    pausing.pause_lane(front.layout, None)
    front.blocks.step()
    assert len(front.target.sent) == 1
    assert pausing.pause_lane(front.layout, "by hand")
    assert front.blocks.busy() and not idle(front), "runs that were sent go on"


def idle(front: Front) -> bool:
    with looking(open_engine(front.layout.db)) as connection:
        return ready.is_idle(connection)


def test_a_block_that_was_made_void_has_not_started(front: Front) -> None:
    """The worker has died between the fence and its transaction."""
    front.blocks.step()
    assert take_fence(front.folder().fence, FenceHolder(void="by the front"))
    assert not front.target.has_started(front.target.sent[0]) and front.target.void(front.target.sent[0])
    another = front.worker()
    for _ in range(3):
        another.step()
    assert front.row()["outcome"] is None and len(front.target.sent) == 2


def test_a_start_whose_fence_cannot_be_read_has_started(front: Front) -> None:
    front.blocks.step()
    front.folder().fence.touch()
    assert front.target.has_started(front.target.sent[0]) and not front.target.void(front.target.sent[0])


def test_run_whose_environment_is_missing_cannot_be_sent(front: Front) -> None:
    for path in job_environments.files(front.layout):
        path.unlink()
    front.blocks.step()
    assert front.row()["outcome"] == "SPAWN_FAILED" and "mpsq rerun" in front.row()["reason"]
    front.blocks.step()
    assert front.target.sent == [] and not [line for line in front.said if "report" in line]


def test_a_corrected_profile_counts_without_another_worker(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[Any] = []
    monkeypatch.setattr(targets, "of", lambda config, *_: used.append(config.on["slurm"]) or front.target)

    def refused() -> str:
        raise Refused("invalid partition")

    front.target.answer = refused
    for _ in range(2):
        front.blocks.step()
        front.blocks._not_before.clear()
    assert len(used) == 1
    front.layout.config.write_text(front.layout.config.read_text() + 'partition = "long"\n')
    front.target.answer = lambda: "7"
    front.blocks.step()
    assert used[1:] == [{**used[0], "partition": "long"}] and front.said[-1].endswith("slurm job 7")


def test_a_cluster_that_refuses_a_block_is_not_sent_the_others_of_its_submission(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As at its limit on jobs: each try writes a block and asks Slurm."""
    front = Front(layout, tmp_path / "shared", monkeypatch, repeats=3, nodes_at_once=3)

    def refused() -> str:
        raise Refused("QOSMaxSubmitJobPerUserLimit")

    front.target.answer = refused
    for _ in range(2):
        front.blocks.step()
    assert len(front.target.sent) == 1
    assert len([line for line in front.said if "QOSMaxSubmitJobPerUserLimit" in line]) == 3
    front.blocks._not_before.clear()
    front.target.answer = lambda: "7"
    front.blocks.step()
    assert len(front.target.sent) == 4


def test_a_target_that_does_not_answer_when_a_block_is_made_void_is_asked_again(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    front.blocks.step()

    def cut(token: str) -> bool:
        raise Unreachable("cut")

    with monkeypatch.context() as patch:
        patch.setattr(front.target, "void", cut)
        front.blocks.step()
    assert "does not answer" in front.said[-1] and "report" not in front.said[-1]
    front.blocks.step()
    front.blocks.step()
    assert len(front.target.sent) == 2 and front.row()["outcome"] is None


def test_a_silent_target_differs_from_one_that_says_so(front: Front) -> None:
    """A target may say anything of a block, also the words of mpsq for one that does not answer."""

    def refused() -> str:
        raise Refused("its controller does not answer since 12:00: ask its owner")

    def silent() -> str:
        raise NotSent("no route")

    def silences() -> list[str]:
        with read.reading(front.layout.db) as connection:
            return awaiting.silences(connection, run_view.runs(connection))

    front.target.answer = refused
    front.blocks.step()
    assert "not answer since" in front.said[-1] and silences() == []
    front.target.answer = silent
    another = front.worker()
    another.step()
    (silence,) = silences()
    assert silence.endswith("no route")
    with read.reading(front.layout.db) as connection:
        (block,) = read.remote_lanes(connection).values()
    assert block.silent and block.status.startswith(silence) and "next try" in block.status
    front.target.answer = lambda: "7"
    another._not_before.clear()
    for _ in range(2):
        another.step()
    assert silences() == []


def test_a_clock_that_is_set_back_delays_no_block(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    box = Ssh("box", Profile(name="box", host="box", poll_s=0.0), front.layout)
    box._fails(Unreachable("cut"))
    front.target.down = box.down
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() - 3600.0)
    front.blocks.step()
    assert len(front.target.sent) == 1


def test_a_bad_result_is_lost_after_the_end_and_a_cancel_is_passed_on(front: Front) -> None:
    front.blocks.step()
    front.begin(at="x", started=1e300)
    front.folder().result("1.1").write_bytes(b"no bundle")
    cancellation.cancel(front.layout, [parse_selector("1.1")], grace_s=None, within_s=0.0)
    front.target.seen = Seen("running", "running")
    for _ in range(2):
        front.blocks.step()
    assert front.row()["outcome"] is None
    assert (front.folder().cancels / "1.1").exists()
    write_json(front.folder().ended, {"why": "", "at": 0})
    for _ in range(3):
        front.blocks.step()
    assert (front.row()["outcome"], front.row()["reason"].partition(":")[0]) == ("LOST", "bad_result")
    assert not [said for said in front.said if "report" in said]


@pytest.mark.parametrize("result", ["missing", "of another run", "sound"])
def test_a_run_without_a_result_hides_no_later_one(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, result: str
) -> None:
    """A shared folder may show the second run before the end of the first, or never that end."""
    front = Front(layout, tmp_path / "shared", monkeypatch, repeats=3)
    front.target.seen = Seen("running", "running")
    front.blocks.step()
    front.begin("1.1")
    front.begin("1.2", at=20.0)
    front.blocks.step()
    assert [front.row(n)["state"] for n in (1, 2)] == ["RUNNING", "QUEUED"]
    folder = front.folder()
    write_result(folder, "1.2")
    if result == "sound":
        write_result(folder, "1.1")
    elif result == "of another run":
        shutil.copy(folder.result("1.2"), folder.result("1.1"))
    front.blocks.step()
    write_json(front.folder().ended, {"why": "stopped", "at": 0})
    for _ in range(3):
        front.blocks.step()
    ends = [front.row(n)["outcome"] for n in (1, 2, 3)]
    assert ends == ["SUCCEEDED" if result == "sound" else "LOST", "SUCCEEDED", "SKIPPED"]
    assert not [said for said in front.said if "report it" in said]


def test_a_run_whose_files_arrive_after_those_of_the_next_run(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run 1.1 has ended before 1.2 began, but a shared folder shows 1.2 first."""
    front = Front(layout, tmp_path / "shared", monkeypatch, repeats=2)
    front.target.seen = Seen("running", "running")
    front.blocks.step()
    front.begin("1.2", at=13.0, started=14.0)
    front.blocks.step()
    front.begin("1.1")
    write_result(front.folder(), "1.1")
    front.blocks.step()
    assert front.row(2)["state"] == "RUNNING"
    write_result(front.folder(), "1.2", claimed_at=13.0, started_at=14.0, ended_at=15.0)
    front.blocks.step()
    assert [front.row(n)["outcome"] for n in (1, 2)] == ["SUCCEEDED", "SUCCEEDED"]
    assert not [line for line in front.said if "report it" in line]


def test_what_was_cancelled_before_it_began_is_stored_while_another_runs(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    front = Front(layout, tmp_path / "shared", monkeypatch, repeats=2)
    front.target.seen = Seen("running", "running")
    front.blocks.step()
    front.begin("1.1")
    front.begin("1.2", at=None, started=None)
    write_result(front.folder(), "1.2", outcome="CANCELLED", exit_code=None, claimed_at=None, started_at=None)
    front.blocks.step()
    assert [(front.row(n)["state"], front.row(n)["outcome"]) for n in (1, 2)] == [
        ("RUNNING", None),
        ("DONE", "CANCELLED"),
    ]


@pytest.mark.parametrize("at", [None, 10.0])
def test_a_run_that_never_began_is_stored_whatever_its_node_wrote_before(front: Front, at: float | None) -> None:
    """The block could not be followed any more: the run was RUNNING, and its result said that it never began."""
    front.target.seen = Seen("running", "running")
    front.blocks.step()
    front.begin(at=at, started=None)
    front.blocks.step()
    assert front.row()["state"] == ("QUEUED" if at is None else "RUNNING")
    write_result(front.folder(), outcome="CANCELLED", exit_code=None, claimed_at=None, started_at=None)
    front.blocks.step()
    assert (front.row()["state"], front.row()["outcome"]) == ("DONE", "CANCELLED")
    assert not [line for line in front.said if "report it" in line]


def test_a_run_cancelled_on_a_node_that_dies_before_its_result_is_cancelled(front: Front) -> None:
    front.target.seen = Seen("running", "running")
    front.blocks.step()
    front.begin(at=None, started=None)
    write_json(front.folder().permitted, {"runs": []})
    cancellation.cancel(front.layout, [parse_selector("1.1")], grace_s=None, within_s=0.0)
    front.target.seen = Seen("gone", "NODE_FAIL")
    for _ in range(3):
        front.blocks.step()
    assert front.row()["outcome"] == "CANCELLED"


def test_a_run_that_failed_after_the_scheduler_had_signalled_waits_for_its_word(front: Front) -> None:
    front.blocks.step()
    front.begin()
    front.target.seen = Seen("running", "running")
    write_result(front.folder(), notes=[(block.TAKEN_NOTE, block.TAKEN)], outcome="KILLED", exit_code=None, signal=15)
    for _ in range(3):
        front.blocks.step()
    assert front.row()["state"] == "RUNNING"
    write_json(front.folder().ended, {"why": block.TAKEN, "at": 0})
    front.target.seen = Seen("gone", "PREEMPTED")
    for _ in range(3):
        front.blocks.step()
    assert (front.row()["outcome"], front.row()["reason"].partition(":")[0]) == ("LOST", "preempted")


def test_mirrored_events_of_a_run_are_replaced_by_its_result(front: Front) -> None:
    """Also where the worker dies between the two."""
    front.blocks.step()
    run = front.begin()
    lines = [{"type": "iter", "t": 1.0, "i": i, "dur_s": 0.5, "phase": "measure"} for i in range(3)]
    text = [json.dumps(line) + "\n" for line in ({"type": "hello", "v": 1, "t": 0}, *lines)]
    (run / "events.jsonl").write_text("".join(text))
    front.target.seen = Seen("running", "running")
    front.blocks.step()
    assert n_iterations(front) == 3
    write_result(front.folder())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("queue_runner.remote.block_runs.finish", lambda *_, **__: 1 / 0)
        front.blocks.step()
    assert front.row()["state"] == "RUNNING"
    front.worker().step()
    assert front.row()["outcome"] == "SUCCEEDED" and n_iterations(front) == 0


def n_iterations(front: Front) -> int:
    with read.reading(front.layout.db) as connection:
        return len(connection.execute("SELECT i FROM iterations").fetchall())


def test_a_run_cancelled_in_a_block_that_never_starts_ends_as_cancelled(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stayed QUEUED: the block that was to cancel it is gone, and the next one leaves it out."""
    front = Front(layout, tmp_path / "shared", monkeypatch, repeats=2)
    front.target.seen = Seen("waiting", "PENDING")
    front.blocks.step()
    cancellation.cancel(front.layout, [parse_selector("1.1")], grace_s=None, within_s=0.0)
    front.target.seen = Seen("gone", "forgotten")
    for _ in range(2):
        front.blocks.step()
    assert (front.row(1)["outcome"], front.row(2)["state"]) == ("CANCELLED", "QUEUED")
    assert len(front.target.sent) == 2


@pytest.mark.parametrize("place", ["target.ending", "retries.sends_again"])
def test_a_cancel_while_the_end_of_a_dead_block_is_stored_is_kept(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """The run was SKIPPED, or stayed QUEUED: a run to be cancelled is never sent again."""
    front = Front(layout, tmp_path / "shared", monkeypatch, retries=1, retry_on=("lost",))
    front.target.seen = Seen("running", "RUNNING")
    front.blocks.step()
    front.begin_fence()
    write_json(front.folder().permitted, {"runs": []})
    front.target.seen = Seen("gone", "NODE_FAIL")
    owner, name = (front.target, "ending") if place == "target.ending" else (retries, "sends_again")
    real = getattr(owner, name)

    def then_cancelled(*arguments: Any, **named: Any) -> Any:
        answer = real(*arguments, **named)
        cancellation.cancel(layout, [parse_selector("1.1")], grace_s=None, within_s=0.0)
        return answer

    monkeypatch.setattr(owner, name, then_cancelled)
    for _ in range(3):
        front.blocks.step()
    assert (front.row()["outcome"], len(front.target.sent)) == ("CANCELLED", 1)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        *(("NODE_FAIL", "node_fail"), ("BOOT_FAIL", "node_fail"), ("PREEMPTED", "preempted")),
        *(("TIMEOUT (TimeLimit)", "walltime"), ("COMPLETED", "forgotten"), ("forgotten", "forgotten")),
        *(("CANCELLED by ann", "scancel"), ("OUT_OF_MEMORY", "memory")),
    ],
)
@pytest.mark.parametrize("result", [True, False])
def test_the_result_is_believed_and_without_one_the_scheduler_names_the_reason(
    front: Front, said: str, reason: str, result: bool
) -> None:
    front.target.seen = Seen("running", "running")
    front.blocks.step()
    front.begin()
    front.blocks.step()
    if result:
        write_result(front.folder())
    front.target.seen = Seen("gone", said)
    for _ in range(3):
        front.blocks.step()
    row = front.row()
    outcomes = {"walltime": "TIMED_OUT", "scancel": "CANCELLED", "memory": "OUT_OF_MEMORY"}
    assert row["outcome"] == ("SUCCEEDED" if result else outcomes.get(reason, "LOST"))
    assert result or row["reason"].startswith(f"{reason}: slurm says {said}")


def test_the_folder_of_a_block_that_an_earlier_worker_has_stored_is_removed(front: Front) -> None:
    front.target.seen = Seen("running", "running")
    front.blocks.step()
    front.begin()
    write_result(front.folder())
    for _ in range(2):
        front.blocks.step()
    assert front.row()["outcome"] == "SUCCEEDED"
    folder, strangers = front.folder().path, front.shared / ("b" * 32)
    strangers.mkdir()
    front.target.seen = Seen("gone", "COMPLETED")
    front.worker().step()  # this one was stopped before Slurm called the block over
    assert not folder.exists() and strangers.exists()


def test_a_block_of_an_unusable_profile_keeps_no_worker_from_starting(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = block.Folder(front.layout.blocks / ("a" * 32))
    left.path.mkdir(parents=True)
    write_json(left.instructions, {"to": "box"})

    def unusable(*_: object) -> None:
        raise ValueError("No closing quotation")

    monkeypatch.setattr(targets, "of", unusable)
    front.worker().step()
    assert "No closing quotation" in front.said[0]


def test_a_block_that_cannot_be_written_leaves_no_folder(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Path] = []

    def full(path: Path, data: object, *, durable: bool = True) -> None:
        tried.append(path)
        raise OSError(28, "No space left on device", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(block, "write_json", full)
        for _ in range(3):
            front.blocks.step()
    assert len(tried) == 1 and [path for path in front.shared.iterdir() if path.is_dir()] == []
    assert "No space left" in front.said[-1]


def test_a_block_that_the_store_does_not_take_leaves_no_folder(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[object] = []

    def full(*_: object) -> int:
        tried.append(_)
        raise MpsqError("the disk is full", "free some space")

    monkeypatch.setattr(block_store, "mark_sent", full)
    for _ in range(3):
        front.blocks.step()
    assert len(tried) == 1 and [path for path in front.shared.iterdir() if path.is_dir()] == []
    assert "the disk is full" in front.said[-1]


def test_a_block_whose_runs_were_changed_meanwhile_leaves_no_folder(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_store, "mark_sent", lambda *_: 0)
    front.blocks.step()
    assert [path for path in front.shared.iterdir() if path.is_dir()] == [] and front.target.sent == []


def test_a_block_whose_script_cannot_be_written_is_sent_later(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    """As often as that happens: Slurm has not been asked yet."""

    def full() -> str:
        raise OSError(28, "No space left on device", "block.sh")

    monkeypatch.setattr("queue_runner.remote.dispatcher.TRY_AGAIN_S", 0.0)
    front.target.answer = full
    for _ in range(7):
        front.blocks.step()
    assert front.row()["outcome"] is None and "No space left" in front.said[-1]
    front.target.answer = lambda: "7"
    front.target.seen = Seen("waiting", "PENDING")
    front.blocks.step()
    assert front.said[-1].endswith("slurm job 7")


def test_the_blocks_of_a_task_are_sent_again_twice_each(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block that was forgotten twice, and ran, leaves the next one its tries."""
    front = Front(layout, tmp_path / "shared", monkeypatch, retries=1, retry_on=("failed",))
    for _ in range(5):
        front.blocks.step()
    assert len(front.target.sent) == 3
    front.target.seen = Seen("running", "running")
    front.begin()
    write_result(front.folder(), outcome="FAILED", exit_code=1)
    front.blocks.step()
    assert front.row()["outcome"] == "FAILED"
    front.target.seen = Seen("gone", "forgotten")
    for _ in range(3):
        front.blocks.step()
    assert len(front.target.sent) == 5 and front.row(2)["outcome"] is None


def test_an_upload_whose_answer_is_lost_is_removed_before_the_next(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost() -> str:
        raise NotSent("the connection ended")

    def silent(token: str) -> Seen:
        raise Unreachable("the connection ended")

    monkeypatch.setattr("queue_runner.remote.dispatcher.TRY_AGAIN_S", 0.0)
    front.target.answer = lost
    with monkeypatch.context() as patch:
        patch.setattr(front.target, "look", silent)
        for _ in range(3):
            front.blocks.step()
        assert len(front.target.sent) == 1  # while nobody knows whether it has the first
        assert front.folder().path.name == front.target.sent[0]  # else nobody would remember to remove it
    front.target.answer = lambda: "7"
    for _ in range(2):
        front.blocks.step()
    assert len(front.target.sent) == 2 and front.folder().path.name == front.target.sent[1]


class Hanging(StandIn):
    """A target that answers when it is aborted."""

    def __init__(self, shared: Path) -> None:
        super().__init__(shared)
        self.answers = threading.Event()
        self.ended: list[bool] = []

    def send(self, token: str, options: Mapping[str, str]) -> str:
        self.sent.append(token)
        self.ended.append(self.answers.wait(20.0))
        raise NotSent("no answer")

    def abort(self) -> None:
        self.answers.set()


def test_a_target_that_hangs_delays_no_other_and_a_worker_that_stops_does_not_wait_for_it(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = Hanging(front.shared.with_name("another"))
    monkeypatch.setattr("queue_runner.remote.dispatcher.PATIENCE_S", 0.05)
    monkeypatch.setattr(targets, "of", lambda _config, _layout, name: hanging if name == "first" else front.target)
    with front.layout.config.open("a") as file:
        file.write(f'[on.first]\nkind = "slurm"\nfolder = "{hanging.shared}"\n')
    plan.store(front.layout, plan.plan(requested(argv=("true",), cwd=str(front.layout.home), on="first")))
    front.target.seen = Seen("running", "running")
    worker = front.worker()
    until(lambda: (worker.step(), hanging.sent and front.target.sent)[1], "a block for each")
    front.begin()
    write_result(front.folder())
    until(lambda: (worker.step(), front.row(1)["outcome"])[1], "the run of the other")
    assert front.row(1)["outcome"] == "SUCCEEDED" and hanging.ended == []
    assert len(hanging.sent) == 1  # nor is it asked again meanwhile
    worker.stop()
    assert hanging.ended == [True] and not any(thread.is_alive() for thread in worker._threads.values())
    assert not [said for said in front.said if "does not answer" in said]  # the worker has ended its call
