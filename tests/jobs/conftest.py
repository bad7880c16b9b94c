"""The workloads as a program would import them: with jobs/ in front of the path."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

JOBS = Path(__file__).resolve().parents[2] / "jobs"
SCRIPT = JOBS / "nanogpt_torch.py"
SHARED = Path(__file__).resolve().parents[3] / "shared"

sys.path.insert(0, str(JOBS))

SMALL = {
    "n_layer": "1",
    "n_head": "2",
    "n_embd": "16",
    "block_size": "8",
    "batch_size": "4",
    "max_iters": "4",
    "eval_interval": "0",
    "warmup_iters": "1",
}
"""Milliseconds an iteration."""
TRAINED = {
    "bias": "true", "max_iters": 10, "lr": 0.01, "min_lr": 0.001, "lr_warmup_iters": 3,
    "weight_decay": 0.5, "grad_clip": 0.5, "eval_interval": 10, "eval_iters": 2,
}  # fmt: skip
"""Everything that can differ is there and large enough to be seen in ten losses; without dropout.

Other tests take the same settings where they can: what was compiled for one serves the next.
"""


XLA_QUICKLY = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
"""A quarter of the time to compile; the results are the same but for the last bits."""


def pytest_configure(config: pytest.Config) -> None:
    """What JAX compiled is kept beside pytest's own cache, as torchinductor's is: jit compiles anew in every run."""
    os.environ.setdefault("XLA_FLAGS", XLA_QUICKLY)
    if config.cache:
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(config.cache.mkdir("jax")))
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")


@pytest.fixture
def quick_inductor(tmp_path: Path, request: pytest.FixtureRequest) -> dict[str, str]:
    """Variables for torch.compile: no pool of processes that import torch, no vector instructions to look for, and one
    cache for all tests, beside pytest's own."""
    cache = request.config.cache.mkdir("torchinductor") if request.config.cache else tmp_path
    quick = {"TORCHINDUCTOR_COMPILE_THREADS": "1", "TORCHINDUCTOR_VEC_ISA_OK": "0"}
    return quick | {"TORCHINDUCTOR_CACHE_DIR": str(cache)}


@pytest.fixture(scope="session")
def quick_mlx() -> Iterator[None]:
    """On Linux MLX has g++ compile each kernel for the CPU, and nearly all that takes is to read one header, 35 times.

    g++ looks for a header beside the file that it compiles first, and there takes a precompiled one that fits.
    """
    import mlx.core as mx

    cache_dir = Path(tempfile.gettempdir(), "mlx", mx.__version__, "cpu")
    header = Path("mlx", "backend", "cpu", "compiled_preamble.h")
    include = Path(mx.__file__).parent / "include"
    made = cache_dir / header.with_suffix(".h.gch")
    if sys.platform != "linux" or not shutil.which("g++") or any(cache_dir.glob("*.so")):
        yield
        return
    made.parent.mkdir(parents=True, exist_ok=True)
    flags = ["-std=c++17", "-O3", "-Wall", "-fPIC", "-I", str(include), "-x", "c++-header"]
    subprocess.run(["g++", *flags, str(include / header), "-o", str(made)], check=False, capture_output=True)
    yield
    shutil.rmtree(cache_dir / "mlx", ignore_errors=True)  # 50 MB; another worker may have removed it


@pytest.fixture
def quick_tinygrad() -> Iterator[None]:
    """Kernels as they are written: the search for faster ones takes half of the time to compile.
    The tests of mode=sample have the usual ones."""
    from tinygrad.helpers import Context

    with Context(NOOPT=1, PARALLEL=0):
        yield


@pytest.fixture
def unpooled_tinygrad() -> Iterator[None]:
    """Compile kernels in this process: those of the pool import tinygrad anew for each 16 kernels."""
    from tinygrad.helpers import Context

    with Context(PARALLEL=0):
        yield


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights that torch trained for a while, so that no norm is all ones and no bias all zeros."""
    folder = tmp_path_factory.mktemp("weights")
    words = arguments(["--out", str(folder)], TRAINED | {"max_iters": 3})
    command = [sys.executable, str(JOBS / "nanogpt_torch.py"), *words]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "MPSQ_EVENTS": ""})
    return folder / "weights.npz"


@dataclass(frozen=True)
class Ran:
    """What a run left behind."""

    code: int
    events: list[dict[str, Any]]
    out: str
    err: str

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["type"] == kind]

    def losses(self) -> list[float]:
        return [event["loss"] for event in self.of("iter")]

    def notes(self) -> dict[str, dict[str, Any]]:
        return {event["kind"]: event for event in self.of("note")}

    def metrics(self) -> dict[str, float]:
        return {event["name"]: event["value"] for event in self.of("metric")}

    def hello(self) -> dict[str, Any]:
        return {key: value for event in self.of("hello") for key, value in event.items()}


def arguments(words: Sequence[str], settings: dict[str, object]) -> list[str]:
    chosen = SMALL | {key: str(value) for key, value in settings.items()}
    return ["--device", "cpu", *words, *(word for key, value in chosen.items() for word in ("--set", f"{key}={value}"))]


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


FRAMEWORKS = ("torch", "mlx", "tinygrad", "jax")


class Run:
    """Runs nanogpt in this process: run("--dtype", "bf16", lr=0.1), run(framework="jax")."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._folder, self._monkeypatch, self._capsys = folder, monkeypatch, capsys
        self._count = 0

    def __call__(
        self, *words: str, build: Any = None, sample: Any = None, framework: str = "torch", **settings: object
    ) -> Ran:
        job = importlib.import_module(f"nanogpt_{framework}")
        main = importlib.import_module(f"harness.{framework}_backend.main").main
        self._count += 1
        path = self._folder / f"events-{self._count}.jsonl"
        self._monkeypatch.setenv("MPSQ_EVENTS", str(path))
        argv = arguments(words, settings)
        code = main(job.WORKLOAD, build or job.build, job.step, job.evaluate, argv, sample or job.sample)
        captured = self._capsys.readouterr()
        return Ran(code, read(path), captured.out, captured.err)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    monkeypatch.delenv("MPSQ_OUT", raising=False)
    monkeypatch.delenv("MPSQ_T0", raising=False)
    with warnings.catch_warnings():
        yield Run(tmp_path, monkeypatch, capsys)


def spawn(folder: Path, *words: str, env: dict[str, str] | None = None, **settings: object) -> subprocess.Popen[str]:
    """The workload as a process of its own."""
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), *arguments(words, settings)],
        cwd=folder,
        env={**os.environ, "MPSQ_EVENTS": str(folder / "events.jsonl"), **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def shared(name: str) -> Path:
    """A file of ../shared, which is beside the repository where mpsq is developed; without it the test is skipped."""
    path = SHARED / "data" / name
    if not path.exists():
        pytest.skip(f"needs ../shared/data/{name}, which is not beside this checkout")
    return path
