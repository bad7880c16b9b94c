"""A training that was interrupted and resumed is the one that was not, to the last bit."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.torch_backend import checkpoints
from harness.torch_backend.device import Device
from tests.jobs.conftest import Run, read, spawn

pytestmark = pytest.mark.slow

LONG = {"max_iters": 8, "lr_decay_iters": 8, "dropout": 0.2, "eval_interval": 3, "grad_accum": 2}


def same(a: Any, b: Any) -> bool:
    """Equal to the last bit, whatever is nested in what."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_resume_equals_no_interruption(run: Run, tmp_path: Path, dtype: str) -> None:
    whole = run("--dtype", dtype, "--out", str(tmp_path / "whole"), **LONG)
    first = run("--dtype", dtype, "--out", str(tmp_path / "part"), **LONG | {"max_iters": 5})
    checkpoint = str(tmp_path / "part" / "checkpoint.pt")
    rest = run("--dtype", dtype, "--resume", checkpoint, "--out", str(tmp_path / "rest"), **LONG)
    assert [event["i"] for event in rest.of("iter")] == [5, 6, 7]
    assert first.losses() + rest.losses() == whole.losses()
    ends = [torch.load(tmp_path / name / "checkpoint.pt", weights_only=True) for name in ("whole", "rest")]
    assert same(*ends) and ends[0]["done"] == 8


@pytest.mark.parametrize(("before", "after"), [("fused", "loop"), ("loop", "fused")])
def test_the_optimizer_has_the_settings_of_the_resumed_run(run: Run, tmp_path: Path, before: str, after: str) -> None:
    """In fp16, where only a fused implementation unscales the gradients itself."""
    long = LONG | {"dropout": 0.0, "weight_decay": 0.1}
    run("--dtype", "fp16", "--out", str(tmp_path), **long | {"max_iters": 5, "adamw": before})
    words = ["--dtype", "fp16", "--resume", str(tmp_path / "checkpoint.pt")]
    changed = run(*words, "--out", str(tmp_path / "rest"), **long | {"adamw": after, "weight_decay": 0.4})
    assert changed.code == 0 and len(changed.losses()) == 3, changed.err
    saved = torch.load(tmp_path / "rest" / "checkpoint.pt", weights_only=True)["optimizer"]
    groups = [(group["weight_decay"], bool(group["fused"])) for group in saved["param_groups"]]
    assert groups == [(0.4, after == "fused"), (0.0, after == "fused")]
    assert {int(each["step"]) for each in saved["state"].values()} == {8}
    assert run(*words, **long | {"adamw": before}).losses() != changed.losses()


@pytest.mark.parametrize("written_on", ["cuda", "mps", "cpu", ""])
@pytest.mark.parametrize("kind", ["cuda", "mps"])
def test_random_numbers_of_another_kind_of_device_are_seeded(
    kind: str, written_on: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A state has 16 bytes on cuda and 44 on mps, say; "" is a checkpoint of cuda that does not name its device."""
    sizes, calls = {"cuda": 16, "mps": 44}, list[tuple[str, int]]()
    for name, size in sizes.items():
        module, zeros = getattr(torch, name), torch.zeros(size, dtype=torch.uint8)
        monkeypatch.setattr(module, "get_rng_state", lambda *_, zeros=zeros: zeros)
        monkeypatch.setattr(module, "set_rng_state", lambda state, *_: calls.append(("set", len(state))))
        monkeypatch.setattr(module, "manual_seed", lambda seed: calls.append(("seed", seed)))
    state: dict[str, Any] = {"device_rng": None}
    if written_on != "cpu":
        state["device_rng"] = torch.zeros(sizes[written_on or "cuda"], dtype=torch.uint8)
    if written_on:
        state["device"] = written_on
    checkpoints._set_rng_state(Device(torch.device(kind), "stand-in", lambda: None), state, 1342)
    assert calls == [("set", sizes[kind]) if kind == (written_on or "cuda") else ("seed", 1342)]


def test_a_killed_training_goes_on_from_its_last_checkpoint(run: Run, tmp_path: Path) -> None:
    long = LONG | {"max_iters": 100_000, "lr_decay_iters": 100_000, "eval_interval": 0, "log_interval": 1}
    process = spawn(tmp_path, "--out", "saved", **long | {"checkpoint_interval": 2})
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("saved ") and "after 4 iterations" in line:
            break
    process.send_signal(signal.SIGKILL)
    process.communicate()
    done = torch.load(tmp_path / "saved" / "checkpoint.pt", weights_only=True)["done"]
    rest = run("--resume", str(tmp_path / "saved" / "checkpoint.pt"), **long | {"max_iters": done + 3})
    whole = run(**long | {"max_iters": done + 3})
    assert done >= 4 and rest.losses() == whole.losses()[done:]
    assert [e["loss"] for e in read(tmp_path / "events.jsonl") if e["type"] == "iter"][:done] == whole.losses()[:done]


def test_resuming_what_is_done_does_nothing(run: Run, tmp_path: Path) -> None:
    run("--out", str(tmp_path))
    again = run("--resume", str(tmp_path / "checkpoint.pt"))
    assert again.code == 0 and not again.losses() and "nothing to do" in again.out


def test_checkpoints_of_the_queue_go_where_it_says(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPSQ_OUT", str(tmp_path / "out"))
    run()
    assert not (tmp_path / "out").exists()
    run(checkpoint_interval=2)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["checkpoint.pt"]
    assert {"name": "checkpoint", "edge": "begin"}.items() <= next(
        e for e in run(checkpoint_interval=2).of("phase") if e["name"] == "checkpoint"
    ).items()


@pytest.mark.parametrize("what", ["missing", "garbage", "truncated", "other model", "other text"])
def test_a_checkpoint_that_does_not_fit_is_a_sentence(run: Run, tmp_path: Path, what: str) -> None:
    path = tmp_path / "checkpoint.pt"
    settings: dict[str, object] = {}
    if what != "missing":
        run("--out", str(tmp_path))
    if what == "garbage":
        path.write_bytes(b"not a checkpoint")
    elif what == "truncated":
        path.write_bytes(path.read_bytes()[:-5000])
    elif what == "other model":
        settings = {"n_embd": 32}
    elif what == "other text":
        (tmp_path / "text").write_text(("To be, or not to be. " + "".join(map(chr, range(32, 127)))) * 30)
        settings = {"data": tmp_path / "text"}
        run("--out", str(tmp_path), data=tmp_path / "text")
        (tmp_path / "text").write_text(("To be, or not to do. " + "".join(map(chr, range(32, 127)))) * 30)
    ran = run("--resume", str(path), **settings)
    assert ran.code == 2 and ran.err.startswith("error: ") and "Traceback" not in ran.err and not ran.losses()


def test_a_folder_that_cannot_be_written_is_a_sentence(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ran = run("--out", str(tmp_path / "file"))
    assert ran.code == 1 and "cannot be written" in ran.err and "Traceback" not in ran.err
