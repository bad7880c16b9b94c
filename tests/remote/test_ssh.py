"""Blocks on a box behind a real sshd on a loopback port: sent, followed, brought back; links and processes that die.

Each fault once here; MPSQ_CAMPAIGN=long, as `make campaign-slurm` sets, plants each ten times.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Iterator

import psutil
import pytest
from msgspec.structs import replace

from queue_runner.control import cancellation
from queue_runner.model import parse_selector
from queue_runner.monitor import queue_status
from queue_runner.paths import Layout
from queue_runner.remote.box import MARK, MOST_ENDS, MOST_STARTS
from queue_runner.remote.link import CONNECT_S, Link
from queue_runner.remote.ssh import Ssh
from queue_runner.remote.target import NotSent, Refused, Unreachable
from queue_runner.store import read
from queue_runner.submit import plan
from tests.patience import patience
from tests.process_support import words_of
from tests.queue_support import Queue, until
from tests.remote.gated_jobs import EVENTS, GATED, LIMIT_S, began, each_once, go
from tests.remote.slurm_support import TIMES
from tests.remote.ssh_support import Box, running
from tests.submit_support import requested

pytestmark = [pytest.mark.process, pytest.mark.needs_program("sshd")]

TOKEN = "a" * 32


@pytest.fixture(params=range(TIMES))
def again(request: pytest.FixtureRequest) -> None:
    """Plant a fault as often as the campaign does."""


fault = pytest.mark.usefixtures("again")


@pytest.fixture(scope="module")
def host() -> Iterator[Box]:
    yield from running()


@pytest.fixture
def box(host: Box) -> Iterator[Box]:
    """The box of this module; nothing lives on it afterwards. What is LOST keeps its folder there."""
    shutil.rmtree(host.base, ignore_errors=True)
    yield host


@pytest.fixture
def front(queue: Queue, box: Box, monkeypatch: pytest.MonkeyPatch) -> Iterator[Queue]:
    """A queue that knows the box; its commands run in a folder with one file."""
    monkeypatch.setenv("MPSQ_TEST_MACHINE", "front")
    queue.layout.config.write_text(queue.layout.config.read_text() + box.profile)
    (queue.folder / "code").mkdir()
    (queue.folder / "code" / "tool.sh").write_text("echo from the copy\n")
    yield queue
    until(lambda: not box.processes(), f"an empty box: {[words_of(one) for one in box.processes()]}")
    queue.close()


def submit(front: Queue, script: str, repeats: int = 1, on: str = "box") -> int:
    return front.submit(script, repeats, on=on, cwd=str(front.folder / "code"))


def test_blocks_come_back_as_runs_of_the_box_one_block_after_the_other(front: Queue, box: Box) -> None:
    script = "echo b >> $J; sh tool.sh; echo err >&2; mkdir -p $MPSQ_OUT/a; echo kept > $MPSQ_OUT/a/file; sleep 0.3"
    job = submit(front, EVENTS + script + "; echo e >> $J", 2)
    submit(front, "echo b >> $J; sleep 0.3; echo e >> $J", on="ssh:box")
    here = front.submit("echo here")
    front.worker("", "--until-idle").wait(LIMIT_S)
    rows = {row["run"]: row for row in front.done(4)}
    assert {row["outcome"] for row in rows.values()} == {"SUCCEEDED"}, front.log()
    assert [rows[f"{job}.{n}"]["n_iters"] for n in (1, 2)] == [3, 3]
    assert rows[f"{job}.1"]["machine_hash"] == rows[f"{job}.2"]["machine_hash"] != rows[f"{here}.1"]["machine_hash"]
    folder = front.layout.run_dir(f"{job}.1")
    assert (folder / "stdout.log").read_text() == "from the copy\n"
    assert (folder / "out/a/file").read_text() == "kept\n"
    assert front.written() == ["b", "e"] * 3  # one block waits for the other on the box
    assert not box.base.exists() and not [*front.layout.blocks.glob("[!.]*")]  # nothing is left of the blocks


def test_the_locale_of_a_box_is_that_of_any_login(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian's ssh sends the variables of one, and jobs there have them."""
    monkeypatch.delenv("LC_ALL", raising=False)
    say = f"import json, os; print({MARK.decode()!r} + json.dumps({{'is': os.environ.get('LC_ALL')}}))"
    with Link("box", str(box.python), "", ("-F", str(box.config))).run(["-c", say]) as answered:
        assert answered.answer == {"is": None}


@fault
def test_the_link_is_cut_in_mid_run_and_a_cancel_meanwhile_is_passed_on(front: Queue, box: Box) -> None:
    job = submit(front, "echo first; " + GATED, 3)
    front.worker()
    began(front)
    log = front.layout.run_dir(f"{job}.1") / "stdout.log"
    until(lambda: log.exists() and log.read_text() == "first\n", "the log of a run that runs")
    box.cut()
    until(lambda: "not answer since" in front.why(f"{job}.1"), "why", LIMIT_S)
    found = cancellation.cancel(front.layout, [parse_selector(f"{job}.3")], grace_s=None, within_s=0.0)
    assert [one.result for one in found] == [cancellation.CancelResult.ENDING]
    until(lambda: "as soon as it answers" in front.why(f"{job}.3"), "why", LIMIT_S)
    assert all(row["state"] != "DONE" for row in front.rows())
    box.start()
    until(lambda: front.rows()[2]["state"] == "DONE", "the cancel", LIMIT_S)
    box.cut()
    go(front)
    until(lambda: f"{job}.2" in front.written() and not box.processes(), "the end on the box", LIMIT_S)
    box.start()
    rows = front.done(3, LIMIT_S)
    assert [row["outcome"] for row in rows] == ["SUCCEEDED", "SUCCEEDED", "CANCELLED"]
    assert front.written() == ["began", f"{job}.1", "began", f"{job}.2"]


def test_a_host_that_hangs_is_left_alone_for_longer_and_longer(layout: Layout, box: Box) -> None:
    """Each try holds up whoever asks, and so all blocks of that box."""
    made = Ssh("box", replace(box.target, poll_s=30), layout)
    made.folder(TOKEN).path.mkdir(parents=True)
    box.suspend()
    try:
        began = time.monotonic()
        with pytest.raises(NotSent):
            made.send(TOKEN, {})
        first_s, began = time.monotonic() - began, time.monotonic()
        assert CONNECT_S - 1 < first_s < CONNECT_S + 4
        assert made.down is not None and 20 < made.down.next_try_at - time.time() <= 30
        with pytest.raises(NotSent):
            made.send(TOKEN, {})
        for ask in (made.look, made.void, made.remove):
            with pytest.raises(Unreachable):
                ask(TOKEN)
        assert time.monotonic() - began < 1  # nobody waits before the next try
        since = made.down.since
        made.down = replace(made.down, until=0.0)
        with pytest.raises(Unreachable):
            made.void(TOKEN)
        assert 50 < made.down.next_try_at - time.time() <= 60 and made.down.since == since
    finally:
        box.resume()
    made.down = replace(made.down, until=0.0)
    assert made.look(TOKEN).words == "forgotten" and made.down is None
    made.link.hang_up()


@fault
def test_a_host_that_hangs_in_mid_run_says_when_it_is_asked_again(front: Queue, box: Box) -> None:
    quick = box.profile.replace('ssh = "', 'ssh = "-o ServerAliveInterval=1 ')  # in the place of 5 s, three times
    front.layout.config.write_text(front.layout.config.read_text().replace(box.profile, quick))
    job = submit(front, GATED)
    front.worker()
    began(front)
    until(lambda: "box job" in front.why(f"{job}.1"), "why", LIMIT_S)
    box.suspend()
    try:
        until(lambda: "next try is " in front.why(f"{job}.1"), "why", LIMIT_S)
        assert "not answer since" in front.why(f"{job}.1")
        (block,) = queue_status.read_status(front.layout).blocks
        assert block.silent and block.next_try_at is not None and "next try is " in block.status
        go(front)
        until(lambda: f"{job}.1" in front.written(), "the end there", LIMIT_S)
        assert front.rows()[0]["state"] != "DONE"  # it ran there, and nobody here knows
    finally:
        box.resume()
    each_once(front, job, 1)


@fault
@pytest.mark.parametrize("point", ["box.received", "blocks.sent"])
def test_the_front_worker_dies_while_it_sends(front: Queue, box: Box, point: str) -> None:
    go(front)
    job = submit(front, GATED, 2)
    worker = front.worker(point)
    os.kill(front.stopped(point), signal.SIGKILL)
    worker.wait()  # until then it holds the lock of the queue
    front.worker()
    each_once(front, job, 2)


REFUSED = {
    "the upload": ("queue_runner.remote.box receive", "exit 1"),
    "the upload, by the disk": ("queue_runner.remote.box receive", 'ulimit -f 0; exec {python} "$@"'),
    "the start": ("queue_runner.remote.box start", "exit 1"),
}
"""What a box refuses: a sign of its command, and what it does instead."""


@pytest.mark.parametrize("what", REFUSED)
def test_a_start_that_is_refused_leaves_nothing_on_the_box(front: Queue, box: Box, what: str) -> None:
    sign, instead = REFUSED[what]
    kept = box.python.read_text()
    *before, last = kept.splitlines()
    refuses = f'case "$*" in *"{sign}"*) {instead.format(python=sys.executable)};; esac'
    box.python.write_text("\n".join([*before, refuses, last]))
    said = "not answer since" if what == "the start" else "refuses the block"
    try:
        job = submit(front, "echo ran >> $J")
        front.worker()
        until(lambda: said in front.log(), "the refusal", LIMIT_S)
        cancellation.cancel(front.layout, [parse_selector(str(job))], grace_s=None, within_s=LIMIT_S)
        until(lambda: not box.base.exists(), f"an empty disk: {[*box.folder.glob('far/*')]}", LIMIT_S)
        assert front.done(1, LIMIT_S)[0]["outcome"] == "CANCELLED" and front.written() == []
    finally:
        box.python.write_text(kept)


def test_an_upload_that_was_cut_is_removed_with_its_block(layout: Layout, box: Box) -> None:
    """Its process may die with the link, or go on."""
    made = Ssh("box", box.target, layout)
    box.base.mkdir(parents=True)
    for token in (TOKEN, "b" * 32):
        (box.base / f".in-{token}-x").mkdir()
    made.remove(TOKEN)
    assert [path.name for path in box.base.iterdir()] == [f".in-{'b' * 32}-x"]
    made.remove("b" * 32)
    assert not box.base.exists()
    made.link.hang_up()


@fault
def test_a_cancelled_block_leaves_nothing_alive(front: Queue, box: Box) -> None:
    job = submit(front, "echo began >> $J; exec sleep 600", 2)
    front.worker()
    began(front)
    until(lambda: "box job" in front.why(f"{job}.1"), "why", LIMIT_S)
    found = cancellation.cancel(front.layout, [parse_selector(str(job))], grace_s=None, within_s=LIMIT_S)
    assert [one.result for one in found] == [cancellation.CancelResult.CANCELLED] * 2
    assert [row["outcome"] for row in front.rows()] == ["CANCELLED"] * 2
    until(lambda: not (box.base / front.token()).exists(), "an empty disk", LIMIT_S)


@fault
def test_supervisor_and_worker_are_killed_and_the_runs_go_on(front: Queue, box: Box) -> None:
    job = submit(front, GATED, 2)
    front.worker()
    began(front)
    supervisor = box.supervisor()
    (worker,) = [one for one in supervisor.children() if "queue_runner.worker" in words_of(one)]
    worker.kill()
    until(lambda: [one for one in supervisor.children() if one.pid != worker.pid], "another worker")
    supervisor.kill()
    go(front)
    each_once(front, job, 2)


@fault
def test_what_a_supervisor_leaves_that_has_died_too_often_is_ended_and_told(front: Queue, box: Box) -> None:
    """Its worker lives and would go on with the block, of which nobody here knew any more."""
    job = submit(front, "[ -e $J ] || exec echo $MPSQ_RUN >> $J; " + GATED, 3)
    front.worker()
    began(front)
    supervisor = box.supervisor()
    (worker,) = [one for one in supervisor.children() if "queue_runner.worker" in words_of(one)]
    (box.base / front.token() / "starts").write_bytes(b"." * MOST_STARTS)
    supervisor.kill()
    rows = front.done(3, LIMIT_S)
    assert [row["outcome"] for row in rows] == ["SUCCEEDED", "CANCELLED", "SKIPPED"], front.log()
    assert "by node_fail: " in rows[1]["reason"] and rows[2]["reason"].startswith("node_fail: ")
    assert front.written() == [f"{job}.1", "began"] and not worker.is_running()
    until(lambda: not box.base.exists(), "an empty disk", LIMIT_S)


def test_no_run_is_lost_while_something_of_its_block_lives(front: Queue, box: Box) -> None:
    job = submit(front, GATED)
    front.worker()
    began(front)
    supervisor = box.supervisor()
    (box.base / front.token() / "starts").write_bytes(b"." * (MOST_STARTS + MOST_ENDS))
    supervisor.kill()
    until(lambda: "without a supervisor" in front.why(f"{job}.1"), "why", LIMIT_S)
    assert front.rows()[0]["state"] != "DONE"
    go(front)
    assert front.done(1, LIMIT_S)[0]["outcome"] == "LOST"
    asking = "queue_runner.remote.box"
    until(lambda: all(asking in words_of(one) for one in box.processes()), "the end of the block", LIMIT_S)


@pytest.mark.parametrize(("boot", "reason"), [(None, "node_fail"), ("another", "reboot")])
def test_what_died_on_the_box_for_good_is_lost(front: Queue, box: Box, boot: str | None, reason: str) -> None:
    """The box is made to think that it has started the supervisor as often as it does."""
    job = submit(front, GATED, 2)
    front.worker()
    began(front)
    folder = box.base / front.token()
    (folder / "starts").write_bytes(b"." * (MOST_STARTS + MOST_ENDS))
    if boot is not None:
        fence = json.loads((folder / "fence").read_text())
        (folder / "fence").write_text(json.dumps({**fence, "boot": boot}))
    for process in [box.supervisor(), *box.processes()]:
        with contextlib.suppress(psutil.Error):
            process.kill()
    rows = front.done(2, LIMIT_S)
    assert [(row["outcome"], row["reason"].partition(":")[0]) for row in rows] == [("LOST", reason)] * 2
    assert front.written() == ["began"] and rows[0]["job_id"] == job


@pytest.mark.parametrize(
    ("profile", "said"),
    [
        ({"host": "nowhere.invalid"}, "there is no host of that name"),
        ({"ssh": "-F {config} -p 1"}, "Connection refused"),
        ({"ssh": "-F {config} -o UserKnownHostsFile=/dev/null"}, "its host key is not known here"),
        ({"ssh": "-F {config} -l mpsq-nobody"}, "it lets nobody in without a password: run `ssh-copy-id"),
        ({"python": "~/no such/python"}, "there is no ~/no such/python there"),
        ({"python": "/usr/bin/python3"}, "/usr/bin/python3 there has no mpsq"),
        ({"folder": "{config}/blocks"}, "Not a directory"),
    ],
)
def test_what_keeps_a_block_from_a_box_is_said(
    layout: Layout, box: Box, profile: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    changed = {key: text.format(config=box.config) for key, text in profile.items()}
    made = Ssh("box", replace(box.target, **changed), layout)
    folder = made.folder("a" * 32).path
    folder.mkdir(parents=True)
    with pytest.raises(Refused, match=re.escape(said)):
        made.send("a" * 32, {})
    made.link.hang_up()


@pytest.mark.campaign
def test_rounds_follow_on_a_box_until_they_decide(front: Queue) -> None:
    rows = {"argv": ("/bin/sleep", "{s}"), "sets": ("s=0.1,0.9",), "cwd": str(front.folder), "until": "decided"}
    plan.store(front.layout, plan.plan(requested(on="box", **rows)))
    assert front.worker("", "--until-idle").wait(patience(120)) == 0, front.log()
    with read.reading(front.layout.db) as connection:
        assert read.tuples(connection, "SELECT closed_why FROM groups").fetchall() == [("decided",)], front.log()
