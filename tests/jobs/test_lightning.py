"""nanogpt under Lightning's Trainer against the plain loop, and the callback for users' own scripts."""

from __future__ import annotations

import importlib
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("lightning")

import lightning.pytorch as pl
import lightning_gpt_torch as job
import nanogpt_torch as nanogpt
from lightning.pytorch.accelerators import MPSAccelerator
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.precision import MixedPrecision
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import mpsq_report
import mpsq_report_lightning
from harness import errors
from harness.command_line import resolve
from mpsq_report import Reporter
from tests.jobs.conftest import JOBS, Ran, Run, arguments, read

pytestmark = pytest.mark.slow

EVERYTHING = {
    "bias": True, "dropout": 0.2, "grad_accum": 3, "grad_clip": 0.05, "weight_decay": 0.5, "lr": 0.01,
    "min_lr": 0.001, "lr_warmup_iters": 3, "max_iters": 9, "eval_interval": 4, "eval_iters": 2,
}  # fmt: skip
"""All that the two loops could do differently, large enough to be seen in nine losses."""


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Two that wait for each other cost milliseconds."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs lightning_gpt in this process: trains("--dtype", "bf16", lr=0.1)."""
    monkeypatch.delenv("MPSQ_T0", raising=False)
    count = iter(range(99))

    def run(*words: str, **settings: object) -> Ran:
        path = tmp_path / f"lightning-{next(count)}.jsonl"
        monkeypatch.setenv("MPSQ_EVENTS", str(path))
        code = job.main(arguments(words, settings))
        captured = capsys.readouterr()
        return Ran(code, read(path), captured.out, captured.err)

    return run


def evals(ran: Ran) -> list[tuple[int, str, float]]:
    return [(event["i"], event["split"], event["metrics"]["loss"]) for event in ran.of("eval")]


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_losses_are_those_of_the_plain_loop(run: Run, trains: Any, dtype: str) -> None:
    """To the last bit: batches, schedule, groups, clipping, accumulation, dropout, casts, evaluations."""
    plain, ours = run("--dtype", dtype, **EVERYTHING), trains("--dtype", dtype, **EVERYTHING)
    assert plain.code == ours.code == 0, ours.err
    assert ours.losses() == plain.losses() and len(ours.losses()) == 9
    assert evals(ours) == evals(plain) and [i for i, _, _ in evals(ours)] == [4, 4, 8, 8, 9, 9]
    assert ours.metrics()["reference_loss_cpu"] == plain.metrics()["reference_loss_cpu"]
    assert ours.metrics()["reference_loss_device"] == plain.metrics()["reference_loss_device"]


def test_it_reports_as_every_workload_does(trains: Any, tmp_path: Path) -> None:
    ran = trains("--out", str(tmp_path / "out"), max_iters=6, eval_interval=3, eval_iters=1, warmup_iters=2)
    hello, iterations = ran.hello(), ran.of("iter")
    assert (hello["workload"], hello["framework"], hello["device"]) == ("lightning_gpt", "torch", "cpu")
    assert hello["versions"]["lightning"] == pl.__version__ and hello["tokens_per_iter"] == 32
    assert [event["phase"] for event in iterations] == ["warmup"] * 3 + ["measure"] * 3
    assert [event["i"] for event in iterations] == list(range(6)) and all(event["synced"] for event in iterations)
    edges = [(event["name"], event["edge"]) for event in ran.of("phase")]
    assert edges.count(("eval", "begin")) == edges.count(("eval", "end")) == 2
    assert edges[0] == ("setup", "begin") and sorted(e for e, edge in edges if edge == "begin") == sorted(
        e for e, edge in edges if edge == "end"
    )
    assert ran.events[-1] == ran.events[-1] | {"type": "bye", "ok": True}
    assert (tmp_path / "out" / "weights.npz").exists()
    for word in ("litlogger", "GPU available", "num_workers", "Trainer.fit"):
        assert word not in ran.out + ran.err
    assert "median" in ran.out


def test_a_loss_that_is_no_number_ends_it_where_that_is_asked(trains: Any) -> None:
    ran = trains(lr=1e30, grad_clip=0.0, max_iters=9, lr_warmup_iters=0, stop_on_nan=True)
    assert ran.code == 1 and "nan_loss" in ran.notes() and 1 < len(ran.losses()) < 9
    assert "not a number" in ran.err


def test_what_can_be_set_is_what_nanogpt_has() -> None:
    sampling = ("mode", "new_tokens", "temperature", "top_k", "num_samples", "start")
    apart = (*sampling, "checkpoint_interval", "eval_at_start")
    theirs = resolve(nanogpt.WORKLOAD)
    ours = resolve(job.WORKLOAD)
    assert ours["params"] == {key: value for key, value in theirs["params"].items() if key not in apart}
    configs = {
        name: {key: value for key, value in config.items() if key not in apart}
        for name, config in theirs["configs"].items()
    }
    assert ours["configs"] == configs


def test_under_rosetta_mps_is_refused_with_the_reason(trains: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch computes on MPS there, says the stand-in; Lightning goes by the processor's name."""
    device = job.Torch().open_device("cpu")
    there = type("Mps", (), {"kind": "mps"})()
    monkeypatch.setattr(job.Torch, "open_device", lambda self, label: there if label == "mps" else device)
    monkeypatch.setattr(MPSAccelerator, "is_available", staticmethod(lambda: False))
    monkeypatch.setattr(platform, "processor", lambda: "i386")
    ran = trains("--device", "mps")
    assert ran.code == errors.EX_UNAVAILABLE and 'here it is "i386"' in ran.err and "Rosetta" in ran.err
    assert "device_unavailable" in ran.notes()


# -- the callback ---------------------------------------------------------------------------------------------------


class Net(pl.LightningModule):
    """Two numbers, four batches of two in an epoch; the loss of each batch is its number."""

    def __init__(self, automatic: bool = True, every: int = 1) -> None:
        super().__init__()
        self.layer, self._every = torch.nn.Linear(1, 1), every
        self.automatic_optimization = automatic

    def training_step(self, batch: Any, i: int) -> torch.Tensor:
        loss = 0.0 * self.layer(batch[0]).sum() + batch[0].mean()
        if not self.automatic_optimization:
            self.manual_backward(loss)
            if (i + 1) % self._every == 0:
                self.optimizers().step()
        return loss

    def predict_step(self, batch: Any, i: int) -> torch.Tensor:
        return batch[0]

    def validation_step(self, batch: Any, i: int) -> None:
        self.log("val_loss", batch[0].mean())
        self.log("accuracy", torch.tensor(0.5))

    def test_step(self, batch: Any, i: int) -> None:
        self.log("test/loss", batch[0].mean())

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


ROWS = TensorDataset(torch.arange(8.0).reshape(8, 1))


def fit(
    callback: pl.Callback,
    folder: Path,
    net: pl.LightningModule | None = None,
    rows: int = 2,
    data: Any = None,
    **arguments: Any,
) -> pl.Trainer:
    settings = {"max_epochs": 2, "enable_checkpointing": False, "callbacks": [callback]} | arguments
    trainer = pl.Trainer(
        accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=folder, **settings,
    )  # fmt: skip
    trainer.fit(net or Net(), DataLoader(data or ROWS, batch_size=rows), DataLoader(ROWS, batch_size=4))
    return trainer


def reported(path: Path) -> Ran:
    return Ran(0, read(path), "", "")


def test_a_script_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    callback = mpsq_report.LightningCallback(Reporter(path), warmup_iters=2, workload="mine", seed=7)
    saves = ModelCheckpoint(tmp_path, every_n_train_steps=3)
    trainer = fit(callback, tmp_path, callbacks=[callback, saves], enable_checkpointing=True)
    trainer.test(Net(), DataLoader(ROWS, batch_size=4), verbose=False)
    ran, iterations = reported(path), reported(path).of("iter")
    behind_a_checkpoint = (3, 6)  # when its batch began to be fetched, nobody tells
    numbers = [i for i in range(8) if i not in behind_a_checkpoint]
    assert [event["i"] for event in iterations] == numbers and all(event["synced"] for event in iterations)
    assert ran.losses() == [([0.5, 2.5, 4.5, 6.5] * 2)[i] for i in numbers]
    assert [event["phase"] for event in iterations] == ["warmup"] * 3 + ["measure"] * 3
    hello = ran.hello()
    assert (hello["workload"], hello["seed"], hello["params"], hello["dtype"]) == ("mine", 7, 2, "fp32")
    assert (hello["planned_iters"], hello["samples_per_iter"], hello["optimizer"]) == (8, 2, "SGD")
    assert hello["versions"]["lightning"] == pl.__version__
    result = [(event["i"], event["split"], event["metrics"]) for event in ran.of("eval")]
    assert result == [
        (4, "val", {"loss": 3.5, "accuracy": 0.5}),
        (8, "val", {"loss": 3.5, "accuracy": 0.5}),
        (8, "test", {"loss": 3.5}),
    ]
    names = [event["name"] for event in ran.of("phase") if event["edge"] == "begin"]
    assert names.count("eval") == 3 and names.count("checkpoint") == 2 and names[0] == "setup"
    open_phases: list[str] = []
    for event in ran.of("phase"):
        assert event["edge"] == "begin" or open_phases.pop() == event["name"]
        if event["edge"] == "begin":
            open_phases.append(event["name"])
    assert not open_phases


def test_an_iteration_is_an_update(tmp_path: Path) -> None:
    """Of three batches: the fourth of an epoch makes a smaller one, which is left out; its number is not given anew."""
    path = tmp_path / "events.jsonl"
    fit(mpsq_report.LightningCallback(Reporter(path)), tmp_path, accumulate_grad_batches=3)
    ran = reported(path)
    assert [event["i"] for event in ran.of("iter")] == [0, 2]
    assert ran.losses() == pytest.approx([2.5, 2.5])  # Lightning divides each by three, and they are added up
    assert ran.hello()["samples_per_iter"] == 6


def test_one_whose_batch_is_smaller_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    fit(mpsq_report.LightningCallback(Reporter(path)), tmp_path, rows=3)
    ran = reported(path)
    assert [event["i"] for event in ran.of("iter")] == [0, 1, 3, 4] and ran.losses() == [1.0, 4.0] * 2


def test_one_that_a_validation_cuts_in_two_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    fit(mpsq_report.LightningCallback(Reporter(path)), tmp_path, accumulate_grad_batches=2, val_check_interval=3)
    assert [event["i"] for event in reported(path).of("iter")] == [0, 2]


@pytest.mark.parametrize(
    ("rows", "requested", "samples", "loss"),
    [
        (2, {"accumulate_grad_batches": 9}, 8, 3.5),
        (3, {"accumulate_grad_batches": 3}, 8, 3.833333),  # the mean of the three batches' means
        (2, {"accumulate_grad_batches": 4, "limit_train_batches": 3}, 6, 2.5),
        (9, {}, 8, 3.5),
    ],
)
def test_an_iteration_is_at_most_an_epoch(
    rows: int, requested: dict[str, Any], samples: int, loss: float, tmp_path: Path
) -> None:
    path = tmp_path / "events.jsonl"
    fit(mpsq_report.LightningCallback(Reporter(path)), tmp_path, rows=rows, **requested)
    ran = reported(path)
    assert [event["i"] for event in ran.of("iter")] == [0, 1] and ran.hello()["samples_per_iter"] == samples
    assert ran.losses() == pytest.approx([loss] * 2)


class Stream(IterableDataset[Any]):
    """Seven examples, whose number nobody is told."""

    def __iter__(self) -> Iterator[tuple[torch.Tensor]]:
        return ((torch.tensor([float(n)]),) for n in range(7))


def test_of_a_stream_each_epochs_last_is_left_out_and_nothing_is_planned(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    fit(mpsq_report.LightningCallback(Reporter(path)), tmp_path, data=Stream())
    ran = reported(path)
    assert [event["i"] for event in ran.of("iter")] == [0, 1, 2, 4, 5, 6] and "planned_iters" not in ran.hello()


class Skips(Net):
    """It goes by the second batch of an epoch."""

    def training_step(self, batch: Any, i: int) -> Any:
        return None if i == 1 else super().training_step(batch, i)


def test_a_step_that_is_skipped_is_no_iteration(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    fit(mpsq_report.LightningCallback(Reporter(path)), tmp_path, Skips())
    assert [event["i"] for event in reported(path).of("iter")] == [0, 2, 3, 4, 6, 7]


def test_a_checkpoint_behind_an_epoch_is_one_and_a_second_fit_is_planned_on(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    callback = mpsq_report.LightningCallback(Reporter(path))
    for fold in ("a", "b"):
        saves = ModelCheckpoint(tmp_path / fold, save_on_train_epoch_end=True)
        fit(callback, tmp_path, max_epochs=1, callbacks=[callback, saves], enable_checkpointing=True)
    ran = reported(path)
    assert [event["i"] for event in ran.of("iter")] == list(range(8)) and ran.hello()["planned_iters"] == 8
    assert [event["name"] for event in ran.of("phase")].count("checkpoint") == 4  # two begin, and two end


def test_a_prediction_is_no_setup(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    callback = mpsq_report.LightningCallback(Reporter(path))
    trainer = pl.Trainer(
        accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False, callbacks=[callback]
    )
    trainer.predict(Net(), DataLoader(ROWS, batch_size=4))
    edges = [(event["name"], event["edge"]) for event in reported(path).of("phase")]
    assert edges == [("setup", "begin"), ("setup", "end"), ("eval", "begin"), ("eval", "end")]
    assert reported(path).hello()["workload"] == "Net"


def test_a_module_that_steps_by_itself_every_third_batch(tmp_path: Path) -> None:
    """The fourth of an epoch and the first two of the next one are a step, which the end of the epoch cuts in two."""
    path = tmp_path / "events.jsonl"
    fit(mpsq_report.LightningCallback(Reporter(path)), tmp_path, Net(automatic=False, every=3), limit_val_batches=0)
    ran = reported(path)
    assert [event["i"] for event in ran.of("iter")] == [0] and ran.losses() == [2.5]
    assert ran.hello()["samples_per_iter"] == 6 and "planned_iters" not in ran.hello()


def test_a_module_that_steps_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    fit(mpsq_report.LightningCallback(Reporter(path)), tmp_path, Net(automatic=False), max_epochs=1)
    assert reported(path).losses() == [0.5, 2.5, 4.5, 6.5]


def test_what_goes_wrong_in_it_ends_the_reports_and_not_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "events.jsonl"
    callback = mpsq_report.LightningCallback(Reporter(path))
    monkeypatch.setattr(callback, "_loss", lambda divided_by: 1 / 0)
    assert fit(callback, tmp_path).global_step == 8
    assert callback.off and not reported(path).of("iter")
    assert capsys.readouterr().err.count("ZeroDivisionError") == 1


def test_without_a_listener_it_is_silent_and_an_error_in_training_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MPSQ_EVENTS", raising=False)
    silent = mpsq_report.LightningCallback()
    assert fit(silent, tmp_path).global_step == 8 and silent.watch is None
    path, net = tmp_path / "events.jsonl", Net()
    monkeypatch.setattr(net, "validation_step", lambda *batch: torch.zeros(1, device="meta").item())
    with pytest.raises(RuntimeError):
        fit(mpsq_report.LightningCallback(Reporter(path)), tmp_path, net, num_sanity_val_steps=0)
    assert "error" in reported(path).notes() and len(reported(path).losses()) == 4


def test_a_mac_whose_gpu_is_not_used_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, result = torch.device("cpu"), mpsq_report_lightning.mps_unused
    assert result(cpu) is None
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(platform, "processor", lambda: "i386")
    assert "Rosetta" in str(result(cpu)) and result(torch.device("mps")) is None
    monkeypatch.setattr(platform, "processor", lambda: "arm")
    assert result(cpu) is None
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert "MPS is there" in str(result(cpu))


def test_mpsq_report_imports_neither_torch_nor_lightning() -> None:
    code = "import sys, mpsq_report; sys.exit(bool({'torch', 'lightning'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], cwd=JOBS, check=False).returncode == 0
    assert importlib.import_module("mpsq_report").LightningCallback is mpsq_report_lightning.LightningCallback


def test_a_fused_optimizer_that_ignores_the_scaler_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a stand-in for torch before 2.13 on mps."""
    monkeypatch.setattr(mpsq_report_lightning, "fused_trouble", lambda kind, dtype: f"wrong on {kind} in {dtype}")
    path = tmp_path / "events.jsonl"
    for fused in (False, True):
        net, scaler = Net(), torch.amp.GradScaler("cpu")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, fused=fused)
        monkeypatch.setattr(net, "configure_optimizers", lambda optimizer=optimizer: optimizer)
        scaled = MixedPrecision("16-mixed", "cpu", scaler)
        fit(mpsq_report.LightningCallback(Reporter(path)), tmp_path, net, plugins=[scaled], max_epochs=1)
    notes = [one for one in reported(path).of("note") if one["kind"] == "wrong_loss"]
    assert [one["text"] for one in notes] == ["wrong on cpu in fp16"]
