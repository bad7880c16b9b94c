"""Modes of torch.compile: each workload compiles in the mode that it was started with, or says that it does not.

torch.compile is replaced by a stand-in that only keeps the mode: what torch makes of it is torch's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import nanogpt_torch
import pytest
import torch

from harness import command_line
from harness.torch_backend import compiling
from queue_runner.spec import COMPILE_MODES
from tests.jobs.conftest import Run

pytestmark = pytest.mark.slow


@pytest.fixture
def requested(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    result: list[Any] = []

    def stand_in(function: Callable[..., Any], mode: str | None = None, **more: Any) -> Callable[..., Any]:
        result.append(mode)
        return function

    monkeypatch.setattr(torch, "compile", stand_in)
    monkeypatch.setattr(compiling, "_compiled_in", set())
    return result


def test_queue_and_workloads_know_the_same_modes() -> None:
    assert command_line.COMPILE_MODES == COMPILE_MODES


@pytest.mark.parametrize(
    ("word", "mode"),
    [
        ("on", None),
        ("reduce-overhead", "reduce-overhead"),
        ("max-autotune", "max-autotune"),
        ("no-cudagraphs", "max-autotune-no-cudagraphs"),
    ],
)
def test_the_mode_reaches_torch_and_hello(run: Run, requested: list[Any], word: str, mode: str | None) -> None:
    ran = run("--compile", word)
    assert ran.code == 0 and requested == [mode]
    assert ran.hello()["compile"] is True
    assert ran.hello().get("compile_mode") == (None if word == "on" else word)
    assert ran.of("iter")[0]["phase"] == "compile"


def test_a_sample_is_compiled_in_the_mode_too(run: Run, requested: list[Any]) -> None:
    ran = run("--compile", "max-autotune", mode="sample", new_tokens=2)
    assert ran.code == 0 and requested == ["max-autotune"] * 2


def test_a_framework_without_modes_refuses(run: Run) -> None:
    ran = run("--compile", "max-autotune", framework="jax")
    assert ran.code == 2
    assert "has no modes" in ran.err


def test_a_workload_that_ignores_the_mode_is_stopped_before_it_measures(run: Run, requested: list[Any]) -> None:
    """Of version 0.1: it would measure the default under the name of another mode."""

    def build(options: Any, device: Any) -> Any:
        training = nanogpt_torch.build(options, device)
        compiling._compiled_in.clear()  # as if it had called torch.compile itself
        return training

    ran = run("--compile", "max-autotune", build=build)
    assert ran.code == 2 and len(ran.of("iter")) == 1
    assert "torch.compile itself" in ran.err
    assert run("--compile", "on", build=build).code == 0
