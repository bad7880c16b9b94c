"""Micro-benchmarks: what is timed and how, results against float64, and what they report. Toy sizes, on the CPU."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from harness import command_line
from harness.errors import UsageError
from harness.microbench import matmul, rounding
from harness.microbench.rounding import Check
from harness.microbench.run import Bench, Cell, main
from tests.cli_support import Cli
from tests.forked_programs import work
from tests.jobs.conftest import FRAMEWORKS, JOBS, Ran, read

pytestmark = pytest.mark.slow

QUICK = {"max_iters": 6, "warmup_iters": 2, "calls": 2}
RIGHT = Check(True, "fp32", 0.1, 1e-7, "right")


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Runs a workload of jobs/ in this process: ran("matmul_torch", "--dtype", "bf16", n=8)."""
    monkeypatch.delenv("MPSQ_T0", raising=False)
    count, threads = iter(range(99)), torch.get_num_threads()

    def run(name: str, *words: str, **settings: object) -> Ran:
        job = importlib.import_module(name)
        path = tmp_path / f"events-{next(count)}.jsonl"
        monkeypatch.setenv("MPSQ_EVENTS", str(path))
        sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        if name.endswith("_torch"):  # two threads that wait for each other cost milliseconds
            sets += ["--set", "threads=1"]
        code = main(job.WORKLOAD, job.FRAMEWORK, job.build, ["--device", "cpu", *words, *sets])
        torch.set_num_threads(threads)
        captured = capsys.readouterr()
        return Ran(code, read(path), captured.out, captured.err)

    return run


# -- the course, on a device that works behind one's back -----------------------------------------------------------


class Lazy:
    """A framework with a device that takes work at once and does it when it is waited for; one call takes 10 ms."""

    name, compiler, in_order = "lazy", "none", True

    def __init__(self) -> None:
        self.now_s, self.queued_s, self.calls = 0.0, 0.0, 0

    def open_device(self, label: str) -> Any:
        return SimpleNamespace(name="none")

    def set_up(self, options: Any, device: Any, report: Any) -> None:
        self.seconds = 0.01

    def facts(self, device: Any) -> dict[str, Any]:
        return {"versions": {"lazy": "1"}}

    def memory(self, device: Any) -> tuple[int | None, int | None]:
        return None, None

    def cache_state(self) -> None:
        return None

    def call(self) -> int:
        self.calls += 1
        self.now_s += 1e-6
        self.queued_s += self.seconds
        return self.calls

    def repeat(self, call: Callable[[], Any], times: int) -> list[Any]:
        return [call() for _ in range(times)]

    def finish(self, device: Any, results: Any) -> None:
        self.now_s += self.queued_s
        self.queued_s = 0.0

    def clock(self) -> float:
        return self.now_s


WORKLOAD = {
    "name": "toy", "framework": "lazy", "about": "", "configs": {"only": {}},
    "params": {
        "max_iters": {"default": 6, "unit": "", "help": ""}, "warmup_iters": {"default": 2, "unit": "", "help": ""},
        "sample_ms": {"default": 40.0, "unit": "", "help": ""},
    },
}  # fmt: skip


def run_cells(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    checks: Sequence[Check] = (),
    timing: str = "synced",
    calls: int = 0,
) -> tuple[list[dict[str, Any]], Bench]:
    lazy, made = Lazy(), list[Bench]()
    monkeypatch.setenv("MPSQ_EVENTS", str(tmp_path / "events.jsonl"))
    monkeypatch.setattr(time, "perf_counter", lazy.clock)
    if timing == "guide":
        monkeypatch.setattr(time, "time", lazy.clock)
    left = list(checks)

    def build(options: Any, device: Any, report: Any) -> Bench:
        cells = [
            Cell(f"c{k}", lazy.call, lambda result: left.pop(0) if left else RIGHT, flops=k, bytes=1.0, calls=calls)
            for k in (1, 2)
        ]
        made.append(Bench(cells, "two cells", lambda done: None, timing=timing, ended=lambda done: ended.append(done)))
        return made[0]

    ended = list[Bench]()
    assert main(WORKLOAD, lazy, build, []) == 0
    events = read(tmp_path / "events.jsonl")
    assert bool(ended) == all(check.ok for check in checks)
    return events, made[0]


def test_the_time_of_a_cell_is_that_of_one_call_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events, made = run_cells(tmp_path, monkeypatch)
    assert [cell.calls for cell in made.cells] == [4, 4], "as many as last 40 ms"
    iters = [(e["i"], e["phase"], e["synced"]) for e in events if e["type"] == "iter"]
    assert iters == [
        (0, "warmup", True),
        *((i, "warmup", True) for i in (1, 2)),
        *((i, "measure", True) for i in (3, 4, 5)),
    ]
    assert all(e["dur_s"] == pytest.approx(0.02, abs=1e-5) for e in events if e["type"] == "iter")
    times = [e for e in events if e["type"] == "metric" and e["name"] == "c1.time"]
    assert [e["i"] for e in times] == [3, 4, 5] and {e["unit"] for e in times} == {"s"}
    assert all(e["value"] == pytest.approx(0.01, abs=1e-5) for e in times)
    (flops,) = [e["flops_per_iter"] for e in events if "flops_per_iter" in e]
    assert flops == 3


def test_a_clock_that_does_not_wait_is_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events, _ = run_cells(tmp_path, monkeypatch, timing="naive")
    measured = [e for e in events if e["type"] == "iter" and e["phase"] == "measure"]
    assert not any(e["synced"] for e in measured) and all(e["dur_s"] == pytest.approx(2e-6) for e in measured)
    true = [e["value"] for e in events if e.get("name") == "c1.time"]
    assert true == pytest.approx([0.01] * 3, abs=1e-5), "the true time stands beside it"


def test_the_block_of_the_guide_is_the_first_thing_timed_and_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events, made = run_cells(tmp_path, monkeypatch, timing="guide", calls=100)
    values = {e["name"]: e["value"] for e in events if e["type"] == "metric"}
    assert values["c1.block_unsynced"] == pytest.approx(100e-6), "a microsecond for the handing over of each"
    assert values["c1.block"] == pytest.approx(1.0, rel=1e-3), "what the device did in 10 ms each"
    assert values["c1.time_unsynced"] == pytest.approx(1e-6) and values["c1.time"] == pytest.approx(0.01, rel=1e-3)
    assert made.cells[0].block_s == (values["c1.block_unsynced"], values["c1.block"])
    order = [e.get("name") or e["type"] for e in events if e["type"] in ("metric", "iter")]
    assert order.index("c1.block_unsynced") < order.index("iter")
    measured = [e for e in events if e["type"] == "iter" and e["phase"] == "measure"]
    assert all(e["synced"] and e["dur_s"] == pytest.approx(0.02, rel=1e-3) for e in measured)


@pytest.mark.parametrize("which", [0, 2], ids=["the first result", "the last result"])
def test_a_wrong_result_is_noted_and_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: int) -> None:
    checks = [RIGHT] * which + [Check(False, "", 9.0, 0.5, "it is wrong")]
    events, _ = run_cells(tmp_path, monkeypatch, checks)
    (note,) = [e for e in events if e["type"] == "note"]
    assert note["kind"] == "wrong_result" and "it is wrong" in note["text"]


# -- rounding -------------------------------------------------------------------------------------------------------


def factors(n: int = 512) -> tuple[Any, Any, Any, Any]:
    a, b = (np.asarray(x, np.float32) for x in matmul.draw(n, 1))
    wide = a.astype(np.float64), b.astype(np.float64)
    return a, b, wide[0] @ wide[1], np.abs(wide[0]) @ np.abs(wide[1])


def cut(x: Any, bits: int) -> Any:
    """The float32 with so many bits of its mantissa, the rest cut off: what a device with less does to factors."""
    mask = np.uint32(0xFFFFFFFF << (23 - bits) & 0xFFFFFFFF)
    return (x.view(np.uint32) & mask).view(np.float32)


def test_a_product_in_fp32_is_told_from_one_in_tf32_and_from_one_in_bf16() -> None:
    a, b, exact, magnitude = factors()
    assert rounding.judge_product((a @ b).astype(np.float64), exact, magnitude, 512, "fp32").arithmetic == "fp32"
    tf32 = (cut(a, 10) @ cut(b, 10)).astype(np.float64)
    assert rounding.judge_product(tf32, exact, magnitude, 512, "fp32").arithmetic == "tf32"
    assert not rounding.judge_product((cut(a, 7) @ cut(b, 7)).astype(np.float64), exact, magnitude, 512, "fp32").ok


def test_one_wrong_number_among_many_is_found() -> None:
    a, b, exact, magnitude = factors()
    for wrong in (0.1, 0.5, 1.0, 10.0, np.nan, np.inf):
        result = (a @ b).astype(np.float64)
        result[17, 400] += wrong
        assert not rounding.judge_product(result, exact, magnitude, 512, "fp32").ok, wrong
        assert not rounding.judge_norm(np.array([wrong]), np.array([2.0]), 1, 1, "fp32").ok


def test_sums_in_half_precision_are_told_apart() -> None:
    a, b, _, _ = factors(256)
    a, b = a.astype(np.float16).astype(np.float64), b.astype(np.float16).astype(np.float64)
    exact, magnitude = a @ b, np.abs(a) @ np.abs(b)
    good = rounding.judge_product(exact.astype(np.float16).astype(np.float64), exact, magnitude, 256, "fp16")
    assert good.arithmetic == "fp16, sums in fp32"
    total = np.zeros((256, 256), np.float16)
    for k in range(256):
        total += np.outer(a[:, k], b[k]).astype(np.float16)
    exact_fp16 = exact.astype(np.float16).astype(np.float64)
    exact_fp16[3, 3] += 4
    assert not rounding.judge_product(exact_fp16, exact, magnitude, 256, "fp16").ok
    poor = rounding.judge_product(total.astype(np.float64), exact, magnitude, 256, "fp16")
    assert poor.arithmetic == "fp16, sums in fp16"


# -- the workloads --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(("dtype", "mode"), [("fp32", "off"), ("fp32", "on"), ("fp16", "off"), ("fp64", "off")])
def test_matmul(ran: Callable[..., Ran], framework: str, dtype: str, mode: str) -> None:
    if framework == "jax" and dtype == "fp64":
        jax = importlib.import_module("jax")
        before = jax.config.jax_enable_x64
    result = ran(f"matmul_{framework}", "--dtype", dtype, "--compile", mode, n=24, timing="both", **QUICK)
    if framework == "jax" and dtype == "fp64":
        jax.config.update("jax_enable_x64", before)
    assert result.code == 0, result.err
    hello = result.hello()
    assert (hello["workload"], hello["framework"], hello["dtype"], hello["n"]) == ("matmul", framework, dtype, 24)
    assert hello["flops_per_iter"] == 2 * 24**3 and result.metrics()["n24.flop"] == 2 * 24**3
    assert result.metrics()["n24.error"] <= 1 and "wrong_result" not in result.notes()
    assert result.metrics()["n24.time_unsynced"] > 0 and "2 n^3" in result.out and "naive" in result.out
    assert result.of("iter")[0]["phase"] == ("compile" if mode == "on" else "warmup")
    assert result.events[-1] == {**result.events[-1], "type": "bye", "ok": True}


def test_the_guides_config_is_its_loop_beside_the_truth(ran: Callable[..., Ran]) -> None:
    workload = importlib.import_module("matmul_torch").WORKLOAD
    its = command_line.parse(workload, ["--config", "guide"]).settings
    assert (its.n, its.calls, its.timing) == (1000, 100, "guide")
    result = ran("matmul_torch", "--config", "guide", n=100, max_iters=4, warmup_iters=1)
    metrics = result.metrics()
    assert 0 < metrics["n100.block_unsynced"] <= metrics["n100.block"] and metrics["n100.calls"] == 100
    sentence = f"100 products in {metrics['n100.block_unsynced']:.6f} s by time.time()"
    assert sentence in result.out and "naive" in result.out and "synced" in result.out


def test_a_lazy_framework_whose_result_nobody_asks_for_computes_nothing(ran: Callable[..., Ran]) -> None:
    result = ran("matmul_mlx", n=400, timing="naive", **QUICK)
    assert result.metrics()["n400.time_unsynced"] < result.metrics()["n400.time"] / 5
    assert "nothing was computed" in result.out
    assert not any(e["synced"] for e in result.of("iter") if e["phase"] == "measure")


def test_a_peak_is_that_of_the_fastest_size(ran: Callable[..., Ran]) -> None:
    result = ran("matmul_torch", "--config", "peak", largest=1024, max_iters=4, warmup_iters=1)
    metrics = result.metrics()
    best = max((512, 1024), key=lambda n: metrics[f"n{n}.rate"])
    assert result.hello()["n"] == best and metrics["peak"] > 0
    times = sorted(e["value"] for e in result.of("metric") if e["name"] == f"n{best}.time")
    assert metrics["peak"] == pytest.approx(2 * best**3 / ((times[0] + times[-1]) / 2), rel=1e-6)


def test_a_peak_of_wrong_results_is_none(ran: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Check(False, "", 9.0, 0.5, "wrong")
    monkeypatch.setattr(matmul, "judge_product", lambda *_: wrong)
    result = ran("matmul_torch", "--config", "peak", largest=512, max_iters=4, warmup_iters=1)
    assert "peak" not in result.metrics() and "wrong_result" in result.notes() and "wrong" in result.err


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16", "fp64"])
def test_kernels(ran: Callable[..., Ran], dtype: str) -> None:
    result = ran("kernels_torch", "--config", "tiny", "--dtype", dtype, **QUICK)
    assert result.code == 0 and not result.notes(), result.err
    names = {e["name"] for e in result.of("metric")}
    for op in ("conv2d", "linear", "softmax", "reduction", "elementwise", "attention"):
        for direction in ("forward", "backward"):
            assert {f"{op}.{direction}.{what}" for what in ("time", "flop", "bytes", "error")} <= names
    assert "memory-bound" in result.out and result.metrics()["roof.bytes"] > 0
    rows, width, item = 32, 32, {"fp64": 8, "fp32": 4}.get(dtype, 2)
    assert result.metrics()["linear.forward.flop"] == 2 * rows * width * width
    assert result.metrics()["linear.forward.bytes"] == (2 * rows * width + width * width) * item
    assert result.metrics()["softmax.backward.bytes"] == 3 * rows * width * item


@pytest.mark.parametrize("op", ["linear", "attention"])
def test_a_kernel_that_is_wrong_in_one_direction_is_found(
    ran: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch, op: str
) -> None:
    import kernels_torch

    class Off(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(context: Any, g: torch.Tensor) -> torch.Tensor:
            return g * (1.001 if g.dtype == torch.float32 else 1)

    real = kernels_torch.ops

    def bent(s: Any) -> dict[str, Any]:
        known = real(s)
        right = known[op].function
        return {**known, op: kernels_torch.replace(known[op], function=lambda *x: Off.apply(right(*x)))}

    monkeypatch.setattr(kernels_torch, "ops", bent)
    result = ran("kernels_torch", "--config", "tiny", op=op, **QUICK)
    assert f"{op}.backward" in result.notes()["wrong_result"]["text"]


def test_transfer(ran: Callable[..., Ran]) -> None:
    result = ran("transfer_torch", smallest=4, largest=1000, max_iters=5, warmup_iters=1)
    assert result.code == 0 and "memcpy" in result.notes() and "memcpy" in result.out
    for direction in ("to_device", "to_host"):
        for size in (4, 64, 1000):
            assert result.metrics()[f"{direction}.pageable.{size}.bytes"] == size
            assert result.metrics()[f"{direction}.pageable.{size}.error"] == 0


def test_transfer_to_mps_is_from_pageable_memory_alone() -> None:
    """The device is a stand-in: this machine has no mps."""
    import transfer_torch

    mps = SimpleNamespace(kind="mps")
    assert transfer_torch._memories(SimpleNamespace(memory="both"), mps) == ["pageable"]
    with pytest.raises(UsageError, match="no pinned memory for mps"):
        transfer_torch._memories(SimpleNamespace(memory="pinned"), mps)


def test_a_byte_that_differs_is_found() -> None:
    import transfer_torch

    pattern = torch.arange(100, dtype=torch.uint8)
    assert transfer_torch._same(pattern.clone(), pattern).ok
    other = pattern.clone()
    other[99] += 1
    assert "1 of 100 bytes" in transfer_torch._same(other, pattern).text


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        ("matmul_torch", ["n=0"], "cannot be less than 1"),
        ("matmul_torch", ["n=65537"], "cannot be more than 65536"),
        ("matmul_torch", ["mode=fast"], "mode is speed or peak"),
        ("matmul_torch", ["timing=fast"], "timing is synced, naive, both or guide"),
        ("matmul_torch", ["mode=peak", "timing=both"], "synchronised clock"),
        ("matmul_torch", ["mode=peak", "largest=100"], "cannot be less than 512"),
        ("matmul_torch", ["max_iters=6", "warmup_iters=5"], "leaves nothing to measure"),
        ("matmul_torch", ["calls=-1"], "cannot be less than 0"),
        ("matmul_torch", ["sample_ms=-1"], "cannot be less than 0"),
        ("matmul_mlx", ["tf32=true"], "MLX_ENABLE_TF32=1"),
        ("matmul_tinygrad", ["tf32=true"], "ALLOW_TF32=1"),
        ("kernels_torch", ["op=linaer"], 'did you mean "linear"?'),
        ("kernels_torch", ["direction=up"], "forward, backward or both"),
        ("kernels_torch", ["heads=3"], "is not divisible by heads=3"),
        ("kernels_torch", ["batch=0"], "cannot be less than 1"),
        ("transfer_torch", ["memory=pinned"], "no pinned memory for cpu"),
        ("transfer_torch", ["memory=soft"], "pageable, pinned or both"),
        ("transfer_torch", ["smallest=8", "largest=4"], "the smallest comes first"),
    ],
)
def test_what_makes_no_sense_is_refused(ran: Callable[..., Ran], name: str, words: list[str], message: str) -> None:
    result = ran(name, **dict(word.split("=") for word in words))
    assert result.code == 2 and message in result.err and result.err.startswith("error: "), result.err


@pytest.mark.parametrize("words", [["--resume", "x"], ["--out", "x"]])
def test_there_is_nothing_to_resume(ran: Callable[..., Ran], words: list[str]) -> None:
    assert "has no checkpoints" in ran("matmul_torch", *words).err


@pytest.mark.parametrize(
    ("name", "device"), [("matmul_torch", "mps"), ("matmul_mlx", "cuda"), ("transfer_torch", "mps")]
)
def test_a_device_that_is_not_there(ran: Callable[..., Ran], name: str, device: str) -> None:
    if sys.platform == "darwin":
        pytest.skip("mps may be there")
    result = ran(name, "--device", device)
    assert result.code == 69 and "device_unavailable" in result.notes()


def test_by_hand_as_a_process(tmp_path: Path) -> None:
    """As a program of its own, without the queue, and killed by nobody."""
    command = [sys.executable, str(JOBS / "matmul_torch.py"), "--device", "cpu", "--dtype=fp64", "--set", "n=8"]
    done = subprocess.run(
        [*command, "--set", "max_iters=8", "--set", "sample_ms=1"],
        capture_output=True, text=True, check=False,
        cwd=tmp_path, env={name: value for name, value in os.environ.items() if not name.startswith("MPSQ_")},
    )  # fmt: skip
    assert done.returncode == 0 and "fp64" in done.stdout and not done.stderr, done.stderr


def test_through_the_queue_with_its_report(layout: Any, mpsq: Cli) -> None:
    """One run of each, its events stored and told: what is marked invalid on a busy machine is shown all the same."""

    def submit(*words: str, **settings: object) -> None:
        sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        mpsq.ok("submit", "--no-gate", *words, "--device", "cpu", *sets, "--set", "threads=1")

    submit("matmul", "--dtype", "fp64", n=16, max_iters=12)
    submit("kernels", "--config", "tiny", op="linear", max_iters=8)
    submit("transfer", "--config", "tiny", max_iters=8)
    work()
    rows = {name: mpsq.ok("report", name, "--json").json()["rows"] for name in ("matmul", "kernels", "transfer")}
    assert [(row["dtype"], row["n"], row["n_samples"]) for row in rows["matmul"]] == [("fp64", 16, 6)]
    assert [(row["op"], row["direction"]) for row in rows["kernels"]] == [("linear", "forward"), ("linear", "backward")]
    assert all(row["bound"] in ("memory", "compute") for row in rows["kernels"])
    assert [row["n_bytes"] for row in rows["transfer"]][:2] == [4, 64]
    assert not any("wrong_result" in row["taints"] for part in rows.values() for row in part)
