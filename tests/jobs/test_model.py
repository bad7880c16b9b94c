"""The model against what is known of it: parameter counts, FLOP, the schedule, causality."""

from __future__ import annotations

import math
from array import array
from types import SimpleNamespace
from typing import Any

import nanogpt_torch as job
import numpy as np
import pytest
import torch
from torch.torch_version import TorchVersion

from harness.command_line import parse, resolve
from harness.data.text import Batches
from harness.errors import UsageError
from harness.models.nanogpt import Shape, flops_per_iter, initial_weights, learning_rate, shape_of
from harness.torch_backend.device import open_device
from harness.torch_backend.training import adamw, sgd

pytestmark = pytest.mark.slow

SHAKESPEARE = Shape(vocab=65, block=256, layers=6, heads=6, width=384)


def on_meta(shape: Shape) -> job.GPT:
    with torch.device("meta"):
        return job.GPT(shape)


def settings(config: str) -> SimpleNamespace:
    return parse(job.WORKLOAD, ["--config", config]).settings


def shape(config: str, vocab: int) -> Shape:
    return shape_of(settings(config), SimpleNamespace(vocab_size=vocab))


def test_shakespeare_char_has_the_published_number_of_parameters() -> None:
    result = shape("shakespeare_char", 65)
    assert (result.n_params(positions=False), result.n_params()) == (10_646_784, 10_745_088)


def test_gpt2_has_the_published_number_of_parameters() -> None:
    assert Shape(50_257, 1024, 12, 12, 768, bias=True).n_params() == 124_439_808


def test_the_preset_gpt2_is_nanogpts() -> None:
    """No biases and 50,304 tokens: train.py says "number of parameters: 123.59M", which leaves out the positions."""
    result = shape("gpt2", 50_257)
    assert (result.vocab, result.bias) == (50_304, False)
    assert (result.n_params(positions=False), result.n_params()) == (123_587_328, 124_373_760)
    assert shape("shakespeare_char", 65).vocab == 65


def test_the_flop_of_an_iteration_give_the_utilisation_that_the_post_printed() -> None:
    flops = flops_per_iter(shape("shakespeare_char", 65), 64)
    assert flops == pytest.approx(1.1626e12, rel=1e-4)
    for seconds, printed in ((0.221, 1.69), (0.306, 1.22), (1.986, 0.19)):  # MPS, MPS compiled, CPU; % of 312 TFLOP/s
        assert 100 * flops / seconds / 312e12 == pytest.approx(printed, abs=0.006)


def test_the_small_model_decays_the_tensors_that_nanogpt_reported() -> None:
    """nanogpt_logs/small_cpu_eager.log: 18 tensors with 802,944 parameters, and 9 with 1,152 that do not decay."""
    parameters = list(on_meta(Shape(65, 64, 4, 4, 128)).parameters())
    matrices, vectors = [p for p in parameters if p.dim() >= 2], [p for p in parameters if p.dim() < 2]
    assert (len(matrices), sum(p.numel() for p in matrices)) == (18, 802_944)
    assert (len(vectors), sum(p.numel() for p in vectors)) == (9, 1_152)


def test_presets_set_known_keys_in_the_types_of_their_defaults() -> None:
    params = resolve(job.WORKLOAD)["params"]
    for config in job.WORKLOAD["configs"].values():
        for key, value in config.items():
            assert type(value) is type(params[key]["default"]), key
    assert all(settings("tiny").__dict__[key] == param["default"] for key, param in params.items())


def test_shakespeare_char_is_nanogpts() -> None:
    s = settings("shakespeare_char")
    assert (s.batch_size, s.dropout, s.max_iters, s.eval_interval, s.eval_iters) == (64, 0.2, 5000, 250, 200)
    assert (s.lr, s.min_lr, s.lr_warmup_iters, s.beta1, s.beta2) == (1e-3, 1e-4, 100, 0.9, 0.99)
    assert (s.weight_decay, s.grad_clip, s.bias) == (0.1, 1.0, False)


def test_the_learning_rate_rises_linearly_and_falls_as_a_cosine() -> None:
    s = settings("shakespeare_char")
    assert learning_rate(0, s) == pytest.approx(1e-3 / 101)
    assert learning_rate(99, s) == pytest.approx(1e-3 * 100 / 101)
    assert learning_rate(100, s) == pytest.approx(1e-3)
    assert learning_rate(2550, s) == pytest.approx((1e-3 + 1e-4) / 2)
    assert learning_rate(5000, s) == learning_rate(9000, s) == 1e-4
    s.lr_decay_iters = s.lr_warmup_iters = 10
    assert learning_rate(10, s) == s.min_lr


def test_weights_start_as_gpt2s_do() -> None:
    weights = initial_weights(Shape(65, 64, 8, 4, 128, bias=True), seed=1)
    for name, value in weights.items():
        if value.ndim >= 2:
            expected = 0.02 / math.sqrt(16) if name.endswith("out.weight") else 0.02
            assert float(value.std()) == pytest.approx(expected, rel=0.05), name
        else:
            assert (value == (1.0 if name.endswith("weight") else 0.0)).all(), name


def test_a_weight_follows_from_the_seed_and_its_name() -> None:
    small, deep = (initial_weights(Shape(65, 64, n, 4, 128), seed=1) for n in (1, 2))
    name = "blocks.0.attention.qkv.weight"
    assert np.array_equal(small[name], deep[name])
    assert not np.array_equal(deep[name], deep["blocks.1.attention.qkv.weight"])
    assert not np.array_equal(small[name], initial_weights(Shape(65, 64, 1, 4, 128), seed=2)[name])


def test_the_tensors_that_are_listed_are_the_models() -> None:
    for bias in (False, True):
        result = Shape(65, 64, 2, 4, 128, bias=bias)
        parameters = {name: tuple(p.shape) for name, p in on_meta(result).named_parameters()}
        assert parameters == result.tensors() and list(parameters) == list(result.tensors())


def test_a_position_does_not_see_what_comes_after_it() -> None:
    small = Shape(16, 8, 2, 2, 16)
    model = job.model_of(small, initial_weights(small, seed=1)).eval()
    tokens = torch.randint(16, (2, 8), generator=torch.Generator().manual_seed(1))
    changed = tokens.clone()
    changed[:, 5:] = (changed[:, 5:] + 1) % 16
    with torch.no_grad():
        before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :5], after[:, :5])
    assert not torch.allclose(before[:, 5:], after[:, 5:])


def batches(seed: int, rows: int = 6) -> Batches:
    parts = {"train": array("i", range(100)), "val": array("i", range(100, 150))}
    return Batches(parts, seed, batch_size=rows, block_size=9)


def test_targets_are_the_next_tokens_and_batches_follow_the_seed() -> None:
    x, y = batches(1).of_iteration(0)
    again, _ = batches(1).of_iteration(0)
    other, _ = batches(2).of_iteration(0)
    assert x.shape == y.shape == (1, 6, 9) and x.dtype == np.int32
    assert np.array_equal(y, x + 1) and (np.diff(x) == 1).all()
    assert np.array_equal(x, again) and not np.array_equal(x, other)


def test_a_batch_is_known_by_its_number() -> None:
    """In order, out of order, and after a resume."""
    order, same_seed = batches(1), batches(1)
    drawn = [order.of_iteration(i)[0] for i in range(4)]
    assert np.array_equal(same_seed.of_iteration(3)[0], drawn[3]) and np.array_equal(
        same_seed.of_iteration(1)[0], drawn[1]
    )
    assert not np.array_equal(drawn[0], drawn[1])
    halves = batches(1, rows=3).of_iteration(1, parts=2)[0]
    assert np.array_equal(halves.reshape(1, 6, 9), drawn[1])


def test_these_are_the_batches_of_every_numpy() -> None:
    """From PCG64's raw output, which numpy promises to keep: a change would make old and new runs incomparable."""
    assert batches(1337).of_iteration(0)[0][0, :, 0].tolist() == [34, 77, 18, 13, 17, 4]


def test_evaluations_repeat_their_batches_and_are_not_those_of_training() -> None:
    order = batches(1)
    first = order.of_evaluation("val", 3)[0]
    order.of_iteration(0)
    assert first.shape == (3, 6, 9) and first.min() >= 100
    assert np.array_equal(first, order.of_evaluation("val", 3)[0])
    assert not np.array_equal(order.of_evaluation("train", 1)[0], batches(1).of_iteration(0)[0])


@pytest.mark.parametrize("name", ["fused", "foreach", "loop"])
def test_every_adamw_is_the_same_optimizer(name: str) -> None:
    def train(implementation: str) -> torch.Tensor:
        weight = torch.nn.Parameter(torch.linspace(-1, 1, 12))
        optimizer, optimizer_name = adamw([{"params": [weight]}], implementation, open_device("cpu"), "fp32", lr=0.1)
        assert optimizer_name == f"AdamW({'fused' if implementation == 'auto' else implementation})"
        for _ in range(5):
            weight.grad = weight.detach() ** 2
            optimizer.step()
        return weight.detach()

    assert torch.allclose(train(name), train("auto"), atol=1e-6)


@pytest.mark.parametrize(
    ("version", "kind", "dtype", "result"),
    [
        ("2.12.1", "mps", "fp16", "loop"),
        ("2.12.1", "mps", "fp32", "fused"),
        ("2.12.1", "mps", "bf16", "fused"),
        ("2.13.0", "mps", "fp16", "fused"),
        ("2.12.1", "cuda", "fp16", "fused"),
    ],
)
def test_a_fused_optimizer_that_ignores_the_scaler_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    version: str,
    kind: str,
    dtype: str,
    result: str,
) -> None:
    """pytorch issue 186360, by a stand-in for the device: steps 65,536 times too far, and infinite ones not skipped."""
    monkeypatch.setattr(torch, "__version__", TorchVersion(version))
    device: Any = SimpleNamespace(kind=kind)
    for make, name in ((adamw, "AdamW"), (sgd, "SGD")):
        weight = torch.nn.Parameter(torch.ones(2))
        assert make([{"params": [weight]}], "auto", device, dtype, lr=0.1)[1] == f"{name}({result})"
        assert ("186360" in capsys.readouterr().out) == (result == "loop")
        assert make([{"params": [weight]}], "loop", device, dtype, lr=0.1)[1] == f"{name}(loop)"
        if result == "fused":
            assert make([{"params": [weight]}], "fused", device, dtype, lr=0.1)[1] == f"{name}(fused)"
            continue
        with pytest.raises(UsageError, match="ignores the loss scaling of fp16"):
            make([{"params": [weight]}], "fused", device, dtype, lr=0.1)
    assert not capsys.readouterr().out


def test_the_trainers_fused_optimizer_is_refused_where_it_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    from harness.torch_backend.trainer import arguments_of

    monkeypatch.setattr(torch, "__version__", TorchVersion("2.12.1"))
    options: Any = SimpleNamespace(dtype="fp16", settings=SimpleNamespace(optim="adamw_torch_fused"))
    device: Any = SimpleNamespace(kind="mps")
    with pytest.raises(UsageError) as error:
        arguments_of(options, device, "folder")
    assert "186360" in error.value.message and "optim=adamw_torch," in error.value.hint
