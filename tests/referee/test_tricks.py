"""Each trick that the referee sees, planted once in a real candidate."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from queue_runner.referee import sealed
from tests.queue_support import Queue
from tests.referee.referee_support import EVALUATION, LOSS, TRAINER, Repository

pytestmark = [pytest.mark.process, pytest.mark.needs_program("git")]

RUN = ("--", "python3", "train.py")


@pytest.fixture
def honest(repository: Repository) -> Repository:
    (repository.folder / "eval.sh").write_text(EVALUATION)
    repository.commit(TRAINER, "honest", "train.py")
    return repository


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("10, 10, True", "10, 6, True", "it announced 10 iterations and reported 6"),
        ("True, 1.0", "True, 0.3", "its times contradict the clock"),
        ("True, 1.0", "False, 1.0", "its clock did not wait for the device"),
        ('"a" * 64', '"b" * 64', "it reports other data than the champion"),
        ("64, seed", "64, 42", "it reports another seed than the champion"),
        ("    put(", "    if i != 7: put(", "it left out iterations"),
        ('open("model"', 'open("data/x", "w").write("leak"); open("model"', "it changed files that both rows read"),
    ],
)
def test_what_a_candidate_reports_is_held_against_the_champion(
    honest: Repository, old: str, new: str, reason: str
) -> None:
    assert old in TRAINER
    honest.write(TRAINER.replace(old, new), "train.py")
    answer = honest.judge("honest", ".", *LOSS, *RUN)
    assert answer.code == 1 and answer.json["rounds"] == 1, answer.text
    assert "candidate is refused" in answer.reasons and reason in answer.reasons, answer.text


def test_code_that_reads_the_seed_or_sets_a_clock_is_refused_before_it_runs(queue: Queue, honest: Repository) -> None:
    for line in ('print(os.environ["MPSQ_SEED"])', "time.perf_counter = lambda: 0.0"):
        honest.write(TRAINER + line + "\n", "train.py")
        answer = honest.judge("honest", ".", *LOSS, *RUN)
        assert answer.code == 2 and "read the seed" in answer.text, answer.text
    assert not queue.layout.db.exists() or not queue.rows()


@pytest.mark.parametrize(
    ("champion", "code", "reason"),
    [
        ("1.$MPSQ_SEED", 1, "its loss is the same in all rounds: it ignores MPSQ_SEED"),
        ("2.5", 3, "a row repeats it; use MPSQ_SEED as seed"),
    ],
)
def test_a_loss_that_repeats_to_the_digit_is_not_believed(
    repository: Repository, champion: str, code: int, reason: str
) -> None:
    """The candidate keeps a constant seed, and says nothing of it; in the second case, the champion does, too."""
    repository.commit(f"echo loss {champion}\n", "seeded")
    repository.write("echo loss 0.5\n")
    answer = repository.judge("seeded", ".", *LOSS, "--", "sh", "train.sh")
    assert answer.code == code and answer.json["rounds"] == 3 and reason in answer.reasons, answer.text


def test_the_metric_comes_from_the_champions_evaluation(queue: Queue, honest: Repository) -> None:
    """The candidate prints a low loss, during its run and after it, in the line before the evaluation's, and edits the
    evaluation. It is not refused, and gains nothing. Then it runs again, alone."""
    forged = (
        "import subprocess\nsubprocess.Popen(['sh', '-c', 'sleep 0.3; echo loss 0.1'])\nprint('loss 0.1', end=' ')\n"
    )
    honest.write(TRAINER + forged, "train.py")
    (honest.folder / "eval.sh").write_text("echo loss 0.1\n")
    metric = ("--metric", "loss=^loss ([0-9.]+)")
    answer = honest.judge("honest", ".", *metric, "--evaluate", "sh eval.sh", *RUN)
    assert answer.code in (1, 3) and "is refused" not in answer.reasons, answer.text
    difference = answer.json["difference"]
    assert 5 < difference["champion"] < 6 and difference["change"] == 0, answer.text
    left = {path.name for folder in queue.layout.runs.iterdir() for path in folder.iterdir()}
    assert "stdout.log" in left and not left & {"evaluation", "private", "tree"}
    assert honest.mpsq("rerun", "2", "--repeats", "1").code == 0
    queue.worker("", "--until-idle")
    assert queue.done(1 + 2 * answer.json["rounds"])[-1]["outcome"] == "SUCCEEDED"


def test_a_metric_that_the_evaluation_does_not_have_is_not_the_candidates(honest: Repository) -> None:
    """It is neither what the candidate prints nor what it reports."""
    report = 'put("metric", name="loss", value=0.1)\nopen("model", "w").write("x")\n'
    honest.write(TRAINER + report, "train.py")
    metric = ("--metric", r"loss=^loss (\S+)")
    answer = honest.judge("honest", ".", *metric, "--evaluate", "sh eval.sh", *RUN)
    assert answer.code == 1 and answer.json["rounds"] == 1, answer.text
    assert "candidate printed no" in answer.reasons, answer.text


def test_an_evaluation_that_fails_is_a_sentence(queue: Queue, honest: Repository) -> None:
    honest.write(TRAINER.replace('open("model"', 'open("other"'), "train.py")
    evaluate = ("--evaluate", 'cat "$MPSQ_TRAINED/model" && sh eval.sh')
    answer = honest.judge("honest", ".", *LOSS, *evaluate, *RUN)
    assert answer.code == 1 and "round 1, FAILED(1)" in answer.reasons, answer.text
    assert "exit code 1" in (queue.layout.run_dir("2.1") / "stderr.log").read_text()
    answer = honest.judge("honest", ".", "--evaluate", "sh eval.sh", *RUN)
    assert answer.code == 2 and "--evaluate prints a metric" in answer.text, answer.text


def test_a_program_that_removes_its_links_has_changed_nothing(tmp_path: Path) -> None:
    (data := tmp_path / "data").mkdir()
    (data / "x").write_text("data")
    (tree := tmp_path / "1.1" / "tree").mkdir(parents=True)
    (tree / "data").symlink_to(data)
    command = [sys.executable, sealed.__file__, "--", "sh", "-c", "rm data && mkdir data && echo 1 > data/x"]
    subprocess.run(command, cwd=tree, env={**os.environ, "MPSQ_OUT": str(tree.parent / "out")}, check=True)
    assert (data / "x").read_text() == "data" and {path.name for path in tree.parent.iterdir()} == {"tree"}


SOCKET = "import socket as s, tempfile as t; s.socket(s.AF_UNIX).bind(t.mkdtemp() + '/listener-of-a-loader')"
"""Workers of a data loader do so. The path has at most 104 characters on macOS, and 108 on Linux."""


def test_each_run_has_its_own_caches(queue: Queue, repository: Repository) -> None:
    script = 'ls -A "$TMPDIR" "$TORCHINDUCTOR_CACHE_DIR" 2>/dev/null; mkdir -p "$TORCHINDUCTOR_CACHE_DIR"\n'
    script += 'touch "$TORCHINDUCTOR_CACHE_DIR/weights" "$TMPDIR/weights"\n'
    script += f'python3 -c "{SOCKET}" || exit 5\n'
    repository.commit(f'{script}echo "loss 1.$MPSQ_SEED"\n', "leak")
    repository.write(script)
    assert repository.judge("leak", ".", *LOSS, "--", "sh", "train.sh").code == 1
    logs = [path.read_text() for path in queue.layout.runs.glob("*/stdout.log")]
    assert len(logs) == 2 and not any("weights" in log for log in logs)
