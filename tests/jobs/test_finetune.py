"""Fine-tuning: a training begins with the weights that another one, ours or another program's, has left."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nanogpt_torch as job
import numpy as np
import pytest
import torch

from harness.checkpoints import safetensors_file
from harness.checkpoints.gpt2 import read_weights
from harness.errors import UsageError
from harness.models.nanogpt import Shape, Weights
from tests.jobs.conftest import TRAINED, Run

pytestmark = pytest.mark.slow

SHAPE = Shape(vocab=11, block=6, layers=2, heads=2, width=8, bias=True)
STILL = {"max_iters": 1, "lr": 0.0, "min_lr": 0.0, "eval_interval": 1, "eval_iters": 2, "bias": True}
"""One iteration that changes nothing, and an evaluation."""


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Two that wait for each other cost milliseconds."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def drawn(shape: Shape = SHAPE) -> Weights:
    """Weights of which no two are alike, with norms and biases that are not what they begin with."""
    generator = np.random.default_rng(5)
    return {name: generator.normal(0, 0.3, size).astype(np.float32) for name, size in shape.tensors().items()}


def as_gpt2(weights: Weights, prefix: str = "transformer.", columns: bool = False) -> dict[str, torch.Tensor]:
    """Under the names of nanoGPT's train.py and of transformers, written down here once more and from the other side.

    columns: matrices as (in, out), as Hugging Face's Conv1D has them.
    """
    names = {"tokens": "wte", "positions": "wpe", "norm": "ln_f"}
    inner = {"norm1": "ln_1", "norm2": "ln_2", "attention.qkv": "attn.c_attn", "attention.out": "attn.c_proj",
             "feed_forward.widen": "mlp.c_fc", "feed_forward.out": "mlp.c_proj"}  # fmt: skip
    result = {}
    for name, value in weights.items():
        module, kind = name.rsplit(".", 1)
        if module.startswith("blocks."):
            _, number, part = module.split(".", 2)
            theirs, turned = f"h.{number}.{inner[part]}", columns and value.ndim == 2
        else:
            theirs, turned = names[module], False
        result[f"{prefix}{theirs}.{kind}"] = torch.from_numpy(np.ascontiguousarray(value.T if turned else value))
    return result


def save_ckpt(path: Path, weights: Weights, **arguments: Any) -> Path:
    """As nanoGPT's train.py saves it."""
    model = as_gpt2(weights) | {"lm_head.weight": torch.from_numpy(weights["tokens.weight"])}
    torch.save(
        {
            "model": model,
            "optimizer": {"state": {}, "param_groups": [{"lr": 1e-3}]},
            "model_args": {"n_layer": 2, "n_head": 2, "n_embd": 8, "block_size": 6, "vocab_size": 11} | arguments,
            "iter_num": 2000,
            "best_val_loss": torch.tensor(1.47),
            "config": {"dataset": "shakespeare_char"},
        },
        path,
    )
    return path


def save_safetensors(path: Path, tensors: dict[str, np.ndarray], kinds: dict[Any, str] | None = None) -> Path:
    names = kinds or {np.dtype(np.float32): "F32", np.dtype(np.float16): "F16", np.dtype(np.uint16): "BF16"}
    header, blob = {}, b""
    for name, value in tensors.items():
        data = np.ascontiguousarray(value).tobytes()
        header[name] = {
            "dtype": names[value.dtype],
            "shape": value.shape,
            "data_offsets": [len(blob), len(blob) + len(data)],
        }
        blob += data
    text = json.dumps(header | {"__metadata__": {"format": "pt"}}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + blob)
    return path


def same(result: Weights, expected: Weights) -> bool:
    return result.keys() == expected.keys() and all(np.array_equal(result[name], expected[name]) for name in expected)


def read(path: Path, shape: Shape = SHAPE) -> Weights:
    return read_weights(path, shape.tensors(), shape.heads)


def ending(ran: Any) -> dict[str, float]:
    return {event["split"]: event["metrics"]["loss"] for event in ran.of("eval")}


def test_fine_tuning_begins_at_the_loss_where_training_ended(run: Run, tmp_path: Path) -> None:
    """From weights.npz, from our checkpoint.pt, from the folder that holds both, and from the same weights under
    nanoGPT's names."""
    trained = run("--out", str(tmp_path / "out"), **TRAINED)
    weights = dict(np.load(tmp_path / "out" / "weights.npz"))
    ckpt = tmp_path / "ckpt.pt"
    torch.save({"model": {f"_orig_mod.{name}": value for name, value in as_gpt2(weights).items()}}, ckpt)
    assert ending(trained)["train"] < ending(run(**STILL))["train"] - 0.1
    for source in (tmp_path / "out" / "weights.npz", tmp_path / "out" / "checkpoint.pt", tmp_path / "out", ckpt):
        tuned = run(init_from=source, **STILL)
        assert tuned.code == 0 and ending(tuned) == ending(trained), source


def test_the_names_of_nanogpt_and_of_hugging_face(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = drawn()
    assert same(read(save_ckpt(tmp_path / "ckpt.pt", weights)), weights)
    out = capsys.readouterr().out
    assert "ckpt.pt" in out and "2000 iterations" in out
    assert same(read(tmp_path), weights)
    theirs = {name: value.numpy() for name, value in as_gpt2(weights, "", columns=True).items()}
    theirs["h.0.attn.bias"] = np.ones((1, 1, 6, 6), np.float32)
    assert same(read(save_safetensors(tmp_path / "model.safetensors", theirs)), weights)


def test_transformers_gpt2_computes_the_same(tmp_path: Path) -> None:
    """The oracle for heads and layout: another program's model, saved by itself."""
    transformers = pytest.importorskip("transformers")
    shape = Shape(vocab=11, block=6, layers=2, heads=4, width=8, bias=True)
    config = transformers.GPT2Config(
        vocab_size=11, n_positions=6, n_layer=2, n_head=4, n_embd=8, activation_function="gelu"
    )
    torch.manual_seed(0)
    theirs = transformers.GPT2LMHeadModel(config).eval()
    for p in theirs.parameters():
        torch.nn.init.normal_(p, 0, 0.3)
    theirs.save_pretrained(tmp_path)
    ours = job.model_of(shape, read(tmp_path, shape)).eval()
    tokens = torch.tensor([[1, 7, 3, 0, 10, 2]])
    with torch.no_grad():
        torch.testing.assert_close(ours(tokens), theirs(tokens).logits, rtol=1e-4, atol=1e-4)
    with pytest.raises(UsageError, match="another shape") as caught:  # config.json tells the heads
        read(tmp_path, SHAPE)
    assert "n_head=4" in caught.value.hint


def test_rows_of_no_token_and_positions_behind_block_size_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("harness.checkpoints.gpt2.GPT2_PADDED", 11)
    monkeypatch.setattr("harness.checkpoints.gpt2.GPT2_VOCAB", 10)
    weights = drawn()
    result = read(save_ckpt(tmp_path / "ckpt.pt", weights), Shape(10, 4, 2, 2, 8, bias=True))
    assert np.array_equal(result["tokens.weight"], weights["tokens.weight"][:10])
    assert np.array_equal(result["positions.weight"], weights["positions.weight"][:4])
    out = capsys.readouterr().out
    assert "10 of 11 rows" in out and "4 of 6 positions" in out


@pytest.mark.parametrize(
    ("shape", "message", "hint"),
    [
        ({"layers": 3}, "a model of another shape", "--set n_layer=2 --set n_embd=8 --set n_head=2 --set bias=true"),
        ({"heads": 4}, "a model of another shape", "n_head=2"),
        ({"bias": False}, "a model of another shape", "bias=true"),
        ({"width": 16}, "a model of another shape", "n_embd=8"),
        ({"block": 7}, "has 6 positions, block_size is 7", "block_size=6"),
        ({"vocab": 12}, "has 11 different tokens, the data have 12", "data=PATH"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_another_shape_is_refused(tmp_path: Path, shape: dict[str, Any], message: str, hint: str) -> None:
    path = save_ckpt(tmp_path / "ckpt.pt", drawn())
    with pytest.raises(UsageError, match=message) as caught:
        read(path, Shape(**{**vars(SHAPE), **shape}))
    assert hint in caught.value.hint


class Evil:
    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return print, ("this ran",)


def test_what_is_no_gpt2_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "garbage.pt").write_bytes(b"garbage")
    (tmp_path / "garbage.safetensors").write_bytes(b"garbage")
    (tmp_path / "huge.safetensors").write_bytes(struct.pack("<Q", 1 << 62) + b"{}")
    (tmp_path / "empty").mkdir()
    torch.save({"model": Evil()}, tmp_path / "evil.pt")
    torch.save({"fc.weight": torch.ones(3)}, tmp_path / "net.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    untied = as_gpt2(drawn()) | {"lm_head.weight": torch.ones(11, 8)}
    torch.save(untied, tmp_path / "untied.pt")
    for name, message in (
        ("none.pt", "cannot be read"),
        ("none.safetensors", "cannot be read"),
        ("garbage.pt", "not a complete file of torch.save|holds more than tensors"),
        ("garbage.safetensors", "not a valid .safetensors file"),
        ("huge.safetensors", "not a valid .safetensors file"),
        ("empty", "there are no weights in"),
        ("evil.pt", "holds more than tensors"),
        ("net.pt", "is not a GPT-2: its tensors are fc.weight"),
        ("list.pt", "does not hold a model"),
        ("untied.pt", "is not a GPT-2"),
    ):
        with pytest.raises(UsageError, match=message):
            read(tmp_path / name)
    assert "this ran" not in capsys.readouterr().out


def test_safetensors_in_half_precision(tmp_path: Path) -> None:
    values = np.array([[1.5, -2.0], [0.0, 3.0]], np.float32)
    halves = {"a": values.astype(np.float16), "b": (values.view(np.uint32) >> 16).astype(np.uint16)}
    result = safetensors_file.read(save_safetensors(tmp_path / "x.safetensors", halves))
    assert (
        np.array_equal(result["a"], values) and np.array_equal(result["b"], values) and result["b"].dtype == np.float32
    )
