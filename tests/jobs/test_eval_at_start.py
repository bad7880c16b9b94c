"""eval_at_start: the losses of the initial weights, as train.py's step 0, without a change of anything else."""

from __future__ import annotations

import pytest

from tests.jobs.conftest import FRAMEWORKS, Run

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick_mlx", "quick_tinygrad")]
MODES = {"torch": "off", "mlx": "on", "tinygrad": "on", "jax": "on"}
"""Compiled, where the test of torch.compile is not another one."""
SETTINGS: dict[str, object] = {
    "max_iters": 3, "eval_interval": 2, "eval_iters": 1, "lr": 0.01, "min_lr": 0.01, "lr_warmup_iters": 0,
    "grad_clip": 0,
}  # fmt: skip
"""Three iterations: a compiler may compile the first, record the second, and replay the third."""


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_step_0_is_of_the_initial_weights_and_changes_nothing(run: Run, framework: str) -> None:
    words = ["--compile", MODES[framework]]
    without = run(*words, framework=framework, **SETTINGS)
    ran = run(*words, framework=framework, **SETTINGS, eval_at_start="true")
    assert without.code == ran.code == 0, ran.err
    assert [(e["i"], e["split"]) for e in ran.of("eval")] == [(i, s) for i in (0, 2, 3) for s in ("train", "val")]
    assert ran.losses() == without.losses(), "the training is the same, to the last bit"
    assert [e["metrics"] for e in ran.of("eval")[2:]] == [e["metrics"] for e in without.of("eval")]
    initial = {e["split"]: e["metrics"]["loss"] for e in ran.of("eval") if e["i"] == 0}
    untrained = run(**SETTINGS | {"max_iters": 1, "lr": 0, "min_lr": 0, "weight_decay": 0})  # torch: the same weights
    expected = {e["split"]: e["metrics"]["loss"] for e in untrained.of("eval")}
    assert initial == pytest.approx(expected, abs=1e-5), "with a learning rate of 0 the weights stay as they were"
    assert initial["train"] - ran.of("eval")[-2]["metrics"]["loss"] > 0.01, "and here they did not"
    types = [(e["type"], e.get("i")) for e in ran.events if e["type"] in ("iter", "eval")]
    assert types[0] == ("iter", 0), "the first iteration pays for what it pays for elsewhere"


def test_it_is_on_in_the_preset_that_copies_train_py_and_follows_eval_interval(run: Run) -> None:
    import nanogpt_torch

    from harness import command_line

    def settings(*words: str) -> object:
        return command_line.parse(nanogpt_torch.WORKLOAD, words).settings.eval_at_start

    assert settings("--config", "shakespeare_char") is True
    assert settings() is False and settings("--config", "gpt2") is False
    assert not run(eval_at_start="true").of("eval"), "eval_interval is 0 here"


def test_a_resumed_run_does_not_evaluate_a_step_that_was_another_runs(run: Run, tmp_path: object) -> None:
    words = ["--out", str(tmp_path)]
    assert run(*words, max_iters=2).code == 0
    ran = run("--resume", f"{tmp_path}/checkpoint.pt", max_iters=4, eval_interval=2, eval_at_start="true")
    assert ran.code == 0 and [e["i"] for e in ran.of("eval")] == [4, 4]
