"""nanogpt in torch, mlx, tinygrad and jax: the same training, and what each of them has of its own.

Nothing is skipped for want of a framework: all four exist wherever mpsq does, and CI installs them.
"""

from __future__ import annotations

import importlib
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.array_device import nvidia_name
from harness.command_line import resolve
from tests.jobs.conftest import FRAMEWORKS, JOBS, TRAINED, Ran, Run, read

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick_mlx", "quick_tinygrad")]
OTHERS = ("mlx", "tinygrad", "jax")
ONE = TRAINED | {"max_iters": 1, "eval_interval": 0}


def trained(run: Run, framework: str, weights: Path, *words: str, **settings: object) -> Ran:
    ran = run(*words, framework=framework, init_from=weights, **TRAINED | settings)
    assert ran.code == 0, ran.err
    return ran


@pytest.mark.parametrize(
    ("framework", "mode", "grad_accum"),
    [
        ("mlx", "off", 2), ("mlx", "on", 1),
        ("tinygrad", "on", 2), ("tinygrad", "off", 2),  # the same kernels: the second finds them
        ("jax", "off", 1), ("jax", "on", 2),
    ],
)  # fmt: skip
def test_the_four_train_alike(run: Run, weights: Path, framework: str, mode: str, grad_accum: int) -> None:
    """fp32 on the CPU, same weights, same batches: each of the first ten losses agrees to 1e-3."""
    n = 3 if (framework, mode) == ("tinygrad", "off") else 10  # there each takes half a second; compiled it does ten
    changes = {"grad_accum": grad_accum, "max_iters": n, "eval_interval": n, "lr_decay_iters": 10}
    torch = trained(run, "torch", weights, **changes)
    other = trained(run, framework, weights, "--compile", mode, **changes)
    assert len(torch.losses()) == n and abs(torch.losses()[-1] - torch.losses()[0]) > 0.01 * n
    assert other.losses() == pytest.approx(torch.losses(), rel=1e-3)
    assert [e["metrics"]["loss"] for e in other.of("eval")] == pytest.approx(
        [e["metrics"]["loss"] for e in torch.of("eval")], rel=1e-3
    )
    for key in ("params", "flops_per_iter", "tokens_per_iter", "data", "workload", "device", "device_name"):
        assert other.hello()[key] == torch.hello()[key], key
    assert other.metrics()["reference_loss_cpu"] == pytest.approx(torch.metrics()["reference_loss_cpu"], rel=1e-5)
    assert other.metrics()["reference_loss_device"] == pytest.approx(other.losses()[0], abs=0.5)
    assert "wrong_loss" not in other.notes()
    first = "compile" if mode == "on" else "warmup"
    assert [e["phase"] for e in other.of("iter")] == [first, "warmup", *["measure"] * (n - 2)]
    assert all(e["synced"] for e in other.of("iter"))


def test_a_seed_is_the_same_weights_in_each(run: Run) -> None:
    first = {name: run(framework=name, max_iters=1).losses()[0] for name in ("torch", "mlx")}
    assert first["mlx"] == pytest.approx(first["torch"], rel=1e-5)


def test_what_can_be_set_is_the_same() -> None:
    """Apart from what torch alone offers a choice of."""
    literals = {name: resolve(importlib.import_module(f"nanogpt_{name}").WORKLOAD) for name in FRAMEWORKS}
    torch = literals["torch"]
    params = {key: value for key, value in torch["params"].items() if key not in ("adamw", "threads")}
    for name, literal in literals.items():
        assert literal["framework"] == name and literal["configs"] == torch["configs"]
        assert name == "torch" or literal["params"] == params


@pytest.mark.parametrize("framework", OTHERS)
def test_bf16_is_used_and_is_close_and_fp16_is_refused(run: Run, framework: str) -> None:
    mode = "on" if framework == "jax" else "off"
    half = run("--dtype", "bf16", "--compile", mode, framework=framework, max_iters=1, grad_clip=0)
    if framework == "tinygrad" and half.code == 2:
        assert "bf16 on cpu" in half.err and "clang 15" in half.err
    else:
        assert half.code == 0, half.err
        metrics = half.metrics()
        assert metrics["reference_loss_device"] == pytest.approx(metrics["reference_loss_cpu"], abs=0.05)
        assert metrics["reference_loss_device"] != metrics["reference_loss_cpu"] and half.hello()["dtype"] == "bf16"
    refused = run("--dtype", "fp16", framework=framework)
    assert refused.code == 2 and "no loss scaling" in refused.err and "bf16" in refused.err


@pytest.mark.parametrize(("framework", "mode"), [("mlx", "off"), ("tinygrad", "off"), ("jax", "on")])
def test_dropout_drops_in_training_alone(run: Run, framework: str, mode: str) -> None:
    """Without it the first iteration's loss is the reference loss."""
    job = importlib.import_module(f"nanogpt_{framework}")

    def build(options: Any, device: Any) -> Any:
        training = job.build(options, device)
        if framework == "tinygrad":  # its gradients with dropout take long to compile, and drop nothing by themselves
            training.update = lambda x, y, lr: training.forward(x[0], y[0])
        return training

    dropped = run("--compile", mode, framework=framework, build=build, **ONE | {"dropout": 0.5})
    metrics = dropped.metrics()
    assert metrics["reference_loss_device"] == pytest.approx(metrics["reference_loss_cpu"], rel=1e-6)
    assert dropped.losses()[0] != pytest.approx(metrics["reference_loss_cpu"], rel=1e-6)
    assert dropped.losses()[0] == pytest.approx(metrics["reference_loss_cpu"], abs=0.5)


@pytest.mark.parametrize(
    ("framework", "mode", "change"),
    [
        ("mlx", "on", {}),
        ("mlx", "off", {"dropout": 0.5}),
        ("tinygrad", "off", {"grad_accum": 2}),
        ("jax", "on", {"grad_accum": 2}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_resume_equals_no_interruption(
    run: Run, tmp_path: Path, weights: Path, framework: str, mode: str, change: dict[str, object]
) -> None:
    def go(*words: str, max_iters: int) -> Ran:
        settings = ONE | change | {"max_iters": max_iters, "lr_decay_iters": 4, "init_from": weights}
        return run("--compile", mode, *words, framework=framework, **settings)

    whole, first = go(max_iters=2), go("--out", str(tmp_path), max_iters=1)
    rest = go("--resume", str(tmp_path / "checkpoint.npz"), max_iters=2)
    assert [event["i"] for event in rest.of("iter")] == [1]
    assert first.losses() + rest.losses() == pytest.approx(whole.losses(), rel=1e-6)


def test_a_checkpoint_or_weights_that_do_not_fit_are_a_sentence(run: Run, tmp_path: Path, weights: Path) -> None:
    (tmp_path / "garbage.npz").write_bytes(b"not a checkpoint")
    run("--out", str(tmp_path), framework="mlx", max_iters=1)
    for words, settings, message in (
        (["--resume", str(tmp_path / "none.npz")], {}, "cannot be read"),
        (["--resume", str(tmp_path / "garbage.npz")], {}, "is not a checkpoint"),
        (["--resume", str(weights)], {}, "init_from=PATH"),
        (["--resume", str(tmp_path / "checkpoint.npz")], {"block_size": 4}, "another shape"),
        ([], {"init_from": tmp_path / "garbage.npz"}, "is not init_from"),
        ([], {"init_from": tmp_path / "none.npz"}, "cannot be read"),
        ([], {"init_from": weights}, "holds the weights of another model"),
    ):
        ran = run(*words, framework="mlx", **settings)
        assert ran.code == 2 and message in ran.err and "Traceback" not in ran.err, ran.err


@pytest.mark.parametrize("framework", OTHERS)
@pytest.mark.parametrize("device", ["cuda:99", "mps"])
def test_a_device_that_is_not_there_is_exit_code_69_and_a_note(run: Run, framework: str, device: str) -> None:
    if importlib.import_module(f"harness.{framework}_backend.device").why_not(device) is None:
        pytest.skip(f"{device} is there")
    ran = run("--device", device, framework=framework)
    assert ran.code == 69 and list(ran.notes()) == ["device_unavailable"]
    assert f'device "{device}" is unavailable: ' in ran.err and "compute here: cpu" in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.parametrize(
    ("framework", "module", "name"),
    [("mlx", "mlx.core", "synchronize"), ("jax", "jax", "block_until_ready"), ("tinygrad", "", "synchronize")],
)
def test_the_clock_waits_for_the_device(
    run: Run, monkeypatch: pytest.MonkeyPatch, framework: str, module: str, name: str
) -> None:
    """The framework's own synchronisation is called before both readings of each iteration's clock."""
    if framework == "tinygrad":
        from tinygrad import Device

        owner: Any = type(Device["CPU"])
    else:
        owner = importlib.import_module(module)
    whole, calls = getattr(owner, name), []

    def counted(*arguments: Any, **named: Any) -> Any:
        calls.append(name)
        return whole(*arguments, **named)

    job = importlib.import_module(f"nanogpt_{framework}")

    def build(options: Any, device: Any) -> Any:
        training = job.build(options, device)
        monkeypatch.setattr(owner, name, counted)
        return training

    ran = run(framework=framework, build=build, **ONE | {"max_iters": 2, "grad_accum": 2})
    assert ran.code == 0 and len(calls) >= 4


def test_nothing_of_an_iteration_is_left_to_the_next(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """MLX is lazy: without the evaluation in wait() an iteration would take no time, and its loss come later."""
    import mlx.core as mx

    from harness.mlx_backend.main import Mlx

    observed: list[bool] = []
    whole = Mlx.wait

    def wait(self: Any, training: Any, loss: Any) -> None:
        whole(self, training, loss)
        before = mx.get_active_memory()
        mx.eval(training.model.parameters(), training.optimizer.state, loss)
        observed.append(mx.get_active_memory() == before)

    monkeypatch.setattr(Mlx, "wait", wait)
    assert run(framework="mlx").code == 0 and observed and all(observed)


def script(framework: str) -> str:
    return str(JOBS / f"nanogpt_{framework}.py")


@pytest.mark.parametrize("framework", OTHERS)
def test_an_interpreter_without_it_says_so(tmp_path: Path, framework: str) -> None:
    done = subprocess.run(
        [sys.executable, "-S", script(framework)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and done.stderr.startswith(f'error: "{framework}" ')
    assert "pip install" in done.stderr and framework in done.stderr and "--python" in done.stderr


def test_mlx_without_its_libraries_is_a_device_that_is_not_there(tmp_path: Path) -> None:
    """What `pip install mlx` leaves on Linux: it installs, and cannot be imported."""
    (tmp_path / "mlx").mkdir()
    (tmp_path / "mlx" / "__init__.py").write_text("")
    (tmp_path / "mlx" / "core.py").write_text("raise ImportError('libmlx.so: cannot open shared object file')")
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "MPSQ_EVENTS": str(tmp_path / "events")}
    done = subprocess.run([sys.executable, script("mlx")], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 69 and "libmlx.so" in done.stderr and "pip install" in done.stderr
    assert sys.platform != "linux" or "'mlx[cpu]'" in done.stderr
    assert [e["kind"] for e in read(tmp_path / "events") if e["type"] == "note"] == ["device_unavailable"]


def test_tinygrad_without_clang_names_the_remedy(tmp_path: Path) -> None:
    """CC keeps the job from the clang of the wheel."""
    env = {**os.environ, "MPSQ_EVENTS": str(tmp_path / "e"), "CACHEDB": str(tmp_path / "c"), "CC": "/no/clang"}
    command = [sys.executable, script("tinygrad"), "--device", "cpu"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 69 and "install clang" in done.stderr and "Traceback" not in done.stderr
    assert [e["kind"] for e in read(tmp_path / "e") if e["type"] == "note"] == ["device_unavailable"]


@pytest.mark.skipif(sys.platform != "linux" or platform.machine() != "x86_64", reason="no wheel of clang for it")
def test_tinygrad_takes_the_clang_beside_the_interpreter(tmp_path: Path) -> None:
    """`pip install 'mpsq[tinygrad]'` is enough, where no clang is on PATH and the environment is not activated."""
    env = {**os.environ, "PATH": str(tmp_path), "CACHEDB": str(tmp_path / "c")}
    env.pop("CC", None)
    code = "from harness.tinygrad_backend.device import why_not; import os; print(why_not('cpu'), os.environ['CC'])"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False, cwd=JOBS)
    assert done.stdout.split() == ["None", str(Path(sys.executable).with_name("clang"))], done.stderr


def test_tinyjit_captures_outside_of_what_is_measured(run: Run) -> None:
    ran = run("--compile", "on", framework="tinygrad", warmup_iters=0)
    assert ran.code == 2 and "TinyJit" in ran.err


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_weights_it_leaves_are_those_of_the_model(run: Run, tmp_path: Path, framework: str, weights: Path) -> None:
    """weights.npz of no iterations is what init_from gave; its names and shapes are the same in each."""
    still = ONE | {"lr": 0.0, "min_lr": 0.0, "init_from": weights, "grad_accum": 2}
    ran = run("--out", str(tmp_path), framework=framework, **still)
    assert ran.code == 0, ran.err
    with np.load(weights) as given, np.load(tmp_path / "weights.npz") as left:
        assert set(given.files) == set(left.files)
        for name in given.files:
            assert np.array_equal(given[name], left[name]), name


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        (None, ["A100", "H100, 80 GB", ""]), ("1", ["H100, 80 GB", ""]), ("1,0", ["H100, 80 GB", "A100"]), ("", [""]),
        ("GPU-beef-02", ["H100, 80 GB"]), ("GPU-beef, 0", ["H100, 80 GB", "A100"]), ("7", [""]),
    ],
)  # fmt: skip
def test_a_card_is_counted_among_the_visible_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str | None, names: list[str]
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho '0, GPU-cafe-01, A100'\necho '1, GPU-beef-02, H100, 80 GB'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [nvidia_name(index) for index in range(len(names))] == names


def test_on_a_mac_jax_is_installed_with_its_live_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    from harness import installing

    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    assert installing.hint("jax", "mps") == "; pip install jax-mps"
    assert installing.hint("mlx", "cpu") == "; pip install mlx"
