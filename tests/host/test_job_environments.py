"""The environments of jobs are private files; the database has the values of public variables, and keyed hashes."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from queue_runner.host import job_environments
from queue_runner.host.job_secrets import Missing
from queue_runner.paths import Layout
from queue_runner.spec import JobSpec

ENV = {"MYTOKEN": "t0ken", "PATH": "/bin", "OMP_NUM_THREADS": "4"}
SPEC = JobSpec(kind="command", name="train.py", argv=("train.py",), env=ENV, variables={"MYTOKEN": "t0ken"})


def test_the_database_gets_public_values_and_the_run_gets_all(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    stored = job_environments.Saver(layout).stored(SPEC)
    assert "t0ken" not in stored.to_json() and "/bin" not in stored.to_json()
    assert stored.env["OMP_NUM_THREADS"] == "4" and stored.env.keys() == ENV.keys()
    assert stored.variables == {"MYTOKEN": stored.env["MYTOKEN"]}
    assert job_environments.load(layout, stored) == ENV
    assert {stat.S_IMODE(path.stat().st_mode) for path in (layout.secrets, layout.environments)} == {0o700}
    assert {stat.S_IMODE(path.stat().st_mode) for path in layout.environments.iterdir()} == {0o600}


def test_equal_environments_share_a_file_and_equal_values_make_equal_questions(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    first, second = (job_environments.Saver(layout).stored(SPEC.changed(env=dict(ENV))) for _ in range(2))
    assert first == second and len(job_environments.files(layout)) == 1
    other = job_environments.Saver(layout).stored(SPEC.changed(variables={"MYTOKEN": "other"}))
    assert other.content_hash() != first.content_hash()
    elsewhere = job_environments.Saver(Layout(tmp_path / "other")).stored(SPEC)
    assert elsewhere.env_file != first.env_file  # without the key of a home nobody can try which value it was
    assert elsewhere.variables != first.variables


def test_a_question_without_env_keeps_its_hash(tmp_path: Path) -> None:
    """The hashes are those of version 0.1, computed before there was this module."""
    command = JobSpec(kind="command", name="train.py", argv=("python", "train.py", "--lr=3e-4"), device="cpu")
    command = command.changed(python="/usr/bin/python3", cwd="/x", env={"PATH": "/bin", "OMP_NUM_THREADS": "4"})
    workload = JobSpec(
        "workload", "nanogpt", "nanogpt", "torch", "nanogpt_torch.py", "cpu", False, "fp32", "tiny", 1337
    )
    workload = workload.changed(params={"max_iters": 20}, secrets=("HF_TOKEN",), env={"DBPASS": "x"})
    for spec, digest in (
        (command, "c6a730a2d31f53cab82e2b89940f0992f28c92f2dacf027aa774419a5e2aad69"),
        (workload, "053c54b56599a7a787fc96eeb1629845f652dc70c95639de181a0fe47360dd4a"),
    ):
        assert job_environments.Saver(Layout(tmp_path)).stored(spec).content_hash() == digest


def test_a_missing_file_has_a_remedy(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    stored = job_environments.Saver(layout).stored(SPEC)
    job_environments.check(layout, stored)
    (layout.environments / stored.env_file).unlink()
    with pytest.raises(Missing) as caught:
        job_environments.check(layout, stored)
    assert "mpsq rerun" in caught.value.ending().reason


def test_placeholders_of_earlier_versions_stay_readable(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    layout.words.mkdir(parents=True)
    placeholder = "[mpsq-secret-0123456789abcdef01234567]"
    (layout.words / placeholder).write_text("hunter2")
    spec = SPEC.changed(argv=("train.py", f"--key={placeholder}"), env={"DBPASS": placeholder})
    stored = job_environments.Saver(layout).stored(spec)
    assert stored.env == {"DBPASS": placeholder}
    job_environments.check(layout, stored)
    (layout.words / placeholder).unlink()
    with pytest.raises(Missing, match="its file is gone"):
        job_environments.check(layout, stored)
