"""mpsq bisect with real workers and runs, over real commits and real wheels."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
from pathlib import Path

import pytest

from queue_runner.cli.main import main
from queue_runner.referee import bisect_versions
from tests.queue_support import Queue, until
from tests.referee.referee_support import LOSS, MPSQ, TRAIN, Repository
from tests.workloads.test_environments import wheel

pytestmark = [pytest.mark.process, pytest.mark.needs_program("git")]


@pytest.fixture
def history(queue: Queue, tmp_path: Path) -> Repository:
    """Commits c1 to c8: the training sleeps longer and learns worse from c5 on. c4 crashes."""
    repository = Repository(tmp_path / "code")
    for number in range(1, 9):
        is_after = number >= 5
        work = f"sleep {0.5 if is_after else 0.1}; echo loss {2 if is_after else 1}.$MPSQ_SEED"
        work = "exit 7" if number == 4 else work
        repository.commit(f"{work} # {number}\n", f"c{number}")
    return repository


def names(repository: Repository) -> list[str]:
    """Return the short names of the commits, from the first to the last."""
    log = subprocess.run(
        ["git", "-C", str(repository.folder), "log", "--reverse", "--format=%h"],
        check=True,
        capture_output=True,
        text=True,
    )
    return log.stdout.split()


def test_the_commit_from_which_training_is_slower_is_found(queue: Queue, history: Repository) -> None:
    answer = history.mpsq("bisect", "--good", "c1", "--bad", "c8", "--no-gate", *TRAIN)
    assert answer.code == 0, answer.text
    commits = names(history)
    assert (answer.json["older"], answer.json["newer"]) == (commits[2], commits[4]), answer.text
    assert [skip["version"] for skip in answer.json["skipped"]] == [commits[3]]
    assert "FAILED(7)" in answer.json["skipped"][0]["why"]
    assert answer.json["step"]["high"] < 1 and answer.json["ends"]["high"] < 1
    with contextlib.closing(sqlite3.connect(queue.layout.db)) as connection, connection:  # a worker killed at the end
        connection.execute("UPDATE groups SET closed_at = NULL WHERE id = ?", answer.json["groups"][-1:])
    again = history.mpsq("bisect", "--good", "c1", "--bad", "c8", "--no-gate", *TRAIN)
    assert again.json == answer.json and len(queue.rows()) == 2 * answer.json["rounds"] + 2


def test_a_killed_bisection_goes_on_from_its_stored_rounds(queue: Queue, history: Repository) -> None:
    words = ("--good", "c3", "--bad", "c5", "--no-gate", *LOSS, *TRAIN)
    killed = subprocess.Popen([*MPSQ, "bisect", *words], cwd=history.folder, stdout=subprocess.DEVNULL)
    until(lambda: queue.layout.db.exists() and len(queue.rows()) >= 3, "the second round")
    killed.kill()
    killed.wait()
    answer = history.mpsq("bisect", *words)
    assert answer.code == 0 and "continuing from g1" in answer.text, answer.text
    assert answer.json["newer"] == names(history)[4] and answer.json["groups"][0] == 1
    assert answer.json["metric"] == "loss" and answer.json["step"]["change"] > 0.9


def test_a_commit_without_the_folder_is_skipped(queue: Queue, tmp_path: Path) -> None:
    repository = Repository(tmp_path / "code")
    (folder := repository.folder / "sub").mkdir()
    for sleep_s, tag in (("0", "first"), ("0.5", "last")):
        folder.mkdir(exist_ok=True)
        repository.commit(f"sleep {sleep_s}\n", tag, "sub/train.sh")
        if tag == "first":
            repository.git("rm", "-q", "-r", "sub")
            repository.commit("no code\n", "without", "README")
    answer = repository.mpsq("bisect", "--good", "first", "--bad", "last", "--no-gate", "--cwd", "sub", *TRAIN)
    commits = names(repository)
    assert answer.code == 0 and (answer.json["older"], answer.json["newer"]) == (commits[0], commits[2]), answer.text
    (skipped,) = answer.json["skipped"]
    assert skipped["version"] == commits[1] and "no folder sub" in skipped["why"]


def test_versions_are_installed_as_they_are_needed(queue: Queue, tmp_path: Path) -> None:
    """Version 1.1 cannot be installed, and is skipped."""
    (wheels := tmp_path / "wheels").mkdir()
    for version in ("1.0", "1.2"):
        wheel(wheels, version)
    (folder := tmp_path / "code").mkdir()
    program = "import os, tinywheel as t; print('loss', float(t.VERSION[2]) + int(os.environ['MPSQ_SEED']) % 9)"
    words = ["--versions", "tinywheel=1.0..1.2", "--pip", f"--no-index --find-links {wheels}", "--no-gate", *LOSS]
    command = [*MPSQ, "bisect", *words, "--", "python", "-c", program]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "1.1, tinywheel 1.2: loss higher" in ran.stdout, ran.stdout
    assert "skipped tinywheel 1.1: " in ran.stdout


def test_a_subject_may_have_line_separators(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "code")
    repository.commit("true\n", "first")
    repository.git("commit", "-q", "--allow-empty", "-m", "a\u2028b\x85c\rd")
    assert [commit.title for commit in bisect_versions.commits("first", "HEAD", repository.folder)] == [
        "first",
        "a\u2028b\x85c\rd",
    ]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--good", "c1", "--bad", "c9"), '--bad: "c9" is not a commit'),
        (("--good", "c8", "--bad", "c1"), "--good c1 --bad c8 finds the step"),
        (("--good", "c8", "--bad", "HEAD"), "c8 and HEAD are the same commit"),
        (("--good", "c1"), "needs two versions"),
        (("--versions", "torch=2.9"), "--versions torch=2.9 does not list two"),
        (("--versions", "torch=2.9..2.10", "--good", "c1"), "--versions cannot be combined"),
        (("--versions", "torch=2.9..2.10", "--pip", "--index-url 'x"), "--pip cannot be split into words"),
        (("--good", "c1", "--bad", "c8", "--seed", "1"), "mpsq bisect has no --seed"),
    ],
)
def test_what_cannot_be_bisected_is_refused_before_anything_runs(
    queue: Queue,
    history: Repository,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    sentence: str,
) -> None:
    monkeypatch.chdir(history.folder)
    assert main(["bisect", *words, *TRAIN]) == 2
    error = capsys.readouterr().err
    assert sentence in error and "hint: " in error
    assert not queue.layout.db.exists() or not queue.rows()


def test_an_end_that_fails_or_has_no_metric_ends_the_search(history: Repository) -> None:
    answer = history.mpsq("bisect", "--good", "c4", "--bad", "c5", "--no-gate", *TRAIN)
    assert answer.code == 1 and "round 1, FAILED(7)" in answer.text, answer.text
    assert "retry g1 && mpsq wait g1" in answer.text
    metric = ("--metric", "acc=acc ([0-9.]+)")
    answer = history.mpsq("bisect", "--good", "c1", "--bad", "c2", "--no-gate", *metric, *TRAIN)
    assert answer.code == 1 and "no number" in answer.text and "acc in round 1" in answer.text, answer.text
