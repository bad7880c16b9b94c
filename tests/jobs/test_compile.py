"""torch.compile, once: the only test that pays for a compiler. Its cache is kept beside pytest's own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness.torch_backend.compiling import classify
from tests.jobs.conftest import JOBS, Run, read, spawn

pytestmark = pytest.mark.slow


@pytest.mark.needs_program("g++")
def test_a_compiled_training_is_the_eager_one_and_says_what_its_cache_held(
    run: Run, tmp_path: Path, quick_inductor: dict[str, str]
) -> None:
    compiled = spawn(tmp_path, "--compile", "on", env=quick_inductor, max_iters=6, eval_interval=6)
    eager = run(max_iters=6, eval_interval=6)
    _, err = compiled.communicate()
    assert compiled.returncode == eager.code == 0, err
    events, twin = read(tmp_path / "events.jsonl"), eager.events

    iterations = [e for e in events if e["type"] == "iter"]
    assert [e["phase"] for e in iterations] == ["compile", "warmup", *["measure"] * 4]
    assert iterations[0]["dur_s"] > 10 * iterations[-1]["dur_s"]
    assert [e["loss"] for e in iterations] == pytest.approx([e["loss"] for e in twin if e["type"] == "iter"], abs=1e-4)
    losses = [[e["metrics"]["loss"] for e in part if e["type"] == "eval"] for part in (events, twin)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)

    assert not {e["name"] for e in events if e["type"] == "metric"} & {"recompilations", "graph_breaks"}
    [note] = [e for e in events if e["type"] == "note"]
    assert note["kind"] == "compile_cache" and note["text"] in ("cold", "warm", "mixed")
    assert any(key.endswith(("_miss", "_bypass")) for key in note) == (note["text"] != "warm")
    assert [e["compile_cache"] for e in events if "compile_cache" in e] == [note["text"]]
    metrics = {e["name"]: e["value"] for e in events if e["type"] == "metric"}
    assert metrics["reference_loss_device"] == pytest.approx(metrics["reference_loss_cpu"], abs=1e-4)


@pytest.mark.parametrize(
    ("counters", "state"),
    [
        ({"inductor": {"fxgraph_cache_miss": 2}, "aot_autograd": {"autograd_cache_miss": 1}}, "cold"),
        ({"inductor": {"fxgraph_cache_hit": 2}, "aot_autograd": {"autograd_cache_hit": 1}}, "warm"),
        ({"inductor": {"fxgraph_cache_hit": 1, "fxgraph_cache_miss": 1}}, "mixed"),
        ({"inductor": {"fxgraph_cache_hit": 2}, "aot_autograd": {"autograd_cache_bypass": 1}}, "mixed"),
        ({"stats": {"unique_graphs": 2}}, "cold"),
    ],
)
def test_the_state_of_the_cache_follows_from_inductors_counters(
    counters: dict[str, dict[str, int]], state: str
) -> None:
    actual, counts = classify(counters)
    assert actual == state and all(counts.values())


def test_the_counters_are_those_that_this_torch_counts() -> None:
    """A counter that was renamed would make every cache look cold."""
    import torch

    from harness.torch_backend import compiling

    folder = Path(torch.__file__).parent
    source = "".join(
        (folder / name).read_text() for name in ("_inductor/codecache.py", "_functorch/_aot_autograd/autograd_cache.py")
    )
    counted = set(re.findall(r'counters\["(\w+)"\]\["(\w+)"\]', source))
    assert set(compiling._HITS + compiling._MISSES) <= counted


RECOMPILES = """
import torch
from mpsq_report import Reporter

report = Reporter()

@torch.compile(backend="eager", dynamic=False)
def double(x):
    if x.shape[0] == 7:
        torch._dynamo.graph_break()
    return x * 2

for i in range(8):
    if i == 4:
        with report.phase("eval"):
            double(torch.ones(5))
    double(torch.ones(7 if i == 6 else 4))
    report.iter(i, 0.1, phase="compile" if i == 0 else "measure")
report.bye()
"""


def test_torch_counts_what_a_measured_iteration_compiles(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    env = {**os.environ, "MPSQ_EVENTS": str(path), "PYTHONPATH": str(JOBS)}
    (tmp_path / "double.py").write_text(RECOMPILES)  # torch.compile leaves code without a file alone
    subprocess.run([sys.executable, tmp_path / "double.py"], env=env, check=True, timeout=300)
    counts = {(e["name"], e["i"]): e["value"] for e in read(path) if e["type"] == "metric"}
    assert set(counts) == {("recompilations", 6), ("graph_breaks", 6)} and counts["graph_breaks", 6] == 1
