"""mode=sample in torch, mlx, tinygrad and jax: the logits of the training's model, and one text from all four."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness import sampling
from tests.jobs.conftest import FRAMEWORKS, Ran, Run

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick_mlx", "unpooled_tinygrad")]
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
    prepared = sampling.reference_check

    def prepare(x: Any, y: Any, n: int, logits: Any) -> Any:
        forward.append(logits)
        return prepared(x, y, n, logits)

    def sample(options: Any, device: Any) -> Any:
        made.append(job.sample(options, device))
        return made[0]

    monkeypatch.setattr(sampling, "reference_check", prepare)
    settings = WRITES | {"init_from": weights, "new_tokens": new_tokens}
    ran = run("--compile", MODES[framework], framework=framework, sample=sample, **settings)
    assert ran.code == 0 and "wrong_loss" not in ran.notes(), ran.err
    [writer], [whole] = made, forward

    tokens, n_prompt = writer.reference.tokens, 8 - new_tokens
    expected = np.concatenate([whole(tokens[:1]), whole(tokens[1:])])
    logits_of_steps = [writer.numpy(writer.prefill(tokens[:, :n_prompt]))]
    logits_of_steps += [writer.numpy(writer.step(tokens[:, at])) for at in range(n_prompt, 8)]
    assert np.stack(logits_of_steps, axis=1) == pytest.approx(expected[:, n_prompt - 1 :], abs=2e-5)

    read = list(writer.prompt(2)[0])
    while len(read) < 8:  # the training's model, over the whole text for each token
        read.append(int(whole(np.array([read + [0] * (8 - len(read))], np.int32))[0, len(read) - 1].argmax()))
    text = ran.notes()["sample"]["text"]
    assert text[:new_tokens] == writer.read(read[n_prompt:]) and len(text) == new_tokens + 1
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
    assert 0 < parts <= measured["dur_s"]
    assert not ran.of("eval") and ran.metrics()["reference_loss_cpu"] == pytest.approx(
        ran.metrics()["reference_loss_device"], abs=1e-5
    )


def test_the_work_is_counted_term_by_term() -> None:
    """By hand: one layer of 4 features and 2 heads, 5 tokens known, 3 positions, of which 1 is written."""
    from harness.models.nanogpt import Shape
    from harness.models.nanogpt_sampling import sampling_flops

    shape = Shape(vocab=5, block=3, layers=1, heads=2, width=4)
    matrices, norms, output = 12 * 4 * 4, 3 * 4, 5 * 4
    scores = 4 * 4 * (2 * 2 + 3)  # a prompt of two meets two keys each, the new one three
    assert sampling_flops(shape, 2, 2, 1) == 2 * (2 * (matrices + norms) * 3 + 2 * output * 2 + scores)


def test_a_mode_has_its_own_defaults_and_what_is_set_wins() -> None:
    import nanogpt_torch

    from harness import command_line

    def settings(*sets: str) -> tuple[int, int, int]:
        words = [word for text in ("mode=sample", *sets) for word in ("--set", text)]
        result = command_line.parse(nanogpt_torch.WORKLOAD, ["--config", "shakespeare_char", *words])
        return result.settings.batch_size, result.settings.max_iters, result.full_iters

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
        result = ran.metrics()
        assert result["reference_loss_device"] != result["reference_loss_cpu"], "it is not fp32"


@pytest.mark.parametrize(
    ("words", "settings", "message"),
    [
        ([], {"mode": "banana"}, 'mode cannot be "banana"'),
        ([], {"mode": "smaple"}, 'did you mean "sample"?'),
        ([], {"new_tokens": 8}, "with block_size=8 it must be less than that"),
        ([], {"new_tokens": 0}, "new_tokens=0: it cannot be less than 1"),
        (["--resume", "checkpoint.pt"], {"new_tokens": 3}, "--set init_from=PATH"),
        ([], {"new_tokens": 3, "checkpoint_interval": 5}, "set checkpoint_interval=0"),
    ],
)
def test_what_cannot_be_asked_is_a_sentence(
    run: Run, words: list[str], settings: dict[str, object], message: str
) -> None:
    ran = run(*words, **WRITES | settings)
    assert ran.code == 2 and message in ran.err and "Traceback" not in ran.err


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

    for name in ("prefill", "write", "wait"):
        noted(name)
    assert written(run, "torch", weights, new_tokens=7, max_iters=1).code == 0
    until = log.index("write") + 3
    assert log[:until] == ["wait", "wait", "prefill", "wait", "wait", "write", "wait", "wait"]


def as_sample_py_draws(logits: Any, temperature: float, top_k: int) -> Any:
    """The probabilities of GPT.generate of nanoGPT's model.py, in numpy."""
    scaled = np.asarray(logits, np.float64) / temperature
    if top_k:
        least = np.sort(scaled)[-min(top_k, scaled.size)]
        scaled = np.where(scaled < least, -np.inf, scaled)
    shares = np.exp(scaled - scaled.max())
    return shares / shares.sum()


def drawn(framework: str, logits: Any, u: Any, temperature: float, top_k: int) -> Any:
    """Tokens by the framework's own choice, as its loop calls it: logits (rows, vocab), u (rows,)."""
    from types import SimpleNamespace

    module = importlib.import_module(f"harness.{framework}_backend.sampling")
    requested = SimpleNamespace(options=SimpleNamespace(settings=SimpleNamespace(temperature=temperature, top_k=top_k)))
    if framework == "torch":
        import torch

        there = torch.from_numpy(logits)
        return module.chosen(there, torch.from_numpy(u[:, None]), temperature, top_k)[:, 0].numpy()
    if framework == "jax":
        return np.asarray(module.chosen(logits, u, temperature, top_k))
    if framework == "mlx":
        import mlx.core as mx

        return np.array(module.Sampling._chosen(requested, mx.array(logits), mx.array(u)))
    from tinygrad import Tensor

    from harness.tinygrad_backend.device import open_device

    open_device("cpu")  # finds the compiler
    requested._numbers = Tensor(np.stack([u * 0 + 0.5, u], axis=1), device="CPU")
    here = Tensor(np.array([[False, True]]), device="CPU")
    return module.Sampling._chosen(requested, Tensor(logits, device="CPU"), here).numpy()[:, 0]


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(("temperature", "top_k"), [(0.8, 0), (0.8, 5), (2.0, 200), (0.05, 3)])
def test_tokens_are_drawn_as_sample_py_draws_them(framework: str, temperature: float, top_k: int) -> None:
    """Stratified numbers instead of random ones: each token occurs as often as its probability says, to one."""
    n = 4000
    logits = np.random.Generator(np.random.PCG64(3)).standard_normal(23, np.float32) * 2
    u = np.append((np.arange(n) + 0.5) / n, [0.0, 1 - 1e-6]).astype(np.float32)  # and the edges
    tokens = np.asarray(drawn(framework, np.tile(logits, (n + 2, 1)), u, temperature, top_k)).astype(int)
    counts = np.bincount(tokens[:n], minlength=23)
    expected = as_sample_py_draws(logits, temperature, top_k)
    assert counts.sum() == n and np.abs(counts - n * expected).max() <= 2
    if 0 < top_k < 23:
        assert (counts > 0).sum() <= top_k and not counts[expected == 0].any()
    assert (expected[tokens[n:]] > 0).all()


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_four_draw_the_same_texts_and_another_seed_draws_others(
    run: Run, weights: Path, drawn_texts: list[str], framework: str
) -> None:
    settings = {"new_tokens": 5, "temperature": 0.8, "top_k": 20, "num_samples": 4}
    ran = written(run, framework, weights, "--compile", MODES[framework], **settings)
    assert ran.code == 0 and "wrong_loss" not in ran.notes(), ran.err
    texts = [note["text"] for note in ran.of("note") if note["kind"] == "sample"]
    assert len(texts) == 4 and len({*texts}) > 1 and all(len(text) == 6 for text in texts)
    assert texts == (drawn_texts or drawn_texts.extend(texts) or drawn_texts)
    assert ran.out.count("-" * 15 + "\n") == 4, "as sample.py prints them"
    if framework == "torch":
        other = written(run, framework, weights, "--seed", "5", **settings)
        assert texts != [note["text"] for note in other.of("note") if note["kind"] == "sample"]
        likeliest = written(run, framework, weights, **settings | {"temperature": 1e-3, "top_k": 0})
        greedy = written(run, framework, weights, new_tokens=5, num_samples=4)
        assert [n["text"] for n in likeliest.of("note")] == [n["text"] for n in greedy.of("note")]


@pytest.fixture(scope="module")
def drawn_texts() -> list[str]:
    """What the first framework drew."""
    return []


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_start_is_the_prompt_of_every_text(run: Run, weights: Path, tmp_path: Path, framework: str) -> None:
    settings = {"new_tokens": 3, "num_samples": 2, "temperature": 1.0}
    ran = written(run, framework, weights, "--compile", MODES[framework], start="The", **settings)
    assert ran.code == 0 and "wrong_loss" not in ran.notes(), ran.err
    assert [n["prompt"] for n in ran.of("note") if n["kind"] == "sample"] == ["The", "The"]
    assert ran.hello()["tokens_per_iter"] == 2 * (3 + 3)
    if framework == "torch":
        (tmp_path / "begun.txt").write_text("a much longer text than the model holds: The")
        from_file = written(run, framework, weights, start=f"FILE:{tmp_path / 'begun.txt'}", **settings)
        assert [n["prompt"] for n in from_file.of("note")] == [": The", ": The"], "its end, block_size - new_tokens"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_samples": 7}, "num_samples=7: 3 iterations of batch_size=2 write fewer --set max_iters=4"),
        ({"top_k": 5}, "top_k has no effect without a temperature"),
        ({"temperature": -1}, "temperature=-1.0: it cannot be less than 0"),
        ({"start": "FILE:/nowhere.txt"}, "start=FILE:/nowhere.txt cannot be read: /nowhere.txt: no such file"),
        ({"start": "snow \u2603"}, "start has characters that pydoc does not have: '\u2603'"),
    ],
)
def test_a_draw_that_cannot_be_made_is_a_sentence(run: Run, settings: dict[str, object], message: str) -> None:
    ran = run(**WRITES | {"new_tokens": 3} | settings)
    assert ran.code == 2 and message in " ".join(ran.err.split()).replace("hint: ", ""), ran.err
