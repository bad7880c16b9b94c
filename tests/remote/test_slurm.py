"""Blocks on a real Slurm of two nodes: sent, followed, ingested, cancelled."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from queue_runner.control import cancellation
from queue_runner.errors import UsageError
from queue_runner.model import parse_selector
from tests.cli_support import Cli
from tests.queue_support import Queue, until
from tests.remote.gated_jobs import EVENTS
from tests.remote.slurm_support import Slurm, front_of, running

pytestmark = [pytest.mark.process, pytest.mark.needs_program("slurmctld", "munged")]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Slurm]:
    yield from running()


@pytest.fixture
def front(queue: Queue, cluster: Slurm, monkeypatch: pytest.MonkeyPatch) -> Iterator[Queue]:
    yield from front_of(queue, cluster, monkeypatch)


def machines(queue: Queue) -> dict[str, str]:
    return {row["run"]: row["machine_hash"] for row in queue.rows()}


def iterations(queue: Queue) -> int:
    with sqlite3.connect(f"file:{queue.layout.db}?mode=ro", uri=True) as connection:
        return int(connection.execute("SELECT count(*) FROM iterations").fetchone()[0])


def test_a_block_comes_back_as_runs_of_its_node(front: Queue, mpsq: Cli) -> None:
    remote = front.submit(
        EVENTS + "echo out; echo err >&2; mkdir -p $MPSQ_OUT; echo kept > $MPSQ_OUT/file", 2, on="slurm"
    )
    here = front.submit("echo here")
    front.worker()
    rows = {row["run"]: row for row in front.done(3)}
    assert {row["outcome"] for row in rows.values()} == {"SUCCEEDED"}
    assert [rows[f"{remote}.{n}"]["n_iters"] for n in (1, 2)] == [3, 3]
    machine = machines(front)
    assert machine[f"{remote}.1"] == machine[f"{remote}.2"] != machine[f"{here}.1"]
    folder = front.layout.run_dir(f"{remote}.1")
    assert (folder / "stdout.log").read_text() == "out\n"
    assert (folder / "out/file").read_text() == "kept\n"
    assert rows[f"{remote}.1"]["real_s"] > 0
    assert f"{remote}.1" in mpsq("report", "iterations", str(remote)).out


def test_a_failing_run_has_its_own_outcome(front: Queue, cluster: Slurm) -> None:
    job = front.submit("echo broken >&2; exit 3", on="slurm")
    front.worker()
    (row,) = front.done()
    assert (row["outcome"], row["exit_code"], row["reason"]) == ("FAILED", 3, "broken")
    assert "exit code 3" in front.why(f"{job}.1")


def test_cancel_ends_a_run_on_its_node_and_why_says_where_it_is(front: Queue, cluster: Slurm) -> None:
    job = front.submit("echo started; exec sleep 600", 2, on="slurm")
    assert "no worker" in front.why(f"{job}.1")
    front.worker()
    log = front.layout.run_dir(f"{job}.1") / "stdout.log"
    until(lambda: log.exists() and log.read_text() == "started\n", "the log")
    until(lambda: all("slurm job" in front.why(f"{job}.{number}") for number in (1, 2)), "where they are")
    found = cancellation.cancel(front.layout, [parse_selector(str(job))], grace_s=None, within_s=30.0)
    assert [one.result for one in found] == [cancellation.CancelResult.CANCELLED] * 2
    assert [row["outcome"] for row in front.rows()] == ["CANCELLED", "CANCELLED"]


def test_two_nodes_of_one_kind_are_two_machines_of_one_table(front: Queue, mpsq: Cli, tmp_path: Path) -> None:
    both = f": > {tmp_path}/$$.began; until [ $(ls {tmp_path}/*.began | wc -l) = 2 ]; do sleep 0.1; done"
    jobs = [front.submit(EVENTS + both, on="slurm", device="cpu", whole_node=True) for _ in range(2)]
    front.worker("", "--until-idle")
    front.done(2)
    machine = machines(front)
    assert len({machine[f"{job}.1"] for job in jobs}) == 2
    (row,) = mpsq("report", "--all", "--json").json()["rows"]
    assert (row["n_runs"], row["n_machines"]) == (2, 2)


def test_two_blocks_have_a_gpu_each_of_one_node_at_once(front: Queue, cluster: Slurm) -> None:
    """Each waits until both have begun."""
    script = "echo began >> $J; until [ $(grep -c began $J) = 2 ]; do sleep 0.05; done"
    for _ in range(2):
        front.submit(script, on="slurm", gpus=1, sbatch="--nodelist=n1")
    front.worker()
    until(lambda: len(front.written()) == 2, "two runs at once")
    assert cluster.ask("squeue", "-h", "-o", "%b %N").split("\n")[:2] == ["gres:gpu:1 n1"] * 2
    assert [row["outcome"] for row in front.done(2)] == ["SUCCEEDED"] * 2
    (locks,) = cluster.folder.glob("locks-n1")
    assert not list(locks.glob("lane-slurm-*"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"partition": "nope"}, "partition"),
        ({"gpus": 9}, "not available"),
        ({"time_s": 18000.0}, "the partition's limit"),
        ({"sbatch": "--array=1-4"}, "one block"),
        ({"sbatch": "-N 2"}, "one node"),
    ],
)
def test_what_slurm_would_never_run_is_refused_and_not_stored(
    front: Queue, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        front.submit("true", on="slurm", **options)
    assert front.rows() == []


@pytest.mark.campaign
def test_the_limit_of_the_allocation_ends_the_run_cleanly(front: Queue, cluster: Slurm) -> None:
    """Slurm itself signals, within 30 s of the time that --signal sets: 10 s after the start."""
    front.submit("echo began >> $J; exec sleep 600", 2, on="slurm", time_s=60.0, sbatch="--signal=B:TERM@50")
    front.worker()
    rows = front.done(2, 120.0)
    first = "TIMED_OUT" if front.written() else "SKIPPED"  # on a busy machine nothing may have begun by then
    assert [row["outcome"] for row in rows] == [first, "SKIPPED"], front.log()
    assert all("walltime: " in row["reason"] for row in rows), rows


def test_without_slurm_there_is_a_clear_error(front: Queue, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with monkeypatch.context() as bare:
        bare.setenv("PATH", str(tmp_path))
        with pytest.raises(UsageError, match="there is no Slurm here"):
            front.submit("true", on="slurm")


def test_doctor_examines_the_cluster(front: Queue, cluster: Slurm, mpsq: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile that fits, one that does not, and no Slurm at all; the probe leaves nothing behind."""

    def checks(*arguments: str) -> dict[str, dict[str, str]]:
        found = mpsq("doctor", "--on", "slurm", "--json", *arguments).json()
        return {check["name"]: check for check in found["checks"]}

    found = checks("--smoke")
    assert {name: check["verdict"] for name, check in found.items() if check["verdict"] != "ok"} == {"folder": "warn"}
    assert found["node"]["finding"].startswith(("n1 sees the folder", "n2 sees the folder"))
    assert list(cluster.shared.glob(".mpsq-[!b]*")) == []
    good = front.layout.config.read_text()
    bare = cluster.folder / "bare"
    bare.write_text("#!/bin/sh\necho no mpsq here >&2; exit 1\n")
    bare.chmod(0o755)
    wrong = good.replace(str(cluster.python), str(bare)).replace(str(cluster.shared), f"{bare}/none")
    front.layout.config.write_text(wrong + 'partition = "nope"\n')
    found = checks()
    failed = {name: check["finding"] for name, check in found.items() if check["verdict"] == "fail"}
    assert failed.keys() == {"options", "folder", "python"}
    assert all(check["fix"] for check in found.values() if check["verdict"] == "fail")
    assert "partition" in failed["options"] and "no mpsq here" in failed["python"]
    front.layout.config.write_text(good + 'time = "1-00:00"\n')
    refused = mpsq("doctor", "--on", "slurm")
    assert refused.code == 2 and "on.slurm.time" in refused.err
    front.layout.config.write_text(good)
    monkeypatch.setenv("PATH", str(cluster.folder))
    assert "there is no Slurm here" in checks()["commands"]["finding"]
    assert mpsq("doctor", "--on", "nowhere").code == 2


def test_the_verbs_follow_a_block(front: Queue, cluster: Slurm, mpsq: Cli) -> None:
    """logs -f, wait and status --watch, each a process of its own, from before the block is sent until it has ended."""
    job = front.submit(EVENTS + "echo one; while [ ! -e $J.go ]; do sleep 0.05; done; echo two", on="slurm")
    out = {name: front.folder / name for name in ("logs", "wait", "status")}
    commands = {"logs": ["logs", "-f", str(job)], "wait": ["wait", str(job)], "status": ["status", "--watch"]}
    front.worker()
    started = {}
    for name, command in commands.items():
        with out[name].open("wb") as stream:
            argv = [sys.executable, "-m", "queue_runner.cli", *command]
            started[name] = subprocess.Popen(argv, stdout=stream, stderr=stream)
    try:
        until(lambda: "\none\n" in f"\n{out['logs'].read_text()}", "the first line, while it runs", 60.0)
        assert mpsq("status", "--json").json()["blocks"][0]["running"] == f"{job}.1"
        until(lambda: iterations(front) == 3, "its iterations in the database, while it runs")
        front.journal.with_name(front.journal.name + ".go").touch()
        assert started["logs"].wait() == 0 and started["wait"].wait() == 0
        assert "two" in out["logs"].read_text() and "1 of 1 runs succeeded" in out["wait"].read_text()
        until(lambda: "outcome" in out["status"].read_text(), "its end in the status")
    finally:
        for process in started.values():
            process.kill()
            process.wait()
    assert "RUNNING on n" in out["status"].read_text()
