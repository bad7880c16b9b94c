"""TrainerCallback in Trainers of one's own, against the clock of the model: what may interrupt an iteration, shorten
it, or say a loss that is not its own."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when it is imported
pytest.importorskip("transformers")

import torch
import transformers
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

import mpsq_report_transformers
from mpsq_report import Reporter, TrainerCallback
from tests.jobs.conftest import Ran, read

pytestmark = pytest.mark.slow

FORWARD_S = 0.002


class Rows(Dataset[Any]):
    """Examples that are their own numbers."""

    def __init__(self, n: int) -> None:
        self._n = n

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, at: int) -> dict[str, torch.Tensor]:
        return {"x": torch.tensor([float(at)]), "labels": torch.tensor(0.0)}


class Stream(IterableDataset[Any]):
    """Ten of them, whose number nobody is told."""

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        return (Rows(10)[at] for at in range(10))


class Net(nn.Module):
    """The mean of a batch is its loss, and each forward takes FORWARD_S."""

    def __init__(self, nan_from: int = 99) -> None:
        super().__init__()
        self.layer, self._nan_from = nn.Linear(1, 1), nan_from
        self.forwards = 0

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        time.sleep(FORWARD_S)
        self.forwards += self.training
        loss = 0.0 * self.layer(x).sum() + x.mean()
        return {"loss": loss * float("nan") if self.forwards >= self._nan_from else loss, "logits": x}


class Own(transformers.Trainer):
    """Says losses of its own in the middle of a step, as many do."""

    def compute_loss(self, *words: Any, **named: Any) -> Any:
        made = super().compute_loss(*words, **named)
        self.log({"loss": 99.0})
        return made


def trainer(
    folder: Path,
    rows: Any,
    made: type[Any] = transformers.Trainer,
    net: Net | None = None,
    callback: Any = None,
    before: Any = (),
    **arguments: Any,
) -> Any:
    """A Trainer that reports into folder/events.jsonl: two examples a batch, one epoch."""
    settings = {"per_device_train_batch_size": 2, "num_train_epochs": 1, "logging_steps": 1, "save_strategy": "no"}
    args = transformers.TrainingArguments(
        output_dir=str(folder), use_cpu=True, disable_tqdm=True, report_to="none", **(settings | arguments)
    )
    callback = callback or TrainerCallback(Reporter(folder / "events.jsonl"), warmup_iters=1)
    data = Rows(rows) if isinstance(rows, int) else rows
    trainer = made(
        model=net or Net(), args=args, train_dataset=data, eval_dataset=Rows(2), callbacks=[*before, callback]
    )
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer


def told(folder: Path) -> Ran:
    return Ran(0, read(folder / "events.jsonl"), "", "")


def numbers(ran: Ran) -> list[int]:
    return [one["i"] for one in ran.of("iter")]


@pytest.mark.parametrize(
    ("rows", "accumulated", "samples", "n"),
    [(6, 8, 6, 1), (5, 8, 5, 1), (1, 1, 1, 1), (8, 2, 4, 2), (7, 2, 4, 1)],
)
def test_samples_of_an_iteration_are_those_that_it_had(
    rows: int, accumulated: int, samples: int, n: int, tmp_path: Path
) -> None:
    """An epoch of three batches is one iteration of six examples, whatever the accumulation asks for."""
    trainer(tmp_path, rows, gradient_accumulation_steps=accumulated).train()
    ran = told(tmp_path)
    assert ran.hello()["samples_per_iter"] == samples and len(ran.of("iter")) == n


def test_a_log_in_the_middle_of_a_step_cuts_no_iteration_and_is_not_its_loss(tmp_path: Path) -> None:
    made = trainer(tmp_path, 16, Own, gradient_accumulation_steps=2, logging_steps=2)
    made.train()
    ran = told(tmp_path)
    assert numbers(ran) == [0, 1, 2, 3]
    assert all(one["dur_s"] > 2 * FORWARD_S and "loss" not in one for one in ran.of("iter"))
    logged = [(one["step"] - 1, one["loss"]) for one in made.state.log_history if one.get("loss", 99.0) != 99.0]
    assert [(one["i"], one["value"]) for one in ran.of("metric")] == logged and len(logged) == 2


class Evaluates(transformers.TrainerCallback):
    """A user's callback with evaluations of its own, at the places of a step."""

    trainer: Any

    def on_substep_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        if state.global_step == 1:
            self.trainer.evaluate()

    def on_step_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        if state.global_step == 3:
            self.trainer.evaluate()

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        if state.global_step == 6:
            self.trainer.evaluate()


def test_an_iteration_that_an_evaluation_interrupts_is_left_out(tmp_path: Path) -> None:
    other = Evaluates()
    made = trainer(tmp_path, 32, gradient_accumulation_steps=2, before=[other])
    other.trainer = made
    made.train()
    ran = told(tmp_path)
    assert numbers(ran) == [0, 2, 4, 6, 7] and [one["i"] for one in ran.of("eval")] == [1, 3, 6]
    assert all(one["dur_s"] > 2 * FORWARD_S for one in ran.of("iter"))


@pytest.mark.parametrize("steps", [1, 2])
def test_a_loss_that_the_trainer_hides_is_nan(steps: int, tmp_path: Path) -> None:
    """It puts the mean of those before in the place of a nan: 0, where there are none."""
    made = trainer(tmp_path, 12, net=Net(nan_from=3), logging_steps=steps)
    made.train()
    ran = told(tmp_path)
    assert made.state.log_history[-2]["loss"] == 0.0
    if steps == 1:
        assert [one["loss"] == "nan" for one in ran.of("iter")] == [False] * 2 + [True] * 4
    else:
        assert [one["value"] == "nan" for one in ran.of("metric")] == [False, True, True]
    assert "nan_loss" in ran.notes() and len(ran.of("note")) <= 2


def test_a_second_training_of_a_process_is_numbered_on(tmp_path: Path) -> None:
    made = trainer(tmp_path, 6)
    made.evaluate()
    made.train()
    made.train()
    ran = told(tmp_path)
    assert numbers(ran) == list(range(6)) and ran.hello()["planned_iters"] == 6
    assert [one["phase"] for one in ran.of("iter")] == ["warmup", "warmup", "measure"] * 2
    assert [one["i"] for one in ran.of("eval")] == [0]  # one before all training is told, too
    edges = [(one["name"], one["edge"]) for one in ran.of("phase")]
    assert edges.count(("setup", "end")) == 1 and edges.index(("setup", "end")) < edges.index(("eval", "begin"))


def test_what_is_resumed_leaves_out_the_short_one_wherever_it_comes(tmp_path: Path) -> None:
    """With ignore_data_skip an epoch begins anew in the middle of the numbers."""
    trainer(tmp_path, 7, max_steps=3, save_strategy="steps", save_steps=3).train()
    (tmp_path / "events.jsonl").unlink()
    made = trainer(tmp_path, 7, num_train_epochs=2, ignore_data_skip=True)
    made.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    ran = told(tmp_path)
    assert numbers(ran) == [3, 4, 5, 7] and ran.hello()["planned_iters"] == 8


def test_of_a_stream_each_epochs_last_is_left_out(tmp_path: Path) -> None:
    trainer(tmp_path, Stream(), per_device_train_batch_size=4, max_steps=5).train()
    assert numbers(told(tmp_path)) == [0, 1, 3, 4] and told(tmp_path).hello()["samples_per_iter"] == 4


def test_of_batches_that_differ_no_number_of_samples_is_told(tmp_path: Path) -> None:
    """A loader of one's own, with batches of so many tokens, say."""

    class Loads(transformers.Trainer):
        def get_train_dataloader(self) -> Any:
            return DataLoader(self.train_dataset, batch_sampler=[[0], [1, 2], [3]])

    trainer(tmp_path, 4, Loads).train()
    assert numbers(told(tmp_path)) == [0, 1, 2] and "samples_per_iter" not in told(tmp_path).hello()


def test_a_model_that_its_owner_compiles_begins_with_compilation(tmp_path: Path) -> None:
    net = Net()
    net.layer = torch.compile(net.layer, backend="eager")  # type: ignore[assignment]
    trainer(tmp_path, 6, net=net).train()
    ran = told(tmp_path)
    assert ran.hello()["compile"] is True and [one["phase"] for one in ran.of("iter")] == [
        "compile", "warmup", "measure",
    ]  # fmt: skip


def test_one_of_several_processes_speaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second setup, of a process that says no more, would never end."""
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        TrainerCallback(Reporter(tmp_path / "events.jsonl"))
    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert len(lines) == 1
    assert all(a["t"] <= b["t"] for a, b in pairwise(lines))


def test_a_fused_optimizer_that_ignores_the_scaler_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a stand-in for torch before 2.13 on mps: the Trainer's own default there is fused."""
    monkeypatch.setattr(mpsq_report_transformers, "fused_trouble", lambda kind, dtype: f"wrong on {kind} in {dtype}")
    for optim, fp16 in (("adamw_torch", True), ("adamw_torch_fused", False), ("adamw_torch_fused", True)):
        requested = trainer(tmp_path, 2, optim=optim)
        requested.args.fp16 = fp16
        requested.train()
    notes = [one for one in told(tmp_path).of("note") if one["kind"] == "wrong_loss"]
    (text,) = (one["text"] for one in notes)
    assert all(x in text for x in ("cpu in fp16", "adamw_torch", "--bf16"))
