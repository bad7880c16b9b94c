"""Lightning's progress bars become events. The golden logs are what lightning 2.6.6 printed into a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queue_runner.events import Eval, Hello, Iter, LogEvent, Metric
from queue_runner.ingest import parsers
from tests.ingest.test_parsers import of, shown

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "parsers" / "lightning"
LOGS = sorted(GOLDEN.glob("*.log"))


def read(text: str, **told: object) -> list[LogEvent]:
    return parsers.read_log("lightning", text.encode(), told)


def bar(n: int, seconds: float, *, epoch: int = 0, total: int | str = 100, loss: float | None = None) -> str:
    """Two lines of tqdm's bar, as Lightning prints them for each batch that it shows."""
    rate = f"{n / seconds:5.2f}it/s" if n > seconds else f"{seconds / n:5.2f}s/it"
    line = f"\rEpoch {epoch}:   1%|▏         | {n}/{total} [00:01<00:09, {rate}"
    return f"{line}]{line}{'' if loss is None else f', v_num=0, train_loss={loss:.3g}'}]"


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_golden_logs_read_as_expected(path: Path) -> None:
    data = path.read_bytes()
    assert parsers.sniff(data.decode()) == "lightning"
    assert shown(parsers.read_log("lightning", data)) == json.loads(path.with_suffix(".expected.json").read_text())


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_a_log_cut_anywhere_with_the_state_stored_between_reads_the_same(path: Path) -> None:
    data = path.read_bytes() + b"\n"
    whole = shown(parsers.load("lightning").read_chunk(data)[0])
    at, events, state = 0, list[LogEvent](), parsers.load("lightning").state()
    for end in range(61, len(data) + 61, 61):
        reader = parsers.load("lightning")
        reader.restore(state)
        found, used, _ = reader.read_chunk(data[at:end], at)
        at, events, state = at + used, events + found, reader.state()
    assert at == len(data) and shown(events) == whole


def test_the_time_between_two_lines_is_shared_by_the_batches_between_them() -> None:
    events = read(bar(10, 5.0, loss=3.0) + bar(30, 9.0, loss=2.5) + bar(50, 13.0, loss=2.25))
    assert [(one.i, one.loss, one.phase, one.synced) for one in of(Iter, events)] == [
        (29, 2.5, "measure", False), (49, 2.25, "measure", False)
    ]  # fmt: skip
    assert [one.dur_s for one in of(Iter, events)] == pytest.approx([0.2, 0.2], rel=0.02)
    assert [(one.name, one.i) for one in of(Metric, events)] == [("mean_step", 9)]
    assert of(Metric, events)[0].value == pytest.approx(0.5, rel=0.02)


def test_batches_whose_time_the_digits_do_not_tell_wait_for_more() -> None:
    """At 2.00 s a batch, the line of batch 100 is certain to half a second."""
    text = "".join(bar(n, 2.0 * n) for n in (90, 91, 92, 93, 180))
    assert [one.i for one in of(Iter, read(text))] == [179]
    assert of(Iter, read(text))[0].dur_s == pytest.approx(2.0, rel=0.02)


def test_a_validation_is_in_no_mean() -> None:
    """Nor are the batches up to the next line: those that the bar had not shown yet came before it or after it."""
    validation = "\rValidation DataLoader 0: 100%|██| 8/8 [00:04<00:00,  2.00it/s]"
    text = bar(20, 2.0) + validation + bar(20, 6.0) + bar(40, 8.0) + bar(60, 10.0)
    assert [one.i for one in of(Iter, read(text))] == [59]
    assert of(Iter, read(text))[0].dur_s == pytest.approx(0.1, rel=0.02)


def test_epochs_are_numbered_on_and_a_resumed_one_begins_where_it_was() -> None:
    epochs = bar(1, 0.1, total=50) + bar(50, 5.0, total=50) + bar(50, 5.0, epoch=1, total=50)
    assert [one.i for one in of(Iter, read(epochs))] == [0, 49, 99]
    assert [one.i for one in of(Iter, read(bar(1, 5.0, epoch=3, total=50)))] == [150]
    assert [one.i for one in of(Iter, read(bar(1, 5.0, epoch=3, total="?")))] == [0]


def test_compilation_is_told_from_outside_and_is_in_the_first_batch_alone() -> None:
    text = bar(1, 20.0) + bar(50, 25.0)
    assert [one.phase for one in of(Iter, read(text, compile="on"))] == ["compile", "measure"]
    assert not of(Iter, read(bar(20, 20.0), compile="on")) and of(Iter, read(text))[0].phase == "warmup"
    assert of(Hello, read(text, compile="on"))[0].compile is True and of(Hello, read(text))[0].compile is None


def test_the_header_names_device_and_precision() -> None:
    header = "Using bfloat16 Automatic Mixed Precision (AMP)\nGPU available: True (mps), used: True\n"
    hello = of(Hello, read(header + bar(1, 1.0)))[0]
    assert (hello.device, hello.dtype, hello.framework) == ("mps", "bf16", "torch")
    assert of(Hello, read("GPU available: True (cuda), used: False\n" + bar(1, 1.0)))[0].device == "cpu"


def test_names_of_measures() -> None:
    line = "\rEpoch 0: |   | 1/? [00:01<?, 9.00it/s, v_num=ab1e, loss_step=nan, val/acc=0.5, val_loss=1e-3]"
    text = line + line + "\rValidation DataLoader 0:  50%|█| 1/2 [00:00<00:00, 9.00it/s]" + line
    assert str(of(Iter, read(text))[0].loss) == "nan"
    assert [(one.i, one.metrics) for one in of(Eval, read(text))] == [(1, {"acc": 0.5, "loss": 1e-3})]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.sampled_from(["Epoch 0:", " 3/9", "|", " [00:01<", "0.00it/s", ", 1.00s/it", "]", "\r", "━", "Epoch 1/1 "])
    )
)
def test_anything_is_read_without_an_error(parts: list[Any]) -> None:
    assert all(one.dur_s >= 0 for one in of(Iter, read("".join(parts))))
