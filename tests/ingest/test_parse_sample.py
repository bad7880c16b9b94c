"""What is read of the output of nanoGPT's sample.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from queue_runner.events import Hello, Metric, Note
from queue_runner.ingest import parsers

pytestmark = pytest.mark.fast

HEADER = """Overriding: out_dir = out-shakespeare-char
Overriding: device = cpu
Overriding: max_new_tokens = 12
Overriding: start =
number of parameters: 10.65M
Loading meta from data/shakespeare_char/meta.pkl...
"""
TEXTS = ["\nMENENIUS:\nO, 12", "\n\nNow, my lord\n\n--- \ndash", "\nend\n"]
LOG = HEADER + "".join(f"{text}\n---------------\n" for text in TEXTS)


def of(kind: type, events: list[Any]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def test_its_texts_are_read_with_their_blank_lines() -> None:
    events = parsers.read_log("sample", LOG.encode(), {"compile": "off"})
    assert [note.text for note in of(Note, events)] == TEXTS
    values = {
        name: [m.value for m in of(Metric, events) if m.name == name] for name in ("samples", "sample_characters")
    }
    assert values == {"samples": [1, 2, 3], "sample_characters": [len(text) for text in TEXTS]}
    assert [m.value for m in of(Metric, events) if m.name == "sample_tokens"] == [12, 12, 12]
    [hello] = of(Hello, events)
    assert (hello.workload, hello.device, hello.dtype, hello.compile) == ("nanogpt-sample", "cpu", "fp32", False)
    offsets = [m.offset for m in of(Metric, events)]
    assert len({*offsets}) == len(offsets)


def test_tokens_are_not_guessed_where_they_are_not_said() -> None:
    log = LOG.replace("Overriding: max_new_tokens = 12\n", "")
    assert not [m for m in of(Metric, parsers.read_log("sample", log.encode())) if m.name == "sample_tokens"]


@pytest.mark.parametrize("size", [1, 7, 64])
def test_it_is_read_the_same_in_pieces(size: int) -> None:
    data, at, state, found = LOG.encode(), 0, None, []
    for end in range(size, len(data) + size, size):
        reader = parsers.load("sample")
        if state is not None:
            reader.restore(state)
        events, used, _ = reader.read_chunk(data[at:end], at)
        at, state, found = at + used, reader.state(), found + events
    assert [n.text for n in of(Note, found)] == TEXTS


def test_it_is_recognized_and_a_training_log_is_not_taken_for_it() -> None:
    assert parsers.sniff(LOG) == "sample"
    training = "step 0: train loss 4.2, val loss 4.2\niter 0: loss 4.2, time 9.00ms, mfu -100.00%\n" * 3
    assert parsers.sniff(training + "-" * 15 + "\n") == "nanogpt"


def test_a_text_without_end_is_bounded() -> None:
    reader = parsers.load("sample")
    reader.read_chunk(b"word\n" * 100_000)
    assert len(reader.state()) < 10_000
    [note] = of(Note, parsers.read_log("sample", b"word\n" * 1000 + b"---------------\n"))
    assert len(note.text) == 2000


def test_ours_prints_what_its_parser_reads() -> None:
    text = (Path(__file__).resolve().parents[2] / "jobs" / "harness" / "sampling.py").read_text()
    assert 'BETWEEN = "-" * 15' in text and parsers.iterates("nanogpt") and not parsers.iterates("sample")
