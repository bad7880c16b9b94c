"""Faults planted in a real Slurm: every run has its one true outcome, none runs twice, nothing lives on a node after.

`make test` plants the three that could run something twice, once each; `make campaign` plants each, ten times.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from queue_runner.control import cancellation, new_attempts
from queue_runner.model import parse_selector
from queue_runner.monitor import answers
from queue_runner.store import read
from tests.cli_support import Cli
from tests.process_support import needs_linux
from tests.queue_support import Queue, until
from tests.remote.gated_jobs import GATED, LIMIT_S, began, each_once, go
from tests.remote.slurm_support import TIMES, Slurm, front_of, running

pytestmark = [pytest.mark.process, pytest.mark.needs_program("slurmctld", "munged")]

LATE = """
import os, subprocess
replace = os.replace
def late(source, target):
    if not str(target).endswith("/result.mpsq"):
        return replace(source, target)
    there = f"{target}.late"
    replace(source, there)
    subprocess.Popen(["sh", "-c", 'sleep 4; mv "$0" "$1"', there, str(target)], start_new_session=True)
os.replace = late
"""
"""A sitecustomize of the node's Python: the result of a run gets its name 4 s after the node believes so."""


SIGNALS = pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="kill-5-cancel"),
        pytest.param({"KillWait": "30", "PreemptMode": "REQUEUE"}, id="kill-30-requeue", marks=pytest.mark.campaign),
    ],
)
"""Settings of Slurm on which an end by a signal depends."""


@pytest.fixture
def settings() -> dict[str, str]:
    return {}


@pytest.fixture(params=range(TIMES))
def cluster(settings: dict[str, str]) -> Iterator[Slurm]:
    yield from running(settings=settings)


@pytest.fixture
def front(queue: Queue, cluster: Slurm, monkeypatch: pytest.MonkeyPatch) -> Iterator[Queue]:
    yield from front_of(queue, cluster, monkeypatch)


@pytest.mark.campaign
def test_the_controller_is_killed_in_mid_run_and_comes_back(front: Queue, cluster: Slurm) -> None:
    job = front.submit(GATED, 2, on="slurm")
    front.worker()
    began(front)
    cluster.kill("slurmctld")
    go(front)
    until(lambda: front.rows()[0]["state"] == "DONE", "the first run, without a controller", LIMIT_S)
    cluster.start_controller()
    each_once(front, job, 2)


@pytest.mark.campaign
def test_the_state_of_the_controller_is_wiped_in_mid_run(front: Queue, cluster: Slurm) -> None:
    """slurmd kills what the new controller does not know: the run is lost or has succeeded, but never runs again."""
    job = front.submit(GATED, 2, on="slurm")
    front.worker()
    began(front)
    cluster.kill("slurmctld")
    shutil.rmtree(cluster.folder / "state")
    (cluster.folder / "state").mkdir()
    cluster.start_controller()
    go(front)
    rows = front.done(2, LIMIT_S)
    ran = [line for line in front.written() if line != "began"]
    assert len(ran) == len(set(ran)) and set(ran) <= {f"{job}.1", f"{job}.2"}
    for row in rows:
        assert (row["outcome"] == "SUCCEEDED") <= (row["run"] in ran)
        assert row["outcome"] in ("SUCCEEDED", "CANCELLED", "SKIPPED", "LOST"), row


@pytest.mark.campaign
def test_squeue_hangs_and_every_verb_says_since_when(
    front: Queue, cluster: Slurm, mpsq: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrapper script that hangs 20 s stands in for a controller that does; runs here and records go on."""
    stand_in = front.folder / "bin"
    stand_in.mkdir()
    (stand_in / "squeue").write_text("#!/bin/sh\nexec sleep 20\n")
    (stand_in / "sacct").write_text(f"#!/bin/sh\necho sacct >> {stand_in}/asked\nexit 1\n")  # there is no accounting
    for one in stand_in.iterdir():
        one.chmod(0o755)
    job = front.submit(GATED, 2, on="slurm")
    monkeypatch.setenv("PATH", f"{stand_in}:{os.environ['PATH']}")
    front.worker()
    since = "slurm does not answer since "
    until(lambda: since in front.why(f"{job}.1"), "why", LIMIT_S)
    began(front)
    here = front.submit("echo here")
    until(
        lambda: any(row["job_id"] == here and row["state"] == "DONE" for row in front.rows()), "the run here", LIMIT_S
    )
    assert since in front.why(f"{job}.1")  # and it still hangs
    assert since in " ".join(mpsq("status").out.split())
    assert since in mpsq("wait", job, "--timeout", "1ms").err
    assert since in mpsq("cancel", f"{job}.2", "--no-wait").out
    following = subprocess.Popen(
        [sys.executable, "-m", "queue_runner.cli", "logs", "-f", str(job)], stderr=subprocess.PIPE, text=True
    )
    assert following.stderr is not None
    try:
        assert any(since in line for line in following.stderr)  # else it goes on until the run has ended
        until(lambda: any(row["outcome"] == "CANCELLED" for row in front.rows()), "the cancel on the node", LIMIT_S)
        go(front)
        rows = front.done(3, LIMIT_S)
    finally:
        following.kill()
        following.wait()
    assert [row["outcome"] for row in rows if row["job_id"] == job] == ["SUCCEEDED", "CANCELLED"]
    assert front.written() == ["began", f"{job}.1"]
    assert not (stand_in / "asked").exists()


@pytest.mark.campaign
def test_slurmd_and_its_stepd_are_killed_and_the_runs_go_on(front: Queue, cluster: Slurm) -> None:
    job = front.submit(GATED, 2, on="slurm")
    front.worker()
    began(front)
    fence = next(cluster.shared.glob("*/fence"))
    node = json.loads(fence.read_text())
    script = psutil.Process(node["pid"]).parent()
    parent = script and script.parent()
    assert parent is not None and parent.name() == "slurmstepd"
    cluster.kill(node["node"])
    parent.kill()
    go(front)
    each_once(front, job, 2)


def test_the_supervisor_on_the_node_is_killed_and_another_goes_on(front: Queue, cluster: Slurm) -> None:
    job = front.submit(GATED, 3, on="slurm")
    front.worker()
    began(front)
    os.kill(json.loads(next(cluster.shared.glob("*/fence")).read_text())["pid"], signal.SIGKILL)
    go(front)
    each_once(front, job, 3)


def test_a_requeued_block_does_not_start_twice(front: Queue, cluster: Slurm) -> None:
    job = front.submit(GATED, 2, on="slurm")
    front.worker()
    began(front)
    id = cluster.ask("squeue", "-h", "-o", "%i").strip()
    refused = subprocess.run(["scontrol", "requeue", id], capture_output=True, check=False)
    assert refused.returncode != 0  # --no-requeue
    script = next(cluster.shared.glob("*/block.sh"))
    again = subprocess.run(["sh", str(script)], capture_output=True, text=True, check=False)
    assert again.returncode == 0 and "started before" in again.stderr
    go(front)
    each_once(front, job, 2)


AROUND_SBATCH = [pytest.param("blocks.marked", marks=pytest.mark.campaign), "blocks.sent"]
OF_A_RESULT = [pytest.param(point, marks=pytest.mark.campaign) for point in ("merge.batch", "blocks.ingested")]


@pytest.mark.parametrize("point", [*AROUND_SBATCH, *OF_A_RESULT])
def test_the_front_worker_dies_around_sbatch_or_while_it_stores_a_result(
    front: Queue, cluster: Slurm, point: str
) -> None:
    go(front)
    job = front.submit(GATED, 2, on="slurm")
    worker = front.worker(point)
    os.kill(front.stopped(point), signal.SIGKILL)
    worker.wait()  # until then it holds the lock of the queue
    front.worker()
    each_once(front, job, 2)


@needs_linux
@pytest.mark.campaign
def test_the_shared_folder_is_full_for_a_while(front: Queue, cluster: Slurm) -> None:
    """A tmpfs of 8 MB, filled: records are tried again until there is room."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(cluster.shared)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("needs root: a small tmpfs stands in for a full shared folder")
    try:
        job = front.submit(GATED, 2, on="slurm")
        front.worker()
        began(front)
        filler = cluster.shared / "filler"
        with filler.open("wb", buffering=0) as stream:
            try:
                while True:
                    stream.write(bytes(4096))
            except OSError:
                pass
        go(front)
        until(lambda: f"{job}.2" in front.written(), "both runs on the node", LIMIT_S)
        assert all(row["state"] != "DONE" for row in front.rows())
        filler.unlink()
        each_once(front, job, 2)
        until(lambda: not cluster.jobs_left(), "the end of the node")
    finally:
        front.close()
        until(lambda: subprocess.run(["umount", str(cluster.shared)], check=False).returncode == 0, "umount")


@pytest.mark.campaign
def test_records_get_their_names_after_the_block_is_over(front: Queue, cluster: Slurm) -> None:
    """As a shared folder shows them whose names are cached: within the grace nothing is LOST."""
    (cluster.folder / "late").mkdir()
    (cluster.folder / "late" / "sitecustomize.py").write_text(LATE)
    *first, last = cluster.python.read_text().splitlines()
    cluster.python.write_text("\n".join([*first, f"export PYTHONPATH={cluster.folder}/late:$PYTHONPATH", last, ""]))
    front.layout.config.write_text(front.layout.config.read_text().replace('grace = "3s"', 'grace = "30s"'))
    go(front)
    job = front.submit(GATED, 2, on="slurm")
    front.worker()
    until(lambda: "the node has ended the block" in front.log(), "the end of the block", LIMIT_S)
    assert front.rows()[-1]["state"] != "DONE"
    each_once(front, job, 2)
    assert "report it" not in front.log()


@pytest.mark.campaign
def test_a_block_that_waits_is_cancelled_and_never_starts(front: Queue, cluster: Slurm) -> None:
    for node in ("n1", "n2"):
        cluster.ask("sbatch", "--exclusive", f"--nodelist={node}", "--output=/dev/null", "--wrap", "sleep 600")
    job = front.submit(GATED, 2, on="slurm")
    front.worker()
    until(lambda: "PENDING" in front.why(f"{job}.1"), "a block that waits", LIMIT_S)
    found = cancellation.cancel(front.layout, [parse_selector(str(job))], grace_s=None, within_s=60.0)
    assert [one.result for one in found] == [cancellation.CancelResult.CANCELLED] * 2
    until(lambda: "mpsq" not in cluster.ask("squeue", "-h", "-o", "%j"), "an empty cluster")
    cluster.ask("scancel", "--full", "--user", str(os.getuid())) if os.getuid() else cluster.ask("scancel", "1", "2")
    until(lambda: not cluster.ask("squeue", "-h", "-t", "PD,R,CG"), "an empty cluster")
    assert front.written() == []


def place(cluster: Slurm) -> tuple[str, str]:
    """The node of the only block, and its job there."""
    fence = json.loads(next(cluster.shared.glob("*/fence")).read_text())
    return fence["node"], fence["job"]


def preempt(cluster: Slurm) -> None:
    where = ["--partition=urgent", "--exclusive", f"--nodelist={place(cluster)[0]}"]
    cluster.ask("sbatch", *where, "--output=/dev/null", "--wrap=sleep 1")


@SIGNALS
def test_a_block_that_somebody_cancels_is_cancelled_and_not_sent_again(front: Queue, cluster: Slurm) -> None:
    front.submit(GATED, 3, on="slurm", retries=2, retry_on=("failed", "lost"))
    front.worker()
    began(front)
    cluster.ask("scancel", place(cluster)[1])
    rows = front.done(3, LIMIT_S)
    assert [row["outcome"] for row in rows] == ["CANCELLED"] * 3, front.log()
    assert all("slurm says CANCELLED" in row["reason"] for row in rows)
    assert front.written() == ["began"]
    cluster.sweep()


@SIGNALS
def test_a_preempted_block_is_sent_again_where_retries_allow_it(front: Queue, cluster: Slurm) -> None:
    job = front.submit(GATED, 3, on="slurm", retries=1, retry_on=("lost",))
    front.worker()
    began(front)
    preempt(cluster)
    until(lambda: front.rows()[0]["state"] == "DONE", "the end of the first run", LIMIT_S)
    go(front)
    rows = {row["run"]: row for row in front.done(4, LIMIT_S)}
    assert rows.pop(f"{job}.1")["outcome"] == "LOST" and "preempted" in front.why(f"{job}.1")
    assert {row["outcome"] for row in rows.values()} == {"SUCCEEDED"}, front.log()
    assert sorted(line for line in front.written() if line != "began") == [f"{job}.{n}" for n in (2, 3, 4)]
    cluster.sweep()


@SIGNALS
@pytest.mark.campaign
def test_a_preempted_round_runs_again_whole(front: Queue, cluster: Slurm) -> None:
    """Its first row has ended; the second is preempted. Both run again on one node, and the round counts once."""
    script = "[ {x} = 0 ] || echo began >> $J; until [ {x} = 0 ] || [ -e $J.go ]; do sleep 0.05; done"
    terms = {"on": "slurm", "whole_node": True, "nodes_at_once": 2, "retries": 1, "retry_on": ("lost",)}
    first = front.submit(script, 2, sets=("x=0,1",), order_seed=1, **terms)
    planned = {(row["job_id"], row["repeat"]): row["position"] for row in front.rows()}
    half = next(repeat for repeat in (1, 2) if planned[first, repeat] < planned[first + 1, repeat])
    front.worker()
    until(lambda: front.written() == ["began"] * 2, "the second row of both rounds", LIMIT_S)
    until(lambda: front.rows()[half - 1]["state"] == "DONE", "the end of its first row", LIMIT_S)
    begun = [path.parent.parent.parent for path in cluster.shared.glob(f"*/runs/{first + 1}.{half}/began.json")]
    node = json.loads((begun[0] / "fence").read_text())["node"]
    cluster.ask("sbatch", "--partition=urgent", "--exclusive", f"--nodelist={node}", "-o/dev/null", "--wrap=sleep 1")
    until(lambda: any(row["outcome"] == "LOST" for row in front.rows()), "the preempted run", LIMIT_S)
    go(front)
    rows = front.done(6, LIMIT_S)
    attempts = sorted((row["job_id"] - first, row["attempt"], row["outcome"]) for row in rows if row["repeat"] == half)
    assert attempts == [(0, 1, "SUCCEEDED"), (0, 2, "SUCCEEDED"), (1, 1, "LOST"), (1, 2, "SUCCEEDED")], front.log()
    with read.reading(front.layout.db) as connection:
        (family,) = answers.of_group(connection, 1)
    assert [pair.verdict.n for pair in family.pairs] == [2]
    cluster.sweep()


@SIGNALS
def test_a_preempted_run_resumes_elsewhere_from_its_checkpoint(front: Queue, cluster: Slurm) -> None:
    first = "mkdir -p $MPSQ_OUT; echo state > $MPSQ_OUT/ckpt.bin; echo began >> $J; exec sleep 600"
    script = f'if [ -n "$MPSQ_RESUME" ]; then cat "$MPSQ_RESUME" >> $J; else {first}; fi'
    job = front.submit(script, on="slurm", retries=1, resume=True)
    front.worker()
    began(front)
    preempt(cluster)
    rows = {row["run"]: row["outcome"] for row in front.done(2, LIMIT_S)}
    assert rows == {f"{job}.1": "LOST", f"{job}.2": "SUCCEEDED"}, front.log()
    assert front.written() == ["began", "state"]
    cluster.sweep()


@pytest.mark.campaign
def test_a_node_fails_and_what_had_not_begun_runs_elsewhere(front: Queue, cluster: Slurm) -> None:
    """Its slurmd and all processes there are killed: as a power failure leaves it, but for the folder of its block."""
    job = front.submit(GATED, 4, on="slurm", retries=1, retry_on=("lost",))
    front.worker()
    began(front)
    cluster.kill(place(cluster)[0])
    left = cluster.jobs_left()
    for process in cluster._processes() + left:
        with contextlib.suppress(psutil.Error):  # it may have ended since
            if process in left or process.name() == "slurmstepd":
                process.kill()
    go(front)
    rows = {row["run"]: row for row in front.done(6, LIMIT_S)}
    lost = [rows.pop(f"{job}.{n}") for n in (1, 2)]  # the second was permitted: it may have begun
    assert all(row["outcome"] == "LOST" and "node_fail" in row["reason"] for row in lost), lost
    assert {row["outcome"] for row in rows.values()} == {"SUCCEEDED"}, front.log()
    assert sorted(line for line in front.written() if line != "began") == [f"{job}.{n}" for n in (3, 4, 5, 6)]
    cluster.sweep()


@SIGNALS
@pytest.mark.campaign
def test_a_preempted_block_ends_cleanly_and_retry_sends_the_rest(front: Queue, cluster: Slurm) -> None:
    job = front.submit(GATED, 2, on="slurm")
    front.worker()
    began(front)
    preempt(cluster)
    rows = front.done(2, LIMIT_S)
    assert [row["outcome"] for row in rows] == ["LOST", "SKIPPED"]
    assert all("preempted" in row["reason"] for row in rows)
    go(front)
    new_attempts.retry(front.layout, [parse_selector(str(job))])
    rows = front.done(4, LIMIT_S)
    assert [row["outcome"] for row in rows if row["number"] > 2] == ["SUCCEEDED"] * 2
    assert sorted(line for line in front.written() if line != "began") == [f"{job}.3", f"{job}.4"]
    cluster.sweep()


@pytest.mark.campaign
def test_the_folder_of_the_block_is_removed_and_nothing_stays_on_the_node(front: Queue, cluster: Slurm) -> None:
    job = front.submit(GATED, 2, on="slurm")
    front.worker()
    began(front)
    block = next(cluster.shared.glob("*/fence")).parent
    while block.exists():  # its node writes there meanwhile
        shutil.rmtree(block, ignore_errors=True)
    until(lambda: not cluster.jobs_left(), "an empty node", LIMIT_S)
    go(front)
    rows = front.done(2, LIMIT_S)
    assert front.written() == ["began"]
    assert {row["outcome"] for row in rows} == {"LOST"} and "folder_removed" in front.why(f"{job}.1")
