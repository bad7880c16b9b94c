"""Bundles from people who mean harm, or from a bad disk: refused whole with a sentence, and nothing is written."""

from __future__ import annotations

import gzip
import json
import os
import random
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from queue_runner import reports
from queue_runner.bundles import file
from queue_runner.bundles.parts import PARTS, BadBundle
from queue_runner.errors import MpsqError
from queue_runner.paths import Layout
from queue_runner.reports._common import printing
from queue_runner.reports._common.report_options import read_options
from queue_runner.store import read
from tests.bundles.bundles_support import (
    content,
    exported,
    lines_of,
    merged,
    packed,
    receiver,
    rehash,
    rows,
    sealed,
    sender,
)

pytestmark = pytest.mark.process

LONG = os.environ.get("MPSQ_CAMPAIGN") == "long"
COLUMNS = {part.name: part.names for part in PARTS}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return exported(sender(tmp_path_factory.mktemp("a") / "home"))


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """A queue into which nothing of all this may come."""
    return receiver(tmp_path_factory.mktemp("b") / "home")


def refused(layout: Layout, data: bytes, says: str = "refused") -> None:
    """Check that a bundle is refused by one sentence, and that nothing was stored."""
    before = content(layout.db)
    with pytest.raises(BadBundle, match=says) as caught:
        merged(layout, data)
    assert "\n" not in caught.value.message and caught.value.message.isprintable()
    assert content(layout.db) == before
    assert not before["jobs"]


def put(part: str, column: str, value: Any, at: int = 0) -> Callable[[list[Any]], None]:
    def change(lines: list[Any]) -> None:
        rows(lines, part)[at][COLUMNS[part].index(column)] = value

    return change


def spec(**fields: Any) -> Callable[[list[Any]], None]:
    def change(lines: list[Any]) -> None:
        rows(lines, "jobs")[0][COLUMNS["jobs"].index("spec_json")].update(fields)

    return change


def told(kind: str, **fields: Any) -> Callable[[list[Any]], None]:
    def change(lines: list[Any]) -> None:
        next(row for row in rows(lines, "fingerprints") if row[1] == kind)[2].update(fields)
        rehash(lines)

    return change


def remove(part: str) -> Callable[[list[Any]], None]:
    def change(lines: list[Any]) -> None:
        found = rows(lines, part)
        begin = lines.index({"part": part})
        del lines[begin : begin + 1 + len(found)]

    return change


def double(part: str) -> Callable[[list[Any]], None]:
    def change(lines: list[Any]) -> None:
        begin = lines.index({"part": part})
        lines[begin:begin] = [{"part": part}, *rows(lines, part)]

    return change


def deep(levels: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in range(levels):
        found = {"a": found}
    return found


LIES: dict[str, tuple[Callable[[list[Any]], None], str]] = {
    "a point": (put("iterations", "dur_s", 0.4999), "its report is not that of its points"),
    "a run made valid": (put("taints", "severity", "caveat"), "its report is not that of its points"),
    "the report": (lambda lines: lines[-2]["report"]["rows"][0].update(median_s=1.0), "report is not"),
    "a number as text": (put("iterations", "dur_s", "0.5"), "dur_s is not a number"),
    "a negative time": (put("iterations", "dur_s", -1.0), "dur_s is not a number between"),
    "true as number": (put("iterations", "i", True), "i is not a whole number"),
    "a huge number": (put("iterations", "i", 10**40), "i is not a whole number"),
    "nan by word": (put("iterations", "loss", "nan"), "loss is not a number"),
    "a list as a row": (put("iterations", "loss", [1]), "loss is not a number"),
    "an escape in a name": (spec(name="\x1b[31mred"), "contains control characters"),
    "markup in a name": (spec(name="<script>alert(1)</script>"), "name contains control characters or markup"),
    "markup of a device": (put("hellos", "device_name", "<img src=x>"), "device_name contains"),
    "an escape in a note": (put("jobs", "note", "\x1b]0;title\x07"), "note contains control characters"),
    "an escape in a tree": (put("hellos", "hello_json", {"a": "\x1b[2J"}), "hello_json contains control"),
    "half a surrogate": (put("jobs", "note", "\ud800"), "surrogate"),
    "a path as code": (spec(snapshot="../../etc/passwd"), "snapshot is not a sha256"),
    "a field for the shell": (spec(cwd="/tmp"), "a job has the wrong fields"),
    "an environment": (spec(env={"LD_PRELOAD": "/x.so"}), "a job has the wrong fields"),
    "another kind": (spec(kind="import"), "kind is none of"),
    "deep JSON": (put("hellos", "hello_json", deep(100)), "nested too deeply"),
    "a long text": (put("jobs", "note", "a" * 20_000), "note is not a text of at most"),
    "many values": (put("hellos", "hello_json", {"a": [0] * 20_000}), "more than 10,000 values"),
    "markup of a metric": (put("groups", "aim", {"by": "<b>", "margins": {}}), "aim contains control characters"),
    "a margin as text": (put("groups", "aim", {"by": "", "margins": {"": "1"}}), "aim is not a number"),
    "a margin of nothing": (put("groups", "aim", {"by": "", "margins": {"": 0}}), "aim has a margin of 0"),
    "an aim of its own": (put("groups", "aim", {"by": ""}), "aim is not what a submission asks about"),
    "too few columns": (lambda lines: rows(lines, "exits")[0].pop(), "a row of exits has not"),
    "too many columns": (lambda lines: rows(lines, "exits")[0].append(1), "a row of exits has not"),
    "too many old columns": (lambda lines: rows(lines, "runs")[0].extend([1, 1]), "a row of runs has not"),
    "an old column as text": (lambda lines: rows(lines, "runs")[0].append("1"), "replaces is not a whole number"),
    "a missing part": (remove("exits"), "exits is missing"),
    "a doubled part": (double("phases"), "is missing, doubled"),
    "a doubled run": (put("runs", "id", 2), "its runs contradict one another"),
    "a run of no job": (put("runs", "job_id", 99), "belongs to none of jobs"),
    "a point of no run": (put("iterations", "run_id", 99), "belongs to none of runs"),
    "an unknown fingerprint": (put("runs", "machine_hash", "0" * 64), "belongs to none of fingerprints"),
    "another fingerprint": (put("fingerprints", "data_json", {"cpu": "better"}), "not what its hash says"),
    "a processor as number": (told("machine", cpu=5), "cpu is not a text"),
    "a processor as list": (told("machine", cpu=["a"]), "cpu is not a text"),
    "a model as number": (told("machine", cpu=None, model=7), "model is not a text"),
    "memory as text": (told("machine", memory_gib="64"), "memory_gib is not a whole number"),
    "GPUs as text": (told("machine", gpus="H200"), "gpus of a fingerprint is not a list"),
    "cores of a GPU as list": (told("machine", gpus=[{"cores": [1]}]), "gpus of a fingerprint is not a name or number"),
    "the system as list": (told("software", system=[1]), "system of a fingerprint is not an object"),
    "the system as text": (told("software", system="os"), "system of a fingerprint is not an object"),
    "packages as list": (told("software", packages=[1]), "packages of a fingerprint is not an object"),
    "an unknown fact in depth": (told("software", more={"a": {"b": 1}}), "more of a fingerprint is not a name"),
    "markup of a fact": (told("software", more="<b>"), "more contains control characters or markup"),
    "a start beyond time": (put("runs", "started_at", 1e300), "started_at is not a number between"),
    "an end beyond calendars": (put("runs", "ended_at", 1e12), "ended_at is not a number between"),
    "an outcome of none": (put("runs", "outcome", "WON"), "outcome is none of"),
    "failed without a code": (put("runs", "outcome", "FAILED"), "its runs contradict"),
    "a circle of resumes": (put("runs", "resumed_from", 1), "resumes from none"),
    "another version": (lambda lines: lines[0].update(mpsq_bundle=2), "its format is version"),
    "an escape in its version": (lambda lines: lines[0].update(mpsq="\x1b[31m"), "mpsq contains control"),
    "no report": (lambda lines: lines[-2].update(report=None), "it has no report"),
}  # fmt: skip


@pytest.mark.parametrize("what", LIES)
def test_a_well_sealed_lie_is_refused(data: bytes, there: Layout, what: str) -> None:
    change, says = LIES[what]
    lines = lines_of(data)
    change(lines)
    refused(there, sealed(lines), says)


def test_a_sealed_bundle_is_accepted_so_that_the_lies_are_what_is_refused(data: bytes, tmp_path: Path) -> None:
    assert merged(receiver(tmp_path / "c"), sealed(lines_of(data)))[0].runs == 6


DAMAGE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "nothing": (lambda _: b"", "it is empty"),
    "a text": (lambda _: b"hello\n", "not a file of mpsq export"),
    "cut off": (lambda data: data[:-100], "cut off|damaged"),
    "half": (lambda data: data[: len(data) // 2], "cut off|damaged"),
    "something behind": (lambda data: data + b"x", "something follows"),
    "twice": (lambda data: data + data, "something follows"),
    "a flipped bit": (lambda data: data[:300] + bytes([data[300] ^ 4]) + data[301:], "refused"),
    "a changed point": (lambda data: packed(gzip.decompress(data).replace(b"0.125,", b"0.126,", 1)), "is damaged"),
    "a removed point": (lambda data: packed(_without(gzip.decompress(data), b"\n[3,100,")), "iterations is damaged"),
    "an added line": (lambda data: packed(gzip.decompress(data) + b"{}\n"), "something follows its end"),
    "1e400": (lambda data: packed(gzip.decompress(data).replace(b"0.125,", b"1e400,", 1)), "dur_s is not a number"),
    "NaN": (lambda data: packed(gzip.decompress(data).replace(b"0.125,", b"NaN,", 1)), "is not JSON"),
    "no UTF-8": (lambda data: packed(gzip.decompress(data).replace(b"Alpha", b"\xff\xfe\xfd", 1)), "is not JSON"),
    "a key twice": (lambda data: packed(b'{"mpsq":"1","mpsq":"2"}\n'), "is not JSON"),
    "brackets": (lambda data: packed(b"[" * 500_000 + b"\n"), "nested too deeply|is not JSON"),
    "many digits": (lambda data: packed(b"9" * 1_000_000 + b"\n"), "is not JSON"),
    "a long line": (lambda data: packed(b"a" * (file.MOST_LINE_BYTES + 10)), "a line is longer"),
}  # fmt: skip


def _without(text: bytes, begin: bytes) -> bytes:
    at = text.index(begin)
    return text[:at] + text[text.index(b"\n", at + 1) :]


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_refused(data: bytes, there: Layout, what: str) -> None:
    change, says = DAMAGE[what]
    refused(there, change(data), says)


def test_one_bad_bundle_of_several_refuses_all(data: bytes, there: Layout) -> None:
    with pytest.raises(BadBundle, match=r"\(1\.mpsq\)"):
        merged(there, data, data[:-1])
    assert not content(there.db)["runs"]


def test_a_bomb_is_refused_in_little_memory(there: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "MOST_BYTES", 16 << 20)
    bomb = packed(b"[]\n" * (12 << 20))
    assert len(bomb) < 100_000
    tracemalloc.start()
    try:
        refused(there, bomb)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    line = packed(b'{"mpsq_bundle":1,"mpsq":"1","statistics":"1"}\n{"part":"groups"}\n' + b'[1,0.0,"",0]\n' * (2 << 20))
    refused(there, line, "expands to more than|contradict")


def test_a_file_beyond_the_limit_is_refused_unread(there: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "MOST_FILE_BYTES", 1000)
    refused(there, b"\x1f\x8b\x08" + bytes(1001), "larger than")


NASTY = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), st.just("\x1b[2J"), st.just("<b>"),
    st.just({}), st.just([]), st.just("inf"), st.just(10**30), st.just(2**63), st.just(deep(40)),
    st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5), max_size=3),
)  # fmt: skip


@settings(
    max_examples=2_000 if LONG else 25, derandomize=not LONG, deadline=None, database=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
@given(seed=st.integers(0, 2**32), values=st.lists(NASTY, min_size=1, max_size=3), reseal=st.booleans())
def test_any_change_is_refused_or_harmless(
    data: bytes, tmp_path_factory: pytest.TempPathFactory, seed: int, values: list[Any], reseal: bool
) -> None:
    """Random values anywhere in a bundle that is sealed again, or random bytes of the file: it is refused with nothing
    stored, or every report can be made of what came in."""
    chance = random.Random(seed)
    if reseal:
        lines = lines_of(data)
        for value in values:
            _plant(lines, value, chance)
        with suppress(StopIteration, AttributeError, LookupError, ValueError, TypeError):  # a hash hides no lie
            rehash(lines)
        try:
            changed = sealed(lines)
        except (StopIteration, AttributeError, ValueError, TypeError):  # no bundle at all any more
            return
    else:
        torn = bytearray(data)
        for value in values:
            torn[chance.randrange(len(torn))] = hash(str(value)) % 256
        changed = bytes(torn)
    there = receiver(tmp_path_factory.mktemp("fuzz") / "home")
    empty = content(there.db)
    try:
        merged(there, changed)
    except MpsqError:
        assert content(there.db) == empty
        return
    for name in reports.names():
        with read.reading(there.db) as connection:
            result = reports.run(name, connection, read_options())
        for format in ("table", "json"):
            assert "\x1b" not in printing.as_text(name, result, format)


def _plant(lines: list[Any], value: Any, chance: random.Random) -> None:
    """Put a value in the place of a random one."""
    at: Any = lines
    key: Any = chance.randrange(len(lines))
    while isinstance(at[key], dict | list) and at[key] and chance.random() < 0.9:
        at = at[key]
        key = chance.choice(list(at)) if isinstance(at, dict) else chance.randrange(len(at))
    at[key] = json.loads(json.dumps(value))
