"""mode=sample in torch, mlx, tinygrad and jax: the logits of the training's model, and one text from all four."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.jobs.conftest import FRAMEWORKS, Ran, Run

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick_mlx")]
WRITES = {"mode": "sample", "bias": "true", "batch_size": 2, "max_iters": 3, "warmup_iters": 1}
MODES = {"torch": "off", "mlx": "on", "tinygrad": "on", "jax": "on"}
"""Compiled, where the test of torch.compile is not another one."""


def written(run: Run, framework: str, weights: Path, *words: str, **settings: object) -> Ran:
    return run(*words, framework=framework, init_from=weights, **WRITES | settings)


@pytest.fixture(scope="module")
def texts() -> dict[int, str]:
    """What torch wrote, by new_tokens."""
    return {}


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("new_tokens", [7, 3], ids=["from one token", "from five"])
def test_the_four_write_the_text_that_the_trained_model_would(
    run: Run, monkeypatch: pytest.MonkeyPatch, weights: Path, texts: dict[int, str], framework: str, new_tokens: int
) -> None:
    """fp32 on the CPU, same weights: with keys and values kept, each position's logits are those of the training's
    forward over the whole text, and so the likeliest tokens are too."""
    job, forward, made = importlib.import_module(f"nanogpt_{framework}"), [], []
    prepared = job.sampling.reference_check

    def prepare(x: Any, y: Any, n: int, logits: Any) -> Any:
        forward.append(logits)
        return prepared(x, y, n, logits)

    def sample(options: Any, device: Any) -> Any:
        made.append(job.sample(options, device))
        return made[0]

    monkeypatch.setattr(job.sampling, "reference_check", prepare)
    settings = WRITES | {"init_from": weights, "new_tokens": new_tokens}
    ran = run("--compile", MODES[framework], framework=framework, sample=sample, **settings)
    assert ran.code == 0 and "wrong_loss" not in ran.notes(), ran.err
    [sampling], [whole] = made, forward

    tokens, n_prompt = sampling.check.tokens, 8 - new_tokens
    expected = np.concatenate([whole(tokens[:1]), whole(tokens[1:])])
    kept = [sampling.numpy(sampling.prefill(tokens[:, :n_prompt]))]
    kept += [sampling.numpy(sampling.step(tokens[:, at])) for at in range(n_prompt, 8)]
    assert np.stack(kept, axis=1) == pytest.approx(expected[:, n_prompt - 1 :], abs=2e-5)

    read = list(sampling.prompt(2)[0])
    while len(read) < 8:  # the training's model, over the whole text for each token
        read.append(int(whole(np.array([read + [0] * (8 - len(read))], np.int32))[0, len(read) - 1].argmax()))
    text = ran.notes()["sample"]["text"]
    assert text[:new_tokens] == sampling.read(read[n_prompt:]) and len(text) == new_tokens + 1
    assert text == texts.setdefault(new_tokens, text) and text in ran.out


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_its_numbers_are_those_of_writing(run: Run, weights: Path, framework: str) -> None:
    ran = written(run, framework, weights, "--compile", MODES[framework], new_tokens=3)
    hello = ran.hello()
    assert hello["workload"] == "nanogpt-sample", "so that no report pools it with training"
    assert hello["tokens_per_iter"] == 2 * 8 and "optimizer" not in hello
    assert hello["params"] == 103 * 16 + 8 * 16 + 12 * 16 * 16 + 13 * 16 + 2 * 16
    [measured] = [event for event in ran.of("iter") if event["phase"] == "measure"]
    assert "loss" not in measured and measured["synced"]
    speeds = {e["name"]: e for e in ran.of("metric") if e["name"].endswith("_tokens_per_s")}
    assert {(e["unit"], e["i"]) for e in speeds.values()} == {("tokens/s", 2)}
    parts = 2 * 5 / speeds["prefill_tokens_per_s"]["value"] + 2 * 3 / speeds["decode_tokens_per_s"]["value"]
    assert 0.5 * measured["dur_s"] < parts <= measured["dur_s"]
    assert not ran.of("eval") and ran.metrics()["reference_loss_cpu"] == pytest.approx(
        ran.metrics()["reference_loss_device"], abs=1e-5
    )


def test_the_work_is_counted_term_by_term() -> None:
    """By hand: one layer of 4 features and 2 heads, 5 tokens known, 3 positions, of which 1 is written."""
    from harness.models.nanogpt import Shape, sampling_flops

    shape = Shape(vocab=5, block=3, layers=1, heads=2, width=4)
    matrices, norms, output = 12 * 4 * 4, 3 * 4, 5 * 4
    scores = 4 * 4 * (2 * 2 + 3)  # a prompt of two meets two keys each, the new one three
    assert sampling_flops(shape, 2, 1) == 2 * (2 * (matrices + norms) * 3 + 2 * output * 2 + scores)


def test_a_mode_has_its_own_defaults_and_what_is_set_wins() -> None:
    import nanogpt_torch

    from harness import command_line

    def settings(*sets: str) -> tuple[int, int, int]:
        words = [word for text in ("mode=sample", *sets) for word in ("--set", text)]
        found = command_line.parse(nanogpt_torch.WORKLOAD, ["--config", "shakespeare_char", *words])
        return found.settings.batch_size, found.settings.max_iters, found.full_iters

    assert settings() == (1, 24, 24)
    assert settings("batch_size=64", "max_iters=5") == (64, 5, 24)


def test_a_cache_that_forgets_is_found_out(run: Run, monkeypatch: pytest.MonkeyPatch, weights: Path) -> None:
    from harness.torch_backend.sampling import F, LayerCache

    def forgets(self: Any, q: Any, k: Any, v: Any) -> Any:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    monkeypatch.setattr(LayerCache, "attend", forgets)
    ran = written(run, "torch", weights, new_tokens=7)
    assert ran.code == 0 and "nats apart" in ran.notes()["wrong_loss"]["text"] and "warning: " in ran.err


def test_bf16_is_close(run: Run, weights: Path) -> None:
    for framework in ("torch", "mlx"):
        ran = written(run, framework, weights, "--dtype", "bf16", new_tokens=3)
        assert ran.code == 0 and "wrong_loss" not in ran.notes(), ran.err
        found = ran.metrics()
        assert found["reference_loss_device"] != found["reference_loss_cpu"], "it is not fp32"


@pytest.mark.parametrize(
    ("words", "settings", "said"),
    [
        ([], {"mode": "banana"}, 'mode cannot be "banana"'),
        ([], {"mode": "smaple"}, 'did you mean "sample"?'),
        ([], {"new_tokens": 8}, "with block_size=8 it must be less than that"),
        ([], {"new_tokens": 0}, "new_tokens=0: it cannot be less than 1"),
        (["--resume", "checkpoint.pt"], {"new_tokens": 3}, "--set init_from=PATH"),
        ([], {"new_tokens": 3, "checkpoint_interval": 5}, "set checkpoint_interval=0"),
    ],
)
def test_what_cannot_be_asked_is_a_sentence(run: Run, words: list[str], settings: dict[str, object], said: str) -> None:
    ran = run(*words, **WRITES | settings)
    assert ran.code == 2 and said in ran.err and "Traceback" not in ran.err


def test_the_text_is_kept_where_out_says(run: Run, weights: Path, tmp_path: Path) -> None:
    ran = written(run, "torch", weights, "--out", str(tmp_path / "there"), new_tokens=3)
    note = ran.notes()["sample"]
    assert (tmp_path / "there" / "sample.txt").read_text("utf-8") == note["prompt"] + note["text"]


def test_the_device_is_waited_for_around_each_part(run: Run, monkeypatch: pytest.MonkeyPatch, weights: Path) -> None:
    """Before and after the prefill, before and after the whole loop: never within it."""
    from harness.torch_backend.sampling import Sampling

    log: list[str] = []

    def noted(name: str) -> None:
        whole = getattr(Sampling, name)

        def call(self: Any, *arguments: Any) -> Any:
            log.append(name)
            return whole(self, *arguments)

        monkeypatch.setattr(Sampling, name, call)

    for name in ("prefill", "greedy", "wait"):
        noted(name)
    assert written(run, "torch", weights, new_tokens=7, max_iters=1).code == 0
    until = log.index("greedy") + 3
    assert log[:until] == ["wait", "wait", "prefill", "wait", "wait", "greedy", "wait", "wait"]
