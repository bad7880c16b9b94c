"""Secret words lie apart from what is stored, come back for the run, and go with their job."""

from __future__ import annotations

import stat
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from queue_runner.errors import UsageError
from queue_runner.host import job_secrets
from queue_runner.paths import Layout
from queue_runner.spec import JobSpec

WORDS = ("hunter2", "PW", "abc.def", "t0ken")
SPEC = JobSpec(
    kind="command",
    name="train.py",
    argv=("train.py", "-p", "hunter2", "postgres://u:PW@h/db", "--lr=1", "Authorization: Bearer abc.def"),
    env={"DBPASS": "t0ken", "PATH": "/bin", "OMP_NUM_THREADS": "4"},
)


def test_what_is_stored_has_no_secret_and_what_runs_has_them_all(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    stored = job_secrets.hide(layout, SPEC)
    assert not any(word in stored.to_json() for word in WORDS)
    assert (stored.env["PATH"], stored.argv[4]) == ("/bin", "--lr=1")
    assert job_secrets.reveal(layout, stored.argv, stored.env) == (list(SPEC.argv), dict(SPEC.env))
    assert {stat.S_IMODE(path.stat().st_mode) for path in (layout.secrets, layout.words)} == {0o700}
    assert {stat.S_IMODE(path.stat().st_mode) for path in layout.words.iterdir()} == {0o600}


def test_equal_words_make_equal_questions_and_others_do_not(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    first = job_secrets.hide(layout, SPEC)
    assert job_secrets.hide(layout, SPEC) == first
    assert job_secrets.hide(layout, first) == first
    other = job_secrets.hide(layout, replace(SPEC, argv=("train.py", "-p", "hunter3")))
    assert other.argv != first.argv[:3] and other.content_hash() != first.content_hash()
    elsewhere = job_secrets.hide(Layout(tmp_path / "other"), SPEC)
    assert elsewhere.argv != first.argv  # without the key of a home nobody can try which word it was


def test_a_question_without_secrets_keeps_its_hash(tmp_path: Path) -> None:
    """The hashes are those of version 0.1, computed before there was this module."""
    command = JobSpec(kind="command", name="train.py", argv=("python", "train.py", "--lr=3e-4"), device="cpu")
    command = replace(command, python="/usr/bin/python3", cwd="/x", env={"PATH": "/bin", "OMP_NUM_THREADS": "4"})
    workload = JobSpec(
        "workload", "nanogpt", "nanogpt", "torch", "nanogpt_torch.py", "cpu", False, "fp32", "tiny", 1337
    )
    workload = replace(workload, params={"max_iters": 20}, secrets=("HF_TOKEN",), env={"DBPASS": "x"})
    for spec, digest in (
        (command, "c6a730a2d31f53cab82e2b89940f0992f28c92f2dacf027aa774419a5e2aad69"),
        (workload, "053c54b56599a7a787fc96eeb1629845f652dc70c95639de181a0fe47360dd4a"),
    ):
        assert job_secrets.hide(Layout(tmp_path), spec).content_hash() == digest


def test_a_setting_that_is_filled_in_later_is_no_secret(tmp_path: Path) -> None:
    words = ("train.py", "--token={batch}", "--password=x")
    probe = replace(SPEC, argv=("train.py", "--token=8", "--password=x"), template=words, find_max="batch=8:64")
    stored = job_secrets.hide(Layout(tmp_path), probe)
    assert stored.template[1] == "--token={batch}" and "x" not in stored.template[2].partition("=")[2][:2]


def test_what_is_gone_has_a_sentence(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    stored = job_secrets.hide(layout, SPEC)
    job_secrets.check(layout, stored)
    for path in job_secrets.stored(layout):
        if path.name != stored.env["DBPASS"]:
            path.unlink()
    with pytest.raises(job_secrets.Missing, match="a word of its command line was a secret, and its file is gone"):
        job_secrets.check(layout, stored)
    (layout.words / stored.env["DBPASS"]).unlink()
    with pytest.raises(job_secrets.Missing, match="--env DBPASS"):
        job_secrets.check(layout, replace(stored, argv=()))
    assert [path.name for path in layout.words.iterdir()] == [".key"]


def secret(layout: Layout, name: str, text: str) -> Path:
    layout.secrets.mkdir(mode=0o700)
    path = layout.secrets / name
    path.write_text(text)
    path.chmod(0o600)
    return path


def test_a_named_secret_is_the_content_of_a_private_file(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    path = secret(layout, "HF_TOKEN", "abc\n")
    assert job_secrets.named(layout, ["HF_TOKEN"]) == {"HF_TOKEN": "abc"}
    assert job_secrets.check_names(layout, ["HF_TOKEN", "HF_TOKEN"]) == ("HF_TOKEN",)
    path.chmod(0o640)
    with pytest.raises(UsageError, match="others may read") as caught:
        job_secrets.check_names(layout, ["HF_TOKEN"])
    assert f"chmod 600 {path}" in caught.value.hint
    path.unlink()
    path.mkdir()
    with pytest.raises(UsageError, match="not a file of yours"):
        job_secrets.check_names(layout, ["HF_TOKEN"])


@pytest.mark.parametrize("name", ["", "a/b", "../x", "MPSQ_HOME", ".words", "A=B"])
def test_a_name_is_that_of_a_variable(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="cannot name a variable"):
        job_secrets.check_names(Layout(tmp_path), [name])


def test_without_a_file_and_a_keyring_there_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keyring", None)
    with pytest.raises(UsageError, match="there is no secret HF_TOKEN") as caught:
        job_secrets.check_names(Layout(tmp_path), ["HF_TOKEN"])
    assert f"cat > {tmp_path}/secrets/HF_TOKEN" in caught.value.hint and "mpsq[keyring]" in caught.value.hint
