"""Whole trainings in this process: losses, precision, accumulation, reference loss, notes."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nanogpt_torch as job
import pytest
import torch

from harness import explain
from mpsq_report import Reporter
from queue_runner.workloads import catalog
from tests.jobs.conftest import JOBS, Run, read, shared

pytestmark = pytest.mark.slow

SMALL_NANOGPT = {
    "n_layer": 4, "n_head": 4, "n_embd": 128, "block_size": 64, "batch_size": 12, "dropout": 0.0, "max_iters": 31,
    "lr": 1e-3, "lr_warmup_iters": 100, "lr_decay_iters": 2000, "eval_interval": 0, "beta2": 0.99,
}  # fmt: skip


def test_the_small_model_learns_as_nanogpt_does(run: Run) -> None:
    """Other batches of the same text and another draw of the weights: the same loss within 0.1, all along."""
    log = shared("nanogpt_logs/small_cpu_eager.log").read_text()
    theirs = [float(loss) for loss in re.findall(r"^iter \d+: loss ([\d.]+)", log, re.MULTILINE)]
    ours = run(data=shared("tinyshakespeare.txt"), **SMALL_NANOGPT).losses()
    assert len(ours) == len(theirs) == 31
    for end in (1, 11, 21, 31):
        window = slice(max(0, end - 5), end)  # of five iterations: one batch of 12 sequences alone strays by 0.1
        assert sum(ours[window]) / len(ours[window]) == pytest.approx(
            sum(theirs[window]) / len(theirs[window]), abs=0.1
        )


def test_hello_says_what_was_asked_and_what_was_made_of_it(run: Run) -> None:
    ran = run("--seed", "7", "--config", "tiny")
    hello = ran.hello()
    assert (hello["workload"], hello["framework"], hello["config"], hello["seed"]) == ("nanogpt", "torch", "tiny", 7)
    assert (hello["device"], hello["dtype"], hello["compile"]) == ("cpu", "fp32", False)
    assert (hello["planned_iters"], hello["full_iters"], hello["tokens_per_iter"]) == (4, 150, 32)
    assert hello["optimizer"] == "AdamW(fused)" and hello["device_name"]
    assert hello["versions"]["torch"] == torch.__version__
    assert len(hello["data"]["sha256"]) == 64 and hello["data"]["name"] == "pydoc"
    assert hello["flops_per_iter"] == 4 * (6 * (hello["params"] - 8 * 16) * 8 + 12 * 2 * 8 * 8 * 8)
    assert ran.code == 0 and ran.events[-1]["type"] == "bye" and ran.events[-1]["ok"] is True
    assert ran.events[0] == {"type": "phase", "t": 0.0, "name": "setup", "edge": "begin", "cpu_s": 0.0}


def test_the_log_can_be_read(run: Run) -> None:
    out = run(log_interval=1, eval_interval=4).out
    assert re.search(r"^nanogpt tiny: [\d,]+ parameters, [\d.e+]+ FLOP and 32 tokens an iteration$", out, re.MULTILINE)
    lines = re.findall(r"^iter +\d+  loss [\d.]+ +[\d.]+ ms +[\d,]+ tokens/s(?:  warmup)?$", out, re.MULTILINE)
    assert len(lines) == 4 and len({line.index(" ms") for line in lines}) == 1
    assert re.search(r"^eval +4  loss [\d.]+ +[\d.]+ ms  val$", out, re.MULTILINE)


def test_a_seed_repeats_itself_and_another_does_not(run: Run) -> None:
    first, again, other = (run("--seed", seed, dropout=0.2).losses() for seed in ("1", "1", "2"))
    assert first == again != other


def test_accumulated_gradients_are_those_of_the_whole_batch(run: Run) -> None:
    whole = run(batch_size=8, grad_accum=1, max_iters=6, lr=0.01)
    parts = run(batch_size=2, grad_accum=4, max_iters=6, lr=0.01)
    assert parts.losses() == pytest.approx(whole.losses(), rel=1e-5)
    assert parts.hello()["tokens_per_iter"] == whole.hello()["tokens_per_iter"] == 64
    assert parts.hello()["flops_per_iter"] == whole.hello()["flops_per_iter"]


def test_clipping_limits_the_gradient(run: Run) -> None:
    free, clipped = (run(grad_clip=limit, lr=0.01, max_iters=6).losses() for limit in (0.0, 1e-9))
    assert free[0] == clipped[0] and free[-1] != clipped[-1]


@pytest.mark.parametrize(("dtype", "torch_dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_half_precision_is_used_and_is_close(run: Run, dtype: str, torch_dtype: torch.dtype) -> None:
    dtypes: set[torch.dtype] = set()

    def build(options: Any, device: Any) -> Any:
        training = job.build(options, device)
        training.model.blocks[0].attention.qkv.register_forward_hook(lambda module, args, out: dtypes.add(out.dtype))
        assert training.scaler.is_enabled() == (dtype == "fp16")
        return training

    half = run("--dtype", dtype, build=build)
    assert dtypes == {torch_dtype} and half.hello()["dtype"] == dtype
    assert half.losses() == pytest.approx(run().losses(), abs=0.05)
    metrics = half.metrics()
    assert metrics["reference_loss_device"] == pytest.approx(metrics["reference_loss_cpu"], abs=0.05)
    assert metrics["reference_loss_device"] != metrics["reference_loss_cpu"] and "wrong_loss" not in half.notes()


def test_the_reference_loss_is_that_of_the_first_batch_before_training(run: Run) -> None:
    """Without dropout the first iteration computes the same thing."""
    ran = run()
    assert ran.metrics()["reference_loss_cpu"] == ran.metrics()["reference_loss_device"]
    assert ran.metrics()["reference_loss_cpu"] == pytest.approx(ran.losses()[0], abs=1e-6)
    dropped = run(dropout=0.5)
    assert dropped.metrics()["reference_loss_cpu"] == ran.metrics()["reference_loss_cpu"] != dropped.losses()[0]


@pytest.mark.parametrize("error", [0.002, math.nan])
def test_a_device_that_computes_wrongly_is_noted(run: Run, error: float) -> None:
    def build(options: Any, device: Any) -> Any:
        training = job.build(options, device)
        training.forward = lambda *batch: training.model(*batch) + (0.0 if training.model.training else error)
        return training

    ran = run(build=build)
    note = ran.notes()["wrong_loss"]
    assert ran.code == 0 and len(ran.losses()) == 4
    assert note["tolerance"] == 1e-3 and f"{note['expected']:.6f}" in note["text"]


def test_checking_the_loss_leaves_the_training_as_it_was(run: Run) -> None:
    """The check exchanges the weights for a moment; a training with it goes on as one without."""

    def build(options: Any, device: Any) -> Any:
        training = job.build(options, device)
        training.forward = lambda *batch: training.model(*batch)  # not the model itself, so that it is checked
        return training

    assert run(build=build, dropout=0.1).losses() == run(dropout=0.1).losses()


def test_an_evaluation_changes_nothing_and_repeats_itself(run: Run) -> None:
    with_, without = run(eval_interval=2, eval_iters=2, dropout=0.2), run(eval_interval=0, dropout=0.2)
    assert with_.losses() == without.losses()
    assert [(e["i"], e["split"]) for e in with_.of("eval")] == [(2, "train"), (2, "val"), (4, "train"), (4, "val")]
    still = run(eval_interval=2, lr=0.0, min_lr=0.0)
    losses = [e["metrics"]["loss"] for e in still.of("eval") if e["split"] == "val"]
    assert losses[0] == losses[1]


def test_a_loss_that_explodes_is_noted_and_the_training_goes_on(run: Run) -> None:
    ran = run(lr=1e30, min_lr=1e30, lr_warmup_iters=0, max_iters=6)
    assert ran.code == 0 and len(ran.losses()) == 6 and "nan_loss" in ran.notes()
    stopped = run(lr=1e30, min_lr=1e30, lr_warmup_iters=0, max_iters=6, stop_on_nan="true")
    assert stopped.code == 1 and len(stopped.losses()) < 6 and "stop_on_nan" in stopped.err
    assert stopped.events[-1] == {"type": "bye", "t": stopped.events[-1]["t"], "ok": False}


def failing(error: Exception) -> Callable[[Any, Any], Any]:
    def build(options: Any, device: Any) -> Any:
        raise error

    return build


@pytest.mark.parametrize(
    ("error", "code", "note"),
    [
        (MemoryError(), 71, "oom"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."), 71, "oom"),
        (RuntimeError("MPS backend out of memory (MPS allocated: 8 GB, max allowed: 9 GB). Tried to ..."), 71, "oom"),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:118] . DefaultCPUAllocator: can't allocate memory"), 71, "oom"),
        (NotImplementedError("The operator 'aten::x' is not currently implemented for the MPS"), 1, "op_missing"),
        (TypeError("Cannot convert ... as the MPS framework doesn't support float64."), 1, "float64_on_mps"),
        (RuntimeError("InvalidCxxCompiler: No working C++ compiler found in cpp.cxx: (None, 'g++')"), 1, "no_compiler"),
    ],
)  # fmt: skip
def test_what_a_user_can_mend_is_a_sentence_a_note_and_an_exit_code(
    run: Run, error: Exception, code: int, note: str
) -> None:
    ran = run(build=failing(error))
    assert (ran.code, list(ran.notes())) == (code, [note])
    assert ran.err.startswith("error: ") and "\n\nhint: " in ran.err and "Traceback" not in ran.err


def test_what_needs_less_memory_are_keys_that_the_workload_has() -> None:
    for workload in catalog.workloads(JOBS):
        keys = workload.params.keys()
        words = set(explain.memory_hint(keys).replace("pool=", "pool ").replace(",", "").split())
        named = words & {"batch_size", "grad_accum", "pool", *explain._SIZE_KEYS}
        assert named <= keys and (named or workload.name == "opcheck")
    hint = explain.memory_hint({"batch_size", "pool", "side"})
    assert "batch_size" in hint and "side" in hint and "pool=host" in hint
    hint = explain.memory_hint({"batch_size", "grad_accum"})
    assert "smaller batch_size" in hint and "larger grad_accum" in hint


def test_a_fault_of_the_program_keeps_its_traceback(run: Run) -> None:
    ran = run(build=failing(ZeroDivisionError("division by zero")))
    assert ran.code == 1 and "Traceback" in ran.err and "ZeroDivisionError" in ran.notes()["error"]["text"]


def test_operators_that_mps_leaves_to_the_cpu_are_noted_once_each(tmp_path: Path) -> None:
    from harness.torch_backend import fallbacks

    with pytest.warns(UserWarning, match="will fall back"):
        fallbacks.watch(Reporter(tmp_path / "events.jsonl"))
        torch.set_warn_always(False)
        for op in ("aten::linalg_svd", "aten::col2im", "aten::linalg_svd"):
            warnings.warn(
                f"The operator '{op}' is not currently supported on the MPS backend and will fall back to run on "
                "the CPU. This may have performance implications. (Triggered internally at MPSFallback.mm:15.)",
                stacklevel=1,
            )
    notes = read(tmp_path / "events.jsonl")
    assert [note["op"] for note in notes] == ["aten::linalg_svd", "aten::col2im"]
    assert {note["kind"] for note in notes} == {"op_fallback"}
