"""Sentences of the command line that misled: each says now what is meant, and asks before it removes for good."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from pathlib import Path

import pytest

from queue_runner.cli import common
from queue_runner.client import Client, Group
from queue_runner.control.pausing import Changed
from queue_runner.errors import UsageError, WaitTimeout
from queue_runner.host.run_dir import RunDir
from queue_runner.host.warden_records import Fence
from queue_runner.monitor.follow import Follower
from queue_runner.store import read
from tests.cli_support import Cli, full_queue, use_toy_workloads


@pytest.fixture
def mpsq(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    use_toy_workloads(tmp_path / "jobs", monkeypatch)
    full_queue(home)
    return Cli(capsys)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Have stdin be a terminal on which these answers are typed, and keep no question without one."""
    found: list[bool] = []
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(common.typer, "confirm", lambda question, **_: found.pop(0))
    return found


def test_runs_of_several_jobs_do_not_read_as_one_job() -> None:
    assert common.queued(4, [7], ["7.1", "7.2", "7.3"]).endswith("3 runs queued (7.1 ... 7.3)")
    assert common.queued(4, [7, 8], ["8.1", "7.1", "7.2", "8.2"]).endswith("4 runs queued (jobs 7, 8)")
    assert common.queued(4, [7, 8, 9], ["9.1", "7.1", "8.1"]).endswith("3 runs queued (jobs 7 ... 9)")


@pytest.mark.parametrize(
    ("fate", "said"),
    [
        ("is held", "2 runs (1.1, 1.2) are held"),
        ("is running: --now would suspend it", "2 runs (1.1, 1.2) are running: --now would suspend them"),
        ("is running: it is not held", "2 runs (1.1, 1.2) are running: they are not held"),
    ],
)
def test_several_runs_are_spoken_of_in_the_plural(fate: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    common.tell("mpsq.pause/1", [Changed("1.1", True, fate), Changed("1.2", True, fate)], json=False)
    assert capsys.readouterr().out == f"{said}\n"


def test_cancelled_runs_with_the_same_result_share_a_sentence(mpsq: Cli) -> None:
    assert mpsq.ok("cancel", "5", "6").out == "2 runs (5.1, 6.1) cancelled\n"
    (line,) = mpsq.ok("cancel", "1").out.splitlines()
    assert line.startswith("2 runs (1.1, 1.2) ") and "already ended (SUCCEEDED)" in line


def test_a_command_with_its_own_options_is_told_where_it_goes(mpsq: Cli) -> None:
    refused = mpsq("submit", "ls", "-la")
    assert refused.code == 2
    assert "command ls -la" in refused.err and "submit -- ls -la" in refused.err
    refused = mpsq("run", "--device", "cpu", "ls", "-la", "--lr", "3")
    assert "mpsq run --device cpu -- ls -la --lr 3" in refused.err
    assert "option: --nonsense" in mpsq("run", "--nonsense", "x", "ls", "-la").err
    assert "run -- ls -la" in mpsq("bench", "ls", "-la").err
    assert "mpsq submit -- ls\n" in mpsq("submit", "ls").err
    assert "--" not in mpsq("submit", "no-such-program-here").err.partition("hint")[2]


def test_a_wrong_timeout_pauses_nothing(mpsq: Cli) -> None:
    refused = mpsq("pause", "--when-done", "--timeout", "2hours")
    assert refused.code == 2 and "not a duration" in refused.err
    assert mpsq.ok("resume", "--json").json()["changed"] is False


def test_results_are_deleted_after_a_yes(mpsq: Cli, answers: list[bool]) -> None:
    answers += [False]
    refused = mpsq("delete", "1", "--results")
    assert refused.code == 1 and "nothing was deleted" in refused.err
    assert "2 deleted" in mpsq.ok("delete", "2").out  # the results stay: no question
    assert "2 was deleted before" in mpsq.ok("delete", "2").out
    assert "with all results" in mpsq.ok("delete", "1", "--results", "--yes").out


def test_without_a_terminal_nothing_is_removed_unless_yes_is_given(mpsq: Cli, home: Path) -> None:
    """In a pipe both commands removed at once what they ask about on a terminal."""
    stray = home / "runs" / "99.1"
    stray.mkdir(parents=True)
    os.utime(stray, (0, 0))
    for words in (["gc"], ["delete", "1", "--results"]):
        refused = mpsq(*words)
        assert refused.code == 2 and "no terminal" in refused.err and "--yes" in refused.err
    assert mpsq.ok("show", "1").out and stray.exists()
    for words in (["gc"], ["delete", "1", "--results"]):
        mpsq.ok(*words, "--yes")
    assert not stray.exists() and mpsq("show", "1").code != 0


def test_gc_asks_on_a_terminal(mpsq: Cli, answers: list[bool], home: Path) -> None:
    stray = home / "runs" / "99.1"
    stray.mkdir(parents=True)
    os.utime(stray, (0, 0))
    answers += [False, True]
    refused = mpsq("gc")
    assert refused.code == 1 and "nothing was removed" in refused.err and stray.exists()
    assert "freed" in mpsq.ok("gc").out and not stray.exists()


def test_a_job_gets_another_name_and_stays_the_same_question(mpsq: Cli, home: Path) -> None:
    from queue_runner import paths

    def of_job() -> dict[str, object]:
        with read.reading(paths.layout().db) as connection:
            (row,) = connection.execute("SELECT name, spec_json, spec_hash FROM jobs WHERE id = 1").fetchall()
        return dict(row)

    before = of_job()
    mpsq.ok("edit", "1", "--name", "baseline")
    after = of_job()
    assert after["name"] == "baseline" and '"name":"baseline"' in str(after["spec_json"])
    assert after["spec_hash"] == before["spec_hash"]
    assert "baseline" in mpsq.ok("show", "1").out and "name baseline" in mpsq.ok("show", "1").out
    assert "blank" in mpsq("edit", "1", "--name", " ").err


def test_wait_says_what_it_waits_for_and_takes_all(mpsq: Cli) -> None:
    waited = mpsq("wait", "--timeout", "0")
    assert waited.code == 124 and "waiting for g" in waited.err
    waited = mpsq("wait", "--all", "--timeout", "0")
    assert waited.code == 124 and "not ended" in waited.err
    assert "--all already means" in mpsq("wait", "--all", "1").err


def test_wait_all_has_nothing_to_do_where_all_has_ended(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mpsq = Cli(capsys)
    mpsq.ok("submit", "--", "true")
    mpsq.ok("cancel", "1")
    assert "nothing waits" in mpsq.ok("wait", "--all").out


def test_workloads_is_a_list_of_names_with_their_frameworks(mpsq: Cli) -> None:
    lines = mpsq.ok("workloads").out.splitlines()
    assert lines[0].split() == ["name", "frameworks", "configs", "about"]
    assert [line.split()[0] for line in lines[2:]].count("toy") == 1
    assert any("mlx, torch" in line or "torch, mlx" in line for line in lines)


def test_the_client_raises_the_errors_of_the_command_line(mpsq: Cli) -> None:
    queue = Client()
    assert repr(queue).startswith("Client('/") and repr(Group(4, (7, 8))) == "Group(id=4, jobs=(7, 8))"
    with pytest.raises(UsageError) as refused:
        queue.submit("toy", repeats=0)
    assert "--repeats 0" in refused.value.message == str(refused.value)
    with pytest.raises(WaitTimeout) as late:
        queue.wait(4, timeout=0)
    assert "not ended" in late.value.message and late.value.hint == "mpsq why 4.1"
    with pytest.raises(WaitTimeout):
        queue.wait(4, timeout="0s")


def test_every_parser_is_named_in_the_help(mpsq: Cli) -> None:
    from queue_runner.ingest import parsers

    text = mpsq.ok("submit", "--help").out
    assert len(parsers.names()) >= 4
    assert not [name for name in parsers.names() if name not in text]


def test_a_held_submission_is_not_called_queued(mpsq: Cli) -> None:
    held = mpsq.ok("submit", "--hold", "--snapshot", "off", "--", "true")
    assert "held" in held.out and "mpsq resume g3" in held.out and "queued" not in held.out
    assert "mpsq resume g4" in mpsq.ok("rerun", "7", "--hold").out
    assert mpsq.ok("resume", "g4").out == "run 8.1 is no longer held\n"


def test_retry_says_that_nothing_starts(mpsq: Cli) -> None:
    mpsq.ok("cancel", "g2")
    assert "no worker runs" in mpsq.ok("retry", "5").err


def skip(home: Path, run: str, reason: str) -> None:
    """Do what the worker does with a run that cannot start any more."""
    from queue_runner.model import Ending, Outcome, Verb
    from queue_runner.store import jobs
    from queue_runner.store.engine import open_engine, writing

    with writing(open_engine(home / "mpsq.db")) as connection:
        run_id = connection.value("SELECT run_id FROM v_run WHERE run = ?", [run])
        jobs.move(connection, run_id, Verb.SKIP, actor="worker", ending=Ending(Outcome.SKIPPED, reason=reason))


def hinted(mpsq: Cli, *arguments: str) -> list[str]:
    """The command that a refusal names."""
    refused = mpsq(*arguments)
    assert refused.code == 2, refused
    return refused.err.partition("hint: mpsq ")[2].split(" runs it again")[0].split()


def test_the_remedy_of_a_refused_edit_is_accepted(mpsq: Cli, home: Path) -> None:
    """It was mpsq retry, which refuses a deleted job, and one that would be skipped again."""
    mpsq.ok("delete", "2")
    mpsq.ok(*hinted(mpsq, "edit", "2", "--priority", "3"))
    assert "mpsq rerun 2" in mpsq("retry", "2").err
    mpsq.ok("submit", "--snapshot", "off", "--after", "3", "--", "true")
    skip(home, "8.1", "dependency: job 3 did not succeed")
    mpsq.ok(*hinted(mpsq, "edit", "8", "--priority", "3"))
    assert "mpsq retry 3" in mpsq("edit", "3", "--priority", "3").err
    for option in ("--at", "--after", "--deadline"):
        refused = mpsq("edit", "4", option, "3" if option == "--after" else "+1h")
        assert refused.code == 2 and "mpsq rerun 4" in refused.err


def test_what_will_be_skipped_says_how_it_is_not(mpsq: Cli, home: Path) -> None:
    mpsq.ok("submit", "--snapshot", "off", "--after", "3", "--", "true")
    assert "mpsq edit 7 --after ''" in mpsq.ok("why", "7").out
    mpsq.ok("edit", "7", "--after", "")
    with sqlite3.connect(home / "mpsq.db") as connection:
        connection.execute("UPDATE jobs SET deadline_at = 1 WHERE id = 7")
    assert "mpsq edit 7 --deadline ''" in mpsq.ok("why", "7").out
    mpsq.ok("edit", "7", "--deadline", "")
    assert "to be skipped" not in mpsq.ok("why", "7").out


def test_a_run_is_skipped_for_one_reason(mpsq: Cli, home: Path) -> None:
    """`show` printed SKIPPED(dependency): dependency: job 3 did not succeed."""
    skip(home, "5.1", "dependency: job 3 did not succeed")
    assert "SKIPPED(dependency): job 3" in mpsq.ok("show", "5").out


def test_wait_says_that_a_run_waits_for_a_held_one(mpsq: Cli) -> None:
    mpsq.ok("submit", "--hold", "--snapshot", "off", "--", "true")
    mpsq.ok("submit", "--snapshot", "off", "--after", "7", "--", "true")
    waited = mpsq("wait", "8", "--timeout", "0")
    assert waited.code == 124 and "8.1 waits for job 7" in waited.err and "mpsq resume 7\n" in waited.err
    assert "not ended after 0 s" in waited.err and "mpsq why 8.1\n" in waited.err
    assert "2 of 2 runs have" in mpsq("wait", "7", "8", "--timeout", "0").err


def test_a_suspended_job_is_called_so_in_every_list(mpsq: Cli, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")  # so that no cell is wrapped, even where the run has taken minutes
    with sqlite3.connect(home / "mpsq.db") as connection:
        connection.execute("UPDATE runs SET paused_at = 1, started_at = started_at - 600 WHERE state = 'RUNNING'")
    for command in (["list"], ["list", "--runs"], ["show", "g1"], ["show", "4"]):
        assert "RUNNING (suspended)" in mpsq.ok(*command).out, command


def test_a_group_says_how_its_rounds_ended_and_which_jobs_are_deleted(mpsq: Cli, home: Path) -> None:
    with sqlite3.connect(home / "mpsq.db") as connection:
        connection.execute("UPDATE groups SET until = 'decided' WHERE id = 2")
    assert "needs 3 rounds" in mpsq.ok("show", "g2").out
    mpsq.ok("cancel", "g2")
    mpsq.ok("delete", "5")
    shown = mpsq.ok("show", "g2").out
    assert "\nrounds      cancelled\n" in shown and "1 of them deleted" in shown


def test_rerun_of_a_group_leaves_out_deleted_jobs(mpsq: Cli) -> None:
    mpsq.ok("cancel", "g2")
    mpsq.ok("delete", "5")
    assert mpsq.ok("rerun", "g2").out.startswith("g3: 1 job, 1 run queued")
    assert mpsq.ok("rerun", "5").out.startswith("g4: 1 job, 1 run queued")
    mpsq.ok("delete", "6")
    assert mpsq.ok("rerun", "g2").out.startswith("g5: 2 jobs, 2 runs queued")


def test_old_words_below_a_command_name_the_new_ones(mpsq: Cli) -> None:
    assert "edit ID --priority" in mpsq("rerun", "1", "--priority", "3").err
    assert "completion bash > FILE" in mpsq("completion", "bash", "--install").err
    assert "mpsq completion" not in mpsq("service", "--install").err
    unknown = mpsq("schedule", "lst").err
    assert '"schedule lst"' in unknown and 'mean "list"' in unknown


def test_a_list_in_a_narrow_terminal_keeps_words_whole(mpsq: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    out = mpsq.ok("list").out
    assert max(map(len, out.splitlines())) <= 60
    assert "python train.py" in out and "[hidden]@host" in out and "age" not in out


def test_a_run_without_a_supervisor_will_not_be_suspended(mpsq: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """`pause --now` promised that for its start, after which it had lost its warden."""
    monkeypatch.setattr(RunDir, "started", lambda _: Fence())
    refused = mpsq("pause", "4", "--now")
    assert refused.code == 1 and "lost its supervisor" in refused.err


def test_what_waits_for_a_name_waits_for_the_rerun_and_not_for_the_job_that_failed(mpsq: Cli) -> None:
    mpsq.ok("edit", "3", "--name", "base")
    mpsq.ok("rerun", "base")
    assert "1 of 2 runs has" in mpsq("wait", "base", "3", "--timeout", "1ms").err, "it is named by its id, too"
    mpsq.ok("submit", "--snapshot", "off", "--after", "base", "--", "true")
    assert "job 7 must succeed" in mpsq.ok("why", "8").out
    waits = mpsq("wait", "base", "--timeout", "1ms")
    assert waits.code == 124 and "run 7.1 " in waits.err


def test_sigterm_leaves_the_jobs_and_names_how_to_end_them(
    mpsq: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The command ended without a word, and its job went on."""
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(Follower, "follow", lambda _: signal.raise_signal(signal.SIGTERM))
    ran = mpsq("run", "--cwd", tmp_path, "--", "true")
    assert ran.code == 143 and "the jobs continue" in ran.err and "mpsq cancel g" in ran.err
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_list_of_workloads_cuts_no_sentence_in_a_word(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = Cli(capsys).ok("workloads").out.splitlines()
    assert "…" not in "".join(lines) and max(map(len, lines)) <= 80
    assert any(line.startswith("vgg16 ") and "VGG-16 on images" in line for line in lines)
