"""bench: a workload on every device that computes here, eager and compiled, often enough for a verdict."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from queue_runner.errors import UsageError
from queue_runner.host import compiler, torch_probe
from queue_runner.monitor.forecast import Forecast
from queue_runner.paths import Layout
from queue_runner.submit import benchmark_grid
from tests.cli_support import Cli, empty_queue, stand_in_venv, use_toy_workloads

pytestmark = pytest.mark.process

Machine = Callable[..., None]


@pytest.fixture
def mpsq(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    folder = use_toy_workloads(tmp_path / "jobs", monkeypatch)
    monkeypatch.setattr("queue_runner.submit.benchmark_grid.jobs_dir", lambda: folder)
    monkeypatch.chdir(tmp_path)
    return Cli(capsys)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    def has(*devices: str, compiles: bool = True) -> None:
        monkeypatch.setattr(torch_probe, "computing_devices", lambda *_: list(devices))
        verdict = "ok" if compiles else "warn"
        monkeypatch.setattr(compiler, "probe", lambda: compiler.Check("compiler", verdict, "no g++"))

    return has


def test_the_grid_of_this_machine(home: Path, mpsq: Cli, machine: Machine) -> None:
    machine("cpu", "mps")
    ran = mpsq.ok("bench", "toy", "--detach", "--json")
    assert len(ran.json()["jobs"]) == 4 and len(ran.json()["runs"]) == 12
    assert "mps, compiled, tiny  3 x" in ran.err
    assert "12 runs: time not known" in ran.err and "no run like these has ended" in ran.err


def test_an_interpreter_without_torch_is_named(mpsq: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """`pip install mpsq` brings no torch."""
    monkeypatch.setattr(torch_probe, "probe", lambda _: torch_probe.Torch(trouble="No module named 'torch'"))
    ran = mpsq("bench", "toy")
    assert ran.code == 2 and "torch: No module" in ran.err and "pip install torch" in ran.err


def test_what_is_said_replaces_the_preset(home: Path, mpsq: Cli, machine: Machine) -> None:
    machine("cpu", compiles=False)
    ran = mpsq.ok("bench", "toy", "--repeats", "2", "--dtype", "fp32,bf16", "--config", "large", "--dry-run", "--json")
    assert [(cell["dtype"], cell["compile"], cell["config"]) for cell in ran.json()["cells"]] == [
        ("fp32", False, "large"),
        ("bf16", False, "large"),
    ]
    assert "eager only: no g++" in ran.err and not home.exists()
    machine()
    assert "no device works" in mpsq("bench", "toy").err
    assert mpsq.ok("bench", "toy", "--device", "cpu", "--dry-run", "--json").json()["order"]
    ran = mpsq.ok("bench", "toy", "--framework", "mlx", "--dry-run", "--json")
    assert {cell["device"] for cell in ran.json()["cells"]} == {"auto"} and "mlx" in ran.err


def test_a_whole_training_is_shortened_unless_its_length_is_given(home: Path, mpsq: Cli, machine: Machine) -> None:
    machine("cpu", compiles=False)

    def length(*words: str) -> object:
        (cell,) = mpsq.ok("bench", "toy", *words, "--dry-run", "--json").json()["cells"]
        return cell["sets"].get("max_iters")

    assert length() is None and length("--config", "tiny") is None
    assert length("--config", "large") == benchmark_grid.ITERS_ON_CPU
    assert length("--config", "large", "--device", "mps") == benchmark_grid.BENCHMARK["max_iters"]
    machine("cuda", compiles=False)
    assert length("--config", "large") == benchmark_grid.ITERS_ON_CUDA
    assert length("--config", "large", "--set", "max_iters=3000") == 3000


def test_beside_cuda_the_cpu_is_left_out(home: Path, mpsq: Cli, machine: Machine) -> None:
    machine("cpu", "cuda", compiles=False)
    ran = mpsq.ok("bench", "toy", "--dry-run", "--json")
    assert [cell["device"] for cell in ran.json()["cells"]] == ["cuda"]
    assert "--device cpu,cuda" in " ".join(ran.err.split())
    ran = mpsq.ok("bench", "toy", "--device", "cpu,cuda", "--dry-run", "--json")
    assert [cell["device"] for cell in ran.json()["cells"]] == ["cpu", "cuda"]


def test_environments_and_switches_are_asked_where_they_mean_something(
    home: Path, mpsq: Cli, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = stand_in_venv(home, "stable")
    machine("cpu")
    asked: list[str | None] = []
    monkeypatch.setattr(torch_probe, "computing_devices", lambda python: asked.append(python) or ["cpu"])
    ran = mpsq.ok("bench", "toy", "--env-name", "stable", "--compile", "off", "--dry-run", "--json")
    assert [cell["env_name"] for cell in ran.json()["cells"]] == ["stable"]
    assert asked == [str(folder / "bin" / "python")]
    ran = mpsq.ok(
        "bench", "toy", "--mps", "default", "--mps", "fast_math=on", "--compile", "off", "--dry-run", "--json"
    )
    assert [(cell["device"], cell["mps"]) for cell in ran.json()["cells"]] == [
        ("mps", {}),
        ("mps", {"fast_math": "on"}),
    ]


def test_held_runs_are_not_waited_for(home: Path, mpsq: Cli, machine: Machine) -> None:
    machine("cpu", compiles=False)
    refused = mpsq("bench", "toy", "--hold")
    assert refused.code == 2 and "wait forever" in refused.err and "bench --detach" in refused.err
    assert mpsq.ok("bench", "toy", "--hold", "--dry-run", "--json").json()["order"]
    assert mpsq.ok("bench", "toy", "--hold", "--detach").out


def test_a_command_is_not_a_workload(home: Path, mpsq: Cli) -> None:
    for line in (["bench"], ["bench", "--", "true"], ["bench", "tyo"]):
        assert mpsq(*line).code == 2
    with pytest.raises(UsageError, match="bench takes a workload"):
        benchmark_grid.complete({"argv": ("true",)}, Layout(home))


@pytest.mark.parametrize(("answer", "code", "queued"), [(False, 1, 0), (True, 0, 2)])
def test_a_terminal_is_asked_first(
    home: Path, mpsq: Cli, machine: Machine, monkeypatch: pytest.MonkeyPatch, answer: bool, code: int, queued: int
) -> None:
    empty_queue(home)
    machine("cpu")
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.confirm", lambda *_, **__: answer)
    assert mpsq("bench", "toy", "--detach").code == code
    assert len(mpsq.ok("list", "--json").json()["jobs"]) == queued
    assert mpsq("bench", "toy", "--detach", "--yes").code == 0


def test_a_forecast_says_how_sure_it_is() -> None:
    sure = Forecast((60.0,), 240.0, 0, 0, 0.0, 4).sentence(1e6)
    assert sure.startswith("4 runs: about 4 min 00 s") and "done at" in sure and ";" not in sure
    behind = Forecast((60.0,), 240.0, 0, 0, 0.0, 4, waits_sure=False).sentence(1e6)
    assert "at least 4 min" in behind
    half = Forecast((60.0, None), 120.0, 2, 1, 30.0, 4).sentence(1e6)
    facts = "at least 2 min", "done after", "take 30 s", "2 of 4 runs", "no history", "1 of 4 runs estimated"
    assert all(fact in half for fact in facts), half
