"""status, list, show, why: a queue with runs in every state, read without SQLAlchemy."""

from __future__ import annotations

import io
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from queue_runner.cli.common import hint, say
from queue_runner.host import locks
from queue_runner.paths import Layout
from tests.cli_support import Cli, full_queue, taint

pytestmark = pytest.mark.process


@pytest.fixture
def queue(home: Path) -> Layout:
    return full_queue(home)


def test_status_shows_lane_progress_and_queue(queue: Layout, mpsq: Cli) -> None:
    out = mpsq.ok("status").out
    assert "worker   none" in out and "mpsq worker" in out
    assert "running  4.1  running" in out
    facts = "phase measure", "20 of 40", "20.00 ms/iter", "loss 2.1000", "1 s of training"
    assert all(fact in out for fact in facts), out
    assert [word for word in out.split() if word in ("5.1", "6.1")][:2] == ["5.1", "6.1"] and "waiting  2 runs" in out
    assert "FAILED(3)" in out and "KILLED(9)" in out
    assert max(map(len, out.splitlines())) <= 80


def test_status_names_the_worker_and_what_blocks_the_lane(queue: Layout, mpsq: Cli) -> None:
    import sqlite3

    lock = locks.try_lock(locks.worker_lock_path(queue.home))
    assert lock is not None
    with lock:
        lock.write_holder()
        with sqlite3.connect(queue.db) as connection:
            connection.execute(
                "INSERT INTO lanes (name, blocked_reason) VALUES ('machine', 'process 77 survived SIGKILL')"
            )
        ran = mpsq.ok("status", "--json").json()
        assert ran["worker"]["alive"] and isinstance(ran["worker"]["pid"], int)
        assert "process 77 survived SIGKILL" in mpsq.ok("status").out
        assert "process 77 survived SIGKILL" in mpsq.ok("why", "5").out


def test_status_shows_a_few_of_many(queue: Layout, mpsq: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queue_runner.monitor.status_text.SHOWN", 1)
    assert "1 more: mpsq status" in mpsq.ok("status").out
    assert "6.1" in mpsq.ok("status", "--all").out


def test_list_filters(queue: Layout, mpsq: Cli) -> None:
    def names(*arguments: str) -> list[str]:
        return [job["name"] for job in mpsq.ok("list", "--json", *arguments).json()["jobs"]]

    everything = ["ok", "failed", "killed", "running", "waits1", "waits2"]
    assert names() == everything
    assert names("--state", "failed") == ["failed", "killed"]
    assert names("--state", "queued") == ["waits1", "waits2"]
    assert names("g2") == names("@last") == ["waits1", "waits2"]
    assert names("--tag", "night", "--tag", "grid") == everything[:4]
    assert names("--tag", "day") == []
    assert names("2", "5") == ["failed", "waits1"]
    assert names("--limit", "2") == ["waits1", "waits2"]
    assert names("--limit", "2", "--all") == everything
    assert mpsq.ok("list", "--json", "--limit", "2").json()["more"] is True
    assert mpsq.ok("list", "--json", "--limit", "6").json()["more"] is False


def test_tags_mean_the_jobs_with_all_of_them_in_every_command(home: Path, mpsq: Cli) -> None:
    for tags in (["night"], ["night", "grid"], ["grid"]):
        mpsq.ok("submit", "--hold", *(word for tag in tags for word in ("--tag", tag)), "--", "true")
    both = ("--tag", "night", "--tag", "grid")

    def runs(*arguments: str) -> list[str]:
        return [run["run"] for run in mpsq.ok(*arguments, "--json").json()["runs"]]

    assert [job["job"] for job in mpsq.ok("list", *both, "--json").json()["jobs"]] == [2]
    assert runs("why", *both) == ["2.1"]
    assert runs("why", "g3", "--tag", "grid") == ["3.1"]
    assert "matches g3 --tag night" in mpsq("cancel", "g3", "--tag", "night").err
    assert runs("cancel", "1", "2", "--tag", "night") == ["1.1", "2.1"]
    assert runs("cancel", *both) == ["2.1"]
    states = {job["job"]: job["runs"][0]["state"] for job in mpsq.ok("list", "--json").json()["jobs"]}
    assert states == {1: "DONE", 2: "DONE", 3: "HELD"}


def test_tags_narrow_a_report(queue: Layout, mpsq: Cli) -> None:
    with sqlite3.connect(queue.db) as connection:
        connection.execute("DELETE FROM job_tags WHERE job_id = 1 AND tag = 'grid'")

    def runs(*arguments: str) -> set[str]:
        return {run["run"] for run in mpsq.ok("report", "time", *arguments, "--all", "--json").json()["rows"]}

    assert runs("--tag", "night") - runs("--tag", "night", "--tag", "grid") == {"1.1", "1.2"}
    assert runs("g1") - runs("g1", "--tag", "grid") == {"1.1", "1.2"} and "2.1" in runs("g1", "--tag", "grid")


def test_list_tables_fit_a_terminal(queue: Layout, mpsq: Cli) -> None:
    jobs = mpsq.ok("list").out
    assert "2/2  SUCCEEDED" in jobs and "FAILED(3)" in jobs and "20.00" in jobs
    runs = mpsq.ok("list", "--runs").out
    assert "1.2" in runs and "KILLED(9)" in runs
    assert max(map(len, (jobs + runs).splitlines())) <= 80
    assert "no matching jobs" in mpsq.ok("list", "--tag", "day").err


def test_a_sweep_is_told_apart_in_80_columns(queue: Layout, mpsq: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    import sqlite3

    monkeypatch.setenv("COLUMNS", "80")

    with sqlite3.connect(queue.db) as connection:
        connection.execute("DROP TRIGGER done_is_final")
        connection.execute("UPDATE runs SET outcome = 'DEVICE_UNAVAILABLE' WHERE outcome = 'FAILED'")
        connection.execute("UPDATE runs SET started_at = started_at - 754 WHERE state = 'RUNNING'")  # 12 min 34 s
        connection.execute("UPDATE jobs SET created_at = created_at - 754")
        connection.execute(
            """UPDATE jobs SET name = 'a long name of an experiment',
            spec_json = json_set(spec_json, '$.params', json('{"gradient_accumulation": 12, "batch_size": 16}'))"""
        )
    for command in (["list"], ["list", "--runs"], ["status"]):
        out = mpsq.ok(*command).out
        assert max(map(len, out.splitlines())) <= 80, out
        assert re.search(r"batch_size=\s*16\b", out) and "DEVICE_UNAVAILABLE" in out


def test_a_list_says_what_differs_how_old_and_how_long_and_marks_what_is_invalid(queue: Layout, mpsq: Cli) -> None:
    before = mpsq.ok("list").out
    assert {"what", "age", "per", "run"} <= set(before.splitlines()[0].split()) and "!" not in before
    assert not any(line.endswith("!") for line in mpsq.ok("status").out.splitlines())
    taint(queue, "1.1")
    lines = [line for line in mpsq.ok("status").out.splitlines() if line.endswith("!")]
    assert len(lines) == 1 and lines[0].startswith("1.1 ")
    for command in (["list"], ["list", "--runs"], ["show", "g1"]):
        out = mpsq.ok(*command).out
        lines = [line for line in out.splitlines() if line.endswith("!")]
        assert len(lines) == 1 and "ok" in lines[0] and "! not valid" in out, out
    assert "(contended 1): not compared" in mpsq.ok("show", "g1").out


def test_show_of_a_group_is_its_summary(queue: Layout, mpsq: Cli) -> None:
    out = mpsq.ok("show", "g1").out
    assert "g1: 4 jobs" in out and "1 FAILED(3) (2.1)" in out and "\nsubmitted " in out
    assert out.count("KILLED(9)") == 2 and "\nfolder " not in out
    assert max(map(len, out.splitlines())) <= 80
    assert len(mpsq.ok("show", "g1", "--json").json()["runs"]) > 4
    assert "\nstate " in mpsq.ok("show", "1.1").out


def test_a_limit_counts_runs_where_runs_are_listed(queue: Layout, mpsq: Cli) -> None:
    """Of two jobs it listed all runs."""
    listed = mpsq.ok("list", "--runs", "--limit", "2")
    every = re.findall(r"^(\d+\.\d+) ", mpsq.ok("list", "--runs", "--all").out, re.MULTILINE)
    assert re.findall(r"^(\d+\.\d+) ", listed.out, re.MULTILINE) == every[-2:] and "2 runs" in listed.err


def test_the_age_of_a_run_is_that_of_the_run(queue: Layout, mpsq: Cli) -> None:
    with sqlite3.connect(queue.db) as connection:
        connection.execute("DROP TRIGGER done_is_final")
        connection.execute("UPDATE runs SET created_at = created_at - 86400 * 7")
        connection.execute("UPDATE runs SET started_at = started_at - 86400 * (8 - number) WHERE job_id = 1")
    assert " 7 d " in mpsq.ok("list", "1").out
    runs = mpsq.ok("list", "--runs", "1").out
    assert " 7 d " in runs and " 6 d " in runs


def test_a_name_that_was_given_is_listed_although_the_command_has_that_word(queue: Layout, mpsq: Cli) -> None:
    mpsq.ok("submit", "--snapshot", "off", "--name", "a", "--", "python", "train.py", "a")
    mpsq.ok("submit", "--snapshot", "off", "--", "python", "train.py", "b")
    out = mpsq.ok("list").out
    assert " a: python train.py a" in out and " python train.py b" in out and "train.py: " not in out


def test_settings_have_one_order(queue: Layout, mpsq: Cli) -> None:
    sweep = ("--set", "n=1,2", "--set", "m=3", "--", "echo", "{n}", "{m}")
    assert "m=3, n=1" in mpsq.ok("submit", "--dry-run", *sweep).out


def test_tables_and_prose_fit_60_columns(queue: Layout, mpsq: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    for command in (["workloads", "nanogpt"], ["config", "list"], ["show", "g1"], ["compare", "1", "2"]):
        lines = mpsq.ok(*command).out.splitlines()
        assert max(map(len, lines)) <= 60, command


def test_a_message_is_as_wide_as_its_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stderr", screen := Screen())
    monkeypatch.setenv("COLUMNS", "60")
    hint("a word " * 20)
    say("a word " * 20)
    assert max(map(len, screen.getvalue().splitlines())) <= 60 and screen.getvalue().split().count("word") == 40


def test_show_of_a_group_does_not_call_a_running_run_ended(queue: Layout, mpsq: Cli) -> None:
    (line,) = (line for line in mpsq.ok("show", "g1").out.splitlines() if " RUNNING, " in line or ", 1 RUNNING" in line)
    assert not line.startswith("ended")


def test_show_says_once_what_the_runs_of_a_job_share(queue: Layout, mpsq: Cli) -> None:
    runs = mpsq("show", "1", "--json").json()["runs"]
    out = mpsq.ok("show", "1").out
    assert out.count("\ncommand ") == 1 < len(runs) == out.count("\nstate ")


def test_a_jobs_state_is_derived_from_its_runs(queue: Layout, mpsq: Cli) -> None:
    jobs = {job["name"]: job for job in mpsq.ok("list", "--json").json()["jobs"]}
    assert (jobs["ok"]["state"], jobs["ok"]["ok"], jobs["ok"]["succeeded"]) == ("DONE", True, 2)
    assert (jobs["failed"]["state"], jobs["failed"]["ok"]) == ("DONE", False)
    assert (jobs["running"]["state"], jobs["running"]["ok"]) == ("RUNNING", None)
    assert jobs["ok"]["median_s"] == 0.02 and jobs["waits1"]["median_s"] is None


def test_show_wraps_what_is_read_and_not_what_is_copied(queue: Layout, mpsq: Cli) -> None:
    import sqlite3

    with sqlite3.connect(queue.db) as connection:
        connection.execute("UPDATE hellos SET hello_json = json_set(hello_json, '$.about', ?)", ["a word " * 40])
        connection.execute("UPDATE notes SET text = ?", ["another word " * 40])
    lines = mpsq.ok("show", "1.1").out.splitlines()
    long = [line for line in lines if len(line) > 80]
    assert all(str(queue.home) in line or sys.executable in line for line in long), long
    assert " ".join(" ".join(lines).split()).count("another word") == 40


def test_show_says_a_note_that_is_a_mark_once(queue: Layout, mpsq: Cli) -> None:
    import sqlite3

    with sqlite3.connect(queue.db) as connection:
        (run_id,) = connection.execute("SELECT run_id FROM v_run WHERE run = '1.1'").fetchone()
        for table, text in (("notes", "text, offset"), ("taints", "detail, severity")):
            last = -9 if table == "notes" else "caveat"
            sql = f"INSERT INTO {table} (run_id, kind, {text}) VALUES (?, 'not_quiet', 'a busy machine', ?)"
            connection.execute(sql, (run_id, last))
    assert mpsq.ok("show", "1.1").out.count("not_quiet: a busy") == 1


def test_show_tells_how_busy_the_gpu_was(queue: Layout, mpsq: Cli) -> None:
    import sqlite3

    assert "GPU busy" not in mpsq.ok("show", "1.1").out
    samples = ('{"gpu_busy_share": 0.9}', '{"gpu_busy_share": 1.0}', '{"gpu_busy_share": null}', "{}")
    with sqlite3.connect(queue.db) as connection:
        (run_id,) = connection.execute("SELECT run_id FROM v_run WHERE run = '1.1'").fetchone()
        connection.execute("DELETE FROM phases WHERE run_id = ?", [run_id])
        for at, sample in enumerate(samples):
            connection.execute("INSERT INTO conditions (run_id, at, data_json) VALUES (?, ?, ?)", (run_id, at, sample))
    assert "GPU busy       95.0 %" in mpsq.ok("show", "1.1").out
    assert mpsq.ok("show", "1.1", "--json").json()["runs"][0]["gpu_busy_share"] == 0.95


def test_how_busy_the_gpu_was_while_it_measured(queue: Layout, mpsq: Cli) -> None:
    """A run that is mostly setup: its median over all samples would be 0 %."""
    import sqlite3

    with sqlite3.connect(queue.db) as connection:
        run_id, started = connection.execute("SELECT run_id, started_at FROM v_run WHERE run = '1.1'").fetchone()
        connection.execute("DELETE FROM phases WHERE run_id = ?", [run_id])
        for offset, (t_s, name, edge) in enumerate(
            ((0, "setup", "begin"), (60, "setup", "end"), (60, "measure", "begin"), (80, "measure", "end"))
        ):
            mark = (run_id, offset, t_s, name, edge)
            connection.execute("INSERT INTO phases (run_id, offset, t_s, name, edge) VALUES (?, ?, ?, ?, ?)", mark)
        for t_s in range(2, 80, 4):
            sample = '{"gpu_busy_share": %s}' % (0.0 if t_s < 60 else 0.97 if t_s != 70 else 0.6)
            values = (run_id, started + t_s, sample)
            connection.execute("INSERT INTO conditions (run_id, at, data_json) VALUES (?, ?, ?)", values)
    assert "GPU busy       97.0 %" in mpsq.ok("show", "1.1").out
    assert mpsq.ok("show", "1.1", "--json").json()["runs"][0]["gpu_busy_share"] == 0.97


def test_show_never_calls_the_last_finite_loss_of_a_nan_run_its_last(queue: Layout, mpsq: Cli) -> None:
    import sqlite3

    with sqlite3.connect(queue.db) as connection:
        (run_id,) = connection.execute("SELECT run_id FROM v_run WHERE run = '1.1'").fetchone()
        connection.execute("UPDATE summaries SET loss_first = 4.2, loss_last = NULL WHERE run_id = ?", [run_id])
        connection.execute("INSERT INTO taints VALUES (?, 'diverged', 'invalid', 'no number')", [run_id])
    assert "4.2000 first, nan last" in " ".join(mpsq.ok("show", "1.1").out.split())
    assert mpsq.ok("show", "1.1", "--json").json()["runs"][0]["run"]["loss_last"] is None


def test_show_has_the_last_value_of_each_metric(queue: Layout, mpsq: Cli) -> None:
    with sqlite3.connect(queue.db) as connection:
        rows = [(90, "acc", 0.5), (91, "acc", 0.75), (91, "loss", 1.5), (92, "cell/a", 7.0), (93, "cpu_s", 9.0)]
        connection.executemany('INSERT INTO metrics (run_id, "offset", name, value) VALUES (1, ?, ?, ?)', rows)
    assert re.search(r"^metrics +acc=0\.75\d*, loss=1\.5\d*$", mpsq.ok("show", "1.1").out, re.MULTILINE)
    assert "metrics" not in mpsq.ok("show", "2").out


def test_show_hides_secrets_and_escapes(queue: Layout, mpsq: Cli) -> None:
    out = mpsq.ok("show", "2").out
    assert "hunter2" not in out and "https://me:[hidden]@host" in out and "\x1b" not in out
    assert "2 variables: NAME, PATH" in out
    assert "contended: others used" in out and "op_fallback: one" in out
    assert "FAILED(3): ValueError" in out
    assert "1.50 real, 1.00 user, 0.25 sys" in out and str(queue.run_dir("2.1")) in out
    assert "hunter2" not in mpsq.ok("show", "2", "--json").out
    assert len(mpsq.ok("show", "1", "--json").json()["runs"]) == 2
    assert len(mpsq.ok("show", "1.2", "--json").json()["runs"]) == 1


def test_why_says_once_what_several_jobs_share(queue: Layout, mpsq: Cli) -> None:
    mpsq.ok("submit", "--snapshot", "off", "--hold", "--set", "n=1,2,3", "--", "echo", "{n}")
    out = mpsq.ok("why", "@last").out
    assert out.count("is held") == out.count("next: ") == 1 and "mpsq resume 7 " in out
    assert all(run in out for run in ("7.1", "8.1", "9.1"))
    assert len(mpsq.ok("why", "@last", "--json").json()["runs"]) == 3


def test_why_names_the_retry_of_each_run(queue: Layout, mpsq: Cli) -> None:
    """The answer on 7.1, which was retried as 7.3, also stood for 7.2."""
    mpsq.ok("submit", "--snapshot", "off", "--hold", "--repeats", "2", "--", "true")
    mpsq.ok("cancel", "7")
    mpsq.ok("retry", "7")
    out = mpsq.ok("why", "7.1", "7.2").out
    assert all(f"run 7.{n} " in out and f"next: mpsq why 7.{n + 2}\n" in out for n in (1, 2)), out


def test_why_names_no_log_that_was_removed(queue: Layout, mpsq: Cli) -> None:
    assert "mpsq logs 2.1" in mpsq.ok("why", "2").out
    (queue.run_dir("2.1") / "stdout.log").unlink()
    out = mpsq.ok("why", "2").out
    assert "mpsq rerun 2" in out and "mpsq logs" not in out


def test_why_chooses_the_run_that_tells_most(queue: Layout, mpsq: Cli) -> None:
    facts = "run 2.1", "exit code 3", "1.50 s", "ValueError: no data", "next: mpsq logs 2.1"
    out = mpsq.ok("why", "2").out
    assert all(fact in out for fact in facts), out
    assert [why["run"] for why in mpsq.ok("why", "g1", "--json").json()["runs"]] == ["1.2", "2.1", "3.1", "4.1"]
    assert "no worker runs" in mpsq.ok("why", "5").out
    assert "lost its supervisor" in mpsq.ok("why", "4").out


@pytest.mark.process
def test_reading_needs_no_heavy_import(queue: Layout) -> None:
    heavy = ("sqlalchemy", "alembic", "apscheduler", "rich", "psutil", "platformdirs", "tomlkit", "pydantic", "torch")
    heavy += ("asyncio",)
    program = (
        "import sys; from queue_runner.cli.main import main\n"
        "for line in ('status', 'list', 'show 1', 'why 4', 'logs 1', 'wait 1', 'db path', 'workloads'):\n"
        "    assert main(line.split()) == 0, line\n"
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_show_tells_when_a_job_may_run_and_how_often(queue: Layout, mpsq: Cli) -> None:
    mpsq.ok("edit", "5", "--after", "4:any", "--at", "+2h", "--deadline", "+3h", "--retries", "2", "--note", "why")
    out = mpsq.ok("show", "5").out
    for said in (
        "note ",
        "why",
        "job 4 must end: undecided",
        "not before",
        "skipped if",
        "2 at most, if failed",
    ):
        assert said in out


def test_mpsq_alone_shows_the_status_and_the_next_step(home: Path, mpsq: Cli) -> None:
    ran = mpsq.ok()
    assert "Usage: mpsq COMMAND" in ran.out and "mpsq run nanogpt" in ran.err
    full_queue(home)
    ran = mpsq.ok()
    assert "waiting  2 runs" in ran.out
    assert ran.err.startswith("\nnext: mpsq worker") and "service install" in ran.err
    mpsq.ok("pause")
    assert mpsq.ok().err == "\nnext: mpsq resume\n"


def test_counts_are_those_of_runs_and_of_valid_ones(queue: Layout, mpsq: Cli) -> None:
    taint(queue, "1.2")
    assert "1/2" in mpsq.ok("list", "1").out, "as in reports"
    with sqlite3.connect(queue.db) as connection:
        connection.execute("UPDATE runs SET number = 0 WHERE job_id = 5")
    assert "waiting  1 run, 1 preflight" in mpsq.ok("status").out
    assert mpsq.ok("cancel", "g2").out == "run 6.1 cancelled\n"


def test_a_hint_names_what_is_not_refused(queue: Layout, mpsq: Cli) -> None:
    assert "hint: mpsq rerun 1 " in mpsq("edit", "1", "--priority", "3").err
    assert "hint: mpsq retry 2 " in mpsq("edit", "2", "--priority", "3").err
    add = "schedule", "add", "0 2 * * *", "--name", "n", "--"
    line = "mpsq schedule add '0 2 * * *' --name n --"
    refused = mpsq(*add, "sh", "train.sh", "--lr", "3").err
    assert "read the options" in refused and f"{line} -- sh train.sh --lr 3\n" in refused
    assert f"{line} --device cpu --hold -- sh a.sh\n" in mpsq(*add, "--device", "cpu", "--hold", "sh", "a.sh").err
    assert f"{line} -- true\n" in mpsq(*add, "true").err


def test_a_list_of_a_swept_command_names_the_differences(layout: Layout, mpsq: Cli) -> None:
    mpsq.ok("submit", "--set", "lr=0.1,0.2", "--", "sh", "-c", "exit {lr}; a long command that all rows share")
    text = mpsq.ok("list").out
    assert "sh lr=0.1" in text and "all rows share" not in text
