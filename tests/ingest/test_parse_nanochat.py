"""The lines of nanochat's base_train.py and of autoresearch's train.py become steps and val_bpb."""

from __future__ import annotations

from typing import Any

import pytest

from queue_runner.events import Hello, Iter, LogEvent, Metric
from queue_runner.ingest import parsers
from queue_runner.ingest.parsers.nanochat import WARM_UP

pytestmark = pytest.mark.fast

NANOCHAT = b"""\
Parameter counts:
wte                     : 25,165,824
total                   : 135,286,896
Total batch size 524,288 => gradient accumulation steps: 1
Step 00000 | Validation bpb: 3.310421
step 00000/00012 (0.00%) | loss: 10.397178 | lrm: 0.03 | dt: 21417.33ms | tok/sec: 24,479 | bf16_mfu: 1.92 | \
epoch: 1 pq: 0 rg: 8 | total time: 0.00m
""" + b"".join(
    b"step %05d/00012 (%.2f%%) | loss: 9.5 | lrm: 1.00 | dt: 512.25ms | tok/sec: 1,023,500 | bf16_mfu: 48.10 | "
    b"epoch: 1 pq: 0 rg: 8 | total time: 0.01m | eta: 0.1m\n" % (i, i / 0.12)
    for i in range(1, 12)
)
NANOCHAT += b"""Step 00012 | Validation bpb: 2.871034
Peak memory usage: 15021.33MiB
Minimum validation bpb: 2.871034
"""
AUTORESEARCH = (
    b"Vocab size: 8,192\nParameter counts:\n  wte                     : 4,194,304\n"
    b"  total                   : 50,332,176\nTime budget: 300s\nGradient accumulation steps: 2\n"
    + b"".join(
        b"\rstep %05d (%.1f%%) | loss: 4.125000 | lrm: 1.00 | dt: %dms | tok/sec: 1,747,626 | mfu: 41.2%% | epoch: 1 | "
        b"remaining: 246s    " % (i, i / 10, 9000 if i == 0 else 300)
        for i in range(13)
    )
    + b"\n---\nval_bpb:          0.997900\ntraining_seconds: 300.1\nnum_steps:        953\n"
)


def of(kind: type, log: bytes) -> list[Any]:
    return [event for event in parsers.read_log("nanochat", log) if type(event) is kind]


@pytest.mark.parametrize("log", [NANOCHAT, AUTORESEARCH])
def test_the_format_is_recognized(log: bytes) -> None:
    assert parsers.sniff(log.decode()) == "nanochat"


def test_nanochat() -> None:
    (hello,) = of(Hello, NANOCHAT)
    assert (hello.tokens_per_iter, hello.planned_iters, hello.params) == (524288.0, 12, 135286896)
    steps = of(Iter, NANOCHAT)
    assert [step.phase for step in steps] == ["compile", *["warmup"] * WARM_UP, "measure"]
    assert steps[0].loss == 10.397178 and steps[-1].dur_s == pytest.approx(0.51225) and steps[-1].synced
    speeds = [event for event in of(Metric, NANOCHAT) if event.name == "tokens_per_s"]
    assert speeds[-1].value == 1_023_500
    assert [(x.i, x.value) for x in of(Metric, NANOCHAT) if x.name == "val_bpb"] == [(0, 3.310421), (12, 2.871034)]


def test_autoresearch() -> None:
    (hello,) = of(Hello, AUTORESEARCH)
    assert (hello.tokens_per_iter, hello.planned_iters, hello.params) == (None, None, 50_332_176)
    steps = of(Iter, AUTORESEARCH)
    assert len(steps) == 13 and [step.dur_s for step in steps if step.phase == "measure"] == [0.3, 0.3]
    (bpb,) = [event for event in of(Metric, AUTORESEARCH) if event.name == "val_bpb"]
    assert (bpb.value, bpb.i) == (0.9979, 12)


def test_a_log_cut_anywhere_with_the_state_stored_between_reads_the_same() -> None:
    def read(size: int) -> list[LogEvent]:
        reader, events, at = parsers.load("nanochat"), [], 0
        for end in range(size, len(NANOCHAT) + size, size):
            new, used, _ = reader.read_chunk(NANOCHAT[at:end], at)
            events, at, state = events + new, at + used, reader.state()
            reader = parsers.load("nanochat")
            reader.restore(state)
        return events

    assert read(41) == read(len(NANOCHAT))


def test_offsets_are_unique_within_a_table() -> None:
    for log in (NANOCHAT, AUTORESEARCH):
        for kind in (Iter, Metric):
            offsets = [event.offset for event in of(kind, log)]
            assert len(offsets) == len(set(offsets))
