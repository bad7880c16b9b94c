"""The Metal kernel of custom_kernel, without a Mac: a stand-in for torch.mps compiles its source as C++ and runs a call
for each thread. So its arithmetic and its indices are tested; that Metal takes it is for the owner of a Mac to see
(docs/macos.md)."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import custom_kernel_torch as job
import pytest
import torch

from harness.microbench.run import main
from harness.torch_backend.device import open_device
from tests.jobs.conftest import read
from tests.system_packages import require

pytestmark = pytest.mark.slow

METAL_AS_CPP = """
#include <cmath>
#define kernel extern "C"
#define device
#define constant const
typedef unsigned int uint;
namespace metal { namespace precise { inline float tanh(float x) { return std::tanh(x); } } }
"""
TOY = ["--set", "rows=4", "--set", "width=6", "--set", "max_iters=4", "--set", "warmup_iters=1", "--set", "calls=1"]


class StandIn:
    """torch.mps.compile_shader, scripted: fp32 only, on the CPU."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "metal_stdlib").write_text(METAL_AS_CPP)
        self.sources: list[str] = []

    def compile_shader(self, source: str) -> SimpleNamespace:
        self.sources.append(source)
        path = self._folder / f"kernel{len(self.sources)}.so"
        command = [
            "g++",
            "-std=c++17",
            "-w",
            "-shared",
            "-fPIC",
            "-x",
            "c++",
            "-I",
            str(self._folder),
            "-o",
            str(path),
            "-",
        ]
        done = subprocess.run(command, input=source, text=True, capture_output=True, check=False)
        if done.returncode:
            raise SyntaxError(done.stderr.splitlines()[0])
        function = ctypes.CDLL(str(path)).bias_gelu
        function.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_uint]

        def bias_gelu(y: torch.Tensor, x: torch.Tensor, bias: torch.Tensor, width: int, threads: int) -> None:
            for i in range(threads):
                function(y.data_ptr(), x.data_ptr(), bias.data_ptr(), ctypes.byref(ctypes.c_long(width)), i)

        return SimpleNamespace(bias_gelu=bias_gelu)


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    require("g++")  # the stand-in for Metal's compiler
    stand_in = StandIn(tmp_path)
    monkeypatch.setattr(torch.mps, "compile_shader", stand_in.compile_shader)
    monkeypatch.setattr(job.BenchTorch, "open_device", lambda self, label: open_device("cpu"))
    monkeypatch.setenv("MPSQ_EVENTS", str(tmp_path / "events.jsonl"))
    return stand_in


def test_the_kernel_computes_what_torch_computes(
    stand_in: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(job.WORKLOAD, job.FRAMEWORK, job.build, ["--device", "mps", *TOY]) == 0
    events = read(tmp_path / "events.jsonl")
    metrics = {event["name"]: event["value"] for event in events if event["type"] == "metric"}
    assert 0 < metrics["bias_gelu.metal.error"] < 1 and 0 < metrics["bias_gelu.torch.error"] < 1
    assert metrics["bias_gelu.metal.bytes"] == metrics["bias_gelu.torch.bytes"] == 4 * (2 * 24 + 6)
    assert not [event for event in events if event["type"] == "note"] and events[-1]["ok"] is True
    out = capsys.readouterr().out
    assert "bias_gelu.metal" in out and "times as long" in out
    assert "typedef float T;" in stand_in.sources[0]


def test_a_wrong_kernel_is_called_wrong(
    stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(job, "SOURCE", job.SOURCE.replace("i % uint(width)", "0"))
    assert main(job.WORKLOAD, job.FRAMEWORK, job.build, ["--device", "mps", *TOY]) == 0
    assert "gelu.metal: not" in capsys.readouterr().err
    assert any(event.get("kind") == "wrong_result" for event in read(tmp_path / "events.jsonl"))


def test_source_that_does_not_compile_ends_with_a_sentence(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(job, "SOURCE", job.SOURCE.replace("float v", "flat v"))
    assert main(job.WORKLOAD, job.FRAMEWORK, job.build, ["--device", "mps", *TOY]) == 1
    assert "Metal does not" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("device", "code", "reason"), [("cpu", 2, "written in Metal"), ("auto", 69, '"mps" is unavailable')]
)
def test_elsewhere_it_is_refused_with_the_reason(
    device: str, code: int, reason: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing: Any = lambda name: None if name == "cpu" else "no Metal here"  # noqa: E731
    monkeypatch.setattr("harness.torch_backend.device.why_not", missing)
    assert main(job.WORKLOAD, job.FRAMEWORK, job.build, ["--device", device, *TOY]) == code
    assert reason in capsys.readouterr().err
