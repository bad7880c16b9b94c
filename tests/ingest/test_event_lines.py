"""The reader of the wire: golden files, every event, and every kind of hostile line."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queue_runner.events import FIELD_DROPPED
from queue_runner.ingest import event_lines
from queue_runner.ingest.event_lines import Bad, Bye, Counts, Eval, Forged, Hello, Iter, Metric, Note, Phase, Unknown
from tests.events_support import fields

pytestmark = pytest.mark.process

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "protocol"


def read(**said: Any) -> Any:
    return event_lines.parse_line(json.dumps({"t": 1.0} | said).encode(), 7)


def spoken(value: Any) -> Any:
    """As the wire writes it: numbers that are not finite are words."""
    if isinstance(value, dict):
        return {key: spoken(item) for key, item in value.items()}
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.jsonl")), ids=lambda p: p.stem)
def test_golden_files_read_as_expected(path: Path) -> None:
    events, consumed, counts = event_lines.read_chunk(path.read_bytes())
    found = {
        "events": [spoken({"event": type(e).__name__, **fields(e)}) for e in events],
        "consumed": consumed,
        "counts": fields(counts),
    }
    assert found == json.loads(path.with_suffix(".expected.json").read_text())


def test_there_are_golden_files() -> None:
    assert len(list(GOLDEN.glob("*.jsonl"))) >= 2


def test_each_type_becomes_its_event() -> None:
    assert read(type="iter", i=3, dur_s=0.5, loss=4.2, synced=True, phase="warmup", allocated_bytes=9) == Iter(
        7, 1.0, 3, 0.5, 4.2, True, "warmup", 9, None
    )
    assert read(type="phase", name="setup", edge="begin") == Phase(7, 1.0, "setup", "begin")
    assert read(type="phase", name="setup", edge="end", cpu_s=2) == Phase(7, 1.0, "setup", "end", 2.0)
    assert read(type="eval", i=250, split="val", metrics={"loss": 1.7}, dur_s=3) == Eval(
        7, 1.0, 250, "val", {"loss": 1.7}, 3.0
    )
    assert read(type="metric", name="tflops", value=5, unit="TFLOP/s") == Metric(7, 1.0, "tflops", 5.0, "TFLOP/s")
    assert read(type="note", kind="oom", text="full", at=3) == Note(7, 1.0, "oom", "full", {"at": 3})
    assert read(type="bye", ok=False) == Bye(7, 1.0, False)
    later = read(type="later", x=[1])
    assert isinstance(later, Unknown) and later.type == "later" and json.loads(later.raw)["x"] == [1]


def test_hello_keeps_what_the_protocol_does_not_name() -> None:
    hello = read(type="hello", v=1, workload="nanogpt", versions={"torch": "2.13.0"}, seed=-1, compile=False, tf32=True)
    assert isinstance(hello, Hello)
    assert (hello.workload, hello.seed, hello.compile, hello.extra) == ("nanogpt", -1, False, {"tf32": True})
    assert hello.to_json() == {
        "v": 1,
        "workload": "nanogpt",
        "versions": {"torch": "2.13.0"},
        "seed": -1,
        "compile": False,
        "tf32": True,
    }


def test_numbers_that_are_not_finite_are_words() -> None:
    assert math.isnan(read(type="iter", i=0, dur_s=1, loss="nan").loss)
    assert read(type="iter", i=0, dur_s=1, loss="-inf").loss == -math.inf
    assert read(type="iter", i=0, dur_s=1).loss is None


def test_another_major_version_is_a_sentence() -> None:
    with pytest.raises(event_lines.ProtocolVersionError, match="version 2") as caught:
        read(type="hello", v=2)
    assert caught.value.hint


def test_an_outcome_cannot_be_forged() -> None:
    assert read(type="exit", exit_code=0) == Forged(7)


ITER = {"type": "iter", "t": 1, "i": 1, "dur_s": 1}
BAD_FIELDS: list[dict[str, Any]] = [
    {**ITER, "i": -1},
    {**ITER, "i": 2**63},
    {**ITER, "i": True},
    {**ITER, "i": 1.5},
    {**ITER, "i": None},
    {**ITER, "dur_s": -0.1},
    {**ITER, "dur_s": 1e12},
    {**ITER, "dur_s": 10**400},
    {**ITER, "dur_s": "nan"},
    {**ITER, "dur_s": False},
    {**ITER, "phase": "coffee"},
    {**ITER, "phase": ["measure"]},
    {**ITER, "phase": "setup"},
    {**ITER, "t": None},
    {**ITER, "t": -1},
    {**ITER, "t": "nan"},
    {**ITER, "type": 7},
    {"t": 1},
    {"type": "hello", "t": 1},
    {"type": "hello", "t": 1, "v": "1"},
    {"type": "phase", "t": 1, "name": "measure", "edge": "middle"},
    {"type": "phase", "t": 1, "name": "eval_iter", "edge": "begin"},
    {"type": "eval", "t": 1, "i": 1, "metrics": [1]},
    {"type": "eval", "t": 1, "i": 1, "metrics": {"loss": None}},
    {"type": "metric", "t": 1, "name": "x"},
    {"type": "metric", "t": 1, "name": 1, "value": 1},
    {"type": "note", "t": 1, "text": "no kind"},
    {"type": "bye", "t": 1, "ok": "yes"},
]


@pytest.mark.parametrize("said", BAD_FIELDS, ids=lambda s: json.dumps(s)[:60])
def test_wrong_types_and_absurd_values_are_bad(said: dict[str, Any]) -> None:
    assert isinstance(event_lines.parse_line(json.dumps(said).encode(), 7), Bad)


KEPT: list[tuple[dict[str, Any], str]] = [
    ({**ITER, "loss": "low"}, "iter: loss: expected float | null, got str"),
    ({**ITER, "synced": 1}, "iter: synced: expected bool | null, got int"),
    (
        {**ITER, "allocated_bytes": 2**63, "loss": {}},
        "iter: loss: expected float | null, got object; allocated_bytes: expected int <= 9223372036854775807",
    ),
    ({**ITER, "reserved_bytes": 1.0}, "iter: reserved_bytes: expected int | null, got float"),
    (
        {"type": "hello", "t": 1, "v": 1, "params": {"a": 1}, "seed": 2},
        "hello: params: expected int | null, got object",
    ),
    ({"type": "hello", "t": 1, "v": 1, "seed": 2**64}, "hello: seed: expected int <= 9223372036854775807"),
    ({"type": "hello", "t": 1, "v": 1, "versions": {"torch": 2}}, "hello: versions: expected str, got int"),
    ({"type": "hello", "t": 1, "v": 1, "flops_per_iter": 0}, "hello: flops_per_iter: expected float >= 1e-30"),
    (
        {"type": "hello", "t": 1, "v": 1, "device": "c\0pu"},
        "hello: 'device': the text contains NUL or an unpaired surrogate",
    ),
    (
        {"type": "hello", "t": 1, "v": 1, "\ud800": 1},
        r"hello: '\ud800': the text contains NUL or an unpaired surrogate",
    ),
    ({"type": "phase", "t": 1, "name": "eval", "edge": "end", "cpu_s": -1}, "phase: cpu_s: expected float >= 0.0"),
    ({"type": "eval", "t": 1, "i": 1, "metrics": {"loss": 1, "acc": None}}, "eval: acc: expected float, got null"),
    ({"type": "eval", "t": 1, "i": 1, "metrics": {"loss": 1}, "dur_s": -1}, "eval: dur_s: expected float >= 0.0"),
    (
        {"type": "metric", "t": 1, "name": "x", "value": 1, "unit": 5, "i": -1},
        "metric: unit: expected str, got int; i: expected int >= 0",
    ),
    ({"type": "note", "t": 1, "kind": "x", "deep": json.loads("[" * 40 + "]" * 40)}, "note: 'deep': nested too deeply"),
]


@pytest.mark.parametrize(("said", "why"), KEPT, ids=lambda s: json.dumps(s)[:60])
def test_a_field_that_a_line_can_do_without_is_left_out_and_told_once(said: dict[str, Any], why: str) -> None:
    line = json.dumps(said).encode() + b"\n"
    events, _, counts = event_lines.read_chunk(line * 3)
    assert (
        counts == Counts()
        and [type(event).__name__.lower() for event in events] == [said["type"], "note"] + [said["type"]] * 2
    )
    assert events[1] == Note(1, 1.0, FIELD_DROPPED, why)


def test_a_hello_keeps_its_other_fields() -> None:
    hello = read(type="hello", v=1, workload="mine", params={"a": 1}, seed=3, more=[1])
    assert hello.to_json() == {"v": 1, "workload": "mine", "seed": 3, "more": [1]}


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"null",
        b"[]",
        b'{"type":"iter"',
        b'{"type":"iter","t":1,"i":1,"dur_s":NaN}',
        b'{"type":"iter","t":1,"i":1,"dur_s":Infinity}',
        b'{"type":"iter","t":1,"i":1,"dur_s":1e999}',
        b'{"type":"metric","t":1,"name":"x","value":-1e999}',
        b'{"type":"later","t":1,"x":' + b"[" * 40 + b"]" * 40 + b"}",
        b'{"type":"iter","t":1,"i":1,"dur_s":1}{"type":"bye"}',
        b'{"type":"iter","t":1,"i":' + b"9" * 5000 + b',"dur_s":1}',
        b'{"type":"note","t":1,"kind":"x","text":"\xff\xfe"}',
        b'{"type":"note","t":1,"kind":"x","text":"a\x00b"}',
        b'{"type":"note","t":1,"kind":"x","deep":' + b"[" * 30_000 + b"]" * 30_000 + b"}",
        b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
        b'{"type":"note","t":1,"kind":"x","text":"' + b"x" * event_lines.MAX_LINE_BYTES + b'"}',
        b"\x00" * 100,
    ],
    ids=lambda line: line[:40].decode("latin-1"),
)
def test_hostile_lines_are_bad(line: bytes) -> None:
    assert isinstance(event_lines.parse_line(line, 7), Bad)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["nan", "measure", "begin"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
keys = st.sampled_from(
    [
        "t",
        "v",
        "i",
        "dur_s",
        "loss",
        "synced",
        "phase",
        "name",
        "edge",
        "metrics",
        "split",
        "value",
        "unit",
        "kind",
        "text",
        "ok",
        "x",
    ]
)
types = st.sampled_from(["hello", "phase", "iter", "eval", "metric", "note", "bye", "exit", "other"])


@given(types, st.dictionaries(keys, json_values, max_size=8))
@settings(max_examples=75, deadline=None)
def test_any_object_is_an_event_bad_or_forged_and_can_be_stored(kind: str, said: dict[str, Any]) -> None:
    line = json.dumps({"t": 1, **said, "type": kind}).encode()
    try:
        event = event_lines.parse_line(line, 0)
    except event_lines.ProtocolVersionError:
        assert kind == "hello"
        return
    if not isinstance(event, Bad | Forged):
        json.dumps(spoken(fields(event)), allow_nan=False, ensure_ascii=False).encode()


@given(st.binary(max_size=200), st.integers(0, 2**40))
@settings(max_examples=75, deadline=None)
def test_any_bytes_are_consumed_up_to_the_last_newline(data: bytes, offset: int) -> None:
    events, consumed, _ = event_lines.read_chunk(data, offset)
    assert events == []
    assert consumed == data.rfind(b"\n") + 1


@given(st.lists(st.integers(1, 60), max_size=8))
@settings(max_examples=50, deadline=None)
def test_chunks_may_be_cut_anywhere(cuts: list[int]) -> None:
    data = b"".join(json.dumps({**ITER, "i": i}).encode() + b"\n" for i in range(6)) + b'{"torn'
    whole, consumed, _ = event_lines.read_chunk(data)
    at, end, events = 0, 0, []
    for cut in [*cuts, len(data)]:
        end = min(len(data), end + cut)
        found, used, _ = event_lines.read_chunk(data[at:end], at)
        at += used
        events += found
    assert events == whole and at == consumed == len(data) - 6


def test_counts_and_offsets() -> None:
    line = json.dumps(ITER).encode() + b"\n"
    data = line + b"\n \r\n" + b"junk\n" + b'{"type":"exit","t":1}\n{"type":"new","t":1}\n' + line + b"{"
    events, consumed, counts = event_lines.read_chunk(data, 1000)
    assert counts == Counts(bad=1, forged=1, unknown=1)
    assert [e.offset for e in events] == [1000, 1000 + data.index(b'{"type":"new"'), 1000 + len(data) - 1 - len(line)]
    assert consumed == len(data) - 1


def test_an_endless_line_is_skipped_without_waiting_for_its_end() -> None:
    """Its rest, wherever the chunks are cut, is never taken for a line of its own."""
    forged = json.dumps(ITER).encode()
    data = b"x" * (3 * event_lines.MAX_LINE_BYTES) + forged + b"\n" + forged + b"\n"
    at, bad, events = 0, 0, []
    for end in range(50_000, len(data) + 50_000, 50_000):
        found, used, counts = event_lines.read_chunk(data[at : min(end, len(data))], at)
        at, bad, events = at + used, bad + counts.bad, events + found
    assert (at, bad, [e.offset for e in events]) == (len(data), 1, [len(data) - len(forged) - 1])
