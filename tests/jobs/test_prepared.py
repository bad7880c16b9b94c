"""What is prepared before a run: once per question, in another process, and no weaker a check than in the run."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import nanogpt_torch as job
import pytest

from harness import prepared
from harness.torch_backend import training as torch_training
from tests.jobs.conftest import FRAMEWORKS, SCRIPT, Run, arguments

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick_mlx", "quick_tinygrad")]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "cache" / "prepared.json"
    monkeypatch.setenv("MPSQ_PREPARED", str(path))
    monkeypatch.setattr(prepared, "_computed", [])
    return path


def prepare(run: Run, monkeypatch: pytest.MonkeyPatch, *words: str, **more: Any) -> None:
    """As the process before the run, of which nothing but the file is left."""
    with monkeypatch.context() as before:
        before.setenv("MPSQ_PREPARE", "1")
        before.setattr(prepared, "_computed", [])
        ran = run(*words, **more)
    assert ran.code == 0 and not ran.of("iter") and not ran.of("metric"), ran.err


def values(place: Path) -> dict[str, Any]:
    return dict(json.loads(place.read_text())["values"])


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_prepared_loss_is_read_and_the_check_is_the_same(
    run: Run, place: Path, monkeypatch: pytest.MonkeyPatch, framework: str
) -> None:
    alone = run("--dtype", "bf16", framework=framework)
    place.unlink()
    prepare(run, monkeypatch, "--dtype", "bf16", framework=framework)
    assert values(place) == {"reference_loss": alone.metrics()["reference_loss_cpu"]}
    monkeypatch.setattr(prepared, "_computed", [])
    after = run("--dtype", "bf16", framework=framework)
    assert after.metrics()["reference_loss_cpu"] == alone.metrics()["reference_loss_cpu"]
    assert after.metrics()["reference_loss_device"] == alone.metrics()["reference_loss_device"]
    assert after.losses() == alone.losses()
    assert "reference_in_run" in alone.notes() and not {"reference_in_run", "wrong_loss"} & set(after.notes())


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_kept_loss_that_the_device_contradicts_is_computed_anew(run: Run, place: Path, framework: str) -> None:
    """Where code changed that is not the workload's own, such as a package that is installed to be edited."""
    prepared.keep("reference_loss", 3.0)
    ran = run("--dtype", "bf16", framework=framework, max_iters=3)
    assert ran.code == 0 and "wrong_loss" not in ran.notes(), ran.err
    assert values(place)["reference_loss"] == ran.metrics()["reference_loss_cpu"] == pytest.approx(math.log(103), abs=1)


@pytest.mark.parametrize("error", [0.06, math.nan])
def test_a_device_that_computes_wrongly_is_noted_against_a_kept_loss(
    run: Run, place: Path, monkeypatch: pytest.MonkeyPatch, error: float
) -> None:
    def build(options: Any, device: Any) -> Any:
        training = job.build(options, device)
        training.forward = lambda *batch: training.model(*batch) + (0.0 if training.model.training else error)
        return training

    prepare(run, monkeypatch, "--dtype", "bf16")
    right = values(place)["reference_loss"]
    ran = run("--dtype", "bf16", build=build, dropout=0.1)
    assert ran.notes()["wrong_loss"]["expected"] == pytest.approx(right, abs=1e-5)
    assert len(ran.losses()) == 4
    assert ran.losses() == run("--dtype", "bf16", dropout=0.1).losses(), "computing it again leaves the training alone"


def test_the_run_computes_nothing_on_the_cpu(run: Run, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> float:
        raise AssertionError("the reference is computed in the run")

    prepare(run, monkeypatch)
    monkeypatch.setattr(torch_training, "_on_cpu", refuse)
    assert run().code == 0


def test_values_of_another_environment_are_not_taken(run: Run, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(run, monkeypatch)
    monkeypatch.setattr(prepared, "_ENVIRONMENT", {"packages": ["another-1.0.dist-info"]})
    assert not prepared.is_complete() and "reference_in_run" in run().notes()
    assert prepared.is_complete()


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_later_round_of_a_checked_job_computes_nothing_on_the_cpu_and_trains_alike(
    run: Run, place: Path, monkeypatch: pytest.MonkeyPatch, framework: str
) -> None:
    checked = run("--dtype", "bf16", framework=framework)
    place.unlink()
    monkeypatch.setenv("MPSQ_CHECKED", "1")
    monkeypatch.setattr(prepared, "_computed", [])
    later = run("--dtype", "bf16", framework=framework)
    assert later.losses() == checked.losses() and not place.exists()
    assert not {"reference_loss_cpu", "reference_loss_device"} & set(later.metrics())
    assert not {"no_reference", "reference_in_run", "wrong_loss"} & set(later.notes())


@pytest.mark.parametrize("content", ["", "{", "[]", '{"values": 3, "environment": {}}', "\0"])
def test_a_damaged_file_is_as_none(place: Path, content: str) -> None:
    place.parent.mkdir()
    place.write_text(content)
    assert not prepared.is_complete() and prepared.once("a", lambda: 1.5) == 1.5 and values(place) == {"a": 1.5}


def test_a_file_that_cannot_be_written_is_no_error(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place.parent.write_text("in the way")
    assert prepared.once("a", lambda: 1.5) == 1.5 and prepared.computed_here() == ["a"]


def test_a_sample_is_prepared_too(run: Run, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"mode": "sample", "new_tokens": 3, "max_iters": 2}
    alone = run(**settings)
    place.unlink()
    prepare(run, monkeypatch, **settings)
    monkeypatch.setattr(prepared, "_computed", [])
    after = run(**settings)
    assert after.metrics()["reference_loss_cpu"] == alone.metrics()["reference_loss_cpu"]
    assert not {"wrong_loss", "reference_in_run"} & set(after.notes())


def test_what_is_prepared_is_not_prepared_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process ends before it imports a framework."""
    monkeypatch.setenv("MPSQ_PREPARE", "1")
    command = [sys.executable, "-X", "importtime", str(SCRIPT), *arguments([], {})]
    first, second = (subprocess.run(command, capture_output=True, text=True, check=True).stderr for _ in range(2))
    assert "numpy" in first and "harness.prepared" in second and "numpy" not in second
