"""mpsq contest with real workers and runs: a short night, two shells, and a kill."""

from __future__ import annotations

import copy
import os
import signal
import subprocess

import pytest

from queue_runner.control import pausing
from queue_runner.referee import answer
from tests.queue_support import Queue, until
from tests.referee.referee_support import LOSS, MPSQ, SLOW, TRAIN, Repository

pytestmark = [pytest.mark.process, pytest.mark.needs_program("git")]


def test_a_night_keeps_the_faster_candidate_and_goes_on_after_others(queue: Queue, repository: Repository) -> None:
    new = ("new", "night", "--champion", "slow", "--plan", "3", *LOSS, "--no-gate", "--timeout", "3s", *TRAIN)
    begun = repository.mpsq("contest", *new)
    assert begun.code == 0 and begun.json["planned"] == 3 and begun.json["left_s"] > 0, begun.text
    assert "round 1 of 1, " in begun.text and " budget" not in begun.text
    repository.commit("sleep 600\n", "hangs")
    assert "TIMED_OUT" in repository.mpsq("contest", "try", "night", "hangs").reasons
    refused = repository.mpsq("contest", "try", "night", "nonsense")
    assert refused.code == 2 and '"nonsense" is neither' in refused.text
    faster = repository.mpsq("contest", "try", "night", "fast", "--label", "no sleep")
    assert faster.code == 0 and faster.json["speedup"]["low"] > 1, faster.text
    status = subprocess.run([*MPSQ, "status"], capture_output=True, text=True, check=True).stdout
    refused = repository.mpsq("delete", "g3", "--results", "--yes")
    assert refused.code == 2 and "g3 counts" in refused.text and "contest night" in refused.text
    assert "night: 2 of 3" in status and "1 kept, about" in status
    worse = repository.mpsq("contest", "try", "night", "worse")
    assert worse.code == 1 and worse.json["difference"]["champion"] < 2, worse.text
    late = repository.mpsq("contest", "try", "night", "slow")
    assert late.code == 2 and "all 3 planned" in late.text
    night = repository.mpsq("contest", "show", "night").json
    answers = [(x["number"], x["label"], x["answer"]) for x in night["candidates"]]
    assert answers == [(1, "hangs", "discard"), (2, "no sleep", "keep"), (3, "worse", "discard")]
    speedups = [x["champion_speedup"] for x in night["candidates"]]
    assert speedups[0] == 1 and speedups[1] == speedups[2] == faster.json["speedup"]["change"]
    text = subprocess.run([*MPSQ, "contest", "show", "night"], capture_output=True, text=True, check=True).stdout
    assert "3 of 3 judged, 1 kept" in text and "no sleep" in text
    confirmed = repository.mpsq("contest", "confirm", "night", "--rounds", "3")
    assert confirmed.code in (0, 3) and confirmed.json["rounds"] == 3, confirmed.text
    assert confirmed.json["speedup"]["change"] > 1
    assert "round 3 of 3, " in confirmed.text and " budget" not in confirmed.text
    group = confirmed.json["group"]
    again = subprocess.run([*MPSQ, "judge", "--again", f"g{group}"], capture_output=True, text=True, check=False)
    assert "round 3 of 3, " in again.stderr and again.returncode == confirmed.code, again.stderr
    assert f"in 3 fresh rounds (g{group})" in again.stdout
    text = answer.of_group(queue.layout, group).text()
    word = "the gain is confirmed" if confirmed.code == 0 else "undecided"
    assert "\n".join([word, *(f"  {reason}" for reason in confirmed.json["reasons"])]) in text and confirmed.reasons
    second = repository.mpsq("contest", *new)
    assert second.code == 2 and "night already exists" in second.text


def test_two_shells_enter_one_candidate_and_a_killed_one_is_followed_again(
    queue: Queue, repository: Repository
) -> None:
    repository.mpsq("contest", "new", "night", "--champion", "slow", *LOSS, "--no-gate", *TRAIN)
    pausing.pause_lane(queue.layout, "by hand")
    words = [*MPSQ, "contest", "try", "night"]
    names = ["fast", "worse"]
    shells = [
        subprocess.Popen([*words, name], cwd=repository.folder, stderr=subprocess.PIPE, text=True) for name in names
    ]
    try:
        loser = until(lambda: next((shell for shell in shells if shell.poll() == 2), None), "a refusal")
        winner = next(shell for shell in shells if shell is not loser)
        assert loser.stderr is not None
        error = loser.stderr.read()
        assert "no answer yet" in error or "same time" in error
        until(lambda: any(run["group_id"] == 2 for run in queue.rows()), "a candidate")
        os.kill(winner.pid, signal.SIGKILL)
        assert winner.wait() == -signal.SIGKILL
    finally:
        for shell in shells:
            shell.kill()
            shell.wait()
            assert shell.stderr is not None
            shell.stderr.close()
    refused = repository.mpsq("contest", "try", "night", names[shells.index(loser)])
    assert refused.code == 2 and "judge --again g2" in refused.text, refused.text
    pausing.pause_lane(queue.layout, None)
    followed = repository.mpsq("contest", "try", "night", names[shells.index(winner)])
    assert followed.code in (0, 1) and followed.json["group"] == 2, followed.text
    assert "candidate 1 of night, g2" in followed.text
    (entered,) = repository.mpsq("contest", "show", "night").json["candidates"]
    assert entered["answer"] == followed.json["answer"]


def test_a_candidate_is_named_as_where_the_user_is(queue: Queue, repository: Repository) -> None:
    """The contest began in another work tree, whose HEAD is the champion."""
    repository.mpsq("contest", "new", "night", "--champion", "HEAD", *LOSS, "--no-gate", *TRAIN)
    user = copy.copy(repository)
    user.folder = repository.folder.parent / "tree"
    repository.git("worktree", "add", "-q", "--detach", str(user.folder), "HEAD")
    user.git("commit", "-q", "--allow-empty", "-m", "empty")
    for same in ("HEAD", "."):
        refused = user.mpsq("contest", "try", "night", same)
        assert refused.code == 2 and f"{same} has the same" in refused.text, refused.text
    user.write("exit 3\n")
    assert "uncommitted changes" in user.mpsq("contest", "try", "night", "HEAD").text
    user.git("commit", "-q", "-a", "-m", "exits")
    other = Repository(repository.folder.parent / "other")
    other.commit(SLOW, "slow-elsewhere")
    refused = other.mpsq("contest", "try", "night", "HEAD")
    assert refused.code == 2 and "HEAD is not a" in refused.text, refused.text
    repository.write("exit 9\n")
    refused = other.mpsq("contest", "try", "night", "worse")  # a tag where the contest began
    assert f"uncommitted changes in {repository.folder}" in refused.text, refused.text
    repository.git("checkout", "-q", "train.sh")
    judged = user.mpsq("contest", "try", "night", "HEAD")
    assert judged.code == 1 and "FAILED(3)" in judged.reasons, judged.text
    user.folder.with_name("edited").mkdir()
    user.folder = user.folder.parent
    user.write("exit 4\n", "edited/train.sh")
    judged = user.mpsq("contest", "try", "night", "edited")
    assert judged.code == 1 and "FAILED(4)" in judged.reasons, judged.text
    labels = [x["label"] for x in repository.mpsq("contest", "show", "night").json["candidates"]]
    assert labels == ["HEAD", "edited"]


@pytest.mark.parametrize(
    ("script", "words", "sentence"),
    [
        ("exit 7\n", LOSS, "the run did not succeed"),
        (SLOW, ("--metric", "acc=acc ([0-9.]+)"), "the champion printed no number for acc in round 1"),
        (SLOW, (*LOSS, "--budget", "1s"), "3 rounds take about"),
        (SLOW, (*LOSS, "--plan", "0"), "--plan 0 is out of range"),
    ],
)
def test_a_contest_that_cannot_work_says_so_at_its_start(
    repository: Repository, script: str, words: tuple[str, ...], sentence: str
) -> None:
    repository.write(script)
    new = repository.mpsq("contest", "new", "night", "--champion", ".", "--no-gate", *words, *TRAIN)
    assert new.code == 2 and sentence in new.text and "hint: " in new.text, new.text
    assert repository.mpsq("contest", "try", "night", "fast").code == 2
    assert repository.mpsq("contest", "confirm", "night").code == 2
