"""glue, and the callback that anybody may give to a Trainer: one training each, and what came of it."""

from __future__ import annotations

import importlib
import json
import math
import os
import subprocess
import sys
import warnings
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.jobs.conftest import JOBS, Ran, read

pytestmark = pytest.mark.slow

ITERS = 180
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when it is imported


def glue(
    folder: Path, capsys: pytest.CaptureFixture[str] | None, *words: str, env: dict[str, str] | None = None
) -> Ran:
    """The workload in this process, on the CPU."""
    import torch

    from harness import external_trainer

    threads = torch.get_num_threads()
    job: Any = importlib.import_module("glue_torch")
    events = folder / "events.jsonl"
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setenv("MPSQ_EVENTS", str(events))
        patch.delenv("MPSQ_T0", raising=False)
        for name, value in (env or {}).items():
            patch.setenv(name, value)
        argv = ["--device", "cpu", "--set", "threads=1", *words]  # two threads of tiny work wait for each other
        code = external_trainer.main(job.WORKLOAD, job.Glue(), job.build, job.train, argv)
        torch.set_num_threads(threads)
    captured = capsys.readouterr() if capsys else SimpleNamespace(out="", err="")
    return Ran(code, read(events), captured.out, captured.err)


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return glue(tmp_path_factory.mktemp("toy"), None, "--config", "toy", "--set", "eval_interval=90")


def test_it_learns_to_beat_the_majority(toy: Ran) -> None:
    assert toy.code == 0 and toy.of("bye")[0]["ok"]
    last = toy.of("eval")[-1]
    majority = toy.metrics()["majority_accuracy"]
    assert 0.5 <= majority < 0.8 and last["metrics"]["accuracy"] > majority + 0.05
    assert last["metrics"]["f1"] > 2 * majority / (1 + majority)  # of whoever calls all of them alike
    assert last["metrics"]["loss"] < 0.6 and last["split"] == "val" and last["dur_s"] > 0


def test_every_iteration_is_told_once_with_its_loss(toy: Ran) -> None:
    iterations = toy.of("iter")
    assert [one["i"] for one in iterations] == list(range(ITERS))
    assert all(one["synced"] and one["dur_s"] > 0 and 0 < one["loss"] < 3 for one in iterations)
    assert [one["phase"] for one in iterations] == ["warmup"] * 6 + ["measure"] * (ITERS - 6)
    hello = toy.hello()
    assert (hello["planned_iters"], hello["samples_per_iter"], hello["params"]) == (ITERS, 16, 43_138)
    assert {"torch", "transformers", "accelerate"} <= hello["versions"].keys()
    assert "wrong_loss" not in toy.notes()
    assert toy.metrics()["reference_loss_device"] == toy.metrics()["reference_loss_cpu"]


def test_evaluations_are_in_no_iteration(toy: Ran) -> None:
    """Phases nest, and while an evaluation lasts no iteration is told."""
    assert [one["i"] for one in toy.of("eval")] == [90, ITERS]
    open_phases: list[str] = []
    for event in toy.events:
        if event["type"] == "phase" and event["edge"] == "begin":
            open_phases.append(event["name"])
        elif event["type"] == "phase":
            assert open_phases.pop() == event["name"]
        elif event["type"] == "iter":
            assert open_phases == [event["phase"]]
        elif event["type"] == "eval":
            assert "eval" not in open_phases  # told when it is over
    assert open_phases == []
    begun = [event["t"] for event in toy.events]
    assert all(a <= b for a, b in pairwise(begun[1:]))
    spent = sum(one["dur_s"] for one in toy.of("iter"))
    edges = [e["t"] for e in toy.events if e["type"] == "phase" and e["name"] in ("warmup", "measure")]
    assert spent < max(edges) - min(edges)


def test_flops_are_those_of_bert_base() -> None:
    job: Any = importlib.import_module("glue_torch")
    shape = SimpleNamespace(hidden_size=768, num_hidden_layers=12, intermediate_size=3072, num_labels=2)
    weights = 12 * (4 * 768**2 + 2 * 768 * 3072)  # in the blocks' matrices, a multiplication for each token
    attention = 12 * 2 * 128 * 768
    assert job.flops(shape, 32, 128) == 6.0 * 32 * (128 * (weights + attention) + 768 * 768 + 2 * 768)


def test_measures_are_those_of_the_definitions() -> None:
    import numpy as np

    glue: Any = importlib.import_module("harness.data.glue")
    measures = glue.measures(glue.TASKS["mrpc"])
    logits = np.array([[0.0, 1.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    labels = np.array([1, 0, 1, 0, 1])  # 2 true positives, 1 false positive, 1 false negative
    result = measures(SimpleNamespace(predictions=logits, label_ids=labels))
    expected = {"accuracy": 3 / 5, "f1": 4 / 6, "combined_score": 19 / 30}
    assert result == pytest.approx(expected)
    nothing = measures(SimpleNamespace(predictions=-logits[:1], label_ids=np.array([0])))
    assert nothing == {"accuracy": 1.0, "f1": 0.0, "combined_score": 0.5}


def test_correlations_are_those_of_scipy() -> None:
    import numpy as np
    from scipy import stats

    glue: Any = importlib.import_module("harness.data.glue")
    drawn = np.random.default_rng(1)
    scores = drawn.integers(0, 11, 60) / 2  # with ties, as people's scores have
    result = (scores + drawn.standard_normal(60)).astype(np.float32)
    measures = glue.measures(glue.TASKS["stsb"])(SimpleNamespace(predictions=result[:, None], label_ids=scores))
    pearson, spearman = stats.pearsonr(result, scores)[0], stats.spearmanr(result, scores)[0]
    assert measures == pytest.approx(
        {"pearson": pearson, "spearmanr": spearman, "combined_score": (pearson + spearman) / 2}
    )
    logits, labels = drawn.standard_normal((60, 2)), drawn.integers(0, 2, 60)
    answers = logits.argmax(-1)
    (tn, fp), (fn, tp) = ([int(np.sum((labels == a) & (answers == b))) for b in (0, 1)] for a in (0, 1))
    matthews = (tp * tn - fp * fn) / math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    measured = glue.measures(glue.TASKS["cola"])(SimpleNamespace(predictions=logits, label_ids=labels))
    assert measured == {"matthews_correlation": pytest.approx(matthews)}
    constant = SimpleNamespace(predictions=np.zeros((60, 2)), label_ids=labels)
    assert glue.measures(glue.TASKS["cola"])(constant) == {"matthews_correlation": 0.0}


WORDS = ("a farmer sold the boat", "the nurse hid a map", "our neighbour painted the house", "two students lost it")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A stand-in for the hub: data sets with the columns and labels of GLUE's, and a few examples."""
    datasets: Any = importlib.import_module("datasets")
    glue: Any = importlib.import_module("harness.data.glue")

    def load(path: str, name: str) -> Any:
        assert path == "nyu-mll/glue"
        task = glue.TASKS[name]
        labels: Any = [n % task.labels for n in range(24)] if task.labels > 1 else [n % 11 / 2 for n in range(24)]
        rows = {column: [f"{WORDS[(n + at) % 4]} {n}" for n in range(24)] for at, column in enumerate(task.columns)}
        made = datasets.Dataset.from_dict({**rows, "label": labels, "idx": list(range(24))})
        return datasets.DatasetDict({split: made for split in ("train", task.held_out, *task.others.values())})

    monkeypatch.setattr(datasets, "load_dataset", load)
    return glue


@pytest.mark.parametrize("name", ["cola", "mnli", "stsb"])
def test_a_task_by_its_name(name: str, hub: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One of single sentences, one with three labels and two validation sets, one of scores."""
    few = ("--config", "toy", "--set", f"task_name={name}", "--set", "per_device_train_batch_size=8")
    ran = glue(tmp_path, capsys, *few, "--set", "max_seq_length=16", "--set", "max_steps=3")
    assert ran.code == 0, ran.err
    settings = ran.hello()["settings"]
    assert (settings["data"], settings["batch_size"], settings["max_length"]) == (name, 8, 16)
    assert "wrong_loss" not in ran.notes()
    evaluations = {one["split"]: one["metrics"].keys() for one in ran.of("eval")}
    metrics = {"loss", *hub.TASKS[name].metrics} | ({"combined_score"} if name == "stsb" else set())
    assert evaluations == {"val": metrics} | ({"mismatched": metrics} if name == "mnli" else {})
    assert ("majority_accuracy" in ran.metrics()) == (name != "stsb")
    (reference,) = [one for one in ran.of("metric") if one["name"] == "reference_loss_cpu"]
    assert reference["unit"] == ("score^2" if name == "stsb" else "nats")
    assert f"{name}: 24 {'sentences' if name == 'cola' else 'pairs'}, 24 held out" in ran.out
    about = {
        "cola": "50.0 % of them with the most frequent of 2 labels",
        "mnli": "33.3 %",
        "stsb": "scores from 0 to 5",
    }
    assert about[name] in ran.out


def test_all_nine_tasks_have_their_columns_and_labels(hub: Any) -> None:
    pairs: Any = importlib.import_module("harness.data.pairs")
    job: Any = importlib.import_module("glue_torch")
    assert set(job.WORKLOAD["params"]["data"]["path_or"]) == {*hub.TASKS, "paraphrases"} and len(hub.TASKS) == 9
    for name, task in hub.TASKS.items():
        result = pairs.load(name, 0, 0, 1)
        assert (result.name, len(result.train), len(result.val)) == (name, 24, 24)
        assert (result.train[0].second is None) == (len(task.columns) == 1)
        kinds = {type(pair.label) for pair in result.train}
        assert kinds == ({float} if name == "stsb" else {int})
        assert result.train[1].label == (0.5 if name == "stsb" else 1)


def test_data_that_are_not_here_have_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ran = glue(tmp_path, capsys, "--config", "toy", "--set", "data=stsb", env={"HF_HOME": str(tmp_path)})
    assert ran.code == 1 and "Hugging Face hub" in ran.err
    assert "data=paraphrases" in ran.err and "Traceback" not in ran.err


def test_the_installed_transformers_needs_no_use_mps_device() -> None:
    """As the guide says; and it has no such flag, so that scripts which give it end."""
    import transformers

    parser = transformers.HfArgumentParser(transformers.TrainingArguments)
    (arguments,) = parser.parse_args_into_dataclasses(["--output_dir", "x", "--report_to", "none"])
    assert arguments.device.type in ("cpu", "cuda", "mps")
    for flag in ("--use_mps_device", "--overwrite_output_dir"):
        with pytest.raises(ValueError, match="arguments are not used by the HfArgumentParser"):
            parser.parse_args_into_dataclasses(["--output_dir", "x", flag])


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (("--set", "use_mps_device=true"), 'no key "use_mps_device"', "write --device mps"),
        (("--set", "no_cuda=true"), 'no key "no_cuda"', "write --device cpu"),
        (("--set", "data=nowhere.csv"), "nowhere.csv cannot be read", "paraphrases"),
        (("--set", "data=~no-such-user/a.csv"), "a user that does not exist", "whole path"),
        (("--set", "data=sst3"), 'no data "sst3"', "sst2, stsb"),
        (("--set", "n_head=3"), "n_head=3", "768 has 12"),
        (("--set", "batch_size=0"), "batch_size=0", ""),
        (("--set", "lr=-1"), "lr=-1.0: it cannot be less than 0", ""),
        (("--set", "max_length=1"), "max_length=1: it cannot be less than 8", ""),
        (("--set", "eval_interval=-1"), "eval_interval=-1", ""),
        (("--set", "batch_size=961"), "961 pairs is more than an epoch, 960 pairs", "train_pairs"),
        (("--set", "grad_accum=99"), "1,584 pairs is more than an epoch", "grad_accum"),
        (("--set", "optim=adam"), "the Trainer refuses", ""),
        (("--set", "optim=adamw_bnb_8bit"), "You need to install `bitsandbytes`", "optim=adamw_torch_fused"),
        (("--set", "max_iters=1", "--out", f"{__file__}/out"), "cannot be made: Not a directory", "another --out"),
        (("--set", "workers=-1"), "workers=-1: it cannot be less than 0", ""),
        (("--resume", "x"), "does not resume from a checkpoint", ""),
        (("--set", "model=nowhere/nothing"), 'the model "nowhere/nothing" is not available', "model=random"),
        (("--set", f"model={JOBS}"), "holds no config.json", "model=random"),
        (
            ("--set", "model=/no/such/model"),
            '"/no/such/model" is not available: there is no such folder',
            "model=random",
        ),
    ],
)
def test_what_is_refused(
    words: tuple[str, ...], message: str, hint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = glue(tmp_path, capsys, "--config", "toy", *words)
    assert ran.code in (1, 2) and message in ran.err and hint in ran.err and "Traceback" not in ran.err


@pytest.mark.parametrize(
    ("device", "message"), [("mps", "cannot train together on mps"), ("cpu", "only --gpus starts several processes")]
)
def test_it_trains_in_one_process(
    device: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = glue(tmp_path, capsys, "--device", device, "--config", "toy", env={"WORLD_SIZE": "2"})
    assert ran.code == 2 and "WORLD_SIZE=2" in ran.err and message in ran.err
    assert glue(tmp_path, capsys, "--config", "toy", "--set", "max_iters=1", env={"WORLD_SIZE": "1"}).code == 0


def test_pairs_of_a_file_and_a_saved_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pairs: Any = importlib.import_module("harness.data.pairs")
    made = pairs.generated(60, 1, 7).train
    rows = [{"sentence1": one.first, "sentence2": one.second, "label": one.label} for one in made]
    file = tmp_path / "mine.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    few = ("--config", "toy", "--set", "epochs=1", "--set", f"data={file}", "--dtype", "bf16")
    ran = glue(tmp_path, capsys, *few, "--set", "grad_accum=2", "--out", str(tmp_path / "out"))
    assert ran.code == 0, ran.err
    assert "jsonl: 54 pairs, 6 held" in ran.out and ran.hello()["planned_iters"] == 2
    assert len(ran.of("iter")) == 1  # 4 batches, 2 in an iteration; of the second's one has 6 pairs: it is left out
    assert all(0.3 < loss < 1.5 for loss in ran.losses())  # means, not sums, over the two batches
    again = glue(tmp_path, capsys, *few, "--set", "max_iters=1", "--set", f"model={tmp_path / 'out'}")
    assert again.code == 0 and again.hello()["params"] == ran.hello()["params"]
    (tmp_path / "out" / "tokenizer.json").unlink()
    (tmp_path / "out" / "tokenizer_config.json").unlink()
    bare = glue(tmp_path, capsys, *few, "--set", f"model={tmp_path / 'out'}")
    assert bare.code == 1 and "has no tokenizer" in bare.err


@pytest.mark.parametrize(("train_pairs", "grad_accum", "numbers"), [(72, 1, [0, 1, 2, 3, 5, 6]), (80, 2, [0, 1, 3, 4])])
def test_the_short_iteration_at_the_end_of_an_epoch_is_left_out(
    train_pairs: int, grad_accum: int, numbers: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = {"train_pairs": train_pairs, "grad_accum": grad_accum, "max_iters": numbers[-1] + 1, "eval_pairs": 8}
    ran = glue(tmp_path, capsys, "--config", "toy", *(w for k, v in few.items() for w in ("--set", f"{k}={v}")))
    assert ran.code == 0 and [one["i"] for one in ran.of("iter")] == numbers
    assert all(0.3 < one["loss"] < 1.2 for one in ran.of("iter"))  # none has the short one's added to it


def test_the_end_is_evaluated_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whether the Trainer itself does so, as newer ones do where an interval is set, or not."""
    few = {"train_pairs": 80, "eval_pairs": 8, "max_iters": 4}
    for interval, steps in ((3, [3, 4]), (2, [2, 4]), (0, [4])):
        words = {**few, "eval_interval": interval}.items()
        (tmp_path / "events.jsonl").unlink(missing_ok=True)
        ran = glue(tmp_path, capsys, "--config", "toy", *(w for k, v in words for w in ("--set", f"{k}={v}")))
        assert ran.code == 0 and [one["i"] for one in ran.of("eval")] == steps


def test_files_that_are_no_pairs_are_named(tmp_path: Path) -> None:
    errors: Any = importlib.import_module("harness.errors")
    pairs: Any = importlib.import_module("harness.data.pairs")
    for name, text, message in (
        ("a.csv", "sentence1,label\nx,1\n", "record 1: it lacks sentence2, it has sentence1, label"),
        ("b.csv", "sentence1,sentence2,label\nx,y,2\n", 'label "2" is not 0 or 1'),
        ("c.jsonl", "{\n", "not one JSON object a line"),
        ("d.jsonl", '{"sentence1": "x", "sentence2": "y", "label": 1}\n', "has 1 pairs"),
        ("e.jsonl", "[1]\n", "record 1 is not a JSON object"),
        ("g.csv", "sentence1,sentence2,label\n" + "x,y,1\n" * 20, "all pairs of .*g.csv have the label 1"),
        ("h.csv", "sentence1,sentence2,label\n" + "x,y,1,z\n" * 20, "more values than the first line has columns"),
        ("i.jsonl", '{"sentence1": "", "sentence2": "y", "label": 1}\n' * 20, "record 1: a sentence is empty"),
        ("f.csv", 'sentence1,sentence2,label\nx,"y,1\n' + "z,z,0\n" * 30_000, "is not a csv file"),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(errors.UsageError, match=message.replace("(", r"\(")):
            pairs.of_file(str(tmp_path / name), 1)
    (tmp_path / "j.csv").write_bytes("sentence1,sentence2,label\n".encode("utf-16"))
    with pytest.raises(errors.UsageError, match="is not UTF-8"):
        pairs.of_file(str(tmp_path / "j.csv"), 1)


def test_a_spreadsheet_leaves_a_mark_and_empty_lines(tmp_path: Path) -> None:
    pairs: Any = importlib.import_module("harness.data.pairs")
    lines = "".join(f'"one, {n}",two,{n % 2}\r\n' for n in range(20))
    (tmp_path / "a.csv").write_text(f"\ufeffsentence1,sentence2,label\r\n{lines},,\r\n\r\n", encoding="utf-8")
    result = pairs.of_file(str(tmp_path / "a.csv"), 1)
    assert len(result.train) == 18 and len(result.val) == 2 and result.train[0].first.startswith("one, ")


def test_a_text_of_a_json_line_may_hold_any_character(tmp_path: Path) -> None:
    pairs: Any = importlib.import_module("harness.data.pairs")
    row = {"sentence1": "one\u2028two\x85", "sentence2": "y"}
    lines = (json.dumps({**row, "label": n % 2}, ensure_ascii=False) + "\n" for n in range(20))
    (tmp_path / "a.jsonl").write_text("".join(lines), encoding="utf-8")
    result = pairs.of_file(str(tmp_path / "a.jsonl"), 1)
    assert len(result.train) == 18 and result.train[0].first == row["sentence1"]


def test_generated_pairs_are_the_same_for_a_seed_and_held_out_facts_are_new() -> None:
    pairs: Any = importlib.import_module("harness.data.pairs")
    a, b = pairs.generated(500, 100, 3), pairs.generated(500, 100, 3)
    assert a == b and a != pairs.generated(500, 100, 4)
    assert not {pair.first for pair in a.train} & {pair.first for pair in a.val}
    assert 0.6 < sum(pair.label for pair in a.train) / 500 < 0.76


USERS_OWN = """
import os, sys
sys.path.insert(0, {jobs!r})
import glue_torch as g, transformers
from types import SimpleNamespace
from harness.data.pairs import generated
from mpsq_report import TrainerCallback

class Broken(TrainerCallback):
    def evaluated(self, *words):
        raise RuntimeError("no such luck")

def train(callback, folder, **more):
    pairs = generated(96, 40, 1)
    shape = SimpleNamespace(model="random", n_layer=1, n_head=2, n_embd=16, vocab_size=300, max_length=32)
    tokenizer, model = g.classifier_of(SimpleNamespace(settings=shape, seed=1), pairs)
    rows, held = (g.rows_of(part, tokenizer, 32) for part in (pairs.train, pairs.val))
    args = transformers.TrainingArguments(
        output_dir=folder, per_device_train_batch_size=8, num_train_epochs=2, eval_strategy="epoch", save_steps=8,
        use_cpu=True, disable_tqdm=True, report_to="none", **more)
    callbacks = [callback] if callback else []
    trainer = transformers.Trainer(model=model, args=args, train_dataset=rows, eval_dataset=held, callbacks=callbacks)
    trainer.train()
    trainer.evaluate()
    return trainer.state.log_history

every = train(TrainerCallback(warmup_iters=2), sys.argv[1], logging_steps=1)
print("every", [log["loss"] for log in every if "loss" in log])
os.environ["MPSQ_EVENTS"] = sys.argv[2]
train(Broken(), sys.argv[1], logging_steps=5)
del os.environ["MPSQ_EVENTS"]
silent = TrainerCallback()
train(silent, sys.argv[1], logging_steps=1)
print("silent", silent.watch)
"""


@pytest.fixture(scope="module")
def own_trainer(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A program with Trainers of its own: one that logs each step, one whose callback fails, one without a listener."""
    folder = tmp_path_factory.mktemp("own")
    program = folder / "train.py"
    program.write_text(USERS_OWN.format(jobs=str(JOBS)))
    env = {**os.environ, "MPSQ_EVENTS": str(folder / "every.jsonl"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(program), str(folder / "saved"), str(folder / "broken.jsonl")]
    return folder, subprocess.run(command, env=env, capture_output=True, text=True, check=False, cwd=folder)


def test_the_callback_tells_a_trainer_of_ones_own(own_trainer: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, done = own_trainer
    assert done.returncode == 0, done.stderr
    ran = Ran(0, read(folder / "every.jsonl"), "", "")
    logged = next(json.loads(line[6:]) for line in done.stdout.splitlines() if line.startswith("every "))
    assert ran.losses() == pytest.approx(logged) and len(logged) == 24
    assert [event["phase"] for event in ran.of("iter")] == ["warmup"] * 3 + ["measure"] * 21
    assert all(event["synced"] for event in ran.of("iter"))
    assert [(event["i"], event["split"]) for event in ran.of("eval")] == [(12, "val"), (24, "val"), (24, "val")]
    hello = ran.hello()
    assert (hello["workload"], hello["device"], hello["dtype"]) == ("BertForSequenceClassification", "cpu", "fp32")
    assert (hello["planned_iters"], hello["samples_per_iter"], hello["compile"]) == (24, 8, False)
    phases = [(e["name"], e["edge"]) for e in ran.of("phase")]
    assert phases[0] == ("setup", "begin") and phases.count(("eval", "begin")) == 3
    assert phases.count(("checkpoint", "begin")) == phases.count(("checkpoint", "end")) == 3
    for event in ran.of("eval"):
        assert event["metrics"].keys() == {"loss"} and event["dur_s"] > 0


def test_it_never_raises_into_the_training_and_is_silent_without_a_listener(
    own_trainer: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, done = own_trainer
    broken = Ran(0, read(folder / "broken.jsonl"), "", "")
    assert done.stderr.count("Broken.on_evaluate: ") == 1
    assert len(broken.of("iter")) == 12 and all("loss" not in one for one in broken.of("iter"))
    means = [(event["i"], event["name"]) for event in broken.of("metric")]
    assert means == [(4, "loss_mean"), (9, "loss_mean")]
    assert "silent None" in done.stdout
