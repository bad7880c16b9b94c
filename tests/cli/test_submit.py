"""submit, cancel, wait, logs, worker, config, db: what they store, and what they say."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from queue_runner.client import Client
from queue_runner.control.cancellation import CancelResult
from queue_runner.errors import WaitTimeout
from queue_runner.host import locks
from queue_runner.host.run_dir import RunDir
from queue_runner.ingest import parsers
from queue_runner.model import Ending, Outcome
from queue_runner.monitor import log_files
from queue_runner.paths import Layout
from queue_runner.store.read import reading
from tests.cli_support import Cli, end_running_run, full_queue, use_toy_workloads

pytestmark = pytest.mark.process


@pytest.fixture
def mpsq(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    use_toy_workloads(tmp_path / "jobs", monkeypatch)
    monkeypatch.chdir(tmp_path)
    return Cli(capsys)


@pytest.fixture
def queue(home: Path) -> Layout:
    return full_queue(home)


@pytest.fixture
def worker(queue: Layout) -> Iterator[None]:
    """Somebody holds the worker's lock."""
    lock = locks.try_lock(locks.worker_lock_path(queue.home))
    assert lock is not None
    with lock:
        yield


def test_a_value_out_of_range_is_refused(layout: Layout, mpsq: Cli, tmp_path: Path) -> None:
    file = tmp_path / "jobs" / "toy_torch.py"
    file.write_text(file.read_text().replace('"unit": "iterations",', '"unit": "iterations", "least": 1,'))
    ran = mpsq("submit", "toy", "--set", "max_iters=5,0")
    assert ran.code == 2 and "max_iters=0" in ran.err and "less than 1" in ran.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--order-seed", str(2**63), "toy"], f"--order-seed {2**63} is out of range"),
        (["toy", "--set", "note=\udcff"], "not valid UTF-8"),
        (["--", "true", "\udcff"], "not valid UTF-8"),
    ],
)
def test_what_the_database_cannot_hold_is_refused(layout: Layout, mpsq: Cli, words: list[str], told: str) -> None:
    """A byte that is not UTF-8 is half a character in Python, as in the name of an old file."""
    for end in ([], ["--dry-run"]):
        ran = mpsq("submit", *end, *words)
        assert ran.code == 2 and told in ran.err


def test_a_grid_is_one_group_in_a_seeded_order(layout: Layout, mpsq: Cli) -> None:
    grid = [
        "toy",
        "--device",
        "cpu,cuda",
        "--compile",
        "both",
        "--set",
        "lr=0.1,0.2",
        "--repeats",
        "3",
        "--order-seed",
        "5",
    ]
    ran = mpsq.ok("submit", *grid)
    assert ran.out.startswith("g1: 8 jobs, 24 runs queued (")
    assert "no worker runs" in ran.err and "mpsq service install" in ran.err
    again = mpsq.ok("submit", *grid, "--json").json()
    assert (again["group"], again["jobs"], len(again["runs"]), again["seed"]) == (2, [*range(9, 17)], 24, 5)
    with reading(layout.db) as connection:
        rows = connection.execute("SELECT run, number FROM v_run WHERE group_id = 2 ORDER BY position").fetchall()
    assert [row["run"] for row in rows[:8]] == [f"{job}.0" for job in again["jobs"]]  # the preflights
    order = [row["run"] for row in rows[8:]]
    assert order == again["runs"]
    jobs = mpsq.ok("list", "g1", "--json").json()["jobs"]
    asked = {(job["device"], job["compile"], job["sets"]["lr"]) for job in jobs}
    assert asked == {(d, c, lr) for d in ("cpu", "cuda") for c in (False, True) for lr in (0.1, 0.2)}
    assert {job["config"] for job in jobs} == {"tiny"} and {job["repeats"] for job in jobs} == {3}


def test_everything_that_is_asked_is_kept(layout: Layout, mpsq: Cli, tmp_path: Path) -> None:
    (tmp_path / "place").mkdir()
    options = ["--priority", "7", "--name", "mine", "--tag", "a", "--tag", "b", "--env", "X=1", "--timeout", "1h30m"]
    mpsq.ok(
        "submit",
        "--cwd",
        "place",
        *options,
        "--parser",
        "nanogpt",
        "--allow-daemons",
        "--",
        "sh",
        "-c",
        "true",
        "--json",
    )
    run = mpsq.ok("show", "1", "--json").json()["runs"][0]
    assert run["argv"] == ["sh", "-c", "true", "--json"]
    assert (run["run"]["priority"], run["run"]["name"], run["run"]["tags"]) == (7, "mine", ["a", "b"])
    assert run["cwd"] == str(tmp_path / "place") and run["timeout_s"] == 5400 and run["parser"] == "nanogpt"
    assert "X" in run["env"]
    with reading(layout.db) as connection:
        spec = connection.execute("SELECT json_extract(spec_json, '$.allow_daemons') AS d FROM jobs").fetchone()
    assert spec["d"] == 1


def test_a_workload_runs_from_its_snapshot(layout: Layout, mpsq: Cli) -> None:
    mpsq.ok("submit", "toy", "--set", "fused=off", "--seed", "3")
    run = mpsq.ok("show", "1", "--json").json()["runs"][0]
    script = Path(run["argv"][1])
    assert script.name == "toy_torch.py" and layout.snapshots in script.parents and script.exists()
    asked = "--device auto --compile off --dtype fp32 --config tiny --seed 3 --set fused=false"
    assert run["argv"][2:] == asked.split()


def test_dry_run_stores_nothing(home: Path, mpsq: Cli) -> None:
    asked = ["submit", "toy", "--device", "cpu,cuda", "--repeats", "2", "--order-seed", "1", "--dry-run"]
    ran = mpsq.ok(*asked)
    assert "row 2: toy: cuda" in ran.out and "--device cuda" in ran.out
    assert "seed 1)" in ran.out and "nothing was stored" in ran.err
    plan = mpsq.ok(*asked, "--json").json()
    assert sorted((turn["cell"], turn["repeat"]) for turn in plan["order"]) == [(0, 1), (0, 2), (1, 1), (1, 2)]
    assert not home.exists()


def test_the_title_keeps_no_secret(layout: Layout, mpsq: Cli) -> None:
    token = "ghp_0123456789abcdefghij"
    refused = mpsq("submit", "--", "true", token)
    assert refused.code == 2 and "--secret NAME" in refused.err and token not in refused.err
    mpsq.ok("submit", "--env", "MYTOKEN=hunter2", "--allow-plain", "--", "true", token)
    with reading(layout.db) as connection:
        title = connection.execute("SELECT title FROM groups").fetchone()["title"]
    assert title == "mpsq submit --env 'MYTOKEN=[hidden]' --allow-plain -- true '[hidden]'"


def test_cancel_of_what_waits_and_what_has_ended(queue: Layout, mpsq: Cli) -> None:
    ran = mpsq.ok("cancel", "g2", "1", "2")
    assert "2 runs (5.1, 6.1) cancelled" in ran.out
    facts = "(1.1, 1.2) had already", "(SUCCEEDED)", "run 2.1 had already", "(FAILED)"
    assert all(fact in ran.out for fact in facts), ran.out
    assert "before it started" in mpsq.ok("why", "5").out


def test_cancel_without_a_worker_leaves_the_request_for_the_warden(queue: Layout, mpsq: Cli) -> None:
    ran = mpsq.ok("cancel", "4", "--grace", "0")
    assert "when a worker starts" in ran.out and "no worker runs" in ran.err
    assert "(grace 0 s)" in RunDir(queue.run_dir("4.1")).cancel.read_text()
    with reading(queue.db) as connection:
        row = connection.execute("SELECT cancel_requested_at, state FROM v_run WHERE run = '4.1'").fetchone()
    assert row["cancel_requested_at"] and row["state"] == "RUNNING"
    assert "cancellation was requested" in mpsq.ok("status").out
    (queue.run_dir("4.1") / "warden" / "exit.json").write_text('{"v": 1, "exit_code": 0}')
    assert mpsq.ok("cancel", "4", "--json").json()["runs"][0]["result"] == CancelResult.UNRECORDED


@pytest.mark.parametrize(
    ("ending", "said"),
    [
        (Ending(Outcome.CANCELLED, signal=2), "run 4.1 cancelled"),
        (Ending(Outcome.SUCCEEDED, 0), "run 4.1 finished before its cancellation (SUCCEEDED)"),
    ],
    ids=["cancelled", "finished first"],
)
def test_cancel_tells_the_truth(
    queue: Layout, worker: None, mpsq: Cli, monkeypatch: pytest.MonkeyPatch, ending: Ending, said: str
) -> None:
    monkeypatch.setattr("queue_runner.host.wakeup.ring", lambda _: end_running_run(queue, ending))
    assert said in mpsq.ok("cancel", "4").out


def test_cancel_without_waiting(queue: Layout, worker: None, mpsq: Cli) -> None:
    assert "4.1 is being cancelled" in mpsq.ok("cancel", "4", "--no-wait").out


def test_wait_has_three_ends(queue: Layout, mpsq: Cli) -> None:
    assert mpsq.ok("wait", "1").out == "2 of 2 runs succeeded\n"
    ran = mpsq("wait", "1", "2")
    assert ran.code == 3 and "run 2.1: FAILED(3): ValueError" in ran.out and "mpsq why 2.1" in ran.err
    ran = mpsq("wait", "4", "--timeout", "50ms")
    assert ran.code == 124 and "ended after 50.0 ms" in ran.err and "no worker runs" in ran.err


def test_wait_sees_the_end(queue: Layout, worker: None, mpsq: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = threading.Timer(0, end_running_run, (queue, Ending(Outcome.SUCCEEDED, 0)))
    monkeypatch.setattr("queue_runner.monitor.awaiting._POLL_S", 0.005)
    ends.start()
    assert mpsq.ok("wait", "4", "--timeout", "20s").out == "1 of 1 runs succeeded\n"
    ends.join()


def test_logs_of_a_job_are_those_of_its_newest_run(queue: Layout, mpsq: Cli) -> None:
    assert mpsq.ok("logs", "1").out == "hello from 1.2\nwarning\n"
    assert mpsq.ok("logs", "1.1", "--out").out == "hello from 1.1\n"
    assert mpsq.ok("logs", "g1", "--out").out == "hello from 4.1\n"
    assert mpsq.ok("logs", "1", "--err").out == "warning\n"
    assert mpsq.ok("logs", "1", "--out", "--err").out == "hello from 1.2\nwarning\n"
    RunDir(queue.run_dir("1.2")).stderr.unlink()
    RunDir(queue.run_dir("1.2")).stdout.write_text("a\nb\n1%\r50%\r100%\nend")
    assert mpsq.ok("logs", "1", "--tail", "2").out == "100%\nend\n"
    assert mpsq.ok("logs", "1", "--tail", "0").out == ""
    assert mpsq.ok("logs", "1", "--raw", "-n", "2").out == "1%\r50%\r100%\nend"


@pytest.mark.parametrize("text", [b"", b"a", b"a\n", b"a\nb", b"\n\n\n", b"a\nbb\nccc\n" * 50_000])
@pytest.mark.parametrize("lines", [0, 1, 2, 7])
def test_tail_is_found_from_the_end(text: bytes, lines: int) -> None:
    offset = log_files.tail_offset(io.BytesIO(text), lines)
    assert text[offset:] == b"".join(text.splitlines(keepends=True)[-lines or len(text) + 1 :])


@pytest.mark.parametrize("command", ["submit", "import"])
def test_help_names_every_parser(command: str, mpsq: Cli) -> None:
    text = " ".join(mpsq.ok(command, "--help").out.split())
    assert ", ".join(parsers.names()) in text and len(parsers.names()) >= 4


def test_worker_becomes_the_daemon(mpsq: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[tuple[object, ...]] = []
    monkeypatch.setattr(os, "execve", lambda *arguments: called.append(arguments))
    mpsq.ok("worker", "--until-idle")
    _, arguments, environment = called[0]
    assert list(arguments)[1:] == ["-P", "-m", "queue_runner.worker", "--until-idle"]
    assert "PYTHONPATH" in environment


def test_config(home: Path, mpsq: Cli) -> None:
    assert mpsq.ok("config", "set", "grace_int_s", "2m").out == "grace_int_s = 120\n"
    listed = mpsq.ok("config", "list")
    assert "120 s" in listed.out
    assert str(home / "config.toml") in listed.err and max(map(len, listed.out.splitlines())) <= 80
    assert mpsq("config", "set", "keep_awake", "perhaps").code == 2


def test_settings_say_their_whole_meaning(home: Path, mpsq: Cli) -> None:
    out = mpsq.ok("config", "list").out
    assert "…" not in out and max(map(len, out.splitlines())) <= 80


def test_db(layout: Layout, mpsq: Cli) -> None:
    assert mpsq.ok("db", "path").out == f"{layout.db}\n"
    assert "sound" in mpsq.ok("db", "check").out
    assert "as it was" in mpsq.ok("db", "upgrade").out
    assert Path(mpsq.ok("db", "backup").out.strip()).parent == layout.backups


def test_workloads(mpsq: Cli) -> None:
    table = mpsq.ok("workloads").out
    assert "toy" in table and "mlx" in table and "tiny, large" in table
    out = mpsq.ok("workloads", "toy").out
    assert "max_iters  10 iterations" in out and "it trains" in out and "tiny: max_iters=5" in out
    assert mpsq.ok("workloads", "toy", "--framework", "mlx", "--json").json()["workload"]["framework"] == "mlx"


def test_why_nothing_starts_is_reported_once(layout: Layout, mpsq: Cli) -> None:
    assert "no worker runs" in mpsq.ok("submit", "--", "true").err
    assert "no worker runs" not in mpsq.ok("submit", "--", "true").err
    mpsq.ok("pause")
    messages = mpsq.ok("submit", "--", "true").err
    assert "paused; mpsq resume" in messages and "no worker runs" in messages
    assert "queue is paused" in mpsq("wait", "1", "--timeout", "50ms").err
    with pytest.warns(UserWarning, match="no worker runs|queue is paused"), pytest.raises(WaitTimeout):
        Client(layout.home).wait(1, timeout=0.05)


def test_a_name_selects_the_jobs_that_bear_it(queue: Layout, mpsq: Cli) -> None:
    assert mpsq.ok("why", "failed", "--json").json()["runs"][0]["run"] == "2.1"
    assert mpsq.ok("list", "ok", "--json").json()["jobs"][0]["job"] == 1
    assert mpsq.ok("cancel", "waits1").out == "run 5.1 cancelled\n"
    mpsq.ok("submit", "--after", "waits2:any", "--", "true")
    assert "job 6 must end" in mpsq.ok("why", "@last").out
    assert "hello from 1.2" in mpsq.ok("logs", "ok").out
    assert 'named "okk"' in mpsq("show", "okk").err
    assert mpsq.ok("report", "ok").code == 0 and 'mean "devices"' in mpsq("report", "devces").err


def test_a_name_that_other_jobs_have_gets_a_note(layout: Layout, mpsq: Cli, tmp_path: Path) -> None:
    (tmp_path / "jobs.jsonl").write_text('{"name": "base", "command": ["true"]}\n')
    assert "also selects" not in mpsq.ok("submit", "--name", "base", "--device", "cpu,mps", "toy").err
    err = mpsq.ok("submit", "--name", "base", "toy").err
    assert all(x in err for x in ("base", "jobs 1, 2", "g2")), err
    assert "jobs 1, 2, 3" in mpsq.ok("submit", "--from", "jobs.jsonl").err
    mpsq.ok("submit", "toy")
    mpsq.ok("submit", "--", "true")
    for words in (["toy"], ["--", "true"], ["--name", "other", "toy"], ["--name", "1", "toy"]):
        assert "also selects" not in mpsq.ok("submit", *words).err
