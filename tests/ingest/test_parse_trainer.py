"""Logs of a Hugging Face Trainer become events: real logs of transformers 5.23 whole, then each property by itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from queue_runner.events import Eval, Hello, Iter, Metric, Note
from queue_runner.ingest import parsers
from tests.ingest.test_parsers import of, shown

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "parsers" / "trainer"
LOGS = sorted(GOLDEN.glob("*.log"))
V4 = b"""***** Running training *****
  Num Epochs = 3
  Total optimization steps = 345
{'loss': 0.6234, 'grad_norm': 3.9, 'learning_rate': 1.4e-05, 'epoch': 0.87}
{'eval_loss': 0.41, 'eval_accuracy': 0.82, 'eval_runtime': 3.2, 'eval_samples_per_second': 127.5, 'epoch': 1.0}
{'train_runtime': 100.0, 'train_steps_per_second': 3.45, 'train_loss': 0.5, 'epoch': 3.0}
"""


@pytest.mark.parametrize("path", LOGS, ids=lambda p: p.stem)
def test_golden_logs_read_as_expected(path: Path) -> None:
    data = path.read_bytes()
    found = shown(parsers.read_log("trainer", data))
    assert found == json.loads(path.with_suffix(".expected.json").read_text())
    assert parsers.sniff(data.decode()) == "trainer"
    # cut anywhere, with the state stored between
    data, at, events, state = data + b"\n", 0, [], None
    for end in range(997, len(data) + 997, 997):
        reader = parsers.load("trainer")
        if state is not None:
            reader.restore(state)
        some, used, _ = reader.read_chunk(data[at:end], at)
        at, events, state = at + used, events + some, reader.state()
    assert shown(events) == found


def test_single_iterations_are_never_made_up() -> None:
    for path in LOGS:
        events = parsers.read_log("trainer", path.read_bytes())
        assert of(Iter, events) == []
        (note,) = of(Note, events)
        assert note.kind == "no_iteration_times" and "ms a step" in note.text
        means = {m.name: m for m in of(Metric, events)}
        assert means["mean_step"].value == pytest.approx(means["train_runtime"].value / 60, rel=1e-3)


def test_without_a_header_the_last_dict_tells_the_steps() -> None:
    for path in LOGS:
        events = parsers.read_log("trainer", path.read_bytes())
        assert [m.i for m in of(Metric, events) if m.name == "loss_mean"] == [9, 19, 29, 39, 49, 59]
        assert [(e.i, e.split) for e in of(Eval, events)] == [(30, "val"), (60, "val"), (60, "val")]
        assert all(e.metrics.keys() == {"loss", "accuracy", "f1"} and e.dur_s for e in of(Eval, events))
    whole = of(Hello, parsers.read_log("trainer", (GOLDEN / "v5_both.log").read_bytes()))[0]
    assert (whole.planned_iters, whole.params, whole.samples_per_iter) == (60, 43_138, 16.0)


def test_the_numbers_of_transformers_4() -> None:
    events = parsers.read_log("trainer", V4, {"device": "mps"})
    assert [(m.name, m.value, m.i) for m in of(Metric, events)] == [
        ("loss_mean", 0.6234, 99), ("train_runtime", 100.0, None), ("mean_step", pytest.approx(1 / 3.45), None),
        ("train_loss", 0.5, None),
    ]  # fmt: skip
    assert [(e.i, e.metrics, e.dur_s) for e in of(Eval, events)] == [(115, {"loss": 0.41, "accuracy": 0.82}, 3.2)]
    assert of(Hello, events)[0].device == "mps"


def test_transformers_4_divides_by_the_steps_that_were_planned_and_mpsq_by_those_that_were_made() -> None:
    early = V4.replace(b"'epoch': 3.0}", b"'epoch': 1.0}")
    resumed = V4.replace(b"{'loss'", b"  Continuing training from global step 230\n{'loss'", 1)
    quiet = early[early.index(b"{'loss") :].replace(b"{'train", b" 33%|###| 115/345 [01:40<03:20]\n{'train")
    for log, steps in ((early, 115), (resumed, 115), (quiet, 115), (V4, 345)):
        means = [m.value for m in of(Metric, parsers.read_log("trainer", log)) if m.name == "mean_step"]
        assert means == pytest.approx([100.0 / steps], rel=1e-3)
    assert [e.i for e in of(Eval, parsers.read_log("trainer", quiet))] == [115]


@pytest.mark.parametrize(
    ("steps", "epochs", "epoch", "made"),
    [
        (10, 1, "0.08696", 10), (10, 1, "0.09", 10), (58, 1, "0.5043", 58), (58, 1, "0.5", 58), (100, 1, "0.87", 100),
        (200, 2, "1.739", 200), (200, 2, "1.74", 200), (58, 1, "0.2609", 30), (58, 1, "0.26", 30),
        (345, 3, "3.0", 345), (345, 3, "2.0", 230),
    ],
)  # fmt: skip
@pytest.mark.parametrize("printed", [True, False])
def test_an_epoch_begun_counts_as_its_part(steps: int, epochs: int, epoch: str, made: int, printed: bool) -> None:
    """115 steps an epoch, a second each: planned by max_steps or by a fraction of an epoch, and stopped early."""
    log = f"""***** Running Evaluation *****
  Num examples = 100
***** Running training *****
  Num examples = 3,668
  Num Epochs = {epochs}
  Num update steps per epoch = 115
  Total train batch size (w. parallel, distributed & accumulation) = 32
  Gradient Accumulation steps = 2
  Total optimization steps = {steps}
***** Running Evaluation *****
  Num examples = 100
{{'loss': '0.6', 'epoch': '{epoch}'}}
{{'train_runtime': '{made}', 'train_steps_per_second': '1', 'train_loss': '0.5', 'epoch': '{epoch}'}}
"""
    if not printed:
        log = log.replace("  Num update steps per epoch = 115\n", "")
    metrics = of(Metric, parsers.read_log("trainer", log.encode()))
    assert [m.i for m in metrics if m.name == "loss_mean"] == [made - 1]
    assert [m.value for m in metrics if m.name == "mean_step"] == [1.0]


@pytest.mark.parametrize(("made", "planned"), [(60, 60), (30, 60)])
def test_a_stream_has_no_number_of_epochs(made: int, planned: int) -> None:
    log = f"""***** Running training *****
  Num examples = 960
  Num Epochs = 9,223,372,036,854,775,807
  Num update steps per epoch = {planned}
  Total optimization steps = {planned}
{{'loss': '0.6', 'epoch': '0.25'}}
{{'train_runtime': '24', 'train_steps_per_second': '2.5', 'train_loss': '0.6', 'epoch': '{made / planned}'}}
"""
    metrics = of(Metric, parsers.read_log("trainer", log.encode()))
    assert [m.i for m in metrics if m.name == "loss_mean"] == [14]
    assert [m.value for m in metrics if m.name == "mean_step"] == [24 / made]
    repeated = log.replace("'0.25'", "'2'").replace(f"'{made / planned}'", "'4'")
    assert [m.i for m in of(Metric, parsers.read_log("trainer", repeated.encode())) if m.name == "loss_mean"] == [29]


@pytest.mark.parametrize("header", [True, False])
def test_a_second_training_in_a_log_is_numbered_on(header: bool) -> None:
    other = V4.replace(b"= 3\n", b"= 2\n").replace(b"345", b"40").replace(b"3.45", b"0.4").replace(b"3.0}", b"2.0}")
    one, two = V4 if header else V4[V4.index(b"{'loss") :], other if header else other[other.index(b"{'loss") :]
    events = parsers.read_log("trainer", one + two)
    assert [m.i for m in of(Metric, events) if m.name == "loss_mean"] == [99, 345 + 16]
    assert [e.i for e in of(Eval, events)] == [115, 345 + 20]
    assert [h.planned_iters for h in of(Hello, events)] == ([345, 385] if header else [None, None])
    after = b"***** eval metrics *****\n  eval_loss = 0.5\n  eval_runtime = 1.0\n  eval_steps_per_second = 9\n"
    assert of(Eval, parsers.read_log("trainer", one + two + after))[-1].i == 385


def test_one_that_goes_on_from_a_checkpoint_has_the_numbers_to_come() -> None:
    first = V4.replace(b"'epoch': 3.0}", b"'epoch': 2.0}")  # ended there
    again = V4.replace(b"{'loss'", b"  Continuing training from global step 230\n{'loss'", 1).replace(b"0.87", b"2.5")
    events = parsers.read_log("trainer", first + again.replace(b"'epoch': 1.0}", b"'epoch': 3.0}"))
    assert [m.i for m in of(Metric, events) if m.name == "loss_mean"] == [99, 287]
    assert [e.i for e in of(Eval, events)] == [115, 345]


def test_a_training_that_ends_early_keeps_what_its_header_explains() -> None:
    cut = V4[: V4.index(b"{'train_runtime")]
    assert len(of(Eval, parsers.read_log("trainer", cut))) == 1
    assert of(Eval, parsers.read_log("trainer", cut[cut.index(b"{'loss") :])) == []


def test_losses_that_are_no_numbers_are_noted_also_where_the_trainer_hides_them() -> None:
    for line in (b"{'loss': nan, 'epoch': 0.1}", b"{'loss': '0', 'grad_norm': 'nan', 'epoch': '0.1'}"):
        assert [note.kind for note in of(Note, parsers.read_log("trainer", line + b"\n" + line))] == ["nan_loss"]


@pytest.mark.parametrize(
    "line",
    [
        "{'loss': 1.0}",
        "{'loss': '1.0', 'epoch': 'nan'}",
        "{'train_runtime': 'inf', 'train_steps_per_second': '0', 'epoch': '1'}",
        "{'train_runtime': '1e300', 'train_steps_per_second': '1e300', 'epoch': '1'}",
        "{'loss': [1], 'epoch': {}}",
        "***** eval metrics *****\n  eval_loss = 1\n  eval_steps_per_second = 1",
    ],
)
def test_what_is_no_trainers_is_nothing(line: str) -> None:
    assert parsers.read_log("trainer", line.encode()) == []
