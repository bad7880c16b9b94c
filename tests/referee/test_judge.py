"""mpsq judge with real workers and runs, in real repositories."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from queue_runner.cli.main import main
from queue_runner.control import cancellation, pausing
from queue_runner.host import locks
from queue_runner.model import parse_selector
from queue_runner.referee import judge_command
from tests.queue_support import Queue, until
from tests.referee.referee_support import BRIEFLY, LOSS, SLOW, TRAIN, WORSE, Repository

pytestmark = [pytest.mark.process, pytest.mark.needs_program("git")]


def seeds(queue: Queue) -> dict[str, list[str]]:
    """Return what each run printed as its loss, by the name of its row, in order of the rounds."""
    printed: dict[str, list[str]] = {}
    for run in sorted(queue.rows(), key=lambda run: run["repeat"]):
        log = queue.layout.run_dir(f"{run['job_id']}.{run['number']}") / "stdout.log"
        printed.setdefault(str(run["job_id"]), []).append(log.read_text().split()[-1])
    return printed


def test_a_faster_commit_is_kept_and_rounds_share_drawn_seeds(queue: Queue, repository: Repository) -> None:
    answer = repository.judge("slow", "fast", *LOSS, *TRAIN)
    assert answer.code == 0 and answer.json["answer"] == "keep", answer.text
    assert "candidate is faster" in answer.reasons and "is not higher" in answer.reasons
    assert answer.json["rounds"] >= 3 and answer.json["speedup"]["low"] > 1
    champion, candidate = seeds(queue).values()
    assert champion == candidate and len({*champion}) == len(champion) == answer.json["rounds"]
    assert not (repository.folder / ".git" / "worktrees").exists()


def test_a_folder_is_judged_by_its_metric_alone(queue: Queue, repository: Repository) -> None:
    """The candidate has an edit that nobody committed, and is worse; the champion is a work tree."""
    tree = repository.folder.parent / "tree"
    repository.git("worktree", "add", "-q", "--detach", str(tree), "slow")
    (tree / "data").mkdir()
    (tree / "data" / "x").write_text("data\n")
    repository.write(WORSE + "# not committed\n")
    answer = repository.judge(str(tree), ".", *LOSS, "--time-budget", "10s", *TRAIN)
    assert answer.code == 1 and answer.json["answer"] == "discard", answer.text
    assert "is not lower" in answer.reasons and "faster" not in answer.reasons
    assert (queue.layout.run_dir("1.1") / "stdout.log").read_text().startswith("time 10\n")


def test_the_code_of_an_earlier_candidate_is_judged_as_it_ran(queue: Queue, repository: Repository) -> None:
    repository.write(WORSE + "# not committed\n")
    assert repository.judge("fast", ".", *LOSS, *BRIEFLY, *TRAIN).code == 3
    repository.write("exit 1\n")
    answer = repository.judge("2", "slow", *LOSS, *TRAIN)
    assert answer.code != 2 and answer.json["difference"]["champion"] > 9, answer.text
    answer = repository.judge("g1", "slow", *LOSS, *TRAIN)  # a judgement stands for its candidate
    assert answer.code != 2 and answer.json["difference"]["champion"] > 9, answer.text


def test_a_judgement_is_asked_again_after_further_rounds(queue: Queue, repository: Repository) -> None:
    answer = repository.judge("slow", "fast", *LOSS, *BRIEFLY, *TRAIN)
    assert answer.code == 3 and answer.json["rounds"] == 1, answer.text
    assert all(x in answer.reasons for x in ("less than 3", "rerun g1 --rounds 3", "judge --again g1"))
    assert repository.mpsq("rerun", "g1", "--rounds", "3").code == 0
    answer = repository.mpsq("judge", "--again", "g1")
    assert answer.code in (0, 3) and answer.json["rounds"] == 4 and answer.json["speedup"]["change"] > 1, answer.text
    until(lambda: not locks.is_held(locks.worker_lock_path(queue.layout.home)), "the end of the worker")
    with contextlib.closing(sqlite3.connect(queue.layout.db)) as connection, connection:  # as if it had been killed
        connection.execute("UPDATE groups SET closed_at = NULL, closed_why = NULL")
    assert repository.mpsq("judge", "--again", "g1").json == answer.json
    assert "not a submission" in repository.mpsq("judge", "--again", submitted(queue)).text


def test_a_contest_keeps_its_budget_and_its_answer(queue: Queue, repository: Repository) -> None:
    repository.judge("slow", "fast", *LOSS, *BRIEFLY, *TRAIN)
    with contextlib.closing(sqlite3.connect(queue.layout.db)) as connection, connection:
        connection.execute("""UPDATE groups SET until = replace(until, '"contest":0', '"contest":7')""")
    (reason,) = repository.mpsq("judge", "--again", "g1").json["reasons"]
    facts = ("budget of 100 ms", "mpsq contest new", "after 1 round", "less than 3", "--budget")
    assert all(fact in reason for fact in facts) and "rerun" not in reason, reason
    with contextlib.closing(sqlite3.connect(queue.layout.db)) as connection, connection:
        connection.execute("UPDATE groups SET until = replace(until, '\"number\":0', '\"number\":1')")
        connection.execute("UPDATE groups SET closed_why = 'keep: it was faster'")  # its runs say otherwise
    answer = repository.mpsq("judge", "--again", "g1")
    assert answer.code == 0 and answer.json["answer"] == "keep", answer.text
    changed = "its evidence has changed since, and says undecided now: the contest keeps its first answer"
    assert answer.json["reasons"] == [changed, "it was faster"]


def test_rounds_that_did_not_start_do_not_count(queue: Queue, repository: Repository) -> None:
    repository.judge("slow", "fast", *LOSS, *BRIEFLY, *TRAIN)
    pausing.pause_queue(queue.layout, "test")
    assert repository.mpsq("rerun", "g1", "--rounds", "3").code == 0
    cancellation.cancel(queue.layout, [parse_selector("g1")], grace_s=None, within_s=0.0)
    answer = repository.mpsq("judge", "--again", "g1")
    assert answer.json["rounds"] == 1 and "less than 3" in answer.reasons, answer.text


def submitted(queue: Queue) -> str:
    return str(queue.submit("true"))


@pytest.mark.parametrize(
    ("script", "words", "code", "reason"),
    [
        ("exit 7\n", LOSS, 1, "the candidate did not succeed in round 1, FAILED(7)"),
        ("sleep 600\n", (*LOSS, "--timeout", "2s"), 1, "the candidate did not succeed in round 1, TIMED_OUT"),
        ("echo no number\n", LOSS, 1, "the candidate printed no number for loss in round 1"),
        (WORSE + "#\n", ("--metric", "acc=acc ([0-9.]+)"), 3, "the champion printed no number for acc in round 1"),
        (WORSE + "#\n", (*LOSS, *BRIEFLY), 3, "the budget of 100 ms ended after 1 round, and no answer"),
    ],
)
def test_what_goes_wrong_is_an_answer(
    repository: Repository, script: str, words: tuple[str, ...], code: int, reason: str
) -> None:
    repository.write(script)
    answer = repository.judge("fast", ".", *words, *TRAIN)
    assert answer.code == code and answer.json["reasons"][0].startswith(reason), answer.text
    assert answer.json["rounds"] == 1


def test_what_cannot_be_judged_is_refused_before_anything_runs(queue: Queue, repository: Repository) -> None:
    """Exit code 1 is an answer, so no error has it."""
    refused = {
        '"fsat" is neither a commit here nor a folder': ("slow", "fsat", *TRAIN),
        "~no-such-user/a begins with the home": ("~no-such-user/a", "fast", *TRAIN),
        "~no-such-user/b begins with the home": ("slow", "fast", "--cwd", "~no-such-user/b", *TRAIN),
        "worse and HEAD are the same code": ("worse", "HEAD", *TRAIN),
        "HEAD and . are the same code": ("HEAD", ".", *TRAIN),
        "an option of mpsq judge cannot have several values": (
            "slow",
            "fast",
            "--mps",
            "fallback=on",
            "--mps",
            "fallback=off",
            *TRAIN,
        ),
        "mpsq judge has no --repeats": ("slow", "fast", "--repeats", "3", *TRAIN),
        "mpsq judge needs a command": ("slow", "fast"),
        "--keep-if better needs a metric": ("slow", "fast", "--keep-if", "better", *TRAIN),
        '--keep-if: "cheap" is not a rule': ("slow", "fast", "--keep-if", "cheap", *TRAIN),
        "--time-budget fixes the time": ("slow", "fast", "--time-budget", "5m", *TRAIN),
        "take 30 min 00 s, more than --budget": (
            "slow",
            "fast",
            *LOSS,
            "--time-budget",
            "5m",
            "--budget",
            "20m",
            *TRAIN,
        ),
        "--gain names acc, but candidates are not judged by it": ("slow", "fast", *LOSS, "--gain", "acc=1", *TRAIN),
    }
    for sentence, words in refused.items():
        answer = repository.judge(*words)
        assert answer.code == 2 and sentence in answer.text and "hint: " in answer.text, answer.text
    repository.write(SLOW)
    answer = repository.judge("slow", "HEAD", *TRAIN)
    assert answer.code == 2 and "uncommitted changes" in answer.text, answer.text
    queue.layout.config.write_text("no setting\n")
    answer = repository.judge("slow", ".", *TRAIN)
    assert answer.code == 2, answer.text
    assert not queue.layout.db.exists() or not queue.rows()


def test_a_defect_of_mpsq_is_not_the_answer_discard(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(judge_command, "follow_to_the_end", lambda *_, **__: 1 / 0)
    assert main(["judge", "--champion", "HEAD", "--candidate", ".", "--", "true"]) == 2
    assert "ZeroDivisionError" in capsys.readouterr().err
