"""The model against what is known of it: parameter counts, FLOP, the schedule, causality."""

from __future__ import annotations

import math
from types import SimpleNamespace

import nanogpt_torch as job
import pytest
import torch

from harness.command_line import parse
from harness.torch_training import adamw

SHAKESPEARE = job.Shape(vocab=65, block=256, layers=6, heads=6, width=384)


def model_of(shape: job.Shape) -> job.GPT:
    with torch.device("meta"):
        return job.GPT(shape)


def settings(config: str) -> SimpleNamespace:
    return parse(job.WORKLOAD, ["--config", config]).settings


def shape(config: str, vocab: int) -> job.Shape:
    return job.shape_of(settings(config), SimpleNamespace(vocab_size=vocab))


def test_shakespeare_char_has_the_published_number_of_parameters() -> None:
    model = model_of(shape("shakespeare_char", 65))
    assert (model.n_params(positions=False), model.n_params()) == (10_646_784, 10_745_088)


def test_gpt2_has_the_published_number_of_parameters() -> None:
    assert model_of(shape("gpt2", 50_257)).n_params() == 124_439_808


def test_the_flop_of_an_iteration_give_the_utilisation_that_the_post_printed() -> None:
    flops = job.flops_per_iter(model_of(shape("shakespeare_char", 65)), 64)
    assert flops == pytest.approx(1.1626e12, rel=1e-4)
    for seconds, printed in ((0.221, 1.69), (0.306, 1.22), (1.986, 0.19)):  # MPS, MPS compiled, CPU; % of 312 TFLOP/s
        assert 100 * flops / seconds / 312e12 == pytest.approx(printed, abs=0.006)


def test_the_small_model_decays_the_tensors_that_nanogpt_reported() -> None:
    """nanogpt_logs/small_cpu_eager.log: 18 tensors with 802,944 parameters, and 9 with 1,152 that do not decay."""
    parameters = list(model_of(job.Shape(65, 64, 4, 4, 128)).parameters())
    matrices, vectors = [p for p in parameters if p.dim() >= 2], [p for p in parameters if p.dim() < 2]
    assert (len(matrices), sum(p.numel() for p in matrices)) == (18, 802_944)
    assert (len(vectors), sum(p.numel() for p in vectors)) == (9, 1_152)


def test_presets_set_known_keys_in_the_types_of_their_defaults() -> None:
    params = job.WORKLOAD["params"]
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
    assert job.learning_rate(0, s) == pytest.approx(1e-3 / 101)
    assert job.learning_rate(99, s) == pytest.approx(1e-3 * 100 / 101)
    assert job.learning_rate(100, s) == pytest.approx(1e-3)
    assert job.learning_rate(2550, s) == pytest.approx((1e-3 + 1e-4) / 2)
    assert job.learning_rate(5000, s) == job.learning_rate(9000, s) == 1e-4
    s.lr_decay_iters = s.lr_warmup_iters = 10
    assert job.learning_rate(10, s) == s.min_lr


def test_weights_start_as_gpt2s_do() -> None:
    torch.manual_seed(1)
    model = job.GPT(job.Shape(65, 64, 8, 4, 128, bias=True))
    stds = {name: float(p.detach().std()) for name, p in model.named_parameters() if p.dim() >= 2}
    for name, std in stds.items():
        wanted = 0.02 / math.sqrt(16) if name.endswith("out.weight") else 0.02
        assert std == pytest.approx(wanted, rel=0.05), name
    assert all(not p.any() for name, p in model.named_parameters() if name.endswith("bias"))


def test_a_position_does_not_see_what_comes_after_it() -> None:
    torch.manual_seed(1)
    model = job.GPT(job.Shape(16, 8, 2, 2, 16)).eval()
    tokens = torch.randint(16, (2, 8))
    changed = tokens.clone()
    changed[:, 5:] = (changed[:, 5:] + 1) % 16
    with torch.no_grad():
        before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :5], after[:, :5])
    assert not torch.allclose(before[:, 5:], after[:, 5:])


def test_targets_are_the_next_tokens_and_batches_follow_the_seed() -> None:
    tokens = torch.arange(100, dtype=torch.int32)
    x, y = job.draw(tokens, torch.Generator().manual_seed(1), 6, 9)
    again, _ = job.draw(tokens, torch.Generator().manual_seed(1), 6, 9)
    other, _ = job.draw(tokens, torch.Generator().manual_seed(2), 6, 9)
    assert x.shape == y.shape == (6, 9) and x.dtype == torch.int64
    assert torch.equal(y, x + 1)
    assert torch.equal(x, again) and not torch.equal(x, other)


@pytest.mark.parametrize("name", ["fused", "foreach", "loop"])
def test_every_adamw_is_the_same_optimizer(name: str) -> None:
    def train(implementation: str) -> torch.Tensor:
        weight = torch.nn.Parameter(torch.linspace(-1, 1, 12))
        optimizer, said = adamw([{"params": [weight]}], implementation, lr=0.1)
        assert said == f"AdamW({'fused' if implementation == 'auto' else implementation})"
        for _ in range(5):
            weight.grad = weight.detach() ** 2
            optimizer.step()
        return weight.detach()

    assert torch.allclose(train(name), train("auto"), atol=1e-6)
